"""A configured server: where it is, how its certificate is checked, how to log in there."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any, Final

from incumbent import clock
from incumbent.errors import ConfigError, StoreUnavailable
from incumbent.net.names import is_unknown
from incumbent.stores.redis.hosts import Address
from incumbent.stores.redis.incarnation import MARKED, Marker
from incumbent.stores.redis.options import RedisOptions

if TYPE_CHECKING:
    import ssl

try:
    import hiredis as _hiredis
except ImportError as error:
    raise ConfigError(
        "this store needs hiredis: pip install 'hiredis>=3.0' (the extra redis)", name="store"
    ) from error

_ = _hiredis.Reader


@dataclass(frozen=True, slots=True)
class Tls:
    """How the server's certificate is checked, and which one is shown to it.

    The fields are the options of redis-py without their `ssl_`, and mean the same.
    """

    ca_certs: str | None = None
    ca_path: str | None = None
    ca_data: str | bytes | None = None
    certfile: str | None = None
    keyfile: str | None = None
    password: str | None = field(default=None, repr=False)
    cert_reqs: Any = "required"
    check_hostname: bool = True
    include_verify_flags: tuple[int, ...] = ()
    exclude_verify_flags: tuple[int, ...] = ()
    min_version: int | None = None
    ciphers: str | None = None

    def context(self) -> ssl.SSLContext:
        """The same one until a file is replaced: to make one takes 30 ms. Raises OSError."""
        files = (self.ca_certs, self.ca_path, self.certfile, self.keyfile)
        return _context(self, tuple(_state(path) for path in files if path))


def _state(path: str) -> tuple[int, ...]:
    found = os.stat(path)  # noqa: PTH116 - pathlib costs start-up time
    return found.st_ino, found.st_size, found.st_mtime_ns


@lru_cache(maxsize=8)
def _context(tls: Tls, _: tuple[tuple[int, ...], ...]) -> ssl.SSLContext:
    import ssl

    context = ssl.create_default_context()
    required = tls.cert_reqs
    if isinstance(required, str):
        required = ssl.VerifyMode[f"CERT_{required.upper()}"]
    # In this order: a context that checks the name requires a certificate.
    context.check_hostname = tls.check_hostname and required != ssl.CERT_NONE
    context.verify_mode = required
    for flag in tls.include_verify_flags:
        context.verify_flags |= flag
    for flag in tls.exclude_verify_flags:
        context.verify_flags &= ~flag
    if tls.certfile or tls.keyfile:
        context.load_cert_chain(tls.certfile or "", tls.keyfile, tls.password)
    if tls.ca_certs or tls.ca_path or tls.ca_data:
        context.load_verify_locations(tls.ca_certs, tls.ca_path, tls.ca_data)
    if tls.min_version is not None:
        context.minimum_version = ssl.TLSVersion(tls.min_version)
    if tls.ciphers:
        context.set_ciphers(tls.ciphers)
    return context


@dataclass(frozen=True, slots=True)
class Target:
    """Where a server is, and how to log in. `path` is that of a unix socket, in place of a host.

    `credentials`: a CredentialProvider of redis-py, which is asked at each connection. `term`: of
    which promotion it is the master, as sentinels count them; None if nobody asked them.
    """

    host: str = "localhost"
    port: int = 6379
    path: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    credentials: Any = field(default=None, repr=False)
    tls: Tls | None = None
    term: int | None = None

    @property
    def login(self) -> tuple[str, ...]:
        """The arguments of AUTH, without a provider's; none if nobody logs in."""
        if self.username:
            return self.username, self.password or ""
        return (self.password,) if self.password else ()

    @property
    def secrets(self) -> tuple[str, ...]:
        """What must never be shown."""
        found = (self.password, self.tls.password if self.tls else None)
        return tuple(secret for secret in found if secret and isinstance(secret, str))


@dataclass(slots=True)
class Site:
    """One configured server. `proved`: it has served this process before.

    `named`: its host is the user's word, and not another server's. `sighted`: the incarnation that
    this process saw last, and when it saw it first. `meant_until`: the instant from which `target`
    may no longer be the server that is meant.
    """

    target: Target
    where: str
    restart_wait: float | None = None
    allow_eviction: bool = False
    proved: bool = False
    named: bool = True
    marker: Marker = MARKED
    sighted: tuple[str, float] = ("", 0.0)
    meant_until: float = inf

    def means(self, target: object) -> bool:
        """Whether a request may be sent there now."""
        # In this order: another thread that learns of another server sets the target first.
        return clock.now() < self.meant_until and target is self.target


class LoginRefused(Exception):
    """The server replied with an error to a request of the log-in."""


_WRONG_LOGIN: Final = (
    *("WRONGPASS ", "NOAUTH ", "NOPERM ", "ERR invalid password"),
    *("ERR AUTH <password> called without", "ERR Client sent AUTH"),
)
_WRONG_DATABASE: Final = (
    *("ERR DB index is out of range", "ERR invalid DB index"),
    "ERR SELECT is not allowed in cluster mode",
)
_ALERTS: Final = ("ALERT_CERTIFICATE_", "ALERT_BAD_CERTIFICATE", "ALERT_UNKNOWN_CA")
"""Alerts of a server that does not accept our certificate, or wants one."""


def connect_error(error: BaseException, site: Site) -> StoreUnavailable:
    """The exception for a connection that could not be made: nothing was sent on it."""
    text = str(error) or type(error).__name__
    what, final = "cannot be reached", _is_bad_certificate(error)
    if isinstance(error, LoginRefused) and text.startswith(_WRONG_LOGIN):
        what, final = "refuses the login", True
    elif isinstance(error, LoginRefused) and text.startswith(_WRONG_DATABASE):
        what, final = f"has no database {site.target.db} for us", True
    elif is_unknown(error) and site.named:
        what, final, text = "cannot be reached", True, f"there is no host {site.target.host!r}"
    for secret in site.target.secrets:
        text = text.replace(secret, "***")
    return StoreUnavailable(f"{site.where} {what}: {text}", permanent=final and not site.proved)


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
    files: dict[str, Any] = {name.removeprefix("ssl_"): path for name, path in options.files}
    return Target(
        host=options.host,
        port=options.port,
        path=options.path,
        db=options.db,
        username=options.username,
        password=options.password,
        tls=Tls(**files) if options.transport == "tls" else None,
    )


def site_of_options(options: RedisOptions) -> Site:
    """From a URL."""
    return Site(
        target_of_options(options), options.shown, options.restart_wait, options.allow_eviction
    )


def target_at(target: Target, address: Address) -> Target:
    """The same at another address."""
    return replace(target, host=address[0], port=address[1])
