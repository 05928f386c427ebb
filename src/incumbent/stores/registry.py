"""From a URL, or a driver object of the user's own, to an engine."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, cast

from incumbent.errors import ConfigError
from incumbent.stores.base import Engine

__all__ = ["engine_for_object", "open_engine"]

_BUILT_IN: Final = {
    "memory": "incumbent.stores.memory:open_memory",
    "sqlite": "incumbent.stores.sqlite:open_sqlite",
    "redis": "incumbent.stores.redis:open_store",
    "rediss": "incumbent.stores.redis:open_store",
    "redis+unix": "incumbent.stores.redis:open_store",
    "valkey": "incumbent.stores.redis:open_store",
    "valkeys": "incumbent.stores.redis:open_store",
    **{
        f"{scheme}+{layout}": "incumbent.stores.redis:open_store"
        for scheme in ("redis", "rediss", "valkey", "valkeys")
        for layout in ("sentinel", "cluster")
    },
    "redis+quorum": "incumbent.stores.quorum:open_quorum",
    "rediss+quorum": "incumbent.stores.quorum:open_quorum",
    "etcd": "incumbent.stores.etcd:open_etcd",
    "etcds": "incumbent.stores.etcd:open_etcd",
    "postgresql": "incumbent.stores.postgresql:open_postgresql",
    "postgres": "incumbent.stores.postgresql:open_postgresql",
}
_GROUP: Final = "incumbent.stores"
_REDIS: Final = ("redis", "valkey", "fakeredis")
_POSTGRESQL: Final = ("psycopg_pool", "sqlalchemy")


def open_engine(url: str) -> Engine:
    """The engine of `url`; third parties add schemes by the entry point group `incumbent.stores`.

    Raises ConfigError for anything that is not the URL of a known store. Connects to nothing.
    """
    scheme, colon, rest = url.partition(":")
    if not colon:
        raise ConfigError(
            # Not shown: what looks like no URL may hold a password all the same.
            "what was given is not the URL of a store: write for example redis://localhost:6379",
            name="store",
        )
    if scheme == "withheld":
        raise ConfigError(
            "the store is withheld from the command that incumbent runs, so that it cannot take"
            " leases by mistake; start it with --share-store if it needs them",
            name="store",
        )
    target = _BUILT_IN.get(scheme)
    opener = _load(target) if target else _find_entry_point(scheme, rest)
    return opener(url)


def _load(target: str) -> Callable[[str], Engine]:
    module, _, function = target.partition(":")
    return cast("Callable[[str], Engine]", getattr(import_module(module), function))


def _find_entry_point(scheme: str, rest: str) -> Callable[[str], Engine]:
    from importlib.metadata import entry_points

    for entry in entry_points(group=_GROUP, name=scheme):
        return cast("Callable[[str], Engine]", entry.load())
    if rest.isdecimal():
        where = f"{scheme}:{rest}"
        raise ConfigError(f"{where} has no scheme: did you mean redis://{where} ?", name="store")
    raise ConfigError(
        f"{scheme!r} is not the scheme of a known store: {', '.join(sorted(_BUILT_IN))}, or one"
        f" that an installed package offers by the entry point group {_GROUP!r}",
        name="store",
    )


def engine_for_object(driver: Any) -> Engine:
    """The engine for a Store engine, or for a redis-py client or pool of the user's own."""
    if isinstance(driver, Engine):
        return driver
    if any(base.__module__.split(".")[0] in _REDIS for base in type(driver).__mro__):
        from incumbent.stores.redis import engine_from_client

        engine: Engine = engine_from_client(driver)
        return engine
    if any(base.__module__.split(".")[0] in _POSTGRESQL for base in type(driver).__mro__):
        from incumbent.stores.postgresql import engine_from_object

        return engine_from_object(driver)
    raise ConfigError(
        f"store={type(driver).__name__} object: give a URL, a Client, a redis-py client or pool, a"
        " psycopg pool or SQLAlchemy engine, or an object that implements"
        " incumbent.stores.base.Engine",
        name="store",
    )
