"""Engines with layers between the caller and the connections: Sentinel, Cluster, replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.protocol.port import run
from incumbent.stores.findings import CannotTell, Finding, GrantsNothing, at, cannot_tell
from incumbent.stores.loops import ServerEngine
from incumbent.stores.plan import BlockingTogether, PlannedTogether
from incumbent.stores.redis.cluster import Cluster
from incumbent.stores.redis.commands import Commands
from incumbent.stores.redis.dialect import CAPABILITIES, Server
from incumbent.stores.redis.doctor import examine
from incumbent.stores.redis.driver import Site, Target, target_at
from incumbent.stores.redis.hosts import Address, Reach, say_address
from incumbent.stores.redis.names import Naming
from incumbent.stores.redis.options import RedisOptions
from incumbent.stores.redis.replicas import Confirmed
from incumbent.stores.redis.router import Router
from incumbent.stores.redis.sentinel import SETTLE, Follow, Followed, say_master
from incumbent.stores.redis.sides import BlockingSide, Side

if TYPE_CHECKING:
    from incumbent.stores.redis.aiosides import AsyncFace

Build: TypeAlias = Callable[[Side], PlannedTogether[Server]]
"""Makes the layers of one side."""
Visit: TypeAlias = Callable[[Site, float], list[Finding]]
"""What there is to say of one server, until an instant."""
AtMasters: TypeAlias = Callable[[Side, float, Visit], list[Finding]]
"""Visits all masters, until an instant."""


class LayeredEngine(ServerEngine[BlockingTogether[PlannedTogether[Server]], "AsyncFace"]):
    """A store that needs more than the connections to one server."""

    capabilities = CAPABILITIES

    def __init__(self, where: str, build: Build, at_masters: AtMasters) -> None:
        self._at_masters = at_masters
        self._side = BlockingSide()

        def make() -> AsyncFace:
            from incumbent.stores.redis.aiosides import make_face

            return make_face(build)

        super().__init__(where, BlockingTogether(build(self._side)), make)

    def diagnose(self, ttl: float, until: float) -> list[Finding]:
        """See Engine.diagnose. Looks also at servers that would be refused."""
        return self._at_masters(self._side, until, partial(examine, ttl))


def layered_engine(
    site: Site, options: RedisOptions, sentinels: Sequence[Target], reach: Reach
) -> LayeredEngine:
    """See engine.engine_at."""
    if options.layout == "sentinel":
        targets = sentinels or [_sentinel_target(site, options, each) for each in options.hosts]
        return _sentinel_engine(site, options, targets, reach)
    if options.layout == "cluster":
        return _cluster_engine(site, options, reach)
    return _single_engine(site, options)


def _connections(
    options: RedisOptions, commands: Commands, site: Site, side: Side
) -> PlannedTogether[Server]:
    """The connections to one server, and what every one of them needs."""
    exchange = side.exchange(site, commands)
    if options.wait_replicas:
        return Confirmed(exchange, options.wait_replicas, options.wait_timeout)
    return exchange


def _single_engine(site: Site, options: RedisOptions) -> LayeredEngine:
    commands = Commands(Naming(options.key), site.where)
    build = partial(_connections, options, commands, site)
    return LayeredEngine(site.where, build, lambda _, until, visit: visit(site, until))


def _sentinel_engine(
    site: Site, options: RedisOptions, targets: Sequence[Target], reach: Reach
) -> LayeredEngine:
    site.marker, site.named = site.marker._replace(settle=SETTLE), False
    commands = Commands(Naming(options.key), site.where)
    sentinels = tuple(
        Site(target, f"the sentinel {say_address(address)}")
        for target, address in zip(targets, options.hosts, strict=True)
    )
    followed = Followed(site, sentinels, options.service, reach)

    def build(side: Side) -> PlannedTogether[Server]:
        return Follow(_connections(options, commands, site, side), side, followed)

    def at_the_master(side: Side, until: float, visit: Visit) -> list[Finding]:
        try:
            address = run(followed.ask(side, until))
        except StoreError as error:
            return [cannot_tell(str(error), "check the sentinels, their password and the name")]
        return [("ok", say_master(address), ""), *visit(site, until)]

    return LayeredEngine(site.where, build, at_the_master)


def _sentinel_target(site: Site, options: RedisOptions, address: Address) -> Target:
    # A sentinel has no databases, and users of its own.
    return replace(
        target_at(site.target, address),
        db=0,
        username=options.sentinel_username,
        password=options.sentinel_password,
    )


def _cluster_engine(site: Site, options: RedisOptions, reach: Reach) -> LayeredEngine:
    cluster, naming = Cluster(site, options.hosts, reach), Naming(options.key)

    def build(side: Side) -> PlannedTogether[Server]:
        return Router(side, cluster, naming, options.wait_replicas, options.wait_timeout)

    def at_all_masters(side: Side, until: float, visit: Visit) -> list[Finding]:
        try:
            run(cluster.ask(side, until))
        except StoreError as error:
            return [cannot_tell(str(error), "check the nodes, their password and the network")]
        found: list[list[Finding]] = []
        nodes = cluster.topology.nodes()
        for left, address in zip(range(len(nodes), 0, -1), nodes, strict=True):
            # Each has its share of the time that is left, so that one cannot use up all of it.
            share = clock.now() + max(0.0, until - clock.now()) / left
            found.append(at(say_address(address), visit(cluster.site_of(address), share)))
        if not all(map(_grants_nothing, found)):
            # Which names lie there nobody here knows.
            found = [list(map(_for_some, about)) for about in found]
        return [("ok", cluster.summary, ""), *chain.from_iterable(found)]

    return LayeredEngine(site.where, build, at_all_masters)


def _grants_nothing(findings: list[Finding]) -> bool:
    return any(isinstance(found, GrantsNothing) for found in findings)


def _for_some(found: Finding) -> Finding:
    """A master that grants nothing, as the other masters' names see it."""
    return CannotTell(found) if isinstance(found, GrantsNothing) else found
