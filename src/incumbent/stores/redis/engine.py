"""The engine that makes both sides of a store from the options of a URL or of a client."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from incumbent.net.limiter import CONNECTIONS, limits
from incumbent.net.readers import LockWakeup
from incumbent.stores.findings import Finding
from incumbent.stores.loops import ServerEngine
from incumbent.stores.plan import BlockingTogether, PlannedTogether
from incumbent.stores.redis.commands import Commands
from incumbent.stores.redis.dialect import CAPABILITIES, Server
from incumbent.stores.redis.options import RedisOptions
from incumbent.stores.redis.records import Naming
from incumbent.stores.redis.server import RedisSite, site_of
from incumbent.stores.redis.sync import RedisStore

if TYPE_CHECKING:
    from incumbent.stores.redis.aio import AsyncFace, AsyncRedisStore
    from incumbent.stores.redis.layers import Discovery, Runtime


class RedisEngine(ServerEngine[BlockingTogether[Any], "AsyncRedisStore | AsyncFace"]):
    """The engine of a store of any layout."""

    capabilities = CAPABILITIES

    def __init__(self, options: RedisOptions) -> None:
        self._site = site = site_of(options)
        self._discovery: Discovery | None = None
        if options.layout or options.wait_replicas:
            # Imported only here: most stores need no sentinels, clusters or replicas.
            from incumbent.stores.redis.layers import BlockingRuntime

            build, self._discovery = _layers(site, options)
            store = BlockingTogether(build(BlockingRuntime()))
            store.limits = limits(site.where, CONNECTIONS, LockWakeup)
            super().__init__(site.where, store, partial(_face, site.where, build))
        else:
            commands = Commands(Naming(options.key), site.where)
            make = partial(_async_store, site, commands)
            super().__init__(site.where, RedisStore(site, commands), make)

    def diagnose(self, ttl: float, until: float) -> list[Finding]:
        """See Engine.diagnose. Also reports on servers that a store would refuse to use."""
        # Imported only here: without it, a lock starts sooner.
        from incumbent.stores.redis.doctor import diagnose

        return diagnose(self._site, self._discovery, ttl, until)


def _async_store(site: RedisSite, commands: Commands) -> AsyncRedisStore:
    # Imported only here: the blocking side does not need asyncio.
    from incumbent.stores.redis.aio import AsyncRedisStore

    return AsyncRedisStore(site, commands)


def _face(where: str, build: Callable[[Runtime], PlannedTogether[Server]]) -> AsyncFace:
    from incumbent.stores.redis.aio import AsyncFace, AsyncRuntime

    runtime = AsyncRuntime()
    return AsyncFace(where, runtime, build(runtime))


def _layers(
    site: RedisSite, options: RedisOptions
) -> tuple[Callable[[Runtime], PlannedTogether[Server]], Discovery | None]:
    """A function that makes the layers of one Runtime, and the Discovery that all of them share."""
    if options.layout == "cluster":
        from incumbent.stores.redis.cluster import KnownCluster
        from incumbent.stores.redis.router import Router

        cluster = KnownCluster(site, options.hosts, options.reach)
        return lambda runtime: Router(runtime, cluster, options), cluster
    from incumbent.stores.redis.layers import connections

    build = partial(connections, options, site, Commands(Naming(options.key), site.where))
    if not options.layout:
        return build, None
    from incumbent.stores.redis.sentinel import Follow, followed_of

    followed = followed_of(site, options)
    return lambda runtime: Follow(build(runtime), runtime, followed), followed
