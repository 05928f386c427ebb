"""The asynchronous side of stores over registers whose drivers block."""

from __future__ import annotations

from typing import Generic, TypeVar

from incumbent.errors import StoreError
from incumbent.model import Key
from incumbent.net.bounded import AT_ONCE
from incumbent.net.limiter import limits
from incumbent.net.readers import SharedWakeup
from incumbent.protocol.port import run_blocking
from incumbent.stores.plan import BlockingTogether
from incumbent.stores.register_store import PollingOperations
from incumbent.stores.registers import Seen
from incumbent.stores.threaded import ThreadedAsyncStore

Polling = TypeVar("Polling", bound=PollingOperations)


class ThreadedRegisterStore(ThreadedAsyncStore, Generic[Polling]):
    """The AsyncStore of a store whose driver blocks: a thread for each request.

    A waiter needs none, and shares its looks with the waiters of the blocking side.
    """

    def __init__(self, store: BlockingTogether[Polling]) -> None:
        super().__init__(store)
        self.limits = limits(store.operations.dialect.where, AT_ONCE, SharedWakeup)
        self._blocking = store

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        looks = self._blocking.operations.looks
        await looks.wait(key, seen, until, SharedWakeup(), self._look)

    async def _look(self, key: Key, until: float) -> Seen | StoreError:
        operations = self._blocking.operations
        return await self.run(lambda: run_blocking(operations.look(key, until)), until)
