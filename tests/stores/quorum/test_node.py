"""The scripts of one node on a real server: each rule, and the same with the rule taken out."""
# ruff: noqa: E501 - each planted bug is one line: where, what, and what instead

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from tests.stores.quorum.node import MARKER, MINUTE, SECOND, Node
from tests.support.servers import RedisServer

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
    node.client.set(node.beside, f"{floor} - {(floor // 1000) + 60_000} {floor} you 1")
    assert node.kind(node.take("a", floor + 2 * SECOND)) == "high"
    assert node.kind(node.take("a", floor + SECOND)) == "vote"


def a_clock_that_can_be_right_admits_a_minute_and_no_more(node: Node) -> None:
    floor = node.now + MINUTE + 20 * SECOND
    node.client.set(node.beside, f"{floor} - {(floor // 1000) + 60_000} {floor} you 1")
    assert node.kind(node.take("a", floor + 1)) == "high"


def ahead_of_the_clock_it_does_not_rise_above_what_was_no_vote(node: Node) -> None:
    floor = node.now + 10 * MINUTE
    node.client.set(node.beside, f"{floor} - {(floor // 1000) + 60_000} ")
    assert node.kind(node.take("a", floor + 1)) == "high"


def the_floor_of_a_node_that_was_blank_is_a_minute_after_its_birth(node: Node) -> None:
    node.client.set(MARKER, f"incumbent1 m {node.now - 20 * SECOND} 1000")
    assert node.kind(node.take("a", node.now + 30 * SECOND)) == "low"
    assert node.kind(node.take("a", node.now + 50 * SECOND)) == "vote"


def the_longest_ttl_that_was_asked_for_is_waited_for(node: Node) -> None:
    node.client.set(MARKER, f"incumbent1 m {node.now - 2 * SECOND} 1000")
    assert node.kind(node.take("a", node.now, wait="-", longest=5000)) == "young"
    assert node.kind(node.take("a", node.now, wait="-")) == "young"
    assert node.kind(node.take("a", node.now, wait=0)) == "low"


def a_renewal_tells_the_longest_ttl(node: Node) -> None:
    node.client.set(MARKER, f"incumbent1 m {node.now - 2 * SECOND} 1000")
    assert node.renew("a", 7, wait="-", longest=5000) == 0
    assert str(node.client.get(MARKER)).endswith(" 5000")


def a_node_of_another_format_does_not_vote(node: Node) -> None:
    node.client.set(MARKER, "incumbent2 m 0")
    assert node.kind(node.take("a", node.now)) == "members"
    assert node.client.get(MARKER) == "incumbent2 m 0"


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
    node.client.delete(MARKER)
    assert node.kind(node.take("a", node.now, wait=5000)) == "young"
    assert node.kind(node.take("a", node.now, wait=5000)) == "young"
    assert node.kind(node.take("a", node.now, wait=0)) == "low"
    assert node.kind(node.take("a", node.now + MINUTE, wait=0)) == "vote"


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


def a_ballot_too_far_ahead_is_refused_once_it_was_taken_back(node: Node) -> None:
    """The server's clock is behind: what it refuses now it would vote for in a while."""
    ballot = node.now + 85 * SECOND
    assert node.revoke("a", ballot) == 0
    assert node.floor == str(ballot)


def a_ballot_far_behind_is_refused_once_it_was_taken_back(node: Node) -> None:
    """Where a floor is kept, even a ballot of minutes ago would be voted for."""
    floor = node.now - 10 * MINUTE
    node.client.set(node.beside, f"{floor} - {(floor // 1000) + 3_600_000} {floor} you 1")
    assert node.revoke("a", floor + MINUTE) == 0
    assert node.kind(node.take("a", floor + MINUTE)) == "low"


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
    node.client.delete(MARKER)
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
    node.client.delete(MARKER)
    assert node.plant("a", node.now, "") == 0
    node.take("b", node.now, wait=5000)
    assert node.plant("a", node.now, "", wait=5000) == 0


def a_promise_is_to_hear_of_nothing_below_it(node: Node) -> None:
    ballot = node.now
    assert node.promise(ballot) == ["0", "", 1]
    assert [node.promise(it)[0] for it in (ballot, ballot - 1)] == ["low", "low"]
    assert node.promise(ballot + 1)[0] == "0"


def a_promise_far_ahead_of_the_clock_is_not_made(node: Node) -> None:
    assert node.promise(node.now + MINUTE + 5 * SECOND)[0] == "high"
    assert node.promise(node.now + MINUTE - 5 * SECOND)[0] == "0"


def who_was_blank_promises_nothing_that_it_may_have_promised_before(node: Node) -> None:
    node.client.set(MARKER, f"incumbent1 m {node.now} 1000")
    assert node.promise(node.now + 50 * SECOND)[0] == "low"


def who_was_blank_says_that_it_may_have_forgotten(node: Node) -> None:
    node.client.set(MARKER, f"incumbent1 m {node.now - 2 * MINUTE} 1000")
    ballot = node.now
    assert node.promise(ballot)[0] == "-"
    assert node.accept(ballot, "=", "", "-", "f:a", "1 x", "s", "7") == 1
    assert node.promise(ballot + 1, "f:a")[:2] == [f"{ballot} 7", "1 x"]


def a_change_without_its_promise_is_not_accepted(node: Node) -> None:
    ballot = node.now
    node.promise(ballot)
    node.promise(ballot + 1)
    assert node.accept(ballot, 0, "f:a", "=1 x") == 0
    assert node.accept(ballot + 1, 0, "f:a", "=1 x") == 1


def a_change_of_another_state_is_not_accepted(node: Node) -> None:
    first = node.change("f:a", "=1 x")
    node.promise(first + SECOND)
    assert node.accept(first + SECOND, first - 1, "f:a", "-") == 0
    assert node.accept(first + SECOND, first, "f:a", "-") == 1


def what_was_accepted_is_told_again(node: Node) -> None:
    ballot = node.change("f:a", "=1 x")
    assert node.accept(ballot, 0, "f:a", "=1 x") == 1


def a_change_by_a_claim_needs_its_lease(node: Node) -> None:
    ballot = node.now
    node.take("a", ballot)
    told = [node.promise(ballot + at, held=f"incumbent1 a {ballot + at - 1} ")[2] for at in (1, 2)]
    assert told == [1, 0]
    assert node.accept(ballot + 2, 0, "f:a", "=1 x", held=f"incumbent1 b {ballot} ") == -1
    assert node.accept(ballot + 2, 0, "f:a", "=1 x", held=f"incumbent1 a {ballot} ") == 1


def a_node_that_is_behind_gets_all_entries_and_keeps_no_others(node: Node) -> None:
    old = node.change("f:old", "=1 x")
    node.promise(old + SECOND)
    assert node.accept(old + SECOND, "=", "f:b", "=3 z", "f:a", "2 y", "s", str(old + 7)) == 1
    kept = node.client.hgetall(node.switches)
    assert {name for name in kept if name[:2] == "f:"} == {"f:a", "f:b"}
    assert kept["s"] == f"{old + SECOND} {old + 7}"


def a_node_remembers_the_last_changes(node: Node) -> None:
    ballots = [node.change("f:a", f"={at} x") for at in range(12)]
    assert node.client.hget(node.switches, "s") == " ".join(map(str, ballots[:3:-1]))


def a_paused_name_gets_no_vote(node: Node) -> None:
    node.change("f:pause", "=20 on")
    assert node.kind(node.take("a", node.now)) == "paused"
    node.change("f:pause", "-")
    assert node.kind(node.take("a", node.now)) == "vote"


BUGS: dict[Callable[[Node], None], tuple[str, str, str]] = {
    a_free_name_is_voted_for_and_the_ballot_is_the_floor: ("take", "PEXPIRE', past, math.ceil(keep * 1.25)) end", "PEXPIRE', past, math.ceil(keep * 1.25)) end\n  call('SETRANGE', floor_key, 0, '0000000000000001')"),
    another_claim_gets_no_vote: ("take", "not paused, 'NX'", "not paused, 'XX'\ncall('DEL', lease)"),
    a_ballot_that_is_not_above_the_floor_gets_no_vote: ("take", "if ballot - floor > 0 then", "if true then"),
    without_a_floor_a_minute_ago_is_the_floor: ("take", "+ 0 or now - MINUTE", "+ 0 or 0"),
    a_ballot_far_ahead_of_the_clock_gets_no_vote: ("take", "verdict = (ahead <= MINUTE or follows_a_wrong_clock) and 'ok'", "verdict = 'ok'"),
    ahead_of_the_clock_the_floor_rises_by_a_second_at_most: ("take", "floor <= 1000000", "floor <= 9000000"),
    a_clock_that_can_be_right_admits_a_minute_and_no_more: ("take", "ahead > 2 * MINUTE and", ""),
    ahead_of_the_clock_it_does_not_rise_above_what_was_no_vote: ("take", "(last_of(kept))) == floor", "(last_of(kept))) ~= 0"),
    the_floor_of_a_node_that_was_blank_is_a_minute_after_its_birth: ("take", "if born > 0 and", "if false and"),
    the_longest_ttl_that_was_asked_for_is_waited_for: ("take", "    most = longest", ""),
    a_renewal_tells_the_longest_ttl: ("renew", "if longest - most > 0", "if false"),
    a_node_of_another_format_does_not_vote: ("take", "if theirs ~= members", "if not theirs then theirs, since, most = members, '0', '0' end\n  if theirs ~= members"),
    a_ballot_too_far_ahead_is_refused_once_it_was_taken_back: ("revoke", "<= 2 * MINUTE", "<= MINUTE"),
    what_the_claim_has_is_told_and_not_voted_for_again: ("take", "if raises == '+' and stored", "if stored"),
    what_the_claim_has_is_raised_if_asked: ("take", "floor_value(ballot, flag, till, before", "floor_value(stored, flag, till, before"),
    what_the_claim_has_is_never_lowered: ("take", "if verdict ~= 'ok' then return no", "if false then return no"),
    a_blank_node_does_not_vote_before_its_time: ("take", "if young > 0", "if false"),
    a_node_of_other_members_does_not_vote: ("take", "if theirs ~= members", "if false"),
    a_vote_that_is_taken_back_leaves_its_ballot_as_the_floor: ("revoke", "call('DEL', lease)", ""),
    a_vote_that_comes_after_it_was_taken_back_is_refused: ("revoke", "local raises = ballot", "local raises = false and ballot"),
    a_ballot_far_behind_is_refused_once_it_was_taken_back: ("revoke", "ballot - now <= 2 * MINUTE", "ballot - now > -MINUTE"),
    only_what_was_asked_by_then_is_taken_back: ("revoke", "if stored - ballot <= 0", "if true"),
    a_renewal_needs_exactly_the_token: ("renew", "starts_with(value, value_start)", "true"),
    a_renewal_tells_of_a_free_place_and_its_floor: ("renew", "'f' .. (floor_of(kept) or '')", "'f'"),
    a_blank_node_is_no_place_to_plant: ("renew", "if value or not votes then", "if value then"),
    planting_keeps_a_floor_that_is_higher: ("plant", "token - floor > 0", "true"),
    planting_raises_a_floor_that_is_lower: ("plant", "then floor = token end", "then floor = floor end"),
    nothing_is_planted_where_something_happened_since: ("plant", "(floor or '') ~= seen", "false"),
    nothing_is_planted_over_another: ("plant", "value, 'NX', 'PX'", "value, 'PX'"),
    nothing_is_planted_on_a_node_that_does_not_vote: ("plant", "quarantine) * 1000 - now > 0 then return 0", "quarantine) * 1000 - now > 0 then now = now"),
    a_promise_is_to_hear_of_nothing_below_it: ("promise", "if ballot - floor <= 0 then", "if false then"),
    a_promise_far_ahead_of_the_clock_is_not_made: ("promise", "if ahead > MINUTE and", "if false and"),
    who_was_blank_promises_nothing_that_it_may_have_promised_before: ("promise", "if born > 0 and", "if false and"),
    who_was_blank_says_that_it_may_have_forgotten: ("promise", "born == 0 and '0' or '-'", "'0'"),
    a_change_without_its_promise_is_not_accepted: ("accept", "if promised ~= ballot or", "if"),
    a_change_of_another_state_is_not_accepted: ("accept", "and state ~= base then", "and false then"),
    what_was_accepted_is_told_again: ("accept", "if state == ballot then return 1 end", ""),
    a_change_by_a_claim_needs_its_lease: ("accept", "starts_with(held, holding) then return -1 end", "starts_with(held, holding) then held = nil end"),
    a_node_that_is_behind_gets_all_entries_and_keeps_no_others: ("accept", "call('DEL', hash)", ""),
    a_node_remembers_the_last_changes: ("accept", "1, 135)", "1, 16)"),
    a_paused_name_gets_no_vote: ("take", "if flag == ' + ' then", "if false then"),
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
    client.delete(MARKER)

    def found(last: int) -> object:
        return node._run("found", 1, MARKER, "incumbent1 m 0 1000", last)

    assert [found(node.now - SECOND), found(node.now + SECOND), found(node.now + SECOND)] == [
        0,
        1,
        0,
    ]
    assert node.kind(node.take("a", node.now, wait=86_400_000)) == "vote"
