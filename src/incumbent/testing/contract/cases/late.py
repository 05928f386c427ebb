"""Cases: a take that arrives after its claim was given up in doubt brings nothing."""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

from contextlib import suppress

import pytest

from incumbent.errors import OutcomeUnknown, StoreError
from incumbent.model import Ask, Gone, Granted, Queue, Queued, Released, Slot
from incumbent.testing.contract.bench import LONG, Bench
from incumbent.testing.contract.marks import needs

__all__ = ["LateCases"]

_TODAY = Slot("2030-01-01", LONG)


class LateCases:
    """Nobody waits for its answer any more, and nobody would ever give back what it brings."""

    @needs("refuses_late")
    def test_a_take_that_arrives_after_its_claim_was_given_up_brings_nothing(
        self, bench: Bench
    ) -> None:
        claim = bench.draw()
        assert _give_up(bench, claim) == Gone()
        _arrives(bench, claim)
        assert bench.read().holdings == ()
        bench.granted()

    @needs("refuses_late")
    def test_it_brings_nothing_after_a_ttl_either(self, bench: Bench) -> None:
        claim = bench.draw()
        _give_up(bench, claim)
        bench.outlive(bench.ttl)
        _arrives(bench, claim)
        assert bench.read().holdings == ()
        bench.granted()

    @needs("refuses_late")
    def test_a_second_take_of_a_claim_that_was_granted_and_given_up_brings_nothing(
        self, bench: Bench
    ) -> None:
        grant = bench.granted()
        assert _give_up(bench, grant.claim) == Released()
        _arrives(bench, grant.claim)
        assert bench.read().holdings == ()
        bench.granted()

    @needs("refuses_late", "lose_reply")
    def test_a_second_take_of_a_claim_that_nobody_heard_of_brings_nothing(
        self, bench: Bench
    ) -> None:
        claim = bench.draw()
        with bench.world.lose_reply(), pytest.raises(OutcomeUnknown):
            bench.take(claim=claim)
        assert _give_up(bench, claim) == Released()
        _arrives(bench, claim)
        bench.granted()

    @needs("refuses_late", "slots")
    def test_a_take_that_arrives_too_late_uses_no_slot(self, bench: Bench) -> None:
        claim = bench.draw()
        assert _give_up(bench, claim, slot=_TODAY.name) == Gone()
        _arrives(bench, claim, slot=_TODAY)
        assert bench.read().slots == {}
        bench.granted(slot=_TODAY)

    @needs("refuses_late", "queue")
    def test_a_take_that_arrives_too_late_stands_in_no_line(self, bench: Bench) -> None:
        grant = bench.granted()
        late, waiter = bench.draw(), bench.draw()
        _give_up(bench, late)
        queue = Queue(bench.long, fair=True)
        _arrives(bench, late, queue=queue)
        ask = Ask(bench.long, "the-waiter", queue=queue)
        queued = bench.store.take(bench.key(), waiter, ask, bench.until())
        assert isinstance(queued, Queued)
        assert queued.place == 0
        bench.give(grant)
        assert isinstance(bench.store.take(bench.key(), waiter, ask, bench.until()), Granted)

    @needs("refuses_late")
    def test_others_are_granted_meanwhile_and_keep_what_they_have(self, bench: Bench) -> None:
        claim = bench.draw()
        _give_up(bench, claim)
        grant = bench.granted(holder="bob")
        _arrives(bench, claim)
        assert bench.refused().holders[0].holder == "bob"
        assert bench.give(grant) == Released()


def _give_up(bench: Bench, claim: str, slot: str | None = None) -> object:
    """As whoever does not know whether its take was, or will be, carried out."""
    return bench.store.give(bench.key(), claim, None, bench.until(), slot=slot)


def _arrives(
    bench: Bench, claim: str, *, slot: Slot | None = None, queue: Queue | None = None
) -> None:
    """The take arrives; what is answered reaches nobody, as long as it is no grant."""
    ask = Ask(bench.long, "the-late", slot=slot, queue=queue)
    with suppress(StoreError):
        outcome = bench.store.take(bench.key(), claim, ask, bench.until())
        assert not isinstance(outcome, Granted), outcome
