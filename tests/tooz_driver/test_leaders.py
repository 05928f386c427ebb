"""Leader election of tooz on leases: its own cases, written anew, and leaders that fail.

tooz's cases create a group first, and one joins it. Without these calls all of them pass that are
about leaders; every other case about groups needs members, and is skipped for that.
"""

from __future__ import annotations

from typing import Any

import pytest
import tooz
from tooz import coordination

from incumbent.cli.main import main
from incumbent.tooz_driver import Driver
from tests import tiers
from tests.support.waiting import eventually
from tests.tooz_driver.world import TTL, World, lasting


def watch(member: Driver, group: bytes = b"fleet") -> list[coordination.LeaderElected]:
    """What its callback hears."""
    heard = list[coordination.LeaderElected]()
    callback: Any = heard.append
    member.watch_elected_as_leader(group, callback)
    return heard


def test_only_the_elected_one_is_called_and_only_once(world: World) -> None:
    first, second = world.start(b"one"), world.start(b"two")
    heard, unheard = watch(first), watch(second)
    assert len(first.run_watchers()) == 1
    assert second.run_watchers() == []
    assert first.run_watchers() == []
    first.run_elect_coordinator()
    assert [(event.group_id, event.member_id) for event in heard] == [(b"fleet", b"one")]
    assert unheard == []
    for member in (first, second):
        assert member.get_leader(b"fleet").get() == b"one"


def test_who_stands_down_hands_over(world: World) -> None:
    first, second = world.start(b"one"), world.start(b"two")
    watch(first)
    heard = watch(second)
    first.run_watchers()
    assert not second.stand_down_group_leader(b"fleet")
    assert first.stand_down_group_leader(b"fleet")
    assert not first.stand_down_group_leader(b"fleet")
    assert first.get_leader(b"fleet").get() is None
    second.run_watchers()
    assert [event.member_id for event in heard] == [b"two"]
    assert first.run_watchers() == []
    assert first.get_leader(b"fleet").get() == b"two"


@pytest.mark.left(tiers.STORES)
@pytest.mark.parametrize("world", ["etcd", "postgresql", "mysql"], indirect=True)
def test_on_other_stores_it_is_the_same(world: World) -> None:
    first, second = world.start(b"one"), world.start(b"two")
    lock, heard = first.get_lock(b"job"), watch(second)
    with lock:
        assert not second.get_lock(b"job").acquire(blocking=2.0)
    watch(first)
    assert first.run_watchers()
    assert not second.run_watchers()
    assert second.get_leader(b"fleet").get() == b"one"
    first.stop()
    eventually(second.run_watchers)
    assert [event.member_id for event in heard] == [b"two"]
    assert second.get_lock(b"job").acquire()
    assert second.get_lock(b"job").break_()


def test_who_stops_hands_over(world: World) -> None:
    first, second = world.start(b"one"), world.start(b"two")
    watch(first)
    first.run_watchers()
    first.stop()
    watch(second)
    assert second.run_watchers()
    first.start()
    assert not first.run_watchers()
    assert first.get_leader(b"fleet").get() == b"two"


@pytest.mark.left(tiers.STORES, "redis")
def test_after_a_crash_another_leads_once_the_ttl_is_over(world: World) -> None:
    member = world.start(b"two")
    heard = watch(member)
    with world.process("one", "leader", "fleet") as leader:
        assert member.run_watchers() == []
        assert member.get_leader(b"fleet").get() == b"one"
        leader.kill()
        with lasting(0.0, TTL + 10.0):
            eventually(member.run_watchers)
    assert [event.member_id for event in heard] == [b"two"]
    assert member.get_leader(b"fleet").get() == b"two"


def test_a_process_that_comes_back_is_not_taken_for_the_leader_that_it_was(world: World) -> None:
    with world.process("node-1", "leader", "fleet") as leader:
        leader.kill()
        again = world.start(b"node-1")
        # The record of its former life may still be there, and it does not lead by that.
        assert again.get_leader(b"fleet").get() is None
        assert again.get_term(b"fleet") is None


@pytest.mark.left(tiers.STORES, "redis")
def test_a_leader_that_an_operator_broke_leads_no_longer_and_is_elected_anew(world: World) -> None:
    first = world.start(b"one")
    heard = watch(first)
    first.run_watchers()
    term = first.get_term(b"fleet")
    assert term is not None
    assert main(["-s", world.store, "-N", world.namespace, "break", "leader:fleet"]) == 0
    assert first.get_term(b"fleet") is None
    assert first.get_leader(b"fleet").get() is None
    eventually(first.run_watchers)
    assert len(heard) == 2
    now = first.get_term(b"fleet")
    assert now is not None
    assert now.number > term.number


def test_any_bytes_are_the_name_of_a_member_and_of_a_group(world: World) -> None:
    members = [b"one", "zwölf\n".encode(), b"\xff\x00 %41", b"a/b:c@d"]
    groups = [b"g", "ä".encode(), b"\xe4", b"", b"x" * 300, b"a:b"]
    for member, group in zip([*members, *members], groups, strict=False):
        made, other = world.start(member), world.start(b"other")
        heard = watch(made, group)
        made.run_watchers()
        assert [event.group_id for event in heard] == [group]
        assert other.get_leader(group).get() == member
    text: Any = world.start("zwölf")  # type: ignore[arg-type]  # tooz's other drivers take texts
    text.watch_elected_as_leader("text", print)
    text.run_watchers()
    assert text.get_leader("text").get() == "zwölf".encode()


def test_a_lock_and_a_group_of_the_same_name_are_two_things(world: World) -> None:
    first, second = world.start(b"one"), world.start(b"two")
    watch(first)
    assert second.get_lock(b"fleet").acquire()
    assert second.get_lock(b"leader:fleet").acquire()
    assert first.run_watchers()


def test_it_is_an_election_of_ours(world: World) -> None:
    member = world.start(b"node-1")
    watch(member)
    member.run_watchers()
    leader, term = world.client().election("leader:fleet").leader(), member.get_term(b"fleet")
    assert leader is not None
    assert term is not None
    assert (leader.holder, leader.term) == ("node-1", term.number)


def test_who_watches_no_longer_does_not_stand(world: World) -> None:
    member = world.start()
    heard = watch(member)
    callback = member._hooks_elected_leader[b"fleet"][0]
    member.unwatch_elected_as_leader(b"fleet", callback)
    with pytest.raises(coordination.WatchCallbackNotFound):
        member.unwatch_elected_as_leader(b"fleet", callback)
    assert member.run_watchers() == []
    assert heard == []
    assert member.get_leader(b"fleet").get() is None


def test_an_error_of_a_callback_is_the_callers_and_the_member_leads(world: World) -> None:
    member = world.start()

    def fails(event: object) -> None:
        raise LookupError("mine")

    member.watch_elected_as_leader(b"fleet", fails)
    with pytest.raises(LookupError, match="mine"):
        member.run_watchers()
    assert member.get_leader(b"fleet").get() == b"one"


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        *((name, (b"g",)) for name in ("create_group", "delete_group", "join_group")),
        *((name, (b"g",)) for name in ("leave_group", "get_members", "join_group_create")),
        *((name, (b"g",)) for name in ("get_members_with_capabilities", "join_partitioned_group")),
        *((name, (b"g", b"m")) for name in ("get_member_capabilities", "get_member_info")),
        *((name, (b"g", print)) for name in ("watch_join_group", "watch_leave_group")),
        ("update_capabilities", (b"g", {})),
        ("get_groups", ()),
    ],
)
def test_what_needs_members_is_refused(world: World, call: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(tooz.NotImplemented, match="no groups of members"):
        getattr(world.start(), call)(*arguments)
