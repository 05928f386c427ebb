"""Redis and Valkey: one server, a master that sentinels name, or a cluster.

`commands` packs requests and reads replies, `dialect` makes plans of them, and `exchange` carries
plans out on the connections to one server, on the blocking side (`sync`) and the asynchronous one
(`aio`). The Lua scripts decide on the server. hiredis is imported when the first engine is made.
"""

from incumbent.stores.redis.opening import engine_from_client, open_store

__all__ = ["engine_from_client", "open_store"]
