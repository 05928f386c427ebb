"""The asynchronous side: `rounds` awaited, with one connection of each loop's own to each node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakSet

from incumbent.clock import now as _now
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Key
from incumbent.net.readers import LoopWakeup, Wakeup
from incumbent.stores.loops import LoopEnd
from incumbent.stores.plan import Plan
from incumbent.stores.quorum.aio_waiting import WireEars
from incumbent.stores.quorum.ballots import Silent
from incumbent.stores.quorum.dialect import as_eval
from incumbent.stores.quorum.nodes import (
    NOT_ASKED,
    Enough,
    Node,
    Panel,
    Quorum,
    Reply,
    welcome,
)
from incumbent.stores.quorum.operations import Operations, carry_out
from incumbent.stores.quorum.seats import Ears
from incumbent.stores.redis.aiodial import dial
from incumbent.stores.redis.aiowire import AsyncWire
from incumbent.stores.redis.errors import Broken, Mismatch, exchange_error
from incumbent.stores.redis.exchange import UNUSABLE, is_forgotten
from incumbent.stores.redis.exchange import carry_out as visit
from incumbent.stores.redis.resp import Step

__all__ = ["AsyncPanel", "AsyncQuorumStore"]

T = TypeVar("T")

_GLANCE: Final = 0.01
"""Seconds for which the rest is waited for once the answers suffice."""
_GRACE: Final = 0.03
_FIRST_GRACE: Final = 0.5
_LONGEST: Final = 2.0


class AsyncPanel(Panel):
    """See panel.Panel. The connections are shared by all tasks of the loop."""

    def __init__(self, wires: _Wires) -> None:
        self._wires, self.quorum = wires, wires.quorum
        self._pending: dict[int, asyncio.Future[Any]] = {}

    @property
    def born(self) -> list[float | None]:
        """See Panel.born."""
        return [None if wire is None else wire.born for wire in self._wires.all]

    @property
    def blank(self) -> bool:
        """See Panel.blank."""
        return all(self._wires.blank)

    async def open(self, until: float) -> None:
        """See Panel.open."""
        await self._wires.fill(until)

    async def rest(self, seconds: float) -> None:
        """See Panel.rest."""
        await asyncio.sleep(seconds)

    def owe(self, node: int, key: Key, claim: str, ballot: int) -> None:
        """See Panel.owe."""
        owes = partial(self._wires.nodes[node].owes, key, claim, ballot)
        pending = self._pending.get(node)
        if pending is None:
            owes()
        else:
            # Perhaps it does confirm it, only later.
            pending.add_done_callback(lambda it: owes() if _failed(it) else None)

    async def ask(
        self, steps: Sequence[Step | None], until: float, enough: Enough | None = None
    ) -> list[Reply]:
        """See Panel.ask."""
        hearing = _Hearing(self._wires, steps, enough)
        self._pending = hearing.post(until)
        return await hearing.wait()


class _Hearing:
    """One round: the answers come by callbacks, and whoever waits is told once."""

    def __init__(self, wires: _Wires, steps: Sequence[Step | None], enough: Enough | None) -> None:
        self._wires = wires
        self._steps = steps
        self._enough = enough
        self._heard: list[Reply | None] = [None] * len(steps)
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._until = 0.0

    def post(self, until: float) -> dict[int, asyncio.Future[Any]]:
        """Write to all."""
        self._until = until
        pending = self._pending
        for node, step in enumerate(self._steps):
            wire = self._wires.all[node]
            if wire is None:
                self._heard[node] = self._wires.nodes[node].silent()
            elif step is None:
                self._heard[node] = NOT_ASKED
            else:
                try:
                    pending[node] = wire.ask(step.payload, until, step.answers)
                except Broken as error:
                    self._heard[node] = self._wires.failed(node, error)
        for node, future in pending.items():
            future.add_done_callback(partial(self._hear, node))
        return pending

    def _hear(self, node: int, future: asyncio.Future[Any]) -> None:
        step = self._steps[node]
        if future.cancelled() or step is None:
            heard: Reply = NOT_ASKED
        elif (error := future.exception()) is not None:
            heard = self._wires.failed(node, error)
        else:
            self._wires.slow.discard(node)
            heard = [future.result()] if step.answers == 1 else list(future.result())
            if is_forgotten(heard[0]) and step.answers == 1:
                heard_later = self._ask_with_script(node, step)
                if heard_later is None:
                    return
                heard = heard_later
        self._heard[node] = heard
        self._look()

    def _ask_with_script(self, node: int, step: Step) -> Silent | None:
        """Once more with the script in it, at once: others may be silent for long."""
        wire = self._wires.all[node]
        if wire is None:
            return NOT_ASKED
        try:
            future = wire.ask(as_eval(step.payload), self._until)
        except Broken as error:
            return self._wires.failed(node, error)
        self._pending[node] = future
        future.add_done_callback(partial(self._hear, node))
        return None

    def _look(self) -> None:
        if self._done.done():
            return
        if None not in self._heard:
            self._finish()
        elif self._timer is None and self._enough is not None and self._enough(self._heard):
            missing = {node for node, it in enumerate(self._heard) if it is None}
            if missing <= self._wires.slow:
                self._finish()
            else:
                self._timer = self._loop.call_later(_GLANCE, self._finish)

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if not self._done.done():
            self._done.set_result(None)

    async def wait(self) -> list[Reply]:
        """What was heard; Silent for those that nobody waits for any more."""
        if None in self._heard:
            try:
                await self._done
            finally:
                if self._timer is not None:
                    self._timer.cancel()
        return [self._late(node) if it is None else it for node, it in enumerate(self._heard)]

    def _late(self, node: int) -> Silent:
        self._wires.slow.add(node)
        where = self._wires.nodes[node].site.where
        return Silent(exchange_error(Broken("no answer in time", sent=True), where), sent=True)


class _Wires:
    """The connections of one loop."""

    def __init__(
        self, quorum: Quorum, nodes: Sequence[Node], also_let_go: Callable[[], None]
    ) -> None:
        self.quorum = quorum
        self.nodes = nodes
        self._also_let_go = also_let_go
        self.all: list[AsyncWire | None] = [None] * len(nodes)
        self.blank = [False] * len(nodes)
        self.slow: set[int] = set()
        self.made: WeakSet[AsyncWire] = WeakSet()
        self._dialing: dict[int, asyncio.Task[None]] = {}
        self.end = LoopEnd(self.let_go)

    def failed(self, node: int, error: BaseException) -> Silent:
        """The connection brought no answer."""
        said = error if isinstance(error, Exception) else Broken(str(error), sent=True)
        if isinstance(said, Broken) and said.late and not said.sent:
            return NOT_ASKED
        sent = not isinstance(said, Broken) or said.sent
        return Silent(exchange_error(said, self.nodes[node].site.where), sent=sent)

    async def fill(self, until: float) -> None:
        """See Panel.open."""
        self.forget_broken()
        if None not in self.all:
            return
        began, need = _now(), self.quorum.need
        short = sum(wire is not None for wire in self.all) < need
        for node, wire in enumerate(self.all):
            if wire is None and node not in self._dialing and (short or self._is_due(node, began)):
                self._start(node)
        while tasks := self._worth_waiting_for():
            present = sum(wire is not None for wire in self.all)
            by = until if present < need else began + min(self._grace, (until - began) / 2)
            if (left := by - _now()) <= 0:
                break
            await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)

    def _worth_waiting_for(self) -> list[asyncio.Task[None]]:
        short = sum(wire is not None for wire in self.all) < self.quorum.need
        # One that failed before is waited for only by those who cannot do without.
        return [
            task for node, task in self._dialing.items() if short or self.nodes[node].why is None
        ]

    def _is_due(self, node: int, now: float) -> bool:
        return now >= self.nodes[node].retry_at

    @property
    def _grace(self) -> float:
        return _FIRST_GRACE if any(not it.met for it in self.nodes) else _GRACE

    def _start(self, node: int) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(node))
        self._dialing[node] = task
        task.add_done_callback(lambda _: self._dialing.pop(node, None))

    async def _connect(self, node: int) -> None:
        try:
            wire = await self.dial(node, _now() + _LONGEST)
        except StoreError as error:
            self.nodes[node].failed(error)
        else:
            self.all[node] = wire
            self.slow.discard(node)
            self._pay(node, wire)

    async def dial(self, node: int, until: float) -> AsyncWire:
        """A connection that has heard what the node says of itself. Raises StoreError."""
        site = self.nodes[node].site
        await self.end.watch()
        wire = await dial(site, until)
        self.made.add(wire)
        try:
            reply = await visit(wire, welcome(site), until)
        except UNUSABLE as error:
            wire.close()
            raise StoreUnavailable(f"{site.where} cannot be reached: {error}") from error
        except BaseException:
            wire.close()
            raise
        now = _now()
        wire.epoch, wire.born = reply.facts.epoch, reply.facts.born(now)
        self.nodes[node].welcomed(self.quorum, reply, now)
        self.blank[node] = reply.marker is None
        return wire

    def _pay(self, node: int, wire: AsyncWire) -> None:
        """Tell it which votes were taken back while it could not be told."""
        for key, claim, ballot in self.nodes[node].take_owed():
            try:
                revoke = as_eval(self.quorum.dialect.revoke(key, claim, ballot))
                paid = wire.ask(revoke, _now() + _LONGEST)
            except Broken:
                return
            paid.add_done_callback(_failed)

    def forget_broken(self) -> None:
        """Those that the server closed, or that were silent for too long."""
        for node, wire in enumerate(self.all):
            if wire is not None and wire.is_stale(trust=True):
                wire.retire()
                self.all[node] = None

    def let_go(self) -> None:
        """Close all, at once: nothing may outlive the loop."""
        for task in list(self._dialing.values()):
            task.cancel()
        self.all = [None] * len(self.nodes)
        for wire in list(self.made):
            wire.close()
        self._also_let_go()


class AsyncQuorumStore(Operations):
    """See stores.base.AsyncStore. Belongs to the loop in which it was made."""

    def __init__(self, quorum: Quorum, nodes: Sequence[Node]) -> None:
        super().__init__(quorum)
        self._wires = _Wires(quorum, nodes, self.hub.let_go)

    async def run(self, plan: Plan[Panel, T], until: float) -> T:
        panel = AsyncPanel(self._wires)
        await panel.open(until)
        try:
            return await carry_out(plan.start(panel, until))
        except Mismatch as error:
            self._wires.let_go()
            raise exchange_error(error, self.quorum.where) from error

    def let_go(self) -> None:
        """See Operations.let_go."""
        self._wires.let_go()

    def new_ears(self) -> Ears:
        """See Host.new_ears."""
        return WireEars(self._wires)

    def new_bell(self) -> Wakeup:
        """See Host.new_bell."""
        return LoopWakeup()

    def me(self) -> Hashable:
        """See Host.me."""
        return object()

    async def aclose(self) -> None:
        """See AsyncStore.aclose."""
        self._wires.let_go()
        await self._wires.end.aclose()

    def detach(self) -> None:
        """In a fork's child: give the descriptors back without touching the parent's loop."""
        for wire in list(self._wires.made):
            wire.detach()


def _failed(future: asyncio.Future[Any]) -> bool:
    return future.cancelled() or future.exception() is not None
