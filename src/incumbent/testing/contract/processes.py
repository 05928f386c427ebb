"""Cases: clients whose clocks are off, forked children, broken off requests, slow resolvers."""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

import pytest

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.model import Gone, Granted, Queue, Queued, Released, Renewal, Renewed, Slot
from incumbent.testing.contract.bench import ANSWER_WITHIN, LONG, Bench, needs
from incumbent.testing.contract.children import CAN_FORK, used_by_child
from incumbent.testing.contract.sides import Request

A_DAY = 86_400.0
"""Seconds by which a clock is off: more than any time of these cases."""
_TODAY = Slot("today", LONG)

both_ways = pytest.mark.parametrize("offset", [A_DAY, -A_DAY], ids=["ahead", "behind"])


@needs("other_client")
class ClockCases:
    """Times are counted by the store's clock: it does not matter what a client's clock says."""

    @both_ways
    def test_nothing_is_free_sooner_for_a_clock_that_is_off(
        self, bench: Bench, offset: float
    ) -> None:
        mine = bench.granted(holder="alice")
        bench.give(bench.granted("closed"), "closed", closed_for=bench.long)
        with bench.other(offset) as other:
            assert other.refused().holders[0].holder == "alice"
            assert other.lasts(other.remaining())
            assert other.refused("closed").reason == "closed"
            theirs = other.granted("theirs")
            assert other.renew(theirs, "theirs") == Renewed()
            other.give(other.granted("closed-too"), "closed-too", closed_for=bench.long)
        assert bench.refused("theirs").reason == "held"
        assert bench.lasts(bench.remaining("theirs"))
        assert bench.lasts(bench.refused("closed-too").retry_after)
        assert bench.renew(mine) == Renewed()

    @both_ways
    def test_everything_ends_in_time_whatever_a_clock_says(
        self, bench: Bench, offset: float
    ) -> None:
        with bench.other(offset) as other:
            old = other.granted(ttl=bench.ttl)
            other.renew(other.granted("renewed", ttl=bench.ttl), "renewed", ttl=bench.ttl)
            other.give(other.granted("closed"), "closed", closed_for=bench.ttl)
            bench.granted("mine", ttl=bench.ttl)
            # Looked at by whoever takes it in the end: in some stores a ttl counts from that look.
            bench.sees("job", "renewed", "closed")
            other.sees("mine")
            bench.outlive(bench.ttl)
            for name in ("renewed", "closed"):
                bench.granted(name)
            assert bench.granted().token > old.token
            assert other.renew(old) == Gone()
            other.granted("mine")

    @needs("slots")
    def test_a_slot_is_kept_as_long_as_asked_whatever_a_clock_says(self, bench: Bench) -> None:
        with bench.other(A_DAY) as other:
            other.give(other.granted(slot=_TODAY))
            other.give(other.granted("short", slot=Slot("s", bench.ttl)), "short")
            bench.give(bench.granted("mine", slot=_TODAY), "mine")
            assert bench.refused(slot=_TODAY).reason == "used"
            bench.sees("short")
            bench.outlive(bench.ttl)
            bench.granted("short", slot=Slot("s", bench.ttl))
            assert bench.lasts(bench.read().slots[_TODAY.name], LONG)
            assert other.refused("mine", slot=_TODAY).reason == "used"

    @needs("candidates")
    def test_a_candidacy_lasts_as_long_as_asked_whatever_a_clock_says(self, bench: Bench) -> None:
        bench.granted()
        with bench.other(A_DAY) as other:
            other.refused(holder="long", candidacy=bench.long)
            other.refused(holder="short", candidacy=bench.ttl)
            bench.refused(holder="mine", candidacy=bench.long)
            other.sees("job")
            bench.outlive(bench.ttl)
            for one in (bench, other):
                assert [it.holder for it in one.read().candidates] == ["long", "mine"]

    @needs("queue")
    def test_a_place_in_line_is_kept_whatever_a_clock_says(self, bench: Bench) -> None:
        grant = bench.granted()
        queue = Queue(bench.long, fair=True)
        claims = [bench.draw() for _ in range(2)]
        with bench.other(A_DAY) as other:
            for one, claim in zip((other, bench), claims, strict=True):
                assert isinstance(one.take(claim=claim, queue=queue), Queued)
            bench.give(grant)
            assert bench.refused().reason == "turn"
            other.give(other.granted(claim=claims[0], queue=queue))
            assert other.refused().reason == "turn"
            bench.granted(claim=claims[1], queue=queue)


class ForkCases:
    """After fork() the child uses none of the parent's connections."""

    def test_a_forked_child_uses_no_connection_of_its_parent(self, bench: Bench) -> None:
        if not CAN_FORK:
            pytest.skip("this system cannot fork")
        grant = bench.granted(holder="the-parent")
        # Subscriptions have connections, too; that of the last request is open and idle.
        bench.waited(bench.refused().seen, 0.05)
        bench.read()
        assert used_by_child(lambda: _live(bench)) == ""
        assert bench.renew(grant) == Renewed()
        assert bench.give(grant) == Released()
        bench.granted()


def _live(bench: Bench) -> None:
    """What the child does: all that a client does, to the end."""
    with bench.another() as mine:
        assert mine.refused().holders[0].holder == "the-parent"
        grant = mine.granted("of-the-child")
        mine.waited(mine.read().seen, 0.05)
        assert mine.renew(grant, "of-the-child") == Renewed()
        assert mine.give(grant, "of-the-child") == Released()
        mine.scan()
    # The inherited store, too: closing it here must say nothing on connections that the parent
    # uses.
    bench.world.engine.store().close()


_HOLDERS = ("alice", "bob", "carol")


@needs("hold_reply")
class InterruptionCases:
    """A connection that was interrupted between request and answer is closed, not used again."""

    @pytest.mark.parametrize("operation", ["take", "renew", "give", "read", "scan"])
    def test_an_answer_that_came_too_late_answers_no_other_request(
        self, bench: Bench, operation: str
    ) -> None:
        # Each name has a holder of its own, so that an answer to another request shows.
        grants = {name: bench.granted(name, holder=name) for name in _HOLDERS}
        with bench.world.hold_reply() as is_held:
            bench.side.break_off(_requests(bench, grants["alice"])[operation], is_held)
        for name in _HOLDERS[1:] * 2:
            assert bench.refused(name).holders[0].holder == name
            assert bench.read(name).holdings[0].holder == name
            assert bench.renew(grants[name], name) == Renewed()
        assert bench.scan() == sorted(_HOLDERS)
        assert [bench.give(grants[name], name) for name in _HOLDERS[1:]] == [Released()] * 2

    def test_a_take_that_was_broken_off_is_in_doubt_until_it_is_given_up(
        self, bench: Bench
    ) -> None:
        request = bench.taking(holder="alice")
        # Connected before: what is held back must be the answer to the take, not to a greeting.
        bench.read()
        with bench.world.hold_reply() as is_held:
            bench.side.break_off(request, is_held)
        bench.give_up(request[2])
        bench.granted(holder="bob")
        assert bench.refused().holders[0].holder == "bob"


def _requests(bench: Bench, grant: Granted) -> dict[str, Request]:
    """One of each operation, of the name "alice"."""
    key = bench.key("alice")
    renewal = Renewal(key, grant.claim, grant.token, bench.long, grant.epoch)
    return {
        "take": bench.taking("alice"),
        "renew": ("renew", [renewal]),
        "give": ("give", key, grant.claim, grant.token),
        "read": ("read", key),
        "scan": ("scan", bench.namespace, ""),
    }


@needs("slow_names")
class SlowNameCases:
    """Every call ends at `until`, also while a host name is resolved; nothing was sent then."""

    @pytest.mark.parametrize("operation", ["take", "renew", "give", "read", "scan", "wait_change"])
    def test_a_name_that_nobody_resolves_delays_nobody_past_until(
        self, bench: Bench, operation: str
    ) -> None:
        requests = _requests(bench, Granted(bench.draw(), 1, 1.0))
        requests["wait_change"] = ("wait_change", bench.key(), "seen")
        name, *arguments = requests[operation]
        with bench.world.slow_names() as engine, bench.client(engine) as slow:
            started = clock.now()
            try:
                getattr(slow.store, name)(*arguments, started + 0.3)
            except StoreUnavailable:
                pass
            else:
                # A wait owes no answer: when its time is over it returns, whatever kept it from
                # asking.
                assert operation == "wait_change"
            assert clock.now() - started < ANSWER_WITHIN
