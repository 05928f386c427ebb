"""Until when the keeper sleeps, whatever comes in between any two of its instructions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from incumbent import Lease, Lock, clock
from incumbent.model import Key
from incumbent.protocol.port import Debt
from incumbent.protocol.renew import FIRST_FROM
from incumbent.runtime import threads
from incumbent.runtime.keeper import Keeper
from incumbent.runtime.link import link_for
from incumbent.runtime.threads import AlarmThread
from tests.support.faulty import FaultyEngine

_WATCHED = (
    "/runtime/keeper.py",
    "/runtime/buckets.py",
    "/runtime/threads.py",
)
_TTLS = (5.0, 30.0, 600.0)
"""Seconds: none of them ends meanwhile, also on a busy machine."""


class Idle:
    """An alarm on which nobody sleeps; it knows whether it was woken."""

    def __init__(self) -> None:
        self.woken = False

    def wait_until(self, instant: float) -> None:
        """Nobody sleeps."""

    def wake(self) -> None:
        self.woken = True


def nothing() -> None:
    """To be traced."""


@contextmanager
def interrupted(at: int, do: Callable[[], None]) -> Iterator[list[int]]:
    """Call `do` before instruction number `at` of the keeper, as a signal handler, a finalizer or
    another thread may; yields a list of one number: the instructions that were counted.
    """
    counted = [0]

    def step(frame: FrameType, event: str, _: Any) -> Any:
        frame.f_trace_opcodes = True
        if event == "opcode":
            counted[0] += 1
            if counted[0] == at:
                sys.settrace(None)
                do()
                sys.settrace(enter)
        return step

    def enter(frame: FrameType, event: str, arg: Any) -> Any:
        return step(frame, event, arg) if frame.f_code.co_filename.endswith(_WATCHED) else None

    before = sys.gettrace()
    sys.settrace(step)
    nothing()  # Python 3.12 tells of instructions only after a frame was traced so
    counted[0] = 0
    sys.settrace(enter)
    try:
        yield counted
    finally:
        sys.settrace(before)


class Bench:
    """A keeper without its thread: the test takes the thread's steps."""

    def __init__(self) -> None:
        self.engine = FaultyEngine()
        self.keeper: Keeper = link_for(self.engine).keeper
        self.alarm = Idle()
        self.keeper._state.thread.alarm = self.alarm
        self.leases: list[Lease] = []
        self.debts = 0

    def take(self, number: int) -> None:
        ttl = _TTLS[number % len(_TTLS)]
        name = f"n{len(self.leases)}-{number}-{clock.now()}"
        self.leases.append(Lock(name, store=self.engine, ttl=ttl).acquire())

    def leave(self, number: int) -> None:
        if self.leases:
            self.leases.pop(number % len(self.leases)).release()

    def hurry(self, number: int) -> None:
        if self.leases:
            held = self.leases[number % len(self.leases)]._claim
            self.keeper.renew_now(held, lambda: None, after=number / 10)

    def owe(self, number: int) -> None:
        claim = f"{number:032x}"
        self.keeper.owe(Debt(Key("default", "owed"), claim, None, inf, 1, -inf))
        self.debts += 1

    def plan(self) -> float:
        return self.keeper._plan_sleep(self.keeper._state)

    def tick(self) -> None:
        self.keeper._act(self.keeper._state)

    def first_due(self) -> float:
        """When the first of what is remembered has to be seen to."""
        dues = [owed.due for owed in self.keeper._state.debts._owed]
        for lease in self.leases:
            held = lease._claim
            bucket: Any = held.bucket
            every = held.wanted.policy.renew_every
            dues.append(held.began + FIRST_FROM * every if bucket is None else bucket.due)
        return min(dues, default=inf)

    def end(self) -> None:
        for lease in self.leases:
            lease.release()
        self.keeper._state.debts._owed.clear()


def test_a_debt_at_any_instruction_of_the_plan_leaves_an_instant_to_sleep_until() -> None:
    bench = Bench()
    bench.take(2)
    with interrupted(-1, lambda: None) as steps:
        bench.plan()
    assert steps[0] > 50
    for step in range(1, steps[0] + 1):
        bench.alarm.woken = False
        with interrupted(step, lambda: bench.owe(1)):
            until = bench.plan()
        assert until > -inf, f"at instruction {step}"
        assert bench.alarm.woken or until <= bench.first_due(), f"at instruction {step}"
        bench.keeper._state.debts._owed.clear()
    bench.end()


def test_a_wake_at_any_instruction_of_a_thread_that_ends_is_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives: list[Callable[[], None]] = []
    monkeypatch.setattr(threads, "start_bare_thread", lives.append)
    monkeypatch.setattr(threads, "make_alarm", Idle)

    def live(at: int) -> int:
        noted: list[bool] = []

        def come() -> None:
            noted.append(True)
            thread.wake()

        def plan() -> float:
            return 0.0 if noted else inf

        thread = AlarmThread("rare", plan, noted.clear, ends_when_idle=True)
        thread.wake()
        with interrupted(at, come) as steps:
            while lives:
                lives.pop()()
        assert not noted, f"at instruction {at}"
        assert thread.alarm is None
        return steps[0]

    steps = live(-1)
    assert steps > 50
    for step in range(1, steps + 1):
        live(step)


OPERATION = st.tuples(st.sampled_from(["take", "leave", "hurry", "owe"]), st.integers(0, 400))
STEP = st.tuples(
    st.sampled_from(["plan", "tick"]), st.integers(1, 1500), st.lists(OPERATION, max_size=3)
)


@settings(max_examples=200)
@given(before=st.lists(OPERATION, max_size=4), steps=st.lists(STEP, min_size=1, max_size=6))
def test_nothing_is_forgotten_and_nothing_is_late_whatever_comes_in_between(
    before: list[tuple[str, int]], steps: list[tuple[str, int, list[tuple[str, int]]]]
) -> None:
    bench = Bench()

    def do(operations: list[tuple[str, int]]) -> None:
        for what, number in operations:
            getattr(bench, what)(number)

    do(before)
    for what, place, meanwhile in [*steps, ("plan", -1, [])]:
        instruction = place
        if what == "plan":
            with interrupted(-1, lambda: None) as instructions:
                bench.plan()
            instruction = place % instructions[0] + 1
        bench.alarm.woken = False
        with interrupted(instruction, lambda meanwhile=meanwhile: do(meanwhile)):  # type: ignore[misc]
            until = getattr(bench, what)()
        remembered = bench.keeper._state.refs()
        assert all(lease._claim.ref in remembered for lease in bench.leases)
        if what == "plan":
            note(f"sleeps until {until}, the first is due at {bench.first_due()}")
            assert until > -inf
            assert bench.alarm.woken or until <= bench.first_due()
    bench.end()
