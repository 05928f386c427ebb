"""The engine that makes both sides of a store from the options of a URL or of a user's client.

No driver is imported before the first engine is made; of the sides and layouts only what is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from incumbent.durations import Duration
from incumbent.model import Capabilities
from incumbent.net.limiter import PLACES, limits
from incumbent.net.readers import ThreadWakeup
from incumbent.stores.findings import Finding
from incumbent.stores.loops import ServerEngine
from incumbent.stores.plan import BlockingTogether
from incumbent.stores.redis.options import (
    RedisOptions,
    check_key,
    check_replicas,
    parse_redis_url,
    read_client,
    require_driver,
)
from incumbent.stores.url import parse_restart_wait

if TYPE_CHECKING:
    from incumbent.stores.redis.aio import AsyncFace, AsyncRedisStore
    from incumbent.stores.redis.incarnation import RedisOperations
    from incumbent.stores.redis.site import Packer, RedisSite
    from incumbent.stores.redis.wire import Discovery, RedisSide


def open_store(url: str, password: str | None = None) -> RedisEngine:
    """The engine of a URL; `password` replaces the one in it. Connects to nothing.

    Raises ConfigError for a malformed URL, an unknown option, or missing drivers.
    """
    options = parse_redis_url(url, password)
    require_driver()
    return RedisEngine(options)


def engine_from_client(
    client: Any,
    *,
    key: str | None = None,
    restart_wait: Duration | None = None,
    allow_eviction: bool = False,
    wait_replicas: int | str = 0,
) -> RedisEngine:
    """The engine for a redis-py client or pool of the user's own, blocking or asynchronous.

    A client of one server, of a cluster (RedisCluster), or of a master that sentinels name
    (master_for). Its addresses and logins are copied for connections of our own, blocking and
    asynchronous; the client itself is neither used nor closed. The other arguments are options of
    the URL. Raises ConfigError if `client` is no such client, and for a wrong argument.
    """
    require_driver()
    options = read_client(client)
    replicas, timeout = check_replicas(str(wait_replicas) if wait_replicas else None)
    return RedisEngine(
        replace(
            options,
            key=check_key(key),
            restart_wait=parse_restart_wait(restart_wait),
            allow_eviction=allow_eviction,
            wait_replicas=replicas,
            wait_timeout=timeout,
        )
    )


class RedisEngine(ServerEngine[BlockingTogether[Any], "AsyncRedisStore | AsyncFace"]):
    """The engine of a store of any layout."""

    capabilities = Capabilities(
        waits="pubsub",
        ttl_clock="wall",
        queue=True,
        candidates=True,
        reservations=True,
        refuses_late=True,
        shared=True,
    )

    def __init__(self, options: RedisOptions) -> None:
        from incumbent.stores.redis.records import Naming
        from incumbent.stores.redis.site import Packer, site_of
        from incumbent.stores.redis.sync import BlockingRedisSide, RedisStore

        self._site = site = site_of(options)
        self._discovery: Discovery | None = None
        packer = Packer(Naming(options.key), site.where)
        if options.layout or options.wait_replicas:
            build, self._discovery = _layers(site, packer, options)
            store = BlockingTogether(build(BlockingRedisSide()))
            store.limits = limits(site.where, PLACES, ThreadWakeup)
            super().__init__(site.where, store, partial(_face, site.where, build))
        else:

            def make() -> AsyncRedisStore:
                from incumbent.stores.redis.aio import AsyncRedisStore

                return AsyncRedisStore(site, packer)

            super().__init__(site.where, RedisStore(site, packer), make)

    def diagnose(self, ttl: float, until: float) -> list[Finding]:
        """See Engine.diagnose. Also reports on servers that a store would refuse to use."""
        from incumbent.stores.redis.doctor import diagnose
        from incumbent.stores.redis.sync import BlockingRedisSide

        return diagnose(self._site, self._discovery, BlockingRedisSide(), ttl, until)


def _face(where: str, build: Callable[[RedisSide], RedisOperations]) -> AsyncFace:
    from incumbent.stores.redis.aio import AsyncFace, AsyncRedisSide

    side = AsyncRedisSide()
    return AsyncFace(where, side, build(side))


def _layers(
    site: RedisSite, packer: Packer, options: RedisOptions
) -> tuple[Callable[[RedisSide], RedisOperations], Discovery | None]:
    """A function that makes the layers of one side, and the Discovery that all of them share."""
    from incumbent.stores.redis.runner import operations_at

    if options.layout == "cluster":
        from incumbent.stores.redis.cluster import KnownCluster, Router

        cluster = KnownCluster(site, options.hosts, options.reach)
        return lambda side: Router(side, cluster, options), cluster
    build = partial(operations_at, options, site, packer)
    if not options.layout:
        return build, None
    from incumbent.stores.redis.sentinel import Follow, followed_of

    followed = followed_of(site, options)
    return lambda side: Follow(build(side), side, followed), followed
