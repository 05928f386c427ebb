"""What is taken off a bound in seconds: the time in which nothing ran, and nothing else."""

from __future__ import annotations

import ctypes
import sys
import time

import pytest

from incumbent import clock
from tests.support.forks import in_a_child
from tests.support.needs import needs
from tests.support.pace import in_time, lasted, stood_still, took
from tests.support.waiting import eventually

pytestmark = needs(sys.platform != "win32", "usleep(3) and fork(2) are of POSIX")


def stand_still(seconds: float) -> None:
    # PyDLL keeps the interpreter's lock during the call.
    ctypes.PyDLL(None).usleep(round(seconds * 1e6))


def test_what_stood_still_is_taken_off_the_upper_bound_alone() -> None:
    began = clock.now()
    stand_still(1.5)
    assert 1.3 < stood_still(began) <= clock.now() - began
    assert took(began) < 1
    assert lasted(began, 1.49, 1)
    assert not lasted(began, 60.0, 61.0)


def test_time_that_passes_while_others_run_counts() -> None:
    began = clock.now()
    time.sleep(0.3)
    assert took(began) > 0.29 - stood_still(began)
    assert stood_still(clock.now()) == 0


def test_what_stood_still_before_is_not_taken_off() -> None:
    stand_still(0.2)
    began = clock.now()
    eventually(lambda: took(began) > 0.1)


def test_a_wait_in_a_forked_child_ends() -> None:
    def wait() -> int:
        with pytest.raises(AssertionError, match="within"):
            eventually(lambda: False, within=0.2)
        return 0

    assert in_a_child(wait) == 0


def test_a_clock_that_a_test_moves_is_not_that_of_the_bounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began = clock.now()
    with monkeypatch.context() as patched:
        patched.setattr(clock, "now", lambda: began + 3600)
        time.sleep(0.1)
    time.sleep(0.1)
    assert took(began) > 0.19 - stood_still(began)
    assert stood_still(began) < 1


def test_what_comes_after_its_deadline_is_late() -> None:
    with in_time(1.0, late_at_most=0.1):
        time.sleep(0.01)
    with pytest.raises(AssertionError, match="after the deadline"), in_time(0.05, late_at_most=0.1):
        time.sleep(0.4)
