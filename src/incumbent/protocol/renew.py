"""Renewing: many leases of one store in one request, and the instant when each is due again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from incumbent.durations import backoff_delay
from incumbent.errors import StoreError
from incumbent.lease import IllegalInput, LeaseState
from incumbent.model import Batch, Gone, Renewal, Renewed, RenewOutcome
from incumbent.protocol.claim import Claim
from incumbent.protocol.port import Port

FIRST_FROM = 0.9
"""The part of a renewal interval after which the first renewal is due at the earliest."""
_HELD = LeaseState.HELD
_LOSS_BY_NOTICE = {"pause": "paused", "resign": "broken", "transfer": "broken", "break": "broken"}


class Batches:
    """The batches that were sent in the last round and in this one.

    The code here and below touches as few objects of an idle lease as possible: with ten thousand
    leases, each object is a cache miss.
    """

    __slots__ = ("_last", "_this")

    def __init__(self) -> None:
        self._last: tuple[Batch, ...] = ()
        self._this: tuple[Batch, ...] = ()

    def begin(self) -> None:
        """Begin another round: batches that the last round did not send are forgotten."""
        self._last, self._this = self._this, ()

    def of(self, renewals: tuple[Renewal, ...]) -> Batch:
        """The batch that was last sent with exactly these renewals, or a new one."""
        # Compared with what would be sent, not by the leases: a lease that was renewed by another
        # bucket meanwhile may have other metadata. Renewals that did not change are one object, so
        # comparing costs no look into them.
        batch = next((sent for sent in self._last if sent == renewals), None) or Batch(renewals)
        self._this += (batch,)
        return batch


class RenewalAttempt:
    """One request for many renewals, and its result."""

    __slots__ = ("asked", "changed", "needs_more", "skipped")

    def __init__(self) -> None:
        self.asked: list[Claim] = []
        """The leases that a renewal was sent for."""
        self.changed = False
        """Whether any lease has metadata that no renewal has proved."""
        self.skipped: list[Claim] = []
        """The leases that no renewal was sent for."""
        self.needs_more: list[Claim] = []
        """The asked leases that need more than a renewal: failed, near at_most_for, or watched."""


async def renew(
    port: Port,
    leases: Iterable[Claim],
    batches: Batches | None = None,
    attempt: RenewalAttempt | None = None,
) -> StoreError | None:
    """Renew the leases that are still valid, and feed the outcomes to their machines.

    Returns the error if the store gave no answer: then no deadline changes.
    """
    attempt = attempt or RenewalAttempt()
    asked, answered = attempt.asked, False
    try:
        until = _choose_leases(attempt, leases, port.now())
        if not asked:
            return None
        # The same object again lets a store send the bytes that it packed last time.
        renewals = (batches or Batches()).of(tuple([claim.renewal() for claim in asked]))
        outcomes = await port.renew(renewals, until)
        _apply(asked, outcomes, port.now(), attempt.needs_more)
        answered = True
        if attempt.changed:
            for claim, renewal, outcome in zip(asked, renewals, outcomes, strict=True):
                if isinstance(outcome, Renewed):
                    # What was sent, not `claim.meta`: another thread may have
                    # proclaimed more meanwhile.
                    claim.proclaimed = renewal.meta
    except StoreError as error:
        return error
    finally:
        if not answered:
            for claim in asked:
                # However this was interrupted: left `renewing`, it would never be renewed again.
                if claim.machine.renewing:
                    _note_failure(claim)
            attempt.needs_more += asked
    return None


def _choose_leases(attempt: RenewalAttempt, leases: Iterable[Claim], sent: float) -> float:
    """Sort the leases into asked and skipped; returns the instant when the answer must be there."""
    policy, timeout = None, inf
    asked = attempt.asked
    for claim in leases:
        machine, new_meta = claim.machine, claim.meta is not claim.proclaimed
        # If at_most_for ends the lease next, a renewal is of use only for new metadata.
        if (
            machine.renewing
            or (machine.stop_at >= machine.at_most_until and not new_meta)
            or (sent >= machine.deadline and not machine.valid(sent))
        ):
            attempt.skipped.append(claim)
            continue
        try:
            machine.note_renewal_sent(sent)
        except IllegalInput:
            # The lease is not held: perhaps another thread has just released it.
            attempt.skipped.append(claim)
            continue
        asked.append(claim)
        if new_meta:
            attempt.changed = True
        if machine.policy is not policy:
            policy = machine.policy
            timeout = min(timeout, policy.request_timeout)
    return sent + timeout


def _apply(
    asked: Sequence[Claim], outcomes: Sequence[RenewOutcome], now: float, needs_more: list[Claim]
) -> None:
    for claim, outcome in zip(asked, outcomes, strict=True):
        machine = claim.machine
        if isinstance(outcome, Renewed):
            claim.failures = 0
            machine.note_renewed(now)
            # After `renewed`: an answer past the deadline is a loss by time, not by an operator.
            if outcome.notices:
                claim.notice = outcome.notices[0]
                machine.note_broken(_LOSS_BY_NOTICE[claim.notice.kind])
            if (
                machine.state is not _HELD
                or machine.stop_at >= machine.at_most_until
                or claim.on_next_renewal
                or claim.on_each_renewal
            ):
                needs_more.append(claim)
            continue
        needs_more.append(claim)
        if isinstance(outcome, Gone):
            machine.note_gone(outcome.reason)
        else:
            _note_failure(claim)


def _note_failure(claim: Claim) -> None:
    claim.failures += 1
    claim.machine.note_unrenewed()


def first_due(claim: Claim, jitter: float) -> float:
    """The instant of the first renewal; leases taken together must not stay synchronised."""
    every = claim.wanted.policy.renew_every
    return claim.began + every * (FIRST_FROM + (1 - FIRST_FROM) * jitter)


def next_due(claim: Claim, sent: float, now: float, jitter: float) -> float:
    """The instant of the next renewal, or of the end of the belief if that comes first.

    A renewal counts from when the last one was *sent*, so its duration does not delay the next.
    """
    machine, every = claim.machine, claim.wanted.policy.renew_every
    if machine.state is not LeaseState.HELD:
        return now
    if machine.ends_by_at_most_for:
        return machine.deadline
    if claim.failures:
        # Soon at first: most failures are short, and several tries must fit before the deadline.
        delay = backoff_delay(claim.failures, jitter, base=every / 16, cap=every)
        return min(now + delay, machine.deadline)
    return min(max(now, sent + every), machine.deadline)
