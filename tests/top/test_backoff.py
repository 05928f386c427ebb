"""Backoff grows, is bounded, and spreads the crowd over the whole interval."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incumbent.durations import backoff_delay

tries = st.integers(0, 10**9)
jitters = st.floats(0, 1, exclude_max=True)


@given(tries, jitters, st.floats(0, 10), st.floats(0, 100))
def test_a_delay_lies_between_nothing_and_the_cap(
    failures: int, jitter: float, base: float, cap: float
) -> None:
    assert 0 <= backoff_delay(failures, jitter, base=base, cap=cap) <= cap


@given(tries, jitters)
def test_another_failure_never_shortens_the_delay(failures: int, jitter: float) -> None:
    assert backoff_delay(failures, jitter) <= backoff_delay(failures + 1, jitter)


@pytest.mark.parametrize(("failures", "most"), [(0, 0.05), (1, 0.1), (3, 0.4), (6, 3.2), (7, 5.0)])
def test_the_interval_doubles_until_the_cap(failures: int, most: float) -> None:
    assert backoff_delay(failures, 1.0) == pytest.approx(most)


def test_the_jitter_reaches_down_to_nothing() -> None:
    assert backoff_delay(10, 0.0) == 0.0
    assert backoff_delay(10, 0.5) == 2.5


def test_an_outage_of_years_does_not_overflow() -> None:
    assert backoff_delay(10**12, 1.0) == 5.0
