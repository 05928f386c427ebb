"""Asynchronous elections on a memory store with planned faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

import incumbent
from incumbent import AsyncElection, AsyncTerm, Leader, LeaseLost, clock
from incumbent.model import Key
from incumbent.rules.notices import RESIGN, encode_notice
from tests.support.faulty import Fault, FaultyEngine

KEY = Key("default", "a")


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


def run(scenario: Awaitable[None]) -> None:
    """Under debug mode, which reports what is never awaited or called from a wrong thread."""

    async def main() -> None:
        async with asyncio.timeout(30):
            await scenario

    asyncio.run(main(), debug=True)


def election(engine: FaultyEngine, holder: str = "me", **settings: Any) -> AsyncElection:
    return AsyncElection("a", store=engine, holder=holder, **settings)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def until_free(engine: FaultyEngine) -> None:
    while await election(engine).leader() is not None:
        await asyncio.sleep(0.001)


async def forever(_: AsyncTerm) -> None:
    await asyncio.sleep(60)


@asynccontextmanager
async def leading(
    candidate: AsyncElection, work: Any = forever
) -> AsyncIterator[asyncio.Task[Any]]:
    """A task in `run`, once its candidate leads; cancelled at the end."""
    task: asyncio.Task[Any] = asyncio.create_task(candidate.run(work))
    await until(lambda: candidate.term is not None)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def stand(engine: FaultyEngine, name: str) -> int:
    async with election(engine, name).lead() as term:
        return term.number


def test_a_term_is_a_lease_and_excludes_other_candidates(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        async with election(engine, metadata={"at": "here"}).lead() as term:
            assert isinstance(term, incumbent.AsyncLease)
            assert term.number == term.fencing_token
            leader = await election(engine, "other").leader()
            assert leader == Leader("me", term.number, {"at": "here"}, b'{"at":"here"}')
            with pytest.raises(incumbent.NotAcquired):
                await election(engine, "other").campaign(0)
            with pytest.raises(incumbent.NotAcquired):
                incumbent.Election("a", store=engine).campaign(0)
        assert await election(engine).leader() is None

    run(scenario())


def test_run_returns_what_the_work_returns_and_raises_what_it_raises(
    engine: FaultyEngine,
) -> None:
    async def fail(_: AsyncTerm) -> None:
        raise ZeroDivisionError

    async def succeed(term: AsyncTerm) -> int:
        return term.number

    async def scenario() -> None:
        assert await election(engine).run(succeed) > 0
        with pytest.raises(ZeroDivisionError):
            await election(engine).run(fail)
        assert await election(engine).leader() is None

    run(scenario())


def test_run_says_of_blocking_work_that_it_belongs_elsewhere(engine: FaultyEngine) -> None:
    async def body() -> None:
        election = AsyncElection("a", store=engine)
        with pytest.raises(incumbent.Misuse, match="belongs to Election"):
            await election.run(lambda term: 5)  # type: ignore[arg-type, return-value]
        assert await election.leader() is None

    asyncio.run(body())


def test_work_is_cancelled_and_awaited_within_the_lease_then_runs_in_the_next_term(
    engine: FaultyEngine,
) -> None:
    valid_in_cleanup: list[bool] = []
    revoked: list[LeaseLost | None] = []

    async def work(term: AsyncTerm) -> str:
        if valid_in_cleanup:
            return "second term"
        engine.faulty.down = True
        try:
            await asyncio.sleep(60)
        finally:
            assert term.stopping
            await asyncio.sleep(0.05)
            valid_in_cleanup.append(term.valid)
            engine.faulty.down = False
        return "never"

    async def scenario() -> None:
        candidate = election(engine, ttl=2.7, on_revoked=revoked.append)
        assert await candidate.run(work) == "second term"
        await until(lambda: len(revoked) == 2)

    run(scenario())
    assert valid_in_cleanup == [True]
    assert revoked[0] is not None
    assert revoked[0].reason == "expired"
    assert revoked[1] is None


def test_a_loss_cancels_the_work_at_once_and_the_candidate_stands_again(
    engine: FaultyEngine,
) -> None:
    numbers: list[int] = []

    async def work(term: AsyncTerm) -> int:
        numbers.append(term.number)
        if len(numbers) == 1:
            holding = engine.faulty.read(KEY, clock.now() + 30).holdings[0]
            engine.faulty.give(KEY, holding.claim, None, clock.now() + 30)
            await asyncio.sleep(60)
        return len(numbers)

    async def scenario() -> None:
        assert await election(engine, ttl=3).run(work) == 2

    run(scenario())
    assert numbers[0] < numbers[1]


def test_a_value_that_comes_with_the_loss_is_not_the_end(engine: FaultyEngine) -> None:
    terms: list[int] = []

    async def work(term: AsyncTerm) -> int:
        terms.append(term.number)
        if len(terms) == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return 1
        return 2

    async def scenario() -> None:
        candidate = election(engine, ttl=0.6, at_most_for=0.1)
        assert await candidate.run(work) == 2

    run(scenario())


def test_a_loss_of_a_namesake_in_another_namespace_is_the_works_own_error(
    engine: FaultyEngine,
) -> None:
    candidate = election(engine)

    async def work(term: AsyncTerm) -> None:
        async with incumbent.AsyncLock(candidate.name, store=engine, namespace="rows") as lease:
            lease.check(need=1000)

    with pytest.raises(LeaseLost, match="needed"):
        run(candidate.run(work))


def test_a_loss_of_another_lease_inside_the_work_is_the_works_own_error(
    engine: FaultyEngine,
) -> None:
    async def work(_: AsyncTerm) -> None:
        raise LeaseLost("of another", name="b")

    async def scenario() -> None:
        with pytest.raises(LeaseLost, match="of another"):
            await election(engine).run(work)

    run(scenario())


def test_a_cancellation_from_outside_cancels_the_work_and_releases(engine: FaultyEngine) -> None:
    cleaned: list[bool] = []

    async def work(term: AsyncTerm) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append(term.valid)

    async def scenario() -> None:
        candidate = election(engine)
        async with leading(candidate, work) as task:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert await candidate.leader() is None

    run(scenario())
    assert cleaned == [True]


def test_a_cancellation_from_outside_during_our_own_is_not_swallowed(
    engine: FaultyEngine,
) -> None:
    async def work(_: AsyncTerm) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.2)

    async def scenario() -> None:
        candidate = election(engine, at_most_for=0.1)
        async with leading(candidate, work) as task:
            await asyncio.sleep(0.2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelling() == 1

    run(scenario())


def test_a_cancellation_is_not_swallowed_by_a_clean_up_that_checks_the_term(
    engine: FaultyEngine,
) -> None:
    async def work(term: AsyncTerm) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            term.check(need=3600)

    async def scenario() -> None:
        candidate = election(engine)
        async with leading(candidate, work) as task:
            task.cancel()
            await asyncio.wait([task], timeout=5)
            assert task.cancelled()
        assert await candidate.leader() is None

    run(scenario())


async def refused(term: AsyncTerm) -> None:
    term.check(need=3600)


def test_a_loss_that_a_task_group_reports_is_the_loss_of_the_term(engine: FaultyEngine) -> None:
    terms: list[int] = []

    async def work(term: AsyncTerm) -> str:
        terms.append(term.number)
        if len(terms) == 1:
            async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
                outer.create_task(forever(term))
                inner.create_task(refused(term))
                inner.create_task(refused(term))
        return "second term"

    async def scenario() -> None:
        assert await election(engine).run(work) == "second term"

    run(scenario())


def test_a_task_group_that_failed_earlier_makes_no_cancellation_of_a_loss(
    engine: FaultyEngine,
) -> None:
    terms: list[int] = []

    async def work(term: AsyncTerm) -> str:
        terms.append(term.number)
        if len(terms) == 1:
            with pytest.raises(ExceptionGroup):
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(refused(term))
            await refused(term)
        return "second term"

    async def scenario() -> None:
        assert await election(engine).run(work) == "second term"

    run(scenario())


def test_a_cancellation_is_not_swallowed_by_a_task_group_that_reports_the_loss(
    engine: FaultyEngine,
) -> None:
    async def work(term: AsyncTerm) -> None:
        async with asyncio.TaskGroup() as tasks:
            try:
                await asyncio.sleep(60)
            finally:
                tasks.create_task(refused(term))

    async def scenario() -> None:
        candidate = election(engine)
        async with leading(candidate, work) as task:
            task.cancel()
            await asyncio.wait([task], timeout=5)
            assert task.cancelled()
        assert await candidate.leader() is None

    run(scenario())


def test_what_a_task_group_reports_beside_a_loss_is_an_error_of_the_work(
    engine: FaultyEngine,
) -> None:
    async def fails(other: str) -> None:
        raise LeaseLost("of another lease", name=other) if other else ValueError

    async def work(term: AsyncTerm, other: str) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(refused(term))
            tasks.create_task(fails(other))

    async def scenario(other: str) -> None:
        with pytest.raises(ExceptionGroup) as caught:
            await election(engine).run(lambda term: work(term, other))
        assert len(caught.value.exceptions) == 2

    for other in ("", "b"):
        run(scenario(other))


def test_who_was_cancelled_before_can_run_and_stand_again(engine: FaultyEngine) -> None:
    terms: list[int] = []

    async def work(term: AsyncTerm) -> str:
        terms.append(term.number)
        if len(terms) == 1:
            term.check(need=3600)
        return "second term"

    async def scenario() -> None:
        with pytest.raises(asyncio.CancelledError):
            asyncio.current_task().cancel()  # type: ignore[union-attr]  # there is one
            await asyncio.sleep(0)
        assert await election(engine).run(work) == "second term"

    run(scenario())


async def cancelled_after(steps: int, coroutine: Coroutine[Any, Any, object]) -> bool:
    """Cancel a task after so many turns of the loop; True if that was before its end."""
    task = asyncio.create_task(coroutine)
    for _ in range(steps):
        await asyncio.sleep(0)
    cancelled = task.cancel()
    result = (await asyncio.gather(task, return_exceptions=True))[0]
    if isinstance(result, AsyncTerm):
        await result.release()
    return cancelled


async def lead_for_a_turn(engine: FaultyEngine) -> None:
    async with election(engine).lead(timeout=1):
        await asyncio.sleep(0)


async def work_for_a_turn(_: AsyncTerm) -> None:
    await asyncio.sleep(0)


WAYS: dict[str, Callable[[FaultyEngine], Coroutine[Any, Any, object]]] = {
    "campaign": lambda engine: election(engine).campaign(1),
    "lead": lead_for_a_turn,
    "run": lambda engine: election(engine, timeout=1).run(work_for_a_turn),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("faults", [(), (Fault.LOST_REPLY,), (Fault.LOST_REQUEST,)])
def test_cancelled_at_any_await_nothing_is_believed_and_the_name_is_free_again(
    engine: FaultyEngine, way: str, faults: tuple[Fault, ...]
) -> None:
    async def scenario() -> None:
        ended = False
        for steps in range(40):
            engine.faulty.plan("take", *faults)
            ended = not await cancelled_after(steps, WAYS[way](engine))
            await until_free(engine)
            if ended:
                break
        # With a doubt the back-off lies between, which turns of the loop do not reach.
        assert ended or faults

    run(scenario())


def test_cancelled_at_any_await_of_a_waiting_campaign_nothing_stays(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        for steps in range(12):
            candidate = election(engine, "waiting")
            async with election(engine).lead():
                await cancelled_after(steps, candidate.campaign())
                assert candidate.term is None
            await until_free(engine)
            await (await candidate.campaign(1)).release()

    run(scenario())


def test_cancelled_at_any_await_of_a_resignation_the_leadership_still_ends_in_order(
    engine: FaultyEngine,
) -> None:
    async def scenario() -> None:
        for steps in range(1, 8):
            candidate = election(engine)
            async with leading(candidate):
                await cancelled_after(steps, candidate.resign())
                await until(lambda one=candidate: one.term is None)  # type: ignore[misc]
                await until_free(engine)

    run(scenario())


def test_work_that_releases_its_term_goes_on_and_the_candidate_stands_again(
    engine: FaultyEngine,
) -> None:
    ended = list[int]()

    async def work(term: incumbent.AsyncTerm) -> str:
        if ended:
            return "led"
        await term.release()
        await asyncio.sleep(0.05)
        ended.append(term.fencing_token)
        return "not led"

    async def scenario() -> None:
        assert await AsyncElection("a", store=engine).run(work) == "led"

    run(scenario())
    assert len(ended) == 1


def test_a_term_that_another_task_releases_cancels_the_work_and_the_candidate_stands_again(
    engine: FaultyEngine,
) -> None:
    terms = list[incumbent.AsyncTerm]()

    async def work(term: incumbent.AsyncTerm) -> int:
        terms.append(term)
        if len(terms) == 1:
            await asyncio.sleep(60)
        return len(terms)

    async def scenario() -> None:
        leading = asyncio.create_task(AsyncElection("a", store=engine).run(work))
        while not terms:
            await asyncio.sleep(0)
        await terms[0].release()
        assert await leading == 2

    run(scenario())


def test_resign_cancels_the_work_in_order_and_lets_another_lead(engine: FaultyEngine) -> None:
    revoked: list[LeaseLost | None] = []

    async def scenario() -> None:
        candidate = election(engine, on_revoked=revoked.append)
        async with leading(candidate):
            successor = asyncio.create_task(election(engine, "next").campaign())
            await until(lambda: engine.faulty.calls["take"] == 2)
            assert await candidate.resign() is True
            async with asyncio.timeout(10), await successor as term:
                # Who was asked to go stands again, but not at once.
                await asyncio.sleep(0.1)
                term.check()
        await until(lambda: revoked == [None])

    run(scenario())


def test_resign_by_the_body_itself_cancels_it_there(engine: FaultyEngine) -> None:
    after: list[str] = []

    async def scenario() -> None:
        candidate = election(engine)
        with pytest.raises(LeaseLost) as caught:
            async with candidate.lead():
                await candidate.resign()
                after.append("not reached")
        assert caught.value.reason == "resigned"
        assert await candidate.leader() is None

    run(scenario())
    assert after == []


def test_resign_in_the_clean_up_of_a_stopped_body_does_not_wait_for_itself(
    engine: FaultyEngine,
) -> None:
    async def scenario() -> None:
        candidate = election(engine)
        with pytest.raises(LeaseLost):
            async with candidate.lead() as term:
                try:
                    await candidate.resign()
                finally:
                    assert term.valid
                    assert await candidate.resign() is False
        assert await candidate.leader() is None

    run(scenario())


def test_resign_releases_a_term_that_nobody_entered(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        candidate = election(engine)
        term = await candidate.campaign()
        assert await candidate.resign() is True
        assert not term.valid
        with pytest.raises(LeaseLost, match="stepped down"):
            async with term:
                pass

    run(scenario())


@pytest.mark.parametrize("to", ["c0", "c1", "c2"])
def test_transfer_goes_to_the_named_one_of_three_candidates(engine: FaultyEngine, to: str) -> None:
    async def scenario() -> None:
        candidate = election(engine)
        async with leading(candidate):
            names = ("c0", "c1", "c2")
            tasks = {name: asyncio.create_task(stand(engine, name)) for name in names}
            await until(lambda: engine.stand(KEY, *names))
            with pytest.raises(incumbent.NotCandidate, match="c0, c1, c2"):
                await candidate.transfer(to="nobody")
            assert candidate.term is not None
            with pytest.raises(incumbent.ConfigError):
                await candidate.transfer(to=to, timeout=-1)
            assert candidate.term is not None
            assert candidate.term._claim.reserve_for is None
            assert await candidate.transfer(to=to) is True
            numbers = {name: await task for name, task in tasks.items()}
        assert min(numbers, key=numbers.__getitem__) == to

    run(scenario())


def test_an_operators_transfer_keeps_the_name_for_the_successor(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        # The name is kept for five seconds, or the ttl if that is less.
        candidate = election(engine, ttl=6)
        async with leading(candidate):
            names = ("c0", "c1", "c2")
            tasks = {name: asyncio.create_task(stand(engine, name)) for name in names}
            await until(lambda: engine.stand(KEY, *names))
            assert candidate.term is not None
            said = encode_notice(who="ann", to="c2", token=candidate.term.number)
            engine.faulty.put(KEY, RESIGN, said, None, clock.now() + 30)
            numbers = {name: await task for name, task in tasks.items()}
        assert min(numbers, key=numbers.__getitem__) == "c2"

    run(scenario())


def test_proclaim_reaches_followers_that_observe(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        candidate = election(engine, metadata={"v": "1"})
        news = election(engine, "other").observe(timeout=5)
        assert await anext(news) is None
        async with candidate.lead():
            first = await anext(news)
            await candidate.proclaim({"v": "2"})
            second = await anext(news)
        assert first is not None
        assert second is not None
        assert [first.metadata, second.metadata] == [{"v": "1"}, {"v": "2"}]
        assert first.term == second.term
        assert await anext(news) is None

    run(scenario())


def test_observe_ends_after_a_timeout_without_news_and_goes_on_through_an_outage(
    engine: FaultyEngine,
) -> None:
    async def scenario() -> None:
        async with election(engine).lead():
            engine.faulty.plan("read", *[Fault.NOT_SENT] * 3)
            news = [leader async for leader in election(engine, "other").observe(timeout=1)]
        assert [leader and leader.holder for leader in news] == ["me"]

    run(scenario())


def test_an_observer_can_be_cancelled_and_asked_again(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        news = election(engine, "other").observe()
        assert await anext(news) is None
        for steps in range(6):

            async def look() -> None:
                await anext(news)

            assert await cancelled_after(steps, look())
        async with election(engine).lead():
            assert (await anext(news)) is not None

    run(scenario())


def test_one_candidate_campaigns_once_at_a_time(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        candidate = election(engine)
        async with election(engine, "other").lead():
            waiting = asyncio.create_task(candidate.campaign())
            await until(lambda: engine.faulty.calls["take"] == 2)
            with pytest.raises(incumbent.Misuse, match="campaigns"):
                await candidate.campaign()
        async with await waiting:
            with pytest.raises(incumbent.Misuse, match="leads"):
                await candidate.campaign()

    run(scenario())


def test_of_ten_candidates_in_run_one_works_at_a_time(engine: FaultyEngine) -> None:
    inside = overlaps = 0

    async def work(term: AsyncTerm) -> None:
        nonlocal inside, overlaps
        term.check()
        inside += 1
        overlaps += inside > 1
        await asyncio.sleep(0)
        inside -= 1

    async def scenario() -> None:
        await asyncio.gather(*(election(engine, f"c{n}").run(work) for n in range(10)))

    run(scenario())
    assert overlaps == 0


def test_a_client_hands_its_settings_to_its_elections() -> None:
    async def scenario() -> None:
        async with (
            incumbent.AsyncClient("memory:aelections", namespace="b", ttl="9s") as fleet,
            fleet.election("x", metadata={"at": "here"}).lead() as term,
        ):
            assert 5 < term.remaining < 9
            assert await fleet.election("x").leader() is not None

    run(scenario())


def test_run_refuses_a_generator_before_anything_is_asked(engine: FaultyEngine) -> None:
    async def rows(term: AsyncTerm) -> AsyncIterator[int]:
        yield 1

    with pytest.raises(incumbent.ConfigError, match="generator"):
        asyncio.run(election(engine).run(rows))  # type: ignore[arg-type]
    assert not engine.faulty.calls
