"""Cases: lost answers, stores that cannot be reached, takes that come too late, and restarts."""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

import pytest

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import (
    ABSENT,
    ByVersion,
    Gone,
    Granted,
    Queue,
    Queued,
    Refused,
    Released,
    Renewed,
    RenewOutcome,
    Slot,
    Stored,
)
from incumbent.testing.contract.bench import ANSWER_WITHIN, LONG, REQUEST_WITHIN, Bench, needs


class FaultCases:
    """A lost answer is neither a yes nor a no, and a store out of reach applies nothing."""

    @needs("lose_reply")
    def test_a_take_whose_answer_was_lost_is_the_same_grant_again(self, bench: Bench) -> None:
        claim = bench.unheard()
        (holding,) = bench.read().holdings
        assert bench.granted(claim=claim).token == holding.token
        assert len(bench.read().history) == 1

    @needs("lose_reply")
    def test_a_repeat_after_a_lost_answer_raises_the_ttl(self, bench: Bench) -> None:
        claim = bench.unheard(ttl=bench.ttl)
        bench.granted(claim=claim, ttl=bench.long)
        bench.outlive(bench.ttl)
        bench.refused()

    @needs("lose_reply")
    def test_a_take_that_was_refused_unheard_is_unknown_too(self, bench: Bench) -> None:
        grant = bench.granted()
        # Of a store that reads first, only the answer to a read is on its way here.
        assert isinstance(bench.if_known(bench.take), Refused | None)
        assert bench.renew(grant) == Renewed()

    @needs("lose_reply")
    def test_who_never_heard_of_its_grant_can_give_it_back(self, bench: Bench) -> None:
        claim = bench.unheard()
        bench.give_up(claim)
        bench.granted()

    @needs("lose_reply", "slots")
    def test_who_never_heard_of_its_slot_can_give_it_back(self, bench: Bench) -> None:
        slot = Slot("today", LONG)
        claim = bench.unheard(slot=slot)
        bench.give_up(claim, slot=slot.name)
        bench.granted(slot=slot)

    @needs("lose_reply", "ttl_change")
    def test_a_renewal_whose_answer_was_lost_was_done(self, bench: Bench) -> None:
        # Twice as long: on a busy machine the renewal is still in time.
        ttl = 2 * bench.ttl
        grant = bench.granted(ttl=ttl)
        assert bench.if_known(lambda: bench.renew(grant, ttl=bench.long)) in (None, Renewed())
        bench.outlive(ttl)
        assert bench.renew(grant) == Renewed()

    @needs("lose_reply")
    def test_a_release_whose_answer_was_lost_was_done(self, bench: Bench) -> None:
        grant = bench.granted()
        assert bench.if_known(lambda: bench.give(grant)) in (None, Released())
        assert bench.give(grant) == Gone()
        bench.granted()

    @needs("lose_reply", "fields")
    def test_a_write_whose_answer_was_lost_was_done(self, bench: Bench) -> None:
        assert isinstance(bench.if_known(lambda: bench.put("state", b"1")), Stored | None)
        assert bench.read().fields["state"].value == b"1"

    @needs("lose_reply")
    def test_a_release_that_a_store_repeats_by_itself_is_no_loss(self, bench: Bench) -> None:
        grant = bench.granted()
        assert bench.if_known(lambda: bench.give(grant), times=1) in (None, Released())
        bench.granted()

    @needs("lose_reply")
    def test_a_take_or_a_renewal_that_a_store_repeats_by_itself_is_no_refusal(
        self, bench: Bench
    ) -> None:
        claim = bench.draw()
        taken = bench.if_known(lambda: bench.take(claim=claim), times=1)
        assert isinstance(taken, Granted | None)
        grant = bench.granted(claim=claim)
        assert bench.if_known(lambda: bench.renew(grant), times=1) in (None, Renewed())

    @needs("lose_reply", "fields")
    def test_a_write_that_a_store_repeats_by_itself_is_not_stale(self, bench: Bench) -> None:
        absent = bench.if_known(lambda: bench.put("state", b"1", ABSENT), times=1)
        assert isinstance(absent, Stored | None)
        guard = ByVersion(bench.read().fields["state"].version)
        written = bench.if_known(lambda: bench.put("state", b"2", guard), times=1)
        assert isinstance(written, Stored | None)
        assert bench.read().fields["state"].value == b"2"

    @needs("lose_reply")
    def test_a_lost_answer_is_never_taken_for_the_next_one(self, bench: Bench) -> None:
        grant = bench.granted("mine")
        bench.unheard("other")
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
            # The first request may use a connection whose end is not known yet.
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
                assert clock.now() - started < REQUEST_WITHIN + 0.5

    @needs("cut")
    def test_a_wait_for_a_store_that_is_away_ends_at_until(self, bench: Bench) -> None:
        bench.granted()
        seen = bench.refused().seen
        with bench.world.cut():
            started = clock.now()
            with suppress(StoreError):  # an error (it cannot listen) is as good as a hint
                bench.waited(seen, 0.3)
            assert clock.now() - started < ANSWER_WITHIN

    @needs("cut")
    def test_a_store_that_came_back_is_used_again(self, bench: Bench) -> None:
        with bench.world.cut(), pytest.raises(StoreError):
            bench.take()
        bench.granted("after")


def _requests(bench: Bench) -> list[Callable[[], object]]:
    return [
        lambda: bench.take("new"),
        lambda: bench.give_up(bench.draw(), "new"),
        bench.read,
        bench.scan,
    ]


_TRIES = 5
_TODAY = Slot("2030-01-01", LONG)


@needs("refuses_late")
class LateCases:
    """A take that arrives after its claim was given up brings nothing: nobody would release it."""

    def test_a_take_that_arrives_after_its_claim_was_given_up_brings_nothing(
        self, bench: Bench
    ) -> None:
        claim = bench.draw()
        assert bench.give_up(claim) == Gone()
        _arrives_in_vain(bench, claim)

    def test_it_brings_nothing_after_a_ttl_either(self, bench: Bench) -> None:
        claim = bench.draw()
        bench.give_up(claim)
        bench.outlive(bench.ttl)
        _arrives_in_vain(bench, claim)

    def test_a_take_that_arrives_after_a_closing_in_doubt_brings_nothing(
        self, bench: Bench
    ) -> None:
        claim = bench.draw()
        assert bench.give_up(claim, closed_for=bench.long) == Gone()
        _arrives_in_vain(bench, claim)

    def test_a_second_take_of_a_claim_that_was_granted_and_given_up_brings_nothing(
        self, bench: Bench
    ) -> None:
        grant = bench.granted()
        assert bench.give_up(grant.claim) == Released()
        _arrives_in_vain(bench, grant.claim)

    @needs("lose_reply")
    def test_a_second_take_of_a_claim_that_nobody_heard_of_brings_nothing(
        self, bench: Bench
    ) -> None:
        claim = bench.unheard()
        assert bench.give_up(claim) == Released()
        _arrives_in_vain(bench, claim)

    @needs("slots")
    def test_a_take_that_arrives_too_late_uses_no_slot(self, bench: Bench) -> None:
        claim = bench.draw()
        assert bench.give_up(claim, slot=_TODAY.name) == Gone()
        _arrives(bench, claim, slot=_TODAY)
        assert bench.read().slots == {}
        bench.granted(slot=_TODAY)

    @needs("queue")
    def test_a_take_that_arrives_too_late_stands_in_no_line(self, bench: Bench) -> None:
        grant = bench.granted()
        late, waiter = bench.draw(), bench.draw()
        bench.give_up(late)
        queue = Queue(bench.long, fair=True)
        _arrives(bench, late, queue=queue)
        queued = bench.take(claim=waiter, holder="the-waiter", queue=queue)
        assert isinstance(queued, Queued)
        assert queued.place == 0
        bench.give(grant)
        bench.granted(claim=waiter, holder="the-waiter", queue=queue)

    def test_others_are_granted_meanwhile_and_keep_what_they_have(self, bench: Bench) -> None:
        claim = bench.draw()
        bench.give_up(claim)
        grant = bench.granted(holder="bob")
        _arrives(bench, claim)
        assert bench.refused().holders[0].holder == "bob"
        assert bench.give(grant) == Released()


def _arrives(bench: Bench, claim: str, **ask: Any) -> None:
    """Let the late take arrive; any answer but a grant is right."""
    with suppress(StoreError):
        outcome = bench.take(claim=claim, holder="the-late", **ask)
        assert not isinstance(outcome, Granted), outcome


def _arrives_in_vain(bench: Bench, claim: str) -> None:
    _arrives(bench, claim)
    assert bench.read().holdings == ()
    bench.granted()


class RestartCases:
    """A restart or a failover ends all leases, unless they survive it; tokens still grow."""

    @needs("wipe", "restart_wait")
    def test_a_store_that_lost_its_data_grants_nothing_for_one_ttl(self, bench: Bench) -> None:
        _grants_nothing_for_one_ttl(bench, _wipe)

    @needs("restart", "restart_wait")
    def test_a_store_that_kept_its_data_grants_nothing_for_one_ttl(self, bench: Bench) -> None:
        _grants_nothing_for_one_ttl(bench, _restart)

    @needs("failover", "restart_wait", "ends_by_failover")
    def test_a_server_that_took_over_grants_nothing_for_one_ttl(self, bench: Bench) -> None:
        _grants_nothing_for_one_ttl(bench, Bench.failover)

    @needs("wipe")
    def test_a_wipe_ends_what_was_believed(self, bench: Bench) -> None:
        _ends_what_was_believed(bench, _wipe)

    @needs("restart", "ends_by_restart")
    def test_a_restart_ends_what_was_believed(self, bench: Bench) -> None:
        _ends_what_was_believed(bench, _restart)

    @needs("failover", "ends_by_failover")
    def test_a_failover_ends_what_was_believed(self, bench: Bench) -> None:
        _ends_what_was_believed(bench, Bench.failover)

    @needs("wipe", "shared")
    def test_a_wipe_ends_what_was_shared(self, bench: Bench) -> None:
        _ends_what_was_believed(bench, _wipe, permits=2)

    @needs("restart", "ends_by_restart", "shared")
    def test_a_restart_ends_what_was_shared(self, bench: Bench) -> None:
        _ends_what_was_believed(bench, _restart, permits=2)

    @needs("restart", "survives_restart")
    def test_a_restart_ends_nothing_where_leases_survive_it(self, bench: Bench) -> None:
        _ends_nothing(bench, _restart)

    @needs("failover", "survives_failover")
    def test_a_failover_ends_nothing_where_leases_survive_it(self, bench: Bench) -> None:
        _ends_nothing(bench, Bench.failover)

    @needs("wipe", "fencing")
    def test_the_token_grows_over_a_wipe(self, bench: Bench) -> None:
        _token_grows(bench, _wipe)

    @needs("restart", "fencing")
    def test_the_token_grows_over_a_restart(self, bench: Bench) -> None:
        _token_grows(bench, _restart)

    @needs("failover", "fencing")
    def test_the_token_grows_over_a_failover(self, bench: Bench) -> None:
        _token_grows(bench, Bench.failover)

    @needs("restart", "fields")
    def test_fields_survive_a_restart(self, bench: Bench) -> None:
        bench.put("state", b"kept")
        _restart(bench)
        assert bench.read().fields["state"].value == b"kept"

    @needs("restart", "notices")
    def test_a_pause_survives_a_restart(self, bench: Bench) -> None:
        _admitted(bench, "other")
        bench.pause()
        _restart(bench)
        _admitted(bench, "other")
        outcome = bench.take(ttl=bench.ttl)
        assert isinstance(outcome, Refused)
        assert outcome.reason == "paused"

    @needs("restart", "fields")
    def test_versions_do_not_come_back_after_a_restart(self, bench: Bench) -> None:
        first = bench.put("state", b"1")
        _restart(bench)
        assert bench.put("state", b"2") != first


Upset: TypeAlias = Callable[[Bench], None]


def _restart(bench: Bench) -> None:
    bench.restart(empty=False)


def _wipe(bench: Bench) -> None:
    bench.restart(empty=True)


def _grants_nothing_for_one_ttl(bench: Bench, upset: Upset) -> None:
    _admitted(bench)
    upset(bench)
    for name in ("job", "never-seen"):
        with pytest.raises(StoreUnavailable) as caught:
            # A long ttl, so that the wait is not over before a slow machine has asked.
            bench.take(name, ttl=bench.long)
        assert caught.value.retry_after is not None
        assert 0 < caught.value.retry_after <= bench.long + 2
    _admitted(bench)


def _ends_what_was_believed(bench: Bench, upset: Upset, *, permits: int | None = None) -> None:
    grant = _admitted(bench, permits=permits)
    upset(bench)
    assert _renew_if_known(bench, grant) == Gone("store_restarted")


def _ends_nothing(bench: Bench, upset: Upset) -> None:
    grant = bench.granted()
    upset(bench)
    assert _renew_if_known(bench, grant) == Renewed()
    bench.refused()


def _renew_if_known(bench: Bench, grant: Granted) -> RenewOutcome:
    """The outcome of a renewal, repeated without one: its connection may have ended unnoticed."""
    for _ in range(_TRIES):
        with suppress(StoreError):
            return bench.renew(grant)
    return bench.renew(grant)


def _token_grows(bench: Bench, upset: Upset) -> None:
    first = _admitted(bench)
    bench.give(first)
    upset(bench)
    assert _admitted(bench).token > first.token


def _admitted(bench: Bench, name: str = "job", *, permits: int | None = None) -> Granted:
    """Take as soon as the wait is over; a server that the test has just started waits as well."""
    for _ in range(5):
        try:
            outcome = bench.take(name, ttl=bench.ttl, permits=permits)
        except StoreUnavailable as error:
            bench.outlive(error.retry_after or bench.ttl)
        else:
            if isinstance(outcome, Granted):
                return outcome
            bench.outlive(bench.ttl)
    raise AssertionError("the store never granted again")
