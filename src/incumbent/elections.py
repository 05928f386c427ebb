"""Leader election, for blocking code and for asyncio: the work ends before its proof runs out.

Blocking work is asked to stop; work of asyncio is cancelled, and awaited.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from math import inf
from types import EllipsisType
from typing import Self, TypeVar

from incumbent import clock
from incumbent.callers import bodies_of_task
from incumbent.candidacy import ElectionHandle, Metadata, TermHandle
from incumbent.durations import Duration
from incumbent.election import Leader, leaders_of
from incumbent.errors import LeaseLost, StoreUnavailable
from incumbent.handles import brief
from incumbent.lease import State
from incumbent.locks import AsyncLease, Lease
from incumbent.options import IfLost, OnLost, parse_timeout
from incumbent.protocol.acquire import acquire
from incumbent.protocol.held import Held
from incumbent.protocol.link import Link
from incumbent.protocol.port import Port, run
from incumbent.protocol.words import lease_lost
from incumbent.running import (
    AsyncNews,
    EndablePort,
    News,
    awaitable,
    not_deferred,
    refuse_async,
    refuse_generator,
    task_beside,
    thread_beside,
)

V = TypeVar("V")

_BE_ASYNC = "coroutines belong to AsyncElection"
_BE_BLOCKING = "blocking work belongs to Election"


class Term(TermHandle, Lease):
    """A leadership: a Lease whose work is asked to stop in time (`stopping`, `wait_stop`).

    Blocking code cannot be stopped from outside. Work that asks often enough ends within the lease;
    work that does not ask is not safe by itself: let what it writes to check `number`.
    """

    __slots__ = ("_body", "_woken")

    def __init__(self, link: Link, held: Held, on_lost: OnLost | None, if_lost: IfLost) -> None:
        super().__init__(link, held, on_lost, if_lost)
        self._body: int | None = None
        self._woken = threading.Event()
        self._link.keeper.watch(self._held, self._woken.set)

    def wait_stop(self, timeout: Duration | None = None) -> bool:
        """Block until the work has to stop, for at most `timeout` seconds; True if it has to.

        That is at the lease's renew_deadline, so that `grace` is left for the clean-up; at once
        when the lease is lost, or when this instance steps down.
        """
        seconds = parse_timeout(timeout)
        until = inf if seconds is None else clock.now() + seconds
        while not self.stopping and (now := clock.now()) < until:
            # Renewals move stop_at while this waits, so it is looked at again.
            left = min(until, self._held.machine.stop_at) - now
            self._woken.wait(min(max(0.0, left), threading.TIMEOUT_MAX))
        return self.stopping

    def _stopped_short(self) -> LeaseLost | None:
        if not self._seen:
            return None
        reason = "at_most_for" if self._held.machine.bounded else "expired"
        return lease_lost(self.name, reason, "; the work was asked to stop within the lease")

    def _ask_to_stop(self) -> None:
        self._asked = True
        self._woken.set()

    def _step_down(self, timeout: Duration | None) -> bool:
        self._ask_to_stop()
        if self._body is None:
            return self.release()
        if self._body != threading.get_ident():
            self.wait_lost(timeout)
        return self._held.machine.state is State.RELEASED

    def __enter__(self) -> Self:
        super().__enter__()
        self._body = threading.get_ident()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            self._body = None


class Election(ElectionHandle[Term]):
    """One candidate for the leadership of `name`; see docs/elections.md for what is promised.

    `metadata`: texts (an address, a version) that are there for followers from the first instant of
    each term. `timeout`: seconds that a campaign waits (None: for ever). `on_elected(term)`,
    `on_revoked(LeaseLost | None)` (None: it ended in order) and `on_leader_change(Leader | None)`
    run in a thread of their own and never delay a renewal; the last one hears what this candidate
    meets while it campaigns and leads, at no request of its own: `observe` sees every change.
    `priority` (0 or more): while this leads, a waiting candidate of a higher one takes over once
    the term has lasted `step_down_after` (seconds, at least a ttl; two ttls). None: it neither asks
    nor is asked. `seats`: so many lead at once, each in a term of its own; all candidates say the
    same number. `store`, `namespace` and the settings are those of `Lock`. Raises ConfigError.

    >>> with Election("switch-7", store="memory:", metadata={"at": "10.0.0.7:80"}).lead() as term:
    ...     term.check(need=2)
    """

    __slots__ = ()

    def campaign(self, timeout: Duration | EllipsisType | None = ...) -> Term:
        """Stand until elected, for at most `timeout` seconds if given, else as the election says.

        The term is renewed until it is released: use `with`. Raises as `Lock.acquire`, and Misuse
        when this very candidate leads or campaigns already.
        """
        return self._campaign(self._link.port, timeout)

    def _campaign(self, port: Port, timeout: Duration | EllipsisType | None = ...) -> Term:
        with self._one_campaign():
            wait = self._seconds(timeout)
            with brief:
                held = run(acquire(port, self._wanted, wait, self._refused))
            return self._elected(Term(*self._armed(held)))

    @contextmanager
    def lead(self, timeout: Duration | EllipsisType | None = ...) -> Iterator[Term]:
        """Campaign, and hold the term for the body; a body that outlived it ends in LeaseLost."""
        with self.campaign(timeout) as term:
            yield term

    def run(self, work: Callable[[Term], V]) -> V:
        """Campaign, call `work(term)` in each term, and return what it returns by itself.

        When `term.stopping` the work has to return, and its value is not the end: the lease is
        given back, and after a pause (full jitter, longer after short terms) this stands again. An
        exception of the work propagates after the release. Raises Misuse for coroutine functions.
        """
        refuse_async(work, _BE_ASYNC)
        return self._lead_on(self._link.port, work)

    @contextmanager
    def running(self, work: Callable[[Term], object]) -> Iterator[Self]:
        """`run(work)` in a thread beside the body, for an application's whole life.

        At the end of the body the work is asked to stop (`term.stopping`) and awaited, and the
        lease is given back; who only stands by ends within a second. What `run` raised is logged at
        once and raised at the end: while the body goes on, `is_leader` says how it stands. Work
        that returns by itself ends the candidacy. Raises Misuse for coroutine functions.
        """
        refuse_async(work, _BE_ASYNC)
        port, terms = EndablePort(self._link), list[Term]()

        def until_the_end(term: Term) -> object:
            # First noted, then looked at; `end` does the same the other way round.
            terms[:] = [term]
            return None if port.over else work(term)

        def end() -> None:
            port.end()
            for term in terms:
                term._ask_to_stop()

        with thread_beside(self.name, lambda: self._lead_on(port, until_the_end), end):
            yield self

    def _lead_on(self, port: Port, work: Callable[[Term], V]) -> V:
        while True:
            term = self._campaign(port)
            try:
                with term:
                    value = not_deferred(work(term), work, _BE_ASYNC)
                    ended_by_itself = not term.stopping
                if ended_by_itself:
                    return value
            except LeaseLost as lost:
                if not self._is_ours(lost):
                    raise
            run(port.sleep_until(self._next_campaign(term)))

    def leader(self) -> Leader | None:
        """Who leads now, by one request; old when it arrives. Raises StoreError."""
        self._refuse_seats("leader")
        return next(iter(self.leaders()), None)

    def leaders(self) -> tuple[Leader, ...]:
        """All who lead now, in the order of their terms; as `leader`, and with several `seats`."""
        with brief:
            return leaders_of(self._link.store.read(self._wanted.key, self._read_until()))

    def observe(self, timeout: Duration | None = None) -> Iterator[Leader | None]:
        """The present leader, then each change of holder, term or metadata; None: nobody leads.

        Goes on through outages and raises only a permanent StoreError. With `timeout` it ends once
        that many seconds brought no news. A change that is over before it is seen is left out.
        """
        return News(self._link, *self._observation(), timeout)

    def proclaim(self, metadata: Metadata) -> None:
        """Replace the metadata of this term, now, and of the later terms of this candidate.

        Raises NotHeld when it does not lead, ConfigError, and as `Lease.renew`; after
        StoreUnavailable the next renewals still carry it.
        """
        term, encoded = self._set_metadata(metadata)
        # A renewal that was on its way before brings an answer, but not to this.
        for _ in range(3):
            term.renew()
            if self._proclaimed(term, encoded):
                return
        raise StoreUnavailable(f"{self.name!r}: the metadata was not confirmed", name=self.name)

    def resign(self, timeout: Duration | None = None) -> bool:
        """End the present term in order: ask the work to stop, await its end, release.

        True if the store confirmed the release within `timeout` seconds. Called by the work itself
        it only asks: return then. A term that nobody entered with `with` is released at once.
        Raises NotHeld when this candidate does not lead, LeaseLost as `Lease.release`.
        """
        return self._present_term("resign")._step_down(timeout)

    def transfer(self, to: str, timeout: Duration | None = None) -> bool:
        """`resign`, and keep the leadership for the candidate `to`: min(ttl, 5 s) from the release.

        With `at_least_for` the name stays closed instead, for as long as that asks. Raises NotHeld,
        NotCandidate when `to` does not stand for it, ConfigError, StoreError.
        """
        term = self._refuse_transfer(to)
        record = self._link.store.read(self._wanted.key, self._read_until())
        self._reserve_for(term, to, record)
        return term._step_down(timeout)


class AsyncTerm(TermHandle, AsyncLease):
    """A leadership: an AsyncLease whose body is cancelled at its renew_deadline, within the lease,
    as soon as it is lost, and when this instance steps down.
    """

    __slots__ = ("_inside",)

    def __init__(self, link: Link, held: Held, on_lost: OnLost | None, if_lost: IfLost) -> None:
        super().__init__(link, held, on_lost, if_lost)
        self._inside = False

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self._inside = True
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await super().__aexit__(kind, error, trace)
        finally:
            self._inside = False

    def _stopped(self) -> LeaseLost | None:
        if self._asked and self._scope.fired:
            return lease_lost(self.name, "resigned")
        return super()._stopped()

    def _stopped_short(self) -> LeaseLost | None:
        return self._stopped() if self._inside else None

    async def _step_down(self, timeout: Duration | None) -> bool:
        self._asked = True
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

    _bodies = staticmethod(bodies_of_task)

    async def campaign(self, timeout: Duration | EllipsisType | None = ...) -> AsyncTerm:
        """Stand until elected; see Election.campaign. A cancellation leaves nothing believed."""
        with self._one_campaign():
            wait = self._seconds(timeout)
            with brief:
                held = await acquire(self._link.async_port(), self._wanted, wait, self._refused)
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

    @asynccontextmanager
    async def running(self, work: Callable[[AsyncTerm], Awaitable[object]]) -> AsyncIterator[Self]:
        """`run(work)` in a task beside the body, for an application's whole life.

        At the end of the body the work is cancelled and awaited, and the lease is given back. What
        `run` raised is logged at once and raised at the end: while the body goes on, `is_leader`
        says how it stands. Work that returns by itself ends the candidacy.
        """
        refuse_generator(work)
        self._link.async_port()
        async with task_beside(self.name, self.run(work)):
            yield self

    async def leader(self) -> Leader | None:
        """Who leads now, by one request; old when it arrives. Raises StoreError."""
        self._refuse_seats("leader")
        return next(iter(await self.leaders()), None)

    async def leaders(self) -> tuple[Leader, ...]:
        """All who lead now; see Election.leaders."""
        port = self._link.async_port()
        with brief:
            return leaders_of(await port.read(self._wanted.key, self._read_until()))

    def observe(self, timeout: Duration | None = None) -> AsyncIterator[Leader | None]:
        """The present leader, then each change; see Election.observe."""
        return AsyncNews(self._link, *self._observation(), timeout)

    async def proclaim(self, metadata: Metadata) -> None:
        """Replace the metadata of this term and of the later ones; see Election.proclaim."""
        term, encoded = self._set_metadata(metadata)
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
        return await self._present_term("resign")._step_down(timeout)

    async def transfer(self, to: str, timeout: Duration | None = None) -> bool:
        """`resign`, and keep the leadership for the candidate `to`; see Election.transfer."""
        term = self._refuse_transfer(to)
        store = self._link.engine.async_store()
        self._reserve_for(term, to, await store.read(self._wanted.key, self._read_until()))
        return await term._step_down(timeout)
