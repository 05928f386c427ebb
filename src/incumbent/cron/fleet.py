"""The messages between the instances of a fleet, and the facts about jobs in records.

Triggers, and the pause of all jobs, are fields of one key, CONTROL, on which every instance waits.
Signs of life are fields of another key, PRESENCE, on which no instance waits, so that a sign wakes
none. A sign of life names the instance's set of jobs by a digest. The members of a set are stored
once, in a field of KNOWN, as instances with the same file have the same set.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2s
from typing import Any, Final

from incumbent import clock, meters
from incumbent.cron.folds import FOLD
from incumbent.cron.ledger import (
    JOB,
    PRUNED,
    RUN,
    TAIL,
    SlotRecord,
    SlotState,
    read_job,
    read_value,
    running,
    runs_of,
)
from incumbent.cron.schedule import Every, Schedule, cron_schedule
from incumbent.cron.spec import JobSpec
from incumbent.durations import parse_duration
from incumbent.errors import ConfigError
from incumbent.model import ByVersion, Field, Guard, Key, Record
from incumbent.rules.notices import PAUSE
from incumbent.runtime.link import Link

CONTROL: Final = "@cron"
SWEEP: Final = "@cron/sweep"
TRIGGER: Final = "trigger/"
STALE: Final = 600.0
"""Seconds after which a trigger that no instance took is void."""


@dataclass(frozen=True, slots=True)
class Trigger:
    """An operator's request for one run now."""

    id: str
    job: str
    when: float
    who: str = ""
    reason: str = ""

    @property
    def slot(self) -> str:
        """The name of the slot of this run."""
        return f"manual/{self.id}"

    @property
    def said(self) -> str:
        """Who asked for it, and why."""
        return f"{self.who} ({self.reason})" if self.reason else self.who

    @property
    def field(self) -> str:
        """The field of CONTROL that holds the trigger until its run has ended."""
        return TRIGGER + self.id

    @property
    def value(self) -> bytes:
        """The value of that field."""
        return encode(job=self.job, when=self.when, who=self.who, reason=self.reason)


def encode(**facts: Any) -> bytes:
    """The facts as the value of a field."""
    return json.dumps(facts, separators=(",", ":")).encode()


def triggers(record: Record) -> list[Trigger]:
    """The triggers in the record of CONTROL, oldest first."""
    found = []
    for name, field in record.fields.items():
        if name.startswith(TRIGGER):
            facts = read_value(field.value)
            job, when = facts.get("job"), facts.get("when")
            if isinstance(job, str) and isinstance(when, int | float):
                who, reason = str(facts.get("who", "")), str(facts.get("reason", ""))
                found.append(Trigger(name.removeprefix(TRIGGER), job, float(when), who, reason))
    return sorted(found, key=lambda trigger: trigger.when)


def pause_of(record: Record) -> bytes | None:
    """The value of the pause of all jobs; None if there is no pause."""
    field = record.fields.get(PAUSE)
    return None if field is None else field.value


def is_job_name(name: str) -> bool:
    """Whether a key may be a job's: incumbent's own keys begin with an @."""
    return not name.startswith("@")


# -- instances that are up -------------------------------------------------------------------------

PRESENCE: Final = "@cron/up"
UP: Final = "up/"
PRESENT_EVERY: Final = 30.0
"""The most seconds between signs of life: a ttl, if that is shorter. An instance counts as gone
after three times this without one."""
# Seconds by which the clocks of two instances may differ without one being called silent.
_SILENT_LEAST: Final = 10.0
GONE_AFTER: Final = 3 * PRESENT_EVERY
KNOWN: Final = "@cron/jobs"
SET: Final = "set/"
GONE: Final = "gone"
"""The fact registered of a job with the instant since which no instance has had the job."""
# Seconds after which the records of a job that no instance has are removed.
_FORGET_AFTER: Final = 30 * 86_400.0
_DIGEST_SIZE: Final = 4
# Seconds between writes of a set: a sweep may have removed that of a long silent instance.
_WRITE_SET_EVERY: Final = 3600.0
# Seconds after which the sign of life of a vanished instance is removed.
_FORGOTTEN: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class SignOfLife:
    """The last report of an instance on itself. Instants are by its own wall clock."""

    instance: str
    since: float
    seen: float
    jobs: int = 0
    job_set: str = ""
    """The digest of the set of its jobs."""
    every: float = PRESENT_EVERY
    """Seconds between its signs of life."""

    def is_silent(self, now: float) -> bool:
        """Whether three signs of life are overdue, for display: the clocks are not compared."""
        return now - self.seen >= max(_SILENT_LEAST, 3 * self.every)


class Peers:
    """The living instances, found without trusting any clock: each changes its sign of life."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}

    def living(self, present: Iterable[SignOfLife], now: float) -> list[tuple[SignOfLife, float]]:
        """The living instances, each with the seconds since its sign of life was new to us.

        `now` counts seconds on the caller's steady clock. An instance that is new to us counts as
        living until three signs of life are overdue.
        """
        found = []
        # Those of instances that are present: each restart of an instance may bring a new name.
        before, self._seen = self._seen, {}
        for peer in present:
            seen, since = before.get(peer.instance, (None, now))
            if seen != peer.seen:
                # Their instant is only compared with itself; how long ago it changed is by our own
                # clock.
                since = now
            self._seen[peer.instance] = (peer.seen, since)
            if now - since < 3 * PRESENT_EVERY:
                found.append((peer, now - since))
        return found

    def any_behind(self, present: Iterable[SignOfLife], instant: float, now: float) -> bool:
        """Whether a living instance has not reached `instant` by its own clock."""
        return any(peer.seen < instant for peer, _ in self.living(present, now))

    def clocks(self, present: Iterable[SignOfLife], now: float, excluded: str) -> list[float]:
        """The least that the clocks of the living instances show, except that of `excluded`."""
        living = self.living(present, now)
        return [peer.seen + ago for peer, ago in living if peer.instance != excluded]


def presences(record: Record) -> list[SignOfLife]:
    """All instances in the record of PRESENCE, however old their signs of life are."""
    found = []
    for name, field in record.fields.items():
        facts = read_value(field.value) if name.startswith(UP) else {}
        since, seen, jobs = facts.get("since"), facts.get("seen"), facts.get("jobs")
        if isinstance(since, int | float) and isinstance(seen, int | float):
            jobs = jobs if isinstance(jobs, int) else 0
            job_set = str(facts.get("knows", ""))
            every = facts.get("every")
            every = float(every) if isinstance(every, int | float) else PRESENT_EVERY
            found.append(SignOfLife(name.removeprefix(UP), since, seen, jobs, job_set, every))
    return sorted(found, key=lambda peer: peer.instance)


def up_now(present: Iterable[SignOfLife], now: float) -> list[SignOfLife]:
    """The instances with a recent sign of life; their clocks may be 5 minutes off."""
    return [peer for peer in present if abs(now - peer.seen) < GONE_AFTER + 300]


# -- the jobs of the instances -----------------------------------------------------------------


def _name_digest(name: str) -> bytes:
    """A short digest of a name; two names may share one, so a job may wrongly seem in a set."""
    return blake2s(name.encode(), digest_size=_DIGEST_SIZE).digest()


@dataclass(frozen=True, slots=True)
class UpInstances:
    """The instances that are up, and the jobs that they have."""

    instances: tuple[SignOfLife, ...]
    sets: Mapping[str, frozenset[bytes]]
    """The sets of jobs by digest, each as the digests of its names."""

    def all_lack(self, name: str) -> bool:
        """Whether instances are up, the jobs of all of them are known, and none has this job."""
        digest, known = _name_digest(name), [self.sets.get(peer.job_set) for peer in self.instances]
        return bool(known) and all(jobs is not None and digest not in jobs for jobs in known)

    def is_gone(self, record: Record) -> bool:
        """Whether no instance has this job, although it is scheduled by instances."""
        return is_by_the_clock(read_job(record.fields)) and self.all_lack(record.key.name)


def read_up(present: Record | None, known: Record | None, now: float) -> UpInstances:
    """Read the records of PRESENCE and KNOWN; either may be None."""
    sets = {}
    for name, field in ({} if known is None else known.fields).items():
        if name.startswith(SET):
            starts = range(0, len(field.value), _DIGEST_SIZE)
            digests = (field.value[at : at + _DIGEST_SIZE] for at in starts)
            sets[name.removeprefix(SET)] = frozenset(digests)
    peers = () if present is None else presences(present)
    return UpInstances(tuple(up_now(peers, now)), sets)


# -- facts registered of a job -----------------------------------------------------------------


def is_by_the_clock(facts: Mapping[str, Any]) -> bool:
    """Whether instances schedule the job, and not an outside scheduler (`run --slot`)."""
    return "timezone" in facts


def gone_since(fields: Mapping[str, Field]) -> float | None:
    """The instant since which no instance has had the job, as the sweep found; else None."""
    since = read_job(fields).get(GONE)
    return float(since) if isinstance(since, int | float) else None


# -- the part of one instance ------------------------------------------------------------------


class Presence:
    """One instance's signs of life, and its part in the sweep. Every method raises StoreError."""

    def __init__(
        self, link: Link, namespace: str, holder: str, every: float = PRESENT_EVERY
    ) -> None:
        self._store = link.store
        self.every: Final = every
        """Seconds between signs of life."""
        self._namespace = namespace
        self._holder = holder
        self._since = clock.wall()
        self._specs: Sequence[JobSpec] | None = None
        self._set = ""
        """The digest of the set of this instance's jobs."""
        self._set_written_at = 0.0
        self._signs: dict[str, float] = {}
        """The sign of life of each instance, as of the sweep before."""

    def write_sign(self, specs: Sequence[JobSpec]) -> None:
        """Write this instance's sign of life, and the set of its jobs."""
        now = clock.now()
        if specs is not self._specs or now - self._set_written_at >= _WRITE_SET_EVERY:
            digests = b"".join(sorted(_name_digest(spec.name) for spec in specs))
            self._set = blake2s(digests, digest_size=8).hexdigest()
            # Before the sign: that must not name a set which nobody can read.
            self._put(KNOWN, SET + self._set, digests)
            self._specs, self._set_written_at = specs, now
        facts = {"since": self._since, "seen": clock.wall(), "jobs": len(specs)}
        sign = encode(**facts, knows=self._set, every=self.every)
        self._put(PRESENCE, UP + self._holder, sign)

    def remove_sign(self) -> None:
        """Remove this instance's sign of life, without waiting long for the store."""
        self._put(PRESENCE, UP + self._holder, None, within=0.5)

    # -- the sweep -----------------------------------------------------------------------------

    def sweep(self, records: Sequence[Record]) -> None:
        """Remove instances that are long gone; mark, later remove, jobs that no instance has."""
        by_name = {record.key.name: record for record in records}
        present, known = by_name.get(PRESENCE), by_name.get(KNOWN)
        self._forget_peers([] if present is None else presences(present), known)
        up = read_up(present, known, clock.wall())
        for record in records:
            if is_job_name(record.key.name) and is_by_the_clock(read_job(record.fields)):
                self._mark_gone(record, nobody=up.all_lack(record.key.name))

    def _forget_peers(self, present: Sequence[SignOfLife], known: Record | None) -> None:
        now = clock.wall()
        # Our clock alone is no proof: if it is days ahead, all others would seem to be gone.
        before, self._signs = self._signs, {peer.instance: peer.seen for peer in present}
        needed = {self._set}
        for peer in present:
            if now - peer.seen <= _FORGOTTEN or before.get(peer.instance) != peer.seen:
                needed.add(peer.job_set)
            else:
                self._put(PRESENCE, UP + peer.instance, None)
        for name in () if known is None else known.fields:
            if name.startswith(SET) and name.removeprefix(SET) not in needed:
                self._put(KNOWN, name, None)

    def _mark_gone(self, record: Record, *, nobody: bool) -> None:
        name, fields, now = record.key.name, record.fields, clock.wall()
        since, guard, facts = gone_since(fields), ByVersion(fields[JOB].version), read_job(fields)
        if nobody and since is not None and now - since > _FORGET_AFTER and not record.holdings:
            # Remove the runs, the spans of removed records, and last the job.
            for field in [field for field in fields if field.startswith((RUN, PRUNED, FOLD, TAIL))]:
                self._put(name, field, None)
            self._put(name, JOB, None, guard)
        elif nobody and GONE not in facts:
            self._put(name, JOB, encode(**facts, **{GONE: now}), guard)
        elif not nobody and GONE in facts:
            del facts[GONE]
            self._put(name, JOB, encode(**facts), guard)

    def _put(
        self, key: str, field: str, value: bytes | None, guard: Guard = None, within: float = 1.0
    ) -> None:
        until = clock.now() + within
        with meters.asking():
            self._store.put(Key(self._namespace, key), field, value, guard, until)


# -- jobs in records -------------------------------------------------------------------------------


def jobs_of(records: Iterable[Record]) -> list[Record]:
    """The records of jobs."""
    return [record for record in records if is_job(record)]


def is_job(record: Record) -> bool:
    """Whether the record is that of a job."""
    return is_job_name(record.key.name) and JOB in record.fields


def runs_in(record: Record) -> list[SlotRecord]:
    """All recorded runs, oldest first; an open run without a holder is returned as lost."""
    alive = {run.slot for run in running(record)}
    return [
        run
        if run.state.ended or run.slot in alive
        else replace(run, state=SlotState.LOST, why=run.why or f"{run.instance} vanished")
        for run, _ in runs_of(record.fields).values()
    ]


NOT_WELL: Final = (SlotState.FAILED, SlotState.TIMED_OUT, SlotState.LOST, SlotState.MISSED)


def failure_of(runs: Iterable[SlotRecord]) -> SlotRecord | None:
    """The last run that ended, unless it ended well; skipped runs do not count."""
    ended = [run for run in runs if run.state.ended and run.state is not SlotState.SKIPPED]
    return ended[-1] if ended and ended[-1].state in NOT_WELL else None


def result_of(run: SlotRecord) -> str:
    """The run's state, with its exit code and its count if they matter."""
    times = f" x{run.count}" if run.count > 1 else ""
    code = f" ({run.code})" if run.code and run.state is SlotState.FAILED else ""
    return f"{str(run.state).replace('_', ' ')}{code}{times}"


def output_said(run: SlotRecord) -> str:
    """What the output is, if it is not whole; the instant when it was seen is to follow."""
    if run.output_seen is None:
        return ""
    return "lost; its output was seen last at " if run.state.ended else "output so far, seen at "


def why_and_who(run: SlotRecord) -> str:
    """Why the run ended so, and who asked for it; "" if there is nothing to say."""
    who = f"triggered by {run.triggered_by}" if run.triggered_by else ""
    return "; ".join(part for part in (run.why, who) if part)


def next_slot(record: Record, now: float) -> float | None:
    """The job's next slot by its registered schedule; None if that does not define one."""
    facts = read_job(record.fields)
    schedule = schedule_of(str(facts.get("schedule", "")), str(facts.get("timezone", "UTC")))
    return None if schedule is None else schedule.next_after(now)


def schedule_of(text: str, zone: str) -> Schedule | None:
    """The schedule that an instance registered; None if its text does not define one."""
    expression = text.removesuffix(f" ({zone})")
    try:
        if expression.startswith("every "):
            return Every(parse_duration(expression.removeprefix("every "), "every"))
        return None if expression.startswith("at ") else cron_schedule(expression, zone)
    except (ConfigError, ImportError):
        return None
