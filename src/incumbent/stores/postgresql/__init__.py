"""Leases in one PostgreSQL database: tables, functions and the server's clock.

`dialect` makes plans (pure), `runner` carries them out, blocking or asynchronously, and the
functions of schema.sql decide on the server. Making the first engine imports psycopg.
"""

from incumbent.stores.postgresql.public import (
    async_with_token,
    engine_from_object,
    open_postgresql,
    with_token,
)

__all__ = ["async_with_token", "engine_from_object", "open_postgresql", "with_token"]
