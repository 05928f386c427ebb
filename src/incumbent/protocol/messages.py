"""The messages about outcomes: what happened, the numbers, what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from math import inf
from typing import Final

from incumbent.durations import say_seconds
from incumbent.errors import AcquireTimeout, LeaseLost, NotAcquired, OutcomeUnknown, StoreError
from incumbent.model import Holding, Key, Notice, Refused
from incumbent.printable import printable
from incumbent.protocol.claim import Claim, LeaseRequest

_NAMED = 3
"""The most holders that a message names."""


def not_acquired(
    wanted: LeaseRequest, refused: Refused, waited: float, *, timed_out: bool
) -> NotAcquired:
    """The error for a refusal."""
    held_by = refused.holders[0].holder if refused.holders else None
    kind = AcquireTimeout if timed_out else NotAcquired
    after = f" (waited {say_seconds(waited)})" if timed_out else ""
    return kind(
        f"{wanted.key.name!r} {_why(wanted, refused, held_by)}{after}",
        name=wanted.key.name,
        held_by=held_by,
        reason=refused.reason,
        retry_after=refused.retry_after,
        waited=waited,
    )


def _held(wanted: LeaseRequest, refused: Refused, by: str, left: str) -> str:
    if not refused.holders or refused.holders[0].permits is None:
        left = f", whose ttl has {left} left" if left else ""
        return f"is held by {by}{left}{_mismatch(wanted, refused)}"
    some = names_of(refused.holders)
    if wanted.permits:
        return f"has no permit left of {wanted.permits}: held by {some}"
    return f"is held by {some}"


def names_of(holdings: Sequence[Holding]) -> str:
    """The names of the holders; only the first few if there are many."""
    some = [holding.holder for holding in holdings[:_NAMED]]
    more = len(holdings) - len(some)
    if more:
        return f"{', '.join(some)} and {more} more"
    return " and ".join(filter(None, (", ".join(some[:-1]), *some[-1:])))


def _why(wanted: LeaseRequest, refused: Refused, held_by: str | None) -> str:
    left = "" if refused.retry_after is None else say_seconds(max(0.0, refused.retry_after))
    by = held_by or "another"
    # A store may have another reason, of which we know only the word.
    why = f"was refused by the store: {refused.reason}"
    match refused.reason:
        case "held":
            why = _held(wanted, refused, by, left)
        case "used":
            more = f", and is not free for another {left}" if left else ""
            why = f"ran already: its slot was used by {by}{more}"
        case "closed":
            why = f"was held by {by} and stays closed" + (f" for another {left}" if left else "")
        case "paused":
            why = "is paused: nobody may take it until it is unpaused"
        case "reserved":
            why = f"is reserved for {by}"
        case "turn":
            why = f"goes to {by} next, which is first in line"
        case "permits":
            why = "is shared with another number of permits"
    return why


def waits_for_itself(inside: LeaseRequest, wanted: LeaseRequest) -> str:
    """The message for a caller that, in the body of a lease, waits for another of the same name."""
    name = repr(wanted.key.name)
    match inside.permits, wanted.permits:
        case 0, None:
            return (
                f"{name} is read by this very caller, and a reader cannot go on to write: it would"
                " wait for itself, and two that try would wait for each other. Leave the body of"
                " `read`, enter that of `write`, and look again at what was read"
            )
        case 0, 0:
            return (
                f"{name} is read by this very caller: behind a writer that waits, a second reading"
                " would wait for itself. Use the lease that is there"
            )
        case None, 0:
            return (
                f"{name} is written by this very caller: to read beside it would wait for itself."
                " Read under the lease that is there"
            )
        case int(), int():
            return (
                f"this very caller has a permit of {name}: for a second it would wait for itself,"
                " as callers with one each would for each other. Use the lease that is there, or"
                " try with timeout=0"
            )
    return (
        f"{name} is held by this very caller: it is in the body of that lease, and would wait for"
        " itself. Use the lease that is there, or try with timeout=0"
    )


def permits_differ(wanted: LeaseRequest, refused: Refused) -> str:
    """The message for a number of permits that differs from the holders'; it names both numbers."""
    ours, theirs = (_counted(number) for number in (wanted.permits, refused.permits))
    by = printable(refused.holders[0].holder) if refused.holders else "another"
    return (
        f"{wanted.key.name!r} is held by {by} with {theirs}, and we ask with {ours}: use one number"
        " everywhere, or another name"
    )


def _counted(permits: int | None) -> str:
    if not permits:
        return "any number of readers"
    return f"{permits} permit{'s' if permits > 1 else ''}"


def _mismatch(wanted: LeaseRequest, refused: Refused) -> str:
    """A hint if the holder's ttl differs: with different ttls a crash is judged differently."""
    theirs, ours = refused.holders[0].ttl if refused.holders else None, wanted.policy.kept_for
    if theirs is None or abs(theirs - ours) < 0.001:
        return ""
    return f"; it uses a ttl of {say_seconds(theirs)} and we {say_seconds(ours)}: use one for all"


def late_grant(wanted: LeaseRequest, took: float) -> OutcomeUnknown:
    """The error for a grant that came too late to act on."""
    return OutcomeUnknown(
        f"{wanted.key.name!r}: the store granted the lease, but took {say_seconds(took)} to answer;"
        f" of a ttl of {say_seconds(wanted.policy.ttl)} too little is left. It is given back.",
        name=wanted.key.name,
    )


def waiting_so_far(waited: float, timeout: float | None) -> str:
    """The seconds waited so far, and the timeout (inf: no end; None: not mentioned)."""
    so_far = f" for {say_seconds(float(int(waited)))}" if waited >= 1 else ""
    if timeout is None:
        return so_far
    return so_far + (" (no timeout)" if timeout == inf else f" (timeout {say_seconds(timeout)})")


def waited_in_vain(error: StoreError, seconds: float) -> StoreError:
    """The error of `seconds` ago, with its age: no other try was worthwhile since then."""
    if seconds < 0.001:
        return error
    # A copy, because another waiter may get the same error object.
    again = copy(error)
    again.__cause__ = error.__cause__
    again.args = (f"{error} (that was {say_seconds(seconds)} ago; the timeout is over)",)
    if again.retry_after is not None:
        again.retry_after = max(0.0, again.retry_after - seconds)
    return again


UNRECORDED = "unrecorded"
"""The reason if the ledger could not record an end under the lease; the ledger will say `lost`."""

_LOST = {
    UNRECORDED: "ended before the end of the work was on record",
    "expired": "could not be renewed in time",
    "taken": "is gone from the store: deleted, evicted or taken",
    "broken": "was ended at the request of an operator",
    "resigned": "was given back, for this instance stepped down",
    "paused": "was paused by an operator",
    "store_restarted": "ended with a restart of the store",
    "at_most_for": "reached its at_most_for",
    "forked": "belongs to the parent process of this fork",
    "need": "is proved for too short a time",
}


def asked_by(notice: Notice | None) -> str:
    """The operator's notice that ended a lease: kind, author, successor and reason."""
    if notice is None:
        return ""
    who = f" by {notice.who}" if notice.who else ""
    to = f", for {notice.to}" if notice.to else ""
    why = f": {notice.reason}" if notice.reason else ""
    return f" ({notice.kind}{who}{to}{why})"


_REQUESTS: Final = {
    "pause": "paused",
    "resign": "asked to resign",
    "transfer": "asked to hand over",
    "break": "asked to stop",
}
"""The request of an operator or a preferred candidate, by the kind of its notice."""


def request_in_words(notice: Notice) -> str:
    """The request that ended a term, in words such as "paused by ann (the reason)"."""
    to = f" to {notice.to}" if notice.to else ""
    by = f" by {notice.who}" if notice.who else ""
    return f"{_REQUESTS[notice.kind]}{to}{by}" + (f" ({notice.reason})" if notice.reason else "")


def lease_lost(lease: str | Key, reason: str, detail: str = "") -> LeaseLost:
    """The error for a lease that ended without a release, or is not proved for long enough."""
    namespace, name = (None, lease) if isinstance(lease, str) else lease
    text = f"the lease on {name!r} {_LOST.get(reason, reason)}{detail}"
    return LeaseLost(text, name=name, reason=reason, namespace=namespace)


def claim_lost(claim: Claim, late: float = 0.0) -> LeaseLost:
    """The error for the lost `claim`; `late`: seconds for which this process was not scheduled."""
    reason = claim.machine.reason or "expired"
    detail = asked_by(claim.notice)
    if late and reason == "expired":
        detail = (
            f": this process did not schedule its renewal thread for {say_seconds(late)} (code that"
            " keeps the interpreter, a frozen process, or uWSGI without --enable-threads)"
        )
    return lease_lost(claim.wanted.key, reason, detail)
