"""When an etcd lease is proved: from before the keep-alive was sent, and in one raft term."""

from __future__ import annotations

from base64 import b64encode
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from incumbent.model import Key, Renewed
from incumbent.net.pool import Broken
from incumbent.rules.record import HISTORY_KEPT
from incumbent.stores.etcd import open_etcd, renewing
from incumbent.stores.etcd.incarnation import ClusterMarker, NotedTtl
from incumbent.stores.etcd.kv import EtcdProgram
from incumbent.stores.etcd.sessions import ClaimState, RenewalGroup, Session, Sessions
from incumbent.stores.etcd.site import EtcdSite, answer_by, parse_etcd_url
from incumbent.stores.url import Endpoint

T = TypeVar("T")

KEY = Key("default", "job")
BORN = ClusterMarker("e", 0, "", 0.0)


def session(sessions: Sessions | None = None, ttl: int = 10, proved: float = 100.0) -> Session:
    return (sessions or Sessions("/p")).add(Session("7", ttl, proved, "2"))


def mine(of: Session, lapses_at: float, claim: str = "c") -> ClaimState:
    return ClaimState(KEY, claim, of, lapses_at, "me", 0.0, 10.0, revision=5)


def test_a_keep_alive_alone_proves_nothing() -> None:
    one = session()
    one.note_answered(95.0, 10, "2")
    assert one.proved == 100.0


def test_a_keep_alive_is_proved_by_a_later_answer_of_the_same_term() -> None:
    one = session()
    one.note_answered(95.0, 10, "2")
    assert one.confirm(one.pending, "2")
    assert one.proved == 105.0


def test_of_a_lock_delay_nothing_may_be_missing_when_a_lease_begins() -> None:
    one = session(ttl=70, proved=170.0)
    assert one.is_fresh(110.0)
    assert one.is_fresh(101.9, lock_delay=60)
    assert not one.is_fresh(102.1, lock_delay=60)


def test_another_leader_in_between_proves_nothing() -> None:
    one = session()
    one.note_answered(95.0, 10, "2")
    assert not one.confirm(one.pending, "3")
    assert one.proved == 100.0


def test_with_the_next_leader_an_etcd_lease_serves_no_more() -> None:
    one = session()
    one.note_answered(95.0, 10, "3")
    assert not one.confirm(one.pending, "3")
    assert one.proved == 100.0
    assert not one.serves(10)
    assert not one.is_fresh(91.0)


@pytest.mark.parametrize(("before", "term"), [("2", "2"), ("1", None), ("", None)])
def test_only_a_term_that_was_heard_of_before_is_the_one_of_a_new_etcd_lease(
    before: str, term: str | None
) -> None:
    # Else the leader of the term before may have granted it.
    sessions = Sessions("/p")
    sessions.term = before
    grant = sessions.grant(10)
    next(grant)
    with pytest.raises(StopIteration) as done:
        grant.send({"header": {"raft_term": "2"}, "ID": "7", "TTL": "10"})
    assert done.value.value.term == term


def test_a_request_that_was_sent_before_the_keep_alive_was_answered_proves_nothing() -> None:
    one = session()
    noted = one.pending
    one.note_answered(95.0, 10, "2")
    assert not one.confirm(noted, "2")
    assert one.proved == 100.0


def test_two_keep_alives_in_flight_prove_no_more_than_the_later_one() -> None:
    one = session()
    one.note_answered(97.0, 10, "2")
    one.note_answered(95.0, 10, "2")
    one.confirm(one.pending, "2")
    assert one.proved == 107.0


def test_no_ttl_means_gone_and_a_late_answer_does_not_revive_it() -> None:
    sessions = Sessions("/p")
    one = session(sessions)
    sessions.remember(mine(one, 110.0))
    one.note_answered(95.0, 0, "2")
    sessions.forget_session(one)
    one.note_answered(94.0, 10, "2")
    assert one.gone
    assert not one.is_fresh(95.0)
    assert (sessions.claims, sessions.by_ttl, sessions.by_id) == ({}, {}, {})


class Overtaken(dict[int, T]):
    """A dict of which another thread removes all right after a look."""

    def get(self, key: int, default: Any = None) -> Any:
        found = super().get(key, default)
        self.clear()
        return found


def test_two_threads_may_find_an_etcd_lease_gone_at_once() -> None:
    sessions = Sessions("/p")
    session = sessions.add(Session("7", 3, 10.0))
    sessions.by_ttl = Overtaken(sessions.by_ttl)
    sessions.forget_session(session)
    assert session.gone


def test_two_threads_may_find_the_etcd_lease_of_their_places_gone_at_once() -> None:
    places = Sessions("/p").places
    first = places.keep_alive(3)
    next(first)
    with pytest.raises(StopIteration):
        first.send({"header": {}, "ID": "7", "TTL": "3"})
    places.remember_missing_lease()
    later = places.keep_alive(3)
    next(later)
    places._beats = Overtaken(places._beats)
    assert later.send({"header": {}, "result": {"TTL": "0"}}).path == "/v3/lease/grant"


def test_a_lease_that_has_used_up_a_fifth_is_not_fresh() -> None:
    assert session(proved=110.0).is_fresh(102.0)
    assert not session(proved=110.0).is_fresh(102.1)


def test_claims_that_were_not_renewed_are_overdue_though_their_session_lives() -> None:
    sessions = Sessions("/p")
    one = session(sessions, proved=1000.0)
    old, young = mine(one, 104.0, "old"), mine(one, 120.0, "young")
    sessions.remember(old)
    sessions.remember(young)
    assert sessions.overdue(one, 110.0) == [old]
    # It is not looked for at every renewal.
    assert sessions.overdue(one, 110.5) == []


def test_what_is_renewed_together_is_not_overdue() -> None:
    sessions = Sessions("/p")
    one = session(sessions, proved=1000.0)
    old, young = mine(one, 104.0, "old"), mine(one, 104.0, "young")
    group = RenewalGroup(104.0)
    for it in (old, young):
        sessions.remember(it)
        it.join(group)
    group.lapses_at = 120.0
    assert sessions.overdue(one, 110.0) == []
    sessions.forget_claim(KEY, "old")
    assert not group.intact
    # What was renewed with others stays renewed.
    assert (old.ends, young.ends) == (120.0, 120.0)
    assert sessions.overdue(one, 121.0) == [young]


def test_a_claim_that_is_noted_anew_is_not_renewed_with_those_from_before() -> None:
    sessions = Sessions("/p")
    one = session(sessions)
    before = mine(one, 104.0)
    sessions.remember(before)
    group = RenewalGroup(104.0)
    before.join(group)
    sessions.remember(mine(one, 110.0))
    assert not group.intact


def test_a_claim_of_a_short_ttl_is_looked_for_in_time() -> None:
    sessions = Sessions("/p")
    one = session(sessions, proved=1000.0)
    sessions.remember(mine(one, 200.0, "long"))
    assert sessions.overdue(one, 100.0) == []
    short = mine(one, 103.0, "short")
    sessions.remember(short)
    assert sessions.overdue(one, 103.5) == [short]


def test_holdings_are_noted_in_a_ring_and_one_that_was_not_granted_takes_no_place() -> None:
    sessions = Sessions("/p")
    assert sessions.history_key(KEY) == sessions.history_key(KEY)
    places = set()
    for _ in range(3 * HISTORY_KEPT):
        places.add(sessions.history_key(KEY))
        sessions.note_history_written(KEY)
    assert len(places) == HISTORY_KEPT
    assert not places & {Sessions("/p").history_key(KEY)}
    sessions.forget()
    assert sessions.history_key(KEY) not in places


def test_a_claim_that_moved_belongs_to_one_session() -> None:
    sessions = Sessions("/p")
    short, long = session(sessions), sessions.add(Session("8", 60, 160.0, "2"))
    sessions.remember(mine(short, 104.0))
    sessions.remember(mine(long, 160.0))
    sessions.forget_session(short)
    assert sessions.claims[KEY, "c"].session is long


def test_a_claim_that_moved_unheard_of_is_remembered_until_it_is_removed() -> None:
    sessions = Sessions("/p")
    old, new = session(sessions), sessions.add(Session("8", 10, 100.0, "3"))
    old.of_earlier_term = True
    sessions.remember(mine(old, 104.0))
    value = b64encode(b'{"claim":"c"}').decode()
    revisions = {"create_revision": "5", "mod_revision": "6"}
    there = {"key": "", "value": value, "lease": "8", **revisions}
    for removed in (False, True):
        old.swept = old.earliest = 0.0
        sweep = sessions.sweep(new)
        next(sweep)
        delete = sweep.send({"responses": [{"response_range": {"kvs": [there]}}]})
        assert b'"target":"LEASE","lease":"8"' in delete.body
        with pytest.raises(StopIteration):
            sweep.send({"responses": [{"response_txn": {"succeeded": removed}}]})
        assert list(sessions.claims) == ([] if removed else [(KEY, "c")])


def test_a_long_ttl_that_is_noted_beside_another_marker_is_not_noted() -> None:
    noted = NotedTtl("this", 60.0, 5)
    assert noted.covers(60.0, "this")
    assert not noted.covers(60.0, "another")
    assert not noted.covers(61.0, "this")
    # For so long everybody waits, whatever is noted.
    assert NotedTtl().covers(15.0, "this")


def test_who_failed_is_asked_last_and_who_answered_is_kept() -> None:
    a, b, c = (Endpoint(name, 2379) for name in "abc")
    site = EtcdSite(parse_etcd_url("etcd://a,b,c"))
    site.avoid(a, Broken("closed", sent=False))
    assert site.members == (b, c, a)
    site.prefer(b)
    assert site.members == (b, c, a)
    site.avoid(b, Broken("closed", sent=False))
    assert site.members == (c, a, b)
    site.prefer(a)
    assert site.members == (a, c, b)


def test_a_frozen_member_leaves_time_for_the_others() -> None:
    assert answer_by(0.0, 0.9, 2) == 0.3
    assert answer_by(0.0, 0.9, 0) == 0.9


@pytest.mark.parametrize(
    ("loud", "each", "proved"), [(None, True, False), ([], False, False), ([], True, True)]
)
def test_of_a_batch_nothing_is_proved_of_which_a_part_is_not(
    loud: list[Any] | None, each: bool, proved: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an election between two keep-alives only the session of the later one is confirmed."""
    work = renewing._Renewing(open_etcd("etcd://e1").store().operations.cluster, BORN, [])
    quiet = SimpleNamespace(at=0, alone=False)
    one = {"renewal": SimpleNamespace(key=KEY), "state": SimpleNamespace(own_key="")}
    written = SimpleNamespace(at=1, alone=True, **one)
    work.outcomes = [Renewed(), Renewed()]
    monkeypatch.setattr(work, "_verify_together", lambda _: told(loud))
    monkeypatch.setattr(work, "_verify_each", lambda _: told(each))
    assert outcome_of(work._verify(cast("Any", [quiet, written]))) == proved
    assert work.outcomes == ([Renewed()] * 2 if proved else [None] * 2)


def told(outcome: T) -> EtcdProgram[T]:
    yield from ()
    return outcome


def outcome_of(steps: EtcdProgram[T]) -> T:
    with pytest.raises(StopIteration) as end:
        next(steps)
    found: T = end.value.value
    return found


def test_a_watch_that_ends_while_all_are_ended_does_no_harm() -> None:
    operations: Any = open_etcd("etcd://h1").store().operations

    class Wire:
        def hang_up(self) -> None:
            streams.discard(self)

    streams = operations.streams = {Wire(), Wire()}
    operations.let_go()
    assert streams == set()
