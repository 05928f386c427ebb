"""Carries out orders of the agenda: asks the store, launches granted slots, writes the ledger.

The caller passes in clocks, claims and launches, so that the simulator runs this very code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import Any, Final, Protocol, TypeVar

from incumbent.cron.agenda import Agenda, ClaimOrder, Dispatcher, LedgerOrder
from incumbent.cron.events import Emit, JobMetrics
from incumbent.cron.fleet import PRESENCE, PRESENT_EVERY, Peers, SignOfLife, presences
from incumbent.cron.folds import NO_FOLD, Fold, fold_of
from incumbent.cron.judging import (
    Findings,
    fails_for_good,
    gaps,
    is_ahead,
    judge,
    known_until,
    next_fold,
    retry_due,
)
from incumbent.cron.ledger import (
    JOB,
    Ledger,
    LedgerPort,
    SlotRecord,
    SlotState,
    orphans,
    read_job,
    runs_of,
)
from incumbent.cron.schedule import slot_id
from incumbent.cron.spec import JobSlot, JobSpec
from incumbent.errors import StoreError
from incumbent.model import ABSENT, Field, Key, Record, Refused
from incumbent.rules.notices import PAUSE
from incumbent.stores.plan import run_blocking

T = TypeVar("T")
_REPORT_EVERY: Final = 60.0
_WITHIN: Final = 2.0
_COMMAND_SHOWN: Final = 200


class CannotLaunch(Exception):
    """This instance cannot start any run; the slot was given back, or ends with its lease."""

    def __init__(self, why: str, *, given_back: bool = True) -> None:
        super().__init__(why)
        self.given_back = given_back


class Launcher(Protocol[T]):
    """Runs granted slots, in a thread or process other than the caller's."""

    def claim(self, spec: JobSpec, slot: JobSlot) -> T | Refused:
        """Claim the slot, in one request. Raises StoreError."""
        ...

    def launch(self, spec: JobSpec, slot: JobSlot, grant: T) -> None:
        """Start the run. Raises CannotLaunch."""
        ...

    def run_on_failure(self, spec: JobSpec, run: SlotRecord) -> None:
        """A run is lost for good: run the job's on_failure command, if it has one."""
        ...


class Executor:
    """One instance's requests to the store. `wall`: its wall clock; `port.now` counts waits.

    `holder`: the instance's name, by which it knows its own sign of life. `noted` is called with
    each record about a slot that this instance did not run.
    """

    def __init__(
        self,
        specs: Iterable[JobSpec],
        namespace: str,
        port: LedgerPort,
        launcher: Launcher[Any],
        emit: Emit,
        wall: Callable[[], float],
        holder: str = "",
        noted: Callable[[JobSpec, SlotRecord], object] = lambda *_: None,
    ) -> None:
        self._namespace = namespace
        self._holder = holder
        self._noted = noted
        self._port = port
        self._launcher = launcher
        self._emit = emit
        self._wall = wall
        self._began = wall()
        self._reported_at = -inf
        self._outage = False
        self.metrics = JobMetrics()
        self._peers = Peers()
        self.ledger_read = False
        """Whether the ledger was read; before that there are no orders."""
        self.dispatcher = Dispatcher(specs, Agenda((), self._began), port.jitter)

    def ledger(self, name: str) -> Ledger:
        """The ledger of a job."""
        return Ledger(self._port, Key(self._namespace, name))

    # -- the start -----------------------------------------------------------------------------

    def begin(self, records: Iterable[Record]) -> None:
        """Start from the ledger: the `records` of the namespace. From now on there are orders."""
        wall, now = self._wall(), self._port.now()
        specs = self.dispatcher.specs.values()
        known = {record.key.name: record for record in records}
        since: dict[str, float] = {}
        for spec in specs:
            record = known.get(spec.name)
            last = None if record is None else known_until(spec, record)
            # A job new to the ledger counts from our start, so no slot of an outage since is lost.
            since[spec.name] = min(self._began, wall) if last is None else last
        self.dispatcher = Dispatcher(specs, Agenda(specs, wall, since), self._port.jitter)
        self.ledger_read = True
        self.sweep(known, now)

    def sweep(self, records: Mapping[str, Record], now: float) -> None:
        """Plan checks of all slots whose records may be missing, or may have to change."""
        wall, check_at = self._wall(), self.dispatcher.check_at
        for spec in self.dispatcher.specs.values():
            record = records.get(spec.name)
            if record is None:
                continue
            self.dispatcher.folds[spec.name] = fold_of(record.fields)
            ahead = is_ahead(record.fields, wall, self.dispatcher.agenda.latest_wall)
            if ahead and spec.schedule.keeps_rhythm and (runs := runs_of(record.fields)):
                *_, (run, _) = runs.values()
                check_at(spec.name, JobSlot(run.slot, run.due, run.attempt, only_check=True), now)
            for slot in gaps(spec, record):
                check_at(spec.name, slot, now)
            for run, _ in orphans(record):
                check_at(spec.name, JobSlot(run.slot, run.due, run.attempt, only_check=True), now)
            if (lost := retry_due(spec, record, wall)) is not None:
                check_at(spec.name, lost, now)
            for holding in record.holdings:
                held = JobSlot.from_holder(holding.meta.decode("utf-8", "replace"), wall)
                if held is not None:
                    at = now + (holding.remaining or 0.0) + self._port.jitter()
                    check_at(spec.name, held, at)

    def register(
        self, spec: JobSpec, fields: Mapping[str, Field], pause: bytes | None = None
    ) -> bool:
        """Register the job in the ledger; a new job gets the fleet's `pause`. Raises StoreError."""
        before, facts = read_job(fields), facts_of_job(spec)
        same = before.get("schedule") == facts["schedule"]
        facts["since"] = before.get("since") if same and before else self._wall()
        if pause is not None and JOB not in fields:
            key, until = Key(self._namespace, spec.name), self._port.now() + _WITHIN
            run_blocking(self._port.put(key, PAUSE, pause, ABSENT, until))
        return run_blocking(self.ledger(spec.name).register(fields, facts))

    def reload(self, specs: Iterable[JobSpec]) -> dict[str, list[str]]:
        """Replace the jobs; return the changes, which mean something only once `ledger_read`."""
        return self.dispatcher.reload(specs, self._wall())

    # -- orders --------------------------------------------------------------------------------

    def next_in(self) -> float:
        """Seconds until an order may be due."""
        return self.dispatcher.next_in(self._port.now(), self._wall())

    def carry_out_orders(
        self,
        pace: Callable[[int, int], None] = lambda *_: None,
        room: Callable[[], float] = lambda: inf,
        prepare: Callable[[JobSpec], object] = lambda _: None,
    ) -> int:
        """Carry out the due orders; return the number of claims for which there was no room.

        `pace` is called before each claim, with the number of claims and of refusals in a row.
        `room` says how many more runs may begin here. `prepare` is called last before each claim;
        if it raises a StoreError, there is no claim.
        """
        dispatcher = self.dispatcher
        orders = dispatcher.orders(self._port.now(), self._wall())
        claims = sum(isinstance(order, ClaimOrder) for order in orders)
        refused = turned_away = 0
        for number, order in enumerate(orders):
            try:
                if isinstance(order, LedgerOrder):
                    self._check_ledger(order)
                elif room() < 1:
                    dispatcher.postpone(order, self._port.now())
                    turned_away += 1
                else:
                    pace(claims, refused)
                    prepare(order.spec)
                    refused = 0 if self._claim(order) else refused + 1
            except StoreError as error:
                self._report_outage(error)
                # The rest would meet the same outage.
                dispatcher.note_unanswered(orders[number:], self._port.now(), error.retry_after)
                break
        return turned_away

    def _claim(self, order: ClaimOrder) -> bool:
        spec, slot, dispatcher = order.spec, order.slot, self.dispatcher
        grant = self._launcher.claim(spec, slot)
        self._report_reply()
        if isinstance(grant, Refused):
            dispatcher.note_refused(order, grant, self._port.now())
            return False
        # Before the launch: what fails there says nothing about the store.
        dispatcher.note_replied()
        try:
            self._launcher.launch(spec, slot, grant)
        except CannotLaunch as error:
            event = "given_back" if error.given_back else "fault"
            self._emit(event, job=spec.name, slot=slot.name, why=str(error))
            dispatcher.claim_again(spec.name, slot, self._port.now())
        return True

    def _check_ledger(self, order: LedgerOrder) -> None:
        spec, ledger = order.spec, self.ledger(order.spec.name)
        record = run_blocking(ledger.read())
        self._report_reply()
        fold, wall = self._renew_fold(spec, record), self._wall()
        # Only instants that have passed again are renamed: a slot that is still to come was named
        # before the clock was set back.
        named = [fold.named(slot) if slot.due <= wall else slot for slot in order.slots]
        # A slot of a time that was taken back may not begin: a claim of it would be asked for again
        # at once. One that is still to come gets its new name when it is due.
        outdated = [slot for slot in named if fold.outdates(slot.name, slot.due)]
        order = replace(order, slots=tuple(slot for slot in named if slot not in outdated))
        findings = judge(spec, record, order.slots, wall)
        findings.rechecks += [(slot.due - wall, slot) for slot in outdated if slot.due > wall]
        self._drop_early_misses(order, findings)
        for run, version, why in findings.lost:
            if run_blocking(ledger.lose(run, version, why, self._wall())):
                self._report_record(spec, replace(run, state=SlotState.LOST, why=why))
        for run in findings.unrun:
            # Many instances judge alike: the one whose record the store took tells it.
            if run_blocking(ledger.record_unrun(run)):
                self._report_record(spec, run)
        self.dispatcher.note_checked(order, findings, self._port.now())

    def _renew_fold(self, spec: JobSpec, record: Record) -> Fold:
        """The job's fold; a new one is written if the record is ahead of every clock."""
        fold = fold_of(record.fields)
        wall, latest_wall = self._wall(), self.dispatcher.agenda.latest_wall
        if spec.schedule.keeps_rhythm and is_ahead(record.fields, wall, latest_wall):
            clocks = self._peers.clocks(self._read_presences(), self._port.now(), self._holder)
            made = next_fold(record, wall, latest_wall, clocks)
            if made is not None:
                fold = self._write_fold(spec, record, made)
        if fold is not NO_FOLD:
            self.dispatcher.folds[spec.name] = fold
        return fold

    def _write_fold(self, spec: JobSpec, record: Record, fold: Fold) -> Fold:
        ledger = self.ledger(spec.name)
        if not run_blocking(ledger.write_fold(record.fields, fold)):
            # Another instance was faster, and all must take the names from its fold.
            return fold_of(run_blocking(ledger.read()).fields)
        until = slot_id(fold.until)
        why = f"clocks were set back: slots until {until} come again, as ...~{fold.number}"
        self._emit("clock", job=spec.name, why=why)
        return fold

    def _read_presences(self) -> list[SignOfLife]:
        key = Key(self._namespace, PRESENCE)
        return presences(run_blocking(self._port.read(key, self._port.now() + _WITHIN)))

    def _drop_early_misses(self, order: LedgerOrder, findings: Findings) -> None:
        """Do not record slots as missed that others have yet to reach: our clock may be wrong."""
        missed = [run for run in findings.unrun if run.state is SlotState.MISSED]
        if not missed:
            return
        # Read only if there is something to record: a check of a slot is one request otherwise.
        peers = self._read_presences()
        if self._peers.any_behind(peers, missed[-1].due, self._port.now()):
            findings.unrun = [run for run in findings.unrun if run.state is not SlotState.MISSED]
            findings.rechecks += [(PRESENT_EVERY, slot) for slot in order.slots if slot.only_check]

    def _report_record(self, spec: JobSpec, run: SlotRecord) -> None:
        count, by = run.count if run.count > 1 else None, run.instance or None
        self._emit(str(run.state), job=spec.name, slot=run.slot, why=run.why, count=count, by=by)
        self.metrics.count_record(spec.name, run)
        self._noted(spec, run)
        if fails_for_good(spec, run, self._wall()):
            self._launcher.run_on_failure(spec, run)

    # -- outages -------------------------------------------------------------------------------

    def _report_outage(self, error: StoreError) -> None:
        now = self._port.now()
        # What is permanent may be about the key of one job, with answers for others in between.
        told = self._outage or error.permanent
        if not told or now - self._reported_at >= _REPORT_EVERY:
            self._reported_at, self._outage = now, True
            self._emit("store", ok=False, why=str(error))

    def _report_reply(self) -> None:
        if self._outage:
            self._outage = False
            self._emit("store", ok=True)


def facts_of_job(spec: JobSpec) -> dict[str, Any]:
    """The facts of a job for the ledger, so that operators see them without its file."""
    name = getattr(spec.call, "__qualname__", None) or type(spec.call).__name__
    shown = spec.shell_line or (" ".join(spec.command) if spec.command else f"{name}()")
    facts = {
        "schedule": spec.schedule.describe(),
        "timezone": spec.timezone,
        "command": without_secrets(shown)[:_COMMAND_SHOWN],
        "at_most_for": spec.at_most_for,
        "retries": spec.retries or None,
        "jitter": spec.jitter or None,
        "catch_up": spec.catch_up.mode if spec.catch_up.mode != "no" else None,
        "overlap": spec.overlap if spec.overlap != "skip" else None,
        "source": spec.source or None,
    }
    return {key: value for key, value in facts.items() if value is not None}


def without_secrets(command: str) -> str:
    """Mask values of options and variables whose names sound secret, and passwords in URLs."""
    import re

    command = re.sub(r"(://[^\s/@:]*:)[^\s/@]+@", r"\1***@", command)
    named = r"pass(?:word|wd)?|secret|token|api[_-]?key|authorization"
    return re.sub(rf"(?i)([\w-]*(?:{named})[\w-]*[=: ]\s*)(\S+)", r"\1***", command)
