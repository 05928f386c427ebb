"""Renewing: many leases of one store in one request, and when each is due again."""

from __future__ import annotations

from collections.abc import Iterable

from incumbent._core.held import Held
from incumbent._core.port import Port
from incumbent.backoff import backoff_delay
from incumbent.errors import StoreError
from incumbent.lease import State
from incumbent.model import Gone, Renewal, Renewed, RenewOutcome

__all__ = ["first_due", "next_due", "renew"]

_NOTICED = {"pause": "paused", "resign": "broken", "transfer": "broken"}


async def renew(port: Port, leases: Iterable[Held]) -> StoreError | None:
    """Renew those that are still valid; the machines learn what came of it.

    Returns the error when the store gave no answer: then every deadline stays where it was.
    """
    sent = port.now()
    batch = [held for held in leases if held.machine.valid(sent) and not held.machine.renewing]
    if not batch:
        return None
    for held in batch:
        held.machine.renew_sent(sent)
    until = sent + min(held.wanted.policy.request_timeout for held in batch)
    renewals = [held.renewal() for held in batch]
    try:
        outcomes = await port.renew(renewals, until)
        now = port.now()
        for held, renewal, outcome in zip(batch, renewals, outcomes, strict=True):
            _learn(held, renewal, outcome, now)
    except StoreError as error:
        return error
    finally:
        _count_failures(batch)
    return None


def _learn(held: Held, renewal: Renewal, outcome: RenewOutcome, now: float) -> None:
    machine = held.machine
    match outcome:
        case Renewed(notices):
            held.failures = 0
            held.proclaimed = renewal.meta
            machine.renewed(now)
            if notices:
                held.notice = notices[0]
                machine.broken(_NOTICED[notices[0].kind])
        case Gone(reason):
            machine.gone(reason)


def _count_failures(batch: list[Held]) -> None:
    for held in batch:
        if held.machine.renewing:
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
