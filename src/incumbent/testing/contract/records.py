"""Cases: the record of a name, and its fields, notices and slots."""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

import pytest

from incumbent.model import (
    ABSENT,
    Ask,
    ByClaim,
    ByVersion,
    Gone,
    Granted,
    Guard,
    Key,
    Notice,
    Record,
    Refused,
    Released,
    Renewed,
    Slot,
    Stale,
    Stored,
)
from incumbent.rules.notices import RESIGN, encode_notice
from incumbent.rules.record import HISTORY_KEPT
from incumbent.testing.contract.bench import LONG, Bench, needs


class RecordCases:
    """A record shows present and past holders, and their times."""

    def test_a_name_that_nobody_ever_took_is_an_empty_record(self, bench: Bench) -> None:
        assert bench.read("unknown") == Record(bench.key("unknown"))

    def test_reading_creates_nothing(self, bench: Bench) -> None:
        bench.read("unknown")
        assert bench.scan() == []

    def test_a_namespace_that_nobody_ever_used_is_empty(self, bench: Bench) -> None:
        assert bench.scan() == []

    def test_a_record_shows_the_present_holder(self, bench: Bench) -> None:
        grant = bench.granted(holder="alice", meta=b"more")
        (holding,) = bench.read().holdings
        assert (holding.holder, holding.token, holding.claim, holding.meta, holding.foreign) == (
            "alice",
            grant.token,
            grant.claim,
            b"more",
            False,
        )
        assert bench.lasts(holding.remaining)

    def test_a_holding_never_shows_its_claim_in_a_log(self, bench: Bench) -> None:
        grant = bench.granted()
        assert grant.claim not in repr(bench.read())
        assert grant.claim not in repr(bench.refused())

    def test_the_history_names_holders_and_ends_in_order(self, bench: Bench) -> None:
        first = bench.granted(holder="alice")
        bench.give(first)
        second = bench.granted(holder="bob")
        past = bench.read().history
        assert [(one.holder, one.token) for one in past] == [
            ("alice", first.token),
            ("bob", second.token),
        ]
        assert past[0].ended is not None
        assert past[0].ended >= past[0].started > 0
        assert past[1].ended is None

    def test_a_repeated_take_is_one_holding_in_the_history(self, bench: Bench) -> None:
        first = bench.granted()
        bench.granted(claim=first.claim)
        bench.renew(first)
        assert len(bench.read().history) == 1

    def test_a_refused_take_is_not_in_the_history(self, bench: Bench) -> None:
        bench.granted(holder="alice")
        bench.refused()
        assert [one.holder for one in bench.read().history] == ["alice"]

    def test_a_claim_that_is_given_up_ends_in_the_history(self, bench: Bench) -> None:
        bench.give_up(bench.granted(holder="alice").claim)
        (past,) = bench.read().history
        assert (past.holder, past.ended is not None) == ("alice", True)

    def test_the_history_is_bounded(self, bench: Bench) -> None:
        for index in range(HISTORY_KEPT + 5):
            bench.give(bench.granted(holder=f"h{index}"))
        history = bench.read().history
        assert [one.holder for one in history] == [f"h{index + 5}" for index in range(HISTORY_KEPT)]
        assert all(past.ended is not None for past in history)

    def test_a_holding_that_expired_stays_in_the_history(self, bench: Bench) -> None:
        bench.expired(holder="alice")
        assert [one.holder for one in bench.read().history] == ["alice"]

    def test_reading_and_scanning_say_the_same(self, bench: Bench) -> None:
        grant = bench.granted("a", holder="alice")
        bench.give(grant, "a")
        bench.granted("b", holder="bob")
        records = bench.store.scan(bench.namespace, "", bench.until())
        shown = {one.key.name: [past.holder for past in one.history] for one in records}
        assert shown == {"a": ["alice"], "b": ["bob"]}
        assert [len(bench.read(name).history) for name in ("a", "b")] == [1, 1]


_ALIKE = (
    *("a", "A", "a.", "a-", "a_", "a:", "a/", "a@", "-a", ".a", "/a", "@a", ":a", "_a"),
    *("a.b", "a-b", "a_b", "a:b", "a/b", "a@b", "ab", "aB", "a//b", "a::b", "a:/b", "a/:b"),
    *("a/b/c", "a:b:c", "a/b:c", "a:b/c", "a-2Fb", "a_2Fb", "a.2Fb", "0", "00", "0.0", "-1"),
    *("pause", "a:pause", "a/pause", "a:token", "a:h", "a:f", "a:s", "a:history", "a:slots"),
    *("x" * 199, "x" * 200, "/" * 200, "x" * 100 + "/" + "x" * 99),
)
"""Names that a careless encoding maps to one key, or to another name's fields."""

_SPACES = ("", ".a", "-a", "_a", ".a.b", "A", "a")


class NameCases:
    """The encoding of names is injective."""

    def test_names_that_look_alike_are_different_leases(self, bench: Bench) -> None:
        grants = {name: bench.granted(name, holder=f"of {name}") for name in _ALIKE}
        for name, grant in grants.items():
            (holding,) = bench.read(name).holdings
            assert (holding.claim, holding.holder) == (grant.claim, f"of {name}")
        assert bench.scan() == sorted(_ALIKE)

    def test_namespaces_that_look_alike_are_apart(self, bench: Bench) -> None:
        keys = [
            Key(bench.namespace + space, name) for space in _SPACES for name in ("a", "a/b", "b")
        ]
        for key in keys:
            outcome = bench.store.take(key, bench.draw(), Ask(bench.long, str(key)), bench.until())
            assert isinstance(outcome, Granted)
        for key in keys:
            assert bench.store.read(key, bench.until()).holdings[0].holder == str(key)

    def test_a_scan_stays_in_its_namespace(self, bench: Bench) -> None:
        for space in _SPACES:
            key = Key(bench.namespace + space, f"of{space}")
            bench.store.take(key, bench.draw(), Ask(bench.long, "x"), bench.until())
        assert bench.scan() == ["of"]

    def test_a_scan_finds_what_begins_with_its_prefix(self, bench: Bench) -> None:
        for name in ("a", "a/b", "a/b/c", "a:b", "ab", "b/a", "A/b"):
            bench.granted(name)
        assert bench.scan("a/") == ["a/b", "a/b/c"]
        assert bench.scan("a") == ["a", "a/b", "a/b/c", "a:b", "ab"]
        assert bench.scan("c") == []

    def test_a_prefix_is_text_and_not_a_pattern(self, bench: Bench) -> None:
        for name in ("a.b", "a_b", "axb", "a-b"):
            bench.granted(name)
        assert bench.scan("a.") == ["a.b"]
        assert bench.scan("a_") == ["a_b"]
        assert [bench.scan(wild) for wild in ("*", "a*", "a%", "%", "a?b", "[a]")] == [[]] * 6

    def test_a_scan_finds_all_of_many(self, bench: Bench) -> None:
        names = sorted(f"job-{index}" for index in range(150))
        for name in names:
            bench.granted(name)
        assert bench.scan() == names


@needs("fields")
class FieldCases:
    """Fields are small values that are written only if their guard holds."""

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
    """An operator's notices: nobody takes a paused name, and renewals bring them to the holder."""

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

    def test_a_resign_notice_is_shown_no_more_once_the_next_holder_came(self, bench: Bench) -> None:
        first = bench.granted()
        bench.put(RESIGN, encode_notice(token=first.token))
        bench.give(first)
        bench.give(bench.granted())
        assert bench.read().fields == {}

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
    """A used slot is granted to nobody before its time is over."""

    def test_a_slot_is_claimed_once(self, bench: Bench) -> None:
        grant = bench.granted(slot=_TODAY, holder="alice")
        assert bench.give(grant) == Released()
        refusal = bench.refused(slot=_TODAY)
        assert (refusal.reason, refusal.holders[0].holder) == ("used", "alice")
        assert bench.lasts(refusal.retry_after, LONG)

    def test_a_used_slot_is_the_reason_also_of_a_name_that_is_closed(self, bench: Bench) -> None:
        bench.give(bench.granted(slot=_TODAY, holder="alice"), closed_for=LONG)
        refusal = bench.refused(slot=_TODAY)
        assert (refusal.reason, refusal.holders[0].holder) == ("used", "alice")
        assert bench.lasts(refusal.retry_after, LONG)
        assert bench.refused(slot=Slot("2030-01-02", LONG)).reason == "closed"

    def test_a_slot_is_not_used_up_while_its_holder_may_give_it_back(self, bench: Bench) -> None:
        bench.granted(slot=_TODAY, holder="alice")
        refusal = bench.refused(slot=_TODAY)
        assert (refusal.reason, refusal.holders[0].holder) == ("held", "alice")

    def test_a_name_that_is_held_is_refused_for_that_whatever_slot_is_used(
        self, bench: Bench
    ) -> None:
        bench.give(bench.granted(slot=_TODAY, holder="alice"))
        bench.granted(slot=Slot("2030-01-02", LONG), holder="bob")
        refusal = bench.refused(slot=_TODAY)
        assert (refusal.reason, refusal.holders[0].holder) == ("held", "bob")

    def test_a_repeated_take_uses_its_slot_no_longer(self, bench: Bench) -> None:
        slot = Slot("short", bench.ttl)
        grant = bench.granted(slot=slot)
        bench.outlive(bench.ttl)
        assert bench.granted(claim=grant.claim, slot=slot).token == grant.token
        assert bench.read().slots == {}

    def test_a_slot_outlives_a_holder_that_died(self, bench: Bench) -> None:
        bench.expired(slot=_TODAY, keep_record=bench.ttl)
        assert bench.refused(slot=_TODAY).reason == "used"

    def test_a_slot_ends_when_its_time_is_over(self, bench: Bench) -> None:
        slot = Slot("short", bench.ttl)
        bench.give(bench.granted(slot=slot))
        bench.outlive(bench.ttl)
        bench.granted(slot=slot)

    def test_slots_are_independent_of_each_other(self, bench: Bench) -> None:
        bench.give(bench.granted(slot=_TODAY))
        bench.give(bench.granted(slot=Slot("2030-01-02", LONG)))
        assert sorted(bench.read().slots) == ["2030-01-01", "2030-01-02"]
        assert bench.refused(slot=_TODAY).reason == "used"

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
        assert bench.refused(slot=_TODAY).reason == "used"

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
