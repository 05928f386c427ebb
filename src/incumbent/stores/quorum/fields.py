"""Fields beside a lease, each an entry that `changes` decides."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from incumbent.errors import StoreError
from incumbent.model import (
    Absent,
    ByClaim,
    ByVersion,
    Guard,
    Key,
    PutOutcome,
    Stale,
    Stored,
)
from incumbent.stores.notices import PAUSE
from incumbent.stores.quorum.ballots import Silent
from incumbent.stores.quorum.changes import Edit, change
from incumbent.stores.quorum.group import Quorum
from incumbent.stores.quorum.panel import Heard, Panel

__all__ = [
    "field_entry",
    "is_paused",
    "last_entries",
    "put_field",
    "settle",
    "state_of",
    "unchanged",
]


def field_entry(field: str) -> str:
    """The name of a field's entry."""
    return f"f:{field}"


async def put_field(
    quorum: Quorum,
    panel: Panel,
    key: Key,
    field: str,
    value: bytes | None,
    guard: Guard,
    until: float,
) -> PutOutcome:
    """See Store.put. The version is the ballot of the change, the same on every node."""

    def decide(entry: bytes | None, ballot: int) -> Edit | None:
        if not _holds(guard, entry):
            return None
        return Edit(None if value is None else b"%d %b" % (ballot, value))

    held = guard if isinstance(guard, ByClaim) else None
    changed = await change(quorum, panel, key, field_entry(field), decide, until, held=held)
    if not changed.edited:
        return Stale()
    return Stored(0 if value is None else changed.ballot)


def _holds(guard: Guard, entry: bytes | None) -> bool:
    match guard:
        case Absent():
            return entry is None
        case ByVersion(version):
            return entry is not None and _version(entry) == version
    return True


def _version(entry: bytes) -> int:
    return int(entry.partition(b" ")[0])


async def last_entries(
    quorum: Quorum, panel: Panel, key: Key, entries: Sequence[str], until: float
) -> list[bytes | None]:
    """What the newest state says of these; a node that missed it is told, as far as possible."""
    step = quorum.dialect.state(key, entries)
    heard = await panel.ask([step] * len(quorum.names), until)
    states = [state_of(it) for it in heard]
    newest = max((it for it in states if it is not None), default=0)
    if any(it is not None and it < newest for it in states):
        with suppress(StoreError):
            await settle(quorum, panel, key, until)
    said = next((it for it, at in zip(heard, states, strict=True) if at == newest), None)
    return [None] * len(entries) if said is None or isinstance(said, Silent) else said[0][1:]


def unchanged(entry: bytes | None, ballot: int) -> Edit | None:
    """See changes.Decide: leave it as it is."""
    return None


def state_of(heard: Heard) -> int | None:
    """Of a node's answer to `dialect.state`; None if it gave none."""
    if isinstance(heard, Silent) or not isinstance(heard[0], list):
        return None
    return int((heard[0][0] or b"0").split()[0])


async def settle(quorum: Quorum, panel: Panel, key: Key, until: float) -> None:
    """What was begun is done or never will be, and nodes that missed a change are told."""
    await change(quorum, panel, key, "f:", unchanged, until, settles=True)


async def is_paused(quorum: Quorum, panel: Panel, key: Key, until: float) -> bool:
    """Whether the last word about it is that the name is paused."""
    (said,) = await last_entries(quorum, panel, key, [field_entry(PAUSE)], until)
    return said is not None
