"""What an instance asks for, and when: claims, looks, outages, catching up."""

from __future__ import annotations

from math import inf

import pytest

from incumbent.cron.agenda import Agenda, ClaimOrder, Dispatcher, LedgerOrder
from incumbent.cron.judging import Findings, judge
from incumbent.cron.schedule import Every
from incumbent.cron.spec import CatchUp, JobSlot, JobSpec, Overlap
from incumbent.model import Holding, Key, Record, Refused

WALL = 1_000_000_000.0
"""Not a multiple of a minute: 40 s after one."""


def spec(
    every: float = 60, catch_up: CatchUp | None = None, overlap: Overlap = "skip", name: str = "job"
) -> JobSpec:
    return JobSpec(
        name=name,
        schedule=Every(every),
        command=("true",),
        catch_up=catch_up or CatchUp(),
        overlap=overlap,
    )


def dispatcher(*specs: JobSpec, known: dict[str, float] | None = None) -> Dispatcher:
    return Dispatcher(specs, Agenda(specs, WALL, known or {}), lambda: 0.5)


def test_a_slot_is_claimed_when_it_is_due_and_not_before() -> None:
    it = dispatcher(spec())
    assert it.next_in(0, WALL) == 20
    assert it.orders(0, WALL + 19.9) == []
    (order,) = it.orders(20, WALL + 20)
    assert isinstance(order, ClaimOrder)
    assert order.slot == JobSlot.at(WALL + 20)


def test_who_is_refused_by_the_slots_own_holder_looks_when_its_lease_ends() -> None:
    it = dispatcher(spec())
    (order,) = it.orders(20, WALL + 20)
    assert isinstance(order, ClaimOrder)
    held = Holding("other", 1, 9.0, meta=order.slot.name.encode())
    it.note_refused(order, Refused("held", (held,), 9.0), 20)
    assert it.orders(28, WALL + 28) == []
    (look,) = it.orders(30, WALL + 30)
    assert look == LedgerOrder(order.spec, (order.slot,))


def test_many_closed_slots_of_a_job_are_one_look() -> None:
    it = dispatcher(spec(every=1))
    for second in range(1, 4):
        for order in it.orders(second, WALL + second):
            if isinstance(order, ClaimOrder):
                it.note_refused(order, Refused("closed", retry_after=900.0), second)
    looks = [order for order in it.orders(4, WALL + 3.9) if isinstance(order, LedgerOrder)]
    assert len(looks) == 1
    assert len(looks[0].slots) >= 2


def test_an_order_without_an_answer_stands_and_the_others_wait_for_it() -> None:
    it = dispatcher(spec(name="a"), spec(name="b"))
    orders = it.orders(20, WALL + 20)
    assert len(orders) == 2
    it.note_unanswered(orders, 20)
    assert it.orders(20.01, WALL + 20.01) == []
    (probe,) = it.orders(25, WALL + 25)
    assert isinstance(probe, ClaimOrder)
    it.note_replied()
    (other,) = it.orders(25, WALL + 25)
    assert {probe.spec.name, other.spec.name} == {"a", "b"}


def test_a_store_that_says_for_how_long_it_grants_nothing_is_left_alone_for_that_long() -> None:
    it = dispatcher(spec())
    (order,) = it.orders(20, WALL + 20)
    it.note_unanswered([order], 20, retry_after=15.0)
    assert it.next_in(20, WALL + 20) >= 15


def test_one_request_without_an_answer_counts_once_however_many_orders_wait_for_it() -> None:
    one, many = dispatcher(spec()), dispatcher(*(spec(name=f"j{it}") for it in range(50)))
    for each in (one, many):
        each.note_unanswered(each.orders(20, WALL + 20), 20)
    assert one.next_in(20, WALL + 20) == many.next_in(20, WALL + 20) == pytest.approx(0.2)
    # Its answer to the next one frees all the others.
    assert len(many.orders(21, WALL + 21)) == 1
    many.note_replied()
    assert len(many.orders(21, WALL + 21)) == 49


def _late(rule: CatchUp) -> LedgerOrder:
    it = dispatcher(spec(catch_up=rule))
    (order,) = it.orders(20, WALL + 20)
    it.note_unanswered([order], 20, retry_after=100.0)
    # The first request after an outage is a probe; the others follow its answer.
    while True:
        (order, *_) = it.orders(120, WALL + 120)
        if isinstance(order, LedgerOrder):
            return order
        it.note_replied()


def test_a_slot_that_an_outage_made_late_is_missed_or_caught_up_as_the_job_says() -> None:
    missed = _late(CatchUp("no"))
    assert missed.slots[0].only_check
    caught = _late(CatchUp("last"))
    assert (caught.slots[0].only_check, caught.slots[0].waits_its_turn) == (False, True)


def test_what_is_caught_up_is_looked_up_before_it_is_claimed_and_then_claimed() -> None:
    rule = CatchUp("last")
    it = dispatcher(spec(every=3600, catch_up=rule), known={"job": WALL - 10_000})
    looks = [order for order in it.orders(0, WALL) if isinstance(order, LedgerOrder)]
    (look,) = looks
    wanted = [slot for slot in look.slots if not slot.only_check]
    assert len(wanted) == 1
    it.note_checked(look, Findings(claims=wanted), 0)
    claims = [order for order in it.orders(1, WALL + 1) if isinstance(order, ClaimOrder)]
    assert [claim.slot for claim in claims] == wanted


def test_a_slot_in_time_waits_for_those_that_are_caught_up_before_it() -> None:
    rule = CatchUp("all", limit=2)
    it = dispatcher(spec(every=60, catch_up=rule), known={"job": WALL - 200})
    orders = it.orders(0, WALL)
    taken = {
        slot for it in orders for slot in (it.slots if isinstance(it, LedgerOrder) else (it.slot,))
    }
    # WALL is 40 s after a slot, which is punctual for a minute.
    wanted = {slot.due: slot.waits_its_turn for slot in taken if not slot.only_check}
    assert wanted == {WALL - 160: True, WALL - 100: True, WALL - 40: True}
    punctual = dispatcher(spec(every=60, catch_up=rule), known={"job": WALL - 41})
    (claim,) = punctual.orders(0, WALL)
    assert isinstance(claim, ClaimOrder)
    assert not claim.slot.waits_its_turn


def test_a_job_that_is_gone_is_asked_for_no_more() -> None:
    it = dispatcher(spec(name="a"), spec(name="b"))
    it.note_unanswered(it.orders(20, WALL + 20), 20)
    it.reload([spec(name="b")], WALL + 21)
    for now in (30, 31):
        for order in it.orders(now, WALL + now):
            assert order.spec.name == "b"
            if isinstance(order, ClaimOrder):
                it.note_replied()


def test_with_nothing_to_do_it_sleeps_for_ever() -> None:
    assert dispatcher().next_in(0, WALL) == inf


def test_what_waits_does_not_pile_up() -> None:
    it = dispatcher(spec())
    slot = JobSlot.at(WALL)
    for number in range(1000):
        it.check_at("job", slot, 50 + number)
        it.orders(10, WALL)
    assert len(it._heap) < 10


def test_a_slot_that_waited_in_the_queue_is_run_however_long_that_took() -> None:
    it = dispatcher(spec(overlap="queue"))
    (order,) = it.orders(20, WALL + 20)
    assert isinstance(order, ClaimOrder)
    held = Record(Key("n", "job"), (Holding("other", 1, 9.0, meta=b"earlier"),))
    look = LedgerOrder(order.spec, (order.slot,))
    findings = judge(order.spec, held, look.slots, WALL + 20)
    it.note_checked(look, findings, 20)
    for now in range(21, 500, 10):
        for order in it.orders(now, WALL + now):
            if isinstance(order, LedgerOrder):
                it.note_checked(order, judge(order.spec, held, order.slots, WALL + now), now)
            elif order.slot.due > WALL + 20:
                it.note_replied()
    free = Record(Key("n", "job"))
    first = JobSlot.at(WALL + 20)
    claimed = []
    for now in range(500, 510):
        for order in it.orders(now, WALL + now):
            if isinstance(order, LedgerOrder):
                it.note_checked(order, judge(order.spec, free, order.slots, WALL + now), now)
            else:
                claimed.append(order.slot.name)
    assert first.name in claimed


def test_looks_of_one_job_come_each_in_its_time() -> None:
    it = dispatcher(spec(every=3600))
    first, second = JobSlot.at(WALL - 90), JobSlot.at(WALL - 30)
    it.check_at("job", second, 15)
    it.check_at("job", first, 5)
    assert [it.orders(now, WALL + now) for now in (4, 5, 14, 15)] == [
        [],
        [LedgerOrder(it.specs["job"], (first,))],
        [],
        [LedgerOrder(it.specs["job"], (second,))],
    ]
