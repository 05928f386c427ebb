"""Redis and Valkey: one server, a master that sentinels name, or a cluster.

An operation is a Lua script, which decides on the server, and a module that packs its arguments
and reads its reply: `take`, `give`, `renew`, `put_read`. `exchange` makes plans of them and carries
these out on the connections to one server (`wire`), for blocking code (`sync`) and for asyncio
(`aio`). `sentinel` and `cluster` wrap that for more than one server. `subscription` is how waiters
learn that they may go on. hiredis is imported when the first engine is made.
"""

from incumbent.stores.redis.engine import engine_from_client, open_store

__all__ = ["engine_from_client", "open_store"]
