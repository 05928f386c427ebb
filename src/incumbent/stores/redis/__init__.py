"""`redis://` leases on one Redis or Valkey server.

`dialect` knows what to say (pure), `sync` and `aio` how to move it, the Lua scripts decide on the
server. hiredis is imported when the first engine is made.
"""

from incumbent.stores.redis.opening import engine_from_client, open_redis, open_store

__all__ = ["engine_from_client", "open_redis", "open_store"]
