"""Cases: those who wait stand in line, and whose turn it is."""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from incumbent import clock
from incumbent.model import OVERTAKEN_MOST, Ask, Gone, Granted, Queue, Queued, Refused, TakeOutcome
from incumbent.stores.notices import PAUSE, encode_notice
from incumbent.testing.contract.bench import Bench
from incumbent.testing.contract.cases import waits
from incumbent.testing.contract.marks import needs

__all__ = ["LineCases"]


def _ask(
    bench: Bench,
    claim: str,
    *,
    fair: bool = True,
    heartbeat: float | None = None,
    ttl: float | None = None,
    name: str = "job",
    candidacy: float = 0.0,
) -> TakeOutcome:
    """One that waits asks; its holder's name is the start of its claim."""
    queue = Queue(bench.long if heartbeat is None else heartbeat, fair)
    life = bench.long if ttl is None else ttl
    ask = Ask(life, claim[:8], queue=queue, candidacy=candidacy)
    return bench.store.take(bench.key(name), claim, ask, bench.until())


def _place(
    bench: Bench, claim: str, *, fair: bool = True, heartbeat: float | None = None
) -> Queued:
    outcome = _ask(bench, claim, fair=fair, heartbeat=heartbeat)
    assert isinstance(outcome, Queued), outcome
    return outcome


def _got(bench: Bench, claim: str, *, fair: bool = True, heartbeat: float | None = None) -> Granted:
    outcome = _ask(bench, claim, fair=fair, heartbeat=heartbeat)
    assert isinstance(outcome, Granted), outcome
    assert outcome.claim == claim
    return outcome


def _waiters(bench: Bench, count: int) -> list[str]:
    return [bench.draw() for _ in range(count)]


class LineCases:
    """The first in line has its turn, for as long as it is heard of."""

    @needs("queue")
    def test_who_waits_stands_in_line_in_the_order_of_arrival(self, bench: Bench) -> None:
        bench.granted(holder="alice")
        for place, claim in enumerate(_waiters(bench, 3)):
            queued = _place(bench, claim)
            assert (queued.place, queued.reason) == (place, "held")
            assert [it.holder for it in queued.holders] == ["alice"]

    @needs("queue")
    def test_who_asks_again_keeps_its_place(self, bench: Bench) -> None:
        bench.granted()
        claims = _waiters(bench, 3)
        for claim in (*claims, *reversed(claims)):
            assert _place(bench, claim).place == claims.index(claim)

    @needs("queue")
    def test_a_fair_line_is_served_in_the_order_of_arrival(self, bench: Bench) -> None:
        grant = bench.granted()
        first, second, third = _waiters(bench, 3)
        for claim in (first, second, third):
            _place(bench, claim)
        for claim, others in ((first, (third, second)), (second, (third,)), (third, ())):
            bench.give(grant)
            for other in others:
                assert _place(bench, other).reason == "reserved"
            grant = _got(bench, claim)

    @needs("queue")
    def test_nobody_comes_before_one_that_asked_for_fairness(self, bench: Bench) -> None:
        grant = bench.granted()
        first = bench.draw()
        _place(bench, first)
        bench.give(grant)
        for _ in range(OVERTAKEN_MOST + 2):
            refusal = bench.refused()
            assert (refusal.reason, refusal.holders[0].holder) == ("reserved", first[:8])
            assert refusal.retry_after is not None
            assert 0 < refusal.retry_after <= bench.long + 0.1
            assert _place(bench, bench.draw(), fair=False).reason == "reserved"
        _got(bench, first)

    @needs("queue")
    def test_one_that_did_not_is_overtaken_a_few_times_at_most(self, bench: Bench) -> None:
        grant = bench.granted()
        first = bench.draw()
        _place(bench, first, fair=False)
        for _ in range(OVERTAKEN_MOST):
            bench.give(grant)
            grant = bench.granted()
            assert _place(bench, first, fair=False).place == 0
        bench.give(grant)
        assert bench.refused().reason == "reserved"
        assert isinstance(_ask(bench, bench.draw(), fair=False), Queued)
        _got(bench, first, fair=False)

    @needs("queue")
    def test_a_grant_in_turn_begins_the_count_anew(self, bench: Bench) -> None:
        grant = bench.granted()
        first, second = _waiters(bench, 2)
        for claim in (first, second):
            _place(bench, claim, fair=False)
        for _ in range(OVERTAKEN_MOST):
            bench.give(grant)
            grant = bench.granted()
        bench.give(grant)
        bench.give(_got(bench, first, fair=False))
        assert isinstance(bench.take(), Granted)

    @needs("queue")
    def test_a_silent_first_has_its_turn_no_longer_than_its_heartbeat(self, bench: Bench) -> None:
        grant = bench.granted()
        silent, second = _waiters(bench, 2)
        _place(bench, silent, heartbeat=bench.ttl)
        _place(bench, second)
        bench.give(grant)
        assert isinstance(_ask(bench, second), Queued)
        bench.outlive(bench.ttl)
        _got(bench, second)

    @needs("queue")
    def test_the_turn_passes_when_the_holder_died_and_the_first_is_silent(
        self, bench: Bench
    ) -> None:
        bench.granted(ttl=bench.ttl)
        silent, second, third = _waiters(bench, 3)
        _place(bench, silent, heartbeat=bench.ttl)
        _place(bench, second)
        bench.outlive(bench.ttl)
        bench.outlive(bench.ttl)
        # Who looks then may take it, and does not come before another one in vain.
        bench.give(_got(bench, second))
        assert isinstance(_ask(bench, third, ttl=bench.ttl), Granted)

    @needs("queue")
    def test_the_first_has_its_turn_also_when_the_holder_died(self, bench: Bench) -> None:
        bench.granted(ttl=bench.ttl)
        first = bench.draw()
        _place(bench, first)
        bench.outlive(bench.ttl)
        assert bench.refused().reason == "reserved"
        _got(bench, first)

    @needs("queue")
    def test_who_leaves_the_line_is_not_waited_for(self, bench: Bench) -> None:
        grant = bench.granted()
        first, second = _waiters(bench, 2)
        for claim in (first, second):
            _place(bench, claim)
        bench.store.give(bench.key(), first, None, bench.until())
        assert _place(bench, second).place == 0
        bench.give(grant)
        _got(bench, second)

    @needs("queue")
    def test_who_leaves_without_having_been_granted_is_not_waited_for_and_may_come_again(
        self, bench: Bench
    ) -> None:
        grant = bench.granted()
        first, second = _waiters(bench, 2)
        for claim in (first, second):
            _place(bench, claim)
        assert bench.store.give(bench.key(), first, 0, bench.until()) == Gone()
        assert [_place(bench, claim).place for claim in (second, first)] == [0, 1]
        bench.give(grant)
        bench.give(_got(bench, second))
        _got(bench, first)

    @needs("queue")
    def test_who_leaves_when_its_turn_has_come_passes_it_on(self, bench: Bench) -> None:
        grant = bench.granted()
        first, second = _waiters(bench, 2)
        _place(bench, first)
        bench.give(grant)
        seen = _place(bench, second).seen
        bench.store.give(bench.key(), first, None, bench.until())
        started = clock.now()
        bench.store.wait_change(bench.key(), seen, started + waits.PATIENCE)
        assert clock.now() - started < waits.HINTED_WITHIN
        _got(bench, second)

    @needs("queue")
    def test_who_was_granted_stands_in_line_no_more(self, bench: Bench) -> None:
        grant = bench.granted()
        first, second = _waiters(bench, 2)
        _place(bench, first)
        bench.give(grant)
        grant = _got(bench, first)
        assert _place(bench, second).place == 0
        bench.give(grant)
        _got(bench, second)

    @needs("queue")
    def test_the_holder_repeats_its_take_whoever_waits(self, bench: Bench) -> None:
        claim = bench.draw()
        grant = _got(bench, claim)
        _place(bench, bench.draw())
        again = _got(bench, claim)
        assert again.token == grant.token

    @needs("queue")
    def test_who_tries_once_stands_in_no_line(self, bench: Bench) -> None:
        grant = bench.granted()
        assert not isinstance(bench.take(), Queued)
        first = bench.draw()
        assert _place(bench, first).place == 0
        bench.give(grant)
        _got(bench, first)

    @needs("queue")
    def test_waiting_is_no_change(self, bench: Bench) -> None:
        bench.granted()
        seen = bench.refused().seen
        _place(bench, bench.draw())
        assert bench.refused().seen == seen == bench.read().seen

    @needs("queue")
    def test_lines_of_different_names_are_apart(self, bench: Bench) -> None:
        for name in ("a", "a:q", "a/b"):
            bench.granted(name)
            queued = _ask(bench, bench.draw(), name=name)
            assert isinstance(queued, Queued)
            assert queued.place == 0
        assert bench.scan() == ["a", "a/b", "a:q"]

    @needs("queue", "reservations")
    def test_a_successor_comes_before_the_line(self, bench: Bench) -> None:
        grant = bench.granted()
        first = bench.draw()
        _place(bench, first)
        bench.give(grant, closed_for=bench.long, reserve_for="bob")
        assert _place(bench, first).reason == "reserved"
        grant = bench.granted(holder="bob")
        bench.give(grant)
        _got(bench, first)

    @needs("queue", "notices")
    def test_a_pause_keeps_the_line(self, bench: Bench) -> None:
        grant = bench.granted()
        first, second = _waiters(bench, 2)
        _place(bench, first)
        bench.put(PAUSE, encode_notice())
        bench.give(grant)
        assert _place(bench, first).reason == _place(bench, second).reason == "paused"
        bench.put(PAUSE, None)
        assert isinstance(_ask(bench, second), Queued)
        _got(bench, first)

    @needs("queue")
    def test_who_is_next_is_told_of_a_release(self, bench: Bench) -> None:
        grant = bench.granted()
        first, second = _waiters(bench, 2)
        for claim in (first, second):
            _place(bench, claim)

        def wait(claim: str) -> float:
            with bench.another() as mine:
                started = clock.now()
                # As waiters do: a wait may end early, and then they look.
                while isinstance(queued := _ask(mine, claim), Refused):
                    mine.store.wait_change(mine.key(), queued.seen, started + waits.PATIENCE)
                    if clock.now() - started > waits.PATIENCE:
                        break
                else:
                    mine.give(queued)
                return clock.now() - started

        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(wait, claim) for claim in (first, second)]
            time.sleep(0.1)
            bench.give(grant)
            assert max(it.result() for it in waiting) < waits.HINTED_WITHIN

    @needs("queue", "candidates")
    def test_a_candidate_in_line_is_listed(self, bench: Bench) -> None:
        bench.granted()
        claim = bench.draw()
        outcome = _ask(bench, claim, candidacy=bench.long)
        assert isinstance(outcome, Queued)
        assert [it.holder for it in bench.read().candidates] == [claim[:8]]
