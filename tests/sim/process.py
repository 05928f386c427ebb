"""One process on a machine of its own: its clock, its user's program, its port and its keeper."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Any, cast

from incumbent.durations import backoff_delay
from incumbent.errors import LockError, StoreError
from incumbent.lease import LeaseState
from incumbent.model import (
    PLAIN,
    Ask,
    GiveOutcome,
    Key,
    Parting,
    Renewal,
    Renewed,
    RenewOutcome,
    TakeOutcome,
)
from incumbent.protocol.acquire import acquire
from incumbent.protocol.claim import Claim, LeaseRequest
from incumbent.protocol.port import Debt
from incumbent.protocol.release import release, settle
from incumbent.protocol.renew import first_due, next_due, renew
from incumbent.stores.base import NO_LIMITS, Answers, Give, Take
from incumbent.stores.plan import one_by_one
from tests.sim.judge import Judge
from tests.sim.network import Network
from tests.sim.profiles import Fate
from tests.sim.setting import Setting
from tests.sim.tasks import SIGNALS, Exchange, Nap, Task, wish

__all__ = ["Process"]

_SETTLE_TIMEOUT = 1.0
_TICK = 1e-9


class Process:
    """A Host with two threads: the user's, and the keeper's."""

    def __init__(self, world: Setting, network: Network, judge: Judge, number: int) -> None:
        self.world = world
        self.network = network
        self.judge = judge
        self.name = f"client {number}"
        self.clock = world.draw_clock()
        self.slept = 0.0
        """Seconds of its clock that it spent frozen."""
        self.frozen = False
        self._frozen_at = 0.0
        self.backlog: list[tuple[Task, int, Any, BaseException | None]] = []
        self.dead = False
        self.cut: Fate | None = None
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
        self.judge.died(self)
        self.user.kill()
        self.keeper.kill()

    def start(self) -> None:
        """Begin the user's program."""
        self.user.resume(0)

    # -- Host --------------------------------------------------------------------------------

    def grant(self, task: Task, wished: Exchange | Nap) -> None:
        world = self.world
        if isinstance(wished, Exchange):
            self.network.carry(self, task, wished)
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
                await self._take_turn()
            except SIGNALS:
                pass

    async def _take_turn(self) -> None:
        held = await self._acquire(self.world.draw_wanted())
        if held is not None:
            await self._use(held)

    async def _acquire(self, wanted: LeaseRequest) -> Claim | None:
        world, port = self.world, self.port
        timeout = world.draw_timeout()
        port.asked = []
        if world.history is not None:
            world.say(self.name, f"acquire({wanted.key.name}, timeout={timeout})")
        try:
            held = await acquire(port, wanted, timeout)
            self.judge.began(self, held, port.asked)
        except LockError as error:
            self.judge.ended_without(self, wanted, port.asked, error)
            return None
        except SIGNALS as error:
            self.judge.ended_without(self, wanted, port.asked, error)
            raise
        self.keeper.arm(held)
        return held

    async def _use(self, held: Claim) -> None:
        try:
            await self._body(held)
        finally:
            if not self.dead:
                await self._leave(held)

    async def _body(self, held: Claim) -> None:
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
            self.judge.acts(self, held)
            if stopped and now >= machine.stop_at:
                return
            if rng.random() < world.profile.asks_renewal:
                self.keeper.renew_now(held)

    async def _leave(self, held: Claim) -> None:
        """As the facades do: a lease that was lost is no success, and what is left is owed."""
        world, machine = self.world, held.machine
        if not machine.valid(self.now()):
            self.keeper.owe(held.debt(self.now(), undo_slot=False))
            self.keeper.disarm(held)
            self.judge.lost(self, held)
            return
        self.judge.succeeded(self, held)
        undo = held.wanted.slot is not None and world.rng.random() < 0.2
        if world.rng.random() < 0.5:
            self.keeper.disarm(held)
        self.judge.leaves(self, held, undone=undo)
        try:
            confirmed = await release(self.port, held, undo_slot=undo)
            outcome = self.port.released.get(held.id)
            self.judge.released(self, held, outcome, confirmed=confirmed)
            if machine.state is LeaseState.LOST:
                self.judge.lost(self, held)
        finally:
            self.keeper.disarm(held)
            self.judge.left(self, held)


class SimPort:
    """The port of a simulated process: its waits are wishes to the virtual world."""

    limits = NO_LIMITS

    __slots__ = (
        "_process",
        "_server",
        "asked",
        "draw_claim",
        "jitter",
        "now",
        "released",
        "told_to_go",
    )

    def __init__(self, process: Process) -> None:
        self._process = process
        self._server = process.network.server
        self.now = process.now
        self.jitter = process.world.rng.random
        self.draw_claim = process.world.draw_claim
        self.asked: list[str] = []
        """The claims that were sent, since somebody emptied the list."""
        self.released: dict[str, GiveOutcome] = {}
        """What was heard of the releases by the holder itself, by claim."""
        self.told_to_go: set[str] = set()
        """The claims with a notice in the last answer to a renewal."""

    def owe(self, debt: Debt) -> None:
        self._process.keeper.owe(debt)

    def log_outage(self, key: Key, error: StoreError, *_: float | None) -> None:
        """Nobody reads the log of a simulated process."""

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        if claim not in self.asked:
            self.asked.append(claim)
        wished = Exchange(self._server.take, (key, claim, ask), until)
        return cast("TakeOutcome", await wish(wished))

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        wished = Exchange(self._server.renew, (renewals,), until)
        outcomes = cast("list[RenewOutcome]", await wish(wished))
        self.told_to_go = {
            renewal.claim
            for renewal, outcome in zip(renewals, outcomes, strict=True)
            if isinstance(outcome, Renewed) and outcome.notices
        }
        return outcomes

    async def give(
        self, key: Key, claim: str, token: int | None, until: float, *, parting: Parting = PLAIN
    ) -> GiveOutcome:
        wished = Exchange(self._server.give, (key, claim, token, parting), until)
        outcome = cast("GiveOutcome", await wish(wished))
        if token is not None:
            self.released[claim] = outcome
        return outcome

    async def take_all(self, takes: Sequence[Take], until: float) -> Answers[TakeOutcome]:
        if not self._process.world.together:
            return await one_by_one(lambda it: self.take(*it, until), takes, to_the_end=False)
        self.asked += [each.claim for each in takes if each.claim not in self.asked]
        return cast(
            "Answers[TakeOutcome]", await wish(Exchange(self._server.take_all, (takes,), until))
        )

    async def give_all(self, gives: Sequence[Give], until: float) -> Answers[GiveOutcome]:
        if not self._process.world.together:
            return await one_by_one(lambda it: self.give(*it, until), gives)
        outcomes = await wish(Exchange(self._server.give_all, (gives,), until))
        self.released |= {each.claim: it for each, it in zip(gives, outcomes, strict=True)}
        return cast("Answers[GiveOutcome]", outcomes)

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        # A lost hint is not an error.
        self._server.listen(self._process.user, key, seen)
        await wish(Nap(until))

    async def sleep_until(self, instant: float) -> None:
        await wish(Nap(instant))

    async def rest(self, instant: float = inf) -> None:
        """Sleep until then, or until somebody wakes the task."""
        await wish(Nap(instant))


class _Owed:
    __slots__ = ("debt", "due", "tries")

    def __init__(self, debt: Debt) -> None:
        self.debt = debt
        self.tries = 0
        self.due = 0.0


class SimKeeper:
    """The keeper without its threads; its order of work is that of incumbent.runtime.keeper."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.due: dict[Claim, float] = {}
        self._owed: list[_Owed] = []
        self._task: Task | None = None
        self._resting = False

    def arm(self, held: Claim) -> None:
        """Renew it from now on."""
        self.due[held] = first_due(held, self._process.port.jitter())
        self._wake()

    def disarm(self, held: Claim) -> None:
        """Renew it no longer."""
        self.due.pop(held, None)

    def renew_now(self, held: Claim) -> None:
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
        for held in self.due:
            held.machine.note_forked()
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

    async def _renew(self, batch: list[Claim], sent: float) -> None:
        process = self._process
        held_now = [held for held in batch if held.machine.state is LeaseState.HELD]
        live = [held for held in held_now if not held.machine.ends_by_at_most_for]
        error = await renew(process.port, live)
        now = process.now()
        for held in batch:
            self._plan(held, sent, now)
            noticed = error is None and held.id in process.port.told_to_go
            process.judge.renewal_ended(process, held, noticed=noticed)

    def _replan(self, now: float) -> None:
        for held, due in list(self.due.items()):
            if due <= now:
                self._plan(held, now, now)

    def _plan(self, held: Claim, sent: float, now: float) -> None:
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
