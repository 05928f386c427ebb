"""Cases: who stands by for a lease, and for whom a release reserves it."""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

import pytest

from incumbent.model import Gone, Granted, Released, Slot
from incumbent.stores.table import CANDIDATES_KEPT
from incumbent.testing.contract.bench import LONG, Bench
from incumbent.testing.contract.marks import needs

__all__ = ["CandidateCases", "ReservationCases"]


_HOLDERS = ["a", "host:7/x", "50%-{b}", "\u00fc|,;=?#", "h" * 200]


def _standing(bench: Bench, name: str = "job") -> list[str]:
    return [one.holder for one in bench.read(name).candidates]


@needs("candidates")
class CandidateCases:
    """Who was refused and said so stands by, for as long as it said."""

    def test_who_is_refused_stands_by(self, bench: Bench) -> None:
        bench.granted(holder="alice")
        bench.refused(holder="carol", candidacy=bench.long)
        bench.refused(holder="bob", candidacy=bench.long)
        first, second = bench.read().candidates
        assert (first.holder, second.holder) == ("bob", "carol")
        assert bench.long / 2 < first.remaining <= bench.long + 0.1

    def test_who_does_not_say_so_is_no_candidate(self, bench: Bench) -> None:
        bench.granted()
        bench.refused(holder="bob")
        assert _standing(bench) == []

    @pytest.mark.parametrize("holder", _HOLDERS)
    def test_a_candidate_may_have_any_name(self, bench: Bench, holder: str) -> None:
        bench.granted()
        bench.refused(holder=holder, candidacy=bench.long)
        assert _standing(bench) == [holder]
        assert bench.scan() == ["job"]

    def test_who_stands_by_again_is_listed_once(self, bench: Bench) -> None:
        bench.granted()
        for _ in range(3):
            bench.refused(holder="bob", candidacy=bench.long)
        assert _standing(bench) == ["bob"]

    def test_a_candidacy_ends_when_its_time_is_over(self, bench: Bench) -> None:
        bench.granted()
        bench.refused(holder="bob", candidacy=bench.ttl)
        bench.refused(holder="carol", candidacy=bench.long)
        bench.outlive(bench.ttl)
        assert _standing(bench) == ["carol"]

    def test_a_grant_ends_the_own_candidacy_only(self, bench: Bench) -> None:
        grant = bench.granted(holder="alice", candidacy=bench.long)
        for holder in ("bob", "carol"):
            bench.refused(holder=holder, candidacy=bench.long)
        bench.give(grant)
        assert _standing(bench) == ["bob", "carol"]
        bench.granted(holder="bob", candidacy=bench.long)
        assert _standing(bench) == ["carol"]

    def test_a_candidate_is_no_change(self, bench: Bench) -> None:
        bench.granted()
        seen = bench.refused().seen
        bench.refused(holder="bob", candidacy=bench.long)
        assert bench.refused().seen == seen == bench.read().seen

    def test_a_repeated_take_is_no_candidacy(self, bench: Bench) -> None:
        grant = bench.granted(holder="alice", candidacy=bench.long)
        bench.granted(claim=grant.claim, holder="alice", candidacy=bench.long)
        assert _standing(bench) == []

    @needs("notices")
    def test_who_is_refused_by_a_pause_stands_by(self, bench: Bench) -> None:
        bench.pause()
        assert bench.refused(holder="bob", candidacy=bench.long).reason == "paused"
        assert _standing(bench) == ["bob"]

    @needs("slots")
    def test_who_is_refused_by_a_slot_stands_by(self, bench: Bench) -> None:
        slot = Slot("today", LONG)
        bench.give(bench.granted(slot=slot))
        bench.refused(holder="bob", candidacy=bench.long, slot=slot)
        assert _standing(bench) == ["bob"]
        assert bench.refused(holder="carol", slot=slot).reason == "closed"

    def test_candidates_of_different_names_are_apart(self, bench: Bench) -> None:
        for name in ("a", "a:w", "a/b"):
            bench.granted(name)
        bench.refused("a", holder="bob", candidacy=bench.long)
        assert [_standing(bench, name) for name in ("a", "a:w", "a/b")] == [["bob"], [], []]

    def test_the_list_of_candidates_is_bounded(self, bench: Bench) -> None:
        bench.granted()
        count = CANDIDATES_KEPT + 3
        for index in range(count):
            bench.refused(holder=f"h{index:03}", candidacy=bench.long / 2 + index / 10)
        assert _standing(bench) == [f"h{index:03}" for index in range(3, count)]


@needs("reservations")
class ReservationCases:
    """A closing that admits one: how a lease is handed to whom it is meant for."""

    @staticmethod
    def _reserve(bench: Bench, holder: str, seconds: float | None = None) -> Granted:
        grant = bench.granted(holder="alice", meta=b"old meta")
        closed_for = bench.long if seconds is None else seconds
        assert bench.give(grant, closed_for=closed_for, reserve_for=holder) == Released()
        return grant

    def test_a_reservation_refuses_everybody_else(self, bench: Bench) -> None:
        self._reserve(bench, "bob")
        refusal = bench.refused(holder="carol")
        assert (refusal.reason, [one.holder for one in refusal.holders]) == ("reserved", ["bob"])
        assert bench.lasts(refusal.retry_after)
        assert bench.refused(holder="alice").reason == "reserved"
        assert bench.refused(holder="").reason == "reserved"

    @pytest.mark.parametrize("holder", _HOLDERS)
    def test_a_reservation_admits_its_holder(self, bench: Bench, holder: str) -> None:
        before = self._reserve(bench, holder)
        bench.refused(holder=f"{holder}x"[-200:] if len(holder) < 200 else "h" * 199)
        grant = bench.granted(holder=holder, meta=b"new")
        assert grant.token > before.token
        assert [(one.holder, one.meta) for one in bench.read().holdings] == [(holder, b"new")]
        assert bench.refused(holder=holder).reason == "held"

    def test_a_grant_ends_the_reservation(self, bench: Bench) -> None:
        self._reserve(bench, "bob")
        bench.give(bench.granted(holder="bob"))
        assert (bench.read().reserved_for, bench.read().closed_for) == ("", 0.0)
        bench.granted(holder="carol")

    def test_a_reservation_ends_when_its_time_is_over(self, bench: Bench) -> None:
        self._reserve(bench, "bob", bench.ttl)
        bench.outlive(bench.ttl)
        assert bench.read().reserved_for == ""
        bench.granted(holder="carol")

    def test_a_reservation_can_be_read(self, bench: Bench) -> None:
        self._reserve(bench, "bob")
        record = bench.read()
        assert (record.reserved_for, record.holdings) == ("bob", ())
        assert bench.long / 2 < record.closed_for <= bench.long + 0.1

    def test_a_reservation_needs_a_time(self, bench: Bench) -> None:
        self._reserve(bench, "bob", 0.0)
        bench.granted(holder="carol")

    def test_a_stranger_reserves_nothing(self, bench: Bench) -> None:
        grant = bench.granted(holder="alice")
        stranger = grant._replace(claim=bench.draw())
        assert bench.give(stranger, closed_for=bench.long, reserve_for="bob") == Gone()
        assert bench.read().reserved_for == ""
        assert bench.refused(holder="bob").reason == "held"

    def test_a_closing_after_a_reservation_admits_nobody(self, bench: Bench) -> None:
        self._reserve(bench, "bob")
        bench.give(bench.granted(holder="bob"), closed_for=bench.long)
        assert bench.refused(holder="bob").reason == "closed"
        assert bench.refused(holder="").reason == "closed"

    @needs("notices")
    def test_a_pause_stops_also_whom_it_is_reserved_for(self, bench: Bench) -> None:
        self._reserve(bench, "bob")
        bench.pause()
        assert bench.refused(holder="bob").reason == "paused"
        bench.pause(None)
        bench.granted(holder="bob")

    @needs("slots")
    def test_a_reservation_opens_no_slot(self, bench: Bench) -> None:
        slot = Slot("today", LONG)
        bench.give(bench.granted(slot=slot))
        self._reserve(bench, "bob")
        assert bench.refused(holder="bob", slot=slot).reason == "closed"
        bench.granted(holder="bob")

    @needs("candidates")
    def test_who_is_refused_by_a_reservation_stands_by(self, bench: Bench) -> None:
        self._reserve(bench, "bob")
        bench.refused(holder="carol", candidacy=bench.long)
        bench.granted(holder="bob", candidacy=bench.long)
        assert _standing(bench) == ["carol"]

    def test_only_one_of_that_name_is_admitted(self, bench: Bench) -> None:
        self._reserve(bench, "bob")
        outcomes = bench.in_threads(4, lambda mine, _: mine.take(holder="bob"))
        assert sum(isinstance(outcome, Granted) for outcome in outcomes) == 1
