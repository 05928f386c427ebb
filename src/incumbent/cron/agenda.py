"""Which slots are due: a heap over the next slot of every job. Pure: the caller brings the time.

The agenda says what this instance should *ask for*; the ledger alone says who runs it. It never
names a slot twice unless the clock was put back far enough to be a correction (see `moved`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Final
from zlib import crc32

from incumbent.cron.schedule import slot_id
from incumbent.cron.spec import JobSpec, Slot

CORRECTION: Final = 3 * 3600.0
"""A clock put back by more than this was wrong before, as in Debian's cron(8); seconds."""

_PUNCTUAL_LEAST, _PUNCTUAL_MOST = 2.0, 60.0
_PUNCTUAL_AT_ONCE: Final = 3
"""Slots of a second each, which start up to a second later if they have jitter."""


@dataclass(slots=True)
class _Entry:
    spec: JobSpec
    order: int
    placed: float = 0.0
    """Everything up to here is decided."""
    slot: float | None = None
    starts: float = 0.0

    def place(self, after: float) -> None:
        self.placed = after
        self.slot = self.spec.schedule.next_after(after)
        if self.slot is not None:
            self.starts = start_of(self.spec, self.slot)


class Agenda:
    """The next slots of all jobs.

    `known`: by name, the last slot that the ledger has of a job; what came later and is past is
    handed out at once, by the job's rule for catching up. A job it does not name begins now.
    """

    def __init__(
        self, specs: Iterable[JobSpec], now: float, known: Mapping[str, float] | None = None
    ) -> None:
        self._now = now
        self._entries: dict[str, _Entry] = {}
        for spec in specs:
            self._add(spec, min((known or {}).get(spec.name, now), now))
        self._pile_up()

    def _add(self, spec: JobSpec, placed: float) -> None:
        entry = self._entries[spec.name] = _Entry(spec, len(self._entries))
        entry.place(placed)

    def _pile_up(self) -> None:
        entries = self._entries.values()
        self._heap = [
            (entry.starts, entry.order, entry) for entry in entries if entry.slot is not None
        ]
        heapify(self._heap)

    @property
    def next_at(self) -> float | None:
        """When `due` has something to say again."""
        return self._heap[0][0] if self._heap else None

    def count_until(self, instant: float, most: int) -> int:
        """How many jobs have a slot that starts until then; no more than `most` are counted."""
        found, places = 0, [0]
        while places and found < most:
            place = places.pop()
            if place < len(self._heap) and self._heap[place][0] <= instant:
                found += 1
                # Of a heap, only what is below an early one can be early.
                places += (2 * place + 1, 2 * place + 2)
        return found

    def due(self, now: float) -> list[tuple[JobSpec, Slot]]:
        """The slots that have become due, in their order, then in that of the file.

        Late slots (the process or the machine stood still, the clock was set forward) come by the
        job's rule for catching up. A clock set back a little repeats nothing: see `moved`.
        """
        self.moved(now)
        found: list[tuple[float, int, JobSpec, Slot]] = []
        while self._heap and self._heap[0][0] <= now:
            entry = heappop(self._heap)[2]
            found += [(slot.due, entry.order, entry.spec, slot) for slot in _decided(entry, now)]
            if entry.slot is not None:
                heappush(self._heap, (entry.starts, entry.order, entry))
        found.sort(key=lambda item: item[:2])
        return [(spec, slot) for _, _, spec, slot in found]

    def moved(self, now: float) -> bool:
        """Tell that it is `now`; True if the clock was put back by more than CORRECTION.

        Then every job begins anew from `now`. After less, jobs wait until the clock is where it
        was. `due` calls this itself.
        """
        if now >= self._now - CORRECTION:
            self._now = max(self._now, now)
            return False
        self._now = now
        for entry in self._entries.values():
            entry.place(now)
        self._pile_up()
        return True

    def replace(self, specs: Iterable[JobSpec], now: float) -> dict[str, list[str]]:
        """Reload: a job with the same name and schedule keeps its place, others begin now.

        Returns the names of the jobs that were `added`, `removed` and `rescheduled`.
        """
        before, self._entries = self._entries, {}
        changes: dict[str, list[str]] = {"added": [], "removed": [], "rescheduled": []}
        for spec in specs:
            old = before.pop(spec.name, None)
            if old is not None and old.spec.schedule == spec.schedule:
                self._add(spec, old.placed)
            else:
                self._add(spec, now)
                changes["added" if old is None else "rescheduled"].append(spec.name)
        changes["removed"] = list(before)
        self._pile_up()
        return changes


def _decided(entry: _Entry, now: float) -> list[Slot]:
    """The entry's slots that are ready, and the entry moved on behind them."""
    spec, first = entry.spec, entry.slot
    assert first is not None  # noqa: S101 - it is in the heap
    following = spec.schedule.next_after(first)
    if (following is None or following > now) and _is_punctual(spec, first, now):
        # The usual case, at the cost of one look at the schedule.
        entry.place(first)
        return [Slot.at(first)]
    to_run, missed = missed_slots(spec, entry.placed, now)
    entry.place(max((*to_run, *missed)))
    return [*(Slot.at(instant, missed=True) for instant in missed), *map(Slot.at, to_run)]


# -- catching up ----------------------------------------------------------------------------------


def start_of(spec: JobSpec, slot: float) -> float:
    """When a slot starts: jitter later, but before the next slot; the same in all instances."""
    if not spec.jitter:
        return slot
    following = spec.schedule.next_after(slot)
    room = spec.jitter if following is None else min(spec.jitter, following - slot)
    return slot + room * crc32(f"{spec.name} {slot_id(slot)}".encode()) / 2**32


def missed_slots(
    spec: JobSpec, last_known: float, now: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(slots to run, slots to record as missed), both ascending, after `last_known` until `now`.

    A slot is punctual until the next one comes, for at least 2 and at most 60 s: it is run
    whatever the rule for catching up says. Of very many slots only the last ones are named, as
    many as the history keeps.
    """
    rule = spec.catch_up
    # At least one that is missed: its record reaches back to what is known.
    most = max(rule.limit, spec.keep_runs) + _PUNCTUAL_AT_ONCE + 1
    slots = _latest(spec, last_known, now, most=most)
    punctual = tuple(slot for slot in slots[-70:] if _is_punctual(spec, slot, now))
    late = slots[: len(slots) - len(punctual)]
    wanted = {"no": 0, "last": 0 if punctual else 1, "all": rule.limit}[rule.mode]
    young = [slot for slot in late if slot >= now - rule.window]
    caught = tuple(young[max(0, len(young) - wanted) :])
    missed = late[: len(late) - len(caught)]
    return caught + punctual, missed


def _is_punctual(spec: JobSpec, slot: float, now: float) -> bool:
    following = spec.schedule.next_after(slot)
    gap = _PUNCTUAL_MOST if following is None else following - slot
    return now - start_of(spec, slot) < min(max(gap, _PUNCTUAL_LEAST), _PUNCTUAL_MOST)


def _latest(spec: JobSpec, after: float, now: float, *, most: int) -> tuple[float, ...]:
    """The last `most` ready slots: looks back twice as far each time, until there are enough."""
    back = _PUNCTUAL_MOST
    while True:
        start = max(after, now - back)
        found = deque(_ready(spec, start, now), maxlen=most)
        if start == after or len(found) == most:
            return tuple(found)
        back *= 2


def _ready(spec: JobSpec, after: float, now: float) -> Iterator[float]:
    slot = spec.schedule.next_after(after)
    while slot is not None and slot <= now and start_of(spec, slot) <= now:
        yield slot
        slot = spec.schedule.next_after(slot)
