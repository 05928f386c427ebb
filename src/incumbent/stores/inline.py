"""Runs a blocking store's operations in the event loop, for stores that answer at once."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from incumbent.stores.base import Store

P = ParamSpec("P")
T = TypeVar("T")


def at_once(
    of: Callable[[Store], Callable[P, T]],
) -> Callable[Concatenate[InlineAsyncStore, P], Coroutine[Any, Any, T]]:
    """Make a coroutine function of an operation of a blocking store."""

    async def operation(self: InlineAsyncStore, /, *args: P.args, **settings: P.kwargs) -> T:
        return await self._run(partial(of(self.store), *args, **settings))

    return operation


class InlineAsyncStore:
    """An AsyncStore without `wait_change`. Each call takes microseconds: a thread costs more."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def _run(self, operation: Callable[[], T]) -> T:
        # An engine overrides this to add behaviour to every operation, such as another try.
        return operation()

    take = at_once(lambda store: store.take)
    renew = at_once(lambda store: store.renew)
    give = at_once(lambda store: store.give)
    put = at_once(lambda store: store.put)
    read = at_once(lambda store: store.read)
    scan = at_once(lambda store: store.scan)

    async def aclose(self) -> None:
        """Do nothing: the blocking side owns all that is to be closed."""
