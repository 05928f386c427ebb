"""Leader election, for blocking code and for asyncio: the work ends before its proof runs out.

Blocking work is asked to stop; asyncio work is cancelled and awaited.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from math import inf
from types import EllipsisType
from typing import Self, TypeVar

from incumbent import clock
from incumbent.durations import Duration
from incumbent.election import Leader, leaders_of
from incumbent.errors import AlreadyReleased, LeaseLost, LockError, StoreUnavailable
from incumbent.lease import LeaseState
from incumbent.locks.callers import bodies_of_task, current_task
from incumbent.locks.candidacy import ElectionHandle, Metadata, TermHandle
from incumbent.locks.leases import AsyncLease, Lease, give_up_all, shorten, trimmed_traceback
from incumbent.locks.options import IfLost, OnLost, parse_timeout
from incumbent.locks.running import (
    AsyncNews,
    EndablePort,
    News,
    leased_body,
    refuse_async,
    refuse_coroutine,
    refuse_generator,
    require_awaitable,
    task_beside,
    thread_beside,
    unless_cancelled,
    unless_lost,
)
from incumbent.protocol.acquire import acquire
from incumbent.protocol.claim import Claim
from incumbent.protocol.messages import lease_lost
from incumbent.protocol.port import Port
from incumbent.runtime.link import Link
from incumbent.stores.plan import run_blocking

V = TypeVar("V")

_USE_ASYNC = "coroutines belong to AsyncElection"
_USE_BLOCKING = "blocking work belongs to Election"


class Term(TermHandle, Lease):
    """A leadership: a Lease whose work is asked to stop in time (`stopping`, `wait_stop`).

    Blocking code cannot be stopped from outside. Work that checks often enough ends within the
    lease; other work is not safe by itself: let the resource that it writes to check `number`.
    """

    __slots__ = ("_body", "_woken")

    def __init__(
        self, link: Link, claims: Sequence[Claim], on_lost: OnLost | None, if_lost: IfLost
    ) -> None:
        super().__init__(link, claims, on_lost, if_lost)
        self._body: int | None = None
        self._woken = threading.Event()
        self._link.keeper.watch(self._claim, self._woken.set)

    def wait_stop(self, timeout: Duration | None = None) -> bool:
        """Block until the work must stop, for at most `timeout` seconds; True if it must.

        It must stop at the lease's renew_deadline, so that `grace` is left for the clean-up, and at
        once when the lease is lost or this instance steps down.
        """
        seconds = parse_timeout(timeout)
        until = inf if seconds is None else clock.now() + seconds
        while not self.stopping and (now := clock.now()) < until:
            # Renewals move stop_at during the wait, so each turn reads it again.
            left = min(until, self._claim.machine.stop_at) - now
            self._woken.wait(min(max(0.0, left), threading.TIMEOUT_MAX))
        return self.stopping

    def _loss_despite_release(self) -> LeaseLost | None:
        if not self._stop_seen:
            return None
        reason = "at_most_for" if self._claim.machine.ends_by_at_most_for else "expired"
        return lease_lost(self.name, reason, "; the work was asked to stop within the lease")

    def _ask_to_stop(self) -> None:
        # In this order: the thread that wakes reads `_asked`.
        self._asked = True
        self._woken.set()

    def _step_down(self, timeout: Duration | None) -> bool:
        parse_timeout(timeout)
        self._ask_to_stop()
        if self._body is None:
            return self.release()
        # The body itself must not wait for its own end: it only learns that it has to stop.
        if self._body != threading.get_ident():
            self.wait_lost(timeout)
        return self._claim.machine.state is LeaseState.RELEASED

    def __enter__(self) -> Self:
        try:
            super().__enter__()
        except AlreadyReleased as error:
            raise self._why_not_entered(error) from None
        # After the lease was entered: until then `resign` releases it, and no body is waited for.
        self._body = threading.get_ident()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            # After the release: who resigns meanwhile waits for it instead of releasing a second
            # time.
            self._body = None


class Election(ElectionHandle[Term]):
    """One candidate for the leadership of `name`; docs/elections.md has the guarantees.

    `metadata`: texts (an address, a version) that followers can read from the first instant of each
    term. `ttl` (15 s): after a leader's crash, how long until another one is elected. `timeout`:
    seconds that a campaign waits (None: for ever). `on_elected(term)`,
    `on_revoked(LeaseLost | None)` (None: an orderly end) and `on_leader_change(Leader | None)` run
    in one thread for all callbacks, and delay no renewal. The last one sends no request: it reports
    the changes that this candidate notices as it campaigns and leads (`observe` sees every change).
    `priority` (0 or more): a waiting candidate of higher priority takes over from this one once the
    term has lasted `step_down_after` (seconds; at least a ttl, by default two). None: neither takes
    over nor yields. `permits`: the number of leaders at once, each in its own term, the same for
    all candidates. `store`, `namespace` and the settings are those of `Lock`, all but reentrant
    (and, with `permits`, once_per, slot and at_least_for). Raises ConfigError.

    >>> with Election("switch-7", store="memory:", metadata={"at": "10.0.0.7:80"}).lead() as term:
    ...     term.check(need=2)
    """

    __slots__ = ()

    def campaign(self, timeout: Duration | EllipsisType | None = ...) -> Term:
        """Wait to be elected, for at most `timeout` seconds (default: the election's `timeout`).

        The term is renewed until it is released: use `with`. Raises as `Lock.acquire`, and Misuse
        if this candidate leads or campaigns already.
        """
        return self._campaign(self._link.port, timeout)

    def _campaign(self, port: Port, timeout: Duration | EllipsisType | None = ...) -> Term:
        with self._one_campaign():
            wait = self._seconds_to_wait(timeout)
            try:
                claim = run_blocking(acquire(port, self._wanted, wait, self._note_refusal))
            except LockError as error:
                shorten(error)
                raise
            try:
                return self._begin_term(Term(*self._arm(claim)))
            except BaseException:
                give_up_all(self._link, (claim,), undo_slot=True)
                raise

    @leased_body
    def lead(self, timeout: Duration | EllipsisType | None = ...) -> Iterator[Term]:
        """Campaign, and hold the term for the body; a body that outlives it ends in LeaseLost."""
        with self.campaign(timeout) as term:
            yield term

    def run(self, work: Callable[[Term], V]) -> V:
        """Campaign and call `work(term)`, until it returns within its term; return its value.

        When `term.stopping` is True the work must return. Its value is then ignored: the lease is
        released, and this campaigns again after a pause (full jitter, longer after short terms). An
        exception of the work propagates after the release. Raises Misuse for coroutine functions.
        """
        refuse_async(work, _USE_ASYNC)
        return self._lead_on(self._link.port, work)

    @leased_body
    def running(self, work: Callable[[Term], object]) -> Iterator[Self]:
        """Do `run(work)` in a thread beside the body, for an application's whole life.

        At the end of the body the work is asked to stop (`term.stopping`) and awaited, and the
        lease is released; a waiting candidate ends within a second. An exception of `run` is logged
        at once and raised at the end of the body; until then, see `is_leader`. Work that returns
        within its term ends the candidacy. Raises Misuse for coroutine functions.
        """
        refuse_async(work, _USE_ASYNC)
        port, terms = EndablePort(self._link), list[Term]()

        def until_the_end(term: Term) -> object:
            # Terms are set before `over` is read; `end` sets `over` before it reads the terms.
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
            with unless_lost(term._claim.wanted.key):
                with term:
                    value = refuse_coroutine(work(term), work, _USE_ASYNC)
                    # Inside the body: after the release the term is over, and `stopping` always
                    # true.
                    ended_by_itself = not term.stopping
                if ended_by_itself:
                    return value
            run_blocking(port.sleep_until(self._next_campaign(term)))

    def leader(self) -> Leader | None:
        """The current leader, by one request; perhaps outdated on arrival.

        Raises StoreError, and Misuse if there are several `permits`.
        """
        self._refuse_several("leader")
        return next(iter(self.leaders()), None)

    def leaders(self) -> tuple[Leader, ...]:
        """All leaders (several with `permits`), in the order of their terms; see `leader`."""
        with trimmed_traceback:
            return leaders_of(self._link.store.read(self._wanted.key, self._read_until()))

    def observe(self, timeout: Duration | None = None) -> Iterator[Leader | None]:
        """The current leader, then each change of holder, term or metadata; None: nobody leads.

        Continues through outages and raises only a permanent StoreError. With `timeout` it ends
        after that many seconds without news. A change that is over before it is seen is skipped.
        Raises Misuse if there are several `permits`.
        """
        return News(self._link, *self._observation(), timeout)

    def proclaim(self, metadata: Metadata) -> None:
        """Replace the metadata of this term, at once, and of this candidate's later terms.

        Raises NotHeld if this candidate does not lead, ConfigError, and as `Lease.renew`; after
        StoreUnavailable the next renewals still carry the new metadata.
        """
        term, encoded = self._set_metadata(metadata)
        # The first answer may be that of an earlier renewal, without the new metadata.
        for _ in range(3):
            term.renew()
            if self._proclaimed(term, encoded):
                return
        raise StoreUnavailable(f"{self.name!r}: the metadata was not confirmed", name=self.name)

    def resign(self, timeout: Duration | None = None) -> bool:
        """End the current term: ask the work to stop, wait for its end, release.

        True if the store confirmed the release within `timeout` seconds. If the work itself calls
        this, it only sets `stopping`: return then. A term outside of any `with` is released at
        once. Raises NotHeld if this candidate does not lead, LeaseLost as `Lease.release`.
        """
        return self._present_term("resign")._step_down(timeout)

    def transfer(self, to: str, timeout: Duration | None = None) -> bool:
        """`resign`, and reserve the leadership for candidate `to`: min(ttl, 5 s) from the release.

        With `at_least_for` the name stays closed for that time instead. Raises as `resign`, and
        NotCandidate if `to` is no candidate, Misuse if there are several `permits`, ConfigError,
        StoreError.
        """
        # First: a refused call leaves nothing behind.
        parse_timeout(timeout)
        term = self._term_to_transfer(to)
        record = self._link.store.read(self._wanted.key, self._read_until())
        # After the read, before the release, which carries it to the store.
        self._reserve_for(term, to, record)
        return term._step_down(timeout)


class AsyncTerm(TermHandle, AsyncLease):
    """A leadership: an AsyncLease whose body is cancelled at its renew_deadline, within the lease,
    and at once when the lease is lost or this instance steps down.
    """

    __slots__ = ("_inside",)

    def __init__(
        self, link: Link, claims: Sequence[Claim], on_lost: OnLost | None, if_lost: IfLost
    ) -> None:
        super().__init__(link, claims, on_lost, if_lost)
        self._inside = False

    async def __aenter__(self) -> Self:
        try:
            await super().__aenter__()
        except AlreadyReleased as error:
            raise self._why_not_entered(error) from None
        self._inside = True
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await super().__aexit__(kind, error, trace)
        finally:
            self._inside = False

    def _loss_by_stop(self) -> LeaseLost | None:
        if self._asked and self._scope.fired:
            return lease_lost(self.name, "resigned")
        return super()._loss_by_stop()

    def _loss_despite_release(self) -> LeaseLost | None:
        return self._loss_by_stop() if self._inside else None

    async def _step_down(self, timeout: Duration | None) -> bool:
        parse_timeout(timeout)
        self._asked = True
        if not self._inside:
            return await self.release()
        if self._scope.fired and self._scope.encloses_this:
            # The body is being cancelled already: it must not wait for its own end.
            return False
        self._scope.stop()
        await self.wait_lost(timeout)
        return self._claim.machine.state is LeaseState.RELEASED


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
        """Wait to be elected; see Election.campaign. A cancelled call never makes a leader."""
        with self._one_campaign():
            wait = self._seconds_to_wait(timeout)
            with trimmed_traceback:
                claim = await acquire(
                    self._link.async_port(), self._wanted, wait, self._note_refusal
                )
            return self._begin_term(AsyncTerm(*self._arm(claim)))

    @asynccontextmanager
    async def lead(self, timeout: Duration | EllipsisType | None = ...) -> AsyncIterator[AsyncTerm]:
        """Campaign, and hold the term for the body, which is cancelled before the proof runs out.

        The caller then gets LeaseLost.
        """
        async with await self.campaign(timeout) as term:
            yield term

    async def run(self, work: Callable[[AsyncTerm], Awaitable[V]]) -> V:
        """Campaign and await `work(term)`, until it returns within its term; return its value.

        If the term ends first, the work is cancelled and awaited within the lease, and this
        campaigns again after a pause (full jitter, longer after short terms). An exception of the
        work propagates after the release. A cancellation cancels the work and releases the lease.
        Raises Misuse for work that cannot be awaited: it blocks the loop, and nothing can stop it.
        """
        refuse_generator(work)
        while True:
            term = await self.campaign()
            with unless_lost(term._claim.wanted.key, current_task()):
                async with term:
                    with unless_cancelled():
                        value = await require_awaitable(work(term), work, _USE_BLOCKING)
                    # Inside the body, as in Election.run: the work may have released the term.
                    ended_by_itself = term.valid
                if ended_by_itself:
                    return value
            await self._link.async_port().sleep_until(self._next_campaign(term))

    @asynccontextmanager
    async def running(self, work: Callable[[AsyncTerm], Awaitable[object]]) -> AsyncIterator[Self]:
        """Do `run(work)` in a task beside the body, for an application's whole life.

        At the end of the body the work is cancelled and awaited, and the lease is released. An
        exception of `run` is logged at once and raised at the end of the body; until then, see
        `is_leader`. Work that returns within its term ends the candidacy.
        """
        refuse_generator(work)
        self._link.async_port()
        async with task_beside(self.name, self.run(work)):
            yield self

    async def leader(self) -> Leader | None:
        """The current leader, by one request; perhaps outdated on arrival. Raises StoreError."""
        self._refuse_several("leader")
        return next(iter(await self.leaders()), None)

    async def leaders(self) -> tuple[Leader, ...]:
        """All current leaders; see Election.leaders."""
        port = self._link.async_port()
        with trimmed_traceback:
            return leaders_of(await port.read(self._wanted.key, self._read_until()))

    def observe(self, timeout: Duration | None = None) -> AsyncIterator[Leader | None]:
        """The current leader, then each change; see Election.observe."""
        return AsyncNews(self._link, *self._observation(), timeout)

    async def proclaim(self, metadata: Metadata) -> None:
        """Replace the metadata of this term and of the later ones; see Election.proclaim."""
        term, encoded = self._set_metadata(metadata)
        # The first answer may be that of an earlier renewal, without the new metadata.
        for _ in range(3):
            await term.renew()
            if self._proclaimed(term, encoded):
                return
        raise StoreUnavailable(f"{self.name!r}: the metadata was not confirmed", name=self.name)

    async def resign(self, timeout: Duration | None = None) -> bool:
        """End the current term: cancel the body, wait for its end, release.

        If the body itself calls this, it is cancelled right there. Otherwise as Election.resign.
        """
        return await self._present_term("resign")._step_down(timeout)

    async def transfer(self, to: str, timeout: Duration | None = None) -> bool:
        """`resign`, and reserve the leadership for the candidate `to`; see Election.transfer."""
        # First: a refused call leaves nothing behind.
        parse_timeout(timeout)
        term = self._term_to_transfer(to)
        store = self._link.engine.async_store()
        self._reserve_for(term, to, await store.read(self._wanted.key, self._read_until()))
        return await term._step_down(timeout)
