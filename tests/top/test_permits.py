"""Elections with several permits: so many lead at once, each in a term of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest

import incumbent
from incumbent import (
    AsyncElection,
    AsyncTerm,
    ConfigError,
    Election,
    Lock,
    Misuse,
    NotAcquired,
    Term,
    clock,
)
from incumbent.model import Capabilities
from tests.support.faulty import FaultyEngine
from tests.support.pace import took
from tests.support.waiting import eventually

SHARING = pytest.mark.parametrize(
    "every_store",
    [
        *("memory", "sqlite"),
        *(
            pytest.param(of, marks=pytest.mark.server)
            for of in ("redis", "postgresql", "mysql", "etcd")
        ),
    ],
    indirect=True,
)
"""The stores that let several hold one name."""


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


def candidate(store: Any, holder: str, permits: int = 3, **settings: Any) -> Election:
    return Election("sync", permits=permits, store=store, holder=holder, **settings)


def leading(election: Election) -> list[str]:
    return [leader.holder for leader in election.leaders()]


def stand_by(term: Term) -> None:
    term.wait_stop()


async def stand_by_async(_: AsyncTerm) -> None:
    await asyncio.Event().wait()


@SHARING
def test_as_many_lead_as_there_are_permits_each_with_its_term_and_metadata(
    every_store: str,
) -> None:
    candidates = [
        candidate(every_store, f"c{n}", metadata={"at": f"10.0.0.{n}"}, timeout=20)
        for n in range(4)
    ]
    assert candidates[3].leaders() == ()
    terms = [one.campaign() for one in candidates[:3]]
    numbers = [term.number for term in terms]
    assert numbers == sorted(set(numbers))
    with pytest.raises(NotAcquired, match=r"no permit left of 3: held by"):
        candidates[3].campaign(0)

    candidates[1].proclaim({"at": "elsewhere"})
    assert [(one.holder, one.term, one.metadata["at"]) for one in candidates[3].leaders()] == [
        ("c0", numbers[0], "10.0.0.0"),
        ("c1", numbers[1], "elsewhere"),
        ("c2", numbers[2], "10.0.0.2"),
    ]
    assert candidates[1].resign()
    with candidates[3].lead() as fourth:
        assert fourth.number > max(numbers)
        assert [one.is_leader for one in candidates] == [True, False, True, True]
        assert leading(candidates[1]) == ["c0", "c2", "c3"]
    assert [terms[0].release(), terms[2].release()] == [True, True]
    assert candidates[0].leaders() == ()


@SHARING
def test_who_resigns_hands_its_seat_to_the_candidate_that_waits(every_store: str) -> None:
    async def scenario() -> float:
        first = AsyncElection("sync", permits=2, store=every_store, holder="first")
        other = AsyncElection("sync", permits=2, store=every_store, holder="other")
        follows = AsyncElection("sync", permits=2, store=every_store, holder="next")
        async with incumbent.AsyncClient(every_store) as client:
            async with first.running(stand_by_async), other.running(stand_by_async):
                while len(await follows.leaders()) < 2:
                    await asyncio.sleep(0.01)
                async with follows.running(stand_by_async):
                    while not (found := (await client.read("sync")).candidates):
                        await asyncio.sleep(0.01)
                    assert [stands.holder for stands in found] == ["next"]
                    resigned = clock.now()
                    assert await first.resign()
                    while not follows.is_leader:
                        await asyncio.sleep(0.001)
                    seconds = took(resigned)
                    assert other.is_leader
                    assert {one.holder for one in await first.leaders()} >= {"next", "other"}
            assert (await client.read("sync")).holdings == ()
        return seconds

    assert asyncio.run(scenario()) < 2


@SHARING
def test_permits_that_two_candidates_count_differently_are_refused_with_both_numbers(
    every_store: str,
) -> None:
    term = candidate(every_store, "a", 3).campaign()
    fewer, more = candidate(every_store, "b", 2), candidate(every_store, "c", 4)
    for other, timeout in ((fewer, 0), (fewer, 20), (more, 0), (more, 20)):
        with pytest.raises(ConfigError, match=rf"3 permits, and we ask with {other.permits}"):
            other.campaign(timeout)
        assert not other.is_leader
    assert leading(more) == ["a"]
    assert term.release()
    with more.lead():
        assert leading(fewer) == ["c"]


@pytest.mark.parametrize("fair", [False, True])
def test_never_more_lead_than_there_are_permits_and_all_come_to_lead(
    engine: FaultyEngine, *, fair: bool
) -> None:
    led: list[int] = []
    full = threading.Barrier(3)

    def work(term: Term) -> None:
        led.append(len(incumbent.Client(engine).read("sync").holdings))
        if term.holder in {"c0", "c1", "c2"}:
            full.wait(60)

    def stand(number: int) -> None:
        candidate(engine, f"c{number}", fair=fair).run(work)

    for group in (range(3), range(3, 12)):
        threads = [threading.Thread(target=stand, args=(number,)) for number in group]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
    assert len(led) == 12
    assert max(led) <= 3


def test_a_leader_that_lost_its_seat_stands_again_and_the_others_lead_on(
    engine: FaultyEngine,
) -> None:
    revoked: list[incumbent.LeaseLost | None] = []
    losing = candidate(engine, "a", 2, on_revoked=revoked.append)
    with candidate(engine, "b", 2).lead() as term, losing.running(stand_by):
        lost = eventually(lambda: losing.term)
        assert lost
        belief = lost.belief
        engine.faulty.give(belief.key, belief.claim_id, None, clock.now() + 30)
        with pytest.raises(incumbent.LeaseLost):
            lost.renew()
        assert eventually(lambda: losing.term).number > term.number  # type: ignore[union-attr]  # it is there then
        assert term.renew() > 0
    eventually(lambda: len(revoked) == 2)
    assert [why and why.reason for why in revoked] == ["taken", None]


def test_one_seat_is_the_election_that_there_always_was(engine: FaultyEngine) -> None:
    one = candidate(engine, "a", 1, on_leader_change=print)
    assert (one.permits, candidate(engine, "b").permits) == (1, 3)
    with one.lead() as term, incumbent.Client(engine) as client:
        assert [held.permits for held in client.read("sync").holdings] == [None]
        leader = one.leader()
        assert leader
        assert (leader, one.leaders()) == (next(one.observe()), (leader,))
        assert leader.term == term.number
        assert Lock("sync", store=engine).try_acquire() is None
        for permits in (1, 3):
            with pytest.raises(NotAcquired):
                candidate(engine, "b", permits).campaign(0)
    assert (one.leader(), one.leaders()) == (None, ())


def test_what_names_one_leader_is_refused_with_several_permits(engine: FaultyEngine) -> None:
    several = candidate(engine, "a", metadata={"v": "1"})
    asynchronous = AsyncElection("sync", permits=3, store=engine, holder="b")
    asks: list[tuple[str, Callable[[], object]]] = [
        ("leader: 'sync' has 3 permits: ask leaders", several.leader),
        ("observe: 'sync' has 3 permits: ask leaders", several.observe),
        ("leader: 'sync' has 3 permits", lambda: asyncio.run(asynchronous.leader())),
        ("observe: 'sync' has 3 permits", asynchronous.observe),
        ("one of 3 permits cannot be kept for 'b'", lambda: several.transfer("b")),
        ("one of 3 permits cannot be kept", lambda: asyncio.run(asynchronous.transfer("a"))),
    ]
    with several.lead() as term:
        for words, ask in asks:
            with pytest.raises(Misuse, match=words):
                ask()
        assert engine.faulty.calls == {"take": 1}
        assert [one.metadata for one in asyncio.run(asynchronous.leaders())] == [{"v": "1"}]
        term.check()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        *(
            ({"permits": bad}, "a number from 1 to 10,000")
            for bad in (0, -1, 10_001, 2.0, True, "2")
        ),
        ({"permits": None}, "permits=None: a number"),
        ({"permits": 2, "priority": 0}, "priority is for one leader, and permits=2 has several"),
        ({"permits": 2, "on_leader_change": print}, "on_leader_change is for one leader"),
        ({"permits": 2, "at_least_for": 5}, "a shared lease has others inside"),
        ({"permits": 2, "once_per": "1h"}, "a shared lease has others inside"),
        ({"permits": 2, "reentrant": True}, "only a Lock can be entered again"),
    ],
    ids=str,
)
def test_permits_that_cannot_be_are_refused_when_the_election_is_built(
    engine: FaultyEngine, settings: dict[str, Any], words: str
) -> None:
    named = "permits" if len(settings) == 1 else list(settings)[1]
    with incumbent.Client(engine) as client:
        builds: list[Callable[[], object]] = [
            lambda: Election("sync", store=engine, **settings),
            lambda: AsyncElection("sync", store=engine, **settings),
            lambda: client.election("sync", **settings),
        ]
        for build in builds:
            with pytest.raises(ConfigError, match=words) as refused:
                build()
            assert refused.value.name == named
    assert engine.faulty.calls == {}


def test_a_store_of_one_holder_refuses_permits_and_has_elections(engine: FaultyEngine) -> None:
    engine.capabilities = Capabilities(shared=False)
    with pytest.raises(ConfigError, match=r"leases of one holder only.* an election with permits"):
        candidate(engine, "a", 2)
    with candidate(engine, "a", 1).lead() as term:
        term.check()


def test_one_of_several_permits_that_is_empty_is_no_time_without_a_leader(
    engine: FaultyEngine,
) -> None:
    def names(election: Election) -> set[str]:
        return {sample.metric for sample in election.samples()}

    several = candidate(engine, "a", 2)
    with ExitStack() as permits:
        permits.enter_context(candidate(engine, "b", 2).lead())
        with several.lead(timeout=0):
            assert "incumbent_is_leader" in names(several)
        assert "incumbent_leaderless_seconds_total" not in names(several)
    assert names(candidate(engine, "c", 1)) - names(several) == {
        "incumbent_leaderless_seconds_total"
    }
