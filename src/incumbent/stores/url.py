"""What the URLs of several stores have in common: hosts, a login, options. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, unquote

from incumbent.durations import DAY, Duration, parse_duration
from incumbent.errors import ConfigError

_HOST: Final = re.compile(
    r"(?:\[(?P<six>[0-9A-Fa-f:.%a-z]+)\]|(?P<name>[^\[\]:@/?#\s]+))(?::(?P<port>\d{1,5}))?"
)


class Endpoint(NamedTuple):
    """The address of one server."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_hosts(text: str, port: int) -> tuple[Endpoint, ...] | None:
    """`h1,h2:7000,[::1]:7001`; None if that is malformed, or if a host comes twice."""
    found: list[Endpoint] = []
    for part in text.split(","):
        match = _HOST.fullmatch(part)
        if match is None:
            return None
        endpoint = Endpoint(match["six"] or unquote(match["name"]), int(match["port"] or port))
        if not 0 < endpoint.port < 65_536 or endpoint in found:
            return None
        found.append(endpoint)
    return tuple(found)


def shown_login(user: str | None, secret: str | None) -> str:
    """The login as people see it, with the "@" behind it."""
    return f"{user or ''}:***@" if secret else f"{user}@" if user else ""


def parse_options(
    query: str, known: Collection[str], gone: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The options of a URL. Raises ConfigError for an unknown, an empty or a repeated one.

    `gone`: what to write in place of an option that there was once, as a predicate.
    """
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known and gone and name in gone:
            raise wrong_option(name, gone[name])
        if name not in known:
            # What follows a "?" may be the rest of a password that was not encoded.
            shown = name if re.fullmatch(r"[a-z_]{1,30}", name) else "(not shown)"
            raise wrong_option(shown, f"is not an option of this store; known: {', '.join(known)}")
        if name in options:
            raise wrong_option(name, "is given twice")
        if not value:
            raise wrong_option(name, "is empty")
        options[name] = value
    return options


def wrong_option(name: str, why: str) -> ConfigError:
    """The exception for an option; `why` is a predicate."""
    return ConfigError(f"option {name} {why}", name=name)


def parse_restart_wait(wait: Duration | None) -> float | None:
    """The option `restart_wait` in seconds; None means one ttl."""
    return None if wait is None else parse_duration(wait, "restart_wait", most=DAY)
