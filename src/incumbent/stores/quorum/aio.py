"""The asyncio side of a quorum: each event loop has one connection to each node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from incumbent.clock import now as _now
from incumbent.model import Key
from incumbent.net.limiter import IN_FLIGHT, limits
from incumbent.net.pool import Broken, Mismatch, exchange_error
from incumbent.net.readers import SUSPENDING, LoopWakeup, SharedWakeup
from incumbent.stores.loops import LoopEnd
from incumbent.stores.plan import Plan
from incumbent.stores.quorum.ballots import Silent
from incumbent.stores.quorum.connecting import LONGEST, ConnectedPanel, Dialer
from incumbent.stores.quorum.nodes import NOT_ASKED, Panel, Quorum, QuorumNode, Reply
from incumbent.stores.quorum.operations import QuorumOperations, await_program
from incumbent.stores.redis.aio import AsyncRedisWire, dial
from incumbent.stores.redis.resp import RequestBatch, as_eval
from incumbent.stores.redis.site import RedisSite
from incumbent.stores.redis.wire import UNUSABLE

T = TypeVar("T")

_GRACE: Final = 0.03


class AsyncPanel(ConnectedPanel):
    """A Panel whose connections all tasks of the event loop share."""

    def __init__(self, wires: _Wires) -> None:
        super().__init__(wires.quorum, wires.nodes)
        self._wires = wires
        self._futures: dict[int, asyncio.Future[Any]] = {}
        self._wakeup = LoopWakeup()

    @property
    def connections(self) -> Sequence[AsyncRedisWire | None]:  # type: ignore[override]
        return self._wires.all

    async def open(self, until: float) -> None:
        await self._wires.open(until)

    async def rest(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def owe(self, node: int, key: Key, claim: str, ballot: int) -> None:
        owes = partial(self.nodes[node].owes, key, claim, ballot)
        future = self._futures.get(node)
        if future is None:
            owes()
        else:
            # The node may still confirm the revocation, only later.
            _unless_confirmed(future, owes)

    def _write(self, node: int, step: RequestBatch, until: float) -> Silent | None:
        # First: a future of an earlier step must not be read as the answer to this one.
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
        steps: Sequence[RequestBatch | None],
        by: float,
        until: float,
    ) -> bool:
        while not (done := [node for node in missing if self._futures[node].done()]):
            if _now() >= by:
                return False
            # At `until` the connection itself ends the future.
            await self._wakeup.wait(by if by < until else until + _GRACE)
        for node in done:
            replies[node] = self._reply_of(node, steps[node], until)
        return True

    def _reply_of(self, node: int, step: RequestBatch | None, until: float) -> Reply | None:
        future = self._futures[node]
        if future.cancelled() or step is None:
            return NOT_ASKED
        if (error := future.exception()) is not None:
            if not isinstance(error, UNUSABLE):
                raise error
            return self._failed(node, error)
        self._wires.slow.discard(node)
        reply = [future.result()] if step.answers == 1 else list(future.result())
        return self._replied(node, step, reply, until)

    def _failed(self, node: int, error: Exception) -> Silent:
        if isinstance(error, Broken) and error.late and not error.sent:
            return NOT_ASKED
        return super()._failed(node, error)

    def _is_slow(self, node: int) -> bool:
        return node in self._wires.slow

    def _leave(self, node: int, step: RequestBatch | None) -> None:
        slow = self._wires.slow
        slow.add(node)
        self._futures[node].add_done_callback(
            lambda done: None if _is_lost(done) else slow.discard(node)
        )


class _Wires(Dialer[AsyncRedisWire]):
    """The connections of one event loop: one to each node, shared by all tasks."""

    shared = True
    side = SUSPENDING

    def __init__(
        self, quorum: Quorum, nodes: Sequence[QuorumNode], also_let_go: Callable[[], None]
    ) -> None:
        super().__init__(quorum, nodes)
        self._also_let_go = also_let_go
        self.all: list[AsyncRedisWire | None] = [None] * len(nodes)
        self.slow: set[int] = set()
        """Nodes whose last reply has not come yet, and is no longer awaited."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.end = LoopEnd(self.let_go)

    def is_majority(self) -> bool:
        """Whether a majority is connected."""
        return len(self.all) - self.all.count(None) >= self.quorum.need

    async def open(self, until: float) -> None:
        """Replace stale connections, make missing ones, and send owed revocations."""
        for node, wire in enumerate(self.all):
            # The server closed the connection, was silent for too long, or is unfit by now.
            if wire is not None and (wire.server.problem or wire.is_stale(trust=True)):
                wire.retire()
                self.all[node] = None
                self.slow.discard(node)
        if None in self.all:
            await self.fill(self.all, until)
        for node, those in enumerate(self.spare):
            # A second connection was begun because the first one took long.
            while those and self.all[node] is not None:
                those.pop().close()
        for node, wire in enumerate(self.all):
            if wire is not None and self.nodes[node].owed:
                self._pay(node, wire)

    async def _dial(self, site: RedisSite, until: float) -> AsyncRedisWire:
        await self.end.watch()
        return await dial(site, min(until, _now() + LONGEST))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _pay(self, node: int, wire: AsyncRedisWire) -> None:
        """Send the revocations of votes that the node has not confirmed yet."""
        for vote in self.nodes[node].take_owed():
            owes = partial(self.nodes[node].owes, *vote)
            try:
                # With its text: that the node has forgotten the script would go unnoticed.
                paid = wire.ask(as_eval(self.quorum.dialect.revoke(*vote)), _now() + LONGEST)
            except Broken:
                owes()
            else:
                _unless_confirmed(paid, owes)

    def let_go(self) -> None:
        """Close all connections at once: nothing may outlive the event loop."""
        for task in list(self._tasks):
            task.cancel()
        # Before they are forgotten: each has to find out that no connection comes any more.
        waiting = list(self._waiting)
        self._begin_anew()
        self.all = [None] * len(self.nodes)
        for wire in list(self.made):
            wire.close()
        for wakeup in waiting:
            wakeup.wake()
        self._also_let_go()


class AsyncQuorumStore(QuorumOperations):
    """A quorum as an AsyncStore (stores.base). Belongs to the event loop in which it was made."""

    dialer: _Wires

    def __init__(self, quorum: Quorum, nodes: Sequence[QuorumNode]) -> None:
        super().__init__(quorum, SUSPENDING)
        self.dialer = _Wires(quorum, nodes, self.hub.let_go)
        self.limits = limits(
            quorum.where, IN_FLIGHT // 2, SharedWakeup, self.dialer.is_majority, self._connect
        )

    async def _connect(self, until: float) -> None:
        """Make connections for the next request, which says why if there is no majority."""
        await self.dialer.open(min(until, _now() + LONGEST))

    async def run(self, plan: Plan[Panel, T], until: float) -> T:
        panel = AsyncPanel(self.dialer)
        await panel.open(until)
        try:
            return await await_program(plan.start(panel, until))
        except Mismatch as error:
            # The answers on some connection belong to other requests: none of them can be used.
            self.dialer.let_go()
            raise exchange_error(error, self.quorum.where) from error

    def let_go(self) -> None:
        self.dialer.let_go()

    async def aclose(self) -> None:
        self.dialer.let_go()
        await self.dialer.end.aclose()

    def detach(self) -> None:
        """In a forked child: close the descriptors without touching the parent's event loop."""
        for wire in list(self.dialer.made):
            wire.detach()


def _is_lost(future: asyncio.Future[Any]) -> bool:
    return future.cancelled() or future.exception() is not None


def _unless_confirmed(undo: asyncio.Future[Any], owes: Callable[[], None]) -> None:
    """Owe the revocation, unless the node confirms it."""

    def judge(done: asyncio.Future[Any]) -> None:
        if _is_lost(done) or type(done.result()) is not int:
            owes()

    undo.add_done_callback(judge)
