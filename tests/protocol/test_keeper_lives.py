"""The keeper's thread: whatever ends it is logged, and it starts again."""

from __future__ import annotations

import gc
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from math import inf

import pytest

from incumbent import Lock, clock
from incumbent.model import Key
from incumbent.protocol.port import Debt
from incumbent.runtime import threads
from incumbent.runtime.keeper import Keeper
from incumbent.runtime.link import link_for
from incumbent.runtime.threads import AlarmThread, _BoottimeAlarm, _QueueAlarm, make_alarm
from incumbent.unpatched import start_bare_thread
from tests import tiers
from tests.support.faulty import FaultyEngine
from tests.support.needs import needs
from tests.support.waiting import eventually


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


def keeper_of(engine: FaultyEngine) -> Keeper:
    return link_for(engine).keeper


TTL = 3.0
"""Seconds: a busy machine may keep a thread from running for longer than a short lease lasts."""


class Fatal(BaseException):
    """No Exception: as SystemExit, or what PyThreadState_SetAsyncExc raises."""


@pytest.mark.left(tiers.MEET, "first-error0", "then-error1", "first-error2", "then-error3")
@pytest.mark.parametrize("error", [OverflowError("planned"), SystemExit(1), Fatal(), MemoryError()])
@pytest.mark.parametrize("step", ["_plan_sleep", "_act"], ids=["first", "then"])
def test_whatever_ends_the_thread_is_logged_and_costs_no_lease(
    engine: FaultyEngine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    step: str,
    error: BaseException,
) -> None:
    good, deaths = getattr(Keeper, step), iter([True] * 3)

    def fail(self: Keeper, *rest: object) -> object:
        if next(deaths, False):
            raise error
        return good(self, *rest)

    monkeypatch.setattr(Keeper, step, fail)
    with Lock("a", store=engine, ttl=TTL):
        eventually(lambda: keeper_of(engine).stats.renewals >= 3)
    assert next(deaths, None) is None
    assert caplog.text.count("incumbent-keeper ended by an error; it starts again") == 3


def test_a_thread_that_dies_at_every_step_does_not_spin(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lives: list[float] = []

    def plan() -> float:
        lives.append(clock.now())
        if thread.ends_when_idle:
            return inf
        raise OverflowError

    thread = AlarmThread("dying", plan, lambda: None)
    with caplog.at_level(logging.CRITICAL, "incumbent"):
        thread.wake()
        eventually(lambda: len(lives) >= 5)
        thread.ends_when_idle = True
    pauses = [after - before for before, after in pairwise(lives)]
    assert all(pause >= 0.019 * 2**at for at, pause in enumerate(pauses[:4]))


def test_a_claim_is_handed_over_while_another_thread_is_inside_of_the_mutex(
    engine: FaultyEngine,
) -> None:
    """A finalizer does it, in the middle of anything: waiting could be a deadlock."""
    keeper = keeper_of(engine)
    debt = Debt(Key("default", "a"), "c" * 32, None, inf, 0, -inf)
    with keeper._state.mutex:
        finalizer = threading.Thread(target=keeper.owe, args=(debt,), daemon=True)
        finalizer.start()
        finalizer.join(10)
        assert not finalizer.is_alive()
    keeper.drain(1)


_INSIDE_OF_THREADING = """
import threading
from math import inf
from incumbent.runtime.threads import AlarmThread

planned = threading.Event()
thread = AlarmThread("woken", lambda: planned.set() or inf, lambda: None)
with threading._active_limbo_lock:
    thread.wake()
assert planned.wait(10)
"""


def test_a_thread_is_started_though_its_starter_is_inside_of_threading() -> None:
    subprocess.run([sys.executable, "-c", _INSIDE_OF_THREADING], timeout=60, check=True)


def test_a_thread_that_could_not_be_started_is_started_by_the_next_lease(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    good, refusals = start_bare_thread, iter([True])

    def refuse(work: Callable[[], None]) -> None:
        if next(refusals, False):
            raise RuntimeError("can't start new thread")
        good(work)

    monkeypatch.setattr(threads, "start_bare_thread", refuse)
    first = Lock("a", store=engine, ttl=TTL).acquire()
    assert "no thread can be started: can't start new thread" in caplog.text
    with Lock("b", store=engine, ttl=TTL):
        eventually(lambda: keeper_of(engine).stats.renewals >= 4)
        first.release()


@needs(hasattr(os, "eventfd"), "an alarm with descriptors")
def test_an_alarm_whose_descriptors_were_closed_by_others_is_replaced(
    engine: FaultyEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with Lock("a", store=engine, ttl=60) as other:
        alarm = keeper_of(engine)._state.thread.alarm
        assert isinstance(alarm, _BoottimeAlarm)
        os.close(alarm._wake_fd)
        os.close(alarm._timer_fd)
        with Lock("b", store=engine, ttl=TTL):
            eventually(lambda: keeper_of(engine).stats.renewals >= 2)
            assert other.valid
    assert "its alarm was closed by others" in caplog.text


@needs(hasattr(os, "eventfd"), "an alarm with descriptors")
def test_an_alarm_that_was_closed_by_others_is_replaced_though_nobody_wakes_the_thread(
    engine: FaultyEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with Lock("a", store=engine, ttl=TTL) as lease:
        eventually(lambda: keeper_of(engine).stats.renewals >= 1)
        alarm = keeper_of(engine)._state.thread.alarm
        assert isinstance(alarm, _BoottimeAlarm)
        os.close(alarm._wake_fd)
        os.close(alarm._timer_fd)
        eventually(lambda: keeper_of(engine).stats.renewals >= 4)
        assert lease.valid
    assert "it starts again" in caplog.text


@pytest.mark.parametrize("instant", [-inf, inf, -1e300, 1e300, 0.0])
def test_an_alarm_takes_every_instant(instant: float) -> None:
    alarm = make_alarm()
    alarm.wake()
    alarm.wait_until(instant)


def test_where_there_is_no_such_alarm_another_takes_its_place_without_a_word(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "eventfd", raising=False)
    alarm = make_alarm()
    gc.collect()
    assert isinstance(alarm, _QueueAlarm)


def test_a_watcher_that_fails_costs_the_others_nothing(
    engine: FaultyEngine, caplog: pytest.LogCaptureFixture
) -> None:
    told = threading.Event()

    def fail() -> None:
        raise SystemExit(3)

    with Lock("kept", store=engine, ttl=TTL):
        gone = Lock("gone", store=engine, ttl=TTL).acquire()
        for watcher in (fail, told.set):
            keeper_of(engine).watch(gone._claim, watcher)
        claim = gone._claim
        engine.faulty.give(claim.wanted.key, claim.id, None, 0)
        assert told.wait(10)
        before = keeper_of(engine).stats.renewals
        eventually(lambda: keeper_of(engine).stats.renewals > before)
    assert "a callback failed" in caplog.text
