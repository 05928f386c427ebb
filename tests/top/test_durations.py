"""Durations are finite seconds, however they are written; everything else is refused."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incumbent import clock
from incumbent.durations import DAY, Duration, parse_duration, say_seconds
from incumbent.errors import ConfigError
from tests.support.pace import took


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0),
        (0.0, 0),
        (-0.0, 0),
        (15, 15),
        (15.0, 15),
        (0.1, 0.1),
        ("15", 15),
        ("2.5", 2.5),
        ("0", 0),
        (" 15s ", 15),
        ("15s", 15),
        ("500ms", 0.5),
        ("1.5m", 90),
        ("1h30m", 5400),
        ("1m500ms", 60.5),
        ("1d", DAY),
        ("1d1h1m1s1ms", 90_061.001),
        (timedelta(seconds=15), 15),
        (timedelta(milliseconds=250), 0.25),
        (timedelta(0), 0),
    ],
)
def test_a_duration_is_seconds(value: Duration, seconds: float) -> None:
    found = parse_duration(value)
    assert found == pytest.approx(seconds)
    assert type(found) is float


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, b"15", [], (15,), {}, object(), 1j, Decimal(15)),
        *("", " ", "s", "ms", "abc", "fifteen", "15  s", "15x", "15S", "1e3", "+1", "-1", "-1s"),
        *("1,5", "1.", ".5", "1..5", "0x10", "1_000", "nan", "inf", "1h  30m", "1h30", "30m-1h"),
        *("15s\n15s", "15\x00", "١٥", "１５", "²s"),
    ],
)
def test_what_is_no_duration_is_refused_with_a_hint(value: Duration) -> None:
    with pytest.raises(ConfigError, match="write seconds") as caught:
        parse_duration(value, "ttl")
    assert caught.value.name == "ttl"


@pytest.mark.parametrize(
    "value",
    [
        *(-1, -0.001, nan, inf, -inf, 1e30, 10**400, -(10**400)),
        *("9" * 400, "1" * 400 + "d", "1000d", timedelta(days=-1), timedelta.max, timedelta.min),
    ],
)
def test_what_is_out_of_range_is_refused_with_the_range(value: Duration) -> None:
    with pytest.raises(ConfigError, match="between 0ms and 366d") as caught:
        parse_duration(value, "timeout")
    assert caught.value.name == "timeout"


@pytest.mark.parametrize("value", [10**5000, -(10**5000)], ids=["huge", "tiny"])
def test_a_number_too_long_to_be_shown_is_refused_all_the_same(value: int) -> None:
    with pytest.raises(ConfigError):
        parse_duration(value, "ttl")


@pytest.mark.parametrize("text", ["9" * 1_000_000, "1s" * 500_000 + "!", "1.5" * 300_000])
def test_an_endless_text_is_refused_fast_and_briefly(text: str) -> None:
    started = clock.now()
    with pytest.raises(ConfigError) as caught:
        parse_duration(text, "ttl")
    assert took(started) < 2
    assert len(str(caught.value)) < 500


def test_the_bounds_themselves_are_inside() -> None:
    assert parse_duration(1, least=1, most=2) == 1
    assert parse_duration(2, least=1, most=2) == 2
    for value in (0.999, 2.001):
        with pytest.raises(ConfigError, match="between 1s and 2s"):
            parse_duration(value, least=1, most=2)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.00025, "0.25ms"),
        (0.25, "250ms"),
        (0.9, "900ms"),
        (0.99996, "1s"),
        (1, "1s"),
        (2.5, "2.5s"),
        (59.94, "59.9s"),
        (59.96, "1m"),
        (60, "1m"),
        (90, "1m30s"),
        (3600, "1h"),
        (5400, "1h30m"),
        (DAY, "1d"),
        (90_061, "1d1h1m1s"),
    ],
)
def test_seconds_are_said_as_people_write_them(seconds: float, text: str) -> None:
    assert say_seconds(seconds) == text


@given(st.integers(1, int(366 * DAY)))
def test_what_is_said_is_read_back(seconds: int) -> None:
    assert parse_duration(say_seconds(seconds)) == seconds


@given(st.floats(1e-6, 366 * DAY))
def test_what_is_said_is_close_to_what_was_meant(seconds: float) -> None:
    assert parse_duration(say_seconds(seconds), most=inf) == pytest.approx(
        seconds, rel=0.01, abs=1e-3
    )


@given(st.floats() | st.integers() | st.text() | st.timedeltas() | st.none() | st.booleans())
def test_anything_is_a_duration_or_a_config_error(value: Duration) -> None:
    try:
        found = parse_duration(value, "ttl", least=0.1, most=60)
    except ConfigError:
        return
    assert 0.1 <= found <= 60
