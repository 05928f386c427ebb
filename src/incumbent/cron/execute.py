"""Carries out the dispatcher's orders: asks the store, launches granted slots, writes the ledger.

The caller passes in clocks, claims and launches, so that the simulator runs this very code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import Any, Final, Protocol, TypeVar

from incumbent.cron.agenda import Agenda, ClaimOrder, Dispatcher, LedgerOrder
from incumbent.cron.events import Emit, JobNumbers
from incumbent.cron.fleet import PRESENCE, PRESENT_EVERY, Peers, presences
from incumbent.cron.folds import NO_FOLD, Fold, fold_of
from incumbent.cron.ledger import (
    JOB,
    Ledger,
    LedgerPort,
    Run,
    SlotState,
    orphans,
    read_job,
    runs_of,
)
from incumbent.cron.schedule import slot_id
from incumbent.cron.slots import (
    Findings,
    fails_for_good,
    gaps,
    is_ahead,
    judge,
    known_until,
    next_fold,
    retry_due,
)
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
    """This instance cannot start any run; the slot is given back."""


class Launcher(Protocol[T]):
    """Runs granted slots, in a thread or process other than the caller's."""

    def claim(self, spec: JobSpec, slot: JobSlot) -> T | Refused:
        """Claim the slot, in one request. Raises StoreError."""
        ...

    def launch(self, spec: JobSpec, slot: JobSlot, grant: T) -> None:
        """Start the run. Raises CannotLaunch; then the slot was given back."""
        ...

    def failed(self, spec: JobSpec, run: Run) -> None:
        """A run is lost for good: run the job's on_failure command, if it has one."""
        ...


class Executor:
    """One instance's requests to the store. `wall`: its wall clock; `port.now` counts waits.

    `holder`: the instance's name, by which it knows its own sign of life.
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
    ) -> None:
        self._namespace = namespace
        self._holder = holder
        self._port = port
        self._launcher = launcher
        self._emit = emit
        self._wall = wall
        self._began = wall()
        self._reported_at = -inf
        self._outage = False
        self.numbers = JobNumbers()
        self._peers = Peers()
        self.begun = False
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
            # A job new to the ledger counts from our start: slots of an outage since are kept.
            since[spec.name] = min(self._began, wall) if last is None else last
        self.dispatcher = Dispatcher(specs, Agenda(specs, wall, since), self._port.jitter)
        self.begun = True
        self.sweep(known, now)

    def sweep(self, records: Mapping[str, Record], now: float) -> None:
        """Plan looks at all slots whose records may be missing, or may have to change."""
        wall, look_at = self._wall(), self.dispatcher.look_at
        for spec in self.dispatcher.specs.values():
            record = records.get(spec.name)
            if record is None:
                continue
            self.dispatcher.folds[spec.name] = fold_of(record.fields)
            ahead = is_ahead(record.fields, wall, self.dispatcher.agenda.been)
            if ahead and spec.schedule.keeps_rhythm and (runs := runs_of(record.fields)):
                *_, (run, _) = runs.values()
                look_at(spec.name, JobSlot(run.slot, run.due, run.attempt, missed=True), now)
            for slot in gaps(spec, record):
                look_at(spec.name, slot, now)
            for run, _ in orphans(record):
                look_at(spec.name, JobSlot(run.slot, run.due, run.attempt, missed=True), now)
            if (lost := retry_due(spec, record, wall)) is not None:
                look_at(spec.name, lost, now)
            for holding in record.holdings:
                held = JobSlot.held(holding.meta.decode("utf-8", "replace"), wall)
                if held is not None:
                    at = now + (holding.remaining or 0.0) + self._port.jitter()
                    look_at(spec.name, held, at)

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
        """Replace the jobs; return the changes, which are meaningful only once begun."""
        return self.dispatcher.reload(specs, self._wall())

    # -- orders --------------------------------------------------------------------------------

    def next_in(self) -> float:
        """Seconds until an order may be due."""
        return self.dispatcher.next_in(self._port.now(), self._wall())

    def carry_out_orders(
        self,
        pace: Callable[[int, int], None] = lambda *_: None,
        room: Callable[[], float] = lambda: inf,
    ) -> int:
        """Carry out the due orders; return the number of claims for which there was no room.

        `pace` is called before each claim, with the number of claims and of refusals in a row.
        """
        dispatcher = self.dispatcher
        orders = dispatcher.orders(self._port.now(), self._wall())
        claims = sum(isinstance(order, ClaimOrder) for order in orders)
        refused = turned_away = 0
        for place, order in enumerate(orders):
            try:
                if isinstance(order, LedgerOrder):
                    self._check_ledger(order)
                elif room() < 1:
                    dispatcher.no_room(order, self._port.now())
                    turned_away += 1
                else:
                    pace(claims, refused)
                    refused = 0 if self._claim(order) else refused + 1
            except StoreError as error:
                self._failed(error)
                for rest in orders[place:]:
                    dispatcher.failed(rest, self._port.now(), error.retry_after)
                break
        return turned_away

    def _claim(self, order: ClaimOrder) -> bool:
        spec, slot, dispatcher = order.spec, order.slot, self.dispatcher
        grant = self._launcher.claim(spec, slot)
        self._answered()
        if isinstance(grant, Refused):
            dispatcher.refused(order, grant, self._port.now())
            return False
        dispatcher.answered()
        try:
            self._launcher.launch(spec, slot, grant)
        except CannotLaunch as error:
            self._emit("given_back", job=spec.name, slot=slot.name, why=str(error))
            dispatcher.given_back(spec.name, slot, self._port.now())
        return True

    def _check_ledger(self, order: LedgerOrder) -> None:
        spec, ledger = order.spec, self.ledger(order.spec.name)
        record = run_blocking(ledger.read())
        self._answered()
        fold, wall = self._fold(spec, record), self._wall()
        # A slot that is yet to come, of before the clock was set back, has not come again yet.
        slots = (fold.named(slot) if slot.due <= wall else slot for slot in order.slots)
        order = replace(order, slots=tuple(slots))
        findings = judge(spec, record, order.slots, wall)
        self._spare_what_is_to_come(order, findings)
        for run, version, why in findings.lost:
            if run_blocking(ledger.lose(run, version, why, self._wall())):
                self._written(spec, replace(run, state=SlotState.LOST, why=why))
        for run in findings.notes:
            if run_blocking(ledger.note(run)):
                self._written(spec, run)
        self.dispatcher.found(order, findings, self._port.now())

    def _fold(self, spec: JobSpec, record: Record) -> Fold:
        """The names of slots that come again; written here if no clock has reached the record."""
        fold, folds = fold_of(record.fields), self.dispatcher.folds
        here, been = self._wall(), self.dispatcher.agenda.been
        if spec.schedule.keeps_rhythm and is_ahead(record.fields, here, been):
            made = next_fold(record, here, been, self._clocks_of_others())
            if made is not None:
                fold = self._written_fold(spec, record, made)
        if fold is not NO_FOLD:
            folds[spec.name] = fold
        return fold

    def _written_fold(self, spec: JobSpec, record: Record, fold: Fold) -> Fold:
        ledger = self.ledger(spec.name)
        if not run_blocking(ledger.fold(record.fields, fold)):
            return fold_of(run_blocking(ledger.read()).fields)
        until = slot_id(fold.until)
        why = f"clocks were set back: slots until {until} come again, as ...~{fold.number}"
        self._emit("clock", job=spec.name, why=why)
        return fold

    def _clocks_of_others(self) -> list[float]:
        record = run_blocking(
            self._port.read(Key(self._namespace, PRESENCE), self._port.now() + _WITHIN)
        )
        return self._peers.clocks(presences(record), self._port.now(), self._holder)

    def _spare_what_is_to_come(self, order: LedgerOrder, findings: Findings) -> None:
        """Do not record slots as missed that others have yet to reach: our clock may be wrong."""
        missed = [run for run in findings.notes if run.state is SlotState.MISSED]
        if not missed:
            return
        until = self._port.now() + _WITHIN
        record = run_blocking(self._port.read(Key(self._namespace, PRESENCE), until))
        if self._peers.any_behind(presences(record), missed[-1].due, self._port.now()):
            findings.notes = [run for run in findings.notes if run.state is not SlotState.MISSED]
            findings.again += [(PRESENT_EVERY, slot) for slot in order.slots if slot.missed]

    def _written(self, spec: JobSpec, run: Run) -> None:
        count, by = run.count if run.count > 1 else None, run.instance or None
        self._emit(str(run.state), job=spec.name, slot=run.slot, why=run.why, count=count, by=by)
        self.numbers.noted(spec.name, run)
        if fails_for_good(spec, run, self._wall()):
            self._launcher.failed(spec, run)

    # -- outages -------------------------------------------------------------------------------

    def _failed(self, error: StoreError) -> None:
        now = self._port.now()
        if not self._outage or now - self._reported_at >= _REPORT_EVERY:
            self._reported_at = now
            self._emit("store", ok=False, why=str(error))
        self._outage = True

    def _answered(self) -> None:
        if self._outage:
            self._outage = False
            self._emit("store", ok=True)


def facts_of_job(spec: JobSpec) -> dict[str, Any]:
    """The facts of a job for the ledger, so that operators can look at it without its file."""
    name = getattr(spec.call, "__qualname__", None) or type(spec.call).__name__
    shown = spec.shell_line or (" ".join(spec.command) if spec.command else f"{name}()")
    facts = {
        "schedule": spec.schedule.describe(),
        "timezone": spec.timezone,
        "command": without_secrets(shown)[:_COMMAND_SHOWN],
        "at_most_for": spec.at_most_for,
        "retries": spec.retries or None,
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
