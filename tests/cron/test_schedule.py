"""When schedules are due: Debian's cron(8) where clocks change, leap days, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incumbent.cron.schedule import (
    CronSchedule,
    Every,
    FixedTimes,
    Schedule,
    ScheduleError,
    cron_schedule,
    parse_instant,
    slot_id,
)
from incumbent.errors import ConfigError


@pytest.fixture(autouse=True)
def nothing_known() -> None:
    """A schedule keeps its last answer, which would stand in for the next."""
    cron_schedule.cache_clear()


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def slots(schedule: Schedule, after: str, count: int) -> list[str]:
    found, instant = [], at(after)
    for _ in range(count):
        following = schedule.next_after(instant)
        if following is None:
            break
        instant = following
        found.append(slot_id(instant))
    return found


BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"

# Each row is written by hand from the text of Debian's cron(8): a job at a fixed time that falls
# into the hour left out runs once, right after the change, and in the hour that comes twice only
# the first time; a job with `*` in minute or hour goes by the clock as it is.
ROWS = [
    # 29 March 2026, 02:00 -> 03:00, is 01:00 UTC.
    ("30 2 * * *", BERLIN, "2026-03-27T12:00Z", ["28T01:30", "29T01:00", "30T00:30"]),
    ("0 3 * * *", BERLIN, "2026-03-28T12:00Z", ["29T01:00", "30T01:00"]),
    ("0,30 2,3 * * *", BERLIN, "2026-03-29T00:59Z", ["29T01:00", "29T01:30", "30T00:00"]),
    ("30 1 * * *", BERLIN, "2026-03-28T12:00Z", ["29T00:30", "29T23:30"]),
    ("*/30 2 * * *", BERLIN, "2026-03-28T12:00Z", ["30T00:00", "30T00:30"]),
    ("*/30 * * * *", BERLIN, "2026-03-29T00:00Z", ["29T00:30", "29T01:00", "29T01:30"]),
    ("30 * * * *", BERLIN, "2026-03-29T00:00Z", ["29T00:30", "29T01:30", "29T02:30"]),
    # 25 October 2026, 03:00 -> 02:00, is 01:00 UTC.
    ("30 2 * * *", BERLIN, "2026-10-24T12:00Z", ["25T00:30", "26T01:30"]),
    ("30 2 * * *", BERLIN, "2026-10-25T01:15Z", ["26T01:30"]),
    ("0 2,3 * * *", BERLIN, "2026-10-24T12:00Z", ["25T00:00", "25T02:00", "26T01:00"]),
    ("30 * * * *", BERLIN, "2026-10-24T23:45Z", ["25T00:30", "25T01:30", "25T02:30"]),
    ("*/30 2 * * *", BERLIN, "2026-10-24T12:00Z", ["25T00:00", "25T00:30", "25T01:00", "25T01:30"]),
    # 8 March 2026, 02:00 -> 03:00, is 07:00 UTC; 1 November 2026, 02:00 -> 01:00, is 06:00 UTC.
    ("30 2 * * *", NEW_YORK, "2026-03-07T12:00Z", ["08T07:00", "09T06:30"]),
    ("30 1 * * *", NEW_YORK, "2026-10-31T12:00Z", ["01T05:30", "02T06:30"]),
    ("30 2 * * *", NEW_YORK, "2026-10-31T12:00Z", ["01T07:30", "02T07:30"]),
    ("*/20 1 * * *", NEW_YORK, "2026-11-01T05:30Z", ["01T05:40", "01T06:00", "01T06:20"]),
    # Half an hour: 4 October 2026, 02:00 -> 02:30, is 3 October 15:30 UTC; 5 April 2026, 02:00 ->
    # 01:30, is 4 April 15:00 UTC.
    ("15 2 * * *", LORD_HOWE, "2026-10-03T00:00Z", ["03T15:30", "04T15:15"]),
    ("45 1 * * *", LORD_HOWE, "2026-04-04T00:00Z", ["04T14:45", "05T15:15"]),
    ("*/15 2 * * *", LORD_HOWE, "2026-10-03T00:00Z", ["03T15:30", "03T15:45", "04T15:00"]),
    ("*/15 2 * * *", LORD_HOWE, "2026-04-04T00:00Z", ["04T15:30", "04T15:45", "04T16:00"]),
    # The gap begins at midnight: 8 March 2026, 00:00 -> 01:00, is 05:00 UTC.
    ("0 0 * * *", "America/Havana", "2026-03-07T12:00Z", ["08T05:00", "09T04:00"]),
    ("*/30 0 * * *", "America/Havana", "2026-03-07T12:00Z", ["09T04:00", "09T04:30"]),
]


@pytest.mark.parametrize(("expression", "zone", "after", "expected"), ROWS)
def test_a_changed_clock_is_treated_as_in_debian(
    expression: str, zone: str, after: str, expected: list[str]
) -> None:
    found = slots(cron_schedule(expression, zone), after, len(expected))
    assert [it[8:16] for it in found] == expected


def test_a_fixed_time_with_seconds_is_treated_like_one_without() -> None:
    with_seconds = cron_schedule("15 30 2 * * *", BERLIN)
    spring = slots(with_seconds, "2026-03-28T12:00Z", 2)
    assert spring == ["2026-03-29T01:00:00Z", "2026-03-30T00:30:15Z"]
    autumn = slots(with_seconds, "2026-10-24T12:00Z", 2)
    assert autumn == ["2026-10-25T00:30:15Z", "2026-10-26T01:30:15Z"]
    rhythm = cron_schedule("*/30 30 2 * * *", BERLIN)
    assert slots(rhythm, "2026-03-28T12:00Z", 1) == ["2026-03-30T00:30:00Z"]
    hourly = cron_schedule("0 30 * * * *", BERLIN)
    assert slots(hourly, "2026-10-25T00:00Z", 2) == ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"]


DATES = [
    ("0 0 29 2 *", "2026-01-01T00:00Z", ["2028-02-29", "2032-02-29"]),
    ("0 0 29 2 *", "2096-02-29T00:00Z", ["2104-02-29"]),
    ("0 0 31 * *", "2026-01-31T00:00Z", ["2026-03-31", "2026-05-31", "2026-07-31"]),
    ("0 0 L * *", "2026-01-31T00:00Z", ["2026-02-28", "2026-03-31"]),
    ("0 0 L 2 *", "2027-03-01T00:00Z", ["2028-02-29"]),
    ("0 0 LW * *", "2026-01-01T00:00Z", ["2026-01-30", "2026-02-27"]),
    ("0 0 * * 5L", "2026-01-01T00:00Z", ["2026-01-30", "2026-02-27"]),
    ("0 0 * * MON#2", "2026-01-01T00:00Z", ["2026-01-12", "2026-02-09"]),
    ("0 0 * 2 MON#5", "2026-01-01T00:00Z", ["2044-02-29"]),
    ("0 0 1,15 * 5", "2026-11-13T00:00Z", ["2026-11-15", "2026-11-20", "2026-11-27", "2026-12-01"]),
    ("0 0 */10 * 1", "2026-01-01T00:00Z", ["2026-05-11", "2026-06-01"]),
    ("0 0 1 JAN,jul *", "2026-01-01T00:00Z", ["2026-07-01", "2027-01-01"]),
    ("0 0 * * 7", "2026-11-21T00:00Z", ["2026-11-22", "2026-11-29"]),
    ("0 0 * * sun-tue", "2026-11-21T00:00Z", ["2026-11-22", "2026-11-23", "2026-11-24"]),
    ("0 0 1-10/4 1 *", "2025-12-31T00:00Z", ["2026-01-01", "2026-01-05", "2026-01-09"]),
    ("@yearly", "2026-01-01T00:00Z", ["2027-01-01"]),
    ("@weekly", "2026-11-21T00:00Z", ["2026-11-22"]),
]


@pytest.mark.parametrize(("expression", "after", "expected"), DATES)
def test_days_are_those_of_the_calendar(expression: str, after: str, expected: list[str]) -> None:
    found = slots(cron_schedule(expression), after, len(expected))
    assert found == [f"{it}T00:00:00Z" for it in expected]


ZONES = [BERLIN, NEW_YORK, LORD_HOWE, "America/Havana", "Antarctica/Troll", "Asia/Kolkata", "UTC"]
instants = st.integers(int(at("2025-01-01T00:00Z")), int(at("2028-01-01T00:00Z")))


def minutes_on_the_clock(
    zone: str, after: float, minutes: int, step: int, hours: set[int]
) -> list[float]:
    """The second way to the same answer: look at the clock every minute."""
    start = int(after) // 60 * 60 + 60
    looks = range(start, start + minutes * 60, 60)
    clock = [(it, datetime.fromtimestamp(it, ZoneInfo(zone))) for it in looks]
    return [float(it) for it, on in clock if on.minute % step == 0 and on.hour in hours]


CHANGES = [
    ("2026-03-29T01:00Z", BERLIN),
    ("2026-10-25T01:00Z", BERLIN),
    ("2026-11-01T06:00Z", NEW_YORK),
    ("2026-10-03T15:30Z", LORD_HOWE),
    ("2026-04-04T15:00Z", LORD_HOWE),
    ("2026-03-08T05:00Z", "America/Havana"),
    ("2026-11-01T05:00Z", "America/Havana"),
    ("2026-03-29T01:00Z", "Antarctica/Troll"),
    ("2026-10-25T01:00Z", "Antarctica/Troll"),
]


@given(
    st.sampled_from(CHANGES),
    st.integers(-7200, 7200),
    st.sampled_from([5, 15, 20, 30]),
    st.sets(st.integers(0, 23), min_size=1),
)
def test_a_rhythm_is_what_the_clock_shows(
    change: tuple[str, str], shift: int, step: int, hours: set[int]
) -> None:
    after, zone = at(change[0]) + shift, change[1]
    expression = f"*/{step} {','.join(map(str, sorted(hours)))} * * *"
    schedule, found, instant = cron_schedule(expression, zone), [], after
    while (following := schedule.next_after(instant)) and following <= after + 300 * 60:
        found.append(following)
        instant = following
    seen = minutes_on_the_clock(zone, after, 301, step, hours)
    assert found == [it for it in seen if after < it <= after + 300 * 60]


@given(st.sampled_from(ZONES), instants, st.integers(0, 23), st.integers(0, 59))
def test_a_fixed_time_comes_once_on_every_day(
    zone: str, start: int, hour: int, minute: int
) -> None:
    schedule = cron_schedule(f"{minute} {hour} * * *", zone)
    first = schedule.next_after(start)
    assert first is not None
    found = [first]
    for _ in range(200):
        following = schedule.next_after(found[-1])
        assert following is not None
        found.append(following)
    days = [datetime.fromtimestamp(it, ZoneInfo(zone)).date() for it in found]
    assert all(b - a == timedelta(days=1) for a, b in pairwise(days))


@given(
    st.sampled_from(["30 2 * * *", "*/20 * * * *", "0,30 1-3 * * *", "15 0 * * 1"]),
    st.sampled_from(ZONES),
    instants,
    st.floats(0, 1),
)
def test_the_answer_depends_on_the_instant_alone(
    expression: str, zone: str, start: int, part: float
) -> None:
    one = cron_schedule(expression, zone)
    following = one.next_after(start)
    assert following is not None
    assert following > start
    between = min(start + part * (following - start), following - 0.001)
    fresh = CronSchedule(one.expression, zone, _plain=one._plain, _zone=one._zone)
    assert fresh.next_after(max(start, between)) == following
    assert one.next_after(start) == following


numbers = st.sets(st.integers(1, 12), min_size=1).map(lambda it: ",".join(map(str, sorted(it))))


@given(
    st.sampled_from(["*", "1", "29", "30", "31", "30,31", "L", "LW", "*/31", "*/30", "15-31/16"]),
    numbers,
    st.sampled_from(["*", "1", "MON#5", "5L", "*/7", "*/3", "MON#2"]),
)
def test_what_is_accepted_comes_some_day(day: str, months: str, weekday: str) -> None:
    try:
        schedule = cron_schedule(f"0 0 {day} {months} {weekday}")
    except ScheduleError:
        return
    assert schedule.next_after(0.0) is not None


def test_one_object_serves_all_jobs_with_the_same_schedule() -> None:
    assert cron_schedule("7 7 * * *", BERLIN) is cron_schedule("7 7 * * *", BERLIN)


def test_the_end_of_the_calendar_is_the_end_of_the_slots() -> None:
    end = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
    assert cron_schedule("* * * * *").next_after(end) is None
    assert cron_schedule("0 5 * * *", BERLIN).next_after(end) is None


def test_an_instant_before_the_calendar_ends_no_slots() -> None:
    schedule = CronSchedule("0 5 * * *", _plain="0 5 * * *")
    schedule.next_after(-1e12)
    assert schedule.next_after(0.0) == 5 * 3600.0


# -- what is refused -------------------------------------------------------------------------------

REFUSED = [
    ("0 0 30 2 *", 4, "'30': no such day"),
    ("0 0 31 4,6,9,11 *", 4, "no such day"),
    ("0 0 */31 * MON#2", 0, "never comes"),
    ("60 * * * *", 0, "not a minute: 0-59"),
    ("* 24 * * *", 2, "not a hour: 0-23"),
    ("* * 0 * *", 4, "not a day-of-month: 1-31"),
    ("*   * * 13 *", 8, "not a month: 1-12"),
    ("* * * * 8", 8, "not a day-of-week: 0-7"),
    ("5-1 * * * *", 0, "not a minute"),
    ("*/0 * * * *", 0, "not a minute"),
    ("* * * * FOO", 8, "not a day-of-week"),
    ("* * * *", 0, "5 fields, or 6 with seconds as the first of them, not 4"),
    ("* * * * * * *", 0, "not 7"),
    ("", 0, "not 0"),
    ("* * 24 * * *", 4, "not a hour: 0-23"),
    ("@reboot", 0, "no slot in a fleet"),
    ("@every 5m", 0, 'every = "15s"'),
    ("@fortnightly", 0, "is none of"),
    ("²  * * * *", 0, "not a minute"),
]


@pytest.mark.parametrize(("expression", "place", "said"), REFUSED)
def test_an_expression_that_cannot_work_is_refused_where_it_is_wrong(
    expression: str, place: int, said: str
) -> None:
    with pytest.raises(ScheduleError) as refused:
        cron_schedule(expression)
    assert said in str(refused.value)
    assert refused.value.at == place


@pytest.mark.parametrize(
    "zone", ["Europe/Berln", "Europe", "../etc/passwd", "/etc/passwd", "", "x\0y"]
)
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(ConfigError, match="is not a time zone"):
        cron_schedule("* * * * *", zone)


def test_the_zone_of_the_machine_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="another zone on every machine"):
        cron_schedule("* * * * *", "localtime")


def test_a_slip_in_a_zone_is_put_right() -> None:
    with pytest.raises(ConfigError, match=r"did you mean Europe/Berlin\?"):
        cron_schedule("* * * * *", "Europe/Berln")


# -- intervals, fixed times, names of slots --------------------------------------------------------


def test_an_interval_is_counted_from_the_epoch() -> None:
    assert slots(Every(15.0), "2026-11-21T05:30:07Z", 2) == [
        "2026-11-21T05:30:15Z",
        "2026-11-21T05:30:30Z",
    ]
    assert Every(15.0).next_after(15.0) == 30.0
    # 1000 times this instant is a little less than a whole number.
    assert Every(1.512).next_after(2131903.368) == 2131904.88


@given(st.integers(1000, 10**8), st.floats(0, 4e9))
def test_an_interval_never_stands_still_nor_skips(milliseconds: int, instant: float) -> None:
    every = Every(milliseconds / 1000)
    following = every.next_after(instant)
    assert following is not None
    assert instant < following <= instant + milliseconds / 1000 + 0.001
    again = every.next_after(following)
    assert again is not None
    assert round(again * 1000) - round(following * 1000) == milliseconds


@pytest.mark.parametrize("interval", [0.5, 1.0005])
def test_an_interval_that_slots_cannot_be_named_by_is_refused(interval: float) -> None:
    with pytest.raises(ConfigError, match="at least 1s, in whole milliseconds"):
        Every(interval)


def test_fixed_times_end() -> None:
    times = FixedTimes((at("2026-12-24T17:00Z"), at("2026-12-31T23:00Z")))
    assert slots(times, "2026-12-24T17:00Z", 5) == ["2026-12-31T23:00:00Z"]
    assert times.describe() == "at 2026-12-24T17:00:00Z, 2026-12-31T23:00:00Z"
    five = FixedTimes((0.0, 1.0, 2.0, 3.0, 4.0)).describe()
    assert five.endswith("00:00:01Z, 1970-01-01T00:00:02Z and 2 more")


def test_a_slot_is_named_by_its_instant() -> None:
    assert slot_id(at("2026-11-21T05:30:00Z")) == "2026-11-21T05:30:00Z"
    assert slot_id(at("2026-11-21T05:30:00Z") + 0.25) == "2026-11-21T05:30:00.250Z"


def test_an_instant_needs_its_zone() -> None:
    assert parse_instant("2026-12-24T18:00:00+01:00") == at("2026-12-24T17:00Z")
    with pytest.raises(ConfigError, match="has no zone"):
        parse_instant("2026-12-24T18:00:00")
    for wrong in ("soon", 5, "2026-02-30T00:00Z"):
        with pytest.raises(ConfigError, match="is not a date and time"):
            parse_instant(wrong)
