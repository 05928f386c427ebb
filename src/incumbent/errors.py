"""What can go wrong, as types.

"No" (`NotAcquired`), "not sent" (`StoreUnavailable`) and "don't know" (`OutcomeUnknown`) are three
different answers and never stand for each other. Every error carries its numbers as attributes and
survives pickling; no message ever shows a password. `Error` is the base class of all of them.
"""

from __future__ import annotations

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
    """Base class of all errors of this package; what Python itself raises is not among them.

    That is a TypeError for a lease that is copied or pickled, or for a wrong call; a cancellation.
    """


class LockError(Error):
    """Base class of lease errors: not acquired, lost, store unavailable.

    Programming and configuration errors are Misuse and ConfigError.
    """

    def __init__(self, message: str = "", *, name: str = "") -> None:
        # Only the message is positional, so that pickle's (class, args, __dict__) rebuilds it.
        super().__init__(message)
        self.name = name


class NotAcquired(LockError):
    """The lease is not ours, and the store said so.

    Attributes: `held_by` (holder or None), `reason` ("held", "paused", "closed", "reserved"),
    `retry_after` (seconds until it may be worth another try, or None), `waited` (seconds).
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
    """Waited for as long as was asked, and somebody else still held it."""


class NotCandidate(LockError):
    """The leadership cannot be handed to somebody who does not stand for it.

    `candidates`: those who do, as the store listed them.
    """

    def __init__(
        self, message: str = "", *, name: str = "", candidates: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, name=name)
        self.candidates = candidates


class LeaseLost(LockError):
    """The holder can no longer prove that it holds the lease.

    `reason`: "expired" (the proof ran out), "taken" (the store has another record or none),
    "broken" (an operator asked for it), "resigned" (our own doing), "paused", "store_restarted",
    "at_most_for" (its own bound), "need" (still held, but not for as long as `check(need=)`
    asked), "forked", "unrecorded" (the ledger could not be told of the end under the lease).
    """

    def __init__(self, message: str = "", *, name: str = "", reason: str = "expired") -> None:
        super().__init__(message, name=name)
        self.reason = reason


class StoreError(LockError):
    """The store gave no usable answer.

    `permanent`: trying again cannot help before somebody changes something (a wrong password).
    `retry_after`: seconds until another try can succeed, where that is known.
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
    """The operation was perhaps applied: the request left, and no usable answer came."""


class Misuse(Error, RuntimeError):
    """The caller's code is wrong, whatever the store says."""


class NotHeld(Misuse):
    """An operation that needs a held lease was called on one that is not."""


class AlreadyReleased(NotHeld):
    """The lease was given back before."""


class ConfigError(Error, ValueError):
    """A setting that cannot work. `name` is the setting's.

    Raised before anything is sent; only that others share a lease with another number of permits is
    known by the store, which then grants nothing.
    """

    def __init__(self, message: str = "", *, name: str = "") -> None:
        super().__init__(message)
        self.name = name
