"""Leader election for asyncio: the work is cancelled, and awaited, before its proof runs out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from math import inf
from types import EllipsisType, TracebackType
from typing import Any, Self, TypeVar

from incumbent import clock
from incumbent.aio import AsyncLease
from incumbent.bodies import awaitable, refuse_generator
from incumbent.candidacy import ElectionHandle, Metadata, Steering, TermHandle
from incumbent.durations import Duration
from incumbent.election import Leader
from incumbent.errors import LeaseLost, StoreUnavailable
from incumbent.lease import State
from incumbent.options import parse_timeout
from incumbent.protocol.acquire import acquire
from incumbent.protocol.link import Link
from incumbent.protocol.observe import Observation, observe, read_leader
from incumbent.protocol.words import lease_lost

__all__ = ["AsyncElection", "AsyncTerm"]

V = TypeVar("V")

_BE_BLOCKING = "blocking work belongs to Election"


class AsyncTerm(TermHandle, AsyncLease):
    """A leadership: an AsyncLease whose body is cancelled at its renew_deadline, within the lease,
    as soon as it is lost, and when this instance steps down.
    """

    __slots__ = ("__weakref__", "_inside", "_steering")

    def __init__(self, *made: Any) -> None:
        super().__init__(*made)
        self._steering = Steering()
        self._inside = False

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._inside = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await super().__aexit__(kind, error, trace)
        finally:
            self._inside = False

    def _stopped(self) -> LeaseLost | None:
        if self._steering.asked and self._scope.fired:
            return lease_lost(self.name, "resigned")
        return super()._stopped()

    def _stopped_short(self) -> LeaseLost | None:
        return self._stopped() if self._inside else None

    async def _step_down(self, timeout: Duration | None) -> bool:
        self._steering.asked = True
        if not self._inside:
            return await self.release()
        if self._scope.fired and self._scope.encloses_this:
            # The body is on its way out already: it must not wait for itself.
            return False
        self._scope.stop()
        await self.wait_lost(timeout)
        return self._held.machine.state is State.RELEASED


class AsyncElection(ElectionHandle[AsyncTerm]):
    """One candidate for the leadership of `name`, for asyncio; see `incumbent.Election`.

    >>> async def work(term):
    ...     while True:
    ...         await asyncio.sleep(1)
    >>> async def main():
    ...     await AsyncElection("switch-7", store="memory:").run(work)
    """

    __slots__ = ()

    @staticmethod
    def _me() -> Callable[[], Hashable]:
        return asyncio.current_task

    async def campaign(self, timeout: Duration | EllipsisType | None = ...) -> AsyncTerm:
        """Stand until elected; see Election.campaign. A cancellation leaves nothing believed."""
        with self._one_campaign():
            wait = self._seconds(timeout)
            held = await acquire(self._link.async_port(), self._wanted, wait, self._told)
            return self._elected(AsyncTerm(*self._armed(held)))

    @asynccontextmanager
    async def lead(self, timeout: Duration | EllipsisType | None = ...) -> AsyncIterator[AsyncTerm]:
        """Campaign, and hold the term for the body, which is cancelled before the proof runs out.

        The caller then gets LeaseLost.
        """
        async with await self.campaign(timeout) as term:
            yield term

    async def run(self, work: Callable[[AsyncTerm], Awaitable[V]]) -> V:
        """Campaign, await `work(term)` in each term, and return what it returns by itself.

        When the term ends before the work it is cancelled and awaited within the lease; after a
        pause (full jitter, longer after short terms) this stands again. An exception of the work
        propagates after the release. A cancellation cancels the work and gives the lease back.
        Raises Misuse for work that cannot be awaited: it blocked the loop, and nothing stops it.
        """
        refuse_generator(work)
        while True:
            term = await self.campaign()
            try:
                async with term:
                    return await awaitable(work(term), work, _BE_BLOCKING)
            except LeaseLost as lost:
                if not self._is_ours(lost):
                    raise
            await self._link.async_port().sleep_until(self._next_campaign(term))

    async def leader(self) -> Leader | None:
        """Who leads now, by one request; old when it arrives. Raises StoreError."""
        port, policy = self._link.async_port(), self._wanted.policy
        return await read_leader(port, self._wanted.key, policy.request_timeout)

    def observe(self, timeout: Duration | None = None) -> AsyncIterator[Leader | None]:
        """The present leader, then each change; see Election.observe."""
        return _AsyncNews(self._link, self._observation(), parse_timeout(timeout))

    async def proclaim(self, metadata: Metadata) -> None:
        """Replace the metadata of this term and of the later ones; see Election.proclaim."""
        term, encoded = self._say(metadata)
        # A renewal that was on its way before brings an answer, but not to this.
        for _ in range(3):
            await term.renew()
            if self._proclaimed(term, encoded):
                return
        raise StoreUnavailable(f"{self.name!r}: the metadata was not confirmed", name=self.name)

    async def resign(self, timeout: Duration | None = None) -> bool:
        """End the present term in order: cancel the body, await its end, release.

        Called by the body itself it cancels it right there. Else as Election.resign.
        """
        return await self._leading("resign")._step_down(timeout)

    async def transfer(self, to: str, timeout: Duration | None = None) -> bool:
        """`resign`, and keep the leadership for the candidate `to`; see Election.transfer."""
        term = self._refuse_transfer(to)
        store = self._link.engine.async_store()
        self._choose(term, to, await store.read(self._wanted.key, self._read_until()))
        return await term._step_down(timeout)


class _AsyncNews:
    """The iterator of `AsyncElection.observe`; a class, so that no generator outlives its loop."""

    def __init__(self, link: Link, seen: Observation, timeout: float | None) -> None:
        self._link = link
        self._seen = seen
        self._timeout = timeout

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Leader | None:
        until = inf if self._timeout is None else clock.now() + self._timeout
        if not await observe(self._link.async_port(), self._seen, until):
            raise StopAsyncIteration
        return self._seen.leader
