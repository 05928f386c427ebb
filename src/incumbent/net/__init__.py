"""Sockets to stores: names that are resolved, connections that are made, kept and used again.

Deadlines are instants of `clock.now`. `dial`, `aiodial` and `names` raise OSError (TimeoutError is
one) and know no exception of a store. `wire` and `aiowire` raise `pool.Broken`, and `pool` what the
contract says.
"""
