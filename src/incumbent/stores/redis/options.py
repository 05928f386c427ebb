"""The URL of a Redis server and its options, checked before anything is sent. Imports no driver."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from incumbent.durations import DAY, Duration, parse_duration
from incumbent.errors import ConfigError

__all__ = ["RedisOptions", "check_key", "check_restart_wait", "parse_redis_url"]

_SCHEMES: Final = {
    "redis": "tcp",
    "valkey": "tcp",
    "rediss": "tls",
    "valkeys": "tls",
    "redis+unix": "unix",
}
_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_CHECKS: Final = ("ssl_cert_reqs", "ssl_check_hostname", "check_hostname")
_KNOWN: Final = ("key", "restart_wait", "allow_eviction", "db", *_FILES)
_NO: Final = ("no", "false", "0", "off", "none", "optional")


@dataclass(frozen=True, slots=True)
class RedisOptions:
    """Where the server is, and how it is used. `restart_wait` is seconds; None means one ttl."""

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

    @property
    def shown(self) -> str:
        """The URL for people: no password, no options."""
        user = self.username or ""
        login = f"{user}:***@" if self.password else f"{user}@" if user else ""
        if self.transport == "unix":
            return f"{self.scheme}://{login}{self.path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{login}{host}:{self.port}/{self.db}"


def parse_redis_url(url: str, password: str | None = None) -> RedisOptions:
    """Read `url`; `password` replaces the one in it.

    Raises ConfigError, whose message never has any part of the URL that could be a password.
    """
    parts = _split(url)
    transport = _SCHEMES[parts.scheme]
    query = _query(parts)
    if transport != "tls" and any(name in query for name in (*_FILES, *_CHECKS)):
        raise _wrong("ssl_...", "needs the scheme rediss:// (or valkeys://)")
    return RedisOptions(
        scheme=parts.scheme,
        transport=transport,
        host=unquote(parts.hostname or "localhost"),
        port=parts.port or 6379,
        path=unquote(parts.path) if transport == "unix" else "",
        db=_database(parts, query, transport),
        username=unquote(parts.username) if parts.username else None,
        password=password or (unquote(parts.password) if parts.password else None),
        files=tuple((name, query[name]) for name in _FILES if name in query),
        key=check_key(query.get("key")),
        restart_wait=check_restart_wait(query.get("restart_wait")),
        allow_eviction=_yes_or_no(query.get("allow_eviction", "no")),
    )


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
    elif "," in parts.netloc.rpartition("@")[2]:
        raise ConfigError(f"{scheme}: names one server; a list of hosts is a quorum", name="store")
    return parts


def _malformed(scheme: str) -> ConfigError:
    shown = scheme if scheme in _SCHEMES else "redis"
    return ConfigError(
        f"the URL of the store is malformed: write {shown}://[user:password@]host[:port][/db], and"
        " percent-encode : / ? # [ ] @ within a user name or password",
        name="store",
    )


def _query(parts: SplitResult) -> dict[str, str]:
    query: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in _CHECKS:
            _insist_on_checks(name, value)
        elif name not in _KNOWN:
            # What follows a "?" may be the rest of a password that was not encoded.
            shown = name if re.fullmatch(r"[a-z_]{1,30}", name) else "(not shown)"
            raise _wrong(shown, f"is not an option of this store; known: {', '.join(_KNOWN)}")
        if name in query:
            raise _wrong(name, "is given twice")
        query[name] = value
    return query


def _insist_on_checks(name: str, value: str) -> None:
    if value.lower() in _NO:
        raise _wrong(
            name,
            f"={value} would accept any server's certificate, so that anybody could grant leases;"
            " name the authority that signed it: ssl_ca_certs=/path/ca.pem",
        )


def _wrong(name: str, why: str) -> ConfigError:
    space = "" if why.startswith("=") else " "
    return ConfigError(f"option {name}{space}{why}", name=name)


def _database(parts: SplitResult, query: dict[str, str], transport: str) -> int:
    path = "" if transport == "unix" else parts.path.strip("/")
    text = query.get("db", path) or "0"
    if path and "db" in query and path != query["db"]:
        raise _wrong("db", "differs from the database in the path")
    if not re.fullmatch(r"\d{1,5}", text, re.ASCII):
        # A password that was not encoded may end up in the path.
        raise _wrong("db", "is not a number of a database: write redis://host:6379/0")
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


def _yes_or_no(text: str) -> bool:
    if text.lower() not in ("yes", "no"):
        raise _wrong("allow_eviction", "is yes or no")
    return text.lower() == "yes"
