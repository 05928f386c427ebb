"""Cases: fields beside the lease, their guards, and the switches that become notices."""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

import pytest

from incumbent.model import (
    ABSENT,
    ByClaim,
    ByVersion,
    Gone,
    Guard,
    Notice,
    Renewed,
    Stale,
    Stored,
)
from incumbent.stores.notices import PAUSE, RESIGN, encode_notice
from incumbent.testing.contract.bench import Bench
from incumbent.testing.contract.marks import needs

__all__ = ["FieldCases", "NoticeCases"]


class FieldCases:
    """Small values that are written only if their guard holds."""

    @staticmethod
    def _stored(bench: Bench, field: str, value: bytes | None, guard: Guard = None) -> Stored:
        outcome = bench.put(field, value, guard)
        assert isinstance(outcome, Stored)
        return outcome

    @needs("fields")
    def test_a_field_can_be_read_back(self, bench: Bench) -> None:
        stored = self._stored(bench, "state", b"green")
        field = bench.read().fields["state"]
        assert (field.value, field.version) == (b"green", stored.version)

    @pytest.mark.parametrize("value", [b"", b"\x00\xff\r\n", b"{}", "ü|:".encode(), bytes(1024)])
    @needs("fields")
    def test_a_field_keeps_every_byte(self, bench: Bench, value: bytes) -> None:
        bench.put("state", value)
        assert bench.read().fields["state"].value == value

    @needs("fields")
    def test_only_one_can_write_what_must_be_absent(self, bench: Bench) -> None:
        outcomes = bench.in_threads(4, lambda mine, i: mine.put("state", b"%d" % i, ABSENT))
        assert sum(isinstance(outcome, Stored) for outcome in outcomes) == 1
        assert outcomes.count(Stale()) == 3

    @needs("fields")
    def test_a_version_guards_against_a_lost_update(self, bench: Bench) -> None:
        first = self._stored(bench, "state", b"1")
        second = self._stored(bench, "state", b"2", ByVersion(first.version))
        assert second.version != first.version
        assert bench.put("state", b"3", ByVersion(first.version)) == Stale()
        assert bench.read().fields["state"].value == b"2"

    @needs("fields")
    def test_a_version_never_comes_back(self, bench: Bench) -> None:
        first = self._stored(bench, "state", b"1")
        self._stored(bench, "state", None)
        self._stored(bench, "state", b"1", ABSENT)
        assert bench.put("state", b"2", ByVersion(first.version)) == Stale()

    @needs("fields")
    def test_a_version_guard_needs_the_field(self, bench: Bench) -> None:
        assert bench.put("state", b"1", ByVersion(1)) == Stale()
        assert bench.put("state", b"1", ByVersion(0)) == Stale()
        assert bench.read().fields == {}

    @needs("fields")
    def test_an_operator_writes_without_a_guard(self, bench: Bench) -> None:
        self._stored(bench, "state", b"1")
        self._stored(bench, "state", b"2")
        assert bench.read().fields["state"].value == b"2"

    @needs("fields")
    def test_a_field_can_be_removed(self, bench: Bench) -> None:
        first = self._stored(bench, "state", b"1")
        assert bench.put("state", None, ByVersion(first.version + 1)) == Stale()
        assert self._stored(bench, "state", None, ByVersion(first.version)) == Stored(0)
        assert bench.read().fields == {}
        assert self._stored(bench, "state", None) == Stored(0)

    @needs("fields")
    def test_the_holder_writes_by_its_claim(self, bench: Bench) -> None:
        grant = bench.granted()
        assert isinstance(bench.put("state", b"mine", ByClaim(grant.claim, grant.token)), Stored)
        assert bench.put("state", b"x", ByClaim(bench.draw(), grant.token)) == Stale()
        assert bench.put("state", b"x", ByClaim(grant.claim, grant.token + 1)) == Stale()
        assert bench.read().fields["state"].value == b"mine"

    @needs("fields")
    def test_who_lost_the_lease_cannot_write_by_its_claim(self, bench: Bench) -> None:
        grant = bench.granted(ttl=bench.ttl)
        bench.outlive(bench.ttl)
        guard = ByClaim(grant.claim, grant.token)
        assert bench.put("state", b"late", guard) == Stale()
        bench.granted()
        assert bench.put("state", b"late", guard) == Stale()
        assert bench.read().fields == {}

    @needs("fields")
    def test_who_gave_the_lease_back_cannot_write_by_its_claim(self, bench: Bench) -> None:
        grant = bench.granted()
        bench.give(grant)
        assert bench.put("state", b"late", ByClaim(grant.claim, grant.token)) == Stale()

    @needs("fields")
    def test_a_refused_write_leaves_no_trace(self, bench: Bench) -> None:
        assert bench.put("state", b"x", ByVersion(7)) == Stale()
        assert bench.scan() == []

    @needs("fields")
    def test_fields_outlive_the_lease(self, bench: Bench) -> None:
        grant = bench.granted(ttl=bench.ttl, keep_record=bench.ttl)
        bench.put("state", b"kept")
        bench.give(grant)
        bench.outlive(bench.ttl)
        assert bench.read().fields["state"].value == b"kept"

    @needs("fields")
    def test_fields_of_different_names_are_apart(self, bench: Bench) -> None:
        bench.put("state", b"1", name="a")
        bench.put("b:state", b"2", name="a")
        bench.put("state", b"3", name="a:b")
        assert {name: it.value for name, it in bench.read("a").fields.items()} == {
            "state": b"1",
            "b:state": b"2",
        }
        assert {name: it.value for name, it in bench.read("a:b").fields.items()} == {"state": b"3"}

    @needs("fields")
    def test_a_field_is_no_lease(self, bench: Bench) -> None:
        bench.put("state", b"1")
        assert bench.read().holdings == ()
        bench.granted()


class NoticeCases:
    """An operator's switches: nobody takes what is paused, and the holder is told."""

    @needs("notices")
    def test_a_paused_name_is_granted_to_nobody(self, bench: Bench) -> None:
        bench.put(PAUSE, encode_notice(who="operator"))
        assert bench.refused().reason == "paused"
        bench.put(PAUSE, None)
        bench.granted()

    @needs("notices")
    def test_a_name_that_was_held_before_can_be_paused(self, bench: Bench) -> None:
        for _ in range(2):
            bench.give(bench.granted())
        bench.put(PAUSE, encode_notice(who="operator"))
        assert bench.refused().reason == "paused"
        bench.put(PAUSE, None)
        bench.granted()

    @needs("notices")
    def test_the_holder_is_told_of_a_pause(self, bench: Bench) -> None:
        grant = bench.granted()
        bench.put(PAUSE, encode_notice(who="operator", reason="upgrade"))
        assert bench.renew(grant) == Renewed((Notice("pause", "operator", "upgrade"),))
        bench.put(PAUSE, None)
        assert bench.renew(grant) == Renewed()

    @needs("notices")
    def test_a_pause_does_not_hide_who_holds(self, bench: Bench) -> None:
        bench.granted(holder="alice")
        bench.put(PAUSE, encode_notice())
        assert bench.refused().holders[0].holder == "alice"

    @needs("notices")
    def test_a_lost_answer_is_asked_for_again_during_a_pause(self, bench: Bench) -> None:
        first = bench.granted()
        bench.put(PAUSE, encode_notice())
        assert bench.granted(claim=first.claim).token == first.token

    @needs("notices")
    def test_a_pause_does_not_end_with_the_record(self, bench: Bench) -> None:
        grant = bench.granted(ttl=bench.ttl, keep_record=bench.ttl)
        bench.put(PAUSE, encode_notice(who="operator"))
        bench.put(RESIGN, encode_notice(token=grant.token))
        bench.put(RESIGN, None)
        bench.renew(grant, ttl=bench.ttl)
        bench.give(grant)
        bench.outlive(2 * bench.ttl)
        assert bench.refused().reason == "paused"

    @needs("notices")
    def test_a_pause_stops_one_name_only(self, bench: Bench) -> None:
        bench.put(PAUSE, encode_notice(), name="a")
        bench.granted("b")

    @pytest.mark.parametrize("value", [b"", b"\xff\xfe", b"[1, 2]", b"7", b'{"who": 1}'])
    @needs("notices")
    def test_a_pause_that_nobody_can_read_still_pauses(self, bench: Bench, value: bytes) -> None:
        grant = bench.granted("held")
        for name in ("free", "held"):
            bench.put(PAUSE, value, name=name)
        assert bench.refused("free").reason == "paused"
        outcome = bench.renew(grant, "held")
        assert isinstance(outcome, Renewed)
        assert [notice.kind for notice in outcome.notices] == ["pause"]

    @needs("notices")
    def test_the_holder_is_asked_to_resign(self, bench: Bench) -> None:
        grant = bench.granted()
        bench.put(RESIGN, encode_notice(who="operator", reason="tired", token=grant.token))
        assert bench.renew(grant) == Renewed((Notice("resign", "operator", "tired"),))

    @needs("notices")
    def test_the_holder_is_asked_to_hand_over(self, bench: Bench) -> None:
        grant = bench.granted()
        bench.put(RESIGN, encode_notice(to="bob", token=grant.token))
        assert bench.renew(grant) == Renewed((Notice("transfer", to="bob"),))

    @needs("notices")
    def test_a_resign_notice_does_not_reach_the_next_holder(self, bench: Bench) -> None:
        first = bench.granted()
        bench.put(RESIGN, encode_notice(token=first.token))
        bench.give(first)
        assert bench.renew(bench.granted()) == Renewed()

    @needs("notices")
    def test_a_resign_notice_that_comes_too_late_hits_nobody(self, bench: Bench) -> None:
        first = bench.granted()
        bench.give(first)
        second = bench.granted()
        bench.put(RESIGN, encode_notice(token=first.token))
        assert bench.renew(second) == Renewed()
        assert bench.renew(first) == Gone()

    @needs("notices")
    def test_a_resign_notice_stops_nobody_from_taking(self, bench: Bench) -> None:
        bench.put(RESIGN, encode_notice(token=1))
        bench.granted()

    @needs("notices")
    def test_notices_in_a_batch_reach_their_own_lease(self, bench: Bench) -> None:
        one, two = bench.granted("one"), bench.granted("two")
        bench.put(PAUSE, encode_notice(), name="two")
        assert bench.renew_all([bench.renewal(one, "one"), bench.renewal(two, "two")]) == [
            Renewed(),
            Renewed((Notice("pause"),)),
        ]
