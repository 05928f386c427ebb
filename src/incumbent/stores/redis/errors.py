"""What can go wrong with a server, as the contract's three answers.

The rule of the table: an answer that begins with one of its words was given *instead of* carrying
the request out. Anything else leaves it open.
"""

from __future__ import annotations

from typing import Final

from incumbent.durations import say_seconds
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable

__all__ = [
    "Broken",
    "Mismatch",
    "answered_error",
    "exchange_error",
    "restart_error",
    "still_in_doubt",
]


class Broken(Exception):
    """A connection failed. `sent`: the request may have left. `late`: there is no time left."""

    def __init__(self, why: str, *, sent: bool, late: bool = False) -> None:
        super().__init__(why)
        self.sent = sent
        self.late = late


class Mismatch(Exception):
    """The answer belongs to another request: the connection is out of step."""


_REFUSED: Final[dict[str, tuple[str, float | None]]] = {
    "LOADING": ("it is loading its data", 0.5),
    "MASTERDOWN": ("it is a replica that has lost its master", 1.0),
    "CLUSTERDOWN": ("its cluster is down", 1.0),
    "READONLY": ("it is a replica, which cannot grant leases: use the address of the master", 1.0),
    "BUSY": ("it is busy with another client's script", 0.5),
    "OOM": ("it is out of memory: raise its maxmemory, or remove data", 1.0),
    "MISCONF": ("it cannot write to its disk and refuses changes", 1.0),
    "NOREPLICAS": ("it has too few replicas to accept changes (min-replicas-to-write)", 1.0),
    "MOVED": ("it is part of a cluster, and the key lives on another node", None),
    "ASK": ("it is part of a cluster, and the key is moving to another node", 1.0),
    "TRYAGAIN": ("it is part of a cluster, and the key is moving to another node", 1.0),
    "CROSSSLOT": ("it is part of a cluster, and the keys do not share a slot", None),
    "NOAUTH": ("it wants a password", None),
    "WRONGPASS": ("it refuses the user name or the password", None),
    "NOPERM": ("this user may not do that (see the ACL rule in the documentation)", None),
    "WRONGTYPE": ("somebody keeps another type of value there; it was left alone", None),
    "DENIED": ("it runs in protected mode", None),
}
_FINAL_AT_FIRST: Final = ("NOAUTH", "WRONGPASS", "NOPERM", "DENIED", "MOVED", "CROSSSLOT")


def answered_error(text: str, where: str, key: str = "", *, proved: bool = True) -> StoreError:
    """The exception for an error that the server answered.

    `proved`: this server has served us before, so that even a wrong password may be a passing
    state of it (a failover, a rotation).
    """
    code = _code(text)
    if code == "NOSCRIPT":
        return StoreUnavailable(f"{where} has forgotten a script that it was just sent")
    if code not in _REFUSED:
        return OutcomeUnknown(f"{where} answered {text!r}; perhaps the request was carried out")
    why, after = _REFUSED[code]
    at = f" at the key {key}" if key and code in ("WRONGTYPE", "NOPERM") else ""
    # A user who may do one thing in a script and not the next stops in the middle of it.
    halfway = code == "NOPERM" and "user_script" in text
    kind = OutcomeUnknown if halfway else StoreUnavailable
    return kind(
        f"{where} refused the request{at}: {why} ({code})",
        permanent=code == "WRONGTYPE" or (code in _FINAL_AT_FIRST and not proved),
        retry_after=after,
    )


def _code(text: str) -> str:
    code = text.split(" ", 1)[0]
    if code == "ERR" and "user_script" in text:
        # Before version 7 a script's error hides the code behind its own words.
        return next((word for word in _REFUSED if f" {word} " in text), code)
    return code


def exchange_error(error: Exception, where: str) -> StoreError:
    """The exception for an exchange that brought no answer, or another's."""
    if isinstance(error, Broken) and not error.sent:
        return StoreUnavailable(f"{where} cannot be reached: {error}")
    return OutcomeUnknown(f"{where} gave no usable answer ({error}); perhaps it did what was asked")


def still_in_doubt(error: StoreUnavailable, where: str) -> OutcomeUnknown:
    """The exception for a repeat that was not done, after a first try that perhaps was."""
    return OutcomeUnknown(
        f"{where} gave no answer to the first try, and the second failed: {error}",
        permanent=error.permanent,
        retry_after=error.retry_after,
    )


def restart_error(where: str, uptime: float, left: float) -> StoreUnavailable:
    """The exception for a server that has not been up for as long as a holder may believe."""
    return StoreUnavailable(
        f"{where} restarted {say_seconds(max(0.0, uptime))} ago and grants nothing for another"
        f" {say_seconds(left)} (restart_wait): a holder from before may still believe",
        retry_after=left,
    )
