"""The one place where supervision looks into a lease: what it proves, and how it is given back."""

from __future__ import annotations

from collections.abc import Callable

from incumbent import clock
from incumbent.supervise.plan import Belief
from incumbent.sync import Lease

__all__ = [
    "abandon",
    "belief_of",
    "follow",
    "found_lost",
    "give_back",
    "grace_of",
    "slot_of",
    "ttl_of",
    "watch",
]


def belief_of(lease: Lease) -> Belief:
    """What the lease proves now."""
    machine = lease._held.machine
    lost = "" if machine.valid(clock.now()) else machine.reason or "expired"
    return Belief(machine.stop_at, machine.deadline, lost, machine.bounded)


def grace_of(lease: Lease) -> float:
    """Seconds between TERM and KILL."""
    return lease._held.wanted.policy.grace


def ttl_of(lease: Lease) -> float:
    """Seconds for which one proof lasts at most."""
    return lease._held.wanted.policy.ttl


def slot_of(lease: Lease) -> str | None:
    """The slot that was claimed with the lease."""
    return lease._held.wanted.slot


def watch(lease: Lease, wake: Callable[[], None]) -> None:
    """Call `wake`, from any thread, when the lease ends."""
    lease._link.keeper.watch(lease._held, wake)


def follow(lease: Lease, proved: Callable[[], None]) -> None:
    """Call `proved` in the keeper's thread after each proved renewal; it must not block."""
    lease._link.keeper.follow(lease._held, proved)


def give_back(lease: Lease, *, undo_slot: bool = False) -> bool:
    """Release the lease in the store, also after a loss; whether the store confirmed it."""
    if lease._take_leave() is not None:
        return False
    return lease._release(undo_slot=undo_slot)


def found_lost(lease: Lease) -> str:
    """After `give_back`: the reason of a loss that only its answer showed; else empty."""
    lost = lease._found_lost()
    return "" if lost is None else lost.reason


def abandon(lease: Lease) -> None:
    """Neither renew nor release: something of the command lives, and the ttl ends the lease."""
    held = lease._held
    if held.machine.valid(clock.now()):
        held.machine.left()
    lease._link.keeper.disarm(held)
