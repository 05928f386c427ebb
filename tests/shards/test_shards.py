"""Shards on both sides: who has which, how they are handed over, and what is refused."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

import incumbent
from incumbent import (
    AsyncShard,
    AsyncShards,
    Client,
    ConfigError,
    Group,
    LeaseLost,
    Misuse,
    Shard,
    Shards,
    StoreUnavailable,
    clock,
)
from incumbent.model import Ask, Key, Record, TakeOutcome
from incumbent.rules.notices import PAUSE, encode_notice
from incumbent.runtime.link import Link
from tests.support.faulty import FaultyEngine
from tests.support.starts import WHEN, Limit, interrupt_start
from tests.support.waiting import eventually


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


def holds(shard: Shard) -> None:
    shard.wait_stop()


async def holds_async(shard: AsyncShard) -> None:
    await asyncio.Event().wait()


def numbers(shards: Shards | AsyncShards) -> set[int]:
    return {shard.number for shard in shards.owned()}


def are_divided(count: int, *members: Shards | AsyncShards) -> bool:
    """Whether each shard is some member's, and each member has some."""
    parts = [numbers(member) for member in members]
    return all(parts) and sum(map(len, parts)) == count == len(set().union(*parts))


async def soon(true: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not true():
            await asyncio.sleep(0.005)


def test_one_member_has_all_and_two_share(engine: FaultyEngine) -> None:
    first, second = (Shards("orders", 16, store=engine, holder=name) for name in ("a", "b"))
    with first.running(holds) as same:
        assert same is first
        eventually(lambda: are_divided(16, first))
        before = numbers(first)
        with second.running(holds):
            eventually(lambda: are_divided(16, first, second))
            assert numbers(first) < before
        assert numbers(second) == set()
        eventually(lambda: are_divided(16, first))
    assert first.owned() == ()


def test_each_shard_has_its_own_lease_token_and_thread(engine: FaultyEngine) -> None:
    shards, threads = Shards("orders", 3, store=engine), set()

    def work(shard: Shard) -> None:
        threads.add(threading.current_thread().name)
        shard.check(need=0.1)
        assert shard.fencing_token > 0
        shard.wait_stop()

    with shards.running(work):
        eventually(lambda: len(threads) == 3)
        assert [shard.name for shard in shards.owned()] == ["orders/0", "orders/1", "orders/2"]
        with Client(engine) as client:
            assert client.read("orders/2").holdings[0].holder == shards.holder
    assert threads == {"incumbent orders/0", "incumbent orders/1", "incumbent orders/2"}


def test_the_next_member_begins_only_when_the_body_of_the_one_before_has_ended(
    engine: FaultyEngine,
) -> None:
    first, second = (Shards("orders", 16, store=engine, holder=name) for name in ("a", "b"))
    go_on, asked, ended = threading.Event(), set[int](), set[int]()
    too_early: list[int] = []

    def slow(shard: Shard) -> None:
        shard.wait_stop()
        asked.add(shard.number)
        assert go_on.wait(60)
        ended.add(shard.number)

    def next_one(shard: Shard) -> None:
        if shard.number not in ended:
            too_early.append(shard.number)
        shard.wait_stop()

    with first.running(slow):
        eventually(lambda: are_divided(16, first))
        with second.running(next_one):
            eventually(lambda: asked)
            took_part = engine.faulty.calls["take"]
            eventually(lambda: engine.faulty.calls["take"] > took_part + 5)
            assert not second.owned()
            go_on.set()
            eventually(lambda: are_divided(16, first, second))
            assert not too_early


def test_work_that_returns_by_itself_is_called_again_after_a_pause(engine: FaultyEngine) -> None:
    tokens: list[int] = []
    with Shards("orders", 1, store=engine, ttl=1).running(
        lambda shard: tokens.append(shard.number)
    ):
        eventually(lambda: len(tokens) > 2)
    assert len(tokens) < 50


def test_an_error_of_the_work_ends_all_work_and_is_raised(engine: FaultyEngine) -> None:
    ended: list[int] = []

    def work(shard: Shard) -> None:
        if shard.number == 2:
            raise ValueError("of the work")
        shard.wait_stop()
        ended.append(shard.number)

    shards = Shards("orders", 4, store=engine)
    with pytest.raises(ValueError, match="of the work"):
        shards.run(work)
    assert shards.owned() == ()
    assert Group("orders", store=engine).members() == ()
    assert len(ended) == len(set(ended))


@WHEN
def test_a_handlers_exception_while_a_shards_thread_starts_releases_nothing_under_its_work(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    valid: list[bool] = []

    def work(shard: Shard) -> None:
        shard.wait_stop()
        # As a step that takes a while to end.
        time.sleep(0.1)
        valid.append(shard.valid)

    let_it_end = interrupt_start(monkeypatch, "incumbent orders/1", when)
    shards = Shards("orders", 2, store=engine)
    with pytest.raises(Limit):
        shards.run(work)
    began = len(valid)
    let_it_end()
    assert all(valid)
    assert len(valid) == began
    assert shards.owned() == ()
    with Client(engine) as client:
        assert not any(client.read(f"orders/{number}").holdings for number in range(2))


def test_a_second_ctrl_c_while_the_work_is_awaited_ends_the_membership_all_the_same(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, join = threading.Event(), threading.Thread.join

    def work(shard: Shard) -> None:
        if shard.number == 1:
            # As a handler that raises in the main thread: this ends `run`, which awaits the other.
            raise Limit
        shard.wait_stop()
        assert go_on.wait(60)

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name == "incumbent orders/0" and not go_on.is_set():
            raise KeyboardInterrupt
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    shards = Shards("orders", 2, store=engine)
    with pytest.raises(KeyboardInterrupt):
        shards.run(work)
    assert Group("orders", store=engine).members() == ()
    eventually(lambda: "incumbent orders in time" not in names_of_threads())
    # The work that goes on has its shard until it ends.
    assert numbers(shards) <= {0}
    go_on.set()
    eventually(lambda: "incumbent orders/0" not in names_of_threads())
    with Client(engine) as client:
        assert not client.read("orders/0").holdings


def names_of_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_sys_exit_is_not_swallowed_by_a_clean_up_that_checks_the_shard(
    engine: FaultyEngine, interrupt: type[BaseException]
) -> None:
    begun: list[int] = []

    def work(shard: Shard) -> None:
        begun.append(shard.number)
        assert len(begun) == 1, "it goes on"
        try:
            raise interrupt
        finally:
            shard.check(need=3600)

    shards = Shards("orders", 1, store=engine)
    with pytest.raises(interrupt):
        shards.run(work)
    assert shards.owned() == ()


def test_a_group_of_losses_costs_no_more_than_the_shard(engine: FaultyEngine) -> None:
    begun: list[int] = []

    def work(shard: Shard) -> None:
        begun.append(shard.fencing_token)
        try:
            shard.check(need=3600)
        except LeaseLost as lost:
            raise ExceptionGroup("of tasks", [lost]) from None

    with Shards("orders", 1, store=engine, ttl=1).running(work):
        eventually(lambda: len(begun) > 1)


def test_work_that_waits_is_told_within_the_lease_when_it_cannot_be_proved(
    engine: FaultyEngine,
) -> None:
    left: list[float] = []

    def work(shard: Shard) -> None:
        if shard.wait_stop():
            left.append(shard.remaining)

    with Shards("orders", 3, store=engine, ttl=6).running(work):
        eventually(lambda: engine.faulty.calls["renew"])
        engine.faulty.down = True
        eventually(lambda: len(left) == 3)
        engine.faulty.down = False
    # The grace is 2 s; the end of the membership would leave 1.2 s.
    assert min(left) > 1.5


def test_the_loss_of_one_shard_costs_no_other_and_it_is_taken_again(engine: FaultyEngine) -> None:
    shards = Shards("orders", 3, store=engine, ttl=8)
    with shards.running(holds):
        eventually(lambda: are_divided(3, shards))
        before = {shard.number: shard.fencing_token for shard in shards.owned()}
        lost = shards.owned()[1]
        engine.faulty.give(lost.belief.key, lost.belief.claim_id, None, clock.now() + 30)
        eventually(lambda: lost.lost)
        eventually(lambda: are_divided(3, shards))
        after = {shard.number: shard.fencing_token for shard in shards.owned()}
        assert {number for number in before if after[number] != before[number]} == {1}


def test_a_shard_that_is_released_from_outside_ends_its_work_and_is_taken_again(
    engine: FaultyEngine,
) -> None:
    begun, ended = threading.Event(), list[str]()

    def work(shard: Shard) -> None:
        begun.set()
        shard.wait_stop()
        try:
            shard.check()
        except LeaseLost as lost:
            ended.append(lost.reason)
            raise

    async def work_async(shard: AsyncShard) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            shard.check()

    async def main() -> None:
        shards = AsyncShards("orders", 1, store=engine, ttl=1)
        async with shards.running(work_async):
            await soon(lambda: numbers(shards))
            (before,) = shards.owned()
            await before.release()
            await soon(lambda: [it for it in shards.owned() if it is not before])

    shards = Shards("orders", 1, store=engine, ttl=1)
    with shards.running(work):
        assert begun.wait(40)
        (before,) = shards.owned()
        assert before.release()
        eventually(lambda: [it for it in shards.owned() if it is not before])
        assert ended == ["resigned"]
    asyncio.run(main())


def test_an_operator_who_pauses_a_member_gives_its_shards_to_the_others(
    engine: FaultyEngine,
) -> None:
    first, second = (Shards("orders", 8, store=engine, holder=name, ttl=1) for name in ("a", "b"))
    with first.running(holds), second.running(holds):
        eventually(lambda: are_divided(8, first, second))
        place = Key("default", "orders/@a")
        engine.faulty.put(place, PAUSE, encode_notice(who="operator"), None, clock.now() + 30)
        eventually(lambda: are_divided(8, second))
        assert not first.owned()
        engine.faulty.put(place, PAUSE, None, None, clock.now() + 30)
        eventually(lambda: are_divided(8, first, second))


def test_another_number_of_shards_is_refused_with_both_and_nothing_is_acquired(
    engine: FaultyEngine,
) -> None:
    first = Shards("orders", 4, store=engine, holder="a")
    with first.running(holds):
        eventually(lambda: are_divided(4, first))
        other = Shards("orders", 5, store=engine, holder="b")
        why = r"'orders' has 4 shards, says its member 'a', and 5 here: all members need the same"
        with pytest.raises(ConfigError, match=why), other.running(holds):
            pass
        with pytest.raises(ConfigError, match=why):
            other.run(holds)
        assert [one.holder for one in Group("orders", store=engine).members()] == ["a"]
        assert are_divided(4, first)
    with other.running(holds):
        eventually(lambda: are_divided(5, other))


def test_who_only_joined_the_group_has_no_shard(engine: FaultyEngine) -> None:
    shards = Shards("orders", 4, store=engine, holder="a", metadata={"v": "1"})
    with Group("orders", store=engine, holder="looks-on").join(), shards.running(holds):
        eventually(lambda: are_divided(4, shards))
        members = Group("orders", store=engine).members()
        assert [member.metadata for member in members] == [{"v": "1"}, {}]


def test_a_second_membership_is_refused_and_the_first_stays(engine: FaultyEngine) -> None:
    shards = Shards("orders", 4, store=engine)
    with shards.running(holds):
        eventually(lambda: are_divided(4, shards))
        with pytest.raises(Misuse, match="a member of 'orders' already"):
            shards.run(holds)
        assert are_divided(4, shards)


@pytest.mark.parametrize("count", [0, -3, 10_001])
def test_a_number_that_cannot_be_is_refused_with_it(engine: FaultyEngine, count: int) -> None:
    for kind in (Shards, AsyncShards):
        with pytest.raises(ConfigError, match=f"count={count}: 1 to 10000 shards"):
            kind("orders", count, store=engine)


def test_bad_metadata_is_refused(engine: FaultyEngine) -> None:
    with pytest.raises(ConfigError, match="2000 bytes, at most 1024"):
        Shards("orders", 4, store=engine, metadata=b"x" * 2000)


def test_work_of_the_other_side_is_refused(engine: FaultyEngine) -> None:
    with pytest.raises(Misuse, match="coroutines belong to AsyncShards"):
        Shards("orders", 4, store=engine).run(holds_async)  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="blocking work belongs to Shards"):
        asyncio.run(AsyncShards("orders", 4, store=engine).run(lambda _: None))  # type: ignore[arg-type,return-value]


def test_a_client_makes_them_with_its_settings(engine: FaultyEngine) -> None:
    shards = Client(engine, ttl=7, holder="mine").shards("orders", 2, metadata={"v": "1"})
    with shards.running(holds):
        eventually(lambda: are_divided(2, shards))
        assert shards.owned()[0].belief.policy.ttl == 7
        assert shards.owned()[0].holder == "mine"


def test_an_outage_that_is_shorter_than_the_lease_costs_no_shard(engine: FaultyEngine) -> None:
    shards = Shards("orders", 4, store=engine, ttl=3)
    with shards.running(holds):
        eventually(lambda: are_divided(4, shards))
        before = [shard.fencing_token for shard in shards.owned()]
        engine.faulty.down = True
        failures = engine.faulty.calls["renew"]
        eventually(lambda: engine.faulty.calls["renew"] > failures)
        engine.faulty.down = False
        renewed = engine.faulty.calls["renew"]
        eventually(lambda: engine.faulty.calls["renew"] > renewed + 4)
        assert [shard.fencing_token for shard in shards.owned()] == before


def are_away(engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch, names: set[str]) -> None:
    """The node of a cluster that has these names does not answer for now; others do."""
    take, read, away = engine.faulty.take, engine.faulty.read, StoreUnavailable("its node is away")

    def take_there(key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        if key.name in names:
            raise away
        return take(key, claim, ask, until)

    def read_there(key: Key, until: float) -> Record:
        if key.name in names:
            raise away
        return read(key, until)

    monkeypatch.setattr(engine.faulty, "take", take_there)
    monkeypatch.setattr(engine.faulty, "read", read_there)


def test_shards_whose_node_is_away_keep_a_member_from_no_others(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = {f"orders/{number}" for number in range(12)}
    shards = Shards("orders", 16, store=engine)
    are_away(engine, monkeypatch, away)
    with shards.running(holds):
        eventually(lambda: numbers(shards) == {12, 13, 14, 15})
        away.clear()
        eventually(lambda: are_divided(16, shards))


def test_a_node_that_says_how_long_it_grants_nothing_delays_no_shards_of_others(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = engine.faulty.take

    def take_there(key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        if key.name == "orders/0":
            raise StoreUnavailable("it was promoted", retry_after=60)
        return take(key, claim, ask, until)

    monkeypatch.setattr(engine.faulty, "take", take_there)
    first, second = (Shards("orders", 16, store=engine, holder=name) for name in ("a", "b"))
    with first.running(holds):
        eventually(lambda: len(numbers(first)) == 15)
        with second.running(holds):
            eventually(lambda: are_divided(15, first, second))
        eventually(lambda: len(numbers(first)) == 15)


def test_a_member_whose_lease_cannot_be_read_is_struck_by_nobody_and_delays_nobody(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards, group = Shards("orders", 4, store=engine, holder="a"), Group("orders", store=engine)

    def place() -> object:
        return engine.faulty.read(Key("default", "orders"), clock.now() + 30).fields["@b"]

    with Group("orders", store=engine, holder="b").join():
        before = place()
        with monkeypatch.context() as outage:
            are_away(engine, outage, {"orders/@b"})
            with shards.running(holds):
                eventually(lambda: are_divided(4, shards))
                # Who only looks does not make a list without it.
                with pytest.raises(StoreUnavailable):
                    group.members()
        assert [member.holder for member in group.members()] == ["b"]
        # Nor is it a new one, which came back by itself.
        assert place() == before


def test_a_name_that_another_process_has_is_refused_and_no_shard_is_taken(
    engine: FaultyEngine, caplog: pytest.LogCaptureFixture
) -> None:
    other = Link(engine)
    twin = incumbent.Lock("orders/@a", store=other, holder="a", ttl=3)
    shards = Shards("orders", 4, store=engine, holder="a", ttl=3)
    with twin, pytest.raises(Misuse, match="give each member a holder= of its own"):
        shards.run(holds)
    assert not any(Client(engine).read(f"orders/{number}").history for number in range(4))


def test_on_asyncio_one_member_has_all_and_two_share(engine: FaultyEngine) -> None:
    async def main() -> None:
        first, second = (AsyncShards("orders", 16, store=engine, holder=it) for it in ("a", "b"))
        async with first.running(holds_async) as same:
            assert same is first
            await soon(lambda: are_divided(16, first))
            async with second.running(holds_async):
                await soon(lambda: are_divided(16, first, second))
            await soon(lambda: are_divided(16, first))
        assert first.owned() == ()

    asyncio.run(main())


def test_on_asyncio_a_body_is_cancelled_and_awaited_before_the_next_begins(
    engine: FaultyEngine,
) -> None:
    working: set[int] = set()
    together: list[int] = []

    async def work(shard: AsyncShard) -> None:
        if shard.number in working:
            together.append(shard.number)
        working.add(shard.number)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            assert shard.valid
            working.discard(shard.number)

    async def main() -> None:
        first, second = (AsyncShards("orders", 16, store=engine, holder=it) for it in ("a", "b"))
        async with first.running(work):
            await soon(lambda: are_divided(16, first))
            async with second.running(work):
                await soon(lambda: are_divided(16, first, second))
            await soon(lambda: are_divided(16, first))
        assert not working
        assert not together

    asyncio.run(main())


def test_on_asyncio_an_error_of_the_work_ends_all_and_is_raised(engine: FaultyEngine) -> None:
    async def work(shard: AsyncShard) -> None:
        if shard.number == 2:
            raise ValueError("of the work")
        await asyncio.Event().wait()

    async def main() -> None:
        shards = AsyncShards("orders", 4, store=engine)
        with pytest.raises(ValueError, match="of the work"):
            await shards.run(work)
        assert shards.owned() == ()

    asyncio.run(main())


def test_on_asyncio_work_that_awaits_what_was_cancelled_has_failed(engine: FaultyEngine) -> None:
    async def work(shard: AsyncShard) -> None:
        inner = asyncio.ensure_future(asyncio.sleep(9))
        inner.cancel()
        await inner

    async def main() -> None:
        async with asyncio.timeout(20):
            with pytest.raises(RuntimeError, match="CancelledError"):
                await AsyncShards("orders", 1, store=engine).run(work)

    asyncio.run(main())


def test_on_asyncio_a_cancelled_run_gives_everything_back(engine: FaultyEngine) -> None:
    async def main() -> None:
        shards = AsyncShards("orders", 4, store=engine)
        task = asyncio.create_task(shards.run(holds_async))
        await soon(lambda: are_divided(4, shards))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    with Client(engine) as client:
        assert not any(client.read(f"orders/{number}").holdings for number in range(4))
        assert [*client.read("orders").fields] == []


def test_on_asyncio_another_number_is_refused_at_once(engine: FaultyEngine) -> None:
    async def main() -> None:
        async with AsyncShards("orders", 4, store=engine, holder="a").running(holds_async):
            with pytest.raises(ConfigError, match=r"4 shards, .* and 5 here"):
                async with AsyncShards("orders", 5, store=engine, holder="b").running(holds_async):
                    pass

    asyncio.run(main())


def test_on_asyncio_sys_exit_is_not_swallowed_by_a_clean_up_that_checks_the_shard(
    engine: FaultyEngine,
) -> None:
    begun: list[int] = []

    async def work(shard: AsyncShard) -> None:
        begun.append(shard.number)
        if len(begun) == 1:
            shard.check(need=3600)
        assert len(begun) == 2, "it goes on"
        try:
            raise SystemExit
        finally:
            async with asyncio.TaskGroup():
                shard.check(need=3600)

    shards = AsyncShards("orders", 1, store=engine, ttl=1)
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        # What the caller handles is no interruption of the work.
        with pytest.raises(SystemExit):
            asyncio.run(shards.run(work))
    assert shards.owned() == ()
