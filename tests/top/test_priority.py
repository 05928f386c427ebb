"""Priorities: who leads in the end, for how long a term lasts at least, and how often one asks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from incumbent import AsyncElection, Client, ConfigError, Election, clock
from incumbent.election import PRIORITY, Leader, Priority, rank_of, with_rank
from incumbent.locks.options import lease_request
from incumbent.model import ABSENT, ByVersion, Field, Holding, Key, Record, Refused
from incumbent.protocol.observe import Preemption
from incumbent.rules.notices import RESIGN, encode_notice
from incumbent.stores.memory import MemoryEngine
from incumbent.supervise.candidate import CandidateLock as LeadCandidate
from tests import tiers
from tests.support.waiting import eventually
from tests.top.priorities import Fleet

KEY = Key("default", "a")
TTL = 15.0
HOUR = 3600.0


def check(fleet: Fleet) -> None:
    """What holds in every fleet, whatever happens."""
    by_name = {term.leader.name: term.leader for term in fleet.terms}
    for term, following in pairwise(fleet.terms):
        assert term.ended is not None
        assert term.ended <= following.began, "two lead together"
        if term.notice is None:
            continue
        priority = term.leader.priority
        assert priority is not None, "one without a priority was asked"
        assert term.ended - term.began >= term.leader.step_down_after - 1e-6
        winner = by_name.get(term.notice.to)
        if winner is not None:
            assert winner.priority is not None
            assert winner.priority > priority
        if winner is not None and winner.leaves > term.ended + 1:
            assert following.leader is winner
            assert following.began - term.ended < 1
    apart(fleet.asked)
    apart(fleet.looked)


def apart(requests: list[Any]) -> None:
    """A renewal interval lies between two requests of one candidate about one term."""
    for by in {tuple(by) for _, *by in requests}:
        instants = [instant for instant, *other in requests if tuple(other) == by]
        every = by[0].wanted.policy.renew_every
        assert all(later - earlier >= every - 1e-6 for earlier, later in pairwise(instants))


def test_the_highest_leads_in_the_end_and_then_nobody_asks_again() -> None:
    fleet = Fleet()
    for number, priority in enumerate([3, 1, 7, 7, 2]):
        fleet.join(f"c{number}", priority, joins=number * 0.5)
    fleet.play()
    check(fleet)
    leaders = [term.leader.priority for term in fleet.terms]
    assert leaders[0] == 3
    assert leaders[-1] == 7
    assert len(leaders) <= 3
    assert fleet.terms[-1].began < 3 * TTL
    # The second of the two highest never asks, nor does the leader's equal.
    assert all(instant < 4 * TTL for instant, _ in fleet.asked)


def test_leadership_passes_to_the_highest_after_the_hold_off_and_not_before() -> None:
    fleet = Fleet()
    fleet.join("small", 1, step_down_after=100.0)
    fleet.join("big", 10, joins=20.0)
    fleet.play()
    check(fleet)
    first, second = fleet.terms
    assert 100.0 <= (first.ended or 0.0) - first.began < 100.0 + TTL
    assert (second.leader.name, second.ended) == ("big", HOUR)


def test_a_candidate_that_comes_late_does_not_wait_for_the_hold_off_again() -> None:
    fleet = Fleet()
    fleet.join("small", 1, step_down_after=100.0)
    fleet.join("big", 10, joins=1000.0)
    fleet.play()
    assert 1000.0 < fleet.terms[1].began < 1000.0 + TTL


def test_a_machine_that_crashes_again_and_again_takes_over_once_a_hold_off() -> None:
    fleet = Fleet()
    fleet.join("steady", 1, step_down_after=120.0, leaves=10 * HOUR)
    fleet.join("broken", 9, joins=1.0, lasts=5.0, leaves=10 * HOUR)
    fleet.play()
    check(fleet)
    steady = [term for term in fleet.terms if term.leader.name == "steady"]
    handed = [term for term in steady if term.notice is not None]
    assert len(handed) > 50
    assert all((term.ended or 0.0) - term.began > 119.999 for term in handed)
    assert len(fleet.terms) <= 2 * (10 * HOUR / 120.0) + 2


def test_a_leader_without_a_priority_is_never_asked_and_one_without_never_asks() -> None:
    fleet = Fleet()
    fleet.join("plain", None, leaves=HOUR / 2)
    fleet.join("big", 10, joins=1.0)
    fleet.join("other", None, joins=2.0)
    fleet.play()
    check(fleet)
    assert fleet.terms[0].leader.name == "plain"
    assert fleet.terms[0].notice is None
    assert not fleet.asked


def test_of_two_that_ask_the_same_leader_the_higher_one_follows() -> None:
    fleet = Fleet()
    fleet.join("low", 1)
    fleet.join("middle", 5, joins=1.0)
    fleet.join("high", 9, joins=2.0)
    fleet.play()
    check(fleet)
    assert [term.leader.name for term in fleet.terms][-1] == "high"
    assert len(fleet.terms) <= 3


def ask_to_go(fleet: Fleet, **said: Any) -> None:
    (holding,) = fleet.table.read(KEY, fleet.now).holdings
    value = encode_notice(token=holding.token, **said)
    fleet.table.put(KEY, RESIGN, value, None, fleet.now)


def test_an_operators_request_is_not_written_over() -> None:
    fleet = Fleet()
    fleet.join("low", 1)
    fleet.join("chosen", 0, joins=1.0)
    fleet.join("high", 9, joins=2.0)
    # Between two renewals of the leader, and just before its hold-off is over.
    fleet.at(29.9, lambda: ask_to_go(fleet, who="an operator", to="chosen"))
    fleet.play()
    assert next(term.notice.who for term in fleet.terms if term.notice) == "an operator"
    assert [term.leader.name for term in fleet.terms] == ["low", "chosen", "high"]


def test_a_request_of_a_lower_candidate_is_written_over_and_one_of_a_higher_is_not() -> None:
    wanted = lease_request("default", "a", MemoryEngine.capabilities, holder="me")
    rank = Priority(5, 30.0)
    theirs = with_rank(b"", Priority(1, 30.0))
    holding = Holding("them", 7, 15.0, 15.0, 60.0, theirs)
    refused = Refused("held", (holding,))

    def decide(before: bytes | None = None) -> object:
        challenge = Preemption(wanted, rank)
        assert challenge.is_due(refused, 100.0)
        fields = {} if before is None else {RESIGN: Field(before, 3)}
        decided = challenge.decide(Record(wanted.key, (holding,), fields=fields), 100.0)
        return None if decided is None else decided[1]

    assert decide() == ABSENT
    assert decide(encode_notice(token=7, to="low", priority=4)) == ByVersion(3)
    assert decide(encode_notice(token=6, to="low")) == ByVersion(3)
    assert decide(b"what nobody can read") == ByVersion(3)
    assert decide(encode_notice(token=7, to="equal", priority=5)) is None
    assert decide(encode_notice(token=7, to="high", priority=6)) is None
    assert decide(encode_notice(token=7, who="an operator")) is None
    assert decide(encode_notice(token=7, kind="break")) is None


def test_a_store_that_does_not_answer_the_question_is_asked_again_after_an_interval() -> None:
    fleet = Fleet(away=lambda now: now < 200.0)
    fleet.join("small", 1)
    fleet.join("big", 10, joins=1.0)
    fleet.play()
    check(fleet)
    assert 200.0 < fleet.terms[1].began < 200.0 + TTL
    assert fleet.terms[1].leader.name == "big"


STANDS = st.tuples(
    st.none() | st.integers(0, 4),
    st.floats(0, 600),
    st.floats(1, 1200),
    st.sampled_from([1e9, 5.0, 40.0]),
    st.sampled_from([None, 15.0, 200.0]),
)


@settings(max_examples=60)
@given(st.lists(STANDS, min_size=2, max_size=6), st.integers(0, 1000))
def test_whatever_the_fleet_the_rules_hold(
    fleet_of: list[tuple[int | None, float, float, float, float | None]], seed: int
) -> None:
    fleet = Fleet(seed=seed)
    for number, (priority, joins, stays, lasts, after) in enumerate(fleet_of):
        fleet.join(
            f"c{number}",
            priority,
            joins=joins,
            leaves=joins + stays,
            lasts=lasts,
            step_down_after=None if priority is None else after,
        )
    fleet.play()
    check(fleet)


# -- what the record says ----------------------------------------------------------------------


def test_followers_do_not_see_the_priority_as_metadata() -> None:
    election = Election("a", store="memory:priority-1", metadata={"at": "x"}, priority=7)
    with election.lead():
        leader = election.leader()
        assert leader is not None
        assert (leader.metadata, leader.priority) == ({"at": "x"}, 7)
        election.proclaim({"at": "y"})
        leader = election.leader()
        assert leader is not None
        assert (leader.metadata, leader.priority) == ({"at": "y"}, 7)
    assert Leader("a", 1, {}, b'{"at":"x"}').priority is None


@given(st.binary(max_size=40) | st.text(max_size=20).map(lambda text: f'{{"{PRIORITY}":"{text}"}}'))
def test_what_others_wrote_is_read_without_an_error(raw: bytes | str) -> None:
    rank_of(raw if isinstance(raw, bytes) else raw.encode())


def test_metadata_that_is_no_mapping_goes_without_a_priority() -> None:
    with pytest.raises(ConfigError, match="metadata is a mapping then"):
        Election("a", store="memory:", metadata=b"\x00\x01", priority=1)
    with pytest.raises(ConfigError, match="is said by priority="):
        Election("a", store="memory:", metadata={PRIORITY: "9 9"})
    with pytest.raises(ConfigError, match="bytes, at most 1024"):
        Election("a", store="memory:", metadata={"a": "x" * 1010}, priority=1)
    assert with_rank(b"x", None) == b"x"


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("priority", [True, False, -1, 1_000_001, 1.0, "7", b"7"])
@pytest.mark.parametrize("kind", [Election, AsyncElection, LeadCandidate])
def test_a_priority_that_is_none_is_refused(kind: Any, priority: Any) -> None:
    with pytest.raises(ConfigError, match="a whole number from 0 to 1000000") as caught:
        kind("a", store="memory:", priority=priority)
    assert caught.value.name == "priority"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"step_down_after": 60}, "needs priority"),
        ({"priority": 1, "step_down_after": -1}, "step_down_after=-1 is out of range"),
        ({"priority": 1, "step_down_after": 1}, "it must lie between 15s and"),
        ({"priority": 1, "step_down_after": "soon"}, "step_down_after='soon' is not a duration"),
        ({"priority": 1, "at_least_for": 40}, "at_least_for=40s: after step_down_after=30s"),
        ({"priority": 1, "once_per": 40}, "once_per: after step_down_after=30s"),
    ],
)
def test_a_hold_off_that_cannot_work_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        Election("a", store="memory:", **more)
    assert caught.value.name == "step_down_after"


def test_a_store_that_knows_no_candidates_takes_no_priority(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    can = replace(MemoryEngine.capabilities, candidates=False)
    monkeypatch.setattr(MemoryEngine, "capabilities", can)
    Election("a", store="memory:no-candidates")
    with pytest.raises(ConfigError, match="keeps no list of candidates"):
        Election("a", store="memory:no-candidates", priority=1)


# -- on each store -------------------------------------------------------------------------------


@pytest.mark.left(tiers.STORES, "redis")
def test_the_preferred_one_takes_over_from_a_leader_that_ends_its_work(every_store: str) -> None:
    begun: list[Any] = []
    ends: list[bool] = []

    def work(term: Any) -> None:
        begun.append(term)
        term.wait_stop()
        ends.append(term.lost)

    few: dict[str, Any] = {"store": every_store, "ttl": 3, "step_down_after": 4}
    small = Election("a", holder="small", priority=1, **few)
    big = Election("a", holder="big", priority=10, **few)
    # Before the term: a busy machine may see the leader long after its term began.
    began = clock.now()
    with Client(every_store) as client, small.running(work):
        eventually(lambda: small.is_leader)
        with big.running(work):
            eventually(lambda: big.is_leader)
            # As the store counts it, from when the take came in.
            assert clock.now() - began > 3.9
            leader = big.leader()
            assert leader is not None
            assert (leader.holder, leader.priority) == ("big", 10)
            eventually(lambda: "small" in [one.holder for one in client.read("a").candidates])
            number = leader.term
            # Longer than the hold-off: the lower one does not ask.
            eventually(lambda: (client.read("a").holdings[0].held_for or 0.0) > 5)
            assert big.is_leader
            assert client.read("a").holdings[0].token == number
        # A leader has its term before its work has begun.
        eventually(lambda: len(begun) == 3)
    assert ends == [True, False, False]


def test_coroutines_are_cancelled_and_awaited_before_the_preferred_one_leads() -> None:
    few: Any = {"store": "memory:priority-async", "ttl": 3, "step_down_after": 3}
    log: list[str] = []

    async def work_of(name: str) -> None:
        log.append(f"{name} begins")
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            log.append(f"{name} has ended")

    async def scenario() -> None:
        small = AsyncElection("a", holder="small", priority=1, **few)
        big = AsyncElection("a", holder="big", priority=2, **few)
        async with small.running(lambda _: work_of("small")):
            while not small.is_leader:
                await asyncio.sleep(0.01)
            async with big.running(lambda _: work_of("big")):
                while not big.is_leader:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)

    asyncio.run(asyncio.wait_for(scenario(), 30))
    assert log[:3] == ["small begins", "small has ended", "big begins"]
