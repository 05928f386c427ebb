"""One process on a machine of its own: its clock, its user's program, its misfortunes."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from incumbent._core.acquire import acquire
from incumbent._core.held import Held, Wanted
from incumbent._core.release import release
from incumbent.errors import LockError
from incumbent.lease import State
from incumbent.testing.sim.keeper import SimKeeper
from incumbent.testing.sim.network import Fate
from incumbent.testing.sim.port import SimPort
from incumbent.testing.sim.tasks import SIGNALS, Clock, Exchange, Nap, Task

if TYPE_CHECKING:
    from incumbent.testing.sim.world import World

__all__ = ["Process"]

_TICK = 1e-9


class Process:
    """A Host with two threads: the user's, and the keeper's."""

    def __init__(self, world: World, number: int, rate: float) -> None:
        self.world = world
        self.name = f"client {number}"
        self.clock = Clock(rate, world.rng.random() * 1000.0)
        self.slept = 0.0
        """Seconds of its clock that it spent frozen."""
        self.frozen = False
        self._frozen_at = 0.0
        self.backlog: list[tuple[Task, int, Any, BaseException | None]] = []
        self.dead = False
        self.cut: Fate | None = None
        """What every exchange meets while the network is partitioned."""
        self.port = SimPort(self)
        self.keeper = SimKeeper(self)
        self.user = Task(self, self._live())

    # -- clocks ------------------------------------------------------------------------------

    def now(self) -> float:
        """The clock that goes on during suspend: the one that the protocols are given."""
        return self.clock.at(self.world.now)

    def awake(self) -> float:
        """The clock that stops during suspend, which nobody should count a lease on."""
        since = self.world.now - self._frozen_at if self.frozen else 0.0
        return self.clock.at(self.world.now) - self.slept - since * self.clock.rate

    def when(self, shown: float) -> float:
        """The instant of true time at which `now` shows that."""
        return self.clock.when(shown)

    def awake_when(self, shown: float) -> float:
        """The same for `awake`, if nothing freezes it before."""
        return self.clock.when(shown + self.slept)

    # -- misfortunes -------------------------------------------------------------------------

    def stall(self) -> float:
        """Freeze now, for a while that matters; say for how long."""
        world = self.world
        seconds = world.ttl * world.rng.uniform(0.05, 1.5)
        self.freeze(seconds)
        return seconds

    def freeze(self, seconds: float) -> None:
        """SIGSTOP, a suspended machine, or a scheduler that has better things to do."""
        if self.frozen or self.dead:
            return
        self.frozen = True
        self._frozen_at = self.world.now
        if self.world.history is not None:
            self.world.say(self.name, f"  is frozen for {seconds:.3f} s")
        self.world.at(self.world.now + seconds, self._thaw)

    def _thaw(self) -> None:
        if not self.frozen:
            return
        self.frozen = False
        self.slept += (self.world.now - self._frozen_at) * self.clock.rate
        waiting, self.backlog = self.backlog, []
        while waiting and not self.frozen:
            task, serial, value, error = waiting.pop(0)
            task.resume(serial, value, error)
        self.backlog[:0] = waiting

    def cut_off(self, seconds: float) -> None:
        """Its requests, or the answers to them, go nowhere for a while."""
        self.cut = self.world.rng.choice((Fate.LOST_REQUEST, Fate.LOST_REPLY))
        self.world.say(self.name, f"  meets {self.cut.name} for {seconds:.3f} s")
        self.world.at(self.world.now + seconds, self._reconnect)

    def _reconnect(self) -> None:
        self.cut = None

    def crash(self) -> None:
        """SIGKILL: nothing of it runs any more, and nothing is cleaned up."""
        self.dead = True
        self.frozen = False
        self.backlog.clear()
        self.world.judge.died(self)
        self.user.kill()
        self.keeper.kill()

    def start(self) -> None:
        """Begin the user's program."""
        self.user.resume(0)

    # -- Host --------------------------------------------------------------------------------

    def grant(self, task: Task, wished: Exchange | Nap) -> None:
        """See Host.grant."""
        world = self.world
        if isinstance(wished, Exchange):
            world.network.carry(self, task, wished)
        elif wished.until != inf:
            # Never a rounding too early, or the sleeper would sleep again, and for nothing.
            world.at(self.when(wished.until) + _TICK, task.resume, task.serial)
        chance = world.profile.interrupts
        if chance and world.rng.random() < chance:
            self._interrupt_soon(task, wished)

    def _interrupt_soon(self, task: Task, wished: Exchange | Nap) -> None:
        if task is not self.user and isinstance(wished, Nap):
            return
        world, rng = self.world, self.world.rng
        left = min(max(0.0, wished.until - self.now()), world.ttl / 6)
        when = world.now + left * rng.random() * rng.random()
        error = SIGNALS[rng.randrange(2)]("a signal")
        world.at(when, task.resume, task.serial, None, error)

    # -- the user's program ------------------------------------------------------------------

    async def _live(self) -> None:
        world, rng, port = self.world, self.world.rng, self.port
        for _ in range(rng.randint(*world.profile.rounds)):
            try:
                await port.sleep_until(self.now() + world.ttl * world.profile.idle * rng.random())
                held = await self._acquire(world.draw_wanted())
                if held is not None:
                    await self._use(held)
            except SIGNALS:
                pass

    async def _acquire(self, wanted: Wanted) -> Held | None:
        world, port = self.world, self.port
        timeout = world.draw_timeout()
        port.asked = []
        if world.history is not None:
            world.say(self.name, f"acquire({wanted.key.name}, timeout={timeout})")
        try:
            held = await acquire(port, wanted, timeout)
            world.judge.began(self, held, port.asked)
        except LockError as error:
            world.judge.ended_without(self, wanted, port.asked, error)
            return None
        except SIGNALS as error:
            world.judge.ended_without(self, wanted, port.asked, error)
            raise
        self.keeper.arm(held)
        return held

    async def _use(self, held: Held) -> None:
        try:
            await self._body(held)
        finally:
            if not self.dead:
                await self._leave(held)

    async def _body(self, held: Held) -> None:
        """What is done under the lease: told at every step, and half of them stopped in time."""
        world, rng, machine = self.world, self.world.rng, held.machine
        now = self.now()
        end = now + world.draw_hold()
        stopped = rng.random() < 0.5
        while now < end:
            step = min(end, now + world.ttl * (0.2 + rng.random()))
            await self.port.sleep_until(min(step, machine.stop_at) if stopped else step)
            now = self.now()
            if not machine.valid(now):
                return
            world.judge.acts(self, held)
            if stopped and now >= machine.stop_at:
                return
            if rng.random() < world.profile.asks_renewal:
                self.keeper.renew_now(held)

    async def _leave(self, held: Held) -> None:
        """As the facades do: a lease that was lost is no success, and what is left is owed."""
        world, machine = self.world, held.machine
        if not machine.valid(self.now()):
            self.keeper.owe(held.debt(self.now(), undo_slot=False))
            self.keeper.disarm(held)
            world.judge.lost(self, held)
            return
        world.judge.succeeded(self, held)
        undo = held.wanted.slot is not None and world.rng.random() < 0.2
        if world.rng.random() < 0.5:
            self.keeper.disarm(held)
        world.judge.leaves(self, held, undone=undo)
        try:
            confirmed = await release(self.port, held, undo_slot=undo)
            world.judge.released(self, held, confirmed=confirmed)
            if machine.state is State.LOST:
                world.judge.lost(self, held)
        finally:
            self.keeper.disarm(held)
            world.judge.left(self, held)
