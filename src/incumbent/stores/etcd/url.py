"""The URL of an etcd cluster and its options, checked before anything is sent."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote

from incumbent.durations import DAY, parse_duration
from incumbent.errors import ConfigError

__all__ = ["Endpoint", "EtcdOptions", "parse_etcd_url"]

_SCHEMES: Final = ("etcd", "etcds")
_FILES: Final = ("ca", "cert", "key")
_KNOWN: Final = (*_FILES, "restart_wait")
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?", re.ASCII)
_PREFIX: Final = re.compile(r"(/[A-Za-z0-9._:@-]+)+", re.ASCII)
_PORT: Final = 2379


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The client address of one member."""

    host: str
    port: int = _PORT

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class EtcdOptions:
    """Where the cluster is, and how it is used. `restart_wait` is seconds; None means one ttl."""

    endpoints: tuple[Endpoint, ...]
    prefix: str = "/incumbent"
    tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    restart_wait: float | None = None

    @property
    def shown(self) -> str:
        """The URL for people: no password, no options."""
        user = self.username or ""
        login = f"{user}:***@" if self.password else f"{user}@" if user else ""
        hosts = ",".join(str(endpoint) for endpoint in self.endpoints)
        return f"{'etcds' if self.tls else 'etcd'}://{login}{hosts}{self.prefix}"


def parse_etcd_url(url: str) -> EtcdOptions:
    """Read `url`. Raises ConfigError, whose message never has what could be a password."""
    scheme, login, hosts, path, query = _split(url)
    if scheme != "etcds" and any(name in query for name in _FILES):
        raise _wrong("ca, cert, key", "need the scheme etcds://")
    if ("cert" in query) != ("key" in query):
        raise _wrong("cert", "and key are given together: a client certificate and its key")
    user, _, password = login.partition(":")
    if password and not user:
        raise _malformed(scheme)
    wait = query.get("restart_wait")
    return EtcdOptions(
        endpoints=_endpoints(hosts, scheme),
        prefix=_prefix(path),
        tls=scheme == "etcds",
        username=unquote(user) or None,
        password=unquote(password) or None,
        ca=query.get("ca"),
        cert=query.get("cert"),
        key=query.get("key"),
        restart_wait=None if wait is None else parse_duration(wait, "restart_wait", most=DAY),
    )


def _split(url: str) -> tuple[str, str, str, str, dict[str, str]]:
    # Not by urlsplit: newer ones refuse an IPv6 address that is not the first host.
    scheme, mark, rest = url.partition("://")
    if scheme not in _SCHEMES or not mark or "#" in rest:
        raise _malformed(scheme)
    place, _, query = rest.partition("?")
    netloc, slash, path = place.partition("/")
    login, _, hosts = netloc.rpartition("@")
    return scheme, login, hosts, slash + path, _query(query)


def _malformed(scheme: str) -> ConfigError:
    shown = scheme if scheme in _SCHEMES else "etcd"
    return ConfigError(
        f"the URL of the store is malformed: write {shown}://[user:password@]host[:2379][,host...]"
        "[/prefix], and percent-encode : / ? # [ ] @ , within a user name or password",
        name="store",
    )


def _query(text: str) -> dict[str, str]:
    query: dict[str, str] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        if name not in _KNOWN:
            # What follows a "?" may be the rest of a password that was not encoded.
            shown = name if re.fullmatch(r"[a-z_]{1,30}", name) else "(not shown)"
            raise _wrong(shown, f"is not an option of this store; known: {', '.join(_KNOWN)}")
        if name in query:
            raise _wrong(name, "is given twice")
        if not value:
            raise _wrong(name, "is empty")
        query[name] = value
    return query


def _wrong(name: str, why: str) -> ConfigError:
    return ConfigError(f"option {name} {why}", name=name)


def _endpoints(hosts: str, scheme: str) -> tuple[Endpoint, ...]:
    found = []
    for text in hosts.split(",") if hosts else ["localhost"]:
        match = _HOST.fullmatch(text)
        if match is None or not 0 < int(match[2] or _PORT) < 65_536:
            raise _malformed(scheme)
        found.append(Endpoint(match[1].strip("[]"), int(match[2] or _PORT)))
    if len(set(found)) != len(found):
        raise ConfigError("the URL of the store names an endpoint twice", name="store")
    return tuple(found)


def _prefix(path: str) -> str:
    prefix = path.rstrip("/")
    if not prefix:
        return "/incumbent"
    if not _PREFIX.fullmatch(prefix):
        # A password that was not encoded may end up in the path.
        raise ConfigError(
            "the prefix of the keys (after the hosts) has other characters than"
            " A-Z a-z 0-9 . _ : @ - and single slashes: write etcd://host:2379/my/prefix",
            name="store",
        )
    return prefix
