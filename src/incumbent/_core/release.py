"""Leaving: stop believing first, then tell the store; what it did not confirm stays owed."""

from __future__ import annotations

from incumbent._core.held import Held
from incumbent._core.port import BlockingPort, Debt, Port
from incumbent.errors import StoreError
from incumbent.model import Released

__all__ = ["release", "release_blocking", "settle"]


async def release(port: Port, held: Held, *, undo_slot: bool = False) -> bool:
    """Give the lease back; True if the store confirmed it. `undo_slot`: nothing was done with it.

    Never raises for the store's sake: the belief has ended, and the ttl settles the rest.
    """
    machine, wanted = held.machine, held.wanted
    machine.left()
    now = port.now()
    closed_for, reserve_for = held.parting(now, undo_slot=undo_slot)
    settled = False
    try:
        await port.give(
            wanted.key,
            held.claim,
            machine.token,
            now + wanted.policy.request_timeout,
            closed_for=closed_for,
            reserve_for=reserve_for,
            slot=wanted.slot if undo_slot else None,
        )
        settled = True
        machine.given()
    except StoreError:
        pass
    finally:
        if not settled or now < held.doubt_until:
            port.hand_over(held.debt(now, undo_slot=undo_slot))
    return settled


def release_blocking(
    port: BlockingPort, held: Held, now: float, *, undo_slot: bool = False
) -> bool:
    """The same at `now` without a coroutine: see acquire_blocking."""
    machine, wanted = held.machine, held.wanted
    machine.left()
    closed_for, reserve_for = held.parting(now, undo_slot=undo_slot)
    settled = False
    try:
        port.store.give(
            wanted.key,
            held.claim,
            machine.token,
            now + wanted.policy.request_timeout,
            closed_for=closed_for,
            reserve_for=reserve_for,
            slot=wanted.slot if undo_slot else None,
        )
        settled = True
        machine.given()
    except StoreError:
        pass
    finally:
        if not settled or now < held.doubt_until:
            port.hand_over(held.debt(now, undo_slot=undo_slot))
    return settled


async def settle(port: Port, debt: Debt, timeout: float) -> bool:
    """Tell the store that a claim is dead; True when nothing of it is left."""
    now = port.now()
    if now >= debt.until:
        return True
    closed_for, reserve_for = debt.parting(now)
    try:
        outcome = await port.give(
            debt.key,
            debt.claim,
            None,
            now + timeout,
            closed_for=closed_for,
            reserve_for=reserve_for,
            slot=debt.slot,
        )
    except StoreError as error:
        return error.permanent
    return debt.doubt == 0 or (debt.doubt == 1 and isinstance(outcome, Released))
