"""Acquiring is a transaction: one claim for all tries, and a release is owed unless it is granted.

However an acquire ends (by an answer, an error, a signal, a cancellation), either the lease is
believed and returned, or nothing is believed and the claim is released in the store.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from sys import exc_info
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from incumbent import meters
from incumbent.durations import backoff_delay, say_seconds
from incumbent.errors import (
    AcquireTimeout,
    ConfigError,
    NotAcquired,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
)
from incumbent.lease import LeaseState
from incumbent.model import Ask, Granted, Queued, Refused, TakeOutcome
from incumbent.protocol.claim import Claim, LeaseRequest
from incumbent.protocol.messages import late_grant, not_acquired, permits_differ, waited_in_vain
from incumbent.protocol.port import ManyPort, Port, pace, retry_delay
from incumbent.protocol.release import give_up, release_all
from incumbent.stores.base import Answers, Take

if TYPE_CHECKING:
    from incumbent.election import Priority

OnRefusal: TypeAlias = "Callable[[Refused | StoreError], None] | None"
"""A callback for every outcome other than a grant; it must neither block nor raise."""

_log = logging.getLogger("incumbent")

_HELD = LeaseState.HELD
_ON_ITS_WAY = (LeaseState.ASKING, LeaseState.ASKING_AGAIN)
# Seconds: a store that wants to be asked again within this time is away for a moment only.
_SOON = 1.0
# A store counts a watched lease with a margin for clocks that run at different speeds.
_CLOCK_MARGIN = 1.02
# Seconds over which waiters spread when the holder's ttl runs out.
_SPREAD = 0.002


async def acquire(
    port: Port,
    wanted: LeaseRequest,
    timeout: float | None,
    on_refusal: OnRefusal = None,
    *,
    claim_id: str | None = None,
) -> Claim:
    """Take the lease within `timeout` seconds (None: wait; 0: try once).

    `claim_id`: the claim of another process of ours, which was granted the lease and handed it
    over to us; taking it again yields the same grant, counted from now.

    Raises NotAcquired or AcquireTimeout when the store refuses the lease, StoreUnavailable or
    OutcomeUnknown when the store gives no answer in time, ConfigError if the present holders share
    the lease with another number of permits.
    """
    claim = Claim(port, wanted)
    started = port.now()
    if claim_id is not None:
        # The store has seen this claim before, so unless it is granted now its release is owed.
        claim.id = claim_id
        claim.machine.note_sent(started)
        claim.machine.note_unanswered()
    until, patience = _until_and_patience(wanted, timeout, started)
    try:
        ask = wanted.unqueued if timeout == 0 else wanted.queued
        outcome = await _take(port, claim, ask, until, patience)
        if not isinstance(outcome, Granted):
            if timeout == 0:
                until = claim.machine.sent_at + wanted.policy.request_timeout
            attempt = _AcquireAttempt(port, claim, started, until, on_refusal)
            await attempt.keep_trying(outcome, timeout)
        if meters.on:
            _meter(claim, port.now() - started)
        return claim
    except BaseException:
        # Before it is counted: a claim that is still HELD would be counted as granted.
        _compensate(port, claim)
        if meters.on:
            _meter(claim, port.now() - started)
        raise


def _until_and_patience(
    wanted: LeaseRequest, timeout: float | None, started: float
) -> tuple[float, float]:
    """The end of a wait, and for a single try the patience for a store that gives no answer."""
    if timeout == 0:
        return inf, wanted.policy.request_timeout
    return inf if timeout is None else started + timeout, inf


def _meter(claim: Claim, seconds: float) -> None:
    outcome = "granted"
    if claim.machine.state is not _HELD:
        match exc_info()[1]:
            case AcquireTimeout():
                outcome = "timeout"
            case NotAcquired():
                outcome = "refused"
            case StoreError():
                outcome = "unanswered"
            case _:
                outcome = "interrupted"
    meters.acquired(claim.wanted.key.name, seconds, outcome)


def _compensate(port: Port, claim: Claim) -> None:
    if claim.machine.state is _HELD:
        # Interrupted after the grant: nobody else will release it.
        # Its work never began, so the slot has to be free for another try.
        give_up(port, claim, undo_slot=True)
        return
    now = port.now()
    # Interrupted before the answer: the take may still arrive at the store.
    if claim.machine.state in _ON_ITS_WAY:
        claim.takes_in_doubt += 1
    if claim.machine.note_abandoned():
        port.owe(claim.debt(now, undo_slot=True))
    elif claim.in_line:
        # Waiters behind this claim wait for it until the store knows that it has left the line.
        port.owe(replace(claim.debt(now, undo_slot=True), only_leaves_line=True))


@dataclass(slots=True)
class _AcquireAttempt:
    """An acquire whose first try was not granted."""

    port: Port
    claim: Claim
    started: float
    until: float
    on_refusal: OnRefusal = None
    outage_began: float = inf

    async def keep_trying(self, outcome: Refused | StoreError, timeout: float | None) -> None:
        if self.on_refusal is not None:
            self.on_refusal(outcome)
        if timeout == 0:
            await self._finish_single_try(outcome)
            return
        meters.count(meters.WAITERS)
        try:
            await self._try_until(outcome)
        finally:
            meters.count(meters.WAITERS, amount=-1.0)
        # Only what had to wait is logged: a lock that is always free would fill the log.
        claim, waited = self.claim, self.port.now() - self.started
        name, holder = claim.wanted.key.name, claim.wanted.holder
        facts = {"lease": name, "holder": holder, "token": claim.machine.token, "waited": waited}
        _log.info("%s: acquired after %s", name, say_seconds(waited), extra=facts)

    async def _finish_single_try(self, outcome: Refused | StoreError) -> None:
        """End an acquire that tries once. Returns if granted; else raises."""
        # A take of unknown outcome is repeated: with the same claim that is safe, and decides it.
        port, claim, until = self.port, self.claim, self.until
        if isinstance(outcome, Refused) and outcome.holder_may_be_dead:
            # Without this, a dead holder would keep out a Kubernetes CronJob for ever: each of its
            # pods tries only once, and none would watch long enough to see that the holder is dead.
            if isinstance(proved := await self._watch_holder(outcome), Granted):
                return
            outcome = proved
        if isinstance(outcome, OutcomeUnknown) and not outcome.permanent:
            await port.sleep_until(min(until, port.now() + backoff_delay(0, port.jitter())))
            if port.now() < until:
                second = await self._ask(claim.wanted.unqueued, until)
                if isinstance(second, Granted):
                    return
                outcome = second
        if isinstance(outcome, StoreError):
            raise outcome
        raise not_acquired(claim.wanted, outcome, port.now() - self.started, timed_out=False)

    async def _watch_holder(self, refused: Refused) -> Granted | Refused | StoreError:
        """Watch the holder that is in the way until it is known whether it is dead."""
        port, wanted = self.port, self.claim.wanted
        outcome: Granted | Refused | StoreError = refused
        # An end of our own: each other holder that takes over meanwhile would begin another ttl.
        end = port.now() + (refused.retry_after or 0.0) * _CLOCK_MARGIN + _SOON
        while isinstance(outcome, Refused) and outcome.holder_may_be_dead and port.now() < end:
            proved_at = port.now() + (outcome.retry_after or 0.0) * _CLOCK_MARGIN + _SPREAD
            try:
                await port.wait_change(wanted.key, outcome.seen, min(end, proved_at))
            except StoreError:
                # Without hints (as where we may not watch) time alone proves it.
                await port.sleep_until(min(end, proved_at))
            # Each take has a request_timeout of its own: the proof may take
            # longer than a single try.
            outcome = await self._ask(wanted.unqueued, inf)
        return outcome

    async def _try_until(self, outcome: Refused | StoreError) -> None:
        port, wanted, until = self.port, self.claim.wanted, self.until
        failures = unchanged = 0
        before = None
        preempt_if_due = (
            None if wanted.rank is None else _preemption(port, wanted, wanted.rank, until)
        )
        while True:
            if isinstance(outcome, StoreError):
                failures += 1
                await self._back_off(outcome, failures)
            elif (now := port.now()) >= until:
                raise not_acquired(wanted, outcome, now - self.started, timed_out=True)
            elif self._is_in_vain(outcome, now):
                timed_out = until < inf
                raise not_acquired(wanted, outcome, now - self.started, timed_out=timed_out)
            else:
                failures, unchanged = 0, unchanged + 1 if _fingerprint(outcome) == before else 0
                before, preempt_at = _fingerprint(outcome), inf
                # On every round, since the holder may have changed; a failure only postpones it.
                if preempt_if_due is not None:
                    preempt_at = await preempt_if_due(outcome)
                await self._wait_for_change(outcome, unchanged, min(until, preempt_at))
                if port.now() >= until:
                    # No time for another request: its failure would hide the store's refusal.
                    continue
            answer = await self._ask(wanted.queued, until)
            if isinstance(answer, Granted):
                return
            if not (isinstance(answer, StoreUnavailable) and port.now() >= until):
                # StoreUnavailable for lack of time says nothing: the outcome before it stays.
                outcome = answer

    def _is_in_vain(self, refused: Refused, now: float) -> bool:
        """Whether waiting is pointless: the slot stays used for longer than this acquire waits."""
        # Without a timeout that is always so: nobody means to wait for a used slot without end. All
        # else may end sooner than the refusal says: a holder releases, a pause is lifted.
        if refused.reason != "used" or self.claim.wanted.outwaits_slots:
            return False
        return self.until == inf or now + (refused.retry_after or 0.0) > self.until

    async def _ask(self, ask: Ask, until: float) -> Granted | Refused | StoreError:
        outcome = await _take(self.port, self.claim, ask, until)
        if self.on_refusal is not None and not isinstance(outcome, Granted):
            self.on_refusal(outcome)
        return outcome

    async def _back_off(self, error: StoreError, failures: int) -> None:
        """Back off before the next try. Raises a permanent `error` at once, others at the timeout.

        Others are not raised earlier (but see LeaseRequest.outage_most), or a caller that retries
        in a loop would spin.
        """
        port, until = self.port, self.until
        now = port.now()
        if failures == 1:
            self.outage_began = now
        if error.permanent or now - self.outage_began > self.claim.wanted.outage_most:
            raise error
        if (error.retry_after or 0.0) > _SOON:
            # It says when it will grant again, as after a restart: that wait is no outage.
            self.outage_began += error.retry_after or 0.0
        wake = min(until, now + retry_delay(port, error, failures))
        if now < until:
            waited, timeout = now - self.started, until - self.started
            port.log_outage(self.claim.wanted.key, error, waited, timeout)
            await port.sleep_until(wake)
        if wake >= until:
            raise waited_in_vain(error, port.now() - now)

    async def _wait_for_change(self, refused: Refused, unchanged: int, until: float) -> None:
        """Sleep until the store hints at a change, the holder's ttl runs out, or one ttl passes."""
        port, wanted = self.port, self.claim.wanted
        # At most one ttl: a hint may be lost, and the store may not know the holder's end.
        ttl = wanted.policy.ttl
        left = ttl if refused.retry_after is None else min(ttl, refused.retry_after)
        place = refused.place if isinstance(refused, Queued) else None
        # One instant for both: a pause between two would bring the last poll nearer to `until`.
        now, every = port.now(), inf
        if not place and any(holder.foreign for holder in refused.holders):
            # A foreign client announces no release, so the first in line polls, and so does a
            # waiter without a place. Those further back need not.
            every = wanted.poll_every * (1.0 - port.jitter() / 2)
        # Only one claim is first in line, so it needs no jitter.
        spread = 0.0 if place == 0 else _SPREAD * port.jitter()
        # A poll without the time for an answer would hide the refusal before it.
        in_time = until - now - every - spread >= wanted.poll_every / 2
        wake = min(until, now + min(left, every if in_time else inf) + spread)
        await pace(port, unchanged, wake)
        try:
            # If the first in line stays silent during its turn, any claim may take the lease.
            behind = place and refused.reason not in ("reserved", "turn")
            head_start = _head_start(wanted, place, port.jitter()) if place and behind else 0.0
            await port.wait_change(wanted.key, refused.seen, min(until, wake + head_start))
        # Without hints it asks when the ttl runs out; what is wrong, that take will say.
        except StoreError:
            await port.sleep_until(wake)


async def _take(
    port: Port, claim: Claim, ask: Ask, until: float, patience: float = inf
) -> Granted | Refused | StoreError:
    """Send one take when its turn has come, and feed its outcome to the lease machine.

    Belief, and the time for the answer, count from the turn.
    """
    # An interruption between here and the `try` loses the place; the limiter replaces lost ones.
    gate = port.limits.takes
    try:
        admission = gate.enter_now() or await gate.enter(until, patience)
    except StoreUnavailable as error:
        return _not_sent(error)
    wanted, sent = claim.wanted, port.now()
    end, outcome = sent + wanted.policy.request_timeout, None
    # Before the request: however it is interrupted, its take is then known to be on its way.
    claim.machine.note_sent(sent)
    try:
        outcome = await port.take(wanted.key, claim.id, ask, until if until < end else end)
    except (OutcomeUnknown, StoreUnavailable) as error:
        return _unanswered(port, claim, error)
    finally:
        admission.leave(answered=outcome is not None)
    return _answered(port, claim, outcome, sent)


def _not_sent(error: StoreUnavailable) -> StoreUnavailable:
    if meters.on:
        meters.failed(error)
    return error


def _unanswered(port: Port, claim: Claim, error: StoreError) -> StoreError:
    if meters.on:
        meters.failed(error)
    if isinstance(error, OutcomeUnknown):
        claim.machine.note_unanswered()
        claim.takes_in_doubt += 1
    else:
        claim.machine.note_unsent()
    return error


def _answered(
    port: Port, claim: Claim, outcome: TakeOutcome, sent: float
) -> Granted | Refused | StoreError:
    if isinstance(outcome, Granted):
        return _believe(port, claim, outcome, sent)
    claim.machine.note_refused()
    if outcome.reason == "permits":
        # Waiting does not help, and a plain refusal would hide the mistake.
        raise ConfigError(permits_differ(claim.wanted, outcome), name="permits")
    claim.in_line = isinstance(outcome, Queued)
    return outcome


def _believe(port: Port, claim: Claim, grant: Granted, sent: float) -> Granted | StoreError:
    now = port.now()
    # The replies of a connection are out of step: of our own take we know no more than before.
    if grant.claim != claim.id:
        claim.machine.note_unanswered()
        claim.takes_in_doubt += 1
        return OutcomeUnknown("the store answered for another claim", name=claim.wanted.key.name)
    if not claim.machine.note_granted(grant, now):
        return late_grant(claim.wanted, now - sent)
    # From the answer, not from the request: at_least_for must not end before its time.
    claim.began = now
    return grant


def _head_start(wanted: LeaseRequest, place: int, jitter: float) -> float:
    """Seconds for which a waiter further back in line lets those before it ask first."""
    # The store wakes a waiter that becomes the first. This is for waiters that died with the
    # holder.
    queue = wanted.queued.queue
    if queue is None:
        return 0.0
    # A candidate stays listed only while it keeps asking.
    most = wanted.policy.ttl if wanted.unqueued.candidacy else inf
    return min(most, queue.heartbeat * (min(place, 3) ** 2 + jitter))


def _preemption(
    port: Port, wanted: LeaseRequest, rank: Priority, until: float
) -> Callable[[Refused], Awaitable[float]]:
    # Imported here, because most locks are made, held and released without an election.
    from incumbent.protocol.observe import Preemption, WritingPort, preempt

    return partial(preempt, cast("WritingPort", port), Preemption(wanted, rank), until)


def _fingerprint(refused: Refused) -> object:
    """A value that is equal for two refusals if nothing changed between them."""
    if isinstance(refused, Queued):
        return (refused.reason, refused.place, *(holder.token for holder in refused.holders))
    return refused.seen


# -- several names, all or none -------------------------------------------------------------------


class RenewingKeeper(Protocol):
    """The keeper, as far as leases held together and group members need it; see Keeper."""

    def arm(self, claim: Claim) -> None: ...

    def disarm(self, claim: Claim) -> None: ...


async def acquire_all(
    port: ManyPort, keeper: RenewingKeeper, wanted: Sequence[LeaseRequest], timeout: float | None
) -> list[Claim]:
    """Take all leases of `wanted` within `timeout` seconds, or none; see `acquire`.

    They are asked for together, once. From the first refused one on they are taken in order: during
    the wait for one lease only the leases before it are held. So two callers that take the same
    names in the same order never wait for each other.
    """
    started = port.now()
    until, patience = _until_and_patience(wanted[0], timeout, started)
    several = _AcquireAll(port, keeper, wanted, timeout, started, until, patience)
    try:
        try:
            while not await several.take_in_order():
                pass  # an earlier lease was lost during the wait for a later one
            several.meter()
            return several.claims
        # A refusal is no outage, so there is an orderly release; after all else the keeper pays.
        except NotAcquired:
            await several.release_from(0)
            raise
    except BaseException:
        several.end()
        raise


@dataclass(slots=True)
class _AcquireAll:
    """An acquire of several names, in their order."""

    port: ManyPort
    keeper: RenewingKeeper
    wanted: Sequence[LeaseRequest]
    timeout: float | None
    started: float
    until: float
    patience: float
    claims: list[Claim] = field(init=False)
    refused: Refused | None = field(default=None, init=False)
    """The refusal that caused the last wait."""

    def __post_init__(self) -> None:
        self.claims = [Claim(self.port, each) for each in self.wanted]

    async def take_in_order(self) -> bool:
        """Take all; False if a lease was lost meanwhile, and all have been given back."""
        at = 0
        while at < len(self.claims):
            if at and self.refused is not None and (now := self.port.now()) >= self.until:
                waited = now - self.started
                # The wait for the name before used up the time: its refusal is
                # what the caller has to hear.
                raise not_acquired(self.wanted[at - 1], self.refused, waited, timed_out=True)
            at, outcome = await self._take_from(at)
            if outcome is not None:
                # A waiter holds no name that comes after the one it waits for.
                await self.release_from(at + 1)
                self.refused = outcome if isinstance(outcome, Refused) else None
                await self._wait_for(self.claims[at], outcome)
                # Renewed from now on: the wait for the next name may be longer than a ttl.
                self.keeper.arm(self.claims[at])
                at += 1
        now = self.port.now()
        machines = [claim.machine for claim in self.claims]
        # Not `valid` alone: work would be stopped at once where `stop_at` has passed.
        complete = all(it.valid(now) and now < it.stop_at for it in machines)
        if not complete:
            await self.release_from(0)
        return complete

    async def _take_from(self, at: int) -> tuple[int, Refused | StoreError | None]:
        """Ask for all from `at` on; returns the index and outcome of the first not granted."""
        port, claims = self.port, self.claims[at:]
        takes = [Take(claim.wanted.key, claim.id, claim.wanted.unqueued) for claim in claims]
        gate = port.limits.takes
        try:
            admission = gate.enter_now() or await gate.enter(self.until, self.patience)
        except StoreUnavailable as error:
            return at, _not_sent(error)
        sent = port.now()
        end = sent + self.wanted[0].policy.request_timeout
        answers: Answers[TakeOutcome] = []
        if self.timeout == 0:
            self.until = min(self.until, end)
        for claim in claims:
            claim.machine.note_sent(sent)
        try:
            answers = await port.take_all(takes, min(self.until, end))
        except (OutcomeUnknown, StoreUnavailable) as error:
            answers = [error] * len(claims)
        finally:
            admission.leave(answered=any(not isinstance(answer, StoreError) for answer in answers))
        # From the last to the first, so that the first that was not granted is noted last.
        first: tuple[int, Refused | StoreError | None] = (len(self.claims), None)
        for index, claim in reversed([*enumerate(claims, at)]):
            # The store stops at the first that it does not grant: the rest were not asked for.
            if index - at >= len(answers):
                claim.machine.note_unsent()
                continue
            answer = answers[index - at]
            if isinstance(answer, StoreError):
                outcome: Granted | Refused | StoreError = _unanswered(port, claim, answer)
            else:
                outcome = _answered(port, claim, answer, sent)
            if isinstance(outcome, Granted):
                self.keeper.arm(claim)
            else:
                first = (index, outcome)
        return first

    async def _wait_for(self, claim: Claim, outcome: Refused | StoreError) -> None:
        """Acquire this lease, after its first take had `outcome`."""
        port, queued = self.port, claim.wanted.queued
        attempt = _AcquireAttempt(port, claim, self.started, self.until)
        joins = queued.queue is not None and isinstance(outcome, Refused)
        if self.timeout != 0 and joins and port.now() < self.until:
            # Takes that are sent together do not join the line.
            second = await _take(port, claim, queued, self.until)
            if isinstance(second, Granted):
                return
            outcome = second
        await attempt.keep_trying(outcome, self.timeout)

    async def release_from(self, at: int) -> None:
        """Give back the leases from `at` on; afterwards they can be taken anew."""
        now, claims = self.port.now(), self.claims[at:]
        # Replaced before the release: the `finally` below owes the old ones, `end` the new ones.
        self.claims[at:] = [Claim(self.port, each) for each in self.wanted[at:]]
        try:
            await release_all(self.port, [claim for claim in claims if claim.machine.valid(now)])
        finally:
            for claim in claims:
                self._owe(claim)

    def end(self) -> None:
        """Owe the store the release of each."""
        for claim in self.claims:
            self._owe(claim)
        self.meter()

    def meter(self) -> None:
        """Count how each ended, if metrics are counted."""
        if meters.on:
            for claim in self.claims:
                _meter(claim, self.port.now() - self.started)

    def _owe(self, claim: Claim) -> None:
        machine = claim.machine
        # With a token it was granted: only its release can be owed.
        if machine.token:
            self.keeper.disarm(claim)
            if machine.state in (_HELD, LeaseState.LOST):
                machine.note_leaving()
                self.port.owe(claim.debt(self.port.now(), undo_slot=False))
        else:
            _compensate(self.port, claim)
