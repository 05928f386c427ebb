"""`05:30` and `2026-11-21T05:30` as instants: of a job's zone, or of this host's local time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from incumbent.cli.text import instant_of
from incumbent.errors import ConfigError

BERLIN = ZoneInfo("Europe/Berlin")
LOCAL_OR_NAMED = pytest.mark.parametrize("zone", [None, BERLIN], ids=["local", "named"])


@pytest.fixture(autouse=True)
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@LOCAL_OR_NAMED
@pytest.mark.parametrize(
    ("text", "now", "meant"),
    [
        ("01:30", "2026-10-25T09:00+01:00", "2026-10-25T01:30+02:00"),
        ("23:30", "2026-10-25T23:00+01:00", "2026-10-24T23:30+02:00"),
        ("05:30:15", "2026-11-21T05:30:15+01:00", "2026-11-21T05:30:15+01:00"),
        ("05:30", "2026-11-21T05:29+01:00", "2026-11-20T05:30+01:00"),
        ("2026-07-01T05:30", "2026-11-21T05:29+01:00", "2026-07-01T05:30+02:00"),
        ("2026-07-01T05:30Z", "2026-11-21T05:29+01:00", "2026-07-01T05:30+00:00"),
    ],
)
def test_a_time_of_day_is_the_last_one_also_across_a_change_of_the_clocks(
    text: str, now: str, meant: str, zone: ZoneInfo | None
) -> None:
    assert instant_of(text, "at", at(now), zone=zone) == at(meant)


@pytest.mark.parametrize("text", ["25:00", "5", "yesterday", "0001-01-01T00:00", "05:30:61"])
def test_a_text_that_is_no_instant_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ConfigError, match="write 05:30, 2026-11-21T05:30 or"):
        instant_of(text, "at", at("2026-11-21T05:29+01:00"))
