"""Which layers stand over the connections, for what a URL asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.protocol.port import run
from incumbent.stores.blocking import Operations
from incumbent.stores.redis.dialect import Dialect
from incumbent.stores.redis.driver import Site, Target, target_at
from incumbent.stores.redis.engine import Finding, examine, mend
from incumbent.stores.redis.functions import MARKER_FUNCTION, FunctionDialect
from incumbent.stores.redis.hosts import Address, Reach, say_address, the_same
from incumbent.stores.redis.layers.base import Side
from incumbent.stores.redis.layers.engine import Build, LayeredEngine
from incumbent.stores.redis.layers.follow import Follow, Followed
from incumbent.stores.redis.layers.nodes import Cluster
from incumbent.stores.redis.layers.replicas import Confirmed
from incumbent.stores.redis.layers.router import Router
from incumbent.stores.redis.layers.sentinel import SETTLE, say_master
from incumbent.stores.redis.names import Naming
from incumbent.stores.redis.options import RedisOptions

__all__ = ["layered_engine"]


def layered_engine(
    site: Site,
    options: RedisOptions,
    sentinels: Sequence[Target] = (),
    reach: Reach = the_same,
) -> LayeredEngine:
    """The engine of options that need layers; `sentinels`: how each of the `hosts` is reached.

    Without them they are reached as the master is, with the options' login. `reach`: where a server
    is reached that somebody names.
    """
    if options.functions:
        site.marker = site.marker._replace(function=MARKER_FUNCTION)
    if options.layout == "sentinel":
        targets = sentinels or [_sentinel_target(site, options, each) for each in options.hosts]
        return _sentinel_engine(site, options, targets, reach)
    if options.layout == "cluster":
        return _cluster_engine(site, options, reach)
    return _single_engine(site, options)


def _connections(options: RedisOptions, dialect: Dialect, site: Site, side: Side) -> Operations:
    """The connections to one server, and what every one of them needs."""
    exchange = side.exchange(site, dialect)
    if options.wait_replicas:
        return Confirmed(exchange, options.wait_replicas, options.wait_timeout)
    return exchange


def _dialect(options: RedisOptions) -> type[Dialect]:
    return FunctionDialect if options.functions else Dialect


def _single_engine(site: Site, options: RedisOptions) -> LayeredEngine:
    dialect = _dialect(options)(Naming(options.key), site.where)
    build = partial(_connections, options, dialect, site)
    return _engine(site.where, build, lambda _, until, visit: visit(site, until))


def _sentinel_engine(
    site: Site, options: RedisOptions, targets: Sequence[Target], reach: Reach
) -> LayeredEngine:
    site.marker = site.marker._replace(settle=SETTLE)
    dialect = _dialect(options)(Naming(options.key), site.where)
    sentinels = tuple(
        Site(target, f"the sentinel {say_address(address)}")
        for target, address in zip(targets, options.hosts, strict=True)
    )
    followed = Followed(site, sentinels, options.service, reach)

    def build(side: Side) -> Operations:
        return Follow(_connections(options, dialect, site, side), side, followed)

    def at_the_master(side: Side, until: float, visit: _Visit) -> list[Finding]:
        try:
            address = run(followed.ask(side, until))
        except StoreError as error:
            return [("error", str(error), "check the sentinels, their password and the name")]
        return [("ok", say_master(address), ""), *visit(site, until)]

    return _engine(site.where, build, at_the_master)


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

    def build(side: Side) -> Operations:
        return Router(
            side, cluster, naming, _dialect(options), options.wait_replicas, options.wait_timeout
        )

    def at_all_masters(side: Side, until: float, visit: _Visit) -> list[Finding]:
        try:
            run(cluster.ask(side, until))
        except StoreError as error:
            return [("error", str(error), "check the nodes, their password and the network")]
        found: list[Finding] = [("ok", cluster.said, "")]
        nodes = cluster.topology.nodes()
        for left, address in zip(range(len(nodes), 0, -1), nodes, strict=True):
            # Each has its share of the time that is left, so that one cannot use up all of it.
            share = clock.now() + max(0.0, until - clock.now()) / left
            about = visit(cluster.site_of(address), share)
            found += [(level, f"{say_address(address)}: {what}", do) for level, what, do in about]
        return found

    return _engine(site.where, build, at_all_masters)


_Visit: TypeAlias = Callable[[Site, float], list[Finding]]


def _engine(
    where: str, build: Build, at_masters: Callable[[Side, float, _Visit], list[Finding]]
) -> LayeredEngine:
    def look(side: Side, ttl: float, until: float) -> list[Finding]:
        return at_masters(side, until, lambda site, share: examine(site, ttl, share))

    def load(side: Side, until: float) -> list[Finding]:
        return at_masters(side, until, mend)

    return LayeredEngine(where, build, look, load)
