"""One configured cluster: its URL, its members, and the meaning of their errors.

The rule for `_REFUSALS`: a reply that contains one of these phrases was given *instead of* carrying
out the request (checked against etcd 3.4). After any other error, the outcome is unknown.
"""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from incumbent.errors import ConfigError, OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.interrupts import raise_if_from_signal
from incumbent.net.dial import is_unknown
from incumbent.stores.members import Members
from incumbent.stores.url import (
    Endpoint,
    parse_hosts,
    parse_options,
    parse_restart_wait,
    shown_login,
    wrong_option,
)

_PREFIX: Final = re.compile(r"(/[A-Za-z0-9._:@-]+)+", re.ASCII)
_CAUSES_MAX: Final = 10
_NO_COMMON_NAME: Final = (
    "; etcd's gateway takes no user from a client certificate, and refuses one with a common"
    " name (CN) where authentication is on: use a certificate without, and user:password@"
)


# -- the URL --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EtcdOptions:
    """The addresses and options of a cluster. `restart_wait`: seconds; None means one ttl."""

    endpoints: tuple[Endpoint, ...]
    prefix: str = "/incumbent"
    tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    restart_wait: float | None = None

    @property
    def shown(self) -> str:
        """The URL for messages: without password and options."""
        login = shown_login(self.username, self.password)
        hosts = ",".join(str(endpoint) for endpoint in self.endpoints)
        return f"{'etcds' if self.tls else 'etcd'}://{login}{hosts}{self.prefix}"


def parse_etcd_url(url: str) -> EtcdOptions:
    """Parse `url`. Raises ConfigError, whose message never contains a possible password."""
    # Not by urlsplit: newer versions refuse an IPv6 address that is not the first host.
    scheme, mark, rest = url.partition("://")
    place, _, query = rest.partition("?")
    netloc, _, path = place.partition("/")
    login, _, hosts = netloc.rpartition("@")
    user, _, password = login.partition(":")
    endpoints = parse_hosts(hosts or "localhost", 2379)
    usual = scheme in ("etcd", "etcds") and mark and "#" not in rest
    if not usual or endpoints is None or (password and not user):
        raise ConfigError(
            f"the URL of the store is malformed: write {'etcds' if scheme == 'etcds' else 'etcd'}"
            "://[user:password@]host[:2379][,host...][/prefix] with each host once, and"
            " percent-encode : / ? # [ ] @ , within a user name or password",
            name="store",
        )
    options = parse_options(query, ("ca", "cert", "key", "restart_wait"))
    if scheme != "etcds" and options.keys() & {"ca", "cert", "key"}:
        raise wrong_option("ca, cert, key", "need the scheme etcds://")
    if ("cert" in options) != ("key" in options):
        raise wrong_option("cert", "and key are given together: a client certificate and its key")
    return EtcdOptions(
        endpoints=endpoints,
        prefix=_prefix(path),
        tls=scheme == "etcds",
        username=unquote(user) or None,
        password=unquote(password) or None,
        restart_wait=parse_restart_wait(options.pop("restart_wait", None)),
        **options,
    )


def _prefix(path: str) -> str:
    prefix = f"/{path}".rstrip("/") or "/incumbent"
    if not _PREFIX.fullmatch(prefix):
        # Do not show the path: a password that was not encoded may end up there.
        raise ConfigError(
            "the prefix of the keys (after the hosts) has other characters than"
            " A-Z a-z 0-9 . _ : @ - and single slashes: write etcd://host:2379/my/prefix",
            name="store",
        )
    return prefix


# -- errors ---------------------------------------------------------------------------------------


class LeaseMissing(Exception):
    """The etcd lease that a write names does not exist; nothing was written."""


class LeaseExists(Exception):
    """An etcd lease with that id exists already."""


class OtherIncarnation(StoreUnavailable):
    """The cluster is another incarnation than the request was meant for; it was not sent."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"{where} was restored or put back since it was last asked; nothing was sent"
        )


class GatewayError(Exception):
    """A member replied with an error. `try_another`: another member may succeed."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.stale_token = any(phrase in text for phrase in _STALE_TOKEN)
        self.saw_no_token = "user name is empty" in text
        """Whether the member saw no valid token: a restarted member has forgotten all tokens."""
        self.lease_missing = "requested lease not found" in text
        self.lease_exists = "lease already exists" in text
        self.refusal = next((_REFUSALS[phrase] for phrase in _REFUSALS if phrase in text), None)
        self.not_done = bool(self.refusal or self.stale_token or self.lease_missing)
        """Whether the request was certainly not carried out."""
        self.unsupported = any(phrase in text for phrase in _UNSUPPORTED)
        """Whether the member does not serve such requests, or not to this user."""
        self.try_another = any(phrase in text for phrase in _TRY_ANOTHER)


_STALE_TOKEN: Final = ("invalid auth token", "revision of auth store is old")
_UNSUPPORTED: Final = (
    *("permission denied", "unknown service", "unknown method"),
    *("Not Found", "Not Implemented"),  # A gateway that does not route the call.
)
_TRY_ANOTHER: Final = ("no leader", "leader changed", "timed out", "server stopped", "not healthy")


class _Refusal(NamedTuple):
    """`final`: only an operator can end it; permanent, unless a request has succeeded before."""

    why: str
    retry_after: float | None = None
    final: bool = False


_WRONG_LOGIN: Final = _Refusal("it refuses the user name or the password", final=True)
_REFUSALS: Final = {
    "database space exceeded": _Refusal(
        "its database is full (alarm NOSPACE): compact and defragment it, then"
        " `etcdctl alarm disarm`",
        1.0,
    ),
    "no leader": _Refusal("it has no leader: too few members can reach each other", 0.5),
    "too many requests": _Refusal("it is overloaded", 0.5),
    "user name is empty": _Refusal("it wants a user name and a password", final=True),
    "permission denied": _Refusal(
        "this user may not do that: its role needs readwrite on all keys with the prefix",
        final=True,
    ),
    "authentication failed": _WRONG_LOGIN,
    "user name not found": _WRONG_LOGIN,
    "password is empty": _Refusal("it wants a password", final=True),
    "corrupt": _Refusal("its data is corrupt (alarm CORRUPT): see its log", 1.0),
    "request is too large": _Refusal("the request is larger than it takes"),
    "too many operations": _Refusal("it takes fewer operations a request (--max-txn-ops)"),
    "not capable": _Refusal("it cannot do that in its present version"),
}


def error_text(reply: dict[str, Any]) -> str:
    """The error text in a reply; empty if there is none."""
    error = reply.get("error")
    if isinstance(error, dict):
        error = error.get("message")
    return str(error or "")


def is_refusal_of_certificate(text: str) -> bool:
    """Whether the server refused our certificate in TLS, before it read any request."""
    upper = text.upper()
    return "ALERT" in upper and ("CERTIFICATE" in upper or "UNKNOWN_CA" in upper)


# -- the cluster ----------------------------------------------------------------------------------


def answer_by(now: float, until: float, others: int) -> float:
    """The instant by which a member must answer, so that `others` more get an equal share."""
    return now + (until - now) / (others + 1)


class EtcdSite:
    """One configured cluster.

    `members`: in the order in which they are asked; each change is one assignment. `login_token`:
    of the present log-in. `served`: whether the cluster has served this process before, so that a
    failure may be temporary.
    """

    def __init__(self, options: EtcdOptions) -> None:
        self.options = options
        self.where = options.shown
        self.members = options.endpoints
        names = [str(each) for each in self.members]
        self.health = Members(self.where, names, len(names) // 2 + 1, asks_all=False)
        self.restart_wait = options.restart_wait
        self.tls = _context(options) if options.tls else None
        self.login_token = ""
        self.served = False
        self._unknown: set[str] = set()
        """Members whose host does not exist."""

    @property
    def tries(self) -> int:
        """The tries of a request: each member once; one alone twice, if its connection is dead."""
        return max(2, len(self.members))

    def prefer(self, member: Endpoint) -> None:
        """Ask this member, which answered, first from now on."""
        if self.health.down:
            self.health.note_answered(str(member))
        if self.members[0] is not member:
            self.members = (member, *(each for each in self.members if each != member))

    def avoid(self, member: Endpoint, error: Exception) -> None:
        """Ask this member, which did not answer or could not do it, last from now on."""
        if len(self.members) > 1:
            self.health.note_failed(str(member), error)
        # By equality and in one assignment: another thread may have changed the order meanwhile.
        self.members = (*(each for each in self.members if each != member), member)

    def drop_stale_token(self, error: GatewayError) -> bool:
        """If the token is stale or missing (nothing was carried out), forget it and return True."""
        if error.stale_token or (error.saw_no_token and self.options.username is not None):
            self.login_token = ""
            return True
        return False

    # -- exceptions of the store contract -----------------------------------------------------

    def error_for(self, error: Exception, *, doubt: bool) -> StoreError:
        """The exception for a request without a usable reply. `doubt`: perhaps carried out."""
        if isinstance(error, GatewayError):
            found = self._refused(error)
        elif isinstance(error, StoreError):
            found = error
        elif type(error.__cause__).__name__ == "SSLError" and not doubt:
            found = self.cannot_connect(error.__cause__, self.where)
        else:
            found = self.unreachable(error)
        if not doubt or isinstance(found, OutcomeUnknown):
            return found
        return OutcomeUnknown(
            f"{self.where} gave no usable answer ({error}); perhaps it did what was asked",
            permanent=found.permanent,
            retry_after=found.retry_after,
        )

    def _refused(self, error: GatewayError) -> StoreError:
        if error.refusal is not None:
            why, after, final = error.refusal
            hint = _NO_COMMON_NAME if final and self.options.cert is not None else ""
            return StoreUnavailable(
                f"{self.where} refused the request: {why} ({error.text}){hint}",
                permanent=final and not self.served,
                retry_after=after,
            )
        if error.not_done:
            return StoreUnavailable(f"{self.where} refused the request: {error.text}")
        text = f"{self.where} answered {error.text!r}; perhaps the request was carried out"
        return OutcomeUnknown(text)

    def unreachable(self, error: Exception) -> StoreUnavailable:
        """The exception for a request that failed without any effect."""
        return StoreUnavailable(f"{self.where} cannot be reached: {error}")

    def cannot_connect(self, error: BaseException | None, where: str) -> StoreUnavailable:
        """The exception for a connection that could not be made: nothing was sent on it."""
        text = str(error) or type(error).__name__
        causes = [error]
        while len(causes) < _CAUSES_MAX and (cause := causes[-1]) is not None:
            causes.append(cause.__cause__ or cause.__context__)
        names = {type(cause).__name__ for cause in causes}
        final = "SSLCertVerificationError" in names
        if final:
            text += "; name the authority that signed it: ?ca=/path/ca.pem"
        elif is_refusal_of_certificate(text):
            final = True
            text += "; it wants a client certificate that it trusts: ?cert=...&key=..."
        elif names & {"SSLError", "SSLEOFError", "SSLZeroReturnError"}:
            text += "; is it served over TLS, and does it want a client certificate (cert=, key=)?"
        elif is_unknown(error):
            self._unknown.add(where)
            # One member that exists is enough, so this is final only if none does.
            final = len(self._unknown) >= len(set(self.members))
            text = "there is no such host"
        text = f"{where} cannot be reached: {text}"
        return StoreUnavailable(text, permanent=final and not self.served)

    def no_gateway(self, status: int, body: bytes) -> StoreUnavailable:
        """The exception for a server that speaks HTTP, but not as etcd's gateway does."""
        if b"CommonName" in body:
            why = f" refused the request{_NO_COMMON_NAME}"
        elif status == 404:
            why = (
                ": it serves no JSON gateway at /v3: it is older than etcd 3.4, or was started with"
                " --enable-grpc-gateway=false"
            )
        else:
            why = f": it answered HTTP {status}, which is no etcd gateway: check the address"
        return StoreUnavailable(self.where + why, permanent=not self.served)


def _context(options: EtcdOptions) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.ca)
    except (OSError, ssl.SSLError) as error:
        raise_if_from_signal(error)
        raise ConfigError(f"ca={options.ca} cannot be used: {error}", name="ca") from error
    if options.cert is not None:
        try:
            context.load_cert_chain(options.cert, options.key)
        except (OSError, ssl.SSLError) as error:
            raise_if_from_signal(error)
            raise ConfigError(
                f"cert={options.cert}, key={options.key} cannot be used: {error}", name="cert"
            ) from error
    return context
