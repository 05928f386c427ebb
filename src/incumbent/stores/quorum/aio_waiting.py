"""Waiting for a change on the asynchronous side: see `hub`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Sequence
from functools import partial
from typing import Any, Protocol

from incumbent.clock import now as _now
from incumbent.errors import StoreError
from incumbent.model import Key
from incumbent.stores.quorum.group import Quorum
from incumbent.stores.quorum.hub import Hub
from incumbent.stores.quorum.panel import Node
from incumbent.stores.quorum.reading import is_unchanged
from incumbent.stores.quorum.seats import CONNECTED, Ears, Word
from incumbent.stores.redis.aiowire import AsyncWire
from incumbent.stores.redis.errors import Broken
from incumbent.stores.redis.waiting.aioear import LoopBell
from incumbent.stores.redis.waiting.seats import Bell

__all__ = ["AsyncWaiter"]

_Open = Callable[[float], Awaitable[Any]]


class _Dials(Protocol):
    nodes: Sequence[Node]

    async def dial(self, node: int, until: float) -> AsyncWire:
        """A connection to the node. Raises StoreError."""


class AsyncWaiter:
    """One connection to each node for all tasks of a loop that wait."""

    def __init__(self, quorum: Quorum, wires: _Dials) -> None:
        self._quorum = quorum
        self._dials = wires
        self._hub = Hub(quorum)

    async def wait(self, key: Key, seen: str, until: float, panel: _Open) -> None:
        """See Store.wait_change; `panel` opens one."""
        host = _Host(self._quorum, self._dials, panel)
        try:
            await self._hub.wait(host, key, seen, until)
        except StoreError:
            # Once the time is over the caller looks for itself, whatever went wrong meanwhile.
            if _now() < until:
                raise

    def let_go(self) -> None:
        """Close the connections."""
        self._hub.let_go()


class _Host:
    """See hub.Host."""

    def __init__(self, quorum: Quorum, dials: _Dials, panel: _Open) -> None:
        self._quorum, self._dials, self._panel = quorum, dials, panel

    async def is_unchanged(self, key: Key, seen: str, until: float) -> bool:
        """See hub.Host."""
        return await is_unchanged(self._quorum, await self._panel(until), key, seen, until)

    def new_ears(self) -> Ears:
        """See hub.Host."""
        return WireEars(self._dials)

    def new_bell(self) -> Bell:
        """See hub.Host."""
        return LoopBell()

    def me(self) -> Hashable:
        """See hub.Host."""
        return object()


class WireEars:
    """See hub.Ears."""

    interruptible = True

    def __init__(self, dials: _Dials) -> None:
        self._dials = dials
        self._wires: list[AsyncWire | None] = [None] * len(dials.nodes)
        self._inbox: deque[Word] = deque()
        self._bell = LoopBell()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, node: int, until: float) -> None:
        """See hub.Ears."""
        task = asyncio.get_running_loop().create_task(self._connect(node, until))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, node: int, until: float) -> None:
        try:
            wire = await self._dials.dial(node, until)
        except StoreError as error:
            self._dials.nodes[node].failed(error)
            self._hear(node, error)
            return
        self._wires[node] = wire
        wire.hears = partial(self._hear_wire, node)
        self._hear(node, CONNECTED)

    def _hear_wire(self, node: int, message: Any) -> None:
        closed = Broken("the subscription was closed", sent=True)
        self._hear(node, closed if message is None else message)

    def _hear(self, node: int, word: Any) -> None:
        self._inbox.append((node, word))
        self._bell.ring()

    def say(self, node: int, request: bytes, until: float) -> None:
        """See hub.Ears."""
        wire = self._wires[node]
        if wire is None:
            raise Broken("it is not connected", sent=False)
        wire.send(request, until)

    async def next(self, until: float) -> Word | None:
        """See hub.Ears."""
        if not self._inbox and until > _now():
            await self._bell.wait(until)
        return self._inbox.popleft() if self._inbox else None

    def poke(self) -> None:
        """See hub.Ears."""
        self._bell.ring()

    def drop(self, node: int) -> None:
        """See hub.Ears."""
        wire, self._wires[node] = self._wires[node], None
        if wire is not None:
            wire.hears = None
            wire.close()

    def close(self) -> None:
        """See hub.Ears."""
        for task in list(self._tasks):
            task.cancel()
        for node in range(len(self._wires)):
            self.drop(node)
