"""Which layers stand over the connections, for what a URL asks for."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from incumbent._core.onestep import run
from incumbent.errors import StoreError
from incumbent.stores.blocking import Operations
from incumbent.stores.redis.dialect import Dialect
from incumbent.stores.redis.driver import Site, target_at
from incumbent.stores.redis.engine import examine
from incumbent.stores.redis.functions import MARKER_FUNCTION, FunctionDialect
from incumbent.stores.redis.hosts import Address, say_address
from incumbent.stores.redis.layers.base import Side
from incumbent.stores.redis.layers.engine import Finding, LayeredEngine
from incumbent.stores.redis.layers.follow import Follow, Followed
from incumbent.stores.redis.layers.nodes import Cluster
from incumbent.stores.redis.layers.replicas import Confirmed
from incumbent.stores.redis.layers.router import Router
from incumbent.stores.redis.layers.sentinel import SETTLE, say_master
from incumbent.stores.redis.names import Naming
from incumbent.stores.redis.options import RedisOptions

__all__ = ["layered_engine"]


def layered_engine(site: Site, options: RedisOptions) -> LayeredEngine:
    """The engine of options that need layers."""
    if options.functions:
        site.marker = site.marker._replace(function=MARKER_FUNCTION)
    if options.layout == "sentinel":
        return _sentinel_engine(site, options)
    if options.layout == "cluster":
        return _cluster_engine(site, options)
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

    def look(_: Side, ttl: float, until: float) -> list[Finding]:
        return examine(site, ttl, until)

    return LayeredEngine(site.where, partial(_connections, options, dialect, site), look)


def _sentinel_engine(site: Site, options: RedisOptions) -> LayeredEngine:
    site.marker = site.marker._replace(settle=SETTLE)
    dialect = _dialect(options)(Naming(options.key), site.where)
    sentinels = tuple(_sentinel_site(site, options, address) for address in options.hosts)
    followed = Followed(site, sentinels, options.service)

    def build(side: Side) -> Operations:
        return Follow(_connections(options, dialect, site, side), side, followed)

    def look(side: Side, ttl: float, until: float) -> list[Finding]:
        try:
            address = run(followed.ask(side, until))
        except StoreError as error:
            return [("error", str(error), "check the sentinels, their password and the name")]
        return [("ok", say_master(address), ""), *examine(site, ttl, until)]

    return LayeredEngine(site.where, build, look)


def _sentinel_site(site: Site, options: RedisOptions, address: Address) -> Site:
    target = target_at(
        site.target,
        address,
        username=options.sentinel_username,
        password=options.sentinel_password,
    )
    plain = {name: value for name, value in target.arguments.items() if name != "db"}
    where = f"the sentinel {say_address(address)}"
    return Site(replace(target, arguments=plain), where)


def _cluster_engine(site: Site, options: RedisOptions) -> LayeredEngine:
    cluster, naming = Cluster(site, options.hosts), Naming(options.key)

    def build(side: Side) -> Operations:
        return Router(
            side, cluster, naming, _dialect(options), options.wait_replicas, options.wait_timeout
        )

    def look(side: Side, ttl: float, until: float) -> list[Finding]:
        try:
            run(cluster.ask(side, until))
        except StoreError as error:
            return [("error", str(error), "check the nodes, their password and the network")]
        found: list[Finding] = [("ok", cluster.said, "")]
        for address in cluster.topology.nodes():
            about = examine(cluster.site_of(address), ttl, until)
            found += [(level, f"{say_address(address)}: {what}", do) for level, what, do in about]
        return found

    return LayeredEngine(site.where, build, look)
