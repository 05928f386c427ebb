"""Slots: pieces of work that are done once, each an entry beside the lease that `changes` decides.

A slot is used while the claim holds the lease on a majority. The change is refused wherever it does
not, so that a slot is never used by a claim whose lease was given up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol
from urllib.parse import unquote

from incumbent.clock import now as _now
from incumbent.errors import OutcomeUnknown, StoreError
from incumbent.model import (
    Ask,
    ByClaim,
    GiveOutcome,
    Granted,
    Holding,
    Key,
    Refused,
    Slot,
    TakeOutcome,
)
from incumbent.stores.quorum.ballots import Silent
from incumbent.stores.quorum.changes import Changed, Edit, change
from incumbent.stores.quorum.dialect import mark_of_value
from incumbent.stores.quorum.fields import state_of, unchanged
from incumbent.stores.quorum.group import Quorum, answered_by_most
from incumbent.stores.quorum.panel import Panel
from incumbent.stores.redis.names import quoted

__all__ = ["TAKE_BACK_WITHIN", "Parting", "give_slot_back", "slots_of", "take_with_slot"]

TAKE_BACK_WITHIN: Final = 0.05
"""Seconds for taking back what was asked for when the time of the take itself is over."""


def slot_entry(slot: str) -> str:
    """The name of a slot's entry."""
    return f"u:{quoted(slot)}"


@dataclass(frozen=True, slots=True)
class Used:
    """A slot that a claim used. `until`: unix ms by the nodes' clocks."""

    until: int
    claim: str
    token: int
    holder: str
    raw: bytes

    def left(self, unix_us: int) -> float:
        """Seconds for which it is refused to others."""
        return self.until / 1000 - unix_us / 1e6


def used_of(raw: bytes | None) -> Used | None:
    """What the entry of a slot says."""
    if raw is None:
        return None
    until, claim, token, holder = raw.decode().split(" ")
    return Used(int(until), claim, int(token), unquote(holder), raw)


def slots_of(entries: Mapping[bytes, bytes], unix_us: int) -> dict[str, float]:
    """Of a node's entries, the slots, with the seconds for which each is kept."""
    found = {
        unquote(name[2:].decode()): used.left(unix_us)
        for name, raw in entries.items()
        if name.startswith(b"u:") and (used := used_of(raw)) is not None
    }
    return {name: left for name, left in found.items() if left > 0}


class Parting(NamedTuple):
    """What is given back, and for whom the name is closed or kept then: see Store.give."""

    key: Key
    claim: str
    token: int | None
    closed_for: float = 0.0
    reserve_for: str | None = None
    slot: str | None = None


class Leases(Protocol):
    """What takes and gives the lease that a slot is used under: `rounds`."""

    @property
    def quorum(self) -> Quorum:
        """Whose leases they are."""

    async def take_lease(
        self, panel: Panel, key: Key, claim: str, ask: Ask, until: float
    ) -> TakeOutcome:
        """See Store.take, without regard to a slot."""

    async def give(self, panel: Panel, parting: Parting, until: float) -> GiveOutcome:
        """See Store.give."""


async def take_with_slot(
    leases: Leases, panel: Panel, key: Key, claim: str, ask: Ask, slot: Slot, until: float
) -> TakeOutcome:
    """The lease, and then the slot under its protection; without the slot it is given back."""
    quorum = leases.quorum
    refused = await _refused_slot(quorum, panel, key, claim, slot, until)
    if refused is not None:
        if ask.candidacy > 0:
            step = quorum.dialect.stand_by(key, ask, quorum.clock.unix_us(_now()))
            await panel.ask([step] * len(quorum.names), until, answered_by_most)
        return refused
    outcome = await leases.take_lease(panel, key, claim, ask, until)
    if not isinstance(outcome, Granted):
        return outcome
    try:
        used = await _use_slot(quorum, panel, key, outcome, ask, slot, until)
    except StoreError:
        await _hand_back(leases, panel, key, outcome, until)
        raise
    if used is True:
        return outcome
    given = await _hand_back(leases, panel, key, outcome, until)
    if isinstance(used, Refused) and given:
        return used
    raise OutcomeUnknown(f"{quorum.where}: the lease ended before slot {slot.name} was used")


async def _hand_back(leases: Leases, panel: Panel, key: Key, grant: Granted, until: float) -> bool:
    """Nothing ran under it. What cannot be told now is owed, or ends with its ttl."""
    by = max(until, _now() + TAKE_BACK_WITHIN)
    try:
        await leases.give(panel, Parting(key, grant.claim, grant.token), by)
    except StoreError:
        return False
    return True


async def _refused_slot(
    quorum: Quorum, panel: Panel, key: Key, claim: str, slot: Slot, until: float
) -> Refused | None:
    """The refusal, if another claim certainly used the slot; a look before the lease is taken."""
    entry = slot_entry(slot.name)
    step = quorum.dialect.state(key, [entry])
    heard = await panel.ask([step] * len(quorum.names), until, answered_by_most)
    now = quorum.clock.unix_us(_now())
    said = [it[0] for it in heard if not isinstance(it, Silent) and isinstance(it[0], list)]
    if not any(_is_others(used_of(it[1]), claim, now) for it in said):
        return None
    # Perhaps it is of a claim that got no majority, and nodes that missed it are told. Where all
    # agree nothing is written: a fleet that comes late would knock out each other's changes.
    differ = len({state_of(it) for it in heard} - {None}) > 1
    changed = await change(quorum, panel, key, entry, unchanged, until, settles=differ)
    return _refusal(slot, used_of(changed.seen), claim, now)


async def _use_slot(
    quorum: Quorum, panel: Panel, key: Key, grant: Granted, ask: Ask, slot: Slot, until: float
) -> Refused | bool:
    """True if the slot is the claim's now; False if the claim does not hold the lease any more."""
    now = quorum.clock.unix_us(_now())
    till = now // 1000 + int(slot.keep * 1000)
    used = f"{till} {grant.claim} {grant.token} {quoted(ask.holder)}".encode()

    def decide(entry: bytes | None, ballot: int) -> Edit | None:
        found = used_of(entry)
        is_free = found is None or found.left(now) <= 0
        return Edit(used) if is_free else None

    changed: Changed = await change(
        *(quorum, panel, key, slot_entry(slot.name), decide, until),
        held=ByClaim(grant.claim, grant.token),
    )
    if changed.edited:
        return True
    return changed.held and (_refusal(slot, used_of(changed.seen), grant.claim, now) or True)


async def give_slot_back(
    quorum: Quorum, panel: Panel, key: Key, claim: str, slot: str, until: float
) -> None:
    """The slot is as if the claim had never used it, also if that is still on its way."""

    def decide(entry: bytes | None, ballot: int) -> Edit | None:
        found = used_of(entry)
        return Edit(None) if found is not None and found.claim == claim else None

    await change(quorum, panel, key, slot_entry(slot), decide, until, settles=True)


def _is_others(used: Used | None, claim: str, unix_us: int) -> bool:
    return used is not None and used.claim != claim and used.left(unix_us) > 0


def _refusal(slot: Slot, used: Used | None, claim: str, unix_us: int) -> Refused | None:
    if used is None or not _is_others(used, claim, unix_us):
        return None
    left = used.left(unix_us)
    seen = f"slot:{quoted(slot.name)} {mark_of_value(used.raw)}"
    return Refused("closed", (Holding(used.holder, used.token, left),), left, seen)
