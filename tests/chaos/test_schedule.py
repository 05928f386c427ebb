"""Schedules are data: the same for a seed, printable, and judged for what nobody can prevent."""

from __future__ import annotations

import pytest

from tests.chaos.schedule import (
    KINDS,
    ORDERS,
    SHARES,
    Fault,
    Schedule,
    draw,
    draw_shared,
    from_text,
    may_overlap,
    smaller,
    to_text,
)

MANY = range(2000)


def two(first: str, second: str, *worker: str, apart: float = 0.01) -> Schedule:
    faults = (Fault(0.1, first, _lasts(first)), Fault(0.1 + apart, second, _lasts(second)))
    return Schedule(0, "sqlite", "pidns", worker, faults=faults)


def _lasts(kind: str) -> float:
    return 1.5 if kind.startswith("stop") else 0.0


def test_a_seed_always_draws_the_same_schedule() -> None:
    assert [draw(seed) for seed in MANY] == [draw(seed) for seed in MANY]


def test_everything_that_can_be_shared_is_drawn_on_every_store_that_has_it() -> None:
    drawn = [draw_shared(seed) for seed in MANY]
    assert drawn == [draw_shared(seed) for seed in MANY]
    assert {(one.shares, one.store) for one in drawn} == {
        (shares, store) for shares in SHARES for store in SHARES[shares]
    }
    assert all(from_text(to_text(one)) == one for one in drawn)


def test_every_order_is_drawn_on_every_store_that_has_it() -> None:
    drawn = {(one.order, one.store) for one in map(draw, MANY) if one.order}
    assert drawn == {(order, store) for order, stores in ORDERS.items() for store in stores}


def test_every_fault_is_drawn_and_most_schedules_are_judged() -> None:
    drawn = [draw(seed) for seed in MANY]
    assert {kind for schedule in drawn for kind in schedule.kinds} == set(KINDS)
    judged = [one for one in drawn if not may_overlap(one, one.isolation)]
    assert len(judged) > 0.9 * len(drawn)


def test_a_schedule_comes_back_from_its_text() -> None:
    assert all(from_text(to_text(draw(seed))) == draw(seed) for seed in MANY)


def test_a_smaller_schedule_has_one_thing_less() -> None:
    whole = two("kill guard", "exit child", "--daemon")
    assert [(one.kinds, one.worker) for one in smaller(whole)] == [
        (("exit child",), ("--daemon",)),
        (("kill guard",), ("--daemon",)),
        (("kill guard", "exit child"), ()),
    ]


@pytest.mark.parametrize("isolation", ["pidns", "container", "pgroup"])
def test_one_of_supervisor_and_guard_is_enough(isolation: str) -> None:
    for who in ("supervisor", "guard"):
        for how in ("kill", "stop", "term"):
            for worker in ("--daemon", "--stubborn"):
                assert not may_overlap(two(f"{how} {who}", "stop child", worker), isolation)


@pytest.mark.parametrize(
    ("supervisor", "guard", "worker", "cannot"),
    [
        ("stop", "stop", "--stubborn", {"pidns", "container", "pgroup"}),
        ("stop", "kill", "--stubborn", {"container", "pgroup"}),
        ("kill", "stop", "--stubborn", set()),
        ("kill", "stop", "--daemon", {"pidns", "pgroup"}),
        ("kill", "kill", "--daemon", {"pgroup"}),
    ],
)
def test_without_both_of_them_it_depends_on_the_isolation(
    supervisor: str, guard: str, worker: str, cannot: set[str]
) -> None:
    schedule = two(f"{supervisor} supervisor", f"{guard} guard", worker)
    found = {way for way in ("pidns", "container", "pgroup") if may_overlap(schedule, way)}
    assert found == cannot


def test_one_after_the_other_is_no_excuse() -> None:
    assert not may_overlap(two("kill guard", "stop supervisor", apart=1.0), "pgroup")


def test_a_daemon_is_an_excuse_only_where_nothing_tells_whose_it_is() -> None:
    killed = two("kill supervisor", "exit child", "--stranger")
    assert [way for way in ("pidns", "container", "pgroup") if may_overlap(killed, way)] == [
        "pgroup"
    ]
    assert not may_overlap(two("kill supervisor", "exit child", "--daemon"), "pgroup")


def test_a_store_that_loses_its_keys_is_an_excuse_and_a_restart_alone_is_not() -> None:
    for kind in ("flush", "restart empty"):
        faults = (Fault(0.1, kind),)
        assert may_overlap(Schedule(0, "redis", "pidns", (), False, faults), "pidns")
    assert not may_overlap(
        Schedule(0, "redis", "pidns", (), True, (Fault(0.1, "restart empty"),)), "pidns"
    )
