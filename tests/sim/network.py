"""What happens to a request on its way, and to its answer."""

from __future__ import annotations

from typing import Any

from incumbent.errors import OutcomeUnknown, StoreUnavailable
from incumbent.model import Granted
from tests.sim.profiles import Fate
from tests.sim.server import Server
from tests.sim.setting import Client, Setting
from tests.sim.tasks import Exchange, Task

__all__ = ["Network"]

_GIVES_LOST = 2


class Network:
    """Carries requests; each one's fate is drawn when it is sent."""

    def __init__(self, world: Setting, server: Server) -> None:
        self._world = world
        self._rng = world.rng
        self._likely = world.profile.fates
        self.server = server
        self._gives: dict[str, int] = {}

    def carry(self, process: Client, task: Task, exchange: Exchange) -> None:
        """Take a request from a task; it is resumed with the answer or an error."""
        world = self._world
        fate = process.cut or self._fate(exchange)
        if world.history is not None and fate is not Fate.FINE:
            world.say(process.name, f"  {exchange.apply.__name__} meets {fate.name}")
        overdue = max(world.now, process.when(exchange.until))
        if fate is Fate.REFUSED:
            refused = StoreUnavailable("connection refused")
            world.at(world.now + world.quick(), task.resume, task.serial, None, refused)
        elif fate is Fate.LOST_REQUEST:
            self._time_out(task, overdue)
        else:
            arrives = self._arrival(process, fate, overdue)
            if arrives >= overdue:
                self._time_out(task, overdue)
            world.at(arrives, self._arrive, task, task.serial, exchange, fate, overdue)

    def _fate(self, exchange: Exchange) -> Fate:
        chance = self._rng.random()
        if chance >= self._likely[0][0]:
            return Fate.FINE
        if exchange.apply == self.server.give and self._may_not_lose(exchange.args[1]):
            return Fate.FINE
        return next(fate for least, fate in reversed(self._likely) if chance < least)

    def _may_not_lose(self, claim: str) -> bool:
        # Bounded bad luck: a claim that is owed must be gone in time to be judged for it.
        lost = self._gives[claim] = self._gives.get(claim, 0) + 1
        return lost > _GIVES_LOST

    def _arrival(self, process: Client, fate: Fate, overdue: float) -> float:
        world, rng = self._world, self._rng
        way = world.quick()
        if fate is Fate.LATE_REQUEST:
            return overdue + rng.random() * (overdue - world.now)
        if fate is Fate.STALL_BEFORE_SENDING:
            return world.now + process.stall() + way
        if fate is Fate.STALL_BEFORE_REPLY:
            process.stall()
        return world.now + way

    def _time_out(self, task: Task, overdue: float) -> None:
        self._world.at(overdue, task.resume, task.serial, None, OutcomeUnknown("no answer in time"))

    def _arrive(
        self, task: Task, serial: int, exchange: Exchange, fate: Fate, overdue: float
    ) -> None:
        world, server = self._world, self.server
        if world.now < server.frozen_until:
            world.at(server.frozen_until, self._arrive, task, serial, exchange, fate, overdue)
            if serial == task.serial:
                self._time_out(task, overdue)
            return
        answer, error = self._apply(exchange, fate)
        back = world.now + self._way_back(fate, overdue)
        if fate is Fate.LOST_REPLY or back > overdue:
            if serial == task.serial:
                self._time_out(task, overdue)
        else:
            world.at(back, task.resume, serial, answer, error)

    def _apply(self, exchange: Exchange, fate: Fate) -> tuple[Any, BaseException | None]:
        try:
            self.server.refuse_if_down()
            answer = exchange.apply(*exchange.args)
        except StoreUnavailable as error:
            return None, error
        if fate is Fate.RESET:
            return None, OutcomeUnknown("connection reset")
        if fate is Fate.CROSSED_REPLY and isinstance(self.server.last_grant, Granted):
            return (self.server.last_grant if exchange.apply == self.server.take else answer), None
        return answer, None

    def _way_back(self, fate: Fate, overdue: float) -> float:
        world = self._world
        if fate is Fate.SLOW_REPLY:
            return (overdue - world.now) * (0.3 + 0.69 * self._rng.random())
        return world.quick()
