"""From a URL, or a client of the user's own, to an engine. Imports the drivers only then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from incumbent.durations import Duration
from incumbent.stores.redis.options import check_key, check_restart_wait, parse_redis_url

if TYPE_CHECKING:
    from incumbent.stores.redis.engine import RedisEngine

__all__ = ["engine_from_client", "open_redis"]


def open_redis(url: str, password: str | None = None) -> RedisEngine:
    """The engine of a URL; `password` replaces the one in it. Connects to nothing.

    Raises ConfigError for a malformed URL, an unknown option, or missing drivers.
    """
    options = parse_redis_url(url, password)
    # The driver first: where it is missing, it says what to install.
    from incumbent.stores.redis.driver import Site, target_of_options
    from incumbent.stores.redis.engine import RedisEngine

    site = Site(
        target_of_options(options), options.shown, options.restart_wait, options.allow_eviction
    )
    return RedisEngine(site, options.key)


def engine_from_client(
    client: Any,
    *,
    key: str | None = None,
    restart_wait: Duration | None = None,
    allow_eviction: bool = False,
) -> RedisEngine:
    """The engine for a redis-py client or pool of the user's own, blocking or asynchronous.

    Its address and login are taken over for connections of our own, on both sides; the client
    itself is neither used nor closed. The other arguments are those of the URL's options. Raises
    ConfigError for what is not a single server's, and for a wrong argument.
    """
    from incumbent.stores.redis.driver import Site, target_of_client
    from incumbent.stores.redis.engine import RedisEngine

    target, where = target_of_client(client)
    site = Site(target, where, check_restart_wait(restart_wait), allow_eviction)
    return RedisEngine(site, check_key(key))
