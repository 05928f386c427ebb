"""`postgresql://` leases in one database: tables, functions and the server's clock.

`dialect` makes plans (pure), `runner` carries them out for both sides, and the functions of
schema.sql decide on the server. psycopg is imported when the first engine is made.
"""

from incumbent.stores.postgresql.public import (
    async_with_token,
    engine_from_object,
    open_postgresql,
    with_token,
)

__all__ = ["async_with_token", "engine_from_object", "open_postgresql", "with_token"]
