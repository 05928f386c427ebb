"""Cases: "no", "not sent" and "don't know" are three answers."""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

from collections.abc import Callable

import pytest

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Gone, Renewed, Slot
from incumbent.testing.contract.bench import ANSWER_WITHIN, LONG, Bench
from incumbent.testing.contract.marks import needs

__all__ = ["FaultCases"]


class FaultCases:
    """An answer that was lost is not an answer, and a store that is away takes nothing."""

    @needs("lose_reply")
    def test_a_take_whose_answer_was_lost_is_the_same_grant_again(self, bench: Bench) -> None:
        claim = bench.draw()
        with bench.world.lose_reply(), pytest.raises(OutcomeUnknown):
            bench.take(claim=claim)
        (holding,) = bench.read().holdings
        assert bench.granted(claim=claim).token == holding.token
        assert len(bench.read().history) == 1

    @needs("lose_reply")
    def test_a_repeat_after_a_lost_answer_raises_the_ttl(self, bench: Bench) -> None:
        claim = bench.draw()
        with bench.world.lose_reply(), pytest.raises(OutcomeUnknown):
            bench.take(claim=claim, ttl=bench.ttl)
        bench.granted(claim=claim, ttl=bench.long)
        bench.outlive(bench.ttl)
        bench.refused()

    @needs("lose_reply")
    def test_a_take_that_was_refused_unheard_is_unknown_too(self, bench: Bench) -> None:
        grant = bench.granted()
        with bench.world.lose_reply(), pytest.raises(OutcomeUnknown):
            bench.take()
        assert bench.renew(grant) == Renewed()

    @needs("lose_reply")
    def test_who_never_heard_of_its_grant_can_give_it_back(self, bench: Bench) -> None:
        claim = bench.draw()
        with bench.world.lose_reply(), pytest.raises(OutcomeUnknown):
            bench.take(claim=claim)
        bench.store.give(bench.key(), claim, None, bench.until())
        bench.granted()

    @needs("lose_reply", "slots")
    def test_who_never_heard_of_its_slot_can_give_it_back(self, bench: Bench) -> None:
        claim, slot = bench.draw(), Slot("today", LONG)
        with bench.world.lose_reply(), pytest.raises(OutcomeUnknown):
            bench.take(claim=claim, slot=slot)
        bench.store.give(bench.key(), claim, None, bench.until(), slot=slot.name)
        bench.granted(slot=slot)

    @needs("lose_reply", "ttl_change")
    def test_a_renewal_whose_answer_was_lost_was_done(self, bench: Bench) -> None:
        grant = bench.granted(ttl=bench.ttl)
        with bench.world.lose_reply(), pytest.raises(OutcomeUnknown):
            bench.renew(grant, ttl=bench.long)
        bench.outlive(bench.ttl)
        assert bench.renew(grant) == Renewed()

    @needs("lose_reply")
    def test_a_release_whose_answer_was_lost_was_done(self, bench: Bench) -> None:
        grant = bench.granted()
        with bench.world.lose_reply(), pytest.raises(OutcomeUnknown):
            bench.give(grant)
        assert bench.give(grant) == Gone()
        bench.granted()

    @needs("lose_reply", "fields")
    def test_a_write_whose_answer_was_lost_was_done(self, bench: Bench) -> None:
        with bench.world.lose_reply(), pytest.raises(OutcomeUnknown):
            bench.put("state", b"1")
        assert bench.read().fields["state"].value == b"1"

    @needs("lose_reply")
    def test_a_lost_answer_is_never_taken_for_the_next_one(self, bench: Bench) -> None:
        grant = bench.granted("mine")
        with bench.world.lose_reply(), pytest.raises(OutcomeUnknown):
            bench.take("other")
        assert bench.refused("mine").holders[0].token == grant.token
        assert bench.renew(grant, "mine") == Renewed()

    @needs("cut")
    def test_a_store_that_is_away_is_no_answer_and_not_a_no(self, bench: Bench) -> None:
        grant = bench.granted()
        with bench.world.cut():
            for ask in _requests(bench):
                with pytest.raises(StoreError):
                    ask()
        assert bench.renew(grant) == Renewed()

    @needs("cut")
    def test_what_is_certainly_not_applied_says_so(self, bench: Bench) -> None:
        bench.read()
        with bench.world.cut():
            # The first request may have left on a connection that did not know yet.
            with pytest.raises(StoreError):
                bench.take("first")
            with pytest.raises(StoreUnavailable):
                bench.take("second")
        assert bench.read("second").holdings == ()
        bench.granted("second")

    @needs("cut")
    def test_a_store_that_is_away_delays_nobody_past_until(self, bench: Bench) -> None:
        with bench.world.cut():
            for ask in _requests(bench):
                started = clock.now()
                with pytest.raises(StoreError):
                    ask()
                assert clock.now() - started < ANSWER_WITHIN + 0.5

    @needs("cut")
    def test_a_wait_for_a_store_that_is_away_ends_at_until(self, bench: Bench) -> None:
        bench.granted()
        seen = bench.refused().seen
        with bench.world.cut():
            started = clock.now()
            try:
                bench.store.wait_change(bench.key(), seen, started + 0.3)
            except StoreError:
                pass  # saying that it cannot listen is as good as a hint
            assert clock.now() - started < ANSWER_WITHIN

    @needs("cut")
    def test_a_store_that_came_back_is_used_again(self, bench: Bench) -> None:
        with bench.world.cut(), pytest.raises(StoreError):
            bench.take()
        bench.granted("after")


def _requests(bench: Bench) -> list[Callable[[], object]]:
    grant_like = bench.draw()
    return [
        lambda: bench.take("new"),
        lambda: bench.store.give(bench.key("new"), grant_like, None, bench.until()),
        bench.read,
        bench.scan,
    ]
