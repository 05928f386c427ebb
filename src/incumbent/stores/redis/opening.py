"""Make an engine from a URL or from the user's own client. Imports the driver only then.

A client is neither used nor changed: its settings are copied. The attributes of redis-py's objects
that this relies on are tested against the real ones; redis-py itself is not imported.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final

from incumbent.durations import Duration
from incumbent.errors import ConfigError
from incumbent.net.tls import Tls
from incumbent.stores.redis.options import (
    Address,
    Reach,
    RedisOptions,
    RedisTarget,
    check_key,
    check_replicas,
    parse_redis_url,
    require_driver,
    the_same,
)
from incumbent.stores.url import parse_restart_wait

if TYPE_CHECKING:
    from incumbent.stores.redis.engine import RedisEngine

_SCHEMES: Final = {"tcp": "redis", "tls": "rediss", "unix": "redis+unix"}
_CLASSES: Final = {
    ("connection", "Connection"): "tcp",
    ("connection", "SSLConnection"): "tls",
    ("connection", "UnixDomainSocketConnection"): "unix",
    ("sentinel", "SentinelManagedConnection"): "tcp",
    ("sentinel", "SentinelManagedSSLConnection"): "tls",
}
"""redis-py's own connection classes, blocking or not, by module and name."""


def open_store(url: str, password: str | None = None) -> RedisEngine:
    """The engine of a URL; `password` replaces the one in it. Connects to nothing.

    Raises ConfigError for a malformed URL, an unknown option, or missing drivers.
    """
    options = parse_redis_url(url, password)
    require_driver()
    from incumbent.stores.redis.engine import RedisEngine

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
    from incumbent.stores.redis.engine import RedisEngine

    options = read_client(client)
    replicas, patience = check_replicas(str(wait_replicas) if wait_replicas else None)
    return RedisEngine(
        replace(
            options,
            key=check_key(key),
            restart_wait=parse_restart_wait(restart_wait),
            allow_eviction=allow_eviction,
            wait_replicas=replicas,
            wait_timeout=patience,
        )
    )


def read_client(client: Any) -> RedisOptions:
    """The options by which a redis-py client or pool connects, blocking or not, of any layout.

    Raises ConfigError for any other object, and for a setting of the client that is not supported.
    """
    manager = getattr(client, "nodes_manager", None)
    if manager is not None:
        return _of_cluster(client, manager)
    pool = getattr(client, "connection_pool", client)
    if hasattr(pool, "sentinel_manager"):
        return _of_sentinel(pool)
    transport, target = _target_of_pool(pool)
    return RedisOptions(_SCHEMES[transport], target)


def _refused(why: str) -> ConfigError:
    return ConfigError(why, name="store")


# -- one server -----------------------------------------------------------------------------------


def _target_of_pool(pool: Any) -> tuple[str, RedisTarget]:
    made_by = getattr(pool, "connection_class", None)
    given = getattr(pool, "connection_kwargs", None)
    if not isinstance(made_by, type) or not isinstance(given, dict):
        raise _refused(
            f"a {type(pool).__name__} object: give a redis.Redis, a RedisCluster, what a Sentinel's"
            " master_for() returns (each of redis or of redis.asyncio), or a ConnectionPool for a"
            " single server"
        )
    transport = _transport_of(made_by, "connection")
    return transport, _target(transport, given)


def _transport_of(made_by: type, module: str) -> str:
    """The transport of a redis-py class. Any other class might do more, so it is refused."""
    transport = _CLASSES.get((module, made_by.__name__))
    if transport and made_by.__module__ in (f"redis.{module}", f"redis.asyncio.{module}"):
        return transport
    raise _refused(
        f"connections of class {made_by.__name__} are not supported, for it is none of redis-py:"
        " leave connection_class out, and give a credential_provider if it is for the login"
    )


def _target(transport: str, given: dict[str, Any]) -> RedisTarget:
    return RedisTarget(
        host=str(given.get("host") or "localhost"),
        port=int(given.get("port") or 6379),
        path=str(given.get("path") or "") if transport == "unix" else "",
        db=int(given.get("db") or 0),
        username=given.get("username"),
        password=given.get("password"),
        credentials=given.get("credential_provider"),
        tls=_tls(given) if transport == "tls" else None,
    )


def _tls(given: dict[str, Any]) -> Tls:
    known = {field.name for field in fields(Tls)}
    options: dict[str, Any] = {}
    for option, value in given.items():
        name = option.removeprefix("ssl_")
        if name == option or value is None:
            continue
        if name in known:
            options[name] = tuple(value) if isinstance(value, list) else value
        elif value:
            raise _refused(f"the client's option {option} is not supported")
    return Tls(**options)


# -- Sentinel -------------------------------------------------------------------------------------


def _of_sentinel(pool: Any) -> RedisOptions:
    if not pool.is_master:
        raise _refused("a client of replicas, which grant nothing: give what master_for() returns")
    manager = pool.sentinel_manager
    sentinels = tuple(_target_of_sentinel(each) for each in manager.sentinels)
    hosts = tuple((each.host, each.port) for each in sentinels)
    if len(set(hosts)) < len(hosts) or not hosts:
        raise _refused("the client names no sentinel, or one of them twice: each has one vote")
    # redis-py's connection finds the master itself; ours is given the master's address.
    transport = _transport_of(pool.connection_class, "sentinel")
    target = _target(transport, pool.connection_kwargs)
    reach = _forced(getattr(manager, "_force_master_ip", None))
    scheme, service = f"{_SCHEMES[transport]}+sentinel", str(pool.service_name)
    return RedisOptions(scheme, target, hosts, service, sentinels, reach)


def _forced(host: str | None) -> Reach:
    return the_same if host is None else lambda address: (host, address[1])


def _target_of_sentinel(client: Any) -> RedisTarget:
    # A sentinel has no databases.
    return replace(_target_of_pool(client.connection_pool)[1], db=0)


# -- Cluster --------------------------------------------------------------------------------------


def _of_cluster(client: Any, manager: Any) -> RedisOptions:
    given = dict(manager.connection_kwargs)
    made_by = given.get("connection_class")
    if made_by is None:
        transport = "tls" if given.get("ssl") else "tcp"
    else:
        transport = _transport_of(made_by, "connection")
    if transport == "unix":
        raise _refused("a cluster is not reached by a unix socket")
    target = _target(transport, {**given, "host": None, "port": None, "db": None})
    hosts = _nodes(getattr(client, "startup_nodes", None) or manager.startup_nodes.values())
    if not hosts:
        raise _refused("the client names no node of the cluster")
    reach = getattr(manager, "address_remap", None) or the_same
    return RedisOptions(f"{_SCHEMES[transport]}+cluster", target, hosts, reach=reach)


def _nodes(nodes: Iterable[Any]) -> tuple[Address, ...]:
    return tuple(dict.fromkeys((str(each.host), int(each.port)) for each in nodes))
