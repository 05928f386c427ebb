"""The schedules of jobs, and the time zones they use. Instants are seconds since 1970, UTC.

All instances of a fleet must name the same slots, so a schedule is a function of the instant
alone: it depends neither on its start, nor on earlier results, nor on the zone of this machine.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from math import floor, inf
from typing import Final, Protocol

from incumbent.cron.fields import FIELDS, RANGES, advice_for, words_of
from incumbent.durations import say_seconds
from incumbent.errors import ConfigError
from incumbent.printable import did_you_mean


def find_zone(name: str) -> tzinfo:
    """The time zone of that name. Raises ConfigError if this machine does not know it."""
    if name in ("UTC", "Etc/UTC", "Z"):
        return UTC
    if name == "localtime":
        raise ConfigError("localtime is another zone on every machine: name one", name="timezone")
    from zoneinfo import ZoneInfo, available_timezones

    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError):
        # KeyError: no such file; ValueError: a path; OSError: a folder such as "Europe".
        hint = did_you_mean(name, available_timezones())
        raise ConfigError(f"{name[:60]!r} is not a time zone{hint}", name="timezone") from None


def local_time(instant: float, zone: tzinfo) -> datetime:
    """The local time in `zone`, with its fold, to the second."""
    return datetime.fromtimestamp(floor(instant), zone)


def instant_of(naive: datetime, zone: tzinfo, fold: int) -> float | None:
    """The instant when clocks show `naive` first (`fold` 0) or last (1); None if never."""
    instant = naive.replace(tzinfo=zone, fold=fold).timestamp()
    shown = datetime.fromtimestamp(instant, zone)
    return instant if shown.replace(tzinfo=None, fold=0) == naive else None


def offset_at(instant: float, zone: tzinfo) -> float:
    """Seconds by which the zone is ahead of UTC."""
    offset = local_time(instant, zone).utcoffset()
    return 0.0 if offset is None else offset.total_seconds()


def change_between(low: float, high: float, zone: tzinfo) -> float:
    """The first second after `low` with another offset; `high` must have one."""
    old = offset_at(low, zone)
    first, last = floor(low), floor(high)
    while last - first > 1:
        middle = (first + last) // 2
        if offset_at(middle, zone) == old:
            first = middle
        else:
            last = middle
    return float(last)


# -- schedules -------------------------------------------------------------------------------------

MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
# Seconds: no zone has ever put its clock back by more than a day.
_LONGEST_CHANGE: Final = 90_000.0


class ScheduleError(ConfigError):
    """An expression that cannot work; `at` is the offset of the fault in it, from 0."""

    def __init__(self, message: str = "", *, at: int = 0) -> None:
        super().__init__(message, name="schedule")
        self.at = at


class Schedule(Protocol):
    """A schedule, as the agenda uses it."""

    def next_after(self, instant: float) -> float | None:
        """The first slot later than `instant`; None if there is none any more."""

    def describe(self) -> str:
        """The schedule in words, on one line."""

    @property
    def keeps_rhythm(self) -> bool:
        """Whether slots follow a clock that is set back; fixed times are not repeated."""


def slot_id(instant: float) -> str:
    """The name of a slot: `2026-11-21T05:30:00Z`, with milliseconds if there are any."""
    whole, thousandths = divmod(round(instant * 1000), 1000)
    text = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{thousandths:03}Z" if thousandths else f"{text}Z"


def parse_instant(value: object) -> float:
    """The instant of a date and time with a zone, in ISO 8601 or from TOML. Raises ConfigError."""
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        moment = None
    if not isinstance(moment, datetime):
        text = f"{str(value)[:60]!r} is not a date and time: write 2026-12-24T18:00:00+01:00"
        raise ConfigError(text, name="at")
    if moment.utcoffset() is None:
        raise ConfigError(f"{moment.isoformat()} has no zone: add Z or such as +01:00", name="at")
    # Whole milliseconds, so that a slot has one name everywhere.
    return round(moment.timestamp() * 1000) / 1000


# -- intervals and fixed times --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Every:
    """The multiples of `interval` seconds since the epoch, the same for all instances."""

    interval: float

    def __post_init__(self) -> None:
        thousandths = self.interval * 1000
        if self.interval < 1 or abs(thousandths - round(thousandths)) > 1e-4:
            raise ConfigError(
                f"every={say_seconds(self.interval)}: at least 1s, in whole milliseconds",
                name="every",
            )

    def next_after(self, instant: float) -> float | None:
        step = round(self.interval * 1000)
        # Whole milliseconds: sums of fractions would drift apart.
        count = floor(instant * 1000) // step
        while count * step / 1000 <= instant:
            count += 1
        return count * step / 1000

    def describe(self) -> str:
        return f"every {say_seconds(self.interval)}"

    @property
    def keeps_rhythm(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class FixedTimes:
    """A list of instants, ascending."""

    times: tuple[float, ...]

    def next_after(self, instant: float) -> float | None:
        place = bisect_right(self.times, instant)
        return self.times[place] if place < len(self.times) else None

    def describe(self) -> str:
        shown = ", ".join(slot_id(instant) for instant in self.times[:3])
        more = len(self.times) - 3
        return f"at {shown}" + (f" and {more} more" if more > 0 else "")

    @property
    def keeps_rhythm(self) -> bool:
        return False


# -- cron expressions -----------------------------------------------------------------------------


@dataclass(slots=True)
class _LastResult:
    """The last argument and result of `next_after`; it holds for every instant in between."""

    span: tuple[float, float | None] = (inf, None)


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """A cron expression in a zone; made by `cron_schedule`.

    cronsim evaluates the expression on plain local time. Where the clock of the zone is changed,
    the rules are those of Debian's cron(8): a job at a fixed time runs once, right after a gap or
    in the first of two equal hours; a job with a `*` in its times keeps its rhythm.
    """

    expression: str
    timezone: str = "UTC"
    _plain: str = field(default="", repr=False, compare=False)
    _zone: tzinfo = field(default=UTC, repr=False, compare=False)
    _last: _LastResult = field(default_factory=_LastResult, repr=False, compare=False)

    def describe(self) -> str:
        return f"{self.expression} ({self.timezone})"

    def next_after(self, instant: float) -> float | None:
        # Read as one value, and written as one below: jobs share schedules, and other threads ask
        # too.
        since, found = self._last.span
        if since <= instant and (found is None or instant < found):
            return found
        try:
            found = self._search(instant)
        except (OverflowError, ValueError, OSError):
            # Python's calendar ends with the year 9999. Not kept: it also begins with the year 1.
            return None
        self._last.span = (instant, found)
        return found

    def _search(self, instant: float) -> float | None:
        here = local_time(instant, self._zone)
        start = here.replace(tzinfo=None, fold=0)
        if self._zone is UTC:
            found = self._next_match(start)
            return None if found is None else found.replace(tzinfo=UTC).timestamp()
        if self.keeps_rhythm:
            return self._next_with_wildcard(instant, start)
        return self._next_at_fixed_time(instant, start)

    def _next_match(self, naive: datetime) -> datetime | None:
        from cronsim import CronSim

        return next(CronSim(self._plain, naive), None)

    @property
    def keeps_rhythm(self) -> bool:
        fields = self._plain.split()
        return any(word.startswith("*") for word in fields[: len(fields) - 3])

    def _next_at_fixed_time(self, instant: float, naive: datetime) -> float | None:
        """The next slot: a time in a gap counts at the end of the gap, a repeated time once."""
        found = self._next_match(naive)
        while found is not None:
            when = instant_of(found, self._zone, 0)
            if when is None:
                # PEP 495: in a gap, fold 0 uses the offset before the gap, fold 1 the one after it.
                before = found.replace(tzinfo=self._zone, fold=1).timestamp()
                after = found.replace(tzinfo=self._zone, fold=0).timestamp()
                when = change_between(before, after, self._zone)
            if when > instant:
                return when
            found = self._next_match(found)
        return None

    def _next_with_wildcard(self, instant: float, naive: datetime) -> float | None:
        """The next slot by what the clock shows: none in a gap, and a repeated hour twice."""
        found = self._next_shown(instant, naive)
        until = min(inf if found is None else found, instant + _LONGEST_CHANGE)
        if offset_at(until, self._zone) >= offset_at(instant, self._zone):
            return found
        # The clock is put back before that: a time that it showed already may match once more.
        change = change_between(instant, until, self._zone)
        shown = local_time(change, self._zone).replace(tzinfo=None, fold=0)
        again = self._next_shown(change - 1, shown - timedelta(seconds=1))
        return min((when for when in (found, again) if when is not None), default=None)

    def _next_shown(self, instant: float, naive: datetime) -> float | None:
        """The first instant after `instant` at which the zone's clock shows a matching time."""
        found = self._next_match(naive)
        while found is not None:
            for fold in (0, 1):
                when = instant_of(found, self._zone, fold)
                if when is not None and when > instant:
                    return when
            found = self._next_match(found)
        return None


# Equal schedules are one object, so that one result serves all jobs with that schedule.
@lru_cache(maxsize=16_384)
def cron_schedule(expression: str, timezone: str = "UTC") -> CronSchedule:
    """The schedule of a cron expression. Raises ScheduleError, or ConfigError for the zone.

    The first of six fields is seconds.
    """
    text = " ".join(expression.split())
    plain = _expanded(text) if text.startswith("@") else text
    if not text.startswith("@"):
        _check_fields(expression)
    made = CronSchedule(text, timezone, plain, find_zone(timezone))
    *_, day, _, weekday = plain.split()
    # Only a day and a weekday together may still fit no date: cronsim refuses the rest.
    if day != "*" and weekday != "*" and made.next_after(0.0) is None:
        raise ScheduleError(
            f"{text!r} never comes: no day matches both its day of the month and its day of the"
            " week"
        )
    return made


def _expanded(macro: str) -> str:
    known = MACROS.get(macro.lower())
    if known is not None:
        return known
    if macro.lower() == "@reboot":
        raise ScheduleError(
            "@reboot has no slot in a fleet: each instance starts at another time. Run the command"
            " when the container starts; use `incumbent run` if only one may run it"
        )
    if macro.lower().startswith("@every"):
        raise ScheduleError('@every is not cron: write `every = "15s"` in a job file (TOML)')
    raise ScheduleError(f"{macro[:40]!r} is none of {', '.join(MACROS)}")


def _check_fields(expression: str) -> None:
    if re.match(r"(CRON_)?TZ=", expression):
        raise ScheduleError("a zone is no field: write `timezone` in a job file, `tz` in Python")
    words = dict(words_of(expression))
    if len(words) not in (5, 6):
        text = "a schedule has 5 fields, or 6 with seconds as the first of them"
        years = " (there are no years: use `at`)" if len(words) == 7 else ""
        raise ScheduleError(f"{text}, not {len(words)}{years}")
    if (bad := _bad_field(expression)) is None:
        return
    index = max(FIELDS.index(bad) if bad in FIELDS else 0, *list(words)[:1])
    word = words[index]
    # cronsim also reports a day that only these months lack. January has every day.
    in_january = [word.group() for word in words.values()]
    in_january[-2] = "1"
    if bad == "day-of-month" and _bad_field(" ".join(in_january)) is None:
        text = f"{word.group()!r}: no such day in the months asked for, it would never run"
    else:
        low, high = RANGES[index]
        advice = advice_for(word.group(), index)
        text = f"{word.group()[:40]!r} is not a {bad}: {low}-{high}, *, a-b, */n, lists"
        text += f"; {advice}" if advice else ""
    raise ScheduleError(text, at=word.start())


def _bad_field(expression: str) -> str | None:
    """The field that cronsim cannot read; None if it reads them all."""
    from cronsim import CronSim, CronSimError

    try:
        CronSim(expression, datetime(2024, 1, 1))  # noqa: DTZ001 - plain local time, see above
    except (CronSimError, AssertionError) as error:
        return str(error).removeprefix("Bad ")
    return None
