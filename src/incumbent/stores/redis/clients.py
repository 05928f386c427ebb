"""From a client of the user's own to where it connects to, and how it logs in there.

Nothing of it is used or changed: what it was made with is copied. Attributes of redis-py's objects
that this relies on are tested against the real ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import redis

from incumbent.errors import ConfigError
from incumbent.stores.redis.driver import Target
from incumbent.stores.redis.hosts import Address, Reach, the_same
from incumbent.stores.redis.options import RedisOptions

__all__ = ["Own", "read_client"]

_SHARED: Final = (
    *("host", "port", "path", "db", "username", "password", "credential_provider"),
    *("socket_keepalive", "socket_keepalive_options", "socket_type"),
)
_SCHEMES: Final = {"tcp": "redis", "tls": "rediss", "unix": "redis+unix"}


class Own(NamedTuple):
    """What a client was made with.

    `sentinels`: whom it asks where the master is; `reach`: where it goes for what they, or the
    nodes of a cluster, announce.
    """

    target: Target
    options: RedisOptions
    sentinels: tuple[Target, ...] = ()
    reach: Reach = the_same


def read_client(client: Any) -> Own:
    """Of a redis-py client or pool, blocking or not: of one server, of Sentinel, of a cluster.

    Raises ConfigError for anything else, and for what the client does and we could not do as well.
    """
    manager = getattr(client, "nodes_manager", None)
    if manager is not None:
        return _of_cluster(client, manager)
    pool = getattr(client, "connection_pool", client)
    if hasattr(pool, "sentinel_manager"):
        return _of_sentinel(pool)
    target = _target_of_pool(pool)
    return Own(target, _options(target))


def _refused(why: str) -> ConfigError:
    return ConfigError(why, name="store")


# -- one server -----------------------------------------------------------------------------------


def _target_of_pool(pool: Any) -> Target:
    made_by = getattr(pool, "connection_class", None)
    given = getattr(pool, "connection_kwargs", None)
    if not isinstance(made_by, type) or not isinstance(given, dict):
        raise _refused(
            f"a {type(pool).__name__} object: give a redis.Redis, a RedisCluster, what a Sentinel's"
            " master_for() returns (each of redis or of redis.asyncio), or a ConnectionPool for a"
            " single server"
        )
    return _target(made_by, given)


def _target(made_by: type, given: dict[str, Any]) -> Target:
    transport, is_async = _kind_of(made_by)
    own = {"async_class" if is_async else "blocking_class": made_by}
    return Target(transport, _arguments(given), **own)


def _arguments(given: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in given.items()
        if (name in _SHARED or name.startswith("ssl_")) and value is not None
    }


def _kind_of(made_by: type) -> tuple[str, bool]:
    # The subclass first: a TLS connection is a TCP connection too.
    for transport, name in (("tls", "SSLConnection"), ("unix", _UNIX), ("tcp", "Connection")):
        for is_async, module in ((False, redis), (True, _async_module())):
            if "Sentinel" not in made_by.__name__ and issubclass(made_by, getattr(module, name)):
                return transport, is_async
    raise _refused(
        f"connections of class {made_by.__name__} are not supported: it is none of redis-py"
    )


_UNIX: Final = "UnixDomainSocketConnection"


def _async_module() -> Any:
    import redis.asyncio

    return redis.asyncio


def _options(
    target: Target, layout: str = "", hosts: tuple[Address, ...] = (), service: str = ""
) -> RedisOptions:
    arguments = target.arguments
    scheme = _SCHEMES[target.transport] + (f"+{layout}" if layout else "")
    return RedisOptions(
        scheme=scheme,
        transport=target.transport,
        host=str(arguments.get("host", "localhost")),
        port=int(arguments.get("port", 6379)),
        path=str(arguments.get("path", "")),
        db=int(arguments.get("db") or 0),
        username=arguments.get("username"),
        # For people: the real one is the target's.
        password="given" if arguments.get("password") else None,
        layout=layout,
        hosts=hosts,
        service=service,
    )


# -- Sentinel -------------------------------------------------------------------------------------


def _of_sentinel(pool: Any) -> Own:
    if not pool.is_master:
        raise _refused("a client of replicas, which grant nothing: give what master_for() returns")
    manager = pool.sentinel_manager
    sentinels = tuple(_target_of_sentinel(each) for each in manager.sentinels)
    hosts = tuple(_address(target) for target in sentinels)
    if len(set(hosts)) < len(hosts) or not hosts:
        raise _refused("the client names no sentinel, or one of them twice: each has one vote")
    # Theirs finds the master by itself; ours is told where it is.
    target = Target(_kind_of_sentinel(pool.connection_class), _arguments(pool.connection_kwargs))
    options = _options(target, "sentinel", hosts, str(pool.service_name))
    return Own(target, options, sentinels, _forced(getattr(manager, "_force_master_ip", None)))


def _forced(host: str | None) -> Reach:
    return the_same if host is None else lambda address: (host, address[1])


def _target_of_sentinel(client: Any) -> Target:
    target = _target_of_pool(client.connection_pool)
    # A sentinel has no databases.
    target.arguments.pop("db", None)
    return target


def _kind_of_sentinel(made_by: type) -> str:
    if made_by.__module__ in ("redis.sentinel", "redis.asyncio.sentinel"):
        return "tls" if issubclass(made_by, _tls_classes()) else "tcp"
    raise _refused(
        f"connections of class {made_by.__name__} find the master in a way of their own: leave"
        " connection_class out, and give a credential_provider if it is for the login"
    )


def _tls_classes() -> tuple[type, ...]:
    return redis.SSLConnection, _async_module().SSLConnection


# -- Cluster --------------------------------------------------------------------------------------


def _of_cluster(client: Any, manager: Any) -> Own:
    given = dict(manager.connection_kwargs)
    made_by = given.get("connection_class") or _class_of(client, tls=bool(given.get("ssl")))
    target = _target(made_by, {**given, "host": None, "port": None, "db": None})
    if target.transport == "unix":
        raise _refused("a cluster is not reached by a unix socket")
    hosts = _nodes(getattr(client, "startup_nodes", None) or manager.startup_nodes.values())
    if not hosts:
        raise _refused("the client names no node of the cluster")
    reach = getattr(manager, "address_remap", None) or the_same
    return Own(target, _options(target, "cluster", hosts), reach=reach)


def _class_of(client: Any, *, tls: bool) -> type:
    is_async = not isinstance(client, redis.cluster.RedisCluster)
    made_by: type = getattr(
        _async_module() if is_async else redis, "SSLConnection" if tls else "Connection"
    )
    return made_by


def _nodes(nodes: Iterable[Any]) -> tuple[Address, ...]:
    return tuple(dict.fromkeys((str(each.host), int(each.port)) for each in nodes))


def _address(target: Target) -> Address:
    return str(target.arguments.get("host", "localhost")), int(target.arguments.get("port", 26379))
