"""Directed histories: each rule of the quorum in the situation that it is for, and without it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from incumbent.errors import OutcomeUnknown
from incumbent.model import Parting
from incumbent.stores.quorum import take
from incumbent.stores.quorum.ballots import No
from tests.quorum.bugs import Bugs, planted
from tests.quorum.claimant import TTL
from tests.quorum.node import LONGEST, SECOND, Kept, Node, Plant, Take
from tests.quorum.stage import KEY, Actor, Stage


@contextmanager
def stage(count: int, *bugs: str, ahead: Sequence[float] = ()) -> Iterator[Stage]:
    with planted(Bugs.named(*bugs)):
        yield Stage(count, Bugs.named(*bugs), ahead)


def two_tokens_of_a_claim_that_asked_twice(*bugs: str) -> tuple[int, int]:
    """The first answers are lost; then nodes have the claim with the ballots of either try."""
    with stage(3, *bugs) as world:
        first, second = Actor(world, "first"), Actor(world, "second", late_by=1.6)
        assert not first.take({0, 1}, unheard={0, 1})
        world.wait_until(0.5)
        token = first.take({0, 2})
        world.wait_until(1.7)
        # Its ballot is between the two of the first.
        return token, second.take({0, 1})


def test_a_claim_that_asked_twice_has_a_token_below_the_next_one() -> None:
    token, following = two_tokens_of_a_claim_that_asked_twice()
    assert 0 < token < following


def test_a_vote_at_another_ballot_counted_lets_the_token_shrink() -> None:
    token, following = two_tokens_of_a_claim_that_asked_twice("the same claim is mine")
    assert 0 < following < token


def both_believe_after_two_of_five_lost_their_data(*bugs: str) -> bool:
    """A bare majority of which two are wiped; what it plants elsewhere never arrives."""
    with stage(5, *bugs) as world:
        holder, other = Actor(world, "holder"), Actor(world, "other")
        assert holder.take({0, 1, 2})
        world.wait_until(0.1)
        world.wipe(1, 2)
        holder.deaf_to = "plant"
        for at in (0.3, 0.6, 0.9):
            world.wait_until(at)
            holder.renew({0, 1, 2, 3, 4})
        world.wait_until(0.1 + TTL + 0.02)
        assert other.take({1, 2, 3})
        return holder.believes and other.believes


def test_a_renewal_without_a_majority_ends_the_lease_whatever_could_be_planted() -> None:
    assert not both_believe_after_two_of_five_lost_their_data()


def test_a_renewal_that_counts_what_it_will_plant_lets_two_believe() -> None:
    assert both_believe_after_two_of_five_lost_their_data("plants without a majority")


def both_believe_after_a_late_taking_back(*bugs: str) -> bool:
    """A split vote is taken back, and asked for again before the nodes hear of that."""
    with stage(3, *bugs) as world:
        holder, other = Actor(world, "holder", late="revoke"), Actor(world, "other")
        taken = Take("a third", world.unix_us, SECOND // 10, "m", 0)
        world.nodes[0].handle(taken, world.unix_us)
        assert not holder.take({0, 1, 2}, unheard={2})
        world.wait_until(0.3)
        assert holder.take({1, 2})
        holder.arrive()
        other.take({0, 1, 2})
        return holder.believes and other.believes


def test_a_vote_that_is_being_taken_back_does_not_count() -> None:
    assert not both_believe_after_a_late_taking_back()


def test_a_vote_that_is_being_taken_back_counted_lets_two_believe() -> None:
    assert both_believe_after_a_late_taking_back("what is being taken back counts")


@pytest.mark.parametrize("bug", ["", "ballots of its own clock"])
def test_a_process_whose_own_clock_is_wrong_is_granted_by_the_nodes_clocks(bug: str) -> None:
    with stage(3, bug) as world:
        assert bool(Actor(world, "fast").take({0, 1, 2})) == (not bug)


def test_a_take_that_arrives_after_its_claim_was_given_up_is_refused() -> None:
    """Nobody knows whether it was granted, so the give has no token to name."""
    with stage(3) as world:
        actor = Actor(world, "actor", late="take")
        assert not actor.take({0, 1, 2})
        actor.give({0, 1, 2})
        world.wait_until(30)
        actor.arrive()
        assert all(node.data.lease is None for node in world.nodes)
        assert Actor(world, "other").take({0, 1, 2})


def two_tokens_over_losses_one_at_a_time(*bugs: str) -> tuple[int, int]:
    """The first clock is 25 s ahead. Node 3 is down, node 2 loses its data, then node 1 is down."""
    with stage(3, *bugs, ahead=(25, 0, 0)) as world:
        first = Actor(world, "first", hears={0, 1})
        token = first.take({0, 1})
        first.give({0, 1})
        world.wait_until(5)
        world.wipe(1)
        world.wait_until(12.4)
        second = Actor(world, "second", hears={1, 2})
        return token, second.take({1, 2})


def test_tokens_grow_over_losses_one_at_a_time_with_a_clock_ahead() -> None:
    token, following = two_tokens_over_losses_one_at_a_time()
    assert 0 < token < following


def test_without_a_floor_from_its_birth_a_wiped_node_lets_the_token_shrink() -> None:
    token, following = two_tokens_over_losses_one_at_a_time("old floor")
    assert token - following == 12_600_000


def test_a_wiped_node_whose_clock_is_ahead_is_waited_for_and_no_longer() -> None:
    """Its floor is a minute ahead of its clock, which is 25 s ahead of the only other one's."""
    with stage(3, ahead=(0, 25, 0)) as world:
        world.wait_until(5)
        world.wipe(1)
        world.wait_until(20)
        for late, hears in ((False, {1, 2}), (False, {0, 1, 2}), (True, {1, 2}), (True, {0, 1, 2})):
            if late:
                world.wait_until(30.1)
            actor = Actor(world, f"{late}-{len(hears)}", hears=hears)
            token = actor.take({1, 2})
            actor.give({1, 2})
            # Wiped at 5 s: until 30 s the other one refuses a ballot above that floor.
            assert bool(token) == late
            assert late or actor.refused_for == pytest.approx(10, abs=0.1)
            assert actor.rounds_made <= 4


def test_a_take_waits_for_votes_that_come_within_its_own_time() -> None:
    """The same node, 50 ms before the other one admits that floor; a take has 100 ms."""
    with stage(3, ahead=(0, 25, 0)) as world:
        world.wait_until(5)
        world.wipe(1)
        world.wait_until(29.95)
        actor = Actor(world, "actor", hears={1, 2})
        assert actor.take({1, 2}) > 0
        assert world.heap.time == pytest.approx(30, abs=0.01)
        assert actor.rounds_made <= 4


def test_a_take_does_not_wait_for_a_node_that_is_too_new() -> None:
    """Who asks hears of it at once, with the seconds it takes."""
    with stage(3) as world:
        world.wait_until(5)
        world.wipe(0, 1)
        world.wait_until(5.95)
        actor = Actor(world, "actor")
        assert not actor.take({0, 1, 2})
        assert actor.refused_for == pytest.approx(0.05, abs=0.01)
        assert world.heap.time == pytest.approx(5.95)


def both_believe_after_a_holder_with_a_longer_ttl_was_cut_off(
    ttl: float, before: float, restart_wait: float | None
) -> bool:
    """Its majority is nodes 1 and 2, of which 2 loses its data. Somebody asks with a ttl of 2 s."""
    with stage(3) as world:
        earlier = Actor(world, "earlier", ttl=before, restart_wait=None)
        earlier.take({0, 1, 2})
        earlier.give({0, 1, 2})
        world.wait_until(1)
        holder = Actor(world, "holder", ttl=ttl, restart_wait=None)
        assert holder.take({0, 1})
        world.wipe(1)
        at, token = 1.0, 0
        while not token:
            at += 0.5
            world.wait_until(at)
            asker = Actor(world, f"asker-{at}", hears={1, 2}, ttl=2.0, restart_wait=restart_wait)
            token = asker.take({1, 2})
        return holder.believes


@pytest.mark.parametrize(("ttl", "before"), [(14.0, 2.0), (20.0, 20.0)])
def test_a_wiped_node_waits_for_who_may_still_believe(ttl: float, before: float) -> None:
    assert not both_believe_after_a_holder_with_a_longer_ttl_was_cut_off(ttl, before, None)


@pytest.mark.parametrize(("ttl", "before"), [(14.0, 2.0), (20.0, 20.0)])
def test_a_wiped_node_that_waits_for_who_asks_lets_two_believe(ttl: float, before: float) -> None:
    assert both_believe_after_a_holder_with_a_longer_ttl_was_cut_off(ttl, before, 2.0)


def test_a_ttl_that_no_server_in_reach_was_ever_asked_for_is_not_known() -> None:
    """The limit: the third server was away, so `restart_wait` has to say it."""
    assert both_believe_after_a_holder_with_a_longer_ttl_was_cut_off(20.0, 2.0, None)
    assert not both_believe_after_a_holder_with_a_longer_ttl_was_cut_off(20.0, 2.0, 20.0)


NOW = 2_000_000_000 * SECOND


def floor_after_a_plant(bugs: frozenset[str]) -> int:
    """On a node that refused a larger ballot to somebody after the holder's was granted."""
    node = Node(bugs)
    node.data.marker = ("m", 0, LONGEST)
    node.handle(Take("other", NOW + 500, SECOND, "m", 0), NOW)
    node.data.lease = None
    assert node.handle(Plant("holder", NOW + 100, SECOND, "m", 0, NOW + 500), NOW) == 1
    assert node.data.floor is not None
    return int(node.data.floor.value)


def test_planting_keeps_the_floor() -> None:
    assert floor_after_a_plant(frozenset()) == NOW + 500
    assert floor_after_a_plant(frozenset({"planting lowers the floor"})) == NOW + 100


@pytest.mark.parametrize("bug", ["", "plants whatever happened since"])
def test_a_plant_that_comes_after_another_holder_s_term_is_refused(bug: str) -> None:
    node = Node(frozenset({bug}))
    node.data.marker = ("m", 0, LONGEST)
    node.handle(Take("another", NOW + 500, SECOND, "m", 0), NOW)
    node.data.lease = None
    planted_late = node.handle(Plant("holder", NOW + 100, SECOND, "m", 0, None), NOW)
    assert planted_late == (1 if bug else 0)


def test_a_claim_that_gets_no_majority_leaves_no_vote_behind() -> None:
    """One node's floor is far ahead: what it says is not what the others are asked for."""
    with stage(3) as world:
        now, actor = world.unix_us, Actor(world, "actor")
        world.nodes[0].data.floor = Kept(now + 3600 * SECOND, now)
        world.nodes[2].handle(Take("a third", now, SECOND, "m", 0), now)
        assert not actor.take({0, 1, 2})
        for node in world.nodes[:2]:
            assert node.data.lease is None
        world.wait_until(TTL + 0.1)
        assert actor.take({0, 1, 2})


def test_a_vote_that_could_not_be_raised_is_taken_back_all_the_same() -> None:
    refused = No("high", raw=b"incumbent1 claim 1 0 1 1000 claim ")
    assert take._may_hold(refused)
    assert not take._may_hold(No("high"))
    assert not take._may_hold(No("held", raw=b"incumbent1 other 1 0 1 1000 other "))


@pytest.mark.parametrize("unheard", ["promise", "give"])
def test_a_give_of_which_half_was_done_is_not_called_undone(unheard: str) -> None:
    """What it does for the slot comes first; the other half gets no answer, or none is asked."""
    with stage(3) as world:
        actor = Actor(world, "actor")
        token = actor.take({0, 1, 2})
        actor.deaf_to = unheard
        until = world.heap.time + 0.1
        with pytest.raises(OutcomeUnknown, match=r"is given back, .* is not"):
            actor.run(take.give(actor, KEY, actor.claim, token, until, Parting(slot="day")))
