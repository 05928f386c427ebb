"""What either side does while somebody else writes, written once, as coroutines.

They await a nap: it suspends the asynchronous side and blocks the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeAlias, TypeVar

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.model import Key
from incumbent.stores.sqlite.core import Core
from incumbent.stores.sqlite.patience import looks, pauses, still_locked
from incumbent.stores.sqlite.trouble import FileBusy

__all__ = ["Nap", "insist", "watch"]

P = ParamSpec("P")
T = TypeVar("T")
Nap: TypeAlias = Callable[[float], Awaitable[None]]


async def insist(
    nap: Nap,
    core: Core,
    until: float,
    operation: Callable[P, T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """`operation`, which met another writer, again and again up to `until`."""
    for pause in pauses(until, clock.now):
        await nap(pause)
        try:
            return operation(*args, **kwargs)
        except FileBusy:
            continue
    raise still_locked(core.pool.path)


async def watch(nap: Nap, core: Core, key: Key, seen: str, until: float) -> None:
    """See Store.wait_change; looks every 2 to 25 ms. Trouble ends it early, as a hint may."""
    for pause in looks(until, clock.now):
        try:
            if core.changed(key, seen):
                return
        except FileBusy:
            pass
        except StoreError:
            return
        await nap(pause)
