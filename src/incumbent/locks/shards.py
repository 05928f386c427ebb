"""Shards: work divided over the members of a group, each part under a lease of its own.

Blocking work is asked to stop; asyncio work is cancelled and awaited. Only after its end does the
next member get the shard.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Generic, Self, TypeVar, Unpack
from weakref import ref

from incumbent import clock
from incumbent.chance import draw_jitter
from incumbent.durations import Duration
from incumbent.election import encode_metadata
from incumbent.errors import AlreadyReleased, Error
from incumbent.locks.candidacy import Metadata, TermHandle
from incumbent.locks.elections import AsyncTerm, Term
from incumbent.locks.groups import GroupHandle, GroupSettings, first_try
from incumbent.locks.leases import release_unless_lost, trimmed_traceback
from incumbent.locks.options import explain_arguments, parse_timeout
from incumbent.locks.running import (
    CandidacyEnded,
    EndablePort,
    cancel,
    ended,
    failure_of,
    leased_body,
    log_failure,
    refuse_async,
    refuse_coroutine,
    refuse_generator,
    require_awaitable,
    task_beside,
    thread_beside,
    unless_cancelled,
    unless_lost,
)
from incumbent.protocol.claim import Claim
from incumbent.protocol.messages import lease_lost
from incumbent.protocol.roster import Division, attend, check_count
from incumbent.runtime.link import Link, ignore
from incumbent.stores.plan import run_blocking

if TYPE_CHECKING:
    from asyncio import Task

    from incumbent.runtime.link import StoreLike

# The instants in a renewal interval at which a process renews shards.
_REQUESTS = 4
_USE_ASYNC = "coroutines belong to AsyncShards"
_USE_BLOCKING = "blocking work belongs to Shards"


class _ShardHandle(TermHandle):
    """A shard that this member holds."""

    # No slots: the subclasses also inherit those of Term or AsyncTerm, and two sets conflict.

    def __init__(self, link: Link, claim: Claim, number: int) -> None:
        super().__init__(link, (claim,), None, "raise")
        self._number = number

    @property
    def number(self) -> int:
        """The number of the shard, from 0; `fencing_token` orders its holders."""
        return self._number

    def _why_not(self, claim: Claim, left: float, seconds: float) -> Error:
        why = super()._why_not(claim, left, seconds)
        # To its work it is lost, whoever released it: that ends no membership.
        return lease_lost(self.name, "resigned") if isinstance(why, AlreadyReleased) else why


class Shard(_ShardHandle, Term):
    """One shard, for as long as this member holds it: a Term whose work is asked to stop in time.

    Its work must also stop when the shard becomes another member's; the shard is released when the
    work ends.
    """

    def wait_stop(self, timeout: Duration | None = None) -> bool:
        """Block until the work must stop; see Term.wait_stop.

        One thread wakes the work of all shards of a process, so that idle work need not poll.
        """
        seconds = parse_timeout(timeout)
        if not self.stopping:
            # `_wake_in_time` sets it at the renew_deadline, which renewals move; a timeout here
            # would not know.
            self._woken.wait(None if seconds is None else min(seconds, threading.TIMEOUT_MAX))
        return self.stopping


class AsyncShard(_ShardHandle, AsyncTerm):
    """One shard, for as long as this member holds it: an AsyncTerm whose body is cancelled in time.

    Its body also stops when the shard becomes another member's; the shard is released when the body
    ends.
    """

    def _ask_to_stop(self) -> None:
        self._asked = True
        if self._inside:
            self._scope.stop()


S = TypeVar("S", Shard, AsyncShard)


class ShardsHandle(GroupHandle, Generic[S]):
    """The part that blocking and asyncio shards share: everything that does not wait."""

    __slots__ = ("_metadata", "_shards", "count")

    @explain_arguments
    def __init__(
        self,
        name: str,
        count: int,
        *,
        store: StoreLike | None = None,
        namespace: str = "default",
        metadata: Metadata = None,
        **settings: Unpack[GroupSettings],
    ) -> None:
        self.count = check_count(count)
        """The number of shards, numbered from 0: the same for all members."""
        self._metadata = encode_metadata(metadata)
        super().__init__(name, store=store, namespace=namespace, **settings)
        self._shards: dict[int, S] = {}

    def owned(self) -> tuple[S, ...]:
        """The shards that this member is proved to hold at this instant; no request is sent."""
        return tuple(shard for _, shard in sorted(self._shards.copy().items()) if shard.valid)


class _Membership(Generic[S]):
    """One membership, and the bodies of its shards (protocol.roster.Bodies)."""

    def __init__(self, of: ShardsHandle[S]) -> None:
        self._link = of._link
        self._shards: dict[int, S] = of._shards
        self.roster = of._roster(of._membership(of._metadata), str(of.count).encode())
        self._division = Division(of.count, of._wanted, self)
        self._phase = draw_jitter()
        self._failure: BaseException | None = None
        self._over = False

    def numbers(self) -> list[int]:
        return list(self._shards)

    def stop(self, number: int) -> None:
        shard = self._shards.get(number)
        if shard is not None:
            shard._ask_to_stop()

    def start(self, number: int, claim: Claim) -> None:
        raise NotImplementedError

    def _renew(self, claim: Claim) -> None:
        """Renew `claim` together with other shards of this process, which takes fewer requests."""
        keeper, every = self._link.keeper, claim.wanted.policy.renew_every
        step, now = every / _REQUESTS, clock.now()
        # Armed first: `renew_now` only moves what is renewed already.
        keeper.arm(claim)
        after = every - (now - self._phase * every) % step
        keeper.renew_now(claim, ignore, after=after)

    def _stop_all(self) -> None:
        # `_over` is written before the shards are read; a shard is written before it reads `_over`.
        self._over = True
        for number in self.numbers():
            self.stop(number)

    def _may_begin(self, shard: S) -> bool:
        return not self._over and not shard.stopping

    def _note_failure(self, error: BaseException, shard: S) -> None:
        log_failure(shard.name, "work", error)
        # The first is raised: the others mostly follow from it.
        self._failure = self._failure or error


class Shards(ShardsHandle[Shard]):
    """Work in `count` shards, divided over the members that run it; see docs/groups-and-shards.md.

    Each shard is a lease `<name>/<number>`, held by one member at a time. When members come and go,
    only shards that must move do. All members need the same `count`. `metadata`: texts that
    `Group(name).members()` shows. The other settings are those of `Group`. Raises ConfigError for
    settings that cannot work.
    """

    __slots__ = ()

    def run(self, work: Callable[[Shard], object]) -> None:
        """Be a member, and call `work(shard)` in a thread for each shard that this member holds.

        When `shard.stopping` is True the work must return: then the shard is released, and the next
        member begins. Work that returns earlier is called again after a pause (full jitter, longer
        after short terms). It ends only by an exception: of the work; of a signal handler
        (KeyboardInterrupt); ConfigError if other members have another `count`; Misuse if another
        member has this name or `work` is a coroutine function; a permanent StoreError. Before it is
        raised, all work is asked to stop and awaited.
        """
        refuse_async(work, _USE_ASYNC)
        with self._one_membership():
            _Threads(self, work).run()

    @leased_body
    def running(self, work: Callable[[Shard], object]) -> Iterator[Self]:
        """Do `run(work)` in a thread beside the body, for an application's whole life.

        At the end of the body all work is asked to stop (`shard.stopping`) and awaited, and the
        shards are released. An exception of `run` is logged at once and raised at the end of the
        body; ConfigError for another `count` is raised at the start, if the store answers.
        """
        refuse_async(work, _USE_ASYNC)
        with self._one_membership():
            threads = _Threads(self, work)
            try:
                with trimmed_traceback:
                    run_blocking(first_try(self._link.port, threads.roster))
                with thread_beside(self.name, threads.run, threads.end, "membership"):
                    yield self
            finally:
                run_blocking(threads.roster.leave(self._link.port))


class _Threads(_Membership[Shard]):
    """A thread for each shard, and one for the membership."""

    def __init__(self, of: Shards, work: Callable[[Shard], object]) -> None:
        super().__init__(of)
        self._work = work
        self._port = EndablePort(self._link, of._wanted.policy.renew_every)
        self._threads: dict[int, threading.Thread] = {}
        self._wake_every = of._wanted.policy.renew_every
        self._done = threading.Event()

    def run(self) -> None:
        """Keep the membership until `end` is called or an error occurs, then release everything."""
        try:
            name, args = f"incumbent {self.roster.key.name} in time", (ref(self), self._done)
            threading.Thread(target=_wake_in_time, name=name, args=args, daemon=True).start()
            run_blocking(attend(self._port, self.roster, self._division))
        except CandidacyEnded:
            pass
        finally:
            try:
                self.end()
                self._await_bodies()
            finally:
                # Also after a second Ctrl-C, wherever it came: work that was asked to stop needs no
                # waking any more, and releases its shard when it ends.
                self._stop_all()
                self._done.set()
                run_blocking(self.roster.leave(self._link.port))
        if self._failure is not None:
            raise self._failure

    def _await_bodies(self) -> None:
        for thread in list(self._threads.values()):
            # One that begins only now finds that it has to stop.
            if thread.is_alive():
                thread.join()
        # Their threads never began, or ended in Python's own code.
        for number, shard in list(self._shards.items()):
            self._shards.pop(number, None)
            release_unless_lost(shard)

    def wake_due(self) -> float:
        """Wake the work whose renew_deadline has come; returns the seconds until the next."""
        pause = self._wake_every
        for shard in self._shards.copy().values():
            if shard.stopping:
                shard._woken.set()
            else:
                left = shard.belief.proof.stop_at - clock.now()
                pause = min(pause, max(0.001, left))
        return pause

    def end(self) -> None:
        """Ask all work to stop, and let other members take over. Called from any thread."""
        self._port.end()
        self._stop_all()
        # This also wakes the thread of the membership, if the store notifies of changes.
        run_blocking(self.roster.strike_off(self._link.port))

    def start(self, number: int, claim: Claim) -> None:
        self._renew(claim)
        # Listed before its thread starts, so that `_stop_all` finds it.
        shard = self._shards[number] = Shard(self._link, claim, number)
        name = f"incumbent {shard.name}"
        thread = threading.Thread(target=self._serve, args=(shard,), name=name, daemon=True)
        # First: the start may raise though the thread runs, as a signal handler raises anywhere.
        self._threads[number] = thread
        thread.start()

    def _serve(self, shard: Shard) -> None:
        try:
            # The loss of the shard does not end the membership.
            with unless_lost(shard._claim.wanted.key), shard:
                # Asked inside: a shard that was told to stop before it began is released by the
                # exit.
                if self._may_begin(shard):
                    refuse_coroutine(self._work(shard), self._work, _USE_ASYNC)
        except BaseException as error:  # noqa: BLE001 - it is raised by `run`
            self._note_failure(error, shard)
            self._port.end()
        finally:
            self._shards.pop(shard.number, None)


def _wake_in_time(of: ref[_Threads], done: threading.Event) -> None:
    """Wake the work of each shard at its renew_deadline."""
    pause = 0.0
    # Weakly: whatever interrupted its end, a membership that nobody has any more is not renewed.
    while not done.wait(pause) and (threads := of()) is not None:
        pause = threads.wake_due()
        del threads


class AsyncShards(ShardsHandle[AsyncShard]):
    """Work in `count` shards, divided over the members that run it; see `incumbent.Shards`."""

    __slots__ = ()

    async def run(self, work: Callable[[AsyncShard], Awaitable[object]]) -> None:
        """Be a member, and await `work(shard)` in a task for each shard that this member holds.

        If a shard becomes another member's, its body is cancelled and awaited within the lease, and
        the shard is released. Otherwise as `Shards.run`: ends by an exception or a cancellation.
        """
        refuse_generator(work)
        with self._one_membership():
            await _Tasks(self, work).run()

    @asynccontextmanager
    async def running(self, work: Callable[[AsyncShard], Awaitable[object]]) -> AsyncIterator[Self]:
        """Do `run(work)` in a task beside the body, for an application's whole life.

        At the end of the body all work is cancelled and awaited, and the shards are released;
        see `Shards.running`.
        """
        refuse_generator(work)
        with self._one_membership():
            tasks = _Tasks(self, work)
            try:
                with trimmed_traceback:
                    await first_try(tasks.port, tasks.roster)
                async with task_beside(self.name, tasks.run(), "membership"):
                    yield self
            finally:
                await tasks.roster.leave(tasks.port)


class _Tasks(_Membership[AsyncShard]):
    """A task for each shard, and one for the membership."""

    def __init__(self, of: AsyncShards, work: Callable[[AsyncShard], Awaitable[object]]) -> None:
        super().__init__(of)
        self._work = work
        self.port = self._link.async_port()
        self._tasks: dict[int, Task[None]] = {}
        self._attending: Task[None] | None = None

    async def run(self) -> None:
        """Keep the membership until a cancellation or an error, then release everything."""
        from asyncio import create_task, wait

        task = self._attending = create_task(attend(self.port, self.roster, self._division))
        try:
            await wait([task])
        finally:
            # In a task of its own: a second cancellation must not cut the releases short.
            await ended(create_task(self._wind_up(task)))
        failure = self._failure or failure_of(task)
        if failure is not None:
            raise failure

    async def _wind_up(self, task: Task[None]) -> None:
        self._stop_all()
        await cancel(task)
        # Off the roster before the bodies have ended: the others divide anew, and wait for the
        # leases.
        await self.roster.strike_off(self.port)
        await ended(*self._tasks.values())
        await self.roster.leave(self.port)

    def start(self, number: int, claim: Claim) -> None:
        from asyncio import create_task

        self._renew(claim)
        shard = self._shards[number] = AsyncShard(self._link, claim, number)
        self._tasks[number] = create_task(self._serve(shard), name=f"incumbent {shard.name}")

    async def _serve(self, shard: AsyncShard) -> None:
        from asyncio import CancelledError

        try:
            with unless_lost(shard._claim.wanted.key):
                async with shard:
                    if self._may_begin(shard):
                        with unless_cancelled():
                            await require_awaitable(self._work(shard), self._work, _USE_BLOCKING)
        except CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - it is raised by `run`
            self._note_failure(error, shard)
            if self._attending is not None:
                self._attending.cancel()
        finally:
            self._shards.pop(shard.number, None)
