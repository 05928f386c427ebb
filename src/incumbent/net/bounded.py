"""A PlanRunner whose connections are few, because each is a process or thread of the server.

Takes and gives enter by `limits`, so that some connections are left for waits and reads. Renewals
have additional ones: they must not wait for other requests.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from math import inf
from typing import Any, Final, TypeVar

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.net.limiter import limits
from incumbent.net.pool import Connection, PlanRunner, until_served
from incumbent.net.readers import Wakeup
from incumbent.stores.plan import Plan

T = TypeVar("T")
W = TypeVar("W", bound=Connection)
Facts = TypeVar("Facts")

_OPEN_MAX: Final = 10
"""The most connections of one store: a server has room for a hundred by default."""
AT_ONCE: Final = 4
"""Takes at a time, and as many gives: two connections are left for waits and reads."""
_SPARE: Final = 4
"""Additional connections for renewals."""


class BoundedRunner(PlanRunner[W, Facts]):
    """See the module. `sleep`: wait for so many seconds; `wakeup`: see stores.turns.TakesTurns."""

    def __init__(
        self, where: str, wakeup: Callable[[], Wakeup], sleep: Callable[[float], Awaitable[object]]
    ) -> None:
        super().__init__(where, _OPEN_MAX)
        self.limits = limits(where, AT_ONCE, wakeup, lambda: self.idle, self._keep_another)
        self._wakeup, self._sleep = wakeup, sleep
        self._dialing: list[None] = []

    @abstractmethod
    async def dialled(self, until: float, lasts: float = -inf) -> W:
        """A new connection, made by `opened`. Raises StoreUnavailable, at `until` at the latest.

        A dial that others may use may go on until `lasts`.
        """

    def run(self, plan: Plan[Facts, T], until: float) -> Coroutine[Any, Any, T]:
        return until_served(
            lambda: self.carry(plan, until), until, lambda at: self._wakeup().wait(at)
        )

    async def fresh(self, plan: Plan[Facts, T], until: float) -> W:
        most = _OPEN_MAX + _SPARE if plan.kind == "renew" else _OPEN_MAX
        return await self._in_turn(until, most) or await self.dialled(until, until)

    async def _keep_another(self, until: float) -> None:
        """Make a connection for the next request. Raises StoreUnavailable."""
        idle = self.idle
        wire = await self._in_turn(until, _OPEN_MAX)
        self.put_back(wire or await self.dialled(until), idle)

    async def _in_turn(self, until: float, most: int) -> W | None:
        """A connection that was put back; None if another may be opened."""
        # Polled, without a line of waiters: the limiter lets in fewer than there are connections,
        # so this is rare, and a connection may also become free by being collected.
        pause = 0.001
        while sum(not wire.closed for wire in list(self.all)) + len(self._dialing) >= most:
            wire = self.trusted()
            if wire is not None:
                return wire
            left = until - clock.now()
            if left <= 0:
                raise StoreUnavailable(
                    f"{self.where}: all {most} connections of this process are in use, and none"
                    " became free in time"
                )
            await self._sleep(min(pause, left))
            pause = min(0.02, 2 * pause)
        return None

    async def opened(self, dial: Awaitable[W]) -> W:
        """The connection that `dial` makes."""
        # It counts from the beginning: else a burst of dials would open more than `most`.
        self._dialing.append(None)
        try:
            wire = await dial
            # Before `_dialing` shrinks: in between it counts twice rather than not at all.
            self.all.add(wire)
            return wire
        finally:
            self._dialing.pop()

    def detach(self) -> None:
        self._dialing = []
        super().detach()
