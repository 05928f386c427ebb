"""A request that a server refuses for a moment is asked again, for as long as there is time.

A transaction that it could not order, a row that was locked, more requests than it takes: nothing
was done, and the next try may succeed. A refusal that lasts (a full disk, a replica) is raised.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from incumbent import clock
from incumbent.chance import draw_jitter
from incumbent.errors import StoreUnavailable

T = TypeVar("T")

_SOON: Final = 0.5
"""Seconds: a refusal that asks for a longer pause is not for a moment."""
_PAUSE_LEAST: Final = 0.01


async def until_served(
    ask: Callable[[], Awaitable[T]], until: float, rest: Callable[[float], Awaitable[object]]
) -> T:
    """The outcome of `ask`, called again after a refusal for a moment, with full jitter.

    `rest`: waits until an instant. Raises what `ask` raises; the refusal if no time is left for
    another one: a try that is cut off would leave in doubt what is certainly not done.
    """
    refusal: StoreUnavailable | None = None
    while True:
        began = clock.now()
        try:
            return await ask()
        except StoreUnavailable as error:
            now = clock.now()
            again = now + max(_PAUSE_LEAST, draw_jitter() * (error.retry_after or 0.0))
            if refusal is not None and now >= until:
                raise refusal from error
            after = error.retry_after
            brief = after is not None and after <= _SOON and not error.permanent
            if not brief or again + (now - began) >= until:
                raise
            refusal = error
        while clock.now() < again:
            await rest(again)
