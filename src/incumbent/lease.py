"""The lease machine: when a claim's holder may believe in its lease. Pure; callers pass instants.

1. A lease is believed only in HELD and only before `deadline`, which counts from the instant before
   the proving request was sent. Each reader computes that; nobody waits for a notification.
2. Belief ends once: no input leads back to HELD, so a late answer never revives a lease.

`TRANSITIONS` is the whole machine. An input that is not in it raises IllegalInput and changes
nothing. Any thread may read or feed inputs: each move is one assignment, every way out of HELD ends
belief, and late answers to a renewal are legal (and ignored) in the states after HELD.
"""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import Final, NamedTuple

from incumbent import meters
from incumbent.errors import Error
from incumbent.model import Granted
from incumbent.policy import Policy


class _Named(Enum):
    # Enum hashes the name in Python code at each look-up; for singletons the identity will do.
    __hash__ = object.__hash__


class LeaseState(_Named):
    """The state of a claim."""

    NEW = "nothing of this claim can be in the store"
    ASKING = "a first take is on its way"
    DOUBT = "a take was perhaps applied, or is on its way still"
    ASKING_AGAIN = "a take is on its way, and an earlier one was perhaps applied"
    HELD = "granted: believed until the deadline"
    LEAVING = "no longer believed: a release is on its way"
    RELEASED = "ended by us, and the store knows"
    LOST = "ended by others, by time, or by a fork"
    DROPPED = "given up with nothing in the store"
    OWING = "given up: a release is owed, for something may be in the store"


class Input(_Named):
    """An event in the life of a claim."""

    SEND = "a take is about to be sent"
    GRANT = "granted in time"
    LATE = "granted, but too late to be believed"
    REFUSE = "the store said no"
    UNSENT = "certainly not applied"
    UNANSWERED = "perhaps applied"
    ABANDON = "the caller gives up, or was interrupted"
    RENEW = "a renewal is about to be sent"
    RENEWED = "the renewal was proved"
    UNRENEWED = "the renewal brought no proof"
    GONE = "the store has no such record"
    BREAK = "an operator asked to end it"
    EXPIRE = "the deadline was found to have passed"
    FORK = "this is the child of a fork"
    LEAVE = "the holder releases the lease"
    GIVEN = "the store confirmed the end"
    MISSED = "the store had nothing to take back, before the deadline"


_S, _I = LeaseState, Input
# Global names, because on Python 3.11 each look-up of a member calls a function of Enum's.
_NEW, _HELD, _OWING = LeaseState.NEW, LeaseState.HELD, LeaseState.OWING
_SEND, _GRANT, _LATE, _REFUSE = Input.SEND, Input.GRANT, Input.LATE, Input.REFUSE
_LEAVE, _GIVEN = Input.LEAVE, Input.GIVEN
_RENEWAL_ANSWERS = (_I.RENEWED, _I.UNRENEWED, _I.GONE, _I.BREAK, _I.EXPIRE)


def _ignoring(state: LeaseState, *inputs: Input) -> dict[Input, LeaseState]:
    return dict.fromkeys((*_RENEWAL_ANSWERS, *inputs), state)


TRANSITIONS: Final[dict[LeaseState, dict[Input, LeaseState]]] = {
    _S.NEW: {_I.SEND: _S.ASKING, _I.ABANDON: _S.DROPPED, _I.FORK: _S.LOST},
    _S.ASKING: {
        _I.GRANT: _S.HELD,
        _I.LATE: _S.DOUBT,
        _I.REFUSE: _S.NEW,
        _I.UNSENT: _S.NEW,
        _I.UNANSWERED: _S.DOUBT,
        _I.ABANDON: _S.OWING,
        _I.FORK: _S.LOST,
    },
    _S.DOUBT: {_I.SEND: _S.ASKING_AGAIN, _I.ABANDON: _S.OWING, _I.FORK: _S.LOST},
    # A refusal answers this request alone: an earlier request may reach the store after it.
    _S.ASKING_AGAIN: {
        _I.GRANT: _S.HELD,
        _I.LATE: _S.DOUBT,
        _I.REFUSE: _S.DOUBT,
        _I.UNSENT: _S.DOUBT,
        _I.UNANSWERED: _S.DOUBT,
        _I.ABANDON: _S.OWING,
        _I.FORK: _S.LOST,
    },
    _S.HELD: {
        _I.RENEW: _S.HELD,
        _I.RENEWED: _S.HELD,
        _I.UNRENEWED: _S.HELD,
        _I.GONE: _S.LOST,
        _I.BREAK: _S.LOST,
        _I.EXPIRE: _S.LOST,
        _I.FORK: _S.LOST,
        _I.LEAVE: _S.LEAVING,
    },
    _S.LEAVING: {
        **_ignoring(_S.LEAVING),
        _I.GIVEN: _S.RELEASED,
        _I.MISSED: _S.LOST,
        _I.FORK: _S.LOST,
    },
    _S.RELEASED: _ignoring(_S.RELEASED, _I.GIVEN, _I.FORK),
    _S.LOST: _ignoring(_S.LOST, _I.GIVEN, _I.MISSED, _I.LEAVE, _I.FORK),
    _S.DROPPED: {_I.FORK: _S.DROPPED},
    _S.OWING: {_I.GIVEN: _S.RELEASED, _I.FORK: _S.LOST},
}


class IllegalInput(Error, RuntimeError):
    """An input that the table does not allow in this state: a defect of the caller."""


_latest: list[tuple[float, Policy | None, float, float]] = [(-inf, None, -inf, -inf)]


def _prove_anew(sent: float, policy: Policy) -> tuple[float, float]:
    """`stop_at` and `deadline` as a request proves them that was sent at `sent`."""
    # All leases of one request share these objects, so that ten thousand leases need no own ones.
    stop_at = sent + policy.renew_deadline
    deadline = stop_at + policy.grace
    _latest[0] = (sent, policy, stop_at, deadline)
    return stop_at, deadline


class Proof(NamedTuple):
    """The proof of a lease at one instant; `lost_reason`: why it was lost, empty while held."""

    stop_at: float
    deadline: float
    lost_reason: str = ""
    ends_by_at_most_for: bool = False
    """Whether `stop_at` is the end by at_most_for, and not that of the proof."""

    def verdict(self, now: float) -> str:
        """The reason why the work must stop now; empty if it need not."""
        if self.lost_reason or now < self.stop_at:
            return self.lost_reason
        return "at_most_for" if self.ends_by_at_most_for else "expired"


class LeaseMachine:
    """One claim, from the first request to its end. `at_most_for` (seconds) bounds the holding."""

    __slots__ = (
        "_at_most_for",
        "at_most_until",
        "deadline",
        "epoch",
        "policy",
        "reason",
        "renewing",
        "sent_at",
        "state",
        "stop_at",
        "token",
    )

    def __init__(self, policy: Policy, at_most_for: float = inf) -> None:
        self.policy = policy
        self._at_most_for = at_most_for
        self.at_most_until = inf
        """The instant at which at_most_for ends the holding."""
        self.sent_at = -inf
        """The instant before the last take or renewal was sent."""
        self.state = _NEW
        self.reason = ""
        self.token = 0
        self.epoch = ""
        self.renewing = False
        self.deadline = -inf
        """The instant until which the holder may believe in the lease."""
        self.stop_at = -inf
        """The instant at which the work is stopped: its clean-up then ends before the deadline."""

    # -- questions ---------------------------------------------------------------------------

    def valid(self, now: float) -> bool:
        """Whether the lease is proved at `now`; a call after the deadline ends the belief."""
        if self.state is _HELD:
            if now < self.deadline:
                return True
            self.note_expired()
        return False

    def remaining(self, now: float) -> float:
        """Seconds for which the lease is proved; 0.0 if it is not."""
        return self.deadline - now if self.valid(now) else 0.0

    def proof(self, now: float) -> Proof:
        """The proof at `now` as one value, which later renewals do not change."""
        lost = "" if self.valid(now) else self.reason or "expired"
        return Proof(self.stop_at, self.deadline, lost, self.ends_by_at_most_for)

    @property
    def ends_by_at_most_for(self) -> bool:
        """Whether at_most_for, not the end of the proof, ends this holding next."""
        # Not computed from `sent_at`: a renewal that is pending or failed has proved nothing.
        return self.stop_at >= self.at_most_until

    # -- acquiring ---------------------------------------------------------------------------

    def note_sent(self, now: float) -> None:
        """Note that a take is about to be sent: the deadline will count from `now`."""
        self._move(_SEND)
        self.sent_at = now

    def note_granted(self, grant: Granted, now: float) -> bool:
        """Believe the grant unless it came too late to act on; return whether it is believed."""
        policy = self.policy
        # If the store keeps leases for less than was asked for, the proof is shorter by as much.
        short = policy.kept_for - grant.ttl
        stop_at = self.sent_at + policy.renew_deadline - (short if short > 0 else 0.0)
        if now >= stop_at:
            self._move(_LATE)
            return False
        # Checked before any field is written: an illegal input changes nothing.
        held = self._require(_GRANT)
        self.at_most_until = bound = now + self._at_most_for
        self.token = grant.token
        self.epoch = grant.epoch
        self.stop_at = stop_at if stop_at < bound else bound
        self.deadline = self.stop_at + policy.grace
        # Set last: from here on every thread may believe in the lease.
        self.state = held
        return True

    def note_refused(self) -> None:
        """Note that the store refused the take."""
        self._move(_REFUSE)

    def note_unsent(self) -> None:
        """Note that the take was certainly not applied."""
        self._move(Input.UNSENT)

    def note_unanswered(self) -> None:
        """Note that the take was perhaps applied."""
        self._move(Input.UNANSWERED)

    def note_abandoned(self) -> bool:
        """Give up the claim; return True if the store may have it, so that it must be released."""
        self._move(Input.ABANDON)
        return self.state is _OWING

    # -- holding -----------------------------------------------------------------------------

    def note_renewal_sent(self, now: float) -> None:
        """Note that a renewal is about to be sent; only one at a time."""
        if self.renewing:
            raise IllegalInput("a renewal of this lease is on its way already")
        # Renewals change no state, and there are thousands a second: HELD needs no table look-up.
        if self.state is not _HELD:
            self._require(Input.RENEW)
        self.sent_at = now
        self.renewing = True

    def note_renewed(self, now: float) -> None:
        """Note that the last renewal succeeded; an answer after the deadline proves nothing."""
        # An answer without a pending renewal proves nothing: the renewal counted as failed already.
        asked, self.renewing = self.renewing, False
        if self.state is not _HELD:
            self._require(Input.RENEWED)
        elif asked and (now < self.deadline or self.valid(now)):
            sent, policy, stop_at, deadline = _latest[0]
            # By identity: all leases of a request got the same object as `sent_at`, and comparing
            # costs less.
            if sent is not self.sent_at or policy is not self.policy:
                stop_at, deadline = _prove_anew(self.sent_at, self.policy)
            if stop_at < self.at_most_until:
                self.stop_at, self.deadline = stop_at, deadline
            else:
                self._prove(stop_at)

    def note_unrenewed(self) -> None:
        """Note that the renewal failed, or may have failed: the deadline stays as it was."""
        self.renewing = False
        self._move(Input.UNRENEWED)

    def note_gone(self, reason: str) -> None:
        """Note that the store has no such record: belief ends before the deadline."""
        self.renewing = False
        self._end(Input.GONE, reason)

    def move_end(self, at_most_until: float) -> None:
        """Move the end by at_most_for: an earlier one counts at once, a later one once renewed."""
        # First: a renewal that is proved meanwhile is bounded by it.
        self.at_most_until = at_most_until
        if self.stop_at > at_most_until:
            self._prove(at_most_until)

    def note_broken(self, reason: str = "broken") -> None:
        """Note that an operator asked to end the lease: belief ends."""
        self._end(Input.BREAK, reason)

    def note_expired(self) -> None:
        """Note that the deadline passed."""
        self._end(Input.EXPIRE, "at_most_for" if self.ends_by_at_most_for else "expired")

    def note_forked(self) -> None:
        """Note that this process is the child of a fork: only the parent holds the lease."""
        self._end(Input.FORK, "forked")

    # -- leaving -----------------------------------------------------------------------------

    def note_leaving(self) -> None:
        """Note that the holder releases the lease: from here on it does not believe in it."""
        self._move(_LEAVE)

    def note_given(self) -> None:
        """Note that the store confirmed the end: it has nothing left of the claim."""
        self._move(_GIVEN)

    def note_missed(self, reason: str) -> None:
        """Note that the first release found no record, although the deadline had not passed."""
        self._end(Input.MISSED, reason)

    # -- moves -------------------------------------------------------------------------------

    def _prove(self, stop_at: float) -> None:
        self.stop_at = stop_at if stop_at < self.at_most_until else self.at_most_until
        self.deadline = self.stop_at + self.policy.grace

    def _require(self, what: Input, before: LeaseState | None = None) -> LeaseState:
        before = before or self.state
        state = TRANSITIONS[before].get(what)
        if state is None:
            raise IllegalInput(f"{what.name} in state {before.name}")
        return state

    def _move(self, what: Input) -> None:
        # Read once, and written only on a change from that: a renewal's answer, which changes
        # nothing, must not undo the move that another thread makes meanwhile.
        before = self.state
        state = TRANSITIONS[before].get(what) or self._require(what, before)
        if state is not before:
            self.state = state

    def _end(self, what: Input, reason: str) -> None:
        before = self.state
        state = self._require(what, before)
        if state is not before:
            # Before the state: who sees the loss must find its reason.
            self.reason = reason
            self.state = state
            if meters.on:
                meters.count(meters.TRANSITIONS, reason)
