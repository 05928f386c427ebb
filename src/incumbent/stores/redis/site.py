"""One configured server: its address, what its requests share, and what its refusals mean.

The rule of the table of refusals: an answer that begins with one of its words was given *instead
of* carrying out the request. After any other error, the request may have been carried out.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import hiredis

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.interrupts import raise_if_from_signal
from incumbent.model import Key
from incumbent.net.dial import is_unknown
from incumbent.net.pool import Broken, Mismatch
from incumbent.stores.redis.options import RedisOptions, RedisTarget
from incumbent.stores.redis.records import Naming

MARKER_KEY: Final = "incumbent:{incumbent}:server"
QUORUM_KEY: Final = "incumbent:{quorum}:m"
"""The key of the marker of a member of a quorum; it and MARKER_KEY refuse each other."""


@dataclass(slots=True)
class RedisSite:
    """One configured server, and what this process has learned of it.

    `served`: it has served this process before. `named`: the user named its host, not another
    server. `marker_keys`: the key of its marker, or in a cluster those of its copies in several
    slots of the node. `old_master_for`: seconds for which an old master may still be in use after a
    promotion. `sighted`: the incarnation that this process saw last, and when it saw it first.
    `meant`: the target that the sentinels named, and until when requests may be sent there; None:
    `target`, whatever it is.
    """

    target: RedisTarget
    where: str
    restart_wait: float | None = None
    allow_eviction: bool = False
    served: bool = False
    named: bool = True
    marker_keys: tuple[str, ...] = (MARKER_KEY,)
    old_master_for: float = 0.0
    sighted: tuple[str, float] = ("", 0.0)
    meant: tuple[object, float] = (None, inf)

    def means(self, target: object) -> bool:
        """Whether a request may be sent to `target` now."""
        # `meant` is one value: of two threads with different answers, one may set `target` last,
        # and the other the instant, which would then count for a server that it was not told.
        named, until = self.meant
        named_here = named is None or named is target
        return clock.now() < until and named_here and target is self.target


def site_of(options: RedisOptions) -> RedisSite:
    """The server that the options name."""
    return RedisSite(options.target, options.shown, options.restart_wait, options.allow_eviction)


class Packer:
    """How requests to one server, which `where` names in messages, are packed.

    It has the names of keys, the inbox for messages to this process's waiters, and for each key the
    bytes that were packed for it. They are sent again: only the claim and the time change.
    """

    def __init__(self, naming: Naming, where: str) -> None:
        self.naming = naming
        self.where = where
        self.inbox = os.urandom(6).hex()
        self.takes: dict[tuple[Key, int], Any] = {}
        """See take.take_request."""
        self.gives: dict[tuple[Key, bool], tuple[bytes, bytes]] = {}
        """See give.give_request."""

    @property
    def inbox_channel(self) -> str:
        """The channel of the inbox, as line.lua names it."""
        return f"incumbent:to:{self.inbox}"

    def detach(self) -> None:
        """In a fork's child: use another inbox, because the parent's messages are not for it."""
        self.inbox = os.urandom(6).hex()
        self.takes.clear()

    def unusable(self, reply: Any, key: Key | None = None) -> Exception:
        """The exception for a reply that does not fit the request."""
        if isinstance(reply, hiredis.ReplyError):
            return answered_error(str(reply), self.where, self.naming.of(key).lease if key else "")
        return Mismatch(f"an answer of type {type(reply).__name__} was not expected")


# -- what it answers instead of carrying a request out ---------------------------------------------


class Outdated(Broken):
    """The connection's facts about its server are outdated; certainly nothing was done."""

    def __init__(self, why: str) -> None:
        super().__init__(why, sent=False)


class TooLate(Outdated):
    """A take reached the server after its deadline; certainly nothing was done."""


class Demoted(StoreUnavailable):
    """The server is no longer a master: its clients must find another."""


class Moved(StoreUnavailable):
    """Another node of the cluster has the key: `address`, or "" if none was named.

    `ask`: go there for this one request only, because the key is being moved there.
    """

    def __init__(
        self, message: str = "", *, address: str = "", ask: bool = False, **about: Any
    ) -> None:
        super().__init__(message, **about)
        self.address = address
        self.ask = ask


_REFUSED: Final[dict[str, tuple[str, float | None]]] = {
    "LOADING": ("it is loading its data", 0.5),
    "MASTERDOWN": ("it is a replica that has lost its master", 1.0),
    "CLUSTERDOWN": ("its cluster is down", 1.0),
    "READONLY": ("it is a replica, which cannot grant leases: use the address of the master", 1.0),
    "BUSY": ("it is busy with another client's script", 0.5),
    "OOM": ("it is out of memory: raise its maxmemory, or remove data", 1.0),
    "MISCONF": ("it cannot write to its disk and refuses changes", 1.0),
    "NOREPLICAS": ("it has too few replicas to accept changes (min-replicas-to-write)", 1.0),
    "MOVED": ("it is part of a cluster: write redis+cluster://; another node has the key", None),
    "ASK": ("it is part of a cluster, and the key is moving to another node", 0.1),
    "TRYAGAIN": ("it is part of a cluster, and the key is moving to another node", 0.1),
    "CROSSSLOT": ("it is part of a cluster, and the keys do not share a slot", None),
    "NOAUTH": ("it wants a password", None),
    "WRONGPASS": ("it refuses the user name or the password", None),
    "NOPERM": ("this user may not do that (see the ACL rule in the documentation)", None),
    "WRONGTYPE": ("somebody keeps another type of value there; it was left alone", None),
    "DENIED": ("it runs in protected mode", None),
    "max clients": ("it has no connection left for us: raise its maxclients", 1.0),
    "no command": ("it lacks a command that leases need: see the versions in the docs", None),
}
_ERR: Final = {"ERR max number of clients": "max clients", "ERR unknown command": "no command"}
"""Refusals without an error code of their own."""
_FINAL_AT_FIRST: Final = frozenset(
    {"NOAUTH", "WRONGPASS", "NOPERM", "DENIED", "MOVED", "CROSSSLOT", "no command"}
)


def answered_error(text: str, where: str, key: str = "", *, served: bool = True) -> StoreError:
    """The exception for an error that the server answered.

    `served`: this server has served us before, so even a wrong password may be temporary
    (a failover, a rotation).
    """
    code = _code(text)
    if code == "NOSCRIPT":
        return StoreUnavailable(f"{where} has forgotten a script that it was just sent")
    if code not in _REFUSED:
        return OutcomeUnknown(f"{where} answered {text!r}; perhaps the request was carried out")
    why, after = _REFUSED[code]
    if code in ("MOVED", "ASK"):
        return _moved(text, f"{where} refused the request: {why} ({code})", after, served=served)
    at = f" at the key {key}" if key and code in ("WRONGTYPE", "NOPERM") else ""
    # If the user may run one command of a script but not the next, the script stops halfway.
    halfway = code == "NOPERM" and ("user_script" in text or "user_function" in text)
    kind: type[StoreError] = OutcomeUnknown if halfway else StoreUnavailable
    if code in ("READONLY", "MASTERDOWN"):
        kind = Demoted
    return kind(
        f"{where} refused the request{at}: {why} ({code})",
        permanent=code == "WRONGTYPE" or (code in _FINAL_AT_FIRST and not served),
        retry_after=after,
    )


def _moved(text: str, message: str, after: float | None, *, served: bool) -> Moved:
    found = re.match(r"(MOVED|ASK) \d+ (\S*:\d+)", text)
    return Moved(
        message,
        address=found[2] if found else "",
        ask=text.startswith("ASK"),
        permanent=text.startswith("MOVED") and not served,
        retry_after=after,
    )


def _code(text: str) -> str:
    code = text.split(" ", 1)[0]
    if code == "ERR":
        for start, name in _ERR.items():
            if text.startswith(start):
                return name
    if code == "ERR" and "user_script" in text:
        # Before Redis 7, the error of a script has the code after other words.
        return next((word for word in _REFUSED if f" {word} " in text), code)
    return code


# -- what keeps a connection to it from being made ------------------------------------------------


class LoginRefused(Exception):
    """The server replied with an error to a request of the log-in."""


class ProviderFailed(Exception):
    """The user's provider of credentials raised an error, which may be any Exception."""

    def __init__(self, error: Exception) -> None:
        raise_if_from_signal(error)
        super().__init__(str(error) or type(error).__name__)


_WRONG_LOGIN: Final = (
    *("WRONGPASS ", "NOAUTH ", "NOPERM ", "ERR invalid password"),
    *("ERR AUTH <password> called without", "ERR Client sent AUTH"),
)
_WRONG_DATABASE: Final = (
    *("ERR DB index is out of range", "ERR invalid DB index"),
    "ERR SELECT is not allowed in cluster mode",
)
_ALERTS: Final = ("ALERT_CERTIFICATE_", "ALERT_BAD_CERTIFICATE", "ALERT_UNKNOWN_CA")
"""TLS alerts of a server that does not accept our certificate, or wants one."""


def connect_error(error: BaseException, site: RedisSite) -> StoreUnavailable:
    """The exception for a connection that could not be made: nothing was sent on it."""
    text = str(error) or type(error).__name__
    what, final = "cannot be reached", _is_bad_certificate(error)
    if isinstance(error, LoginRefused) and text.startswith(_WRONG_LOGIN):
        what, final = "refuses the login", True
    elif isinstance(error, LoginRefused) and text.startswith(_WRONG_DATABASE):
        what, final = f"has no database {site.target.db} for us", True
    elif site.target.tls and isinstance(error, OSError) and error.filename:
        # Of ours: the file with a certificate. Only a replaced one may come back.
        final = True
    elif is_unknown(error) and site.named:
        what, final, text = "cannot be reached", True, f"there is no host {site.target.host!r}"
    for secret in site.target.secrets:
        text = text.replace(secret, "***")
    return StoreUnavailable(f"{site.where} {what}: {text}", permanent=final and not site.served)


def _is_bad_certificate(error: BaseException | None) -> bool:
    while error is not None:
        reason = str(getattr(error, "reason", ""))
        if type(error).__name__ == "SSLCertVerificationError":
            return True
        if any(alert in reason for alert in _ALERTS):
            return True
        error = error.__cause__ or error.__context__
    return False
