"""Random histories of the quorum never break a rule, and every planted bug breaks one.

What runs are the store's own rounds, on nodes that `test_node.py` holds against the real scripts.
INCUMBENT_QUORUM_HISTORIES sets how many of each profile run here beside a few; `python -m
tests.quorum.simulator` runs more.
"""

from __future__ import annotations

import os
import random
import re

import pytest

from tests import tiers
from tests.quorum.bugs import OF_NODES, PATCHES, Bugs, planted
from tests.quorum.claimant import TTL
from tests.quorum.simulator import COMBINED, PROFILES, Failure, History, run
from tests.quorum.stage import Actor
from tests.quorum.test_stage import stage

# It computes for many seconds, and for a multiple of that on a busy machine.
pytestmark = pytest.mark.timeout(600)

FEW = 4
HISTORIES = int(os.environ.get("INCUMBENT_QUORUM_HISTORIES", "20"))
WITHIN = 600

# In which profile a bug shows, and by what the judge must know it.
CAUGHT = {
    "no born quarantine": ("wipes", "overlap"),
    "no uptime quarantine": ("restarts", "overlap"),
    "a minority is enough": ("network", "overlap|log"),
    "the member list is ignored": ("lists", "overlap"),
    "no limit of ballots": ("clocks", "stuck"),
    "a clock astray is followed": ("clocks", "stuck"),
    "the floor is not stored": ("network", "token"),
    "floors are not looked at": ("network", "token"),
    "old floor": ("combined", "token"),
    "promises are not kept": ("network", "log"),
    "accepts without a promise": ("network", "log"),
    "accepts any state": ("network", "log|slot"),
    "forgetting is not told": ("wipes", "log"),
}
# The seed to begin with, where the first histories are known not to show it.
FIRST = {"no born quarantine": 190, "a clock astray is followed": 50, "old floor": 700}
# What only two faults together make dangerous is shown by directed histories.
DIRECTED = {
    "the same claim is mine",
    "plants without a majority",
    "ballots of its own clock",
    "what is being taken back counts",
    "planting lowers the floor",
    "plants whatever happened since",
}


@pytest.mark.left(tiers.SEEDS, "4-*")
@pytest.mark.slow
@pytest.mark.parametrize("profile", [*PROFILES, COMBINED])
@pytest.mark.parametrize("histories", [FEW, HISTORIES])
def test_no_history_breaks_a_rule(profile: str, histories: int) -> None:
    start = random.SystemRandom().randrange(10**9)
    assert run(profile, range(start, start + histories)) > histories / 2


@pytest.mark.left(tiers.NET, "a minority is enough", "promises are not kept")
@pytest.mark.parametrize("bug", CAUGHT)
def test_a_rule_that_is_left_out_shows(bug: str) -> None:
    (profile, word), first = CAUGHT[bug], FIRST.get(bug, 0)
    with pytest.raises(Failure) as caught:
        run(profile, range(first, first + WITHIN), Bugs.named(bug))
    assert any(re.search(word, said) for said in caught.value.said), caught.value.said


def test_every_bug_has_its_history() -> None:
    assert {*CAUGHT, *DIRECTED} == {*OF_NODES, *PATCHES, "no uptime quarantine"}


def test_a_history_is_the_same_again() -> None:
    with planted(Bugs()):
        tokens = [History(PROFILES["everything"], 7, Bugs()).run().tokens for _ in range(2)]
    assert tokens[0] == tokens[1] != []


@pytest.mark.parametrize("count", [3, 5])
def test_each_node_in_turn_loses_its_data_during_one_term(count: int) -> None:
    with stage(count) as world:
        holder = Actor(world, "holder")
        everybody = range(count)
        token = holder.take(everybody)
        assert token
        for at in range(8 * count):
            world.wait_until(0.25 * (at + 1))
            if at % 8 == 0:
                world.wipe(at // 8)
            assert holder.renew(everybody), at
        assert holder.believes
        assert all(node.data.lease is not None for node in world.nodes)
        assert not Actor(world, "other").take(everybody)


def test_two_nodes_lost_within_one_ttl_end_the_term_of_three() -> None:
    with stage(3) as world:
        holder, other = Actor(world, "holder"), Actor(world, "other")
        assert holder.take(range(3))
        world.wait_until(0.3)
        world.wipe(0, 1)
        assert not holder.renew(range(3))
        assert not other.take(range(3))
        world.wait_until(0.3 + TTL + 0.01)
        assert not holder.believes
        assert other.take(range(3))
