"""What a node keeps beside a lease: how long, what for, and the same with each rule taken out."""
# ruff: noqa: E501 - each planted bug is one line: where, what, and what instead

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import redis

from tests.stores.quorum.node import SECOND, Node
from tests.support.servers import RedisServer

pytestmark = pytest.mark.server

DAY = 86_400_000


def the_floor_is_kept_for_as_long_as_is_asked(node: Node) -> None:
    soon = node.now // 1000 + 5000
    node.client.set(node.beside, f"{node.now - SECOND} - {soon} ", px=5000)
    node.take("a", node.now)
    assert node.client.pttl(node.beside) > 59_000


def a_floor_that_will_last_is_left_where_it_ends(node: Node) -> None:
    node.take("a", node.now)
    node.expire()
    node.client.pexpire(node.beside, 61_000)
    node.take("b", node.now)
    assert node.client.pttl(node.beside) <= 61_000


def a_give_brings_back_a_floor_that_was_lost(node: Node) -> None:
    ballot = node.now
    node.take("a", ballot)
    node.client.delete(node.beside)
    assert node.give("a", ballot, ballot) == 1
    assert node.floor == str(ballot)
    assert node.client.pttl(node.beside) > 0
    assert node.history == [("me", ballot, True)]


def a_renewal_brings_back_a_floor_that_was_lost(node: Node) -> None:
    ballot = node.now
    node.take("a", ballot)
    node.client.delete(node.beside)
    assert node.renew("a", ballot) == 1
    assert node.floor == str(ballot)
    assert node.client.pttl(node.beside) > 0


def a_pause_is_seen_where_a_floor_was_before(node: Node) -> None:
    node.take("a", node.now)
    node.expire()
    node.change("f:pause", "=20 on")
    assert node.kind(node.take("b", node.now)) == "paused"


def a_pause_is_seen_where_a_floor_came_after(node: Node) -> None:
    node.change("f:pause", "=20 on")
    node.revoke("a", node.now)
    assert node.kind(node.take("b", node.now)) == "paused"


def a_renewal_tells_of_a_pause(node: Node) -> None:
    ballot = node.now
    node.take("a", ballot)
    assert node.renew("a", ballot) == 1
    node.change("f:pause", "=20 on")
    assert node.renew("a", ballot) == ["20 on", None]


def a_renewal_tells_of_no_request_that_came_before_its_holder(node: Node) -> None:
    node.change("f:pause", "=20 on")
    node.change("f:resign", "=30 go")
    node.client.hdel(node.switches, "f:pause")
    ballot = node.now
    node.take("a", ballot)
    node.change("f:pause", "=20 on")
    assert node.renew("a", ballot) == ["20 on", None]


def a_request_to_resign_is_above_the_token_of_who_holds_it(node: Node) -> None:
    """The token may be ahead of the clock; what came before it is for an earlier holder."""
    ballot = node.now + 30 * SECOND
    node.take("a", ballot)
    assert node.promise(ballot - SECOND)[0] == "low"
    assert node.promise(ballot + 1)[0] == "0"


def what_is_no_field_ends(node: Node) -> None:
    node.change("u:day", f"={node.now // 1000 + 50_000} a 1 me")
    assert 0 < node.client.pttl(node.switches) <= 600_000
    node.change("f:pause", "=20 on")
    assert node.client.pttl(node.switches) == -1
    node.change("f:pause", "-")
    assert 0 < node.client.pttl(node.switches) <= 600_000


def a_slot_whose_time_is_over_is_forgotten(node: Node) -> None:
    node.change("u:old", f"={node.now // 1000 - 130_000} a 1 me")
    node.change("u:late", f"={node.now // 1000 - 100_000} a 1 me")
    assert node.client.hkeys(node.switches) == ["p", "s", "u:late"]


def a_clock_that_is_hours_ahead_forgets_no_slot(node: Node) -> None:
    ballot = node.now - 3 * 3600 * SECOND
    node.client.hset(node.switches, mapping={"p": ballot - 1, "s": ballot - 1})
    node.change("u:day", f"={ballot // 1000 + 60_000} a 1 me", ballot)
    assert node.client.hkeys(node.switches) == ["p", "s", "u:day"]


def a_slot_is_kept_beyond_the_last_field(node: Node) -> None:
    node.change("u:month", f"={node.now // 1000 + 40 * DAY} a 1 me")
    node.change("f:x", "=1 x")
    node.change("f:x", "-")
    assert node.client.pttl(node.switches) > 40 * DAY


def a_slot_that_is_given_back_to_a_node_is_kept_as_long(node: Node) -> None:
    ballot = node.now
    node.promise(ballot)
    node.accept(ballot, "=", "", "-", "s", "7", "u:month", f"{ballot // 1000 + 40 * DAY} a 1 me")
    assert node.client.pttl(node.switches) > 40 * DAY


def the_past_also_has_who_never_gave(node: Node) -> None:
    first = node.now
    node.take("a", first, who="one")
    node.give("a", first, first + 7)
    node.take("b", first + 1, who="two")
    node.expire()
    node.take("c", first + 2, who="three")
    assert node.history == [
        ("one", first, True),
        ("two", first + 1, False),
        ("three", first + 2, False),
    ]


def a_vote_that_was_taken_back_is_no_past(node: Node) -> None:
    first = node.now
    node.take("a", first, who="one")
    node.give("a", first, first)
    node.take("b", first + 1, who="two")
    node.revoke("b", first + 1)
    assert node.history == [("one", first, True)]


def a_lease_that_is_planted_again_is_in_the_past_once(node: Node) -> None:
    first = node.now
    node.take("a", first)
    node.expire()
    node.plant("a", first, str(first))
    node.expire()
    node.plant("b", first - 7, str(first))
    node.give("b", first - 7, first)
    assert node.history == [("me", first, False), ("me", first - 7, True)]


def the_past_is_bounded_and_ends(node: Node) -> None:
    first = node.now
    for count in range(120):
        node.take("a", first + count, who="somebody-of-some-host.example")
        node.give("a", first + count, first + count)
    assert [token for _, token, _ in node.history][-20:] == [first + it for it in range(100, 120)]
    assert node.client.strlen(node.past) < 4000
    assert node.client.pttl(node.past) > 0


def an_end_is_told_to_who_looked(node: Node) -> None:
    ballot = node.now
    node.take("a", ballot)
    assert not node.tells(lambda: node.give("a", ballot, ballot))
    node.take("a", ballot + 1)
    node._run("look", 1, node.main)
    assert node.tells(lambda: node.give("a", ballot + 1, ballot + 1))


BUGS: dict[Callable[[Node], None], tuple[str, str, str]] = {
    the_floor_is_kept_for_as_long_as_is_asked: ("take", "till * 1000 - now >= needed * 1000", "true"),
    a_floor_that_will_last_is_left_where_it_ends: ("take", "till * 1000 - now >= needed * 1000", "false"),
    a_give_brings_back_a_floor_that_was_lost: ("give", "== #ended then", "== -1 then"),
    a_renewal_brings_back_a_floor_that_was_lost: ("renew", "if not kept then\n", "if false then\n"),
    a_pause_is_seen_where_a_floor_was_before: ("accept", ".. ' + ' ..", ".. ' - ' .."),
    a_pause_is_seen_where_a_floor_came_after: ("revoke", "or ' + '", "or ' - '"),
    a_renewal_tells_of_a_pause: ("renew", "flag_of(kept) == ' + '", "false"),
    a_renewal_tells_of_no_request_that_came_before_its_holder: ("renew", "< 0 then\n    resign = false", "< 0 then\n    resign = resign"),
    a_request_to_resign_is_above_the_token_of_who_holds_it: ("promise", "if token and", "if false and"),
    what_is_no_field_ends: ("accept", "if has_fields then", "if true then"),
    a_slot_whose_time_is_over_is_forgotten: ("accept", "left < -120000", "left < 0"),
    a_clock_that_is_hours_ahead_forgets_no_slot: ("accept", "math.floor(ballot / 1000)", "call('TIME')[1] * 1000"),
    a_slot_is_kept_beyond_the_last_field: ("accept", "keep + last", "keep + 0"),
    a_slot_that_is_given_back_to_a_node_is_kept_as_long: ("accept", "keep + last", "keep + 0"),
    the_past_also_has_who_never_gave: ("take", "if last ~= '' then last", "if false then last"),
    a_vote_that_was_taken_back_is_no_past: ("revoke", "or before", "or last"),
    a_lease_that_is_planted_again_is_in_the_past_once: ("plant", "(last == '' and '' or last .. '\\n') .. token", "token"),
    the_past_is_bounded_and_ends: ("take", "if #ends > 20 then", "if false then"),
    an_end_is_told_to_who_looked: ("look", ".. '1' ..", ".. '0' .."),
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
