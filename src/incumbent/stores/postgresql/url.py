"""The URL of a PostgreSQL database: our own options apart from libpq's. Imports no driver."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode

from incumbent.durations import DAY, Duration, parse_duration
from incumbent.errors import ConfigError

__all__ = [
    "MALFORMED",
    "PostgresOptions",
    "check_restart_wait",
    "parse_postgresql_url",
    "shown_login",
]

MALFORMED: Final = (
    "the URL of the store is malformed: write"
    " postgresql://[user[:password]@]host[:port][,host2[:port]]/database[?option=value], and"
    " percent-encode : / ? # [ ] @ within a user name or password"
)
_NEVER: Final = {
    "target_session_attrs": "read-write is always asked for: leases need the primary",
    "replication": "leases need an ordinary connection",
    "client_encoding": "it is always UTF8",
}


@dataclass(frozen=True, slots=True)
class PostgresOptions:
    """`conninfo` is for libpq, which reads hosts, login and its own options. `shown` is for people.

    `restart_wait` is seconds; None means one ttl.
    """

    conninfo: str = field(repr=False)
    shown: str
    restart_wait: float | None = None


def parse_postgresql_url(url: str, password: str | None = None) -> PostgresOptions:
    """Read `url`; `password` replaces the one in it.

    Raises ConfigError, whose message never has any part of the URL that could be a password.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in ("postgresql", "postgres") or "#" in rest:
        raise ConfigError(MALFORMED, name="store")
    address, _, query = rest.partition("?")
    options = _options_of(query)
    restart_wait = options.pop("restart_wait", None)
    authority, slash, database = address.partition("/")
    login, at, hosts = authority.rpartition("@")
    user, _, inside = login.partition(":")
    secret = quote(password, safe="") if password else inside
    if "/" in database or "@" in database + login:
        # The rest of a password that was not encoded.
        raise ConfigError(MALFORMED, name="store")
    conninfo = f"postgresql://{user}{':' + secret if secret else ''}{at or '@' * bool(secret)}"
    conninfo += f"{hosts}{slash}{database}"
    if options:
        conninfo += f"?{urlencode(options, quote_via=quote)}"
    login = shown_login(unquote(user) or options.get("user", ""), secret or options.get("password"))
    return PostgresOptions(
        conninfo,
        f"postgresql://{login}{hosts}{slash}{unquote(database)}",
        check_restart_wait(restart_wait),
    )


def _options_of(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ConfigError(MALFORMED, name="store") from None
    options: dict[str, str] = {}
    for name, value in pairs:
        if name == "target_session_attrs" and value == "read-write":
            continue
        if name in _NEVER:
            raise ConfigError(f"option {name}: {_NEVER[name]}", name=name)
        if name in options:
            shown = name if re.fullmatch(r"[a-z_]{1,30}", name) else "(not shown)"
            raise ConfigError(f"option {shown} is given twice", name="store")
        options[name] = value
    return options


def shown_login(user: str, secret: str | None) -> str:
    """The login as people see it."""
    return f"{user}:***@" if secret else f"{user}@" if user else ""


def check_restart_wait(wait: Duration | None) -> float | None:
    """The option `restart_wait` in seconds; None means one ttl."""
    return None if wait is None else parse_duration(wait, "restart_wait", most=DAY)
