"""`postgresql://` leases in one database: tables, functions and the server's clock.

`dialect` makes plans (pure), `runner` carries them out, blocking or for `aio`, and the functions of
schema.sql decide on the server. psycopg is imported when the first engine is made.
"""

from incumbent.stores.postgresql.fencing import async_with_token, with_token
from incumbent.stores.postgresql.opening import engine_from_object, open_postgresql

__all__ = ["async_with_token", "engine_from_object", "open_postgresql", "with_token"]
