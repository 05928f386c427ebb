"""The one place that knows redis-py: it makes and authenticates connections, and nothing else.

Its own retries, health checks and client metadata are off: they would outlive our deadlines
(redis-py turned a timeout of 1 s into 14.7 s) or cost round trips.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, replace
from typing import Any, Final

from incumbent.errors import ConfigError, StoreUnavailable
from incumbent.stores.redis.hosts import Address
from incumbent.stores.redis.incarnation import MARKED, Marker
from incumbent.stores.redis.options import RedisOptions

__all__ = [
    "Site",
    "Target",
    "async_arguments",
    "async_connection_class",
    "blocking_connection",
    "connect_error",
    "site_of_options",
    "target_at",
    "target_of_options",
]

_MISSING: Final = "this store needs redis-py and hiredis: pip install 'incumbent[redis]'"

try:
    import hiredis as _hiredis
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry
except ImportError as error:
    raise ConfigError(_MISSING, name="store") from error

_ = _hiredis.Reader

_OURS: Final = {"health_check_interval": 0, "protocol": 2, "client_name": "incumbent"}


@dataclass(frozen=True, slots=True)
class Target:
    """A server and how to log in. A class is given where the user's own client names one."""

    transport: str
    arguments: dict[str, Any] = field(repr=False)
    blocking_class: Any = None
    async_class: Any = None

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must never be shown."""
        return tuple(
            text for name in ("password", "ssl_password") if (text := self.arguments.get(name))
        )


@dataclass(slots=True)
class Site:
    """One configured server. `proved`: it has served this process before.

    `sighted`: the incarnation that this process saw last, and when it saw it first.
    """

    target: Target
    where: str
    restart_wait: float | None = None
    allow_eviction: bool = False
    proved: bool = False
    marker: Marker = MARKED
    sighted: tuple[str, float] = ("", 0.0)


def connect_error(error: BaseException, site: Site) -> StoreUnavailable:
    """The exception for a connection that could not be made: nothing was sent on it."""
    text = str(error) or type(error).__name__
    for secret in site.target.secrets:
        text = text.replace(secret, "***")
    refused = isinstance(error, redis.AuthenticationError | redis.exceptions.NoPermissionError)
    final = (refused or _is_bad_certificate(error)) and not site.proved
    return StoreUnavailable(f"{site.where} cannot be reached: {text}", permanent=final)


_ALERTS: Final = ("ALERT_CERTIFICATE_", "ALERT_BAD_CERTIFICATE", "ALERT_UNKNOWN_CA")
"""What a server says that does not accept our certificate, or wants one."""


def _is_bad_certificate(error: BaseException | None) -> bool:
    while error is not None:
        reason = str(getattr(error, "reason", ""))
        if type(error).__name__ == "SSLCertVerificationError":
            return True
        if any(alert in reason for alert in _ALERTS):
            return True
        error = error.__cause__ or error.__context__
    return False


def target_of_options(options: RedisOptions) -> Target:
    """From a URL."""
    arguments: dict[str, Any] = {"db": options.db}
    if options.transport == "unix":
        arguments["path"] = options.path
    else:
        arguments |= {"host": options.host, "port": options.port}
    if options.username:
        arguments["username"] = options.username
    if options.password:
        arguments["password"] = options.password
    if options.transport == "tls":
        # Said again although it is the default of today: older releases did not check the name.
        arguments |= {"ssl_cert_reqs": "required", "ssl_check_hostname": True}
        arguments |= dict(options.files)
    return Target(options.transport, arguments)


def site_of_options(options: RedisOptions) -> Site:
    """From a URL."""
    return Site(
        target_of_options(options), options.shown, options.restart_wait, options.allow_eviction
    )


def target_at(
    target: Target, address: Address, *, username: str | None = "", password: str | None = ""
) -> Target:
    """The same at another address; with another login, or none, if one is given."""
    host, port = address
    arguments = target.arguments | {"host": host, "port": port}
    for name, value in (("username", username), ("password", password)):
        if value:
            arguments[name] = value
        elif value is None:
            arguments.pop(name, None)
    return replace(target, arguments=arguments)


_CLASSES: Final = {
    "tls": "SSLConnection",
    "unix": "UnixDomainSocketConnection",
    "tcp": "Connection",
}


def blocking_connection(target: Target, timeout: float) -> Any:
    """A redis-py connection, not connected yet; each of its steps takes `timeout` at most."""
    made_by = target.blocking_class or getattr(redis, _CLASSES[target.transport])
    return made_by(**_arguments(target, made_by, timeout))


def async_connection_class(target: Target) -> Any:
    """The class that connects on asyncio."""
    from redis.asyncio import connection

    return target.async_class or getattr(connection, _CLASSES[target.transport])


def async_arguments(target: Target, made_by: Any, timeout: float) -> dict[str, Any]:
    """What that class is called with."""
    return _arguments(target, made_by, timeout)


def _arguments(target: Target, made_by: Any, timeout: float) -> dict[str, Any]:
    known: set[str] = set()
    for base in made_by.__mro__[:-1]:
        known |= set(inspect.signature(base.__init__).parameters)
    silent = {"driver_info": None} if "driver_info" in known else _SILENT_BEFORE_8
    ours = {
        **_OURS,
        **silent,
        "socket_timeout": timeout,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
    }
    # The other side's class may not know every argument of the user's own.
    return {name: value for name, value in (target.arguments | ours).items() if name in known}


_SILENT_BEFORE_8: Final = {"lib_name": None, "lib_version": None}
