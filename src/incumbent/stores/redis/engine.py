"""From the options of a URL, or of a client, to an engine, which makes both sides of a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from incumbent.stores.findings import Finding
from incumbent.stores.loops import ServerEngine
from incumbent.stores.redis.commands import Commands
from incumbent.stores.redis.dialect import CAPABILITIES
from incumbent.stores.redis.driver import Site, Target
from incumbent.stores.redis.hosts import Reach, the_same
from incumbent.stores.redis.names import Naming
from incumbent.stores.redis.options import RedisOptions
from incumbent.stores.redis.sync import RedisStore

if TYPE_CHECKING:
    from incumbent.stores.redis.aio import AsyncRedisStore
    from incumbent.stores.redis.layered import LayeredEngine


class RedisEngine(ServerEngine[RedisStore, "AsyncRedisStore"]):
    """One server, without anything between it and the caller."""

    capabilities = CAPABILITIES

    def __init__(self, site: Site, template: str | None = None) -> None:
        self._site = site
        self._commands = commands = Commands(Naming(template), site.where)

        def make() -> AsyncRedisStore:
            # Imported only now: the blocking side has no use for asyncio.
            from incumbent.stores.redis.aio import AsyncRedisStore

            return AsyncRedisStore(site, commands)

        super().__init__(site.where, RedisStore(site, commands), make)

    def diagnose(self, ttl: float, until: float) -> list[Finding]:
        """See Engine.diagnose. Looks also at a server that would be refused."""
        # Only doctor needs it: a lock is there sooner.
        from incumbent.stores.redis.doctor import examine

        return examine(ttl, self._site, until)


def engine_at(
    site: Site,
    options: RedisOptions,
    sentinels: Sequence[Target] = (),
    reach: Reach = the_same,
) -> RedisEngine | LayeredEngine:
    """The engine of options; `sentinels`: how each of the `hosts` is reached.

    Without them they are reached as the master is, with the options' login. `reach`: where a server
    is reached that somebody names.
    """
    if not options.layered:
        return RedisEngine(site, options.key)
    # Sentinels, clusters and replicas cost a start what most do not need.
    from incumbent.stores.redis.layered import layered_engine

    return layered_engine(site, options, sentinels, reach)
