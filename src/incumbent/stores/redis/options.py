"""Where a store is, and its options: from a URL, or from a redis-py client of the user's own.

All is checked before anything is sent, and no driver is imported. Such a client is neither used
nor changed: its settings are copied. The attributes of redis-py's objects that this relies on are
tested against the real ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from incumbent.durations import parse_duration
from incumbent.errors import ConfigError
from incumbent.net.tls import Tls
from incumbent.stores.url import (
    Endpoint,
    parse_hosts,
    parse_options,
    parse_restart_wait,
    shown_login,
    wrong_option,
)

Address: TypeAlias = "tuple[str, int]"
Reach: TypeAlias = Callable[[Address], Address]
"""Maps an address that a server announces to the one by which this network can reach it."""

_TRANSPORTS: Final = {"redis": "tcp", "valkey": "tcp", "rediss": "tls", "valkeys": "tls"}
_SCHEMES: Final = {
    **_TRANSPORTS,
    "redis+unix": "unix",
    **{f"{scheme}+sentinel": transport for scheme, transport in _TRANSPORTS.items()},
    **{f"{scheme}+cluster": transport for scheme, transport in _TRANSPORTS.items()},
}
_PORTS: Final = {"": 6379, "sentinel": 26379, "cluster": 6379}
_FILES: Final = {"ca": "ca_certs", "cert": "certfile", "cert_key": "keyfile"}
"""The options of the URL, each with the field of Tls."""
_CHECKS: Final = ("ssl_cert_reqs", "ssl_check_hostname", "check_hostname")
_MORE: Final = {"sentinel": ("sentinel_username", "sentinel_password"), "unix": ("db",)}
"""Further options. `db` is for unix sockets, where the URL's path cannot name a database."""
_KNOWN: Final = ("key", "restart_wait", "allow_eviction", "wait_replicas", *_FILES)
_GONE: Final = {
    "db": "is gone: the path names the database, as in redis://host:6379/2",
    "functions": "is gone: scripts are sent (docs/redis.md: Least privilege)",
    "wait_timeout": "is part of wait_replicas now: wait_replicas=1:100ms",
    **{f"ssl_{old}": f"is called {new} now" for new, old in _FILES.items()},
}
_NO: Final = ("no", "false", "0", "off", "none", "optional")


def parse_address(text: str) -> Address:
    """`host:port` as servers say it, where an IPv6 address has no brackets."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def say_address(address: Address) -> str:
    """The address as text."""
    return str(Endpoint(*address))


def the_same(address: Address) -> Address:
    """The usual Reach: the address that the server announces."""
    return address


@dataclass(frozen=True, slots=True)
class RedisTarget:
    """A server's address and login. `path` is that of a unix socket, in place of a host.

    `credentials`: a CredentialProvider of redis-py, which is asked at each connection. `promotion`:
    the number of the master's promotion, by the sentinels; None if none were asked.
    """

    host: str = "localhost"
    port: int = 6379
    path: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    credentials: Any = field(default=None, repr=False)
    tls: Tls | None = None
    promotion: int | None = None

    @property
    def secrets(self) -> tuple[str, ...]:
        """The texts that must never be shown."""
        found = (self.password, self.tls.password if self.tls else None)
        return tuple(secret for secret in found if secret and isinstance(secret, str))

    def at(self, address: Address) -> RedisTarget:
        """The same target at another address."""
        return replace(self, host=address[0], port=address[1])


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """The address of a store, and its options. `restart_wait` is seconds; None means one ttl.

    `hosts` are asked where the server is: the `sentinels`, which know it by the name `service`, or
    nodes of a cluster; `reach` maps the addresses that they name. `wait_replicas`, `wait_timeout`
    (seconds): how many replicas must confirm a grant, and within what time.
    """

    scheme: str
    target: RedisTarget
    hosts: tuple[Address, ...] = ()
    service: str = ""
    sentinels: tuple[RedisTarget, ...] = ()
    reach: Reach = the_same
    key: str | None = None
    restart_wait: float | None = None
    allow_eviction: bool = False
    wait_replicas: int = 0
    wait_timeout: float = 0.1

    @property
    def layout(self) -> str:
        """One of "sentinel" and "cluster"; "" for one server."""
        return _layout(self.scheme)

    @property
    def shown(self) -> str:
        """The URL for messages, without password and options."""
        target = self.target
        start = f"{self.scheme}://{shown_login(target.username, target.password)}"
        if target.path:
            return f"{start}{target.path}"
        if self.layout:
            name = f"/{self.service}/{target.db}" if self.service else ""
            return f"{start}{','.join(map(say_address, self.hosts))}{name}"
        return f"{start}{say_address((target.host, target.port))}/{target.db}"


def require_driver() -> None:
    """Raises ConfigError that says what to install, if the driver is missing."""
    try:
        import hiredis  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "this store needs the extra redis: pip install 'incumbent[redis]' (hiredis>=3.0)",
            name="store",
        ) from error


def parse_redis_url(url: str, password: str | None = None) -> RedisOptions:
    """Read `url`; `password` replaces the one in it.

    Raises ConfigError, whose message never contains a part of the URL that could be a password.
    """
    # Not by urlsplit: newer versions refuse an IPv6 address that is not the first host.
    scheme, mark, rest = url.partition("://")
    place, _, query = rest.partition("?")
    netloc, _, path = place.partition("/")
    login, _, listed = netloc.rpartition("@")
    if scheme not in _SCHEMES or not mark or "#" in rest or re.search(r"[\[\]]", login):
        raise _malformed(scheme)
    transport, layout = _SCHEMES[scheme], _layout(scheme)
    if transport == "unix" and (listed or not path.strip("/")):
        raise ConfigError("redis+unix: write redis+unix:///path/to/the.sock", name="store")
    hosts = _hosts(scheme, listed)
    options = _options(query, transport, layout)
    user, _, secret = login.partition(":")
    service, path = _service(scheme, path) if layout == "sentinel" else ("", path)
    files: dict[str, Any] = {_FILES[name]: options[name] for name in _FILES if name in options}
    tls = Tls(**files) if transport == "tls" else None
    target = RedisTarget(
        host=hosts[0].host,
        port=hosts[0].port,
        path=f"/{unquote(path)}" if transport == "unix" else "",
        db=_database(options.get("db", "") if transport == "unix" else path, layout),
        username=unquote(user) or None,
        password=password or unquote(secret) or None,
        tls=tls,
    )
    # A sentinel has no databases, but users of its own.
    asker, word = options.get("sentinel_username"), options.get("sentinel_password")
    sentinel = replace(target, db=0, username=asker, password=word)
    replicas, timeout = check_replicas(options.get("wait_replicas"))
    return RedisOptions(
        scheme,
        target,
        hosts=hosts if layout else (),
        service=service,
        sentinels=tuple(map(sentinel.at, hosts)) if service else (),
        key=check_key(options.get("key")),
        restart_wait=parse_restart_wait(options.get("restart_wait")),
        allow_eviction=_yes_or_no("allow_eviction", options.get("allow_eviction", "no")),
        wait_replicas=replicas,
        wait_timeout=timeout,
    )


def _layout(scheme: str) -> str:
    layout = scheme.partition("+")[2]
    return layout if layout in _PORTS else ""


def _hosts(scheme: str, listed: str) -> tuple[Endpoint, ...]:
    layout = _layout(scheme)
    # As other clients read it: without a host it is this one.
    if not layout and listed[:1] in ("", ":"):
        listed = f"localhost{listed}"
    hosts = parse_hosts(listed, _PORTS[layout])
    if layout and hosts is None:
        raise ConfigError(
            f"{scheme}: write {scheme}://h1,h2:port,h3{_PATHS[layout]}, with each host once",
            name="store",
        )
    if hosts is None:
        raise _malformed(scheme)
    if len(hosts) > 1 and not layout:
        raise ConfigError(
            f"{scheme}: names one server; a list of hosts is for redis+sentinel:// (which says who"
            " is the master), redis+cluster:// or redis+quorum:// (a majority of masters)",
            name="store",
        )
    return hosts


_PATHS: Final = {"sentinel": "/name-of-the-master[/db]", "cluster": ""}


def _malformed(scheme: str) -> ConfigError:
    shown = scheme if scheme in _SCHEMES else "redis"
    where = f"h1,h2,h3{_PATHS[_layout(shown)]}" if _layout(shown) else "host[:port][/db]"
    return ConfigError(
        f"the URL of the store is malformed: write {shown}://[user:password@]{where}, and"
        " percent-encode : / ? # [ ] @ within a user name or password",
        name="store",
    )


def _service(scheme: str, path: str) -> tuple[str, str]:
    """The name of the master, and the rest of the path."""
    name, _, rest = path.lstrip("/").partition("/")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name):
        raise ConfigError(
            f"{scheme}: say which master the sentinels are asked for:"
            f" {scheme}://h1,h2,h3/name-of-the-master",
            name="store",
        )
    return name, rest


def _options(query: str, transport: str, layout: str) -> dict[str, str]:
    known = (*_KNOWN, *_MORE.get(layout or transport, ()), *_CHECKS)
    options = parse_options(query, known, _GONE)
    for name in _CHECKS:
        # Taken as long as it asks for the checks that are made anyway: URLs for redis-py have it.
        value = options.pop(name, "yes")
        if value.lower() in _NO:
            raise wrong_option(
                name,
                f"{value} would accept any server's certificate, so that anybody could grant"
                " leases; name the authority that signed it: ca=/path/ca.pem",
            )
    if transport != "tls" and any(name in options for name in _FILES):
        raise wrong_option("ca, cert, cert_key", "need the scheme rediss:// (or another with TLS)")
    return options


def _database(text: str, layout: str) -> int:
    text = text.strip("/") or "0"
    if not re.fullmatch(r"\d{1,5}", text, re.ASCII):
        # A password that was not encoded may end up in the path.
        raise wrong_option("db", "is not a number of a database: write redis://host:6379/0")
    if layout == "cluster" and int(text):
        raise wrong_option("db", "is 0 in a cluster: leave it out")
    return int(text)


def check_key(template: str | None) -> str | None:
    """The option `key`: a pattern that names the key of a lease."""
    if template is None:
        return None
    # Once: a second one stays in the rest, where its braces are refused.
    rest = template.replace("{name}", "", 1).replace("{namespace}", "", 1)
    if "{name}" not in template or re.search(r"[{}\s]", rest):
        raise wrong_option(
            "key",
            f"{template!r}: write the key that the other clients use, with {{name}} once (and"
            " {namespace} at most once), without other braces or spaces",
        )
    return template


def check_replicas(option: str | None) -> tuple[int, float]:
    """The option `wait_replicas`, as in `1:100ms`: how many, and for how many seconds."""
    if option is None:
        return 0, 0.1
    count, colon, timeout = option.partition(":")
    if not re.fullmatch(r"[1-9]\d?", count):
        raise wrong_option(
            "wait_replicas", "is the number of replicas that have to confirm: 1 to 99"
        )
    seconds = parse_duration(timeout, "wait_replicas", most=60.0) if colon else 0.1
    if seconds <= 0:
        raise wrong_option("wait_replicas", "needs a time that is longer than nothing: 1:100ms")
    return int(count), seconds


def _yes_or_no(name: str, text: str) -> bool:
    if text.lower() not in ("yes", "no"):
        raise wrong_option(name, "is yes or no")
    return text.lower() == "yes"


# -- a client of the user's own --------------------------------------------------------------------


_SCHEME_OF: Final = {"tcp": "redis", "tls": "rediss", "unix": "redis+unix"}
_CLASSES: Final = {
    ("connection", "Connection"): "tcp",
    ("connection", "SSLConnection"): "tls",
    ("connection", "UnixDomainSocketConnection"): "unix",
    ("sentinel", "SentinelManagedConnection"): "tcp",
    ("sentinel", "SentinelManagedSSLConnection"): "tls",
}
"""redis-py's own connection classes, blocking or not, by module and name."""


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
    return RedisOptions(_SCHEME_OF[transport], target)


def _refused(why: str) -> ConfigError:
    return ConfigError(why, name="store")


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
    # By its names: to compare the classes themselves, redis-py would have to be imported.
    if transport and made_by.__module__ in (f"redis.{module}", f"redis.asyncio.{module}"):
        return transport
    raise _refused(
        f"connections of class {made_by.__name__} are not supported, because it is not redis-py's"
        " own: leave connection_class out, and give a credential_provider if it is for the login"
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
        # What is off or empty asks for nothing; anything else might be a check that we do not make.
        elif value:
            raise _refused(f"the client's option {option} is not supported")
    return Tls(**options)


# -- Sentinel -------------------------------------------------------------------------------------


def _of_sentinel(pool: Any) -> RedisOptions:
    if not pool.is_master:
        raise _refused("a client of replicas, which grant nothing: give what master_for() returns")
    manager = pool.sentinel_manager
    # A sentinel has no databases.
    sentinels = tuple(
        replace(_target_of_pool(each.connection_pool)[1], db=0) for each in manager.sentinels
    )
    hosts = tuple((each.host, each.port) for each in sentinels)
    if len(set(hosts)) < len(hosts) or not hosts:
        raise _refused("the client names no sentinel, or one of them twice: each has one vote")
    # redis-py's connection finds the master itself; ours is given the master's address.
    transport = _transport_of(pool.connection_class, "sentinel")
    target = _target(transport, pool.connection_kwargs)
    # Sentinels may announce an address of another network: redis-py replaces it by this one.
    host: str | None = getattr(manager, "_force_master_ip", None)
    reach: Reach = the_same if host is None else lambda address: (host, address[1])
    scheme, service = f"{_SCHEME_OF[transport]}+sentinel", str(pool.service_name)
    return RedisOptions(scheme, target, hosts, service, sentinels, reach)


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
    # Where to connect is said by the nodes, and a cluster has the database 0 alone.
    target = _target(transport, {**given, "host": None, "port": None, "db": None})
    nodes = getattr(client, "startup_nodes", None) or manager.startup_nodes.values()
    hosts = tuple(dict.fromkeys((str(each.host), int(each.port)) for each in nodes))
    if not hosts:
        raise _refused("the client names no node of the cluster")
    reach = getattr(manager, "address_remap", None) or the_same
    return RedisOptions(f"{_SCHEME_OF[transport]}+cluster", target, hosts, reach=reach)
