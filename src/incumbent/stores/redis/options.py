"""The URL of a Redis server and its options, checked before anything is sent. Imports no driver."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from incumbent.durations import DAY, Duration, parse_duration
from incumbent.errors import ConfigError
from incumbent.stores.redis.hosts import Address, parse_hosts, say_address

__all__ = [
    "RedisOptions",
    "check_key",
    "check_replicas",
    "check_restart_wait",
    "parse_redis_url",
]

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
_RENAMED: Final = {
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
        user = self.username or ""
        login = f"{user}:***@" if self.password else f"{user}@" if user else ""
        if self.transport == "unix":
            return f"{self.scheme}://{login}{self.path}"
        if self.layout:
            name = f"/{self.service}/{self.db}" if self.service else ""
            return f"{self.scheme}://{login}{','.join(map(say_address, self.hosts))}{name}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{login}{host}:{self.port}/{self.db}"


def parse_redis_url(url: str, password: str | None = None) -> RedisOptions:
    """Read `url`; `password` replaces the one in it.

    Raises ConfigError, whose message never has any part of the URL that could be a password.
    """
    listed, url = _take_hosts(url)
    parts = _split(url)
    transport, layout = _SCHEMES[parts.scheme], _layout(parts.scheme)
    query = _query(parts, (*_KNOWN, *_MORE.get(layout or transport, ())))
    if transport != "tls" and any(name in query for name in (*_FILES, *_CHECKS)):
        raise _wrong("ca, cert, cert_key", "need the scheme rediss:// (or another with TLS)")
    service, path = _service(parts) if layout == "sentinel" else ("", parts.path)
    hosts = _hosts(parts.scheme, listed, layout) if layout else ()
    replicas, patience = check_replicas(query.get("wait_replicas"))
    return RedisOptions(
        scheme=parts.scheme,
        transport=transport,
        host=hosts[0][0] if hosts else unquote(parts.hostname or "localhost"),
        port=hosts[0][1] if hosts else parts.port or 6379,
        path=unquote(parts.path) if transport == "unix" else "",
        db=_database(query.get("db", "") if transport == "unix" else path, layout),
        username=unquote(parts.username) if parts.username else None,
        password=password or (unquote(parts.password) if parts.password else None),
        files=tuple((_FILES[name], query[name]) for name in _FILES if name in query),
        key=check_key(query.get("key")),
        restart_wait=check_restart_wait(query.get("restart_wait")),
        allow_eviction=_yes_or_no("allow_eviction", query.get("allow_eviction", "no")),
        layout=layout,
        hosts=hosts,
        service=service,
        sentinel_username=query.get("sentinel_username") or None,
        sentinel_password=query.get("sentinel_password") or None,
        wait_replicas=replicas,
        wait_timeout=patience,
    )


def _layout(scheme: str) -> str:
    layout = scheme.partition("+")[2]
    return layout if layout in _PORTS else ""


def _take_hosts(url: str) -> tuple[str, str]:
    """The list of hosts of a layout's URL, and the URL with one host in its place."""
    scheme, colon, rest = url.partition("://")
    if not _layout(scheme):
        return "", url
    netloc = re.split(r"[/?#]", rest, maxsplit=1)[0]
    login, at, hosts = netloc.rpartition("@")
    return hosts, f"{scheme}{colon}{login}{at}hosts{rest[len(netloc) :]}"


def _hosts(scheme: str, listed: str, layout: str) -> tuple[Address, ...]:
    hosts = parse_hosts(listed, _PORTS[layout])
    if hosts is None:
        raise ConfigError(
            f"{scheme}: write {scheme}://h1,h2:port,h3{_PATHS[layout]}, with each host once",
            name="store",
        )
    return hosts


_PATHS: Final = {"sentinel": "/name-of-the-master[/db]", "cluster": ""}


def _service(parts: SplitResult) -> tuple[str, str]:
    """The name of the master, and the rest of the path."""
    name, _, rest = parts.path.lstrip("/").partition("/")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", name):
        raise ConfigError(
            f"{parts.scheme}: say which master the sentinels are asked for:"
            f" {parts.scheme}://h1,h2,h3/name-of-the-master",
            name="store",
        )
    return name, rest


def _split(url: str) -> SplitResult:
    # `from None`: urlsplit quotes what it could not read, which may be a piece of the password.
    scheme = url.partition(":")[0]
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise _malformed(scheme) from None
    if parts.scheme not in _SCHEMES or parts.fragment or not url[len(scheme) :].startswith("://"):
        raise _malformed(scheme) from None
    if _SCHEMES[parts.scheme] == "unix":
        if parts.hostname or not parts.path.strip("/"):
            raise ConfigError("redis+unix: write redis+unix:///path/to/the.sock", name="store")
    elif "," in parts.netloc.rpartition("@")[2] and not _layout(scheme):
        raise ConfigError(
            f"{scheme}: names one server; a list of hosts is for redis+sentinel:// (which says who"
            " is the master), redis+cluster:// or redis+quorum:// (a majority of masters)",
            name="store",
        )
    return parts


def _malformed(scheme: str) -> ConfigError:
    shown = scheme if scheme in _SCHEMES else "redis"
    where = f"h1,h2,h3{_PATHS[_layout(shown)]}" if _layout(shown) else "host[:port][/db]"
    return ConfigError(
        f"the URL of the store is malformed: write {shown}://[user:password@]{where}, and"
        " percent-encode : / ? # [ ] @ within a user name or password",
        name="store",
    )


def _query(parts: SplitResult, known: tuple[str, ...]) -> dict[str, str]:
    query: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in _CHECKS:
            _insist_on_checks(name, value)
        elif name in _RENAMED and name not in known:
            raise _wrong(name, _RENAMED[name])
        elif name not in known:
            # What follows a "?" may be the rest of a password that was not encoded.
            shown = name if re.fullmatch(r"[a-z_]{1,30}", name) else "(not shown)"
            raise _wrong(shown, f"is not an option of this store; known: {', '.join(known)}")
        if name in query:
            raise _wrong(name, "is given twice")
        query[name] = value
    return query


def _insist_on_checks(name: str, value: str) -> None:
    if value.lower() in _NO:
        raise _wrong(
            name,
            f"={value} would accept any server's certificate, so that anybody could grant leases;"
            " name the authority that signed it: ca=/path/ca.pem",
        )


def _wrong(name: str, why: str) -> ConfigError:
    space = "" if why.startswith("=") else " "
    return ConfigError(f"option {name}{space}{why}", name=name)


def _database(text: str, layout: str) -> int:
    text = text.strip("/") or "0"
    if not re.fullmatch(r"\d{1,5}", text, re.ASCII):
        # A password that was not encoded may end up in the path.
        raise _wrong("db", "is not a number of a database: write redis://host:6379/0")
    if layout == "cluster" and int(text):
        raise _wrong("db", "is 0 in a cluster: leave it out")
    return int(text)


def check_key(template: str | None) -> str | None:
    """The option `key`: a pattern that names the key of a lease."""
    if template is None:
        return None
    rest = template.replace("{name}", "", 1).replace("{namespace}", "", 1)
    if "{name}" not in template or re.search(r"[{}\s]", rest):
        raise _wrong(
            "key",
            f"={template!r}: write the key that the other clients use, with {{name}} once (and"
            " {namespace} at most once), without other braces or spaces",
        )
    return template


def check_restart_wait(wait: Duration | None) -> float | None:
    """The option `restart_wait` in seconds; None means one ttl."""
    return None if wait is None else parse_duration(wait, "restart_wait", most=DAY)


def check_replicas(option: str | None) -> tuple[int, float]:
    """The option `wait_replicas`, as in `1:100ms`: how many, and for how many seconds."""
    if option is None:
        return 0, 0.1
    count, colon, patience = option.partition(":")
    if not re.fullmatch(r"[1-9]\d?", count):
        raise _wrong("wait_replicas", "is the number of replicas that have to confirm: 1 to 99")
    seconds = parse_duration(patience, "wait_replicas", most=60.0) if colon else 0.1
    if seconds <= 0:
        raise _wrong("wait_replicas", "needs a time that is longer than nothing: 1:100ms")
    return int(count), seconds


def _yes_or_no(name: str, text: str) -> bool:
    if text.lower() not in ("yes", "no"):
        raise _wrong(name, "is yes or no")
    return text.lower() == "yes"
