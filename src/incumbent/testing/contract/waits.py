"""Cases: waiting for a change, the line of waiters, candidates and reservations."""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.model import (
    OVERTAKEN_MOST,
    Gone,
    Granted,
    Queue,
    Queued,
    Refused,
    Released,
    Slot,
    TakeOutcome,
)
from incumbent.rules.taking import CANDIDATES_KEPT
from incumbent.testing.contract.bench import LONG, Bench, needs

# Far apart: what ends within the one was ended by a hint, on a busy machine too.
HINTED_WITHIN = 5.0
PATIENCE = 15.0
"""Seconds after which a wait without a hint ends."""


class WaitCases:
    """wait_change returns at `until` at the latest, and soon after a release."""

    def test_a_wait_for_nothing_ends_at_until(self, bench: Bench) -> None:
        bench.granted()
        assert bench.waited(bench.refused().seen, 0.2) < 0.2 + HINTED_WITHIN

    def test_a_wait_whose_time_is_over_returns_at_once(self, bench: Bench) -> None:
        bench.granted()
        seen = bench.refused().seen
        assert _took(lambda: bench.waited(seen, -1)) < HINTED_WITHIN

    def test_a_waiter_is_told_of_a_release(self, bench: Bench) -> None:
        grant = bench.granted()
        with _change_ends_wait(bench, bench.refused().seen):
            bench.give(grant)

    def test_all_waiters_are_told_of_a_release(self, bench: Bench) -> None:
        grant = bench.granted()
        seen = bench.refused().seen
        with _change_ends_wait(bench, seen), _change_ends_wait(bench, seen):
            bench.give(grant)

    def test_a_release_before_the_wait_is_not_missed(self, bench: Bench) -> None:
        grant = bench.granted()
        seen = bench.refused().seen
        bench.give(grant)
        assert bench.waited(seen, PATIENCE) < HINTED_WITHIN

    def test_a_record_and_a_refusal_have_the_same_seen(self, bench: Bench) -> None:
        assert bench.read().seen == ""
        bench.granted()
        assert bench.read().seen == bench.refused().seen != ""

    def test_a_reader_is_told_of_a_release(self, bench: Bench) -> None:
        grant = bench.granted()
        with _change_ends_wait(bench, bench.read().seen):
            bench.give(grant)

    def test_a_waiter_is_told_of_another_meta(self, bench: Bench) -> None:
        grant = bench.granted(meta=b"old")
        with _change_ends_wait(bench, bench.read().seen):
            bench.renew(grant, meta=b"new")

    def test_another_meta_before_the_wait_is_not_missed(self, bench: Bench) -> None:
        grant = bench.granted(meta=b"old")
        seen = bench.refused().seen
        bench.renew(grant, meta=b"new")
        assert bench.waited(seen, PATIENCE) < HINTED_WITHIN

    @needs("fields")
    @pytest.mark.parametrize("value", [b"new", None], ids=["written", "removed"])
    def test_a_field_that_changed_before_the_wait_is_not_missed(
        self, bench: Bench, value: bytes | None
    ) -> None:
        bench.put("member", b"old")
        bench.put("another", b"stays")
        seen = bench.read().seen
        bench.put("member", value)
        bench.read()  # Another's read must not count as a read by the waiter.
        assert bench.waited(seen, PATIENCE) < HINTED_WITHIN

    def test_a_renewal_that_changes_nothing_is_no_change(self, bench: Bench) -> None:
        grant = bench.granted(meta=b"same")
        seen = bench.refused().seen
        bench.renew(grant)
        # Holders renew all the time: only what is new may wake the waiters.
        bench.renew(grant, meta=b"same")
        assert bench.refused().seen == seen == bench.read().seen

    @needs("candidates")
    def test_a_waiter_is_told_of_a_candidates_grant(self, bench: Bench) -> None:
        bench.give(bench.granted())
        with _change_ends_wait(bench, bench.read().seen):
            bench.granted(candidacy=bench.long)

    def test_a_refusal_says_when_to_try_again(self, bench: Bench) -> None:
        bench.granted(ttl=bench.ttl)
        refusal = bench.take()
        # On a slow machine the short ttl may be over by then: a grant is right, too.
        if isinstance(refusal, Refused):
            assert refusal.retry_after is not None
            assert 0 <= refusal.retry_after <= bench.ttl + 0.1
            bench.outlive(refusal.retry_after)
        assert isinstance(bench.take(), Granted) or isinstance(refusal, Granted)

    def test_a_wait_on_a_name_that_nobody_knows_ends_at_until(self, bench: Bench) -> None:
        assert bench.waited("", 0.1, "unknown") < HINTED_WITHIN

    def test_a_wait_with_an_unknown_seen_is_harmless(self, bench: Bench) -> None:
        assert bench.waited("what another version has seen", 0.1) < HINTED_WITHIN

    def test_a_request_whose_time_is_over_answers_quickly(self, bench: Bench) -> None:
        key, over = bench.key(), clock.now() - 1
        for ask in (
            lambda: bench.store.read(key, over),
            lambda: bench.store.give(key, bench.draw(), None, over),
            lambda: bench.store.renew([], over),
        ):
            assert _took(ask) < HINTED_WITHIN


def _took(ask: Callable[[], object]) -> float:
    started = clock.now()
    with suppress(StoreError):  # without time left the store may refuse to try
        ask()
    return clock.now() - started


@contextmanager
def _change_ends_wait(bench: Bench, seen: str) -> Iterator[None]:
    """Wait in another thread while the block runs; fail unless the block's change ends the wait."""

    def wait() -> float:
        with bench.another() as mine:
            return mine.waited(seen, PATIENCE)

    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(wait)
        # The change may come before the thread waits, or after: either must end the wait.
        time.sleep(0.05)
        yield
        assert waiter.result(HINTED_WITHIN) < HINTED_WITHIN


@needs("queue")
class LineCases:
    """The first waiter in line is served next, as long as its heartbeats come."""

    def test_who_waits_stands_in_line_in_the_order_of_arrival(self, bench: Bench) -> None:
        bench.granted(holder="alice")
        for place in range(3):
            refusal = queued(bench, bench.draw())
            assert (refusal.place, refusal.reason) == (place, "held")
            assert [one.holder for one in refusal.holders] == ["alice"]

    def test_who_asks_again_keeps_its_place(self, bench: Bench) -> None:
        bench.granted()
        claims = [bench.draw() for _ in range(3)]
        for claim in (*claims, *reversed(claims)):
            assert queued(bench, claim).place == claims.index(claim)

    def test_a_fair_line_is_served_in_the_order_of_arrival(self, bench: Bench) -> None:
        grant, (first, second, third) = held_with_line(bench, 3)
        for claim, others in ((first, (third, second)), (second, (third,)), (third, ())):
            bench.give(grant)
            for other in others:
                assert queued(bench, other).reason == "turn"
            grant = served(bench, claim)

    def test_nobody_comes_before_one_that_asked_for_fairness(self, bench: Bench) -> None:
        grant, (first,) = held_with_line(bench, 1)
        bench.give(grant)
        # More often than an unfair waiter may be overtaken: that limit must not count here.
        for _ in range(OVERTAKEN_MOST + 2):
            refusal = bench.refused()
            assert (refusal.reason, refusal.holders[0].holder) == ("turn", first[:8])
            assert refusal.retry_after is not None
            assert 0 < refusal.retry_after <= bench.long + 0.1
            assert queued(bench, bench.draw(), fair=False).reason == "turn"
        served(bench, first)

    def test_an_unfair_waiter_is_overtaken_a_few_times_at_most(self, bench: Bench) -> None:
        grant, (first,) = held_with_line(bench, 1, fair=False)
        for _ in range(OVERTAKEN_MOST):
            bench.give(grant)
            grant = bench.granted()
            assert queued(bench, first, fair=False).place == 0
        bench.give(grant)
        assert bench.refused().reason == "turn"
        queued(bench, bench.draw(), fair=False)
        served(bench, first, fair=False)

    def test_a_grant_in_turn_begins_the_count_anew(self, bench: Bench) -> None:
        grant, (first, _) = held_with_line(bench, 2, fair=False)
        for _ in range(OVERTAKEN_MOST):
            bench.give(grant)
            grant = bench.granted()
        bench.give(grant)
        bench.give(served(bench, first, fair=False))
        bench.granted()

    def test_a_silent_first_has_its_turn_no_longer_than_its_heartbeat(self, bench: Bench) -> None:
        grant = bench.granted()
        line_of(bench, 1, heartbeat=bench.ttl)
        (second,) = line_of(bench, 1)
        bench.give(grant)
        queued(bench, second)
        bench.outlive(bench.ttl)
        served(bench, second)

    def test_a_first_that_was_silent_in_its_turn_has_no_second_one(self, bench: Bench) -> None:
        grant, _ = bench.granted(), line_of(bench, 1, heartbeat=bench.ttl)
        bench.give(grant)
        bench.outlive(bench.ttl)
        for _ in range(2):
            bench.give(bench.granted())

    def test_the_turn_passes_when_the_holder_died_and_the_first_is_silent(
        self, bench: Bench
    ) -> None:
        bench.granted(ttl=bench.ttl)
        line_of(bench, 1, heartbeat=bench.ttl)
        (second,) = line_of(bench, 1)
        # Twice: the turn of the first may begin only when the time of the dead one is over.
        bench.outlive(bench.ttl)
        bench.outlive(bench.ttl)
        # The second may take it now, and leaves no turn behind that would stop a later waiter.
        bench.give(served(bench, second))
        served(bench, bench.draw(), ttl=bench.ttl)

    def test_the_first_has_its_turn_also_when_the_holder_died(self, bench: Bench) -> None:
        bench.granted(ttl=bench.ttl)
        (first,) = line_of(bench, 1)
        bench.outlive(bench.ttl)
        assert bench.refused().reason == "turn"
        served(bench, first)

    def test_who_leaves_the_line_is_not_waited_for(self, bench: Bench) -> None:
        grant, (first, second) = held_with_line(bench, 2)
        bench.give_up(first)
        assert queued(bench, second).place == 0
        bench.give(grant)
        served(bench, second)

    def test_who_leaves_without_having_been_granted_is_not_waited_for_and_may_come_again(
        self, bench: Bench
    ) -> None:
        grant, (first, second) = held_with_line(bench, 2)
        assert bench.store.give(bench.key(), first, 0, bench.until()) == Gone()
        assert [queued(bench, claim).place for claim in (second, first)] == [0, 1]
        bench.give(grant)
        bench.give(served(bench, second))
        served(bench, first)

    def test_who_leaves_when_its_turn_has_come_passes_it_on(self, bench: Bench) -> None:
        grant, (first,) = held_with_line(bench, 1)
        bench.give(grant)
        second = bench.draw()
        seen = queued(bench, second).seen
        bench.give_up(first)
        assert bench.waited(seen, PATIENCE) < HINTED_WITHIN
        served(bench, second)

    def test_who_was_granted_stands_in_line_no_more(self, bench: Bench) -> None:
        grant, (first,) = held_with_line(bench, 1)
        bench.give(grant)
        grant = served(bench, first)
        second = bench.draw()
        assert queued(bench, second).place == 0
        bench.give(grant)
        served(bench, second)

    def test_the_holder_repeats_its_take_whoever_waits(self, bench: Bench) -> None:
        claim = bench.draw()
        grant = served(bench, claim)
        line_of(bench, 1)
        # It asks again if its answer is lost: no line may keep a holder from its lease.
        assert served(bench, claim).token == grant.token

    def test_who_tries_once_stands_in_no_line(self, bench: Bench) -> None:
        grant = bench.granted()
        assert not isinstance(bench.take(), Queued)
        first = bench.draw()
        assert queued(bench, first).place == 0
        bench.give(grant)
        served(bench, first)

    def test_waiting_is_no_change(self, bench: Bench) -> None:
        bench.granted()
        seen = bench.refused().seen
        # Else whoever comes would wake all who wait, and all of them would ask at once.
        line_of(bench, 1)
        assert bench.refused().seen == seen == bench.read().seen

    def test_lines_of_different_names_are_apart(self, bench: Bench) -> None:
        # Names that look like a key which some store makes of the name "a".
        for name in ("a", "a:q", "a/b"):
            bench.granted(name)
            assert queued(bench, bench.draw(), name).place == 0
        assert bench.scan() == ["a", "a/b", "a:q"]

    @needs("reservations")
    def test_a_successor_comes_before_the_line(self, bench: Bench) -> None:
        grant, (first,) = held_with_line(bench, 1)
        bench.give(grant, closed_for=bench.long, reserve_for="bob")
        assert queued(bench, first).reason == "reserved"
        bench.give(bench.granted(holder="bob"))
        served(bench, first)

    @needs("notices")
    def test_a_pause_keeps_the_line(self, bench: Bench) -> None:
        grant, (first,) = held_with_line(bench, 1)
        second = bench.draw()
        bench.pause()
        bench.give(grant)
        assert queued(bench, first).reason == queued(bench, second).reason == "paused"
        bench.pause(None)
        queued(bench, second)
        served(bench, first)

    @needs("notices")
    def test_a_name_that_was_paused_before_anybody_held_it_has_a_line(self, bench: Bench) -> None:
        bench.pause()
        assert [queued(bench, bench.draw()).place for _ in range(2)] == [0, 1]

    def test_who_is_next_is_told_of_a_release(self, bench: Bench) -> None:
        grant = bench.granted()
        with ThreadPoolExecutor(2) as pool:
            waiting = [pool.submit(wait_in_line, bench) for _ in range(2)]
            # Time to stand in line; whoever is later needs no hint, which is right too.
            time.sleep(0.1)
            bench.give(grant)
            assert max(one.result() for one in waiting) < HINTED_WITHIN

    @needs("candidates")
    def test_a_candidate_in_line_is_listed(self, bench: Bench) -> None:
        bench.granted()
        claim = bench.draw()
        queued(bench, claim, candidacy=bench.long)
        assert [one.holder for one in bench.read().candidates] == [claim[:8]]


def wait_in_line(bench: Bench, **ask: Any) -> float:
    """Wait in line until the name is granted, give it back, and return how long that took."""
    # The loop in which a claim waits in line is the loop that gets its hint.
    with bench.another() as mine:
        started, claim = clock.now(), mine.draw()
        # A wait may end early, so try again, as real waiters do.
        while isinstance(outcome := ask_in_line(mine, claim, **ask), Refused):
            mine.waited(outcome.seen, PATIENCE)
            if clock.now() - started > PATIENCE:
                break
        else:
            mine.give(outcome)
        return clock.now() - started


def ask_in_line(
    bench: Bench,
    claim: str,
    name: str = "job",
    *,
    fair: bool = True,
    heartbeat: float | None = None,
    **ask: Any,
) -> TakeOutcome:
    """Take as a waiter in line; the holder's name is the start of the claim."""
    queue = Queue(bench.long if heartbeat is None else heartbeat, fair)
    return bench.take(name, claim, holder=claim[:8], queue=queue, **ask)


def queued(bench: Bench, claim: str, name: str = "job", **ask: Any) -> Queued:
    outcome = ask_in_line(bench, claim, name, **ask)
    assert isinstance(outcome, Queued), outcome
    return outcome


def served(bench: Bench, claim: str, **ask: Any) -> Granted:
    outcome = ask_in_line(bench, claim, **ask)
    assert isinstance(outcome, Granted), outcome
    assert outcome.claim == claim
    return outcome


def line_of(bench: Bench, count: int, **ask: Any) -> list[str]:
    """Let `count` waiters enter the line, one after the other; returns their claims."""
    claims = [bench.draw() for _ in range(count)]
    for claim in claims:
        queued(bench, claim, **ask)
    return claims


def held_with_line(bench: Bench, count: int, **ask: Any) -> tuple[Granted, list[str]]:
    """Take the name, and let `count` waiters enter its line; returns the grant and their claims."""
    return bench.granted(), line_of(bench, count, **ask)


# With what stores use to part, quote and fill in: a name must come back as it was.
_HOLDERS = ["a", "host:7/x", "50%-{b}", "\u00fc|,;=?#", "h" * 200]


def _standing(bench: Bench, name: str = "job") -> list[str]:
    return [one.holder for one in bench.read(name).candidates]


@needs("candidates")
class CandidateCases:
    """A refused take with `candidacy=` is listed as a candidate for that many seconds."""

    def test_who_is_refused_stands_by(self, bench: Bench) -> None:
        bench.granted(holder="alice")
        bench.refused(holder="carol", candidacy=bench.long)
        bench.refused(holder="bob", candidacy=bench.long)
        first, second = bench.read().candidates
        assert (first.holder, second.holder) == ("bob", "carol")
        assert bench.long / 2 < first.remaining <= bench.long + 0.1

    def test_a_take_without_candidacy_lists_no_candidate(self, bench: Bench) -> None:
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
        assert bench.refused(holder="carol", slot=slot).reason == "used"

    def test_candidates_of_different_names_are_apart(self, bench: Bench) -> None:
        for name in ("a", "a:w", "a/b"):
            bench.granted(name)
        bench.refused("a", holder="bob", candidacy=bench.long)
        assert [_standing(bench, name) for name in ("a", "a:w", "a/b")] == [["bob"], [], []]

    def test_the_list_of_candidates_is_bounded(self, bench: Bench) -> None:
        bench.granted()
        count = CANDIDATES_KEPT + 3
        for index in range(count):
            # Each lasts longer than the one before, so that it is known which ones go.
            bench.refused(holder=f"h{index:03}", candidacy=bench.long / 2 + index / 10)
        assert _standing(bench) == [f"h{index:03}" for index in range(3, count)]


@needs("reservations")
class ReservationCases:
    """A reservation closes a name for all but one holder: so a lease is handed to that holder."""

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
        # A near miss, as long as a name may be: names are compared whole.
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
        # A closing names nobody: who has no name must not pass for whom it is kept for.
        assert bench.refused(holder="").reason == "closed"

    @needs("notices")
    def test_a_pause_refuses_the_reserved_holder_too(self, bench: Bench) -> None:
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
        assert bench.refused(holder="bob", slot=slot).reason == "used"
        bench.granted(holder="bob")

    @needs("candidates")
    def test_who_is_refused_by_a_reservation_stands_by(self, bench: Bench) -> None:
        self._reserve(bench, "bob")
        bench.refused(holder="carol", candidacy=bench.long)
        bench.granted(holder="bob", candidacy=bench.long)
        assert _standing(bench) == ["carol"]

    def test_a_reservation_admits_one_of_several_takers(self, bench: Bench) -> None:
        self._reserve(bench, "bob")
        outcomes = bench.in_threads(4, lambda mine, _: mine.take(holder="bob"))
        assert sum(isinstance(outcome, Granted) for outcome in outcomes) == 1
