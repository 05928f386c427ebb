"""Slots: pieces of work that are done once, each an entry beside the lease that `changes` decides.

A slot is used while the claim holds the lease on a majority. The change is refused wherever it does
not, so that a slot is never used by a claim whose lease was given up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from incumbent.clock import now as _now
from incumbent.model import Ask, ByClaim, Granted, Holding, Key, Refused, Slot
from incumbent.stores.quorum.ballots import Silent
from incumbent.stores.quorum.changes import Edit, change, state_of, unchanged
from incumbent.stores.quorum.dialect import mark_of_value
from incumbent.stores.quorum.nodes import Panel, answered_by_most
from incumbent.stores.redis.names import quoted


def _entry_of(slot: str) -> str:
    return f"u:{quoted(slot)}"


@dataclass(frozen=True, slots=True)
class _Used:
    """A slot that a claim used. `until`: unix ms by the nodes' clocks."""

    until: int
    claim: str
    token: int
    holder: str
    raw: bytes

    def left(self, unix_us: int) -> float:
        """Seconds for which it is refused to others."""
        return self.until / 1000 - unix_us / 1e6


def _used_of(raw: bytes | None) -> _Used | None:
    if raw is None:
        return None
    until, claim, token, holder = raw.decode().split(" ")
    return _Used(int(until), claim, int(token), unquote(holder), raw)


def slots_of(entries: Mapping[bytes, bytes], unix_us: int) -> dict[str, float]:
    """Of a node's entries, the slots, with the seconds for which each is kept."""
    found = {
        unquote(name[2:].decode()): used.left(unix_us)
        for name, raw in entries.items()
        if name.startswith(b"u:") and (used := _used_of(raw)) is not None
    }
    return {name: left for name, left in found.items() if left > 0}


async def refused_slot(
    panel: Panel, key: Key, claim: str, slot: Slot, until: float
) -> Refused | None:
    """The refusal, if another claim certainly used the slot; a look before the lease is taken."""
    quorum, entry = panel.quorum, _entry_of(slot.name)
    request = quorum.dialect.state(key, [entry])
    replies = await panel.ask_all(request, until, answered_by_most)
    now = quorum.clock.unix_us(_now())
    entries = [
        reply[0][1]
        for reply in replies
        if not isinstance(reply, Silent) and isinstance(reply[0], list)
    ]
    if not any(_is_others(_used_of(raw), claim, now) for raw in entries):
        return None
    # Perhaps it is of a claim that got no majority, and nodes that missed it are told. Where all
    # agree nothing is written: a fleet that comes late would knock out each other's changes.
    differ = len({state_of(reply) for reply in replies} - {None}) > 1
    changed = await change(panel, key, entry, unchanged, until, settles=differ)
    return _refusal(slot, _used_of(changed.seen), claim, now)


async def use_slot(
    panel: Panel, key: Key, grant: Granted, ask: Ask, slot: Slot, until: float
) -> Refused | bool:
    """True if the slot is the claim's now; False if the claim does not hold the lease any more."""
    now = panel.quorum.clock.unix_us(_now())
    till = now // 1000 + int(slot.keep * 1000)
    value = f"{till} {grant.claim} {grant.token} {quoted(ask.holder)}".encode()

    def decide(entry: bytes | None, ballot: int) -> Edit | None:
        used = _used_of(entry)
        return Edit(value) if used is None or used.left(now) <= 0 else None

    held = ByClaim(grant.claim, grant.token)
    changed = await change(panel, key, _entry_of(slot.name), decide, until, held=held)
    if changed.edited:
        return True
    return changed.held and (_refusal(slot, _used_of(changed.seen), grant.claim, now) or True)


async def give_slot_back(panel: Panel, key: Key, claim: str, slot: str, until: float) -> None:
    """The slot is as if the claim had never used it, also if that is still on its way."""

    def decide(entry: bytes | None, ballot: int) -> Edit | None:
        used = _used_of(entry)
        return Edit(None) if used is not None and used.claim == claim else None

    await change(panel, key, _entry_of(slot), decide, until, settles=True)


def _is_others(used: _Used | None, claim: str, unix_us: int) -> bool:
    return used is not None and used.claim != claim and used.left(unix_us) > 0


def _refusal(slot: Slot, used: _Used | None, claim: str, unix_us: int) -> Refused | None:
    if used is None or not _is_others(used, claim, unix_us):
        return None
    left = used.left(unix_us)
    seen = f"slot:{quoted(slot.name)} {mark_of_value(used.raw)}"
    return Refused("closed", (Holding(used.holder, used.token, left),), left, seen)
