"""A blocking store's operations as coroutines that never suspend.

For the blocking port, and in the event loop for stores that answer at once.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from incumbent.stores.base import Store

__all__ = ["InlineAsyncStore"]

P = ParamSpec("P")
T = TypeVar("T")


def at_once(
    of: Callable[[Store], Callable[P, T]],
) -> Callable[Concatenate[InlineAsyncStore, P], Coroutine[Any, Any, T]]:
    """Make a coroutine function of an operation of a blocking store."""

    async def operation(self: InlineAsyncStore, /, *args: P.args, **settings: P.kwargs) -> T:
        # The last argument of every operation is `until`; what follows it has a keyword.
        until = cast("float", settings["until"] if "until" in settings else args[-1])
        return await self.run(partial(of(self.store), *args, **settings), until)

    return operation


class InlineAsyncStore:
    """An AsyncStore without `wait_change`.

    In an event loop it is for stores whose calls take microseconds: a thread costs more.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    async def run(self, operation: Callable[[], T], until: float) -> T:
        """Run one operation. Override it to add to all of them, such as another try."""
        return operation()

    take = at_once(lambda store: store.take)
    renew = at_once(lambda store: store.renew)
    give = at_once(lambda store: store.give)
    put = at_once(lambda store: store.put)
    read = at_once(lambda store: store.read)
    scan = at_once(lambda store: store.scan)

    async def aclose(self) -> None:
        """Do nothing: the blocking side owns all that is to be closed."""
