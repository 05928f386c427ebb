"""Sockets to stores: names that are resolved, connections that are made, all within a deadline.

Deadlines are instants of `clock.now`. What fails raises OSError; TimeoutError is one. Nothing here
knows a protocol, or the exceptions of a store.
"""
