"""The scripts of one node on a real server: each rule, and the same with the rule taken out."""
# ruff: noqa: E501 - each planted bug is one line: where, what, and what instead

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from tests.support.servers import RedisServer
from tests.unit.quorum_node import MARKER, MINUTE, SECOND, Node

pytestmark = pytest.mark.server

# -- rules


def a_free_name_is_voted_for_and_the_ballot_is_the_floor(node: Node) -> None:
    ballot = node.now
    assert node.take("a", ballot) == f"incumbent1 a {ballot}"
    assert node.floor == str(ballot)


def another_claim_gets_no_vote(node: Node) -> None:
    node.take("a", node.now)
    assert node.kind(node.take("b", node.now)) == "held"


def a_ballot_that_is_not_above_the_floor_gets_no_vote(node: Node) -> None:
    ballot = node.now
    node.take("a", ballot)
    node.expire()
    assert [node.kind(node.take("b", it)) for it in (ballot - 1, ballot)] == ["low", "low"]
    assert node.kind(node.take("b", ballot + 1)) == "vote"


def without_a_floor_a_minute_ago_is_the_floor(node: Node) -> None:
    assert node.kind(node.take("a", node.now - MINUTE - SECOND)) == "low"
    assert node.kind(node.take("a", node.now - MINUTE + 5 * SECOND)) == "vote"


def a_ballot_far_ahead_of_the_clock_gets_no_vote(node: Node) -> None:
    assert node.kind(node.take("a", node.now + MINUTE + 5 * SECOND)) == "high"
    assert node.kind(node.take("a", node.now + MINUTE - 5 * SECOND)) == "vote"


def ahead_of_the_clock_the_floor_rises_by_a_second_at_most(node: Node) -> None:
    floor = node.now + 10 * MINUTE
    node.client.set(node.beside, f"{floor} - {(floor // 1000) + 60_000} ")
    assert node.kind(node.take("a", floor + 2 * SECOND)) == "high"
    assert node.kind(node.take("a", floor + SECOND)) == "vote"


def what_the_claim_has_is_told_and_not_voted_for_again(node: Node) -> None:
    first = node.now
    node.take("a", first)
    answer = node.take("a", first + 5)
    assert isinstance(answer, list)
    assert answer[0] == f"incumbent1 a {first}"
    assert node.floor == str(first)


def what_the_claim_has_is_raised_if_asked(node: Node) -> None:
    first = node.now
    node.take("a", first)
    answer = node.take("a", first + 5, up=True)
    assert isinstance(answer, list)
    assert answer[0] == f"incumbent1 a {first + 5}"
    assert node.floor == str(first + 5)
    assert node.renew("a", first + 5) == 1


def what_the_claim_has_is_never_lowered(node: Node) -> None:
    first = node.now
    node.take("a", first)
    assert node.kind(node.take("a", first - 5, up=True)) == "low"
    assert node.renew("a", first) == 1


def a_blank_node_does_not_vote_before_its_time(node: Node) -> None:
    assert node.kind(node.take("a", node.now, wait=5000)) == "young"
    assert node.kind(node.take("a", node.now, wait=5000)) == "young"
    assert node.kind(node.take("a", node.now, wait=0)) == "vote"


def a_node_of_other_members_does_not_vote(node: Node) -> None:
    node.take("a", node.now)
    node.expire()
    assert node.kind(node.take("b", node.now, members="other")) == "members"


def a_vote_that_is_taken_back_leaves_its_ballot_as_the_floor(node: Node) -> None:
    ballot = node.now
    node.take("a", ballot)
    assert node.revoke("a", ballot) == 1
    assert node.floor == str(ballot)
    assert node.kind(node.take("a", ballot)) == "low"


def a_vote_that_comes_after_it_was_taken_back_is_refused(node: Node) -> None:
    ballot = node.now
    assert node.revoke("a", ballot) == 0
    assert node.kind(node.take("a", ballot)) == "low"


def only_what_was_asked_by_then_is_taken_back(node: Node) -> None:
    ballot = node.now
    node.take("a", ballot)
    assert node.revoke("a", ballot - 1) == 0
    assert node.revoke("b", ballot + 1) == 0
    assert node.kind(node.take("b", ballot + SECOND)) == "held"


def a_renewal_needs_exactly_the_token(node: Node) -> None:
    ballot = node.now
    node.take("a", ballot)
    assert [node.renew("a", it) for it in (ballot, ballot + 1, ballot - 1)] == [1, 0, 0]
    assert node.renew("b", ballot) == 0


def a_renewal_tells_of_a_free_place_and_its_floor(node: Node) -> None:
    ballot = node.now
    node.take("a", ballot)
    node.expire()
    assert node.renew("b", ballot) == f"f{ballot}"


def a_blank_node_is_no_place_to_plant(node: Node) -> None:
    assert node.renew("a", node.now, wait="-") == 0
    assert node.renew("a", node.now, wait="0") == "f"


def planting_keeps_a_floor_that_is_higher(node: Node) -> None:
    ballot = node.now
    node.take("b", ballot)
    node.expire()
    assert node.plant("a", ballot - 7, str(ballot)) == 1
    assert node.floor == str(ballot)
    assert node.renew("a", ballot - 7) == 1


def planting_raises_a_floor_that_is_lower(node: Node) -> None:
    ballot = node.now
    node.take("b", ballot)
    node.expire()
    assert node.plant("a", ballot + 7, str(ballot)) == 1
    assert node.floor == str(ballot + 7)


def nothing_is_planted_where_something_happened_since(node: Node) -> None:
    ballot = node.now
    node.take("b", ballot)
    node.expire()
    node.take("c", ballot + 1)
    node.expire()
    assert node.plant("a", ballot - 7, str(ballot)) == 0


def nothing_is_planted_over_another(node: Node) -> None:
    ballot = node.now
    node.take("b", ballot)
    assert node.plant("a", ballot - 7, str(ballot)) == 0
    assert node.renew("b", ballot) == 1


def nothing_is_planted_on_a_node_that_does_not_vote(node: Node) -> None:
    assert node.plant("a", node.now, "") == 0
    node.take("b", node.now, wait=5000)
    assert node.plant("a", node.now, "", wait=5000) == 0


def the_larger_version_of_a_switch_is_the_last_word(node: Node) -> None:
    assert node.put("=new", 20) == 1
    assert node.put("=old", 10) == 0
    assert node.client.hget(node.switches, "f:pause") == "20 new"


def a_late_word_does_not_bring_back_a_switch_that_was_removed(node: Node) -> None:
    node.put("=on", 20)
    assert node.put("-", 30) == 1
    assert node.put("=late", 25) == 0
    assert node.client.hget(node.switches, "f:pause") is None


def a_paused_name_gets_no_vote(node: Node) -> None:
    node.put("=on", 20)
    assert node.kind(node.take("a", node.now)) == "paused"
    node.put("-", 30)
    assert node.kind(node.take("a", node.now)) == "vote"


BUGS: dict[Callable[[Node], None], tuple[str, str, str]] = {
    a_free_name_is_voted_for_and_the_ballot_is_the_floor: ("take", "local new, flag = ballot", "local new, flag = '0000000000000001'"),
    another_claim_gets_no_vote: ("take", "local how, value, ours = 'NX'", "local how, value, ours = 'XX'\ncall('DEL', KEYS[1])"),
    a_ballot_that_is_not_above_the_floor_gets_no_vote: ("take", "ballot - floor > 0 or", "true or"),
    without_a_floor_a_minute_ago_is_the_floor: ("take", "ahead > -60000000 then", "true then"),
    a_ballot_far_ahead_of_the_clock_gets_no_vote: ("take", "admits = ahead <= 60000000", "admits = true"),
    ahead_of_the_clock_the_floor_rises_by_a_second_at_most: ("take", "floor <= 1000000", "floor <= 9000000"),
    what_the_claim_has_is_told_and_not_voted_for_again: ("take", "if ARGV[9] == '+' and stored", "if stored"),
    what_the_claim_has_is_raised_if_asked: ("take", "local new = string.format('%016.0f', ballot)", "local new = string.format('%016.0f', stored)"),
    what_the_claim_has_is_never_lowered: ("take", "if admits ~= true then return {admits, value", "if false then return {admits, value"),
    a_blank_node_does_not_vote_before_its_time: ("take", "if not young or young > 0", "if not young"),
    a_node_of_other_members_does_not_vote: ("take", "string.sub(marker, 1, #members) == members\n    and", ""),
    a_vote_that_is_taken_back_leaves_its_ballot_as_the_floor: ("revoke", "call('DEL', KEYS[1])", ""),
    a_vote_that_comes_after_it_was_taken_back_is_refused: ("revoke", "local raises = ahead", "local raises = false and ahead"),
    only_what_was_asked_by_then_is_taken_back: ("revoke", "if stored - ballot <= 0", "if true"),
    a_renewal_needs_exactly_the_token: ("renew", "string.sub(value, 1, #head) == head", "true"),
    a_renewal_tells_of_a_free_place_and_its_floor: ("renew", "answer = 'f' .. floor", "answer = 'f'"),
    a_blank_node_is_no_place_to_plant: ("renew", "elseif not value and born", "elseif not value and 0 * born"),
    planting_keeps_a_floor_that_is_higher: ("plant", "token - floor > 0", "true"),
    planting_raises_a_floor_that_is_lower: ("plant", "floor = string.format('%016.0f', token)", ""),
    nothing_is_planted_where_something_happened_since: ("plant", "(floor or '') ~= ARGV[6]", "false"),
    nothing_is_planted_over_another: ("plant", "ARGV[1], 'NX', 'PX'", "ARGV[1], 'PX'"),
    nothing_is_planted_on_a_node_that_does_not_vote: ("plant", "ARGV[5] * 1000 - now > 0 then return 0", "ARGV[5] * 1000 - now > 0 then now = 0"),
    the_larger_version_of_a_switch_is_the_last_word: ("put", "if last and", "if false and"),
    a_late_word_does_not_bring_back_a_switch_that_was_removed: ("put", "'^%d+') or removed", "'^%d+')"),
    a_paused_name_gets_no_vote: ("take", "if switched then\n  local fields", "if false then\n  local fields"),
}  # fmt: skip


@pytest.fixture(scope="module")
def client() -> Iterator[redis.Redis]:
    with RedisServer() as server, redis.Redis(port=server.port, decode_responses=True) as client:
        yield client


def _name(rule: Callable[[Node], None]) -> str:
    return rule.__name__


@pytest.mark.parametrize("rule", BUGS, ids=_name)
def test_the_rule_holds(rule: Callable[[Node], None], client: redis.Redis) -> None:
    rule(Node(client, None))


@pytest.mark.parametrize("rule", BUGS, ids=_name)
def test_a_planted_bug_is_caught(rule: Callable[[Node], None], client: redis.Redis) -> None:
    with pytest.raises(AssertionError):
        rule(Node(client, BUGS[rule]))


def test_a_new_cluster_is_founded_once_and_in_time(client: redis.Redis) -> None:
    node = Node(client, None)

    def found(last: int) -> object:
        return node._run("found", 1, MARKER, "incumbent1 m 0", last)

    assert [found(node.now - SECOND), found(node.now + SECOND), found(node.now + SECOND)] == [
        0,
        1,
        0,
    ]
    assert node.kind(node.take("a", node.now, wait=86_400_000)) == "vote"
