"""Waiting for a change on the asynchronous side; see `waiting`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from incumbent.clock import now as _now
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Key
from incumbent.stores.quorum.group import Quorum
from incumbent.stores.quorum.panel import Node
from incumbent.stores.quorum.reading import is_unchanged
from incumbent.stores.quorum.waiting import LINGER
from incumbent.stores.redis.aiowire import AsyncWire
from incumbent.stores.redis.errors import Broken
from incumbent.stores.redis.exchange import UNUSABLE

__all__ = ["AsyncWaiter"]

_LEAVE_WITHIN: Final = 0.02
_CONFIRM_WITHIN: Final = 0.1
_IDLE_MAX: Final = 64


class _Dials(Protocol):
    nodes: Sequence[Node]

    async def dial(self, node: int, until: float) -> AsyncWire:
        """A connection to the node. Raises StoreError."""


class AsyncWaiter:
    """Connections that listen: one to each node for each task that waits."""

    def __init__(self, quorum: Quorum, wires: _Dials) -> None:
        self._quorum = quorum
        self._dials = wires
        self._idle: list[list[AsyncWire]] = []

    async def wait(
        self, key: Key, seen: str, until: float, panel: Callable[[float], Awaitable[Any]]
    ) -> None:
        """See Store.wait_change; `panel` opens one."""
        try:
            await self._wait(key, seen, until, panel)
        except StoreError:
            # Once the time is over the caller looks for itself, whatever went wrong meanwhile.
            if _now() < until:
                raise

    async def _wait(
        self, key: Key, seen: str, until: float, panel: Callable[[float], Awaitable[Any]]
    ) -> None:
        idle = self._idle
        wires = await self._listening(key, until)
        try:
            if await is_unchanged(self._quorum, await panel(until), key, seen, until):
                await self._listen(wires, until)
            self._unsubscribe(wires, key)
        except BaseException:
            _close(wires)
            raise
        if idle is self._idle and len(idle) < _IDLE_MAX:
            idle.append(wires)
        else:
            _close(wires)

    def let_go(self) -> None:
        """Close what is not in use."""
        idle, self._idle = self._idle, []
        for wires in idle:
            _close(wires)

    async def _listening(self, key: Key, until: float) -> list[AsyncWire]:
        while self._idle:
            wires = self._idle.pop()
            if len(wires) == len(self._quorum.names) and not any(it.closed for it in wires):
                confirmed = await self._subscribe(wires, key, until)
                if len(confirmed) == len(wires):
                    return confirmed
                wires = confirmed
            _close(wires)
        by = min(until, _now() + 1.0)
        tasks = [
            asyncio.ensure_future(self._dials.dial(node, by))
            for node in range(len(self._quorum.names))
        ]
        wires = await self._subscribe(await _gathered(tasks, self._quorum.need, by), key, until)
        if not wires:
            why = next((it.why for it in self._dials.nodes if it.why is not None), None)
            where = self._quorum.where
            raise StoreUnavailable(f"nobody of {where} can be listened to: {why or 'no answer'}")
        return wires

    async def _subscribe(
        self, wires: Sequence[AsyncWire], key: Key, until: float
    ) -> list[AsyncWire]:
        request = self._quorum.dialect.subscribe(key)
        by = min(until, _now() + _CONFIRM_WITHIN)
        confirmed = []
        for wire in wires:
            with suppress(Broken):
                wire.send(request, by)
        for wire in wires:
            try:
                while not self._quorum.dialect.listens(await wire.next(by), key):
                    pass
            except UNUSABLE:
                wire.close()
            except BaseException:
                _close(wires)
                raise
            else:
                confirmed.append(wire)
        return confirmed

    async def _listen(self, wires: Sequence[AsyncWire], until: float) -> None:
        """Return after a word of a majority, or a while after the first, or at `until`."""
        waiting = {asyncio.ensure_future(wire.next(until)) for wire in wires}
        told = 0
        try:
            while waiting and told < self._quorum.need and (left := until - _now()) > 0:
                done, waiting = await asyncio.wait(
                    waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED
                )
                if done:
                    until = min(until, _now() + LINGER)
                for task in done:
                    task.exception()
                    told += 1
        finally:
            for task in waiting:
                task.cancel()
            if waiting:
                await asyncio.wait(waiting)

    def _unsubscribe(self, wires: Sequence[AsyncWire], key: Key) -> None:
        request = self._quorum.dialect.unsubscribe(key)
        for wire in wires:
            with suppress(Broken):
                wire.send(request, _now() + _LEAVE_WITHIN)


async def _gathered(
    tasks: Sequence[asyncio.Task[AsyncWire]], need: int, by: float
) -> list[AsyncWire]:
    """What is there when all are, or a while after a majority is."""
    waiting = set(tasks)
    try:
        while waiting and (left := by - _now()) > 0:
            _, waiting = await asyncio.wait(
                waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED
            )
            if sum(_succeeded(it) for it in tasks) >= need:
                by = min(by, _now() + 0.02)
    finally:
        for task in waiting:
            task.cancel()
        if waiting:
            await asyncio.wait(waiting)
    return [it.result() for it in tasks if _succeeded(it)]


def _succeeded(task: asyncio.Task[AsyncWire]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _close(wires: Sequence[AsyncWire]) -> None:
    for wire in wires:
        wire.close()
