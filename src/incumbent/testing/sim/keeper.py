"""The keeper of a simulated process: the very same renewals and debts, without its threads."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from incumbent._core.held import Held
from incumbent._core.port import Debt
from incumbent._core.release import settle
from incumbent._core.renew import first_due, next_due, renew
from incumbent.backoff import backoff_delay
from incumbent.lease import State
from incumbent.testing.sim.tasks import SIGNALS, Task

if TYPE_CHECKING:
    from incumbent.testing.sim.process import Process

__all__ = ["SimKeeper"]

_SETTLE_TIMEOUT = 1.0


class _Owed:
    __slots__ = ("debt", "due", "tries")

    def __init__(self, debt: Debt) -> None:
        self.debt = debt
        self.tries = 0
        self.due = 0.0


class SimKeeper:
    """See incumbent._drive.keeper.Keeper, whose order of work this follows."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.due: dict[Held, float] = {}
        self._owed: list[_Owed] = []
        self._task: Task | None = None
        self._resting = False

    def arm(self, held: Held) -> None:
        """Renew it from now on."""
        self.due[held] = first_due(held, self._process.port.jitter())
        self._wake()

    def disarm(self, held: Held) -> None:
        """Renew it no longer."""
        self.due.pop(held, None)

    def renew_now(self, held: Held) -> None:
        """Renew it before it is due."""
        if held in self.due:
            self.due[held] = self._process.now()
            self._wake()

    def owe(self, debt: Debt) -> None:
        """Tell the store until it has heard."""
        if not self._process.dead:
            self._owed.append(_Owed(debt))
            self._wake()

    def kill(self) -> None:
        """The process is gone."""
        self.due.clear()
        self._owed.clear()
        if self._task is not None:
            self._task.kill()

    def _wake(self) -> None:
        process = self._process
        world = process.world
        if self._task is None:
            self._task = Task(process, self._run())
            world.at(world.now, self._task.resume, 0)
        elif self._resting:
            self._resting = False
            world.at(world.now, self._task.resume, self._task.serial)

    async def _run(self) -> None:
        while True:
            until = self._next()
            if until > self._process.now():
                self._resting = True
                await self._process.port.rest(until)
                self._resting = False
            try:
                await self._tick()
            except SIGNALS:
                self._replan(self._process.now())

    def _next(self) -> float:
        due = min(self.due.values(), default=inf)
        return min(due, min((owed.due for owed in self._owed), default=inf))

    async def _tick(self) -> None:
        now = self._process.now()
        batch = [held for held, due in self.due.items() if due <= now]
        if batch:
            await self._renew(batch, now)
        if self._owed:
            await self._pay()

    async def _renew(self, batch: list[Held], sent: float) -> None:
        process = self._process
        held_now = [held for held in batch if held.machine.state is State.HELD]
        live = [held for held in held_now if not held.machine.bounded]
        error = await renew(process.port, live)
        now = process.now()
        for held in batch:
            self._plan(held, sent, now)
            process.world.judge.renewal_ended(process, held, answered=error is None)

    def _replan(self, now: float) -> None:
        for held, due in list(self.due.items()):
            if due <= now:
                self._plan(held, now, now)

    def _plan(self, held: Held, sent: float, now: float) -> None:
        if held not in self.due:
            return
        if held.machine.valid(now):
            self.due[held] = next_due(held, sent, now, self._process.port.jitter())
        else:
            del self.due[held]

    async def _pay(self) -> None:
        process = self._process
        for _ in range(len(self._owed)):
            owed = self._owed.pop(0)
            try:
                paid = owed.due <= process.now() and await settle(
                    process.port, owed.debt, _SETTLE_TIMEOUT
                )
            except BaseException:
                self._owed.append(owed)
                raise
            if not paid:
                self._again(owed)

    def _again(self, owed: _Owed) -> None:
        now = self._process.now()
        if owed.due <= now:
            owed.tries += 1
            delay = backoff_delay(owed.tries, self._process.port.jitter(), cap=2.0)
            owed.due = now + delay
        self._owed.append(owed)
