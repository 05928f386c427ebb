"""Renewing: many leases of one store in one request, and when each is due again."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from incumbent.durations import backoff_delay
from incumbent.errors import StoreError
from incumbent.lease import IllegalInput, State
from incumbent.model import Batch, Gone, Renewal, Renewed, RenewOutcome
from incumbent.protocol.held import Held
from incumbent.protocol.port import Port

SOONEST = 0.9
"""The first renewal is due after at least this part of a renewal interval."""
_HELD = State.HELD
_NOTICED = {"pause": "paused", "resign": "broken", "transfer": "broken", "break": "broken"}


class Batches:
    """What was sent for the same leases the last time, and this time.

    Here and below a lease at rest is looked at as little as can be: of ten thousand, each object
    that is touched is a cache miss.
    """

    __slots__ = ("_before", "_now")

    def __init__(self) -> None:
        self._before: tuple[_Sent, ...] = ()
        self._now: tuple[_Sent, ...] = ()

    def begin(self) -> None:
        """Another round: what the last one did not send again is forgotten."""
        self._before, self._now = self._now, ()

    def known(self, refs: Sequence[weakref.ref[Held]]) -> Batch | None:
        """The batch that was sent last for exactly these leases."""
        for sent in self._before:
            if sent.refs == refs:
                self._now += (sent,)
                return sent.batch
        return None

    def new(self, leases: Sequence[Held], refs: Sequence[weakref.ref[Held]]) -> Batch:
        """A new batch for them."""
        batch = Batch([held.renewal() for held in leases])
        self._now += (_Sent(refs, batch),)
        return batch


class _Sent(NamedTuple):
    refs: Sequence[weakref.ref[Held]]
    batch: Batch


class Round:
    """One request for many renewals, and what came of it."""

    __slots__ = ("asked", "news", "others", "refs", "skipped")

    def __init__(self) -> None:
        self.asked: list[Held] = []
        """The leases that a renewal was sent for."""
        self.refs: list[weakref.ref[Held]] = []
        self.news = False
        """Whether any renewal differs from the one that was sent last."""
        self.skipped: list[Held] = []
        """The leases that no renewal was sent for."""
        self.others: list[Held] = []
        """The asked leases that need more than their next renewal: they failed or are watched."""


async def renew(
    port: Port,
    leases: Iterable[Held],
    batches: Batches | None = None,
    turn: Round | None = None,
) -> StoreError | None:
    """Renew those that are still valid; the machines learn what came of it.

    Returns the error when the store gave no answer: then every deadline stays where it was.
    """
    turn = turn or Round()
    answered = False
    try:
        until = _ask(turn, leases, port.now())
        batch = turn.asked
        if not batch:
            return None
        batches = batches or Batches()
        known = None if turn.news else batches.known(turn.refs)
        renewals = known or batches.new(batch, turn.refs)
        outcomes = await port.renew(renewals, until)
        _learn(batch, outcomes, port.now(), turn.others)
        answered = True
        if known is None:
            _learn_meta(batch, renewals, outcomes)
    except StoreError as error:
        return error
    finally:
        if not answered:
            _count_failures(turn.asked)
            turn.others += turn.asked
    return None


def _ask(turn: Round, leases: Iterable[Held], sent: float) -> float:
    """Sort the leases; returns the instant until which the answer is awaited."""
    policy, patience = None, inf
    asked, refs = turn.asked, turn.refs
    for held in leases:
        machine, news = held.machine, held.meta is not held.proclaimed
        # Where at_most_for ends the lease next, a renewal only brings new metadata to the store.
        if (
            machine.renewing
            or (machine.stop_at >= machine.bound and not news)
            or (sent >= machine.deadline and not machine.valid(sent))
        ):
            turn.skipped.append(held)
            continue
        try:
            machine.renew_sent(sent)
        except IllegalInput:
            # It is not held: perhaps another thread released it just now.
            turn.skipped.append(held)
            continue
        asked.append(held)
        refs.append(held.ref)
        if news or held.changed:
            turn.news = True
        if machine.policy is not policy:
            policy = machine.policy
            patience = min(patience, policy.request_timeout)
    return sent + patience


def _learn(
    batch: Sequence[Held], outcomes: Sequence[RenewOutcome], now: float, others: list[Held]
) -> None:
    for held, outcome in zip(batch, outcomes, strict=True):
        machine = held.machine
        if isinstance(outcome, Renewed):
            held.failures = 0
            machine.renewed(now)
            if outcome.notices:
                held.notice = outcome.notices[0]
                machine.broken(_NOTICED[held.notice.kind])
            if (
                machine.state is not _HELD
                or machine.stop_at >= machine.bound
                or held.askers
                or held.followers
            ):
                others.append(held)
            continue
        others.append(held)
        if isinstance(outcome, Gone):
            machine.gone(outcome.reason)
        else:
            _fail(held)


def _learn_meta(
    batch: Sequence[Held], renewals: Sequence[Renewal], outcomes: Sequence[RenewOutcome]
) -> None:
    for held, renewal, outcome in zip(batch, renewals, outcomes, strict=True):
        if isinstance(outcome, Renewed):
            held.proclaimed = renewal.meta


def _count_failures(batch: Sequence[Held]) -> None:
    for held in batch:
        if held.machine.renewing:
            _fail(held)


def _fail(held: Held) -> None:
    held.failures += 1
    held.machine.unrenewed()


def first_due(held: Held, jitter: float) -> float:
    """The instant of the first renewal; leases taken together must not stay synchronised."""
    every = held.wanted.policy.renew_every
    return held.began + every * (SOONEST + (1 - SOONEST) * jitter)


def next_due(held: Held, sent: float, now: float, jitter: float) -> float:
    """When to look at the lease again: its next renewal, or the end of the belief if that is first.

    A renewal counts from when the last one was *sent*, so its duration does not delay the next.
    """
    machine, every = held.machine, held.wanted.policy.renew_every
    if machine.state is not State.HELD:
        return now
    if machine.bounded:
        return machine.deadline
    if held.failures:
        delay = backoff_delay(held.failures, jitter, base=every / 16, cap=every)
        return min(now + delay, machine.deadline)
    return min(max(now, sent + every), machine.deadline)
