"""Which incarnation of a server a connection leads to, decided without a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from incumbent.errors import StoreUnavailable
from incumbent.stores.redis.incarnation import (
    TOKEN_JUMP,
    Handshake,
    IncarnationMarker,
    ServerFacts,
    read_marker,
)
from incumbent.stores.redis.options import RedisTarget
from incumbent.stores.redis.site import MARKER_KEY, Outdated, RedisSite
from incumbent.stores.redis.take import too_early
from tests.stores.redis.meeting import NOW, PLAIN, Server

FLOOR = int(TOKEN_JUMP * 1e6)
PROMOTED = {"master_replid": "hist2", "master_replid2": "hist1"}


def test_a_server_without_a_marker_is_new_and_gets_one() -> None:
    server = Server()
    met = server.met_by("aaaa")
    assert (met.marker.id, met.age, server.trips) == ("aaaa", 0.0, 2)
    server.clock += 20
    again = server.met_by("bbbb")
    assert (again.marker.id, again.age, server.trips) == ("aaaa", 20.0, 1)


def test_a_restart_with_its_data_is_another_incarnation() -> None:
    server = Server()
    server.met_by("aaaa")
    server.info["run_id"] = "run2"
    met = server.met_by("bbbb")
    assert (met.marker.id, met.marker.promoted) == ("bbbb", False)


def test_a_promotion_is_another_incarnation_whose_tokens_jump() -> None:
    server = Server()
    server.met_by("aaaa")
    server.info |= PROMOTED
    first = server.met_by("bbbb").marker
    assert (first.id, first.promoted) == ("bbbb:promoted", True)
    assert first.floor >= NOW * 1_000_000 + FLOOR
    # The next master's clock is behind: its floor is above that of the one before.
    server.info |= {"run_id": "run2", "master_replid": "hist3", "master_replid2": "hist2"}
    server.clock -= 40
    assert first.floor < server.met_by("cccc").marker.floor < first.floor + FLOOR


def test_a_master_that_is_named_again_is_another_incarnation_though_it_never_was_a_replica() -> (
    None
):
    server, between = Server(), Server(**PROMOTED)
    server.met_by("aaaa")
    between.clock += 19
    other = between.met_by("bbbb", promotion=1).marker
    # The clocks differ by less than the time between the two.
    server.clock += 20
    again = server.met_by("cccc", promotion=2).marker
    assert (again.id, again.promoted, again.promotion) == ("cccc@2:promoted", True, 2)
    assert again.since == int(server.clock) * 1_000_000
    # Nothing here tells of what was granted there.
    assert again.floor > other.floor
    assert server.met_by("dddd", promotion=2).marker == again


def test_a_client_without_sentinels_leaves_the_marker_of_a_promotion_as_it_is() -> None:
    server = Server()
    server.met_by("aaaa", promotion=1)
    server.clock += 20
    again = server.met_by("bbbb")
    assert (again.marker.id, again.age) == ("aaaa@1", 20.0)


def test_a_master_of_the_same_promotion_that_restarts_was_not_promoted_again() -> None:
    server = Server()
    first = server.met_by("aaaa", promotion=3).marker
    server.info["run_id"] = "run2"
    second = server.met_by("bbbb", promotion=3).marker
    assert [(mark.id, mark.promoted) for mark in (first, second)] == [
        ("aaaa@3", False),
        ("bbbb@3", False),
    ]
    assert second.floor > first.floor
    server.clock += 2
    server.data.clear()
    assert server.met_by("cccc", promotion=3).marker.floor > second.floor


def promoted(server: Server) -> IncarnationMarker:
    server.met_by("aaaa")
    server.info |= PROMOTED
    return server.met_by("bbbb").marker


def ahead(server: Server, mark: IncarnationMarker) -> float:
    return mark.floor / 1e6 - server.clock


def test_a_restart_after_a_promotion_is_none() -> None:
    server = Server()
    first = promoted(server)
    server.info |= {"run_id": "run2", "master_replid2": "0000"}
    after = server.met_by("cccc").marker
    assert (first.promoted, after.promoted) == (True, False)
    assert after.floor > first.floor


def restarted(server: Server, name: str) -> None:
    server.info |= {"run_id": name}


def restarted_from_a_snapshot(server: Server, name: str) -> None:
    # It comes back as if it had been promoted.
    server.info |= {"run_id": name, "master_replid": name, "master_replid2": "before"}


def emptied(server: Server, _: str) -> None:
    server.data.clear()


def restarted_empty(server: Server, name: str) -> None:
    server.data.clear()
    server.info |= PLAIN | {"run_id": name}


def promoted_with_the_marker(server: Server, name: str) -> None:
    server.info |= {"master_replid": name, "master_replid2": server.info["master_replid"]}


def promoted_without_a_marker(server: Server, name: str) -> None:
    server.data.clear()
    promoted_with_the_marker(server, name)


EVENTS = (
    *(restarted, restarted_from_a_snapshot, restarted_empty),
    *(emptied, promoted_with_the_marker, promoted_without_a_marker),
)


@given(
    st.lists(st.tuples(st.sampled_from(EVENTS), st.floats(0.05, 90.0)), max_size=30),
    st.integers(0, 2),
)
def test_tokens_grow_whatever_befalls_a_server_and_are_no_further_ahead_than_a_jump(
    events: list[tuple[Callable[[Server, str], None], float]], promotions: int
) -> None:
    server = Server()
    floor = server.met_by("0", promotion=1 if promotions else None).marker.floor
    assert TOKEN_JUMP < ahead(server, server.met_by("0").marker) <= TOKEN_JUMP + 0.001
    for number, (event, later) in enumerate(events, 1):
        # As many takes of one name as there can be.
        highest = max(floor + int(later * 100_000), int((server.clock + later) * 1e6))
        server.clock += later
        event(server, f"run{number}")
        mark = server.met_by(
            f"{number}", promotion=number * promotions + 1 if promotions else None
        ).marker
        if mark.floor != floor:
            assert mark.floor > highest
        floor = mark.floor
        assert ahead(server, mark) <= TOKEN_JUMP + 0.001


def test_a_promoted_server_whose_clock_is_behind_by_less_than_a_jump_grants_larger_tokens() -> None:
    """Long after the master began, whose tokens are its clock's: though the newest are missing."""
    one, other = Server(), Server(**PROMOTED)
    one.met_by("aaaa")
    other.clock += 3600 - (TOKEN_JUMP - 1)
    one.clock += 3600
    assert other.met_by("bbbb").marker.floor > one.clock * 1e6


def test_a_promoted_server_that_has_the_marker_is_above_it_whatever_its_clock() -> None:
    one, other = Server(), Server(**PROMOTED)
    before = one.met_by("aaaa").marker
    other.data = dict(one.data)
    other.clock -= 600
    assert other.met_by("bbbb").marker.floor > before.floor + 999


@given(st.floats(0.0, 0.9), st.floats(0.05, 55.0))
def test_of_two_failovers_in_a_minute_without_a_marker_the_time_between_covers_the_clocks(
    slower: float, between: float
) -> None:
    one, other = Server(**PROMOTED), Server(**PROMOTED)
    before = one.met_by("aaaa").marker.floor
    other.clock += between * (1 - slower)
    assert other.met_by("bbbb").marker.floor > before + int(between * 1000)


def test_a_new_history_without_a_second_is_no_promotion() -> None:
    # A master that lost its last replica an hour ago, or that gets its first.
    server = Server()
    server.met_by("aaaa")
    server.info["master_replid"] = "hist9"
    met = server.met_by("bbbb")
    assert (met.marker.id, met.marker.replication) == ("aaaa", "hist9")


@pytest.mark.parametrize(("server_step", "client_step"), [(3600, 0), (0, 3600), (-3600, 0)])
def test_a_clock_that_is_set_makes_no_incarnation_older(server_step: int, client_step: int) -> None:
    server = Server()
    server.met_by("aaaa", float(NOW))
    server.clock += 2 + server_step
    assert server.met_by("bbbb", NOW + 2.0 + client_step).age <= 2.0


@pytest.mark.parametrize(("server_step", "client_step"), [(-3600, 0), (0, -3600)])
def test_a_refusal_says_how_far_clocks_are_apart(server_step: int, client_step: int) -> None:
    # Each new process has to wait anew: that it waits for so long and no more would be untrue.
    server = Server()
    server.met_by("aaaa", float(NOW))
    server.clock += 600 + server_step
    refused = refusal(server.met_by("bbbb", NOW + 600.0 + client_step))
    assert "less than a second ago by one clock, and 1h earlier by another" in refused
    assert "For 30s more this process is given no lease" in refused
    assert "may have to wait up to 1h longer. Set the clocks right" in refused


def test_a_refusal_says_nothing_of_clocks_that_agree() -> None:
    server = Server()
    server.met_by("aaaa", float(NOW))
    server.clock += 5
    refused = refusal(server.met_by("bbbb", NOW + 4.0))
    assert "4s ago. For 26s more nobody is given a lease" in refused


def refusal(met: Handshake) -> str:
    """What one that asks with a ttl of 30 s is told; nothing if it is served."""
    known = ServerFacts()
    known.learn_from(met, 1000.0, 0.0)
    return str(too_early(RedisSite(RedisTarget("here"), "here"), known, 30.0, 1000.0) or "")


def test_without_a_run_id_its_start_tells_one_run_from_another() -> None:
    server = Server(run_id="", master_replid="", uptime_in_seconds="100")
    first = server.met_by("aaaa").marker
    server.clock += 10
    server.info["uptime_in_seconds"] = "111"
    assert server.met_by("bbbb").marker.id == first.id
    server.info["uptime_in_seconds"] = "3"
    assert server.met_by("cccc").marker.id == "cccc"


def test_the_copies_of_a_marker_are_made_alike_and_any_of_them_is_enough() -> None:
    server, keys = Server(), ("a", "b", "c")
    server.met_by("aaaa", None, *keys)
    assert len(set(server.data.values())) == 1
    del server.data["a"], server.data["c"]
    assert server.met_by("bbbb", None, *keys).marker.id == "aaaa"
    assert set(server.data) == set(keys)


def test_two_that_write_at_once_agree() -> None:
    server, keys = Server(), ("a", "b")
    server.met_by("bbbb", None, "b")
    server.clock += 1
    server.met_by("aaaa", None, "a")
    assert server.met_by("cccc", None, *keys).marker.id == "bbbb"
    assert len(set(server.data.values())) == 1


def test_the_longest_ttl_outlives_a_restart() -> None:
    server = Server()
    told = server.met_by("aaaa").marker._replace(longest=60_000)
    server.data[MARKER_KEY] = told.text.encode()
    server.info["run_id"] = "run2"
    assert server.met_by("bbbb").marker.longest == 60_000


def test_a_longer_ttl_is_told_to_every_copy_of_the_marker() -> None:
    server, keys = Server(), ("a", "b", "c")
    server.met_by("aaaa", None, *keys)
    met = server.met_by("bbbb", None, *keys, longest=40_000)
    assert (met.marker.id, met.marker.longest, met.problem) == ("aaaa", 40_000, None)
    assert set(server.data.values()) == {met.marker.text.encode()}
    # A shorter one says nothing new.
    assert server.met_by("cccc", None, *keys, longest=20_000).marker.longest == 40_000
    assert server.trips == 1


def test_a_longer_ttl_that_cannot_be_written_is_a_problem() -> None:
    server = Server()
    server.met_by("aaaa")
    server.refuses = hiredis.ReplyError("OOM command not allowed")
    assert server.met_by("bbbb").problem is None
    assert "OOM" in str(server.met_by("bbbb", longest=40_000).problem)


@pytest.mark.parametrize("there", [b"incumbent2 x", b"incumbent3 aaaa 1 2 3"])
def test_a_marker_of_another_format_is_refused_for_good(there: bytes) -> None:
    server = Server()
    server.data[MARKER_KEY] = there
    with pytest.raises(StoreUnavailable, match="speaks format 1: stop the instances") as caught:
        server.met_by("aaaa")
    assert caught.value.permanent
    assert server.data[MARKER_KEY] == there


def test_a_marker_is_read_as_it_was_written() -> None:
    for mark in (
        IncarnationMarker("a", 1, 2, "run", "hist", 3, 4),
        IncarnationMarker("a", 1, 2, "", ""),
    ):
        assert read_marker(mark.text.encode(), "here", "key") == mark


# -- what a connection knows


def known(server: Server) -> ServerFacts:
    wire = ServerFacts()
    wire.learn_from(server.met_by("aaaa"), 50.0, 0.0)
    return wire


def look(server: Server) -> list[Any]:
    time = [b"%d" % server.clock, b"500000"]
    return [server.data.get(MARKER_KEY), server.text, time, server.text]


def compare(wire: ServerFacts, looked: list[Any], *, allow_eviction: bool = False) -> None:
    wire.compare(looked, 59.0, 60.0, allow_eviction=allow_eviction)


def test_a_look_learns_the_servers_clock() -> None:
    server = Server()
    wire = known(server)
    compare(wire, look(server))
    assert wire.unchanged_at == 59.0
    # At least: whoever asks until 61 is answered by then.
    assert wire.clock_ahead == NOW + 0.5 - 60.0


@pytest.mark.parametrize(
    "change",
    [
        {"role": "slave"},
        {"master_replid": "hist2", "master_replid2": "hist1"},
    ],
)
def test_a_look_notices_another_role(change: dict[str, str]) -> None:
    server = Server()
    wire = known(server)
    server.info |= change
    with pytest.raises(Outdated):
        compare(wire, look(server))
    assert wire.unchanged_at == 0.0


def test_a_look_notices_other_data() -> None:
    server = Server()
    wire = known(server)
    server.data.clear()
    with pytest.raises(Outdated):
        compare(wire, look(server))
    server.met_by("bbbb")
    with pytest.raises(Outdated):
        compare(wire, look(server))


def test_a_look_that_is_refused_proves_nothing() -> None:
    server = Server()
    wire = known(server)
    with pytest.raises(Outdated):
        compare(wire, [Exception("NOPERM"), *look(server)[1:]])


def test_a_look_notices_that_the_server_may_evict() -> None:
    server = Server(maxmemory="0", maxmemory_policy="allkeys-lru")
    wire = known(server)
    compare(wire, look(server))
    server.info["maxmemory"] = "1000"
    with pytest.raises(Outdated, match="evict"):
        compare(wire, look(server))
    compare(wire, look(server), allow_eviction=True)
    server.info["maxmemory_policy"] = "noeviction"
    compare(wire, look(server))


def test_the_first_replica_of_a_master_changes_nothing() -> None:
    server = Server()
    wire = known(server)
    server.info["master_replid"] = "hist9"
    compare(wire, look(server))
    assert wire.replication == b"hist9"
