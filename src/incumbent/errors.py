"""The errors of this package.

"No" (`NotAcquired`), "not sent" (`StoreUnavailable`) and "don't know" (`OutcomeUnknown`) are three
different answers and never stand for each other. Every error has its details as attributes and
survives pickling; no message ever shows a password. `Error` is the base class of all of them.
"""

from __future__ import annotations

from incumbent.printable import printable

__all__ = [
    "AcquireTimeout",
    "AlreadyReleased",
    "ConfigError",
    "Error",
    "LeaseLost",
    "LockError",
    "Misuse",
    "NotAcquired",
    "NotCandidate",
    "NotHeld",
    "OutcomeUnknown",
    "StoreError",
    "StoreUnavailable",
]


class Error(Exception):
    """Base class of our errors. Python's own are TypeError (a wrong call, a copied lease) and
    cancellations.
    """


class LockError(Error):
    """Base class of lease errors: not acquired, lost, store unavailable.

    Programming and configuration errors are Misuse and ConfigError.
    """

    def __init__(self, message: str = "", *, name: str = "") -> None:
        # Only the message is positional, so that pickle's (class, args, __dict__) rebuilds it.
        # It may name a holder, or what an operator said: texts that anybody may have written.
        super().__init__(printable(message))
        self.name = name


class NotAcquired(LockError):
    """The lease was refused: the store answered no.

    Attributes: `held_by` (holder or None), `reason` ("held", "used" (the slot), "paused", "closed",
    "reserved" (for a successor), "turn" (of `held_by`, first in line)), `retry_after` (seconds
    until another try may succeed, or None), `waited` (seconds).
    """

    def __init__(
        self,
        message: str = "",
        *,
        name: str = "",
        held_by: str | None = None,
        reason: str = "held",
        retry_after: float | None = None,
        waited: float = 0.0,
    ) -> None:
        super().__init__(message, name=name)
        self.held_by = held_by
        self.reason = reason
        self.retry_after = retry_after
        self.waited = waited


class AcquireTimeout(NotAcquired, TimeoutError):
    """Refused until `timeout` ran out; or at once, if the slot stays used for longer than it."""


class NotCandidate(LockError):
    """The leadership cannot be transferred to a holder that is not a candidate.

    `candidates`: the present candidates, as the store listed them.
    """

    def __init__(
        self, message: str = "", *, name: str = "", candidates: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, name=name)
        self.candidates = candidates


class LeaseLost(LockError):
    """The holder can no longer prove that it holds the lease.

    `reason`: "expired" (the proof ran out), "taken" (the store has another record or none),
    "broken" (an operator asked to end it), "resigned" (by this instance), "paused",
    "store_restarted", "at_most_for" (its own limit), "need" (still held, but not for as long as
    `check(need=)` asked), "forked", "unrecorded" (the end was not recorded in the ledger under the
    lease). `namespace`: that of the lease, or None if it is not known.
    """

    def __init__(
        self,
        message: str = "",
        *,
        name: str = "",
        reason: str = "expired",
        namespace: str | None = None,
    ) -> None:
        super().__init__(message, name=name)
        self.reason = reason
        self.namespace = namespace


class StoreError(LockError):
    """The store gave no usable answer.

    `permanent`: another try cannot help until the cause is removed (a wrong password).
    `retry_after`: seconds until another try can succeed, if known.
    """

    def __init__(
        self,
        message: str = "",
        *,
        name: str = "",
        permanent: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, name=name)
        self.permanent = permanent
        self.retry_after = retry_after


class StoreUnavailable(StoreError):
    """The operation was certainly not applied."""


class OutcomeUnknown(StoreError):
    """The operation was perhaps applied: the request was sent, and no usable answer came."""


class Misuse(Error, RuntimeError):
    """The caller's code is wrong, whatever the store answers."""


class NotHeld(Misuse):
    """The operation needs a lease that is held, and this one is not."""


class AlreadyReleased(NotHeld):
    """The lease was released before."""


class ConfigError(Error, ValueError):
    """A setting cannot work. `name` is the name of the setting.

    Raised before a request is sent, except if other holders share a lease with another number of
    permits: only the store knows that, and then grants nothing.
    """

    def __init__(self, message: str = "", *, name: str = "") -> None:
        super().__init__(message)
        self.name = name
