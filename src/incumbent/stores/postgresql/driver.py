"""The one place that knows psycopg: libpq's connections (psycopg.pq), and what a user's pool is.

libpq's own waiting is not used: it resolves names without a timeout and counts whole seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from incumbent.errors import ConfigError
from incumbent.stores.postgresql.options import PostgresOptions, Waits

_MISSING: Final = "this store needs psycopg: pip install 'incumbent[postgresql]'"

try:
    import psycopg
    from psycopg import conninfo as _conninfo
    from psycopg import pq
except ImportError as error:
    raise ConfigError(_MISSING, name="store") from error

__all__ = ["DriverError", "Site", "Target", "pq", "site_of_options", "site_of_parameters"]

DriverError = psycopg.Error
_ALWAYS: Final = {
    "target_session_attrs": "read-write",
    "client_encoding": "UTF8",
    "fallback_application_name": "incumbent",
}
_SECRET: Final = ("password", "sslpassword", "scram_client_key", "oauth_client_secret")
_MIN_SECRET: Final = 1


@dataclass(frozen=True, slots=True)
class Target:
    """One host of the list. `hostaddr` is set where its name need not be resolved."""

    host: str
    port: str
    hostaddr: str = ""


@dataclass(slots=True)
class Site:
    """One configured database.

    `proved`: it has served this process before; `direct`: no pooler stands between (None: not known
    yet); `best`: the place of the host that served last.
    """

    parameters: Mapping[str, str] = field(repr=False)
    targets: tuple[Target, ...]
    where: str
    restart_wait: float | None = None
    waits: Waits = "auto"
    proved: bool = False
    direct: bool | None = None
    best: int = 0

    def in_order(self) -> Iterator[tuple[int, Target]]:
        """The hosts, that which served last first."""
        count = len(self.targets)
        for step in range(count):
            place = (self.best + step) % count
            yield place, self.targets[place]

    def conninfo(self, target: Target, address: str) -> bytes:
        """For libpq: one host at one address, which it need not resolve."""
        where = {"host": target.host, "port": target.port, "hostaddr": address}
        given = {**self.parameters, **{name: it for name, it in where.items() if it}}
        return _conninfo.make_conninfo("", **given).encode()

    def clean(self, text: str) -> str:
        """`text` without what must never be shown, on one line."""
        for name in _SECRET:
            secret = self.parameters.get(name)
            if secret:
                text = text.replace(secret, "***")
        return " ".join(text.split())

    @property
    def listens(self) -> bool | None:
        """Whether LISTEN can be trusted; None if nobody has connected yet."""
        return self.direct if self.waits == "auto" else self.waits == "listen"


def site_of_options(options: PostgresOptions) -> Site:
    """From a URL. Raises ConfigError for what libpq does not understand."""
    try:
        parameters = _conninfo.conninfo_to_dict(options.conninfo)
    except DriverError as error:
        raise ConfigError(_not_understood(str(error)), name="store") from None
    return site_of_parameters(
        parameters, options.shown, restart_wait=options.restart_wait, waits=options.waits
    )


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 65536


def _not_understood(said: str) -> str:
    # libpq quotes what it could not read, which may be a piece of a password.
    start = "invalid URI query parameter: "
    if said.startswith(start):
        name = said.removeprefix(start).strip().strip('"')[:40]
        return f"option {name} is neither libpq's nor ours (restart_wait, wait)"
    return (
        "the URL of the store is malformed: write"
        " postgresql://[user[:password]@]host[:port][,host2[:port]]/database[?option=value], and"
        " percent-encode : / ? # [ ] @ within a user name or password"
    )


def site_of_parameters(
    parameters: Mapping[str, Any],
    where: str,
    *,
    restart_wait: float | None = None,
    waits: Waits = "auto",
) -> Site:
    """From libpq's parameters, by name."""
    given = {name: str(value) for name, value in parameters.items() if value is not None}
    defaults = {
        option.keyword.decode(): option.val.decode()
        for option in pq.Conninfo.get_defaults()
        if option.val is not None
    }
    hosts, ports, addresses = (
        given.pop(name, defaults.get(name, "")).split(",") for name in ("host", "port", "hostaddr")
    )
    given.pop("connect_timeout", None)  # ours is the caller's deadline
    if any(port and not _is_port(port) for port in ports):
        raise ConfigError("a port is not a number from 1 to 65535", name="store")
    count = max(len(hosts), len(addresses))
    if len(ports) not in (1, count) or len(addresses) not in (1, count):
        raise ConfigError("the lists of hosts and ports differ in length", name="store")
    spread = [
        values if len(values) == count else values * count for values in (hosts, ports, addresses)
    ]
    targets = tuple(Target(*each) for each in zip(*spread, strict=True))
    return Site({**given, **_ALWAYS}, targets, where, restart_wait, waits)
