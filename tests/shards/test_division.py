"""Which member has which shard: decided alike by all who see the same members."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incumbent.errors import ConfigError
from incumbent.protocol.roster import SHARDS_MOST, check_count, circle, members_by_shard, shards_of

NAMES = st.text("@abcdef:-0123456789", min_size=1, max_size=12)
GROUPS = st.sets(NAMES, min_size=1, max_size=12)
COUNTS = st.integers(1, 200)


def division(members: set[str], count: int, name: str = "orders") -> dict[int, str]:
    return dict(enumerate(members_by_shard(name, count, tuple(sorted(members)))))


@given(GROUPS, COUNTS)
def test_every_shard_has_one_member_of_those_there_are(members: set[str], count: int) -> None:
    parts = {member: shards_of(member, "orders", count, members) for member in members}
    assert sorted(number for part in parts.values() for number in part) == [*range(count)]


@given(GROUPS, NAMES, COUNTS)
def test_who_comes_takes_shards_and_nothing_else_moves(
    members: set[str], new: str, count: int
) -> None:
    before, after = division(members, count), division(members | {new}, count)
    assert {after[number] for number in before if after[number] != before[number]} <= {new}


@given(GROUPS, NAMES, COUNTS)
def test_who_goes_leaves_its_shards_and_nothing_else_moves(
    members: set[str], gone: str, count: int
) -> None:
    stay = members - {gone} or {"stays"}
    before, after = division(stay | {gone}, count), division(stay, count)
    assert {before[number] for number in before if after[number] != before[number]} <= {gone}


@given(GROUPS, COUNTS)
def test_who_is_no_member_has_nothing(members: set[str], count: int) -> None:
    assert shards_of("nobody", "orders", count, members - {"nobody"}) == frozenset()


def test_all_processes_say_the_same() -> None:
    """Whatever the seed of their hashes: what is written here must never change."""
    members = "('@a', '@b', '@c')"
    asked = "from incumbent.protocol.roster import members_by_shard"
    said = f"{asked}; print(*members_by_shard('orders', 12, {members}))"
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", said],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split() == EXPECTED


EXPECTED = ["@b", "@a", "@b", "@b", "@a", "@b", "@a", "@c", "@c", "@c", "@a", "@a"]


def test_two_names_are_divided_differently() -> None:
    members = {f"@{number}" for number in range(8)}
    assert division(members, 64) != division(members, 64, "invoices")


def test_it_is_as_uneven_as_the_page_says() -> None:
    """Of 100 groups: 64 shards over 8 members, and 1,000 over 50."""
    assert spread(64, 8) == SPREAD_64
    assert spread(1_000, 50) == SPREAD_1000


def spread(count: int, many: int) -> tuple[int, int]:
    """The least and the most shards of a member, in the median group."""
    least, most = [], []
    for group in range(100):
        members = tuple(sorted(f"@host-{group}-{number}" for number in range(many)))
        sizes = Counter(members_by_shard("orders", count, members))
        least.append(min(sizes[member] for member in members))
        most.append(max(sizes.values()))
    return sorted(least)[50], sorted(most)[50]


SPREAD_64 = (4, 12)
SPREAD_1000 = (11, 31)


@given(GROUPS, NAMES)
def test_each_looks_first_after_the_next_in_the_circle(members: set[str], me: str) -> None:
    order = circle(me, members)
    assert sorted(order) == sorted(members - {me})
    if order:
        later = [member for member in members if member > me]
        assert order[0] == min(later or members - {me})


@pytest.mark.parametrize("count", [0, -1, SHARDS_MOST + 1])
def test_a_number_of_shards_that_cannot_be_is_refused_with_it(count: int) -> None:
    with pytest.raises(ConfigError, match=rf"count={count}: 1 to {SHARDS_MOST} shards"):
        check_count(count)


@pytest.mark.parametrize("count", ["64", 6.4, None, True])
def test_what_is_no_number_of_shards_is_refused(count: object) -> None:
    with pytest.raises(ConfigError, match="a number of shards, not"):
        check_count(count)
