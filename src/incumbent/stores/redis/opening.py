"""From a URL, or a client of the user's own, to an engine. Imports the drivers only then."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from incumbent.durations import Duration
from incumbent.errors import ConfigError
from incumbent.stores.redis.options import (
    check_key,
    check_replicas,
    parse_redis_url,
)
from incumbent.stores.url import parse_restart_wait

if TYPE_CHECKING:
    from incumbent.stores.redis.engine import RedisEngine
    from incumbent.stores.redis.layered import LayeredEngine


def open_store(url: str, password: str | None = None) -> RedisEngine | LayeredEngine:
    """The engine of a URL; `password` replaces the one in it. Connects to nothing.

    Raises ConfigError for a malformed URL, an unknown option, or missing drivers.
    """
    options = parse_redis_url(url, password)
    # The driver first: where it is missing, it says what to install.
    from incumbent.stores.redis.driver import site_of_options
    from incumbent.stores.redis.engine import engine_at

    return engine_at(site_of_options(options), options)


def open_redis(url: str, password: str | None = None) -> RedisEngine:
    """The same for one server without anything in between. Raises ConfigError for others."""
    engine = open_store(url, password)
    from incumbent.stores.redis.engine import RedisEngine

    if not isinstance(engine, RedisEngine):
        raise ConfigError(f"{engine.url}: this takes more than one server", name="store")
    return engine


def engine_from_client(
    client: Any,
    *,
    key: str | None = None,
    restart_wait: Duration | None = None,
    allow_eviction: bool = False,
    wait_replicas: int | str = 0,
) -> RedisEngine | LayeredEngine:
    """The engine for a redis-py client or pool of the user's own, blocking or asynchronous.

    Of one server, of a cluster (RedisCluster), or of a master that sentinels name (master_for). Its
    addresses and logins are taken over for connections of our own, on both sides; the client itself
    is neither used nor closed. The other arguments are those of the URL's options. Raises
    ConfigError for what is no such client, and for a wrong argument.
    """
    # The driver first: where it is missing, it says what to install.
    from incumbent.stores.redis.clients import read_client
    from incumbent.stores.redis.driver import Site
    from incumbent.stores.redis.engine import engine_at

    own = read_client(client)
    replicas, patience = check_replicas(str(wait_replicas) if wait_replicas else None)
    options = replace(
        own.options, key=check_key(key), wait_replicas=replicas, wait_timeout=patience
    )
    site = Site(own.target, options.shown, parse_restart_wait(restart_wait), allow_eviction)
    return engine_at(site, options, own.sentinels, own.reach)
