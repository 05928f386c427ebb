"""What etcd answers instead of a reply, and how each connection to it may fail.

The rule of the table: an answer that has one of its phrases was given *instead of* carrying the
request out (checked against etcd 3.4). Anything else leaves it open.
"""

from __future__ import annotations

from typing import Any, Final

from incumbent.errors import StoreUnavailable


class LeaseMissing(Exception):
    """The etcd lease that a write names does not exist; nothing was written."""


class LeaseExists(Exception):
    """An etcd lease with that id was made before."""


class Reborn(StoreUnavailable):
    """The cluster is of another incarnation than the request was made for; it was not sent."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"{where} was restored or put back since it was last asked; nothing was sent"
        )


class Answered(Exception):
    """A member answered an error. `elsewhere`: another member may do better."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        self.stale_token = any(phrase in text for phrase in _STALE_TOKEN)
        self.no_user = "user name is empty" in text
        """No token came with the request; a restarted member has forgotten all tokens."""
        self.lease_missing = "requested lease not found" in text
        self.lease_exists = "lease already exists" in text
        self.refusal = next((phrase for phrase in REFUSED if phrase in text), None)
        self.sure = bool(self.refusal or self.stale_token or self.lease_missing)
        """It was certainly not carried out."""
        self.never = any(phrase in text for phrase in _NEVER)
        """Nor will it be: it is not served, or not to us."""
        self.elsewhere = any(phrase in text for phrase in _ELSEWHERE)


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
FINAL_AT_FIRST: Final = (
    *("user name is empty", "permission denied", "authentication failed"),
    *("password is empty", "user name not found"),
)
"""Refusals that only an operator can end, if nothing was ever served to us."""
REFUSED: Final[dict[str, tuple[str, float | None]]] = {
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
"""Why, and after how many seconds it is worth another try."""


def error_text(reply: dict[str, Any]) -> str:
    """The error within an answer, or nothing."""
    error = reply.get("error")
    if isinstance(error, dict):
        error = error.get("message")
    return str(error or "")


def is_refusal_of_certificate(text: str) -> bool:
    """Whether TLS ended with the server's word on our certificate, before any request was read."""
    upper = text.upper()
    return "ALERT" in upper and ("CERTIFICATE" in upper or "UNKNOWN_CA" in upper)
