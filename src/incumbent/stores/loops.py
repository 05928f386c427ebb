"""What belongs to one event loop or one process: stores, their connections, and their end.

Imports no asyncio, for which a program that only blocks has no use.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakSet

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


class Detachable(Protocol):
    """What belongs to one process, and is left behind in a fork's child."""

    def detach(self) -> None:
        """Give the descriptors back without touching the parent's connections or event loop."""


def detach_in_child(what: Detachable) -> None:
    """Have `what` detached in each child of a fork, for as long as it lives."""
    _detachable.add(what)


B = TypeVar("B")
S = TypeVar("S", bound=Detachable)


class Loops(Generic[S]):
    """What `make` makes, once for each event loop of this process."""

    def __init__(self, make: Callable[[], S]) -> None:
        self._make = make
        self._stores: WeakKeyDictionary[AbstractEventLoop, S] = WeakKeyDictionary()
        detach_in_child(self)

    def store(self) -> S:
        """That of the running loop. Raises RuntimeError where none runs."""
        from asyncio import get_running_loop

        loop = get_running_loop()
        store = self._stores.get(loop)
        return self._add(loop) if store is None else store

    def _add(self, loop: AbstractEventLoop) -> S:
        # A store's connections know their loop, so a loop that was closed does not go by itself.
        # By a copy of the references: other threads have loops as well.
        for reference in list(self._stores.keyrefs()):
            other = reference()
            if other is not None and other.is_closed():
                self._stores.pop(other, None)
        store = self._stores[loop] = self._make()
        return store

    def detach(self) -> None:
        """In a fork's child: these loops are the parent's."""
        _graveyard.append(dict(self._stores))
        for store in self._stores.values():
            store.detach()
        self._stores = WeakKeyDictionary()


class ServerEngine(Generic[B, S]):
    """What engines of servers have in common; see stores.base.Engine.

    Connects to nothing before its first operation. `make` makes the asynchronous store of one loop.
    """

    def __init__(self, url: str, store: B, make: Callable[[], S]) -> None:
        self.url = url
        self._store = store
        self._loops = Loops(make)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def store(self) -> B:
        return self._store

    def async_store(self) -> S:
        """See Engine.async_store. Raises RuntimeError where no event loop runs."""
        return self._loops.store()


class LoopEnd:
    """Calls `ended` when the loop ends in which `watch` was called."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._waiting: AsyncGenerator[None, None] | None = None

    async def watch(self) -> None:
        """Begin to watch; again is nothing more."""
        if self._waiting is None:
            self._waiting = self._wait()
            await anext(self._waiting)

    async def _wait(self) -> AsyncGenerator[None, None]:
        """Ends with the loop: asyncio.run closes asynchronous generators before it closes."""
        try:
            yield
        finally:
            if self._waiting is not None:
                # It knows its loop, which would live on.
                self._waiting = None
                self._ended()

    async def aclose(self) -> None:
        """Watch no longer."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            await waiting.aclose()


_detachable: WeakSet[Detachable] = WeakSet()
_graveyard: list[object] = []
"""Loops that must never be collected: closing the parent's transports would disturb the parent."""


def _after_fork() -> None:
    for each in list(_detachable):
        each.detach()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
