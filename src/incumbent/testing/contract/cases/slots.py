"""Cases: a slot is a piece of work that is claimed once, along with the lease."""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

from incumbent.model import Gone, Granted, Refused, Released, Slot
from incumbent.testing.contract.bench import LONG, Bench
from incumbent.testing.contract.marks import needs

__all__ = ["SlotCases"]

_TODAY = Slot("2030-01-01", LONG)


class SlotCases:
    """What ran does not run again before the slot's time is over."""

    @needs("slots")
    def test_a_slot_is_claimed_once(self, bench: Bench) -> None:
        grant = bench.granted(slot=_TODAY, holder="alice")
        assert bench.give(grant) == Released()
        refusal = bench.refused(slot=_TODAY)
        assert (refusal.reason, refusal.holders[0].holder) == ("closed", "alice")
        assert refusal.retry_after is not None
        assert LONG / 2 < refusal.retry_after <= LONG + 1

    @needs("slots")
    def test_of_many_contenders_one_runs_the_slot(self, bench: Bench) -> None:
        def work(mine: Bench, _: int) -> bool:
            outcome = mine.take(slot=_TODAY)
            if isinstance(outcome, Granted):
                mine.give(outcome)
            return isinstance(outcome, Granted)

        assert sum(bench.in_threads(6, work)) == 1

    @needs("slots")
    def test_a_slot_outlives_a_holder_that_died(self, bench: Bench) -> None:
        bench.granted(slot=_TODAY, ttl=bench.ttl, keep_record=bench.ttl)
        bench.outlive(bench.ttl)
        assert bench.refused(slot=_TODAY).reason == "closed"

    @needs("slots")
    def test_a_slot_ends_when_its_time_is_over(self, bench: Bench) -> None:
        slot = Slot("short", bench.ttl)
        bench.give(bench.granted(slot=slot))
        bench.outlive(bench.ttl)
        bench.granted(slot=slot)

    @needs("slots")
    def test_slots_are_independent_of_each_other(self, bench: Bench) -> None:
        bench.give(bench.granted(slot=_TODAY))
        bench.give(bench.granted(slot=Slot("2030-01-02", LONG)))
        assert sorted(bench.read().slots) == ["2030-01-01", "2030-01-02"]
        assert bench.refused(slot=_TODAY).reason == "closed"

    @needs("slots")
    def test_a_slot_stops_nobody_who_does_not_ask_for_it(self, bench: Bench) -> None:
        bench.give(bench.granted(slot=_TODAY))
        bench.granted()

    @needs("slots")
    def test_the_same_slot_of_another_name_is_another_slot(self, bench: Bench) -> None:
        bench.give(bench.granted("a", slot=_TODAY), "a")
        bench.granted("b", slot=_TODAY)

    @needs("slots")
    def test_a_refused_take_claims_no_slot(self, bench: Bench) -> None:
        grant = bench.granted()
        assert bench.refused(slot=_TODAY).reason == "held"
        bench.give(grant)
        bench.granted(slot=_TODAY)

    @needs("slots")
    def test_who_claimed_a_slot_can_give_it_back(self, bench: Bench) -> None:
        grant = bench.granted(slot=_TODAY)
        assert bench.give(grant, slot=_TODAY.name) == Released()
        assert bench.read().slots == {}
        bench.granted(slot=_TODAY)

    @needs("slots")
    def test_nobody_else_can_give_a_slot_back(self, bench: Bench) -> None:
        bench.give(bench.granted(slot=_TODAY))
        stranger = bench.granted()
        assert bench.give(stranger, slot=_TODAY.name) == Released()
        nobody = Granted(bench.draw(), stranger.token, 1)
        assert bench.give(nobody, slot=_TODAY.name) == Gone()
        assert bench.refused(slot=_TODAY).reason == "closed"

    @needs("slots")
    def test_a_slot_can_be_given_back_after_the_lease_ended(self, bench: Bench) -> None:
        grant = bench.granted(slot=_TODAY, ttl=bench.ttl)
        bench.outlive(bench.ttl)
        assert bench.give(grant, slot=_TODAY.name) == Gone()
        bench.granted(slot=_TODAY)

    @needs("slots")
    def test_a_lost_answer_about_a_slot_is_asked_for_again(self, bench: Bench) -> None:
        first = bench.granted(slot=_TODAY)
        assert bench.granted(claim=first.claim, slot=_TODAY).token == first.token

    @needs("slots")
    def test_the_claim_that_has_the_slot_may_take_the_lease_again(self, bench: Bench) -> None:
        first = bench.granted(slot=_TODAY, ttl=bench.ttl)
        bench.outlive(bench.ttl)
        again = bench.take(claim=first.claim, slot=_TODAY)
        assert not isinstance(again, Refused)

    @needs("slots")
    def test_a_slot_shows_how_long_it_is_kept(self, bench: Bench) -> None:
        bench.granted(slot=_TODAY)
        assert LONG / 2 < bench.read().slots[_TODAY.name] <= LONG + 1
