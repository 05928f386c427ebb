"""Bounds the requests that are at a store at a time: the others wait here, before they are sent.

Theory of operation. A request has about a second for its answer, and a lease counts from the
instant before it was asked for. Both begin when the request is made. If thousands were made at
once, most of that second would pass in our own process, before a byte is written: all would be
late, be asked again, and owe a release. So a caller first enters:

    enter -- waits for a place -- connection -- | sent ---- request ---- answer | leave
             (nothing is sent, nothing is owed)   the request's clock begins      the next enters

Takes and gives have places of their own: a holder never waits for those that want a lease.
While the store answers, a caller waits for its place as long as it likes. If there is no answer for
`patience` seconds, the wait ends: then the store is not slow because of our number.

There is no mutex that a signal handler or a finalizer could meet: lists and deques change in atomic
steps. A place is an object, so that one lost by an interruption is noticed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from math import inf
from typing import Final
from weakref import ref

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.interrupts import raise_if_from_signal
from incumbent.net.pool import KEPT
from incumbent.net.readers import Wakeup
from incumbent.stores.base import Limits
from incumbent.stores.loops import detach_in_child

DIAL_WITHIN: Final = 2.0
"""Seconds that making a connection may take, even if its caller has less time."""
PLACES: Final = KEPT // 2
"""The places of one gate if each request needs a connection of its own: half of the kept
connections, because there is a gate for takes and one for gives."""
# As the `until` of a wait: it returns at once, after other tasks have run. With thousands of tasks
# that alone may take longer than `patience`, so the patience is counted only afterwards.
_AT_ONCE: Final = -inf
IN_FLIGHT: Final = 64
"""Places where one connection carries the requests of all tasks. More of them would save system
calls, but make the steps of the event loop longer: too long beside busy processes."""

_now = clock.now


class LimiterPlace:
    """The permission to have one request at the store."""

    __slots__ = ("__weakref__", "_limiter")

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter

    def leave(self, *, answered: bool) -> None:
        """Give the place to the first that waits. `answered`: the store gave an answer."""
        limiter = self._limiter
        # Freed before the line is read: a caller that joins in between finds the place by itself.
        limiter.free.append(self)
        if limiter.line:
            limiter.go_on(answered=answered)


class _LimiterWaiter:
    """A caller that waits for a place; `over`: its wait has ended."""

    __slots__ = ("over", "place", "wakeup")

    def __init__(self, wakeup: Wakeup) -> None:
        self.wakeup = wakeup
        self.place: LimiterPlace | None = None
        self.over = False


class Limiter:
    """`most` places of one side of a store. See stores.base.Gate.

    `connected`: whether a request can be sent at once. `connect` makes a connection for that, or
    raises StoreUnavailable by the instant that it is given.
    """

    def __init__(
        self,
        where: str,
        most: int,
        wakeup: Callable[[], Wakeup],
        connected: Callable[[], object],
        connect: Callable[[float], Awaitable[object]] | None,
    ) -> None:
        self._where = where
        self._most = most
        self._wakeup = wakeup
        self._connected = connected
        self._connect = connect
        self.detach()
        detach_in_child(self)

    def detach(self) -> None:
        """Begin anew: in the child of a fork, places and waiters are the parent's."""
        self.free = [LimiterPlace(self) for _ in range(self._most)]
        self._all = [ref(place) for place in self.free]
        self.line: deque[_LimiterWaiter] = deque()
        self._answered = -inf

    def enter_now(self) -> LimiterPlace | None:
        """A place, if a request can be sent at once."""
        # Nobody overtakes the waiters.
        if self.line or not self._connected():
            return None
        try:
            return self.free.pop()
        except IndexError:
            return None

    async def enter(self, until: float, patience: float = inf) -> LimiterPlace:
        """A place, once it is our turn and there is a connection.

        Raises StoreUnavailable at `until`, or `patience` seconds after the store's last answer.
        """
        place = await self._wait(until, patience)
        if not self._connected() and self._connect is not None:
            try:
                # The time to connect is counted after the other tasks have run: see `_AT_ONCE`.
                await self._wakeup().wait(_AT_ONCE)
                await self._connect(min(until, _now() + patience))
            except BaseException:
                place.leave(answered=False)
                raise
        return place

    async def _wait(self, until: float, patience: float) -> LimiterPlace:
        waiter = _LimiterWaiter(self._wakeup())
        # Also while others wait: if all places were lost, none of those would ever leave the line.
        if not self.free:
            self._replace_lost()
        # Listed first: from now on a place that another thread frees may be given to it.
        self.line.append(waiter)
        self.go_on()
        try:
            if waiter.place is None:
                await waiter.wakeup.wait(_AT_ONCE)
            came = _now()
            # Read again after each wake: it may come from an earlier use, or a little too soon.
            while (place := waiter.place) is None:
                by = min(until, max(came, self._answered) + patience)
                if _now() >= by:
                    raise StoreUnavailable(
                        f"{self._where}: this process already has {self._most} requests at the"
                        " store, and none ended in time"
                    )
                await waiter.wakeup.wait(by)
        except BaseException:
            # `over` first: then no other thread gives it a place. One that it has got is passed on.
            waiter.over = True
            if waiter.place is not None:
                waiter.place.leave(answered=False)
            raise
        waiter.over = True
        return place

    def _replace_lost(self) -> None:
        """Replace places whose callers were interrupted before they could leave."""
        for lost in [place for place in self._all.copy() if place() is None]:
            try:
                # One step: of several threads that find it, one makes another.
                self._all.remove(lost)
            except ValueError as error:
                raise_if_from_signal(error)
                continue
            new = LimiterPlace(self)
            self._all.append(ref(new))
            self.free.append(new)

    def go_on(self, *, answered: bool = False) -> None:
        """Give the free places to waiters. `answered`: the store has just answered a request."""
        if answered:
            self._answered = _now()
        line = self.line
        while self.free and line:
            try:
                waiter = line[0]
                if not waiter.over:
                    # If another thread has just given it a place, or if it gives up, one place is
                    # dropped; `_replace_lost` makes another.
                    waiter.place = self.free.pop()
                    waiter.wakeup.wake()
                line.remove(waiter)
            except (IndexError, ValueError) as error:
                raise_if_from_signal(error)
                continue  # another thread was faster


def limits(
    where: str,
    most: int,
    wakeup: Callable[[], Wakeup],
    connected: Callable[[], object] = lambda: True,
    connect: Callable[[float], Awaitable[object]] | None = None,
) -> Limits:
    """The limits of one side of a store; see Limiter."""
    takes, gives = (Limiter(where, most, wakeup, connected, connect) for _ in range(2))
    return Limits(takes, gives)
