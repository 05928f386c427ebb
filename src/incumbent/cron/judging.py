"""Judge a slot by its job's record: record, claim or check again. Pure: the caller passes instants.

An instance that was refused a slot becomes its witness: it checks the slot again when the holder's
lease ends. So a run whose holder vanished is `lost` within a ttl, and retried if the job says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final
from zlib import crc32

from incumbent.cron.folds import Fold, fold_number, fold_of
from incumbent.cron.ledger import (
    RUN,
    SLOT_KEEP,
    SlotRecord,
    SlotState,
    alive,
    finished_spans,
    holds_slot,
    is_finished,
    known_slots,
    orphans,
    pruned_field_of,
    pruned_spans,
    read_job,
    recorded_run,
    runs_of,
    transition,
)
from incumbent.cron.schedule import parse_instant, slot_id
from incumbent.cron.spec import JobSlot, JobSpec, is_scheduled
from incumbent.errors import ConfigError
from incumbent.model import Field, Record
from incumbent.rules.notices import PAUSE
from incumbent.stores.findings import said_by

CLOCK_SPREAD: Final = 300.0
"""Seconds by which the clocks of one fleet may be apart."""
STEP: Final = 5.0
"""Seconds: a clock that is set back by less is waited for."""
MISSED_AFTER: Final = CLOCK_SPREAD + 60.0
"""Seconds after which a slot without a record counts as missed."""
LOOK_BACK: Final = 32
"""The records whose gaps are checked: an outage may have hidden a slot between two others."""
LOOK_BACK_FOR: Final = 1800.0
"""Seconds whose gaps are checked, however many records: the fleet sweeps every 10 minutes."""
_REPORTS_WITHIN: Final = 5.0
"""Seconds in which the instance that claimed a slot records its run."""
_SOON: Final = 1.0
_COUNTED: Final = 10_000
_PUNCTUAL_LEAST, _PUNCTUAL_MOST = 2.0, 60.0
_PUNCTUAL_AT_ONCE: Final = 3
"""The most punctual slots if one is due each second: with jitter they start up to 1 s later."""


@dataclass(slots=True)
class Findings:
    """The runs to record as lost, the slots to record as `unrun`, to claim, and to check later."""

    lost: list[tuple[SlotRecord, int, str]] = field(default_factory=list)
    unrun: list[SlotRecord] = field(default_factory=list)
    claims: list[JobSlot] = field(default_factory=list)
    rechecks: list[tuple[float, JobSlot]] = field(default_factory=list)


def judge(spec: JobSpec, record: Record, slots: Iterable[JobSlot], now: float) -> Findings:
    """The findings on these slots, and on every run whose holder vanished; `now`: wall clock."""
    found = Findings()
    for run, version in orphans(record):
        found.lost.append((run, version, f"{run.instance} vanished"))
        _retry(spec, record, transition(run, SlotState.LOST), now, found)
    for slot in slots:
        _judge_slot(spec, record, slot, now, found)
    found.unrun = _collapsed(spec, record, found.unrun, now)
    return found


def _judge_slot(spec: JobSpec, record: Record, slot: JobSlot, now: float, found: Findings) -> None:
    run = recorded_run(record.fields, slot.name)
    if run is not None:
        # A worker that was killed just after it recorded its run as lost still holds the lease.
        if (run.state is SlotState.LOST or not run.state.ended) and alive(record, run):
            found.rechecks.append((_lease_ends(record), slot))
        elif run.state is SlotState.LOST:
            _retry(spec, record, run, now, found)
    elif is_finished(record.fields, slot.name, slot.due):
        return
    elif holds_slot(record, slot.name):
        found.rechecks.append((_lease_ends(record), slot))
    elif slot.name in record.slots:
        _claimed_unreported(record, slot, found)
    else:
        _unclaimed(spec, record, slot, now, found)


def _retry(spec: JobSpec, record: Record, run: SlotRecord, now: float, found: Findings) -> None:
    """Claim the next attempt of a lost run, if it has one left; judge it if it is on record."""
    slot = JobSlot(run.slot, run.due, run.attempt, triggered_by=run.triggered_by)
    following = slot.next_attempt()
    if RUN + following.name in record.fields:
        # Another instance has begun the attempt: whoever witnessed this run witnesses that, too.
        _judge_slot(spec, record, following, now, found)
    elif is_retried(spec, run, now) and following not in found.claims:
        found.claims.append(following)


def is_retried(spec: JobSpec, run: SlotRecord, now: float) -> bool:
    """Whether a lost run has another attempt to come; else it has failed for good."""
    return run.attempt <= spec.retries and run.due >= now - max(spec.catch_up.window, MISSED_AFTER)


def fails_for_good(spec: JobSpec, run: SlotRecord, now: float) -> bool:
    """Whether a run that was just recorded has begun and ended, with no attempt to come."""
    if run.state is SlotState.SKIPPED:
        # A retry that was skipped: the attempt before it was the last one.
        return run.attempt > 1
    return run.state is SlotState.LOST and not is_retried(spec, run, now)


def _claimed_unreported(record: Record, slot: JobSlot, found: Findings) -> None:
    age = SLOT_KEEP - record.slots[slot.name]
    if age < _REPORTS_WITHIN:
        found.rechecks.append((_REPORTS_WITHIN - age + _SOON, slot))
        return
    # By the store's own count of how long ago it was claimed: the instances' clocks may differ.
    why = "claimed, and its holder vanished before it began"
    found.unrun.append(_record(slot, SlotState.LOST, why))
    # Once it is recorded as lost, it may be retried.
    found.rechecks.append((_SOON, slot))


def _unclaimed(spec: JobSpec, record: Record, slot: JobSlot, now: float, found: Findings) -> None:
    holder = record.holdings[0] if record.holdings else None
    # The pause first: it is the reason why nobody claimed the slot, whatever else holds.
    if PAUSE in record.fields:
        why = f"paused{said_by(record, PAUSE)}"
    elif slot.only_check:
        _wait_or_miss(slot, now, found)
        return
    elif holder is not None and (spec.overlap == "queue" or slot.waits_its_turn):
        # It was in time, and must not count as late when its turn comes.
        waiting = replace(slot, waits_its_turn=True)
        found.rechecks.append((min(_SOON, holder.remaining or _SOON), waiting))
        return
    elif holder is not None:
        runs = holder.meta.decode("utf-8", "replace")
        shown = runs and runs.isprintable() and len(runs) < 60
        why = f"held by {holder.holder}" + (f", which runs {runs}" if shown else "")
    elif record.closed_for > 0:
        why = "closed: the run before asked for at_least_for"
    else:
        found.claims.append(slot)
        return
    found.unrun.append(_record(slot, SlotState.SKIPPED, why))


NOT_CLAIMED: Final = "no instance claimed it in time: none was up, or none reached the store"


def _wait_or_miss(slot: JobSlot, now: float, found: Findings) -> None:
    left = slot.due + MISSED_AFTER - now
    if left > 0:
        found.rechecks.append((left + _SOON, slot))
    else:
        found.unrun.append(_record(slot, SlotState.MISSED, NOT_CLAIMED))


def _record(slot: JobSlot, state: SlotState, why: str) -> SlotRecord:
    who = slot.triggered_by
    return SlotRecord(slot.name, state, slot.due, attempt=slot.attempt, why=why, triggered_by=who)


def _lease_ends(record: Record) -> float:
    left = min(
        (holding.remaining for holding in record.holdings if holding.remaining is not None),
        default=_SOON,
    )
    # A little later: the store's clock and ours do not tick together.
    return max(0.0, left) + 0.05


def _collapsed(
    spec: JobSpec, record: Record, unrun: list[SlotRecord], now: float
) -> list[SlotRecord]:
    """Replace several missed slots by one record: the last, with their number and the first.

    It reaches back to the last slot accounted for: of very many missed slots, only the last ones
    are checked.
    """
    missed = sorted(
        (run for run in unrun if run.state is SlotState.MISSED), key=lambda run: run.due
    )
    if not missed:
        return unrun
    first = missed[0].due
    before = _accounted_before(record, first)
    if before is not None:
        following = spec.schedule.next_after(before)
        if following is not None and following < min(first, now - MISSED_AFTER):
            first = following
    count = len(missed) + _count_between(spec, first, missed[0].due)
    if count > 1:
        missed = [replace(missed[-1], count=count, first=first)]
    return [*(run for run in unrun if run.state is not SlotState.MISSED), *missed]


def _accounted_before(record: Record, due: float) -> float | None:
    known = [run.due for run, _ in runs_of(record.fields).values() if run.due < due]
    since = _registered_since(record)
    if since is not None and since < due:
        known.append(since)
    known += [last for _, last in pruned_spans(record.fields) if last < due]
    return max(known, default=None)


def _count_between(spec: JobSpec, first: float, end: float) -> int:
    """The number of slots from `first` until before `end`, counted up to _COUNTED."""
    count, due = 0, first if first < end else None
    while due is not None and due < end and count < _COUNTED:
        count += 1
        due = spec.schedule.next_after(due)
    return count


# -- catching up ----------------------------------------------------------------------------------


def start_of(spec: JobSpec, due: float) -> float:
    """The start of a slot: late by jitter, but before the next slot; equal in all instances."""
    if not spec.jitter:
        return due
    following = spec.schedule.next_after(due)
    room = spec.jitter if following is None else min(spec.jitter, following - due)
    return due + room * crc32(f"{spec.name} {slot_id(due)}".encode()) / 2**32


def missed_slots(
    spec: JobSpec, last_known: float, now: float
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """(slots to run, slots to record as missed), both ascending, after `last_known` until `now`.

    A slot is punctual until the next one is due, for at least 2 and at most 60 s: a punctual slot
    runs whatever the catch-up rule says. Of very many slots only the last ones are returned, as
    many as the history keeps.
    """
    rule = spec.catch_up
    # Keep at least one missed slot: its record reaches back to the last slot accounted for.
    most = max(rule.limit, spec.keep_runs) + _PUNCTUAL_AT_ONCE + 1
    dues = _latest(spec, last_known, now, most=most)
    punctual = tuple(due for due in dues[-70:] if is_punctual(spec, due, now))
    late = dues[: len(dues) - len(punctual)]
    wanted = {"no": 0, "last": 0 if punctual else 1, "all": rule.limit}[rule.mode]
    young = [due for due in late if due >= now - rule.window]
    caught = tuple(young[max(0, len(young) - wanted) :])
    missed = late[: len(late) - len(caught)]
    return caught + punctual, missed


def is_punctual(spec: JobSpec, due: float, now: float) -> bool:
    following = spec.schedule.next_after(due)
    gap = _PUNCTUAL_MOST if following is None else following - due
    return now - start_of(spec, due) < min(max(gap, _PUNCTUAL_LEAST), _PUNCTUAL_MOST)


def _latest(spec: JobSpec, after: float, now: float, *, most: int) -> tuple[float, ...]:
    """The last `most` ready slots; looks back twice as far each time, until there are enough."""
    back = _PUNCTUAL_MOST
    while True:
        start = max(after, now - back)
        found = deque(_ready_dues(spec, start, now), maxlen=most)
        if start == after or len(found) == most:
            return tuple(found)
        back *= 2


def _ready_dues(spec: JobSpec, after: float, now: float) -> Iterator[float]:
    due = spec.schedule.next_after(after)
    while due is not None and due <= now and start_of(spec, due) <= now:
        yield due
        due = spec.schedule.next_after(due)


# -- at the start ----------------------------------------------------------------------------------


def known_until(spec: JobSpec, record: Record) -> float | None:
    """The last instant that the ledger accounts for; None for a job that begins now."""
    facts = read_job(record.fields)
    if facts.get("schedule") != spec.schedule.describe():
        return None
    since = _registered_since(record)
    known = [run.due for run, _ in runs_of(record.fields).values() if is_scheduled(run.slot)]
    return max(known if since is None else [*known, since], default=None)


def _registered_since(record: Record) -> float | None:
    """The instant since which the job has been on record; None if the record does not say."""
    since = read_job(record.fields).get("since")
    return float(since) if isinstance(since, int | float) else None


def retry_due(spec: JobSpec, record: Record, now: float) -> JobSlot | None:
    """The slot of the last recorded run, if that is lost and has an attempt to come."""
    if not spec.retries or not (runs := runs_of(record.fields)):
        return None
    *_, (run, _) = runs.values()
    if run.state is not SlotState.LOST or not is_retried(spec, run, now):
        return None
    return JobSlot(run.slot, run.due, run.attempt)


def gaps(spec: JobSpec, record: Record) -> list[JobSlot]:
    """The slots in the gaps between the recorded slots."""
    runs = [run for run, _ in runs_of(record.fields).values() if is_scheduled(run.slot)]
    until = known_until(spec, record)
    if until is None or not runs:
        return []
    since = _registered_since(record) or 0.0
    oldest = runs[-LOOK_BACK].due if len(runs) >= LOOK_BACK else since
    oldest = min(oldest, until - LOOK_BACK_FOR)
    taken = known_slots(record)
    finished = finished_spans(record.fields)
    to_run, missed = missed_slots(spec, max(oldest, since), until)
    fold = fold_of(record.fields)
    return [
        JobSlot.at(due, only_check=True)
        for due in sorted((*to_run, *missed))
        if due < until
        and slot_id(due) not in taken
        and not fold.covers(due)
        and not any(first <= due <= last for first, last in finished)
    ]


# -- clocks that were set back ---------------------------------------------------------------------

_FARTHEST: Final = 86_400.0
"""Seconds ahead of our clock that a fold reaches at most: some clock may have been a year off."""


def is_ahead(fields: Mapping[str, Field], wall: float, latest_wall: float) -> bool:
    """Whether slots are on record that our clock has not reached since it was set back, or that no
    clock of a fleet can have reached.

    `wall`: our wall clock. `latest_wall`: the latest instant that it has shown.
    """
    return _is_stale(_latest_known(fields, wall), wall, latest_wall)


def next_fold(
    record: Record, wall: float, latest_wall: float, others: Iterable[float]
) -> Fold | None:
    """The fold to write, because the record is ahead of every clock; None if it is not.

    `others`: the clocks of the other living instances. If one of them is nearer to the record than
    to our clock, only our clock is behind, and the others go on.
    """
    before, latest = fold_of(record.fields), _latest_known(record.fields, wall)
    middle = (wall + latest) / 2
    others = list(others)
    if not _is_stale(latest, wall, latest_wall) or any(clock > middle for clock in others):
        return None
    # Slots that others ran since the clocks were set back must not run again.
    runs = [run for run, _ in runs_of(record.fields).values() if is_scheduled(run.slot)]
    newest = max(runs, key=lambda run: run.token, default=None)
    since = max((wall, *others))
    if newest is not None and not _is_stale(newest.due, wall, latest_wall):
        since = max(since, newest.due)
    # An earlier fold that is not over yet has used these instants, too.
    if before.until > wall:
        latest = max(latest, before.until)
    return Fold(before.number + 1, since, latest)


def _is_stale(due: float, wall: float, latest_wall: float) -> bool:
    was_set_back = latest_wall - wall > STEP and wall < due <= latest_wall + CLOCK_SPREAD
    return was_set_back or due > wall + CLOCK_SPREAD


def _latest_known(fields: Mapping[str, Field], wall: float) -> float:
    """The latest instant that is accounted for and has not come again since; -inf if there is none.

    By the names alone, which sort by their instants: every check asks for it.
    """
    fold, farthest = fold_of(fields), slot_id(wall + _FARTHEST)
    beyond = slot_id(fold.until) if fold.number > 1 else ""
    latest = ""
    for name in fields:
        if name.startswith(RUN) and is_scheduled(slot_name := name.removeprefix(RUN)):
            instant = slot_name.partition("#")[0].partition("~")[0]
            if latest < instant <= farthest and (
                instant > beyond or fold_number(slot_name) == fold.number
            ):
                latest = instant
    ends = [last for _, last in pruned_spans(fields, pruned_field_of(fold.number))]
    if fold.number > 1:
        ends += [last for _, last in pruned_spans(fields) if last > fold.until]
    try:
        ends.append(parse_instant(latest))
    except ConfigError:
        pass  # There is none, or it is the slot name of another scheduler.
    return max((end for end in ends if end <= wall + _FARTHEST), default=-inf)
