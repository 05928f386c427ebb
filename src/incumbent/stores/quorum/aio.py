"""The asynchronous side: operations awaited, by one connection to each node in each event loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Final, TypeVar
from weakref import WeakSet

from incumbent.clock import now as _now
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Key
from incumbent.net.pool import Broken, Mismatch, exchange_error
from incumbent.net.readers import LoopWakeup, Wakeup
from incumbent.stores.loops import LoopEnd
from incumbent.stores.plan import Plan
from incumbent.stores.quorum.ballots import Silent
from incumbent.stores.quorum.nodes import (
    NOT_ASKED,
    ConnectedPanel,
    Node,
    Panel,
    Quorum,
    Reply,
    welcome,
)
from incumbent.stores.quorum.operations import Operations, carry_out
from incumbent.stores.quorum.waiting import CONNECTED, Message, Subscribers
from incumbent.stores.redis.aiodial import dial
from incumbent.stores.redis.aiowire import AsyncWire
from incumbent.stores.redis.exchange import UNUSABLE
from incumbent.stores.redis.exchange import carry_out as visit
from incumbent.stores.redis.resp import Step, as_eval

T = TypeVar("T")

_GRACE: Final = 0.03
_FIRST_GRACE: Final = 0.5
_LONGEST: Final = 2.0


class AsyncPanel(ConnectedPanel):
    """See Panel. The connections are shared by all tasks of the loop."""

    def __init__(self, wires: _Wires) -> None:
        super().__init__(wires.quorum, wires.nodes)
        self._wires = wires
        self._futures: dict[int, asyncio.Future[Any]] = {}
        self._wakeup = LoopWakeup()

    @property
    def connections(self) -> Sequence[AsyncWire | None]:  # type: ignore[override]
        return self._wires.all

    @property
    def blank(self) -> bool:
        return all(self._wires.blank)

    async def open(self, until: float) -> None:
        await self._wires.fill(until)

    async def rest(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def owe(self, node: int, key: Key, claim: str, ballot: int) -> None:
        owes = partial(self.nodes[node].owes, key, claim, ballot)
        future = self._futures.get(node)
        if future is None:
            owes()
        else:
            # Perhaps it does confirm it, only later.
            future.add_done_callback(lambda done: None if _is_confirmed(done) else owes())

    def _write(self, node: int, step: Step, until: float) -> Silent | None:
        self._futures.pop(node, None)
        wire = self._wires.all[node]
        if wire is None:
            return NOT_ASKED
        try:
            future = wire.ask(step.payload, until, step.answers)
        except Broken as error:
            return self._failed(node, error)
        self._futures[node] = future
        future.add_done_callback(lambda _: self._wakeup.wake())
        return None

    async def _read_some(
        self,
        replies: list[Reply | None],
        missing: Sequence[int],
        steps: Sequence[Step | None],
        by: float,
        until: float,
    ) -> bool:
        while not (done := [node for node in missing if self._futures[node].done()]):
            if _now() >= by:
                return False
            # At `until` the connection itself ends the waiting.
            await self._wakeup.wait(by if by < until else until + _GRACE)
        for node in done:
            replies[node] = self._reply_of(node, steps[node], until)
        return True

    def _reply_of(self, node: int, step: Step | None, until: float) -> Reply | None:
        future = self._futures[node]
        if future.cancelled() or step is None:
            return NOT_ASKED
        if (error := future.exception()) is not None:
            lost = error if isinstance(error, Exception) else Broken(str(error), sent=True)
            return self._failed(node, lost)
        self._wires.slow.discard(node)
        reply = [future.result()] if step.answers == 1 else list(future.result())
        return self._replied(node, step, reply, until)

    def _failed(self, node: int, error: Exception) -> Silent:
        if isinstance(error, Broken) and error.late and not error.sent:
            return NOT_ASKED
        return super()._failed(node, error)

    def _is_slow(self, node: int) -> bool:
        return node in self._wires.slow

    def _leave(self, node: int, step: Step | None) -> None:
        slow = self._wires.slow
        slow.add(node)
        self._futures[node].add_done_callback(
            lambda done: None if _is_lost(done) else slow.discard(node)
        )


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
        return _FIRST_GRACE if any(not node.met for node in self.nodes) else _GRACE

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
            paid.add_done_callback(_is_lost)

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


class AsyncSubscribers:
    """See Subscribers."""

    interruptible = True

    def __init__(self, wires: _Wires) -> None:
        self._connections = wires
        self._wires: list[AsyncWire | None] = [None] * len(wires.nodes)
        self._inbox: deque[Message] = deque()
        self._reader_wakeup = LoopWakeup()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, node: int, until: float) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(node, until))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, node: int, until: float) -> None:
        try:
            wire = await self._connections.dial(node, until)
        except StoreError as error:
            self._connections.nodes[node].failed(error)
            self._put(node, error)
            return
        self._wires[node] = wire
        wire.on_message = partial(self._receive, node)
        self._put(node, CONNECTED)

    def _receive(self, node: int, message: Any) -> None:
        closed = Broken("the subscription was closed", sent=True)
        self._put(node, closed if message is None else message)

    def _put(self, node: int, message: Any) -> None:
        self._inbox.append((node, message))
        self._reader_wakeup.wake()

    def send(self, node: int, request: bytes, until: float) -> None:
        wire = self._wires[node]
        if wire is None:
            raise Broken("it is not connected", sent=False)
        wire.send(request, until)

    async def next(self, until: float) -> Message | None:
        if not self._inbox and until > _now():
            await self._reader_wakeup.wait(until)
        return self._inbox.popleft() if self._inbox else None

    def wake(self) -> None:
        self._reader_wakeup.wake()

    def drop(self, node: int) -> None:
        wire, self._wires[node] = self._wires[node], None
        if wire is not None:
            wire.on_message = None
            wire.close()

    def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for node in range(len(self._wires)):
            self.drop(node)


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
        self._wires.let_go()

    def new_subscribers(self) -> Subscribers:
        return AsyncSubscribers(self._wires)

    def new_wakeup(self) -> Wakeup:
        return LoopWakeup()

    def me(self) -> Hashable:
        return object()

    async def aclose(self) -> None:
        self._wires.let_go()
        await self._wires.end.aclose()

    def detach(self) -> None:
        """In a fork's child: give the descriptors back without touching the parent's loop."""
        for wire in list(self._wires.made):
            wire.detach()


def _is_lost(future: asyncio.Future[Any]) -> bool:
    return future.cancelled() or future.exception() is not None


def _is_confirmed(undo: asyncio.Future[Any]) -> bool:
    return not _is_lost(undo) and type(undo.result()) is int
