"""Waiting for a change on the asynchronous side: see `hub`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from incumbent.clock import now as _now
from incumbent.errors import StoreError
from incumbent.net.readers import LoopWakeup
from incumbent.stores.quorum.nodes import Node
from incumbent.stores.quorum.seats import CONNECTED, Word
from incumbent.stores.redis.aiowire import AsyncWire
from incumbent.stores.redis.errors import Broken

__all__ = ["WireEars"]


class _Dials(Protocol):
    nodes: Sequence[Node]

    async def dial(self, node: int, until: float) -> AsyncWire:
        """A connection to the node. Raises StoreError."""


class WireEars:
    """See hub.Ears."""

    interruptible = True

    def __init__(self, dials: _Dials) -> None:
        self._dials = dials
        self._wires: list[AsyncWire | None] = [None] * len(dials.nodes)
        self._inbox: deque[Word] = deque()
        self._bell = LoopWakeup()
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
