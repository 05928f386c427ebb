"""Renewing: many leases of one store in one request, and when each is due again."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from incumbent._core.held import Held
from incumbent._core.port import Port
from incumbent.backoff import backoff_delay
from incumbent.errors import StoreError
from incumbent.lease import IllegalInput, State
from incumbent.model import Batch, Gone, Renewal, Renewed, RenewOutcome

__all__ = ["Batches", "first_due", "next_due", "renew"]

_NOTICED = {"pause": "paused", "resign": "broken", "transfer": "broken"}


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

    def known(self, leases: Sequence[Held]) -> Batch | None:
        """What was sent for just these, if they would say the same and all of it was proved."""
        refs = [held.ref for held in leases]
        for sent in self._before:
            if sent.refs == refs:
                break
        else:
            return None
        for held in leases:
            if held.changed or held.meta is not held.proclaimed:
                return None
        self._now += (sent,)
        return sent.batch

    def new(self, leases: Sequence[Held]) -> Batch:
        """What to send for them."""
        batch = Batch([held.renewal() for held in leases])
        self._now += (_Sent([held.ref for held in leases], batch),)
        return batch


class _Sent(NamedTuple):
    refs: list[weakref.ref[Held]]
    batch: Batch


async def renew(
    port: Port, leases: Iterable[Held], batches: Batches | None = None
) -> StoreError | None:
    """Renew those that are still valid; the machines learn what came of it.

    Returns the error when the store gave no answer: then every deadline stays where it was.
    """
    batch: list[Held] = []
    answered = False
    try:
        until = _ask(batch, leases, port.now())
        if not batch:
            return None
        batches = batches or Batches()
        known = batches.known(batch)
        renewals = known or batches.new(batch)
        outcomes = await port.renew(renewals, until)
        _learn(batch, outcomes, port.now())
        answered = True
        if known is None:
            _learn_meta(batch, renewals, outcomes)
    except StoreError as error:
        return error
    finally:
        if not answered:
            _count_failures(batch)
    return None


def _ask(batch: list[Held], leases: Iterable[Held], sent: float) -> float:
    """Put into `batch` those that can be renewed; returns for how long the answer is waited."""
    policy, patience = None, inf
    for held in leases:
        machine = held.machine
        if not machine.valid(sent) or machine.renewing:
            continue
        try:
            machine.renew_sent(sent)
        except IllegalInput:
            # Another thread let go of it after we looked.
            continue
        batch.append(held)
        if machine.policy is not policy:
            policy = machine.policy
            patience = min(patience, policy.request_timeout)
    return sent + patience


def _learn(batch: Sequence[Held], outcomes: Sequence[RenewOutcome], now: float) -> None:
    for held, outcome in zip(batch, outcomes, strict=True):
        machine = held.machine
        if isinstance(outcome, Renewed):
            held.failures = 0
            machine.renewed(now)
            if outcome.notices:
                held.notice = outcome.notices[0]
                machine.broken(_NOTICED[held.notice.kind])
        elif isinstance(outcome, Gone):
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
    """The instant of the first renewal: leases taken together are not renewed together for ever."""
    every = held.wanted.policy.renew_every
    return held.began + every * (0.9 + 0.1 * jitter)


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
