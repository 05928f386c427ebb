"""Cases: what stands beside the lease: fields, an operator's switches, slots."""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

import pytest

from incumbent.model import (
    ABSENT,
    ByClaim,
    ByVersion,
    Gone,
    Granted,
    Guard,
    Notice,
    Refused,
    Released,
    Renewed,
    Slot,
    Stale,
    Stored,
)
from incumbent.stores.notices import RESIGN, encode_notice
from incumbent.testing.contract.bench import LONG, Bench
from incumbent.testing.contract.marks import needs

__all__ = ["FieldCases", "NoticeCases", "SlotCases"]


@needs("fields")
class FieldCases:
    """Small values that are written only if their guard holds."""

    @staticmethod
    def _stored(bench: Bench, field: str, value: bytes | None, guard: Guard = None) -> Stored:
        outcome = bench.put(field, value, guard)
        assert isinstance(outcome, Stored)
        return outcome

    def test_a_field_can_be_read_back(self, bench: Bench) -> None:
        stored = self._stored(bench, "state", b"green")
        field = bench.read().fields["state"]
        assert (field.value, field.version) == (b"green", stored.version)

    @pytest.mark.parametrize("value", [b"", b"\x00\xff\r\n", b"{}", "ü|:".encode(), bytes(1024)])
    def test_a_field_keeps_every_byte(self, bench: Bench, value: bytes) -> None:
        bench.put("state", value)
        assert bench.read().fields["state"].value == value

    def test_only_one_can_write_what_must_be_absent(self, bench: Bench) -> None:
        outcomes = bench.in_threads(4, lambda mine, i: mine.put("state", b"%d" % i, ABSENT))
        assert sum(isinstance(outcome, Stored) for outcome in outcomes) == 1
        assert outcomes.count(Stale()) == 3

    def test_a_version_guards_against_a_lost_update(self, bench: Bench) -> None:
        first = self._stored(bench, "state", b"1")
        second = self._stored(bench, "state", b"2", ByVersion(first.version))
        assert second.version != first.version
        assert bench.put("state", b"3", ByVersion(first.version)) == Stale()
        assert bench.read().fields["state"].value == b"2"

    def test_a_version_never_comes_back(self, bench: Bench) -> None:
        first = self._stored(bench, "state", b"1")
        self._stored(bench, "state", None)
        self._stored(bench, "state", b"1", ABSENT)
        assert bench.put("state", b"2", ByVersion(first.version)) == Stale()

    def test_a_version_guard_needs_the_field(self, bench: Bench) -> None:
        assert bench.put("state", b"1", ByVersion(1)) == Stale()
        assert bench.put("state", b"1", ByVersion(0)) == Stale()
        assert bench.read().fields == {}

    def test_an_operator_writes_without_a_guard(self, bench: Bench) -> None:
        self._stored(bench, "state", b"1")
        self._stored(bench, "state", b"2")
        assert bench.read().fields["state"].value == b"2"

    def test_a_field_can_be_removed(self, bench: Bench) -> None:
        first = self._stored(bench, "state", b"1")
        assert bench.put("state", None, ByVersion(first.version + 1)) == Stale()
        assert self._stored(bench, "state", None, ByVersion(first.version)) == Stored(0)
        assert bench.read().fields == {}
        assert self._stored(bench, "state", None) == Stored(0)

    def test_the_holder_writes_by_its_claim(self, bench: Bench) -> None:
        grant = bench.granted()
        assert isinstance(bench.put("state", b"mine", ByClaim(grant.claim, grant.token)), Stored)
        assert bench.put("state", b"x", ByClaim(bench.draw(), grant.token)) == Stale()
        assert bench.put("state", b"x", ByClaim(grant.claim, grant.token + 1)) == Stale()
        assert bench.read().fields["state"].value == b"mine"

    def test_who_lost_the_lease_cannot_write_by_its_claim(self, bench: Bench) -> None:
        grant = bench.expired()
        guard = ByClaim(grant.claim, grant.token)
        assert bench.put("state", b"late", guard) == Stale()
        bench.granted()
        assert bench.put("state", b"late", guard) == Stale()
        assert bench.read().fields == {}

    def test_who_gave_the_lease_back_cannot_write_by_its_claim(self, bench: Bench) -> None:
        grant = bench.granted()
        bench.give(grant)
        assert bench.put("state", b"late", ByClaim(grant.claim, grant.token)) == Stale()

    def test_a_refused_write_leaves_no_trace(self, bench: Bench) -> None:
        assert bench.put("state", b"x", ByVersion(7)) == Stale()
        assert bench.scan() == []

    def test_fields_outlive_the_lease(self, bench: Bench) -> None:
        grant = bench.granted(ttl=bench.ttl, keep_record=bench.ttl)
        bench.put("state", b"kept")
        bench.give(grant)
        bench.outlive(bench.ttl)
        assert bench.read().fields["state"].value == b"kept"

    def test_fields_of_different_names_are_apart(self, bench: Bench) -> None:
        bench.put("state", b"1", name="a")
        bench.put("b:state", b"2", name="a")
        bench.put("state", b"3", name="a:b")
        assert {name: field.value for name, field in bench.read("a").fields.items()} == {
            "state": b"1",
            "b:state": b"2",
        }
        assert {name: field.value for name, field in bench.read("a:b").fields.items()} == {
            "state": b"3"
        }

    def test_a_field_is_no_lease(self, bench: Bench) -> None:
        bench.put("state", b"1")
        assert bench.read().holdings == ()
        bench.granted()


@needs("notices")
class NoticeCases:
    """An operator's switches: nobody takes what is paused, and the holder is told."""

    def test_a_paused_name_is_granted_to_nobody(self, bench: Bench) -> None:
        bench.pause()
        assert bench.refused().reason == "paused"
        bench.pause(None)
        bench.granted()

    def test_a_name_that_was_held_before_can_be_paused(self, bench: Bench) -> None:
        for _ in range(2):
            bench.give(bench.granted())
        bench.pause()
        assert bench.refused().reason == "paused"
        bench.pause(None)
        bench.granted()

    def test_the_holder_is_told_of_a_pause(self, bench: Bench) -> None:
        grant = bench.granted()
        bench.pause(encode_notice(who="operator", reason="upgrade"))
        assert bench.renew(grant) == Renewed((Notice("pause", "operator", "upgrade"),))
        bench.pause(None)
        assert bench.renew(grant) == Renewed()

    def test_a_pause_does_not_hide_who_holds(self, bench: Bench) -> None:
        bench.granted(holder="alice")
        bench.pause()
        assert bench.refused().holders[0].holder == "alice"

    def test_a_lost_answer_is_asked_for_again_during_a_pause(self, bench: Bench) -> None:
        first = bench.granted()
        bench.pause()
        assert bench.granted(claim=first.claim).token == first.token

    def test_a_pause_does_not_end_with_the_record(self, bench: Bench) -> None:
        grant = bench.granted(ttl=bench.ttl, keep_record=bench.ttl)
        bench.pause()
        bench.put(RESIGN, encode_notice(token=grant.token))
        bench.put(RESIGN, None)
        bench.renew(grant, ttl=bench.ttl)
        bench.give(grant)
        bench.outlive(2 * bench.ttl)
        assert bench.refused().reason == "paused"

    def test_a_pause_stops_one_name_only(self, bench: Bench) -> None:
        bench.pause(name="a")
        bench.granted("b")

    @pytest.mark.parametrize("value", [b"", b"\xff\xfe", b"[1, 2]", b"7", b'{"who": 1}'])
    def test_a_pause_that_nobody_can_read_still_pauses(self, bench: Bench, value: bytes) -> None:
        grant = bench.granted("held")
        for name in ("free", "held"):
            bench.pause(value, name)
        assert bench.refused("free").reason == "paused"
        outcome = bench.renew(grant, "held")
        assert isinstance(outcome, Renewed)
        assert [notice.kind for notice in outcome.notices] == ["pause"]

    def test_the_holder_is_asked_to_resign(self, bench: Bench) -> None:
        grant = bench.granted()
        bench.put(RESIGN, encode_notice(who="operator", reason="tired", token=grant.token))
        assert bench.renew(grant) == Renewed((Notice("resign", "operator", "tired"),))

    def test_the_holder_is_asked_to_hand_over(self, bench: Bench) -> None:
        grant = bench.granted()
        bench.put(RESIGN, encode_notice(to="bob", token=grant.token))
        assert bench.renew(grant) == Renewed((Notice("transfer", to="bob"),))

    def test_a_resign_notice_does_not_reach_the_next_holder(self, bench: Bench) -> None:
        first = bench.granted()
        bench.put(RESIGN, encode_notice(token=first.token))
        bench.give(first)
        assert bench.renew(bench.granted()) == Renewed()

    def test_a_resign_notice_that_comes_too_late_hits_nobody(self, bench: Bench) -> None:
        first = bench.granted()
        bench.give(first)
        second = bench.granted()
        bench.put(RESIGN, encode_notice(token=first.token))
        assert bench.renew(second) == Renewed()
        assert bench.renew(first) == Gone()

    def test_a_resign_notice_stops_nobody_from_taking(self, bench: Bench) -> None:
        bench.put(RESIGN, encode_notice(token=1))
        bench.granted()

    def test_notices_in_a_batch_reach_their_own_lease(self, bench: Bench) -> None:
        one, two = bench.granted("one"), bench.granted("two")
        bench.pause(encode_notice(), "two")
        assert bench.renew_all([bench.renewal(one, "one"), bench.renewal(two, "two")]) == [
            Renewed(),
            Renewed((Notice("pause"),)),
        ]


_TODAY = Slot("2030-01-01", LONG)


@needs("slots")
class SlotCases:
    """What ran does not run again before the slot's time is over."""

    def test_a_slot_is_claimed_once(self, bench: Bench) -> None:
        grant = bench.granted(slot=_TODAY, holder="alice")
        assert bench.give(grant) == Released()
        refusal = bench.refused(slot=_TODAY)
        assert (refusal.reason, refusal.holders[0].holder) == ("closed", "alice")
        assert bench.lasts(refusal.retry_after, LONG)

    def test_of_many_contenders_one_runs_the_slot(self, bench: Bench) -> None:
        def work(mine: Bench, _: int) -> bool:
            outcome = mine.take(slot=_TODAY)
            if isinstance(outcome, Granted):
                mine.give(outcome)
            return isinstance(outcome, Granted)

        assert sum(bench.in_threads(6, work)) == 1

    def test_a_slot_outlives_a_holder_that_died(self, bench: Bench) -> None:
        bench.expired(slot=_TODAY, keep_record=bench.ttl)
        assert bench.refused(slot=_TODAY).reason == "closed"

    def test_a_slot_ends_when_its_time_is_over(self, bench: Bench) -> None:
        slot = Slot("short", bench.ttl)
        bench.give(bench.granted(slot=slot))
        bench.outlive(bench.ttl)
        bench.granted(slot=slot)

    def test_slots_are_independent_of_each_other(self, bench: Bench) -> None:
        bench.give(bench.granted(slot=_TODAY))
        bench.give(bench.granted(slot=Slot("2030-01-02", LONG)))
        assert sorted(bench.read().slots) == ["2030-01-01", "2030-01-02"]
        assert bench.refused(slot=_TODAY).reason == "closed"

    def test_a_slot_stops_nobody_who_does_not_ask_for_it(self, bench: Bench) -> None:
        bench.give(bench.granted(slot=_TODAY))
        bench.granted()

    def test_the_same_slot_of_another_name_is_another_slot(self, bench: Bench) -> None:
        bench.give(bench.granted("a", slot=_TODAY), "a")
        bench.granted("b", slot=_TODAY)

    def test_a_refused_take_claims_no_slot(self, bench: Bench) -> None:
        grant = bench.granted()
        assert bench.refused(slot=_TODAY).reason == "held"
        bench.give(grant)
        bench.granted(slot=_TODAY)

    def test_who_claimed_a_slot_can_give_it_back(self, bench: Bench) -> None:
        grant = bench.granted(slot=_TODAY)
        assert bench.give(grant, slot=_TODAY.name) == Released()
        assert bench.read().slots == {}
        bench.granted(slot=_TODAY)

    def test_nobody_else_can_give_a_slot_back(self, bench: Bench) -> None:
        bench.give(bench.granted(slot=_TODAY))
        stranger = bench.granted()
        assert bench.give(stranger, slot=_TODAY.name) == Released()
        nobody = Granted(bench.draw(), stranger.token, 1)
        assert bench.give(nobody, slot=_TODAY.name) == Gone()
        assert bench.refused(slot=_TODAY).reason == "closed"

    def test_a_slot_can_be_given_back_after_the_lease_ended(self, bench: Bench) -> None:
        grant = bench.expired(slot=_TODAY)
        assert bench.give(grant, slot=_TODAY.name) == Gone()
        bench.granted(slot=_TODAY)

    def test_a_lost_answer_about_a_slot_is_asked_for_again(self, bench: Bench) -> None:
        first = bench.granted(slot=_TODAY)
        assert bench.granted(claim=first.claim, slot=_TODAY).token == first.token

    def test_the_claim_that_has_the_slot_may_take_the_lease_again(self, bench: Bench) -> None:
        first = bench.expired(slot=_TODAY)
        again = bench.take(claim=first.claim, slot=_TODAY)
        assert not isinstance(again, Refused)

    def test_a_slot_shows_how_long_it_is_kept(self, bench: Bench) -> None:
        bench.granted(slot=_TODAY)
        assert bench.lasts(bench.read().slots[_TODAY.name], LONG)
