"""An instance's signs of life, and what the sweep makes of those of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from incumbent import clock
from incumbent.cron.control import PRESENCE, UP, Present, encode, is_job_name, presences, up_now
from incumbent.cron.known import (
    FORGET_AFTER,
    KNOWN,
    SET,
    JobSet,
    gone_since,
    had_by_nobody,
    is_by_the_clock,
    read_sets,
    told_anew,
    what_is_left,
)
from incumbent.cron.ledger import JOB, read_job
from incumbent.cron.spec import JobSpec
from incumbent.model import ByVersion, Guard, Key, Record
from incumbent.protocol.link import Link

__all__ = ["Census"]

_TELL_SET_EVERY: Final = 3600.0
"""Seconds: a sweep may have forgotten the set of an instance that was silent for long."""
_FORGOTTEN: Final = 86_400.0
"""Seconds after which an instance that vanished is named no more."""
_WITHIN: Final = 1.0


class Census:
    """Of one instance. Every method raises StoreError."""

    def __init__(self, link: Link, namespace: str, holder: str) -> None:
        self._store = link.store
        self._namespace = namespace
        self._holder = holder
        self._since = clock.wall()
        self._specs: Sequence[JobSpec] | None = None
        self._set = JobSet(())
        self._told_at = 0.0
        self._signs: dict[str, float] = {}
        """Of the sweep before: by instance its sign of life."""

    def tell(self, specs: Sequence[JobSpec]) -> None:
        """Say that we live, and which jobs we have."""
        now = clock.now()
        if specs is not self._specs or now - self._told_at >= _TELL_SET_EVERY:
            self._set = JobSet(spec.name for spec in specs)
            self._put(KNOWN, self._set.field, self._set.value)
            self._specs, self._told_at = specs, now
        said = encode(since=self._since, seen=clock.wall(), jobs=len(specs), knows=self._set.digest)
        self._put(PRESENCE, UP + self._holder, said)

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
        if nobody and since is not None and now - since > FORGET_AFTER and not record.holdings:
            for field in (*what_is_left(fields), JOB):
                self._put(name, field, None, guard if field == JOB else None)
        elif (value := told_anew(fields, nobody=nobody, now=now)) is not None:
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
