"""The URL of a PostgreSQL database: our own options apart from libpq's. Imports no driver."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, cast
from urllib.parse import parse_qsl, quote, unquote, urlencode

from incumbent.durations import DAY, Duration, parse_duration
from incumbent.errors import ConfigError

__all__ = ["PostgresOptions", "Waits", "check_restart_wait", "check_waits", "parse_postgresql_url"]

Waits: TypeAlias = Literal["auto", "listen", "poll"]

_OURS: Final = ("restart_wait", "wait")
_WAITS: Final = ("auto", "listen", "poll")
_NEVER: Final = {
    "target_session_attrs": "read-write is always asked for: leases need the primary",
    "replication": "leases need an ordinary connection",
    "client_encoding": "it is always UTF8",
}


@dataclass(frozen=True, slots=True)
class PostgresOptions:
    """`conninfo` is for libpq, which reads hosts, login and its own options. `shown` is for people.

    `restart_wait` is seconds; None means one ttl. `waits`: how a waiter learns of a change.
    """

    conninfo: str = field(repr=False)
    shown: str
    restart_wait: float | None = None
    waits: Waits = "auto"


def parse_postgresql_url(url: str, password: str | None = None) -> PostgresOptions:
    """Read `url`; `password` replaces the one in it.

    Raises ConfigError, whose message never has any part of the URL that could be a password.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("postgresql", "postgres") or "#" in rest:
        raise _malformed()
    address, _, query = rest.partition("?")
    ours, theirs = _sorted_out(query)
    authority, slash, database = address.partition("/")
    login, at, hosts = authority.rpartition("@")
    user, _, inside = login.partition(":")
    secret = quote(password, safe="") if password else inside
    if "/" in database or "@" in database + login:
        # The rest of a password that was not encoded.
        raise _malformed()
    conninfo = f"postgresql://{user}{':' + secret if secret else ''}{at or '@' * bool(secret)}"
    conninfo += f"{hosts}{slash}{database}" + (
        f"?{urlencode(theirs, quote_via=quote)}" if theirs else ""
    )
    named = [value for name, value in theirs if name == "user"]
    user = unquote(user) or (named[0] if named else "")
    hidden = secret or any(name == "password" for name, _ in theirs)
    shown = f"{user}:***@" if hidden else f"{user}@" if user else ""
    return PostgresOptions(
        conninfo,
        f"postgresql://{shown}{hosts}{slash}{unquote(database)}",
        check_restart_wait(ours.get("restart_wait")),
        check_waits(ours.get("wait", "auto")),
    )


def _sorted_out(query: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    ours: dict[str, str] = {}
    theirs: list[tuple[str, str]] = []
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise _malformed() from None
    for name, value in pairs:
        if name == "target_session_attrs" and value == "read-write":
            continue
        if name in _NEVER:
            raise ConfigError(f"option {name}: {_NEVER[name]}", name=name)
        if name in ours or name in dict(theirs):
            shown = name if re.fullmatch(r"[a-z_]{1,30}", name) else "(not shown)"
            raise ConfigError(f"option {shown} is given twice", name="store")
        if name in _OURS:
            ours[name] = value
        else:
            theirs.append((name, value))
    return ours, theirs


def _malformed() -> ConfigError:
    return ConfigError(
        "the URL of the store is malformed: write"
        " postgresql://[user[:password]@]host[:port][,host2[:port]]/database[?option=value], and"
        " percent-encode : / ? # [ ] @ within a user name or password",
        name="store",
    )


def check_restart_wait(wait: Duration | None) -> float | None:
    """The option `restart_wait` in seconds; None means one ttl."""
    return None if wait is None else parse_duration(wait, "restart_wait", most=DAY)


def check_waits(waits: str) -> Waits:
    """The option `wait`."""
    if waits not in _WAITS:
        raise ConfigError(
            "option wait: auto (LISTEN, or polls behind a pooler), listen (also behind a pooler,"
            " which must be in session mode), or poll",
            name="wait",
        )
    return cast("Waits", waits)
