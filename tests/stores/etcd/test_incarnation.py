"""What tells two incarnations of a cluster apart, and what is never taken for another one."""

from __future__ import annotations

import json
from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incumbent.errors import OutcomeUnknown, StoreUnavailable
from incumbent.model import Key
from incumbent.stores.etcd import open_etcd
from incumbent.stores.etcd.incarnation import (
    Cluster,
    ClusterMarker,
    Status,
    _highest_in,
    differs,
    later,
    status_of,
)
from incumbent.stores.etcd.kv import TXN, EtcdProgram, GatewayRequest, KeyValue, b64
from incumbent.stores.etcd.sessions import ClaimState, Session
from incumbent.stores.etcd.site import GatewayError, OtherIncarnation
from incumbent.stores.plan import drive, run_blocking
from incumbent.stores.url import Endpoint

CLUSTER = "14837254485918806380"
START = Status(CLUSTER, 2, 4, 1)

entries = st.lists(st.tuples(st.booleans(), st.integers(0, 1)), max_size=40)
"""Entries of the log: whether it writes, and how many terms it is later."""


def grown(status: Status, log: list[tuple[bool, int]]) -> list[Status]:
    """The states that a member goes through."""
    states = [status]
    for writes, terms in log:
        cluster, term, applied, revision = states[-1]
        states.append(Status(cluster, term + terms, applied + 1, revision + writes))
    return states


def marked(status: Status) -> tuple[ClusterMarker, Status]:
    """The marker that was written in this state, and the state after it."""
    after = Status(CLUSTER, status.term, status.applied + 1, status.revision + 1)
    return ClusterMarker(
        "e", 0, "", 0.0, CLUSTER, status.term, status.applied, after.revision
    ), after


def known_to(cluster: Cluster) -> ClusterMarker | None:
    return cluster.incarnation


def new_cluster() -> Cluster:
    return open_etcd("etcd://e1").store().operations.cluster


@given(entries, entries, entries)
def test_a_cluster_that_goes_on_is_never_taken_for_another_one(
    before: list[tuple[bool, int]], between: list[tuple[bool, int]], since: list[tuple[bool, int]]
) -> None:
    # Others may write between the look at a member's status and the marker.
    seen = grown(START, before)[-1]
    _, after = marked(grown(seen, between)[-1])
    born = ClusterMarker("e", 0, "", 0.0, CLUSTER, seen.term, seen.applied, after.revision)
    furthest = None
    for status in grown(after, since):
        assert not differs(born, furthest, status)
        furthest = later(furthest, status)


@given(entries, entries, st.integers(0, 5), st.integers(1, 3))
def test_a_restored_cluster_is_another_one_until_as_much_was_logged_that_writes_nothing(
    before: list[tuple[bool, int]], since: list[tuple[bool, int]], idle: int, members: int
) -> None:
    born, after = marked(grown(START, before)[-1])
    saved = grown(after, since)[-1]
    # The log begins anew with an entry a member, and an election; the revision goes on.
    restored = Status(CLUSTER, 2, members + 1 + idle, saved.revision)
    written = saved.revision - born.modified
    if restored.applied < born.applied + written:
        assert differs(born, None, restored)


def test_another_cluster_is_another_one_whatever_its_numbers_are() -> None:
    born, after = marked(START)
    assert differs(born, None, after._replace(cluster="1", applied=10**6))


def test_a_state_from_before_the_marker_is_another_one() -> None:
    born, after = marked(START)
    assert differs(born, None, after._replace(revision=born.modified - 1))


def test_an_earlier_log_that_was_put_back_is_another_one_for_who_saw_a_later_entry() -> None:
    born, after = marked(START)
    furthest = grown(after, [(True, 0)] * 20)[-1]
    put_back = after._replace(term=after.term + 1, applied=after.applied + 3)
    assert differs(born, furthest, put_back)
    assert not differs(born, None, put_back)


def test_where_no_member_tells_its_index_the_cluster_s_id_is_all_there_is() -> None:
    born = ClusterMarker("e", 0, "", 0.0, CLUSTER, 0, 0, 7)
    assert not differs(born, None, Status(CLUSTER, 1, 3, 7_000))
    assert differs(born, None, Status("1", 1, 3, 7_000))


def test_an_answer_without_an_index_tells_nothing() -> None:
    header = {"cluster_id": CLUSTER, "revision": "9", "raft_term": "2"}
    assert status_of({"header": header, "raftTerm": "2"}) is None
    assert status_of({"header": header, "raftTerm": "2", "raftAppliedIndex": "12"}) == Status(
        CLUSTER, 2, 12, 9
    )


def test_an_answer_at_a_smaller_revision_than_was_known_when_it_was_asked_does_not_fit() -> None:
    cluster = new_cluster()
    assert cluster.fits(CLUSTER, 10, cluster.floor)
    asked_before = cluster.floor
    assert cluster.fits(CLUSTER, 12, cluster.floor)
    # It overtook the other one, which was asked before.
    assert cluster.fits(CLUSTER, 11, asked_before)
    assert not cluster.fits(CLUSTER, 11, cluster.floor)
    assert not cluster.fits("1", 13, cluster.floor)


def test_nothing_that_was_remembered_of_an_incarnation_that_ended_is_left() -> None:
    cluster = new_cluster()
    cluster.incarnation = ClusterMarker("e", 500, "", 0.0)
    sessions = cluster.sessions
    session = sessions.add(Session("7", 10, 100.0))
    sessions.remember(
        ClaimState(Key("default", "job"), "c", session, 104.0, "me", 0.0, 10.0, revision=5)
    )
    cluster.end_incarnation()
    assert (known_to(cluster), cluster.last_gone, sessions.claims) == (None, 500, {})
    # Nothing is kept alive any longer, and nothing is attached to it.
    assert session.gone
    assert (sessions.by_ttl, sessions.by_id) == ({}, {})
    cluster.end_incarnation()
    assert cluster.last_gone == 500


def _asked(born: ClusterMarker, *statuses: Status | str) -> tuple[bool, list[str]]:
    """Whether one that tells these, or fails so, is taken for another one; what it was asked."""
    left, paths = list(statuses), list[str]()

    async def ask(request: GatewayRequest) -> dict[str, object]:
        paths.append(request.path.rpartition("/")[2])
        if paths[-1] == "txn":
            # It goes through the log, and it changes nothing.
            assert b"request_delete_range" in request.body
            assert b64("/incumbent!nothing").encode() in request.body
            return {"header": {}}
        status = left.pop(0)
        if isinstance(status, str):
            raise GatewayError(status)
        header = {"cluster_id": status.cluster, "revision": str(status.revision)}
        return {"header": header, "raftTerm": status.term, "raftAppliedIndex": status.applied}

    cluster = new_cluster()
    return run_blocking(drive(cluster.is_other(born, Endpoint("e1", 2379)), ask)), paths


def test_a_member_that_starts_or_got_a_snapshot_is_looked_at_again_after_it_did_something() -> None:
    """Seen on a follower that caught up: its revision was 6,007 and its index still 20."""
    born, after = marked(START)
    caught_up = Status(CLUSTER, 2, after.applied + 6000, after.revision + 5990)
    for odd in (caught_up._replace(applied=after.applied), after._replace(revision=1)):
        assert _asked(born, odd, caught_up) == (False, ["status", "txn", "status"])
        assert _asked(born, odd, odd) == (True, ["status", "txn", "status"])
    assert _asked(born, caught_up) == (False, ["status"])


def test_a_new_marker_tells_how_far_the_log_was_when_it_was_written() -> None:
    """What a restored cluster shows less of; without it the cluster's id is all there is."""
    written: list[dict[str, object]] = []
    log = 12

    async def ask(request: GatewayRequest) -> dict[str, object]:
        nonlocal log
        header = {"cluster_id": CLUSTER, "revision": "9"}
        match request.path.rpartition("/")[2]:
            case "metrics":
                raise StoreUnavailable("no metrics here")
            case "status":
                return {"header": header, "raftTerm": "3", "raftAppliedIndex": str(log)}
            case "txn":
                log += 1
                (change,) = json.loads(request.body)["success"]
                if put := change.get("request_put"):
                    written.append(json.loads(b64decode(put["value"])))
        return {"header": header}

    with pytest.raises(StoreUnavailable, match="keeps changing"):
        run_blocking(drive(new_cluster()._learn(), ask))
    told = [(one["cluster"], one["term"], one["applied"]) for one in written]
    assert told == [(CLUSTER, 3, 12 + 16), (CLUSTER, 3, 12 + 33), (CLUSTER, 3, 12 + 50)]


@pytest.mark.parametrize(
    "text",
    [
        "etcdserver: permission denied",
        "unknown service etcdserverpb.Maintenance",
        "Not Found",
        "unknown method Status for service etcdserverpb.Maintenance",
    ],
)
def test_a_member_that_does_not_tell_is_no_other_one(text: str) -> None:
    assert _asked(marked(START)[0], text) == (False, ["status"])


@pytest.mark.parametrize(
    "text",
    [
        "etcdserver: request timed out",
        "deadline exceeded",
        "etcdserver: invalid auth token",
    ],
)
def test_a_member_that_could_not_tell_now_is_not_trusted(text: str) -> None:
    with pytest.raises(StoreUnavailable, match="refuses a check"):
        _asked(marked(START)[0], text)


def test_an_answer_proves_nothing_once_its_incarnation_is_known_to_be_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another thread noticed it, on a connection of its own."""
    client = open_etcd("etcd://e1").store().operations
    client.cluster.incarnation = born = ClusterMarker("e", 5, "dmFsdWU=", 0.0)
    request = GatewayRequest(TXN, marker_value=born.value)
    reply = {"header": {"cluster_id": CLUSTER, "revision": 9}, "succeeded": True}

    async def answer(*_: object) -> dict[str, object]:
        return reply

    async def answer_late(*_: object) -> dict[str, object]:
        client.cluster.end_incarnation()
        return reply

    monkeypatch.setattr(client, "send_to_any_member", answer)
    assert run_blocking(client.send_checked(request, 0.0))["succeeded"]
    client.cluster.incarnation = ClusterMarker("f", 6, "bmV3", 0.0)
    with pytest.raises(OutcomeUnknown, match="another incarnation"):
        run_blocking(client.send_checked(request, 0.0))
    client.cluster.incarnation = born
    monkeypatch.setattr(client, "send_to_any_member", answer_late)
    with pytest.raises(OutcomeUnknown, match="another incarnation"):
        run_blocking(client.send_checked(request, 0.0))


@pytest.mark.parametrize("revision", [7, 12])
def test_a_late_answer_of_the_incarnation_before_says_nothing_of_this_one(
    monkeypatch: pytest.MonkeyPatch, revision: int
) -> None:
    client = open_etcd("etcd://e1").store().operations
    cluster = client.cluster
    cluster.incarnation, cluster.floor = ClusterMarker("e", 5, "b2xk", 0.0), (CLUSTER, 10)
    this = ClusterMarker("f", 6, "bmV3", 0.0)

    async def answer_late(*_: object) -> dict[str, object]:
        cluster.end_incarnation()
        cluster.incarnation, cluster.floor = this, (CLUSTER, 3)
        return {"header": {"cluster_id": CLUSTER, "revision": revision}}

    monkeypatch.setattr(client, "send_to_any_member", answer_late)
    with pytest.raises(OutcomeUnknown, match="another incarnation"):
        run_blocking(client.send_checked(GatewayRequest(TXN), 0.0))
    assert (cluster.incarnation, cluster.floor) == (this, (CLUSTER, 3))


def test_what_was_learnt_while_another_thread_noticed_its_end_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = open_etcd("etcd://e1").store().operations
    client.cluster.incarnation = old = ClusterMarker("e", 5, "dmFsdWU=", 0.0)
    client.cluster.end_incarnation()

    def learn() -> EtcdProgram[ClusterMarker]:
        yield from ()
        return old

    monkeypatch.setattr(client.cluster, "_learn", learn)
    with pytest.raises(OtherIncarnation):
        run_blocking(client.run_program(client.cluster.identify(), 0.0))
    assert client.cluster.incarnation is None


# -- tokens


def test_what_was_granted_before_is_bounded_by_the_time_whatever_the_revision_is() -> None:
    """A restore may raise the revision by a thousand million."""
    entry, fields = KeyValue("born", b"", 100, 100, ""), {"base": 7_000_000, "at": 1000.0}
    assert _highest_in(entry, fields, 1010.0, 250) == 7_000_250
    assert _highest_in(entry, fields, 1010.0, 10**9) == 7_000_100 + 10_000_000
    # The servers' clock stepped back.
    assert _highest_in(entry, fields, 990.0, 10**9) == 7_000_100
