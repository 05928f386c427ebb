"""A configured server, and what it means that it cannot be connected to."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.net.names import is_unknown
from incumbent.stores.redis.options import RedisOptions, Target

MARKER_KEY: Final = "incumbent:{incumbent}:server"


class Marker(NamedTuple):
    """Where the marker is: one key, or in a cluster copies in several slots of the node.

    `settle`: seconds for which a master before a promoted one may have gone on unseen.
    """

    keys: tuple[str, ...] = (MARKER_KEY,)
    settle: float = 0.0


MARKED: Final = Marker()


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


def site_of(options: RedisOptions) -> Site:
    """The server that options name."""
    return Site(options.target, options.shown, options.restart_wait, options.allow_eviction)


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
