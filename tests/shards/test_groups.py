"""Groups: who is there, on both sides."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import incumbent
from incumbent import AsyncGroup, Client, ConfigError, Group, Member, Misuse, clock
from incumbent.model import Ask, Granted, Key, Renewal, Renewed
from incumbent.runtime.link import Link
from tests.support.faulty import Fault, FaultyEngine
from tests.support.pace import took
from tests.support.starts import WHEN, Limit, interrupt_start
from tests.support.waiting import eventually


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


def names(members: tuple[Member, ...]) -> list[str]:
    return [member.holder for member in members]


def test_who_joined_is_a_member_with_its_metadata_until_its_body_ends(engine: FaultyEngine) -> None:
    group = Group("workers", store=engine, holder="host-a:1")
    with group.join({"at": "10.0.0.7:80"}) as same:
        assert same is group
        (member,) = group.members()
        assert member.holder == "host-a:1"
        assert member.metadata == {"at": "10.0.0.7:80"}
        assert member.term > 0
    assert group.members() == ()


def test_metadata_of_another_kind_is_shown_as_it_is(engine: FaultyEngine) -> None:
    group = Group("workers", store=engine)
    with group.join(b"\xff"):
        (member,) = group.members()
    assert member.metadata == {}
    assert member.raw == b"\xff"


def test_members_are_in_the_order_of_their_names(engine: FaultyEngine) -> None:
    first, second = (Group("workers", store=engine, holder=name) for name in ("b", "a"))
    with first.join(), second.join():
        assert names(first.members()) == ["a", "b"]


def test_any_holder_can_be_a_member(engine: FaultyEngine) -> None:
    odd = ["Müller+7", "..", "x" * 200, "a@-b"]
    groups = [Group("w" * 100, store=engine, holder=name) for name in odd]
    with groups[0].join(), groups[1].join(), groups[2].join(), groups[3].join():
        assert sorted(names(groups[0].members())) == sorted(odd)


def test_an_observer_sees_who_is_there_and_then_who_comes_and_goes(engine: FaultyEngine) -> None:
    group, other = (Group("workers", store=engine, holder=name) for name in ("a", "b"))
    seen = group.observe(timeout=20)
    assert next(seen) == ()
    with group.join({"v": "1"}):
        assert names(next(seen)) == ["a"]
        with other.join():
            assert names(next(seen)) == ["a", "b"]
        assert names(next(seen)) == ["a"]
    assert next(seen) == ()


def test_an_observer_that_hears_no_news_ends(engine: FaultyEngine) -> None:
    assert list(Group("workers", store=engine).observe(timeout=0.05)) == [()]


def test_who_comes_again_at_once_is_news(engine: FaultyEngine) -> None:
    group = Group("workers", store=engine)
    seen = group.observe(timeout=20)
    next(seen)
    with group.join():
        (first,) = next(seen)
    with group.join():
        members = next(seen)
        while not members or members[0] == first:
            members = next(seen)
        assert members[0].term > first.term


def test_who_died_is_a_member_until_its_lease_ends_and_leaves_nothing(
    engine: FaultyEngine,
) -> None:
    lease = incumbent.Lock("workers/@dead", store=engine, ttl=3, holder="dead").acquire()
    roster = Key("default", "workers")
    engine.faulty.put(roster, "@dead", b"", None, clock.now() + 30)
    group = Group("workers", store=engine, ttl=1)
    assert names(group.members()) == ["dead"]
    lease.belief.leave_to_ttl()
    with group.join():
        eventually(lambda: names(group.members()) == [group.holder])
        eventually(lambda: [*engine.faulty.read(roster, clock.now() + 30).fields] != ["@dead"])


def test_a_lost_membership_is_joined_anew(engine: FaultyEngine) -> None:
    group, place = Group("workers", store=engine, ttl=3, holder="a"), Key("default", "workers/@a")
    with group.join({"v": "1"}):
        (before,) = group.members()
        (holding,) = engine.faulty.read(place, clock.now() + 30).holdings
        engine.faulty.give(place, holding.claim, None, clock.now() + 30)
        after = eventually(lambda: [one for one in group.members() if one != before])
        assert after[0].metadata == {"v": "1"}


def test_a_member_waits_for_its_own_lease_where_the_store_keeps_it_for_longer(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As etcd does after an election.
    group, place = Group("workers", store=engine, ttl=2, holder="a"), Key("default", "workers/@a")
    refused = {"renew", "give"}
    with group.join():
        (before,) = group.members()
        (holding,) = engine.faulty.read(place, clock.now() + 30).holdings
        other = engine.faulty.take(Key("default", "other"), "c", Ask(1.0, "b"), clock.now() + 30)
        assert isinstance(other, Granted)
        longer = Renewal(place, holding.claim, holding.token, 5.0, other.epoch)
        assert engine.faulty.renew([longer], clock.now() + 30) == [Renewed()]
        since = clock.now()
        monkeypatch.setattr(
            *(engine.faulty, "next_fault"),
            lambda op: Fault.NOT_SENT if op in refused else None,
        )
        eventually(lambda: clock.now() - since > 2.0)
        refused.clear()
        refused.add("give")
        eventually(lambda: [one for one in group.members() if one.term != before.term])
        assert clock.now() - since > 4.0


def test_a_second_membership_in_one_process_is_refused_and_the_first_stays(
    engine: FaultyEngine,
) -> None:
    group, twin = Group("workers", store=engine), Group("workers", store=engine)
    with group.join():
        for again in (group, twin):
            with (
                pytest.raises(Misuse, match=f"{group.holder!r} is a member of 'workers' already"),
                again.join(),
            ):
                pass
        assert len(group.members()) == 1


def test_a_name_that_another_process_has_is_refused_with_the_time_that_was_waited(
    engine: FaultyEngine, caplog: pytest.LogCaptureFixture
) -> None:
    twin = incumbent.Lock("workers/@a", store=Link(engine), holder="a", ttl=3)
    group = Group("workers", store=engine, holder="a", ttl=3)
    with twin, pytest.raises(Misuse, match=r"'a', which still lives after 4\.2s"), group.join():
        eventually(lambda: "still lives" in caplog.text)


@pytest.mark.parametrize(
    ("metadata", "why"),
    [({"a": 1}, "keys and values are texts"), ("text", "a mapping"), (b"x" * 1025, "1025 bytes")],
)
def test_bad_metadata_is_refused_and_nothing_is_acquired(
    engine: FaultyEngine, metadata: object, why: str
) -> None:
    group = Group("workers", store=engine)
    with pytest.raises(ConfigError, match=why), group.join(metadata):  # type: ignore[arg-type]
        pass
    assert not engine.faulty.calls["take"]


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"once_per": 5}, "unknown setting 'once_per'; known are grace, holder, policy, ttl"),
        ({"ttl": 0.01}, "ttl"),
        ({"holder": "a b"}, "holder"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    engine: FaultyEngine, settings: dict[str, object], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        Group("workers", store=engine, **settings)  # type: ignore[arg-type]


def test_a_name_that_is_too_long_is_refused_with_its_length(engine: FaultyEngine) -> None:
    with pytest.raises(ConfigError, match="101 characters, at most 100"):
        Group("w" * 101, store=engine)


def test_a_client_hands_on_what_a_group_has_of_its_settings(engine: FaultyEngine) -> None:
    client = Client(engine, namespace="apart", ttl=7, fair=True, holder="mine")
    group = client.group("workers")
    assert group.holder == "mine"
    with group.join():
        assert client.read("workers/@mine").holdings[0].holder == "mine"
        assert Group("workers", store=engine).members() == ()


def test_a_membership_ends_a_renewal_interval_before_the_shards(engine: FaultyEngine) -> None:
    group = Group("workers", store=engine, ttl=10, holder="a")
    with group.join(), Client(engine) as client:
        assert client.read("workers/@a").holdings[0].ttl == 8.0


def test_while_the_store_is_away_the_body_begins_all_the_same(engine: FaultyEngine) -> None:
    engine.faulty.down = True
    group = Group("workers", store=engine, ttl=1)
    with group.join():
        engine.faulty.down = False
        eventually(group.members)


def test_on_asyncio_it_is_the_same(engine: FaultyEngine) -> None:
    async def main() -> None:
        group, other = (AsyncGroup("workers", store=engine, holder=name) for name in ("a", "b"))
        seen = group.observe(timeout=20)
        assert await anext(seen) == ()
        async with group.join({"v": "1"}) as same:
            assert same is group
            assert names(await anext(seen)) == ["a"]
            async with other.join():
                assert names(await anext(seen)) == ["a", "b"]
            assert [one.metadata for one in await group.members()] == [{"v": "1"}]
            with pytest.raises(Misuse, match="already"):
                async with group.join():
                    pass
        assert await group.members() == ()

    asyncio.run(main())


def test_on_asyncio_a_cancelled_body_leaves(engine: FaultyEngine) -> None:
    async def main() -> None:
        group, inside = AsyncGroup("workers", store=engine), asyncio.Event()

        async def stays() -> None:
            async with group.join():
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(stays())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await group.members() == ()

    asyncio.run(main())


def test_cancelled_at_any_await_of_its_join_nobody_stays_a_member(engine: FaultyEngine) -> None:
    async def joins(group: AsyncGroup, inside: list[bool]) -> None:
        async with group.join():
            inside.append(True)

    async def main() -> None:
        group, inside = AsyncGroup("workers", store=engine), list[bool]()
        tasks = []
        for steps in range(60):
            # Kept: the end of a dropped task would release what it holds.
            tasks.append(asyncio.create_task(joins(group, inside)))
            for _ in range(steps):
                await asyncio.sleep(0)
            tasks[-1].cancel()
            await asyncio.wait(tasks)
            assert await group.members() == ()
            if inside:
                break
        assert inside

    asyncio.run(main())


def test_an_interrupted_join_leaves_nobody_a_member(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, put = Group("workers", store=engine), engine.faulty.put

    def interrupt(*args: Any) -> Any:
        put(*args)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(engine.faulty, "put", interrupt)
    with pytest.raises(KeyboardInterrupt) as kept, group.join():
        pass
    assert group.members() == ()
    del kept


@WHEN
def test_a_handlers_exception_while_the_thread_starts_ends_the_membership(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    group, bodies = Group("workers", store=engine), list[str]()
    let_it_end = interrupt_start(monkeypatch, "incumbent workers", when)
    with pytest.raises(Limit), group.join():
        bodies.append("began")
    let_it_end()
    assert not bodies
    assert group.members() == ()
    monkeypatch.undo()
    with group.join():
        assert len(group.members()) == 1


def test_a_body_that_ends_at_once_waits_for_nothing(engine: FaultyEngine) -> None:
    group = Group("workers", store=engine, ttl=600)
    began = clock.now()
    for _ in range(50):
        with group.join():
            pass
    assert took(began) < 60
    assert group.members() == ()


def test_no_thread_is_left(engine: FaultyEngine) -> None:
    with Group("workers", store=engine).join():
        assert any(thread.name == "incumbent workers" for thread in threading.enumerate())
    assert not any(thread.name == "incumbent workers" for thread in threading.enumerate())
