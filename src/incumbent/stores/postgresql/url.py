"""The URL of a PostgreSQL database: our own options apart from libpq's. Imports no driver."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode

from incumbent.errors import ConfigError
from incumbent.stores.url import parse_restart_wait, wrong_option

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


def read_url(url: str) -> tuple[str, float | None]:
    """The URL for libpq, and the option `restart_wait` in seconds (None: one ttl).

    Raises ConfigError, whose message never has any part of the URL that could be a password.
    """
    scheme, _, rest = url.partition("://")
    address, _, query = rest.partition("?")
    authority, _, database = address.partition("/")
    login = authority.rpartition("@")[0]
    # A "/", "@" or "#" too many: the rest of a password that was not encoded.
    if scheme not in ("postgresql", "postgres") or "#" in rest:
        raise ConfigError(MALFORMED, name="store")
    if "/" in database or "@" in database + login:
        raise ConfigError(MALFORMED, name="store")
    options = _options_of(query)
    restart_wait = parse_restart_wait(options.pop("restart_wait", None))
    given = f"?{urlencode(options, quote_via=quote)}" if options else ""
    return f"postgresql://{address}{given}", restart_wait


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
            raise wrong_option(shown, "is given twice")
        options[name] = value
    return options
