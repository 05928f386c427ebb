"""Objects that belong to one event loop or one process: stores, their connections, and their end.

Does not import asyncio, because blocking programs do not need it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakSet

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


class Detachable(Protocol):
    """An object that belongs to one process, and is abandoned in the child of a fork."""

    def detach(self) -> None:
        """Close the descriptors without disturbing the parent's connections or event loop."""


def detach_in_child(what: Detachable) -> None:
    """Have `what` detached in each child of a fork, as long as `what` lives."""
    _detachable.add(what)


B = TypeVar("B")
S = TypeVar("S", bound=Detachable)


class Loops(Generic[S]):
    """The stores that `make` makes, one for each event loop of this process."""

    def __init__(self, make: Callable[[], S]) -> None:
        self._make = make
        self._stores: WeakKeyDictionary[AbstractEventLoop, S] = WeakKeyDictionary()
        detach_in_child(self)

    def store(self) -> S:
        """The store of the running loop. Raises RuntimeError if no loop runs."""
        from asyncio import get_running_loop

        loop = get_running_loop()
        store = self._stores.get(loop)
        return self._add(loop) if store is None else store

    def _add(self, loop: AbstractEventLoop) -> S:
        # A store's connections refer to their loop, so a closed loop is not collected by itself.
        # This iterates over a copy of the references, because other threads have loops too.
        for reference in list(self._stores.keyrefs()):
            other = reference()
            if other is not None and other.is_closed():
                self._stores.pop(other, None)
        store = self._stores[loop] = self._make()
        return store

    def detach(self) -> None:
        """Detach the stores in the child of a fork: their loops are the parent's."""
        _graveyard.append(dict(self._stores))
        for store in self._stores.values():
            store.detach()
        self._stores = WeakKeyDictionary()


class ServerEngine(Generic[B, S]):
    """The common part of engines for servers; see stores.base.Engine.

    Does not connect before the first operation. `make` makes the asynchronous store of one loop.
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
        """See Engine.async_store. Raises RuntimeError if no event loop runs."""
        return self._loops.store()


class LoopEnd:
    """Calls `ended` when the event loop ends in which `watch` was called."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended
        self._waiting: AsyncGenerator[None, None] | None = None

    async def watch(self) -> None:
        """Begin to watch; further calls do nothing."""
        if self._waiting is None:
            self._waiting = self._wait()
            await anext(self._waiting)

    async def _wait(self) -> AsyncGenerator[None, None]:
        """End with the loop: asyncio.run closes asynchronous generators, then the loop."""
        try:
            yield
        finally:
            if self._waiting is not None:
                # The generator refers to its loop, which would live on.
                self._waiting = None
                self._ended()

    async def aclose(self) -> None:
        """Stop watching."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            await waiting.aclose()


_detachable: WeakSet[Detachable] = WeakSet()
_graveyard: list[object] = []
"""Loops that must not be collected: closing the parent's transports would disturb the parent."""


def _after_fork() -> None:
    for each in list(_detachable):
        each.detach()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
