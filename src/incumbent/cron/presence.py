"""Who is up, and which jobs they have: a job that no instance has runs no more.

Each instance gives signs of life under the key PRESENCE, on which nobody waits, so that a sign
wakes no one. The sign names the set of its jobs; what is in a set stands once in a field of KNOWN,
as instances with the same file have the same set.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2s
from typing import Any, Final

from incumbent import clock
from incumbent.cron.control import encode, is_job_name, read_value
from incumbent.cron.ledger import JOB, PRUNED, RUN, read_job
from incumbent.cron.spec import JobSpec
from incumbent.model import ByVersion, Field, Guard, Key, Record
from incumbent.protocol.link import Link

__all__ = [
    "GONE",
    "KNOWN",
    "SET",
    "Presence",
    "gone_since",
    "had_by_nobody",
    "is_by_the_clock",
    "read_sets",
]

PRESENCE: Final = "@cron/up"
UP: Final = "up/"
PRESENT_EVERY: Final = 30.0
"""Seconds between signs of life; three without one, and an instance counts as gone."""
GONE_AFTER: Final = 3 * PRESENT_EVERY
KNOWN: Final = "@cron/jobs"
SET: Final = "set/"
GONE: Final = "gone"
"""In what is registered of a job: since when nobody has had it."""
_FORGET_AFTER: Final = 30 * 86_400.0
"""Seconds after which nothing is left of a job that nobody has."""
_MARK: Final = 4
_WRITE_SET_EVERY: Final = 3600.0
"""Seconds: a sweep may have forgotten the set of an instance that was silent for long."""
_FORGOTTEN: Final = 86_400.0
"""Seconds after which an instance that vanished is named no more."""
_WITHIN: Final = 1.0


@dataclass(frozen=True, slots=True)
class Present:
    """An instance, as it said itself. Instants are its own wall clock's."""

    instance: str
    since: float
    seen: float
    jobs: int = 0
    knows: str = ""
    """Names the set of its jobs."""


class Peers:
    """Which instances live, told without trusting any clock: their sign of life changes."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}

    def any_before(self, present: Iterable[Present], instant: float, now: float) -> bool:
        """Whether one that lives has not come to `instant` by its clock.

        `now` counts seconds on the caller's steady clock. Who is new counts as living until three
        signs of life are overdue.
        """
        found = False
        for peer in present:
            seen, since = self._seen.get(peer.instance, (None, now))
            if seen != peer.seen:
                self._seen[peer.instance] = (peer.seen, now)
                since = now
            found = found or (peer.seen < instant and now - since < 3 * PRESENT_EVERY)
        return found


def presences(record: Record) -> list[Present]:
    """Who said to be up, whenever that was."""
    found = []
    for name, field in record.fields.items():
        facts = read_value(field.value) if name.startswith(UP) else {}
        since, seen = facts.get("since"), facts.get("seen")
        if isinstance(since, int | float) and isinstance(seen, int | float):
            jobs, instance = facts.get("jobs", 0), name.removeprefix(UP)
            jobs = jobs if isinstance(jobs, int) else 0
            found.append(Present(instance, since, seen, jobs, str(facts.get("knows", ""))))
    return sorted(found, key=lambda it: it.instance)


def up_now(present: Iterable[Present], now: float) -> list[Present]:
    """Instances that gave a sign of life lately; their clocks may be 5 minutes off."""
    return [it for it in present if abs(now - it.seen) < GONE_AFTER + 300]


# -- which jobs they have ----------------------------------------------------------------------


class _JobSet:
    """Names of jobs, as few bytes each. A name may seem to be in it that is not; not conversely."""

    def __init__(self, names: Iterable[str]) -> None:
        self.value = b"".join(sorted(map(_mark, names)))
        self.digest = blake2s(self.value, digest_size=8).hexdigest()

    @property
    def field(self) -> str:
        """Where it stands."""
        return SET + self.digest


def _mark(name: str) -> bytes:
    return blake2s(name.encode(), digest_size=_MARK).digest()


def read_sets(record: Record | None) -> dict[str, frozenset[bytes]]:
    """All sets that are told, by their digests."""
    fields = {} if record is None else record.fields
    return {
        name.removeprefix(SET): frozenset(_marks(field.value))
        for name, field in fields.items()
        if name.startswith(SET)
    }


def _marks(value: bytes) -> Iterable[bytes]:
    return (value[at : at + _MARK] for at in range(0, len(value), _MARK))


def had_by_nobody(name: str, up: Iterable[Present], sets: Mapping[str, frozenset[bytes]]) -> bool:
    """Whether instances are up, all of them say what they have, and none has this job."""
    mark, anybody = _mark(name), False
    for peer in up:
        anybody = True
        if peer.knows not in sets or mark in sets[peer.knows]:
            return False
    return anybody


# -- what is registered of it ------------------------------------------------------------------


def is_by_the_clock(facts: Mapping[str, Any]) -> bool:
    """Whether instances have it, and not an outside scheduler (`run --slot`)."""
    return "timezone" in facts


def gone_since(fields: Mapping[str, Field]) -> float | None:
    """Since when nobody has had it, as the sweep found."""
    since = read_job(fields).get(GONE)
    return float(since) if isinstance(since, int | float) else None


def _with_mark(fields: Mapping[str, Field], *, nobody: bool, now: float) -> bytes | None:
    """What to register now that nobody has it, or somebody does; None if that is there."""
    facts = read_job(fields)
    if nobody == (GONE in facts):
        return None
    facts = {**facts, GONE: now} if nobody else {k: v for k, v in facts.items() if k != GONE}
    return json.dumps(facts, separators=(",", ":")).encode()


# -- the part of one instance ------------------------------------------------------------------


class Presence:
    """One instance's signs of life, and its part in the sweep. Every method raises StoreError."""

    def __init__(self, link: Link, namespace: str, holder: str) -> None:
        self._store = link.store
        self._namespace = namespace
        self._holder = holder
        self._since = clock.wall()
        self._specs: Sequence[JobSpec] | None = None
        self._set = _JobSet(())
        self._set_written_at = 0.0
        self._signs: dict[str, float] = {}
        """Of the sweep before: by instance its sign of life."""

    def tell(self, specs: Sequence[JobSpec]) -> None:
        """Say that we live, and which jobs we have."""
        now = clock.now()
        if specs is not self._specs or now - self._set_written_at >= _WRITE_SET_EVERY:
            self._set = _JobSet(spec.name for spec in specs)
            self._put(KNOWN, self._set.field, self._set.value)
            self._specs, self._set_written_at = specs, now
        facts = encode(
            since=self._since, seen=clock.wall(), jobs=len(specs), knows=self._set.digest
        )
        self._put(PRESENCE, UP + self._holder, facts)

    def part(self) -> None:
        """Say goodbye, briefly."""
        self._put(PRESENCE, UP + self._holder, None, within=0.5)

    # -- the sweep -----------------------------------------------------------------------------

    def sweep(self, records: Sequence[Record]) -> None:
        """Forget who is long gone, and mark, then forget, the jobs that nobody has."""
        by_name = {record.key.name: record for record in records}
        present = presences(by_name[PRESENCE]) if PRESENCE in by_name else []
        known = by_name.get(KNOWN)
        self._forget_peers(present, known)
        up, sets = up_now(present, clock.wall()), read_sets(known)
        for record in records:
            if is_job_name(record.key.name) and is_by_the_clock(read_job(record.fields)):
                self._mark(record, up, sets)

    def _forget_peers(self, present: Sequence[Present], known: Record | None) -> None:
        now = clock.wall()
        # By our clock alone they might all be gone: it may be the one that is days ahead.
        before, self._signs = self._signs, {peer.instance: peer.seen for peer in present}
        living = [
            peer
            for peer in present
            if now - peer.seen <= _FORGOTTEN or before.get(peer.instance) != peer.seen
        ]
        for peer in present:
            if peer not in living:
                self._put(PRESENCE, UP + peer.instance, None)
        needed = {peer.knows for peer in living} | {self._set.digest}
        for name in () if known is None else known.fields:
            if name.startswith(SET) and name.removeprefix(SET) not in needed:
                self._put(KNOWN, name, None)

    def _mark(
        self, record: Record, up: Sequence[Present], sets: Mapping[str, frozenset[bytes]]
    ) -> None:
        name, fields, now = record.key.name, record.fields, clock.wall()
        nobody, since = had_by_nobody(name, up, sets), gone_since(fields)
        guard = ByVersion(fields[JOB].version)
        if nobody and since is not None and now - since > _FORGET_AFTER and not record.holdings:
            # Its runs, what the ledger forgot, and last the job.
            left = [it for it in fields if it.startswith((RUN, PRUNED))]
            for field in (*left, JOB):
                self._put(name, field, None, guard if field == JOB else None)
        elif (value := _with_mark(fields, nobody=nobody, now=now)) is not None:
            self._put(name, JOB, value, guard)

    def _put(
        self,
        key: str,
        field: str,
        value: bytes | None,
        guard: Guard = None,
        within: float = _WITHIN,
    ) -> None:
        until = clock.now() + within
        self._store.put(Key(self._namespace, key), field, value, guard, until)
