"""One configured database, and connecting to it by libpq (psycopg.pq), host by host.

libpq's own waiting is not used: it resolves names without a timeout and counts whole seconds. Each
host gets its share of the time that is left, so that a dead one does not use up all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from incumbent import clock
from incumbent.errors import ConfigError, StoreUnavailable
from incumbent.stores.postgresql.errors import connect_error
from incumbent.stores.postgresql.url import MALFORMED, PostgresOptions, shown_login
from incumbent.stores.postgresql.waiting import Side

try:
    import psycopg
    from psycopg import conninfo as _conninfo
    from psycopg import pq
except ImportError as error:
    raise ConfigError(
        "this store needs psycopg: pip install 'incumbent[postgresql]'", name="store"
    ) from error

__all__ = [
    "DriverError",
    "Site",
    "Target",
    "connect",
    "pq",
    "site_of_object",
    "site_of_options",
]

DriverError = psycopg.Error
_ALWAYS: Final = {
    "target_session_attrs": "read-write",
    "client_encoding": "UTF8",
    "fallback_application_name": "incumbent",
}
_SECRET: Final = ("password", "sslpassword", "scram_client_key", "oauth_client_secret")
_LONGEST: Final = 3600.0
_READING: Final = pq.PollingStatus.READING
_OK: Final = pq.PollingStatus.OK
_FAILED: Final = pq.PollingStatus.FAILED
_BAD: Final = pq.ConnStatus.BAD

_now = clock.now


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
        given = {**self.parameters, **{name: value for name, value in where.items() if value}}
        return _conninfo.make_conninfo("", **given).encode()

    def clean(self, text: str) -> str:
        """`text` without what must never be shown, on one line."""
        for name in _SECRET:
            secret = self.parameters.get(name)
            if secret:
                text = text.replace(secret, "***")
        return " ".join(text.split())


def site_of_options(options: PostgresOptions) -> Site:
    """From a URL. Raises ConfigError for what libpq does not understand."""
    try:
        parameters = _conninfo.conninfo_to_dict(options.conninfo)
    except DriverError as error:
        raise ConfigError(_not_understood(str(error)), name="store") from None
    return _site_of(parameters, options.shown, options.restart_wait)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 65536


def _not_understood(message: str) -> str:
    # libpq quotes what it could not read, which may be a piece of a password.
    start = "invalid URI query parameter: "
    if not message.startswith(start):
        return MALFORMED
    name = message.removeprefix(start).strip().strip('"')[:40]
    return f"option {name} is neither libpq's nor ours (restart_wait)"


def _site_of(parameters: Mapping[str, Any], where: str, restart_wait: float | None) -> Site:
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
    return Site({**given, **_ALWAYS}, targets, where, restart_wait)


# -- pools of the user's own ----------------------------------------------------------------------

_NOT_LIBPQ: Final = (
    *("autocommit", "prepare_threshold", "row_factory", "cursor_factory", "context"),
    *("target_session_attrs", "client_encoding"),
)
_SQLALCHEMY: Final = {"database": "dbname", "username": "user"}


def site_of_object(given: Any, restart_wait: float | None) -> Site:
    """From a pool of psycopg_pool or an engine of SQLAlchemy. Raises ConfigError."""
    parameters = _of_pool(given) if hasattr(given, "conninfo") else _of_sqlalchemy(given)
    return _site_of(parameters, _shown(parameters), restart_wait)


def _of_pool(pool: Any) -> dict[str, Any]:
    conninfo, more = pool.conninfo, pool.kwargs or {}
    if not isinstance(conninfo, str) or not isinstance(more, dict):
        raise ConfigError(
            f"a {type(pool).__name__} whose address is computed: give a URL", name="store"
        )
    known = {name: value for name, value in more.items() if name not in _NOT_LIBPQ}
    return dict(_conninfo.conninfo_to_dict(conninfo, **known))


def _of_sqlalchemy(engine: Any) -> dict[str, Any]:
    url = getattr(engine, "url", None)
    if url is None or getattr(engine.dialect, "name", "") != "postgresql":
        raise ConfigError(
            f"a {type(engine).__name__} object: give a psycopg_pool.ConnectionPool or"
            " AsyncConnectionPool, or an Engine or AsyncEngine of SQLAlchemy for postgresql",
            name="store",
        )
    _, arguments = engine.dialect.create_connect_args(url)
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    known.difference_update(_NOT_LIBPQ)
    named = {_SQLALCHEMY.get(name, name): value for name, value in arguments.items()}
    return {name: value for name, value in named.items() if name in known}


def _shown(parameters: dict[str, Any]) -> str:
    login = shown_login(parameters.get("user") or "", parameters.get("password"))
    hosts = str(parameters.get("host") or "").split(",")
    ports = str(parameters.get("port") or "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    where = ",".join(
        f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False)
    )
    return f"postgresql://{login}{where}/{parameters.get('dbname') or ''}"


# -- connecting ----------------------------------------------------------------------------------


class _Failed(Exception):
    """One host, or one of its addresses, gave no connection."""


async def connect(site: Site, side: Side, until: float) -> Any:
    """A connection of libpq that is logged in to a server which can write.

    Raises StoreUnavailable, at `until` (an instant of clock.now) at the latest.
    """
    until = min(until, _now() + _LONGEST)
    failures = []
    left = len(site.targets)
    for place, target in list(site.in_order()):
        now = _now()
        if now >= until:
            break
        try:
            connection = await _connect_host(site, side, target, now + (until - now) / left)
        except _Failed as failure:
            failures.append(str(failure))
        else:
            site.best = place
            return connection
        left -= 1
    raise _unavailable(site, failures)


async def _connect_host(site: Site, side: Side, target: Target, until: float) -> Any:
    try:
        addresses = await _addresses(side, target, until)
    except OSError as error:
        why = "no answer in time" if isinstance(error, TimeoutError) else str(error)
        raise _Failed(f"the host name {target.host} cannot be resolved: {why}") from error
    failure = _Failed(f"the host name {target.host} has no address")
    for step, address in enumerate(addresses):
        now = _now()
        share = now + (until - now) / (len(addresses) - step)
        try:
            return await _attempt(site, side, site.conninfo(target, address), share)
        except _Failed as error:
            failure = error
    raise failure


async def _addresses(side: Side, target: Target, until: float) -> Sequence[str]:
    host = target.host
    if target.hostaddr or not host or host.startswith(("/", "@")):
        return [target.hostaddr]
    return await side.resolve(host, target.port or "5432", until)


async def _attempt(site: Site, side: Side, conninfo: bytes, until: float) -> Any:
    try:
        connection = pq.PGconn.connect_start(conninfo)
    except DriverError as error:
        raise _Failed(site.clean(str(error))) from error
    try:
        await _log_in(site, side, connection, until)
    except BaseException:
        connection.finish()
        raise
    return connection


async def _log_in(site: Site, side: Side, connection: Any, until: float) -> None:
    while True:
        status = _FAILED if connection.status == _BAD else connection.connect_poll()
        if status == _OK:
            return
        if status == _FAILED:
            raise _Failed(site.clean(connection.get_error_message()))
        if not await side.ready(connection.socket, until, writing=status != _READING):
            raise _Failed("no connection in time")


def _unavailable(site: Site, failures: list[str]) -> StoreUnavailable:
    late = not failures
    errors = [connect_error(each, site.where, proved=site.proved, late=late) for each in failures]
    if len(errors) == 1:
        return errors[0]
    both = connect_error(" | ".join(failures), site.where, proved=site.proved, late=late)
    # Of several hosts one may come back: only what all of them say is final.
    both.permanent = bool(errors) and all(error.permanent for error in errors)
    return both
