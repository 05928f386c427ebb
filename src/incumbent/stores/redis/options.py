"""The URL of a Redis server and its options, checked before anything is sent. Imports no driver."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from incumbent.durations import parse_duration
from incumbent.errors import ConfigError
from incumbent.stores.redis.hosts import Address, say_address
from incumbent.stores.url import (
    Endpoint,
    parse_hosts,
    parse_options,
    parse_restart_wait,
    shown_login,
    wrong_option,
)

_TRANSPORTS: Final = {"redis": "tcp", "valkey": "tcp", "rediss": "tls", "valkeys": "tls"}
_SCHEMES: Final = {
    **_TRANSPORTS,
    "redis+unix": "unix",
    **{f"{scheme}+sentinel": transport for scheme, transport in _TRANSPORTS.items()},
    **{f"{scheme}+cluster": transport for scheme, transport in _TRANSPORTS.items()},
}
_PORTS: Final = {"": 6379, "sentinel": 26379, "cluster": 6379}
_FILES: Final = {"ca": "ssl_ca_certs", "cert": "ssl_certfile", "cert_key": "ssl_keyfile"}
"""The option of the URL, and what the driver calls it."""
_CHECKS: Final = ("ssl_cert_reqs", "ssl_check_hostname", "check_hostname")
_MORE: Final = {"sentinel": ("sentinel_username", "sentinel_password"), "unix": ("db",)}
"""Further options; the path of a unix socket's URL cannot name a database."""
_KNOWN: Final = ("key", "restart_wait", "allow_eviction", "wait_replicas", *_FILES)
_GONE: Final = {
    "db": "is gone: the path names the database, as in redis://host:6379/2",
    "functions": "is gone: scripts are sent (docs/redis.md: Least privilege)",
    "wait_timeout": "is part of wait_replicas now: wait_replicas=1:100ms",
    **{old: f"is called {new} now" for new, old in _FILES.items()},
}
_NO: Final = ("no", "false", "0", "off", "none", "optional")


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """Where the server is, and how it is used. `restart_wait` is seconds; None means one ttl.

    `layout`: "" one server, "sentinel" or "cluster", whose `hosts` are asked where it is;
    `service`: the name under which the sentinels know it; `wait_replicas`, `wait_timeout`
    (seconds): how many replicas have to say that they have what was granted, and by when.
    """

    scheme: str
    transport: str
    host: str = "localhost"
    port: int = 6379
    path: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    files: tuple[tuple[str, str], ...] = ()
    key: str | None = None
    restart_wait: float | None = None
    allow_eviction: bool = False
    layout: str = ""
    hosts: tuple[Address, ...] = ()
    service: str = ""
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    wait_replicas: int = 0
    wait_timeout: float = 0.1

    @property
    def layered(self) -> bool:
        """Whether it takes more than the connections to one server."""
        return bool(self.layout or self.wait_replicas)

    @property
    def shown(self) -> str:
        """The URL for people: no password, no options."""
        login = shown_login(self.username, self.password)
        if self.transport == "unix":
            return f"{self.scheme}://{login}{self.path}"
        if self.layout:
            name = f"/{self.service}/{self.db}" if self.service else ""
            return f"{self.scheme}://{login}{','.join(map(say_address, self.hosts))}{name}"
        return f"{self.scheme}://{login}{say_address((self.host, self.port))}/{self.db}"


def parse_redis_url(url: str, password: str | None = None) -> RedisOptions:
    """Read `url`; `password` replaces the one in it.

    Raises ConfigError, whose message never has any part of the URL that could be a password.
    """
    # Not by urlsplit: newer ones refuse an IPv6 address that is not the first host.
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
    replicas, patience = check_replicas(options.get("wait_replicas"))
    return RedisOptions(
        scheme=scheme,
        transport=transport,
        host=hosts[0].host,
        port=hosts[0].port,
        path=f"/{unquote(path)}" if transport == "unix" else "",
        db=_database(options.get("db", "") if transport == "unix" else path, layout),
        username=unquote(user) or None,
        password=password or unquote(secret) or None,
        files=tuple((_FILES[name], options[name]) for name in _FILES if name in options),
        key=check_key(options.get("key")),
        restart_wait=parse_restart_wait(options.get("restart_wait")),
        allow_eviction=_yes_or_no("allow_eviction", options.get("allow_eviction", "no")),
        layout=layout,
        hosts=hosts if layout else (),
        service=service,
        sentinel_username=options.get("sentinel_username"),
        sentinel_password=options.get("sentinel_password"),
        wait_replicas=replicas,
        wait_timeout=patience,
    )


def _layout(scheme: str) -> str:
    layout = scheme.partition("+")[2]
    return layout if layout in _PORTS else ""


def _hosts(scheme: str, listed: str) -> tuple[Endpoint, ...]:
    layout = _layout(scheme)
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
    count, colon, patience = option.partition(":")
    if not re.fullmatch(r"[1-9]\d?", count):
        raise wrong_option(
            "wait_replicas", "is the number of replicas that have to confirm: 1 to 99"
        )
    seconds = parse_duration(patience, "wait_replicas", most=60.0) if colon else 0.1
    if seconds <= 0:
        raise wrong_option("wait_replicas", "needs a time that is longer than nothing: 1:100ms")
    return int(count), seconds


def _yes_or_no(name: str, text: str) -> bool:
    if text.lower() not in ("yes", "no"):
        raise wrong_option(name, "is yes or no")
    return text.lower() == "yes"
