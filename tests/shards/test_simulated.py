"""Shards over members in virtual time: never two, seldom none, and as soon as they should be.

INCUMBENT_SIM_SEED moves the seeds.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import pytest

from incumbent.errors import ConfigError
from incumbent.protocol.roster import shards_of
from tests import tiers
from tests.shards.simulated import CALM, GROUP, LOSSY, Member, World
from tests.sim.profiles import Profile

pytestmark = [pytest.mark.slow, pytest.mark.left(tiers.SEEDS, "small", "")]

FIRST = int(os.environ.get("INCUMBENT_SIM_SEED", "0"))
TTL, EVERY = 15.0, 3.0
SLACK = 0.25
"""Seconds for requests on their way, and for a clock that is as wrong as it may be."""


class Size(NamedTuple):
    seed: int
    shards: int = 1_000
    members: int = 50


SMALL = Size(FIRST, 200, 20)
SIZES = [pytest.param(SMALL, id="small"), *(Size(FIRST + more) for more in range(3))]


@contextmanager
def world(profile: Profile, size: Size, way: float = 0.002) -> Iterator[World]:
    made = World(profile, size.seed, size.shards, size.members, way)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("size", SIZES)
def test_members_that_come_leave_no_shard_vacant_for_a_renewal_interval(size: Size) -> None:
    with world(CALM, size) as fleet:
        fleet.everybody(Member.join, 20.0)
        fleet.play(30.0)
        assert fleet.is_settled()
        assert fleet.longest("released") <= EVERY
        assert fleet.longest("lost") == 0.0


@pytest.mark.parametrize("size", SIZES)
def test_the_shards_of_the_dead_are_vacant_for_a_ttl_at_most(size: Size) -> None:
    with world(CALM, size) as fleet:
        fleet.everybody(Member.join, 5.0)
        for member in fleet.rng.sample(fleet.members, 3):
            fleet.at(20.0, member.crash)
        fleet.play(40.0)
        assert fleet.is_settled()
        assert 5.0 < fleet.longest("crashed") <= TTL + SLACK
        assert fleet.longest("released") <= EVERY


@pytest.mark.parametrize("size", SIZES)
def test_three_neighbours_that_die_at_once_are_found_out_as_soon(size: Size) -> None:
    with world(CALM, size) as fleet:
        fleet.everybody(Member.join, 5.0)
        neighbours = sorted(fleet.members, key=lambda member: member.name)[10:13]
        for member in neighbours:
            fleet.at(20.0, member.crash)
        fleet.play(40.0)
        assert fleet.is_settled()
        assert fleet.longest("crashed") <= TTL + SLACK


@pytest.mark.parametrize("size", SIZES)
def test_one_that_looks_after_the_dead_and_is_frozen_delays_only_its_own_shards(size: Size) -> None:
    with world(CALM, size) as fleet:
        fleet.everybody(Member.join, 5.0)
        frozen, dead = sorted(fleet.members, key=lambda member: member.name)[10:12]
        fleet.at(20.0, dead.crash)
        fleet.at(28.0, frozen.freeze, 60.0)
        fleet.play(28.0)
        living = {f"@{member.name}" for member in fleet.members if member is not dead}
        delayed = shards_of(f"@{frozen.name}", GROUP.name, fleet.count, living)
        fleet.play(38.0)
        others = [one for one in fleet.vacancies if one.after == "crashed"]
        assert others
        assert max(one.until - one.since for one in others) <= TTL + SLACK
        assert {shard for shard, (_, how) in fleet._vacant.items() if how == "crashed"} <= delayed


@pytest.mark.parametrize("size", SIZES)
def test_who_leaves_hands_over_within_a_renewal_interval(size: Size) -> None:
    with world(CALM, size) as fleet:
        fleet.everybody(Member.join, 5.0)
        # Apart from each other: what went to one that leaves too is vacant for longer.
        for turn, member in enumerate(fleet.members[:4]):
            fleet.at(16.0 + 5 * turn, member.leave)
        fleet.play(36.0)
        assert fleet.is_settled()
        assert fleet.longest("released") <= EVERY
        assert fleet.longest("lost") == 0.0


@pytest.mark.parametrize("size", SIZES)
def test_only_the_shards_of_who_comes_and_goes_move(size: Size) -> None:
    with world(CALM, size) as fleet:
        *first, last = fleet.members
        for member in first:
            fleet.at(5.0 * fleet.rng.random(), member.join)
        fleet.play(20.0)
        before = holdings(fleet)
        last.join()
        fleet.play(30.0)
        assert {to for number, to in holdings(fleet).items() if to is not before[number]} == {last}
        last.leave()
        fleet.play(40.0)
        assert holdings(fleet) == before


def test_who_comes_is_seen_within_a_renewal_interval_though_the_store_tells_nothing() -> None:
    with world(replace(CALM, lost_hints=1.0), SMALL) as fleet:
        *first, last = fleet.members
        for member in first:
            fleet.at(5.0 * fleet.rng.random(), member.join)
        fleet.play(20.0)
        last.join()
        fleet.play(20.0 + EVERY + SLACK)
        assert all(f"@{last.name}" in member.roster.members for member in first)
        # And the next try for each of its shards.
        fleet.play(20.0 + EVERY + SLACK + 1.0)
        assert fleet.is_settled()


def holdings(fleet: World) -> dict[int, Member]:
    return {number: member for number, (member,) in fleet.holders().items()}


FAULTS: dict[str, Callable[[Member], object]] = {
    "freezes": Member.stall,
    "is cut off": lambda member: member.cut_off(2 * TTL * member.world.rng.random()),
    "crashes": Member.crash,
    "leaves": Member.leave,
}


@pytest.mark.parametrize("size", SIZES)
def test_whatever_befalls_members_and_network_no_shard_has_two_and_all_have_one_in_the_end(
    size: Size,
) -> None:
    """The judge looks at every grant and every proof; a world ends where a rule is broken."""
    with world(LOSSY, size._replace(shards=300, members=20), way=0.02) as fleet:
        fleet.everybody(Member.join, 20.0)
        for member in fleet.members:
            for act in fleet.rng.sample([*FAULTS.values()], fleet.rng.randint(0, 2)):
                fleet.at(10.0 + 60.0 * fleet.rng.random(), act, member)
        fleet.play(110.0)
        # Then the network is well.
        fleet.network._likely = CALM.fates
        fleet.play(110.0 + 3 * TTL)
        assert fleet.is_settled()
        assert sum(map(len, fleet.begins.values())) > 300


@pytest.mark.parametrize("size", SIZES)
def test_a_store_that_is_a_tenth_of_a_second_away_settles_too(size: Size) -> None:
    with world(CALM, size._replace(shards=1_000, members=10), way=0.1) as fleet:
        fleet.everybody(Member.join, 20.0)
        fleet.play(60.0)
        assert fleet.is_settled()
        assert fleet.longest("lost") == 0.0


def test_a_member_that_is_struck_although_it_lives_comes_back() -> None:
    with world(CALM, Size(FIRST, 50, 3)) as fleet:
        fleet.everybody(Member.join, 1.0)
        fleet.play(10.0)
        fleet.server.put(GROUP, "@m-1", None, None)
        fleet.play(20.0)
        assert fleet.is_settled()
        assert fleet.members[1].bodies


def test_one_that_reckons_with_another_number_has_no_shard() -> None:
    with world(CALM, Size(FIRST, 50, 3)) as fleet:
        odd = fleet.members[2]
        odd.roster.note = b"49"
        for member in fleet.members[:2]:
            member.join()
        fleet.play(5.0)
        with pytest.raises(ConfigError, match="and 49 here: all members need the same number"):
            odd.join()
            fleet.play(10.0)
        fleet.play(15.0)
        assert not odd.bodies
        first = fleet.members[0]
        assert [*first.roster.members] == ["@m-0", "@m-1"]
        assert {*first.bodies} == shards_of("@m-0", "orders", 50, ["@m-0", "@m-1"])
