"""Sockets to stores: resolve names; make, keep and reuse connections.

Deadlines are instants of `clock.now`. Making a connection raises OSError (or its subclass
TimeoutError), and using it raises `pool.Broken`. Here only `pool` raises exceptions of a store.
"""
