"""What users name as `store=`, as types: one for each driver object, none of which is imported.

A type checker compares attributes, also where the driver is not installed. What an object cannot
do for us is found out when the lock is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from incumbent.stores.base import Engine

if TYPE_CHECKING:
    from incumbent.protocol.link import Link


class Linked(Protocol):
    """A Client or AsyncClient, whose store and connections are shared."""

    @property
    def _link(self) -> Link: ...


class RedisClient(Protocol):
    """A redis-py client of one server or of a Sentinel's master, blocking or for asyncio."""

    @property
    def connection_pool(self) -> object: ...


class RedisPool(Protocol):
    """A connection pool of redis-py."""

    @property
    def connection_class(self) -> object: ...
    @property
    def connection_kwargs(self) -> object: ...


class RedisClusterClient(Protocol):
    """A redis-py client of a cluster, blocking or for asyncio."""

    @property
    def nodes_manager(self) -> object: ...


class PostgresPool(Protocol):
    """A pool of psycopg_pool, blocking or for asyncio."""

    @property
    def conninfo(self) -> object: ...
    @property
    def kwargs(self) -> object: ...


class SqlalchemyEngine(Protocol):
    """An engine of SQLAlchemy, blocking or for asyncio."""

    @property
    def url(self) -> object: ...
    @property
    def dialect(self) -> object: ...


StoreLike: TypeAlias = (
    str
    | Engine
    | Linked
    | RedisClient
    | RedisPool
    | RedisClusterClient
    | PostgresPool
    | SqlalchemyEngine
)
