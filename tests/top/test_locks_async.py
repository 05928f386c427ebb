"""Asynchronous locks on a memory store with planned faults."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack, suppress
from functools import partial
from typing import Any

import pytest

import incumbent
from incumbent import AsyncLock, AsyncMultiLock, LeaseLost, clock
from tests.support.faulty import Fault, FaultyEngine
from tests.support.pace import took
from tests.support.waiting import eventually

Scenario = Callable[[FaultyEngine], Coroutine[Any, Any, None]]


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


def run(scenario: Awaitable[None]) -> None:
    """Under debug mode, which reports what is never awaited or called from a wrong thread."""

    async def main() -> None:
        await scenario

    asyncio.run(main(), debug=True)


def test_an_async_lease_is_proved_and_excludes(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        async with AsyncLock("a", store=engine, holder="me") as lease:
            lease.check(need=2)
            assert await AsyncLock("a", store=engine).try_acquire() is None
            assert await AsyncLock("a", store=engine).held_by() == "me"
            waiting = asyncio.create_task(AsyncLock("a", store=engine, timeout=0.05).acquire())
            with pytest.raises(incumbent.AcquireTimeout):
                await waiting
        assert await AsyncLock("a", store=engine).held_by() is None

    run(scenario())


def test_sync_and_async_locks_exclude_each_other(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        async with AsyncLock("a", store=engine):
            assert incumbent.Lock("a", store=engine).try_acquire() is None

    run(scenario())


def test_a_task_that_waits_while_the_client_is_closed_takes_nothing(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        for number in range(3):
            client = incumbent.AsyncClient(engine)
            ways: list[Callable[[], Coroutine[Any, Any, object]]] = [
                client.lock("a").acquire,
                client.multi_lock(["a", "b"]).acquire,
                client.election("a").campaign,
            ]
            holder, calls = await AsyncLock("a", store=engine).acquire(), engine.faulty.calls
            before = calls["take"]
            waiter = asyncio.ensure_future(ways[number]())
            while calls["take"] == before:
                await asyncio.sleep(0.001)
            await client.aclose()
            await holder.release()
            with pytest.raises(incumbent.Misuse, match="was closed"):
                await asyncio.wait_for(waiter, 30)
            # What was granted all the same is given back by the keeper's thread.
            async with asyncio.timeout(30):
                for name in ("a", "b"):
                    while await AsyncLock(name, store=engine).locked():
                        await asyncio.sleep(0.01)

    run(scenario())


def test_a_waiting_task_is_woken_by_a_release(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        first = await AsyncLock("a", store=engine).acquire()
        waiter = asyncio.create_task(AsyncLock("a", store=engine).acquire())
        while engine.faulty.calls["take"] < 2:
            await asyncio.sleep(0)
        await first.release()
        # Who is not told waits until the ttl has run out, 15 s.
        async with asyncio.timeout(10):
            await (await waiter).release()

    run(scenario())


def test_the_body_is_cancelled_within_the_lease_and_the_caller_hears_of_the_loss(
    engine: FaultyEngine,
) -> None:
    valid_in_cleanup = []

    async def scenario() -> None:
        lock = AsyncLock("a", store=engine, ttl=3, grace=1.5)
        with pytest.raises(incumbent.LeaseLost) as caught:
            async with lock as lease:
                engine.faulty.down = True
                try:
                    await asyncio.sleep(10)
                finally:
                    valid_in_cleanup.append(lease.valid)
        assert caught.value.reason == "expired"

    run(scenario())
    assert valid_in_cleanup == [True]


def test_the_body_is_cancelled_at_once_when_the_store_says_gone(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        with pytest.raises(incumbent.LeaseLost) as caught:
            async with AsyncLock("a", store=engine, ttl=3):
                engine.faulty.restart(empty=True)
                await asyncio.sleep(30)
        assert caught.value.reason == "store_restarted"

    started = clock.now()
    run(scenario())
    assert took(started) < 10


def test_a_renewed_body_is_not_cancelled(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        async with AsyncLock("a", store=engine, ttl=3) as lease:
            await asyncio.sleep(3.5)
            lease.check()
            assert await lease.renew() > 0

    run(scenario())


def test_a_blocked_event_loop_does_not_cost_the_lease(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        async with AsyncLock("a", store=engine, ttl=3) as lease:
            time.sleep(3.5)  # noqa: ASYNC251 - the very fault
            lease.check()

    asyncio.run(scenario())


def test_at_most_for_cancels_a_body_that_hangs(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        with pytest.raises(incumbent.LeaseLost) as caught:
            async with AsyncLock("a", store=engine, at_most_for=0.05):
                await asyncio.sleep(10)
        assert caught.value.reason == "at_most_for"
        assert await AsyncLock("a", store=engine).held_by() is None

    run(scenario())


def test_a_cancellation_from_outside_stays_a_cancellation(engine: FaultyEngine) -> None:
    async def body() -> None:
        async with AsyncLock("a", store=engine):
            await asyncio.sleep(10)

    async def scenario() -> None:
        task = asyncio.create_task(body())
        while not engine.faulty.calls["take"]:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await AsyncLock("a", store=engine).held_by() is None

    run(scenario())


def test_a_cancellation_from_outside_during_our_own_is_not_swallowed(
    engine: FaultyEngine,
) -> None:
    ours = asyncio.Event()

    async def body() -> None:
        async with AsyncLock("a", store=engine, at_most_for=0.05):
            try:
                await asyncio.sleep(30)
            finally:
                ours.set()
                await asyncio.sleep(30)

    async def scenario() -> None:
        task = asyncio.create_task(body())
        await ours.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelling() == 1

    run(scenario())


async def fails_in_a_group() -> None:
    async def fail() -> None:
        raise ValueError

    # After the group's body: before Python 3.13 this leaves the task's count raised.
    with pytest.raises(ExceptionGroup):
        async with asyncio.TaskGroup() as group:
            group.create_task(fail())


def test_a_loss_after_a_task_group_that_failed_is_a_loss(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        with pytest.raises(incumbent.LeaseLost):
            async with AsyncLock("a", store=engine, at_most_for=0.05):
                await fails_in_a_group()
                await asyncio.sleep(30)
        with pytest.raises(incumbent.LeaseLost):
            async with AsyncLock("a", store=engine, at_most_for=0.05) as lease:
                await fails_in_a_group()
                try:
                    await asyncio.sleep(30)
                finally:
                    lease.check(60)

    run(scenario())


def test_a_leader_stands_again_after_a_task_group_that_failed(engine: FaultyEngine) -> None:
    terms = list[int]()

    async def work(term: incumbent.AsyncTerm) -> None:
        terms.append(term.number)
        if len(terms) == 1:
            await fails_in_a_group()
            try:
                await asyncio.sleep(30)
            finally:
                term.check(60)

    async def scenario() -> None:
        await incumbent.AsyncElection("a", store=engine, at_most_for=0.05).run(work)
        assert len(terms) > 1

    run(scenario())


@pytest.mark.parametrize("pause", [None, 0.0, 0.1])
def test_a_cancellation_from_outside_before_our_own_stays_one_in_spite_of_a_task_group(
    engine: FaultyEngine, pause: float | None
) -> None:
    """`pause`: before the lease is over; None: both come in one step of the loop."""

    async def body() -> None:
        async with AsyncLock("a", store=engine) as lease:
            await fails_in_a_group()
            task = asyncio.current_task()
            assert task is not None
            over = partial(setattr, lease._claim.machine, "stop_at", 0.0)
            if pause is None:
                over()
                task.cancel()
                lease._scope._recheck()
                await asyncio.sleep(30)
            try:
                task.cancel()
                await asyncio.sleep(30)
            finally:
                await asyncio.sleep(pause or 0.0)
                over()
                lease._scope._recheck()
                await asyncio.sleep(30)

    async def scenario() -> None:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(body())

    run(scenario())


def test_a_body_that_swallows_the_cancellation_reports_no_success(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        with pytest.raises(incumbent.LeaseLost):
            async with AsyncLock("a", store=engine, at_most_for=0.05):
                try:
                    await asyncio.sleep(10)
                except asyncio.CancelledError:
                    pass

    run(scenario())


def test_a_timeout_around_the_lock_stays_a_timeout(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), AsyncLock("a", store=engine):
                await asyncio.sleep(10)

    run(scenario())


def test_the_bodys_own_error_is_never_masked(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        with pytest.raises(ZeroDivisionError) as caught:
            async with AsyncLock("a", store=engine, at_most_for=0.05):
                try:
                    await asyncio.sleep(10)
                except asyncio.CancelledError:
                    raise ZeroDivisionError from None
        assert "at_most_for" in caught.value.__notes__[0]

    run(scenario())


async def cancelled_after(steps: int, coroutine: Coroutine[Any, Any, object]) -> bool:
    """Cancel a task after so many turns of the loop; True if that was before its end."""
    task = asyncio.create_task(coroutine)
    for _ in range(steps):
        await asyncio.sleep(0)
    cancelled = task.cancel()
    with_error = (await asyncio.gather(task, return_exceptions=True))[0]
    if isinstance(with_error, incumbent.AsyncLease):
        await with_error.release()
    return cancelled


@pytest.mark.parametrize("faults", [(), (Fault.LOST_REPLY,), (Fault.LOST_REQUEST,)])
def test_cancelled_at_any_await_of_acquire_nothing_stays_in_the_store(
    engine: FaultyEngine, faults: tuple[Fault, ...]
) -> None:
    async def scenario() -> None:
        for steps in range(12):
            engine.faulty.plan("take", *faults)
            await cancelled_after(steps, AsyncLock("a", store=engine, timeout=1).acquire())
            while await AsyncLock("a", store=engine).held_by() is not None:
                await asyncio.sleep(0.001)

    run(asyncio.wait_for(scenario(), 20))


def test_cancelled_at_any_await_of_a_wait_nothing_stays_in_the_store(
    engine: FaultyEngine,
) -> None:
    async def scenario() -> None:
        for steps in range(12):
            first = await AsyncLock("a", store=engine).acquire()
            await cancelled_after(steps, AsyncLock("a", store=engine).acquire())
            await first.release()
            while await AsyncLock("a", store=engine).held_by() is not None:
                await asyncio.sleep(0.001)

    run(asyncio.wait_for(scenario(), 20))


def test_a_body_that_releases_its_own_lease_goes_on(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        lock = AsyncLock("a", store=engine)
        for release in (lambda it: it.release(), lambda _: lock.release()):
            async with lock as lease:
                # Kept a second time, as `release` of a lock looks for it.
                lock._replace_kept(lease)
                assert await release(lease)
                await asyncio.sleep(0.05)
                assert not lease.valid
                assert await AsyncLock("a", store=engine).held_by() is None
        async with AsyncMultiLock(["a", "b"], store=engine) as both:
            await both.release()
            await asyncio.sleep(0.05)

    run(scenario())


def test_a_body_whose_lease_another_task_releases_is_cancelled_and_hears_why(
    engine: FaultyEngine,
) -> None:
    entered = list[incumbent.AsyncLease]()

    async def body() -> None:
        async with AsyncLock("a", store=engine) as lease:
            entered.append(lease)
            await asyncio.sleep(60)

    async def scenario() -> None:
        task = asyncio.create_task(body())
        while not entered:
            await asyncio.sleep(0)
        await entered[0].release()
        with pytest.raises(incumbent.AlreadyReleased, match="released while its body ran"):
            await task
        assert not task.cancelling()

    run(scenario())


def test_a_body_whose_lease_another_task_releases_ends_before_the_store_answers(
    engine: FaultyEngine,
) -> None:
    entered, steps = list[incumbent.AsyncLease](), list[str]()

    async def body() -> None:
        async with AsyncLock("a", store=engine) as lease:
            entered.append(lease)
            try:
                await asyncio.sleep(60)
            finally:
                steps.append("ended")

    async def scenario() -> None:
        task = asyncio.create_task(body())
        while not entered:
            await asyncio.sleep(0)
        engine.faulty.delay = 1.0
        release = asyncio.create_task(entered[0].release())
        with pytest.raises(incumbent.AlreadyReleased):
            await task
        steps.append("answered" if release.done() else "asked")
        await release

    run(scenario())
    assert steps == ["ended", "asked"]


def test_cancelled_at_any_await_of_release_nothing_is_believed(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        for steps in range(6):
            lease = await AsyncLock("a", store=engine).acquire()
            await cancelled_after(steps, lease.release())
            if steps:
                assert not lease.valid
                while await AsyncLock("a", store=engine).held_by() is not None:
                    await asyncio.sleep(0.001)
            else:
                await lease.release()

    run(asyncio.wait_for(scenario(), 20))


def test_a_hundred_tasks_share_one_lock_one_at_a_time(engine: FaultyEngine) -> None:
    inside = overlaps = 0

    async def work(lock: AsyncLock) -> None:
        nonlocal inside, overlaps
        async with lock as lease:
            lease.check()
            inside += 1
            overlaps += inside > 1
            await asyncio.sleep(0)
            inside -= 1

    async def scenario() -> None:
        lock = AsyncLock("a", store=engine)
        await asyncio.gather(*(work(lock) for _ in range(100)))

    asyncio.run(scenario())
    assert overlaps == 0


def test_one_lock_serves_many_loops(engine: FaultyEngine) -> None:
    lock = AsyncLock("a", store=engine)

    async def scenario() -> None:
        async with lock as lease:
            lease.check()

    for _ in range(3):
        run(scenario())


def test_wait_lost_ends_with_the_loss_and_with_a_release(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        lease = await AsyncLock("a", store=engine).acquire()
        waiting = asyncio.create_task(lease.wait_lost())
        await asyncio.sleep(0.01)
        await lease.release()
        assert await waiting is False
        lost = await AsyncLock("a", store=engine, ttl=0.3, at_most_for=0.1).acquire()
        assert await lost.wait_lost(5) is True

    run(scenario())


def test_a_lease_that_outlives_its_loop_is_still_given_back(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        await AsyncLock("a", store=engine).acquire()

    with pytest.warns(ResourceWarning, match="dropped without a release"):
        asyncio.run(scenario())
    eventually(lambda: incumbent.Lock("a", store=engine).held_by() is None)


@pytest.mark.parametrize("make", [AsyncLock, incumbent.Lock])
def test_a_lease_lapses_whose_body_is_in_a_loop_that_was_closed(
    engine: FaultyEngine, make: Callable[..., Any]
) -> None:
    entered, told = list[Any](), threading.Event()

    async def body() -> None:
        lock = make("a", store=engine, ttl=2, on_lost=lambda _: told.set())
        async with lock if make is AsyncLock else stack as it:
            entered.append(it if make is AsyncLock else it.enter_context(lock))
            await asyncio.Event().wait()

    stack, loop, work = AsyncExitStack(), asyncio.new_event_loop(), body()
    task = loop.create_task(work)
    while not (entered or task.done()):
        loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert told.wait(30)
    assert entered[0].lost
    assert not task.done()
    # Else the interpreter would report the task.
    with suppress(LeaseLost, incumbent.Misuse):
        work.close()
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_lease_goes_on_that_a_task_entered_which_has_ended(engine: FaultyEngine) -> None:
    with ExitStack() as stack:

        async def enter() -> incumbent.Lease:
            return stack.enter_context(incumbent.Lock("a", store=engine, ttl=3))

        lease = asyncio.run(enter())
        renewals = lease._link.keeper.stats.renewals
        eventually(lambda: lease._link.keeper.stats.renewals > renewals + 1)
        assert lease.valid


def test_a_client_hands_its_settings_to_its_locks() -> None:
    async def scenario() -> None:
        async with incumbent.AsyncClient("memory:aclient", namespace="b", ttl="9s") as fleet:
            async with fleet.lock("x") as lease:
                assert 5 < lease.remaining < 9
                assert (await fleet.read("x")).holdings
            assert [found.key.name for found in await fleet.scan()] == ["x"]

    run(scenario())


def test_a_signal_handler_that_releases_wakes_the_loop_that_waits_for_the_lease() -> None:
    lease = incumbent.Lock("handled", store="memory:", timeout=0, ttl=60).acquire()

    async def wait() -> None:
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        async with AsyncLock("handled", store="memory:", timeout=30):
            pass

    before = signal.signal(signal.SIGUSR1, lambda *_: lease.release())
    began = time.monotonic()
    try:
        asyncio.run(wait())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("again", [False, True])
def test_a_body_that_is_entered_in_the_grace_leaves_no_cancellation_behind(
    engine: FaultyEngine, again: bool
) -> None:
    async def scenario() -> None:
        lock = AsyncLock("a", store=engine, ttl=60, at_most_for=0.1, reentrant=again)
        lease = await lock.acquire()
        while clock.now() < lease._claims[0].machine.stop_at:
            await asyncio.sleep(0.02)
        assert lease.valid
        with suppress(LeaseLost):
            async with lease:
                pass
        # A cancellation that nobody took back would arrive here.
        await asyncio.sleep(0)

    asyncio.run(scenario())


def test_a_clean_up_in_its_grace_may_enter_a_reentrant_lock_again(engine: FaultyEngine) -> None:
    steps = []

    async def scenario() -> None:
        lock = AsyncLock("a", store=engine, ttl=60, at_most_for=0.1, reentrant=True)
        with pytest.raises(LeaseLost, match="at_most_for"):
            async with lock:
                try:
                    await asyncio.sleep(60)
                finally:
                    async with lock as lease:
                        await asyncio.sleep(0)
                        steps.append(lease.valid)

    asyncio.run(scenario())
    assert steps == [True]
