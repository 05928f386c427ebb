"""Sockets to stores: names that are resolved, connections that are made, kept and used again.

Deadlines are instants of `clock.now`. Making a connection raises OSError (TimeoutError is one), and
using it `pool.Broken`; neither knows an exception of a store. `pool` raises what the contract says.
"""
