"""From a URL, or a driver object of the user's own, to an engine."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, cast

from incumbent.errors import ConfigError
from incumbent.stores.base import Engine

_BUILT_IN: Final = {
    "memory": "incumbent.stores.memory:open_memory",
    "sqlite": "incumbent.stores.sqlite:open_sqlite",
    **dict.fromkeys(
        (
            *("redis", "rediss", "valkey", "valkeys", "redis+unix"),
            *("redis+sentinel", "rediss+sentinel", "valkey+sentinel", "valkeys+sentinel"),
            *("redis+cluster", "rediss+cluster", "valkey+cluster", "valkeys+cluster"),
        ),
        "incumbent.stores.redis:open_store",
    ),
    **dict.fromkeys(("redis+quorum", "rediss+quorum"), "incumbent.stores.quorum:open_quorum"),
    **dict.fromkeys(("etcd", "etcds"), "incumbent.stores.etcd:open_etcd"),
    **dict.fromkeys(("postgresql", "postgres"), "incumbent.stores.postgresql:open_postgresql"),
}
_GROUP: Final = "incumbent.stores"
_OF_PACKAGE: Final = {
    **dict.fromkeys(("redis", "valkey", "fakeredis"), "incumbent.stores.redis:engine_from_client"),
    **dict.fromkeys(
        ("psycopg_pool", "sqlalchemy"), "incumbent.stores.postgresql:engine_from_object"
    ),
}
"""What makes an engine of an object whose class, or a base of it, comes from this package."""


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
    if scheme in _BUILT_IN:
        return _make(_BUILT_IN[scheme], url)
    from importlib.metadata import entry_points

    for entry in entry_points(group=_GROUP, name=scheme):
        return cast("Engine", entry.load()(url))
    if rest.isdecimal():
        where = f"{scheme}:{rest}"
        raise ConfigError(f"{where} has no scheme: did you mean redis://{where} ?", name="store")
    raise ConfigError(
        f"{scheme!r} is not the scheme of a known store: {', '.join(sorted(_BUILT_IN))}, or one"
        f" that an installed package offers by the entry point group {_GROUP!r}",
        name="store",
    )


def engine_for_object(driver: object) -> Engine:
    """The engine for a Store engine, or for a redis-py client or pool of the user's own."""
    if isinstance(driver, Engine):
        return driver
    for base in type(driver).__mro__:
        target = _OF_PACKAGE.get(base.__module__.partition(".")[0])
        if target:
            return _make(target, driver)
    raise ConfigError(
        f"store={type(driver).__name__} object: give a URL, a Client, a redis-py client or pool, a"
        " psycopg pool or SQLAlchemy engine, or an object that implements"
        " incumbent.stores.base.Engine",
        name="store",
    )


def _make(target: str, given: Any) -> Engine:
    module, _, function = target.partition(":")
    return cast("Engine", getattr(import_module(module), function)(given))
