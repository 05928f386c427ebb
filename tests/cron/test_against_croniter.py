"""Schedules against a second implementation, croniter; every difference is known and explained.

The differences are in docs/cron.md. Where the two disagree, Debian's cron(8) is followed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from croniter import croniter

from incumbent.cron.schedule import cron_schedule

EXPRESSIONS = [
    *("* * * * *", "*/5 * * * *", "10/20 * * * *", "1-59/7 * * * *", "15,45 */3 * * *"),
    *("30 2 * * *", "0 0 * * *", "0 */6 * * *", "*/15 2 * * *", "23 0-23/2 * * *"),
    *("0 0 31 * *", "0 0 29 2 *", "0 0 1 1 *", "0 0 L * *", "0 0 1-7/3 * *", "0 12 30 4,6 *"),
    *("5 4 * * sun", "0 22 * * 1-5", "0 0 * * 0", "0 0 * * 7", "0 0 * * 5-7", "0 0 * * 1#2"),
    *("30 4 1,15 * 5", "0 0 1 * 1", "0 9-17/2 * jan-mar mon-fri"),
    *("0 0 */2 * 1", "0 0 1-7 * */2"),
]
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]
STARTS = [
    *("2026-01-10T00:00", "2026-03-07T12:00", "2026-03-28T12:00", "2026-04-04T00:00"),
    *("2026-10-03T00:00", "2026-10-24T12:00", "2026-10-31T12:00", "2027-12-31T23:59"),
]

# A day field that begins with `*` (a step counts) limits the other one; croniter then takes either.
EITHER_DAY = {"0 0 */2 * 1", "0 0 1-7 * */2"}
# The hour that comes twice: croniter runs a fixed time in both.
TWICE = {("Europe/Berlin", "30 2 * * *"), ("Europe/Berlin", "23 0-23/2 * * *")}
# The hour left out: croniter runs a rhythm that is confined to it once, at its end.
MOVED = {("Europe/Berlin", "*/15 2 * * *"), ("America/New_York", "*/15 2 * * *")}
# A clock put back by half an hour: croniter leaves the repeated half hour out.
HALF = {("Australia/Lord_Howe", "1-59/7 * * * *")}
KNOWN = TWICE | MOVED | HALF | {(zone, it) for zone in ZONES for it in EITHER_DAY}


def differs(expression: str, zone: str, starts: Sequence[str] = STARTS) -> str:
    """The first difference, in words; nothing if there is none."""
    ours = cron_schedule(expression, zone)
    for start in starts:
        begin = datetime.fromisoformat(start).replace(tzinfo=ZoneInfo(zone))
        theirs, instant = croniter(expression, begin), begin.timestamp()
        while instant < begin.timestamp() + 30 * 3600:
            following = ours.next_after(instant)
            assert following is not None
            expected = theirs.get_next(datetime)
            if following != expected.timestamp():
                return f"{datetime.fromtimestamp(following, ZoneInfo(zone))}, not {expected}"
            instant = following
    return ""


@pytest.mark.left(
    "the other zones: what is known to differ and a change of clocks are kept",
    "*-Europe/Berlin",
    "[*]/15 2 *",
    "1-59/7 *",
    "23 0-23/2 *",
    "0 0 L *",
)
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_schedules_agree_with_croniter_but_for_what_is_known(expression: str, zone: str) -> None:
    found = differs(expression, zone)
    assert bool(found) == ((zone, expression) in KNOWN), found or "they agree now"


def drawn(random_: random.Random) -> str:
    def field(low: int, high: int) -> str:
        a, b = sorted(random_.sample(range(low, high + 1), 2))
        step = random_.randint(2, 9)
        return random_.choice(["*", str(a), f"{a},{b}", f"{a}-{b}", f"{a}-{b}/{step}", f"*/{step}"])

    minute, hour, month = field(0, 59), field(0, 23), random_.choice(["*", field(1, 12)])
    days = random_.choice([f"{random_.randint(1, 28)} {month} *", f"* {month} {field(0, 6)}"])
    return f"{minute} {hour} {days}"


def test_drawn_expressions_agree_with_croniter_where_no_clock_changes() -> None:
    seed = random.randrange(2**32)
    random_ = random.Random(seed)
    for _ in range(40):
        expression = drawn(random_)
        found = differs(expression, "UTC", STARTS[-1:])
        assert not found, f"seed {seed}: {expression}: {found}"
