"""One configured database, and connecting to it by libpq (psycopg.pq), host by host.

libpq's own waiting is not used: it resolves names without a timeout and counts whole seconds. Each
host gets its share of the time that is left, so that a dead one does not use up all of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from incumbent import clock
from incumbent.errors import ConfigError, StoreUnavailable
from incumbent.net.dial import wait_ready
from incumbent.net.names import is_unknown, resolve
from incumbent.net.readers import LockWakeup, Wakeup
from incumbent.stores.postgresql.errors import connect_error
from incumbent.stores.postgresql.url import MALFORMED
from incumbent.stores.url import shown_login

try:
    import psycopg
    from psycopg import conninfo as _conninfo
    from psycopg import pq as pq  # noqa: PLC0414 - given on to `wire`
except ImportError as error:
    raise ConfigError(
        "this store needs psycopg: pip install 'psycopg[binary]>=3.2.2' (the extra postgresql)",
        name="store",
    ) from error

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


class Target(NamedTuple):
    """One host of the list. `hostaddr` is set where its name need not be resolved."""

    host: str
    port: str
    hostaddr: str = ""


@dataclass(slots=True)
class Site:
    """One configured database; of its `targets` the one that served last comes first.

    `proved`: it has served this process before; `direct`: no pooler stands between (None: not known
    yet).
    """

    parameters: Mapping[str, str] = field(repr=False)
    targets: tuple[Target, ...]
    where: str
    restart_wait: float | None = None
    proved: bool = False
    direct: bool | None = None

    def prefer(self, target: Target) -> None:
        """Ask this host first from now on."""
        self.targets = (target, *(other for other in self.targets if other is not target))

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


def site_of_url(conninfo: str, restart_wait: float | None, password: str | None = None) -> Site:
    """From a URL; `password` replaces the one in it.

    Raises ConfigError for what libpq does not understand.
    """
    try:
        parameters = _conninfo.conninfo_to_dict(conninfo)
    except DriverError as error:
        raise ConfigError(_not_understood(str(error)), name="store") from None
    if password:
        parameters["password"] = password
    return _site_of(parameters, restart_wait)


def _not_understood(message: str) -> str:
    # libpq quotes what it could not read, which may be a piece of a password.
    start = "invalid URI query parameter: "
    if not message.startswith(start):
        return MALFORMED
    name = message.removeprefix(start).strip().strip('"')[:40]
    return f"option {name} is neither libpq's nor ours (restart_wait)"


def _site_of(parameters: Mapping[str, Any], restart_wait: float | None) -> Site:
    given = {name: str(value) for name, value in parameters.items() if value is not None}
    where = _shown(given)
    given.pop("connect_timeout", None)  # ours is the caller's deadline
    defaults = {option.keyword: option.val or b"" for option in pq.Conninfo.get_defaults()}
    hosts, ports, addresses = (
        given.pop(name, defaults.get(name.encode(), b"").decode()).split(",")
        for name in ("host", "port", "hostaddr")
    )
    lists = hosts, ports, addresses
    if any(port and not _is_port(port) for port in ports):
        raise ConfigError("a port is not a number from 1 to 65535", name="store")
    count = max(len(hosts), len(addresses))
    if any(len(each) not in (1, count) for each in lists):
        raise ConfigError("the lists of hosts and ports differ in length", name="store")
    # One value is that of all hosts.
    spread = (each * (count // len(each)) for each in lists)
    return Site({**given, **_ALWAYS}, tuple(map(Target, *spread)), where, restart_wait)


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 65536


def _shown(given: Mapping[str, str]) -> str:
    """The URL as people see it."""
    hosts = [
        f"[{host}]" if ":" in host else quote(host, safe="")
        for host in given.get("host", "").split(",")
    ]
    ports = given.get("port", "").split(",")
    ports *= len(hosts) // len(ports)
    places = [f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False)]
    login, database = shown_login(given.get("user"), given.get("password")), given.get("dbname")
    return f"postgresql://{login}{','.join(places)}{f'/{database}' if database else ''}"


# -- pools of the user's own ----------------------------------------------------------------------

_NOT_LIBPQ: Final = (
    *("autocommit", "prepare_threshold", "row_factory", "cursor_factory", "context"),
    *("target_session_attrs", "client_encoding"),
)
_SQLALCHEMY: Final = {"database": "dbname", "username": "user"}


def site_of_object(given: Any, restart_wait: float | None) -> Site:
    """From a pool of psycopg_pool or an engine of SQLAlchemy. Raises ConfigError."""
    parameters = _of_pool(given) if hasattr(given, "conninfo") else _of_sqlalchemy(given)
    return _site_of(parameters, restart_wait)


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


# -- connecting ----------------------------------------------------------------------------------


class Side:
    """How to wait, until an instant of clock.now. These block; those of `aio` suspend."""

    wakeup: Callable[[], Wakeup] = LockWakeup

    async def ready(self, fd: int, until: float, *, writing: bool = False) -> bool:
        """Wait for a descriptor; whether it became ready before `until`."""
        return wait_ready(fd, until, writing=writing)

    async def resolve(self, host: str, port: str, until: float) -> Sequence[str]:
        """The host's addresses. Raises OSError, and TimeoutError at `until`."""
        return resolve(host, port, until)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - blocking is what this side is for


class _Failed(Exception):
    """One host, or one of its addresses, gave no connection. `final`: nor will it ever."""

    def __init__(self, why: str, *, final: bool = False) -> None:
        super().__init__(why)
        self.final = final


async def connect(site: Site, side: Side, until: float) -> Any:
    """A connection of libpq that is logged in to a server which can write.

    Raises StoreUnavailable, at `until` (an instant of clock.now) at the latest.
    """
    until = min(until, _now() + _LONGEST)
    failures: list[_Failed] = []
    left = len(site.targets)
    for target in site.targets:
        now = _now()
        if now >= until:
            break
        try:
            connection = await _connect_host(site, side, target, now + (until - now) / left)
        except _Failed as failure:
            failures.append(failure)
        else:
            site.prefer(target)
            return connection
        left -= 1
    raise _unavailable(site, failures)


async def _connect_host(site: Site, side: Side, target: Target, until: float) -> Any:
    try:
        addresses = await _addresses(side, target, until)
    except OSError as error:
        why = "no answer in time" if isinstance(error, TimeoutError) else str(error)
        text = f"the host name {target.host} cannot be resolved: {why}"
        raise _Failed(text, final=is_unknown(error)) from error
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


def _unavailable(site: Site, failures: list[_Failed]) -> StoreUnavailable:
    late = not failures
    errors = [connect_error(str(each), site.where, proved=site.proved) for each in failures]
    for error, failure in zip(errors, failures, strict=True):
        error.permanent = error.permanent or (failure.final and not site.proved)
    if len(errors) == 1:
        return errors[0]
    words = " | ".join(map(str, failures))
    both = connect_error(words, site.where, proved=site.proved, late=late)
    # Of several hosts one may come back: only what all of them say is final.
    both.permanent = bool(errors) and all(error.permanent for error in errors)
    return both
