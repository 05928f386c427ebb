"""What can go wrong with a cluster, as the contract's three answers.

The rule of the table: an answer that has one of its phrases was given *instead of* carrying the
request out (checked against etcd 3.4). Anything else leaves it open.
"""

from __future__ import annotations

from typing import Any, Final

from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.net.pool import Broken

__all__ = [
    "Answered",
    "Broken",
    "LeaseExists",
    "LeaseMissing",
    "Reborn",
    "certificate_error",
    "connect_error",
    "error_text",
    "exchange_error",
    "gateway_error",
    "is_refusal_of_certificate",
]


class LeaseMissing(Exception):
    """The etcd lease that a write names does not exist; nothing was written."""


class Reborn(StoreUnavailable):
    """The cluster is of another incarnation than the request was made for; it was not sent."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"{where} was restored or put back since it was last asked; nothing was sent"
        )


class LeaseExists(Exception):
    """An etcd lease with that id was made before."""


class Answered(Exception):
    """A member answered an error. `elsewhere`: another member may do better."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.sure = any(phrase in text for phrase in (*_REFUSED, *_STALE_TOKEN, _MISSING))
        """It was certainly not carried out."""
        self.stale_token = any(phrase in text for phrase in _STALE_TOKEN)
        self.no_user = "user name is empty" in text
        """No token came with the request; a restarted member has forgotten all tokens."""
        self.lease_missing = _MISSING in text
        self.lease_exists = "lease already exists" in text
        self.never = any(phrase in text for phrase in _NEVER)
        """Nor will it be: it is not served, or not to us."""
        self.elsewhere = any(phrase in text for phrase in _ELSEWHERE)


_MISSING: Final = "requested lease not found"
_STALE_TOKEN: Final = ("invalid auth token", "revision of auth store is old")
_NEVER: Final = (
    *("permission denied", "unknown service", "unknown method"),
    *("Not Found", "Not Implemented"),  # A gateway that does not route the call.
)
_ELSEWHERE: Final = ("no leader", "leader changed", "timed out", "server stopped", "not healthy")
_FULL: Final = (
    "its database is full (alarm NOSPACE): compact and defragment it, then `etcdctl alarm disarm`"
)
_WRONG_LOGIN: Final = "it refuses the user name or the password"
_FINAL_AT_FIRST: Final = (
    *("user name is empty", "permission denied", "authentication failed"),
    *("password is empty", "user name not found"),
)
_REFUSED: Final[dict[str, tuple[str, float | None]]] = {
    "database space exceeded": (_FULL, 1.0),
    "no leader": ("it has no leader: too few members can reach each other", 0.5),
    "too many requests": ("it is overloaded", 0.5),
    "user name is empty": ("it wants a user name and a password", None),
    "permission denied": (
        "this user may not do that: its role needs readwrite on all keys with the prefix",
        None,
    ),
    "authentication failed": (_WRONG_LOGIN, None),
    "user name not found": (_WRONG_LOGIN, None),
    "password is empty": ("it wants a password", None),
    "corrupt": ("its data is corrupt (alarm CORRUPT): see its log", 1.0),
    "request is too large": ("the request is larger than it takes", None),
    "too many operations": ("it takes fewer operations a request (--max-txn-ops)", None),
    "not capable": ("it cannot do that in its present version", None),
}


def error_text(reply: dict[str, Any]) -> str:
    """The error within an answer, or nothing."""
    error = reply.get("error")
    if isinstance(error, dict):
        error = error.get("message")
    return str(error or "")


def answered_error(
    text: str, where: str, *, proved: bool, with_certificate: bool = False
) -> StoreError:
    """The exception for an error that a member answered."""
    for phrase, (why, after) in _REFUSED.items():
        if phrase in text:
            first = phrase in _FINAL_AT_FIRST
            hint = _NO_COMMON_NAME if with_certificate and first else ""
            return StoreUnavailable(
                f"{where} refused the request: {why} ({text}){hint}",
                permanent=first and not proved,
                retry_after=after,
            )
    if any(phrase in text for phrase in (*_STALE_TOKEN, _MISSING)):
        return StoreUnavailable(f"{where} refused the request: {text}")
    return OutcomeUnknown(f"{where} answered {text!r}; perhaps the request was carried out")


_NO_COMMON_NAME: Final = (
    "; etcd's gateway takes no user from a client certificate, and refuses one with a common"
    " name (CN) where authentication is on: use a certificate without, and user:password@"
)


def certificate_error(where: str, *, proved: bool) -> StoreUnavailable:
    """The exception for a client certificate that has a common name, where there are passwords."""
    return StoreUnavailable(f"{where} refused the request{_NO_COMMON_NAME}", permanent=not proved)


def connect_error(error: BaseException | None, where: str, *, proved: bool) -> StoreUnavailable:
    """The exception for a connection that could not be made: nothing was sent on it."""
    names = {type(cause).__name__ for cause in _chain(error)}
    text = str(error) or type(error).__name__
    final = "SSLCertVerificationError" in names
    if final:
        text += "; name the authority that signed it: ?ca=/path/ca.pem"
    elif is_refusal_of_certificate(text):
        final = True
        text += "; it wants a client certificate that it trusts: ?cert=...&key=..."
    elif names & {"SSLError", "SSLEOFError", "SSLZeroReturnError"}:
        text += "; is it served over TLS, and does it want a client certificate (cert=, key=)?"
    return StoreUnavailable(f"{where} cannot be reached: {text}", permanent=final and not proved)


def is_refusal_of_certificate(text: str) -> bool:
    """Whether TLS ended with the server's word on our certificate, before any request was read."""
    upper = text.upper()
    return "ALERT" in upper and ("CERTIFICATE" in upper or "UNKNOWN_CA" in upper)


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def gateway_error(status: int, where: str, *, proved: bool) -> StoreUnavailable:
    """The exception for a server that answers HTTP, and not as etcd's gateway does."""
    if status == 404:
        why = (
            "it serves no JSON gateway at /v3: it is older than etcd 3.4, or was started with"
            " --enable-grpc-gateway=false"
        )
    else:
        why = f"it answered HTTP {status}, which is no etcd gateway: check the address"
    return StoreUnavailable(f"{where}: {why}", permanent=not proved)


def exchange_error(
    error: Exception | None, where: str, *, doubt: bool, proved: bool, with_certificate: bool
) -> StoreError:
    """The exception for a request that no member answered. `doubt`: one perhaps did it."""
    if isinstance(error, Answered):
        found = answered_error(error.text, where, proved=proved, with_certificate=with_certificate)
    elif isinstance(error, StoreError):
        found = error
    elif error is not None and type(error.__cause__).__name__ == "SSLError" and not doubt:
        found = connect_error(error.__cause__, where, proved=proved)
    else:
        found = StoreUnavailable(f"{where} cannot be reached: {error}")
    if not doubt or isinstance(found, OutcomeUnknown):
        return found
    return OutcomeUnknown(
        f"{where} gave no usable answer ({error}); perhaps it did what was asked",
        permanent=found.permanent,
        retry_after=found.retry_after,
    )
