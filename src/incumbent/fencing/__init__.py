"""Fencing: the resource keeps the largest token that it has seen, and refuses a smaller one.

A holder that is stopped between its last check and its write (a frozen machine, a long garbage
collection) writes after the next holder was granted the lease. No lock can prevent that; only the
resource can (Kleppmann, "How to do distributed locking", 2016). These guards check the token and
write in one step:

- `with_token`: in your transaction, on any database (DB-API 2 or SQLAlchemy).
- `write_redis`, `async_write_redis`: commands for Redis or Valkey, in one script.
- `replace_file`: a file, replaced as a whole.
- `headers` at a client, `FencedWSGI` or `FencedASGI` at a server: HTTP.

Each guards a *resource*, which by default has the name of the lease. Tokens of one resource must
come from one lease: give `resource=` if leases of the same name in two namespaces write to one
place. `incumbent.stores.postgresql.with_token` needs no table if that database is the store.
"""

from incumbent.fencing.guards import Fenced, Token, async_write_redis, replace_file, write_redis
from incumbent.fencing.http import FencedASGI, FencedWSGI, headers
from incumbent.fencing.sql import create_table, with_token

__all__ = [
    "Fenced",
    "FencedASGI",
    "FencedWSGI",
    "Token",
    "async_write_redis",
    "create_table",
    "headers",
    "replace_file",
    "with_token",
    "write_redis",
]
