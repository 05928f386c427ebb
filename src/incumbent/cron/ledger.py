"""The ledger: the outcome of each slot of a job, and the rules for writing it.

A slot is a job's scheduled instant. Two things keep it from running twice: the store grants a slot
once (`Ask.slot`), and its record, a field `run/<slot>` of the job's key, is made once (ABSENT).

1. Only the holder of a run's token may change its record while it runs. Other processes may only
   set it to `lost`, and only if that token no longer holds the lease.
2. A record that has ended never changes again.

Functions that read a record are pure. Each write (`Ledger`) is one small request: a coroutine
against a port, like the protocols of a lease, which blocking code drives in one step.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from math import inf
from typing import Any, Final, Protocol, TypeVar

from incumbent import meters
from incumbent.cron.folds import FOLD, Fold, encode_fold, fold_number, fold_of
from incumbent.cron.spec import is_scheduled
from incumbent.durations import backoff_delay
from incumbent.errors import Error, OutcomeUnknown, StoreError
from incumbent.model import (
    ABSENT,
    ByClaim,
    ByVersion,
    Field,
    Guard,
    Key,
    PutOutcome,
    Record,
    Stored,
)
from incumbent.protocol.port import Port

RUN: Final = "run/"
TAIL: Final = "tail"
"""The field with the end of what the job's command has written so far, for people who look.

It names the run, and is no part of the run's record: a write of it whose reply was lost may be
applied after the run's end is on record.
"""
# Less than a record keeps: it is written again and again while the run goes on.
TAIL_MOST: Final = 4096
JOB: Final = "job"
"""The field with the facts registered of the job: its schedule, its command, since when."""
SLOT_KEEP: Final = 900.0
"""Seconds for which the store refuses a claimed slot: clocks may be 5 minutes apart both ways.

After that the slot's record keeps it from running again, for as long as the record is kept.
"""
OUTPUT_MOST: Final = 65_536
PRUNED: Final = "pruned"
"""The field with the spans of time whose records were removed: no slot in them runs any more.

Spans, and not one instant: a clock that is a year ahead leaves records a year ahead, which are
removed too. Manual slots have a field of their own: their instants come from operators' clocks.
"""
# Beyond these the smallest gaps are closed. What is in a closed gap never runs: the safe side.
_SPANS_MOST: Final = 16
_Spans = tuple[tuple[float, float], ...]
_FORMAT: Final = 1


class SlotState(StrEnum):
    """The state of a slot."""

    RUNNING = "running"
    WAITING = "waiting"
    OK = "ok"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    LOST = "lost"
    SKIPPED = "skipped"
    MISSED = "missed"

    @property
    def ended(self) -> bool:
        """Whether the state is final."""
        return self not in _NOT_ENDED


_S = SlotState
# A page asks thousands of times: looking members up at their class takes several times as long.
_NOT_ENDED = (_S.RUNNING, _S.WAITING)
_BY_WORD: Final = {str(state): state for state in SlotState}
_ENDS = frozenset({_S.OK, _S.FAILED, _S.TIMED_OUT, _S.LOST})
TRANSITIONS: Final[dict[SlotState | None, frozenset[SlotState]]] = {
    # No record: the slot was not claimed, or its holder vanished before it wrote.
    None: frozenset({_S.RUNNING, _S.SKIPPED, _S.MISSED, _S.LOST}),
    # From RUNNING to RUNNING: the next attempt.
    _S.RUNNING: frozenset({_S.RUNNING, _S.WAITING}) | _ENDS,
    # Between two attempts, with the lease held.
    _S.WAITING: frozenset({_S.RUNNING, _S.FAILED, _S.TIMED_OUT, _S.LOST}),
    **{state: frozenset() for state in SlotState if state.ended},
}


class IllegalTransition(Error, ValueError):
    """A change of state that TRANSITIONS does not have."""


@dataclass(frozen=True, slots=True)
class SlotRecord:
    """One slot's record: a `run`, or why there was none. Instants: the writer's epoch seconds.

    `due`: the scheduled instant. `attempt` counts from 1. `code`: the exit code. `why`: in words.
    `count`: the slots that this record stands for, `first`: the first of them (for missed slots).
    `triggered_by`: the operator who asked for it, with the reason; "" for a slot of the schedule.
    `output_seen`: the instant of `output`, if that was read before the end; else it is whole.
    """

    slot: str
    state: SlotState
    due: float
    instance: str = ""
    token: int = 0
    started: float | None = None
    ended: float | None = None
    code: int | None = None
    attempt: int = 1
    why: str = ""
    output: str = ""
    count: int = 1
    first: float | None = None
    triggered_by: str = ""
    output_seen: float | None = None

    @property
    def seconds(self) -> float | None:
        """The duration of the run; None if it is not known."""
        if self.started is None or self.ended is None:
            return None
        return max(0.0, self.ended - self.started)

    @property
    def since(self) -> float:
        """The first instant that the record accounts for."""
        return self.due if self.first is None else self.first


def transition(run: SlotRecord, state: SlotState, **changes: Any) -> SlotRecord:
    """`run` in its next state. Raises IllegalTransition if TRANSITIONS does not have that one."""
    if state not in TRANSITIONS[run.state]:
        raise IllegalTransition(f"{run.slot}: {run.state} cannot become {state}")
    return replace(run, state=state, **changes)


# -- encoding ------------------------------------------------------------------------------------

_DEFAULTS: Final = {field.name: field.default for field in fields(SlotRecord)}
_parse: Final = json.JSONDecoder().decode
_STORED: Final = _DEFAULTS.keys() - {"slot"}


def encode(run: SlotRecord) -> bytes:
    """The run as a field's value; the slot is in the field's name."""
    stored = {k: v for k, v in asdict(run).items() if k != "slot" and v != _DEFAULTS[k]}
    return json.dumps({"v": _FORMAT, **stored}, separators=(",", ":"), ensure_ascii=False).encode()


def decode(slot_name: str, value: bytes) -> SlotRecord | None:
    """The run; None if the value is in another format.

    Its slot counts as taken all the same.
    """
    try:
        stored = _parse(value.decode())
        if stored.pop("v") != _FORMAT:
            return None
        stored["state"] = _BY_WORD[stored["state"]]
        if not stored.keys() <= _STORED:
            stored = {key: it for key, it in stored.items() if key in _STORED}
        run = SlotRecord(slot_name, **stored)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return run if _is_sound(run) else None


_LATEST: Final = 253_402_300_799.0
"""The last second of the year 9999: no later instant can be shown."""


def _is_sound(run: SlotRecord) -> bool:
    return (
        _is_number(run.due)
        and (run.started is None or _is_number(run.started))
        and (run.ended is None or _is_number(run.ended))
        and (run.first is None or _is_number(run.first))
        and (run.output_seen is None or _is_number(run.output_seen))
        and (run.code is None or _is_number(run.code))
        and all(isinstance(each, int) for each in (run.token, run.attempt, run.count))
        and all(isinstance(each, str) for each in (run.instance, run.why, run.output))
        and isinstance(run.triggered_by, str)
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and -_LATEST <= value <= _LATEST


_UNREADABLE: Final = 0.0
"""The `due` of a record that cannot be read."""
_MANY: Final = b'"count":'
_RUNNING: Final = b'"state":"running"'
_WAITING: Final = b'"state":"waiting"'


def _records(fields: Mapping[str, Field]) -> Iterator[tuple[str, Field]]:
    return ((name[len(RUN) :], it) for name, it in fields.items() if name.startswith(RUN))


def runs_of(fields: Mapping[str, Field]) -> dict[str, tuple[SlotRecord, int]]:
    """The recorded runs by slot, each with its field's version; oldest first.

    If the clocks were set back, a run from before is older than all runs since.
    """
    found = [(_read(slot, field), field.version) for slot, field in _records(fields)]
    found = [(_with_tail(run, fields), version) for run, version in found]
    fold = fold_of(fields)
    found.sort(key=lambda pair: (_ran_at(pair[0], fold), pair[0].due, pair[0].slot))
    return {run.slot: (run, version) for run, version in found}


def _with_tail(run: SlotRecord, fields: Mapping[str, Field]) -> SlotRecord:
    """`run` with the output that was seen last, if it goes on or was lost without its output."""
    going = run.state is SlotState.RUNNING or (run.state is SlotState.LOST and not run.output)
    if not going or TAIL not in fields:
        return run
    facts = read_value(fields[TAIL].value)
    if (facts.get("token"), facts.get("attempt")) != (run.token, run.attempt):
        return run
    seen = replace(run, output=facts.get("output", ""), output_seen=facts.get("seen"))
    return seen if _is_sound(seen) else run


def _ran_at(run: SlotRecord, fold: Fold) -> float:
    return min(run.due, fold.since) if fold.outdates(run.slot, run.due) else run.due


def recorded_run(fields: Mapping[str, Field], slot_name: str) -> SlotRecord | None:
    """The recorded run of one slot; None if there is none."""
    field = fields.get(RUN + slot_name)
    return None if field is None else _read(slot_name, field)


def _read(slot_name: str, field: Field) -> SlotRecord:
    # A record that cannot be read counts as ended: its slot must not run again.
    run = decode(slot_name, field.value)
    return run or SlotRecord(slot_name, SlotState.OK, _UNREADABLE, why="not readable")


def read_job(fields: Mapping[str, Field]) -> dict[str, Any]:
    """The facts registered of the job; empty if there are none, or none readable."""
    field = fields.get(JOB)
    return {} if field is None else read_value(field.value)


def read_value(value: bytes) -> dict[str, Any]:
    """The facts that a field holds as JSON; empty if it holds none."""
    try:
        facts = json.loads(value)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}


# -- spans of removed records ----------------------------------------------------------------------


def _pruned_field(slot_name: str) -> str:
    """The name of the field with the spans of removed records, for slots of this kind."""
    if not is_scheduled(slot_name):
        return f"{PRUNED}/manual"
    return pruned_field_of(fold_number(slot_name))


def pruned_field_of(number: int) -> str:
    """The name of that field for slots whose instants came for the `number`th time."""
    return PRUNED if number == 1 else f"{PRUNED}~{number}"


def pruned_spans(fields: Mapping[str, Field], name: str = PRUNED) -> _Spans:
    """The spans of time whose records were removed, oldest first."""
    try:
        stored = json.loads(fields[name].value)
        return tuple((float(first), float(last)) for first, last in stored)
    except (KeyError, ValueError, TypeError):
        return ()


def joined(spans: Iterable[tuple[float, float]], most: int = _SPANS_MOST) -> _Spans:
    """At most `most` spans, ascending, that cover all `spans`; the smallest gaps are closed."""
    found: list[tuple[float, float]] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    while len(found) > most:
        at = min(range(len(found) - 1), key=lambda place: found[place + 1][0] - found[place][1])
        found[at : at + 2] = [(found[at][0], found[at + 1][1])]
    return tuple(found)


def finished_spans(fields: Mapping[str, Field], number: int = 1) -> _Spans:
    """The spans in which no scheduled slot runs any more: removed, or missed in one record.

    `number`: only slots whose instants came for that time.
    """
    many = (decode(slot, it.value) for slot, it in _records(fields) if _MANY in it.value)
    of_time = (run for run in many if run is not None and fold_number(run.slot) == number)
    missed = ((run.since, run.due) for run in of_time if run.count > 1)
    return (*pruned_spans(fields, pruned_field_of(number)), *missed)


def is_finished(fields: Mapping[str, Field], slot_name: str, due: float) -> bool:
    """Whether a slot must not run although it has no record of its own."""
    whole = is_scheduled(slot_name) and "#" not in slot_name
    number, name = fold_number(slot_name), _pruned_field(slot_name)
    spans = finished_spans(fields, number) if whole else pruned_spans(fields, name)
    return any(first <= due <= last for first, last in spans)


# -- runs in a record ------------------------------------------------------------------------------


def alive(record: Record, run: SlotRecord) -> bool:
    """Whether the run's own token still holds the lease."""
    return any(holding.token == run.token for holding in record.holdings)


def holds_slot(record: Record, slot_name: str) -> bool:
    """Whether a present holder runs this slot."""
    return any(holding.meta == slot_name.encode() for holding in record.holdings)


def open_runs(fields: Mapping[str, Field]) -> list[tuple[SlotRecord, int]]:
    """The runs recorded as not ended, each with its field's version; parses as few as it can."""
    found = [
        (decode(slot, field.value), field.version)
        for slot, field in _records(fields)
        if _RUNNING in field.value or _WAITING in field.value
    ]
    return [
        (_with_tail(run, fields), version)
        for run, version in found
        if run is not None and not run.state.ended
    ]


def running(record: Record) -> list[SlotRecord]:
    """The runs that go on: not ended, with a token that holds the lease."""
    return [run for run, _ in open_runs(record.fields) if alive(record, run)]


def orphans(record: Record) -> list[tuple[SlotRecord, int]]:
    """The runs recorded as not ended whose holder vanished, each with its field's version."""
    return [pair for pair in open_runs(record.fields) if not alive(record, pair[0])]


def known_slots(record: Record) -> frozenset[str]:
    """The slots that are recorded, or held now. One that is only claimed may never have begun."""
    on_record = (slot for slot, _ in _records(record.fields))
    held = (holding.meta.decode("utf-8", "replace") for holding in record.holdings)
    return frozenset((*on_record, *held))


def surplus(
    runs: Mapping[str, tuple[SlotRecord, int]], keep: int, keep_for: float, now: float
) -> list[tuple[SlotRecord, int]]:
    """The ended runs to remove, each with its version: beyond `keep`, or older than `keep_for`.

    The newest is always kept, for it says up to where the schedule is accounted for. A record that
    cannot be read is kept too: its instant is not known, and its slot would run again.
    """
    ended = [
        (run, version)
        for run, version in runs.values()
        if run.state.ended and run.due != _UNREADABLE
    ]
    return [
        (run, version)
        for place, (run, version) in enumerate(reversed(ended))
        if place > 0 and (place >= keep or run.due < now - keep_for)
    ]


# -- writing the ledger ----------------------------------------------------------------------------

T = TypeVar("T")
_WITHIN: Final = 2.0
"""Seconds for one request."""
_PRUNE_EVERY: Final = 8


class LedgerPort(Port, Protocol):
    """A port that also reads and writes fields."""

    async def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome: ...

    async def read(self, key: Key, until: float) -> Record: ...


class Ledger:
    """The ledger of one job. All but `record_until` raise StoreError if the store does."""

    def __init__(self, port: LedgerPort, key: Key) -> None:
        self._port = port
        self._key = key

    async def read(self) -> Record:
        """Read the job's record, for information: no grant may rest on it."""
        with meters.asking():
            return await self._port.read(self._key, self._port.now() + _WITHIN)

    # -- writes of the holder ----------------------------------------------------------------

    async def begin(self, run: SlotRecord, until: float = -inf) -> bool:
        """Record a new run as running; return False if the slot must not run any more.

        Then it ran already, or another instance recorded it as skipped, missed or lost. That record
        may be removed by now, as our clock may be hours behind. So the job's record is read first:
        while the lease and its slot are ours, others neither record the slot nor remove its record.
        """
        return await self._repeat_until(lambda: self._begin(run), until)

    async def _begin(self, run: SlotRecord) -> bool:
        fields = (await self.read()).fields
        if (found := recorded_run(fields, run.slot)) is not None:
            return _is_same(found, run)
        if fold_of(fields).outdates(run.slot, run.due):
            # Its instant has another name, which its instance does not know yet.
            return False
        return not is_finished(fields, run.slot, run.due) and await self.create(run)

    async def create(self, run: SlotRecord) -> bool:
        """Make the record, unless the slot has one; `begin` first asks if the slot is finished.

        If no schedule names the slot, `due` is the instant when the run began.
        """
        try:
            outcome = await self._put_run(run, ABSENT)
        except OutcomeUnknown:
            pass
        else:
            if isinstance(outcome, Stored):
                return True
        # Our own request may have been applied although its reply was lost.
        found = recorded_run((await self.read()).fields, run.slot)
        if found is None:
            if isinstance(await self._put_run(run, ABSENT), Stored):
                return True
            # Perhaps the first request was late, and came between the read and the second.
            found = recorded_run((await self.read()).fields, run.slot)
        return found is not None and _is_same(found, run)

    async def record_state(
        self, run: SlotRecord, state: SlotState, claim: str, **changes: Any
    ) -> SlotRecord | None:
        """Record the run's next state, and return the run; None if its claim lost the lease."""
        moved = transition(run, state, **changes)
        # By claim and token: the store itself refuses a holder that does not know yet that it lost.
        outcome = await self._put_run(moved, ByClaim(claim, run.token))
        return moved if isinstance(outcome, Stored) else None

    async def record_until(
        self, run: SlotRecord, state: SlotState, claim: str, until: float, **changes: Any
    ) -> SlotRecord | None:
        """`record_state`, repeated in an outage until `until`, by the port's clock; then None."""
        try:
            return await self._repeat_until(
                lambda: self.record_state(run, state, claim, **changes), until
            )
        except StoreError:
            return None

    async def _repeat_until(self, ask: Callable[[], Awaitable[T]], until: float) -> T:
        tries = 0
        while True:
            try:
                return await ask()
            except StoreError as error:
                tries += 1
                wake = self._port.now() + backoff_delay(tries, self._port.jitter(), cap=1.0)
                if error.permanent or wake >= until:
                    raise
                await self._port.sleep_until(wake)

    async def show(self, run: SlotRecord, output: str, claim: str, now: float) -> bool:
        """Show the end of the output of a run that goes on; "" removes what is shown.

        Return whether it is shown: not if the claim lost the lease.
        """
        facts = {"token": run.token, "attempt": run.attempt, "seen": now}
        shown = {**facts, "output": output[-TAIL_MOST:]}
        value = json.dumps(shown, separators=(",", ":"), ensure_ascii=False).encode()
        guard = ByClaim(claim, run.token)
        return isinstance(await self._put_field(TAIL, value if output else None, guard), Stored)

    async def outlived(self, run: SlotRecord, why: str, now: float) -> SlotState | None:
        """Record that a run went on beyond its lease, unless its end is recorded. Returns the
        state that is recorded then; None if the record is not this run's.
        """
        found, version = runs_of((await self.read()).fields).get(run.slot, (run, 0))
        if not version or found.token != run.token:
            return None
        if found.state.ended:
            return found.state
        return SlotState.LOST if await self.lose(found, version, why, now) else None

    async def undo(self, run: SlotRecord, until: float = -inf) -> None:
        """Remove the run's record, as if it had not begun; the record of another run stays."""
        await self._repeat_until(lambda: self._undo(run), until)

    async def _undo(self, run: SlotRecord) -> None:
        found, version = runs_of((await self.read()).fields).get(run.slot, (run, 0))
        if version and _is_same(found, run):
            await self._put_field(RUN + run.slot, None, ByVersion(version))

    async def prune(self, keep: int, keep_for: float, now: float) -> int:
        """Remove the records beyond the bounds, by the wall clock `now`; return how many."""
        fields = (await self.read()).fields
        beyond = surplus(runs_of(fields), keep, keep_for, now)
        # Write the spans first, so that every slot always has its record or lies in a span.
        for name in sorted({_pruned_field(run.slot) for run, _ in beyond}):
            spans = [(run.since, run.due) for run, _ in beyond if _pruned_field(run.slot) == name]
            value = json.dumps(joined((*pruned_spans(fields, name), *spans))).encode()
            # Two instances that prune at a time must not overwrite each other's spans.
            guard: Guard = ByVersion(fields[name].version) if name in fields else ABSENT
            if not isinstance(await self._put_field(name, value, guard), Stored):
                return 0
        for run, version in beyond:
            await self._put_field(RUN + run.slot, None, ByVersion(version))
        return len(beyond)

    async def prune_sometimes(self, keep: int, keep_for: float, now: float) -> None:
        """`prune` at random after one run in 8, and more often if few records are kept."""
        if self._port.jitter() * min(_PRUNE_EVERY, max(1, keep // 4)) < 1:
            await self.prune(keep, keep_for, now)

    # -- writes of any instance -------------------------------------------------------------------

    async def record_unrun(self, run: SlotRecord) -> bool:
        """Record a slot that did not run; return False if the slot has a record already."""
        return isinstance(await self._put_run(run, ABSENT), Stored)

    async def lose(self, run: SlotRecord, version: int, why: str, now: float) -> bool:
        """Record that a run's holder vanished; return False if its record has changed meanwhile."""
        lost = transition(run, SlotState.LOST, ended=now, why=why)
        # By version: a holder that records its end at the same instant must win.
        return isinstance(await self._put_run(lost, ByVersion(version)), Stored)

    async def write_fold(self, fields: Mapping[str, Field], fold: Fold) -> bool:
        """Write a fold; return False if another was written since these `fields` were read."""
        guard: Guard = ByVersion(fields[FOLD].version) if FOLD in fields else ABSENT
        return isinstance(await self._put_field(FOLD, encode_fold(fold), guard), Stored)

    async def register(self, fields: Mapping[str, Field], facts: Mapping[str, Any]) -> bool:
        """Register `facts` of the job unless its `fields` have them; return whether it wrote."""
        if read_job(fields) == dict(facts):
            return False
        # Without a guard: instances of one file write the same, and of two files the last one
        # counts.
        await self._put_field(JOB, json.dumps(dict(facts), separators=(",", ":")).encode(), None)
        return True

    # -- one request -------------------------------------------------------------------------

    async def _put_run(self, run: SlotRecord, guard: Guard) -> PutOutcome:
        return await self._put_field(RUN + run.slot, encode(run), guard)

    async def _put_field(self, name: str, value: bytes | None, guard: Guard) -> PutOutcome:
        with meters.asking():
            return await self._port.put(self._key, name, value, guard, self._port.now() + _WITHIN)


def _is_same(found: SlotRecord, run: SlotRecord) -> bool:
    return found.token == run.token and not found.state.ended
