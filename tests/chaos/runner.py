"""Runs one schedule on a real fleet; it mostly sleeps, so several may run at a time."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from tests.chaos import judge
from tests.chaos.actors import PRODUCT, File, Instance, Server
from tests.chaos.schedule import INSTANCES, LENGTH, Fault, Schedule, smaller, to_text
from tests.support.waiting import eventually

BEGIN_WITHIN = 150.0
_TICK = 0.01
_SHRINK_TRIES = 3
_SHOWN = 4000


class NobodyLed(AssertionError):
    """The fleet never began; nothing was judged."""


@dataclass(frozen=True)
class Outcome:
    """One schedule and what the judge saw of it. `said`: what the instances wrote.

    `leads`: whether a worker lived at the end.
    """

    schedule: Schedule
    sight: judge.Sight
    said: str = ""
    leads: bool = False

    @property
    def report(self) -> str:
        again = f"python -m tests.chaos --schedule '{to_text(self.schedule)}'"
        shared = " --shared" if self.schedule.shares else ""
        by_seed = f"python -m tests.chaos{shared} --seed {self.schedule.seed}"
        wrong = f"{self.sight.wrong or 'nothing wrong'}; terms {self.sight.terms}"
        return f"{wrong}\n{self.schedule}\nrepeat: {by_seed}\n  or: {again}\n{self.said[-_SHOWN:]}"


def run(
    schedule: Schedule, product: tuple[str, ...] = PRODUCT, *, patience: float = 0.0
) -> Outcome:
    """Raises NobodyLed; whatever else went wrong is in the outcome.

    `patience`: seconds after the end of the schedule in which somebody has to lead, to count.
    """
    folder = Path(tempfile.mkdtemp(prefix="incumbent-chaos-"))
    try:
        with _Fleet(schedule, folder, product) as fleet:
            leads = fleet.live_through(patience)
        eventually(lambda: not judge.worker_lives(folder))
        return Outcome(
            schedule, judge.look(folder, shared=bool(schedule.shares)), fleet.said, leads
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Fleet:
    def __init__(self, schedule: Schedule, folder: Path, product: tuple[str, ...]) -> None:
        self._schedule = schedule
        self._folder = folder
        self.said = ""
        local = schedule.store == "sqlite"
        self._store = File(folder) if local else Server(schedule, INSTANCES)
        self._instances = [
            Instance(
                schedule, number, self._store.url(number), folder, product, self._store.environ
            )
            for number in range(INSTANCES)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._store.heal()
        for instance in self._instances:
            instance.ask_to_end()
        for instance in self._instances:
            instance.close()
        # What outlived its instance all the same ends by itself.
        (self._folder / "stop").touch()
        self._store.close()
        self.said = "".join(f"[{one.holder}] {one.said}" for one in self._instances)

    def live_through(self, patience: float) -> bool:
        for instance in self._instances:
            instance.start()
        # Else a fault would mostly meet a fleet whose second permit is free.
        first = 2 if self._schedule.shares in ("permits", "seats") else 1
        begin_by = time.monotonic() + BEGIN_WITHIN
        self._until(begin_by, lambda: len(judge.look(self._folder).terms) >= first)
        if not judge.leader(self._folder):
            said = "".join(f"[{one.holder}] {one.said}" for one in self._instances)
            raise NobodyLed(
                f"nobody led within {BEGIN_WITHIN} s:\n{self._schedule}\n{said[-_SHOWN:]}"
            )
        began = time.monotonic()
        for at, act in sorted(self._plan(), key=lambda step: step[0]):
            self._until(began + at)
            act()
        self._until(began + LENGTH)
        ends = time.monotonic() + patience
        self._until(ends, lambda: judge.worker_lives(self._folder))
        return judge.worker_lives(self._folder)

    def _until(self, until: float, reached: Callable[[], bool] = lambda: False) -> None:
        while not reached() and time.monotonic() < until:
            for instance in self._instances:
                instance.start_again()
            time.sleep(min(_TICK, max(0.0, until - time.monotonic())))

    def _plan(self) -> Iterator[tuple[float, Callable[[], object]]]:
        for fault in self._schedule.faults:
            hit = _Hit(self._store, self._instances, fault, self._folder)
            yield fault.at, hit.begin
            if fault.lasts:
                yield fault.end, hit.end


class _Hit:
    """One fault from its begin to its end, on whom it met."""

    def __init__(
        self, store: File | Server, instances: list[Instance], fault: Fault, folder: Path
    ) -> None:
        self._store, self._instances = store, instances
        self._fault, self._folder = fault, folder
        self._met: list[int] = []

    def begin(self) -> None:
        self._met = self._whom()
        how, _, role = self._fault.kind.partition(" ")
        if not _is_of_process(self._fault):
            self._store.begin(self._fault.kind, self._met)
            return
        for number in self._met:
            self._instances[number].look()
            self._instances[number].send(how, role)

    def end(self) -> None:
        if not _is_of_process(self._fault):
            self._store.end(self._fault.kind, self._met)
            return
        for number in self._met:
            self._instances[number].resume(self._fault.kind.partition(" ")[2])

    def _whom(self) -> list[int]:
        everyone = list(range(len(self._instances)))
        if self._fault.all:
            return everyone
        now = judge.leader(self._folder)
        leads = next(n for n in everyone if self._instances[n].holder == now)
        return [(leads + 1) % len(everyone)] if self._fault.standby else [leads]


def _is_of_process(fault: Fault) -> bool:
    return fault.kind.endswith((" supervisor", " guard", " child"))


def shrink(found: Outcome) -> Outcome:
    """The smallest schedule that still goes wrong; a race may need more than one try."""
    for candidate in smaller(found.schedule):
        for _ in range(_SHRINK_TRIES):
            outcome = run(candidate)
            if outcome.sight.wrong:
                return shrink(outcome)
    return found
