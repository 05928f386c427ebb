"""A job file (TOML): its tables as jobs, or as problems with their places. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from incumbent.cron.mending import mend
from incumbent.cron.places import Places, find_places
from incumbent.cron.schedule import Every, FixedTimes, Schedule, ScheduleError, cron_schedule
from incumbent.cron.settings import DEFAULTS, SETTINGS, Line
from incumbent.cron.spec import CatchUp, JobSpec, Problem
from incumbent.cron.zones import near_word
from incumbent.durations import DAY, say_seconds
from incumbent.errors import ConfigError

__all__ = ["parse_jobfile"]

_WHEN: Final = ("schedule", "every", "at")
# These are named as in JobSpec and go there as they are.
_AS_THEY_ARE: Final = (
    *("name", "cwd", "at_most_for", "at_least_for", "retries", "retry_backoff", "overlap"),
    *("jitter", "success_codes", "on_failure", "keep_runs", "keep_for"),
)
_Values = dict[str, Any]


def parse_jobfile(text: str, path: str) -> tuple[tuple[JobSpec, ...], tuple[Problem, ...]]:
    """All jobs whose command can be read, and all problems.

    Tables that are not TOML are left out, and what the others say is read all the same, as far as
    it can be told where they begin.
    """
    mended = mend(text.replace("\r\n", "\n"))
    broken = [Problem(path, it.line, it.column, it.text) for it in mended.faults]
    reader = _Reader(path, find_places(mended.text), defaults_known=mended.has_defaults)
    reader.read(mended.tables)
    return tuple(reader.specs), tuple(sorted((*broken, *reader.problems), key=_place))


def _place(problem: Problem) -> tuple[int, int]:
    return problem.line, problem.column


@dataclass(slots=True)
class _Reader:
    path: str
    places: Places
    defaults_known: bool = True
    """False if [defaults] cannot be read: nothing can be said of what a job has from there."""
    specs: list[JobSpec] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    _lines: dict[str, int] = field(default_factory=dict)

    def read(self, tables: Mapping[str, Any]) -> None:
        for key in tables:
            if key not in ("defaults", "job"):
                hint = near_word(key, ("defaults", "job")) or ": only [defaults] and [[job]]"
                self._complain(f"unknown key {key!r}{hint}", key)
        defaults, jobs = tables.get("defaults", {}), tables.get("job", [])
        if not isinstance(defaults, dict):
            self._complain("defaults: a table, [defaults]", "defaults")
            defaults = {}
        if not isinstance(jobs, list) or not all(isinstance(it, dict) for it in jobs):
            self._complain("job: write [[job]], with two brackets on each side", "job")
            return
        common = self._values(defaults, DEFAULTS, "defaults")
        for number, job in enumerate(jobs):
            self._job(job, common, number)

    def _complain(
        self, text: str, *path: str | int, value_at: int | None = None, warning: bool = False
    ) -> None:
        place = self.places.of(*path)
        offset = place.key if value_at is None else place.value + value_at
        line, column = self.places.line_and_column(offset)
        self.problems.append(Problem(self.path, line, column, text, warning))

    def _values(self, table: _Values, known: Mapping[str, Any], *path: str | int) -> _Values:
        """What can be read of a table; the rest is complained of."""
        values: _Values = {}
        for key, value in table.items():
            if key not in known:
                only = " (only a [[job]] has it)" if key in SETTINGS else near_word(key, known)
                self._complain(f"unknown key {key!r}{only}", *path, key)
                continue
            try:
                values[key] = known[key](value, key)
            except ConfigError as error:
                self._complain(str(error), *path, key, *_variable(str(error), key))
        return values

    def _job(self, table: _Values, common: _Values, number: int) -> None:
        own = self._values(table, SETTINGS, "job", number)
        values = {**common, **own, "env": {**common.get("env", {}), **own.get("env", {})}}
        for key in ("name", "command"):
            if key not in table:
                self._complain(f"a job needs {key!r}", "job", number)
        schedule = self._schedule(table, values, number)
        if self.defaults_known:
            self._check_together(values, number)
        self._check_new(values.get("name"), number)
        if "command" in values:
            # Also with problems, so that it is told too if the command is not there.
            values = {"name": f"job {number + 1}", **values}
            self.specs.append(self._spec(values, schedule or Every(DAY), number))

    # -- when ------------------------------------------------------------------------------------

    def _schedule(self, table: _Values, values: _Values, number: int) -> Schedule | None:
        given = [key for key in table if key in _WHEN]
        if len(given) != 1:
            what = "both " + " and ".join(given) if given else "none"
            place = ("job", number, given[1]) if given else ("job", number)
            self._complain(f"a job needs one of {', '.join(_WHEN)}; it has {what}", *place)
            return None
        if values.get("seconds") and "schedule" not in given:
            self._complain("seconds says nothing without schedule", "job", number, "seconds")
        if given[0] not in values:
            return None
        try:
            return self._made(given[0], values)
        except ScheduleError as error:
            at = self._inside(values["schedule"], error.at, number)
            self._complain(str(error), "job", number, "schedule", value_at=at)
        except ConfigError as error:
            self._complain(str(error), "job", number, given[0])
        return None

    def _made(self, kind: str, values: _Values) -> Schedule:
        if kind == "every":
            return Every(values["every"])
        if kind == "at":
            return FixedTimes(values["at"])
        seconds = values.get("seconds", False)
        return cron_schedule(values["schedule"], values.get("timezone", "UTC"), seconds=seconds)

    def _inside(self, expression: str, at: int, number: int) -> int:
        """Into the value where it is written as it is; else to its beginning."""
        start = self.places.of("job", number, "schedule").value
        as_it_is = self.places.text.startswith(expression, start + 1)
        return 1 + at if as_it_is else 0

    # -- together --------------------------------------------------------------------------------

    def _check_together(self, values: _Values, number: int) -> None:
        least, most = values.get("at_least_for", 0.0), values.get("at_most_for")
        if most is not None and least > most:
            text = f"at_least_for={say_seconds(least)} is above at_most_for={say_seconds(most)}"
            self._complain(text, "job", number, "at_least_for")
        every, jitter = values.get("every"), values.get("jitter", 0.0)
        if every is not None and jitter >= every:
            text = f"jitter={say_seconds(jitter)} must be below every={say_seconds(every)}"
            self._complain(text, "job", number, "jitter")
        for key in ("catch_up_limit", "catch_up_window"):
            if key in values and values.get("catch_up", "no") == "no":
                self._complain(f"{key} says nothing without catch_up", "job", number, key)

    def _check_new(self, name: str | None, number: int) -> None:
        line, _ = self.places.line_and_column(self.places.of("job", number).key)
        if name in self._lines:
            text = f"the name {name!r} is that of the job in line {self._lines[name]} too"
            self._complain(text, "job", number, "name")
        elif name is not None:
            self._lines[name] = line

    def _spec(self, values: _Values, schedule: Schedule, number: int) -> JobSpec:
        line, _ = self.places.line_and_column(self.places.of("job", number).key)
        command = values["command"]
        command_at = self.places.of("job", number, "command").key
        kept: _Values = {key: values[key] for key in _AS_THEY_ARE if key in values}
        if "keep_output" in values:
            kept["output_bytes"] = values["keep_output"]
        return JobSpec(
            schedule=schedule,
            command=None if isinstance(command, Line) else command,
            shell_line=command.text if isinstance(command, Line) else None,
            timezone=values.get("timezone", "UTC"),
            env=MappingProxyType(values["env"]),
            catch_up=_catch_up(values),
            source=f"{self.path}:{line}",
            command_at=self.places.line_and_column(command_at),
            **kept,
        )


def _catch_up(values: _Values) -> CatchUp:
    usual = CatchUp()
    return CatchUp(
        values.get("catch_up", usual.mode),
        values.get("catch_up_limit", usual.limit),
        values.get("catch_up_window", usual.window),
    )


def _variable(message: str, key: str) -> tuple[str, ...]:
    """The variable that a complaint about `env` is of, to point at it."""
    found = re.match(rf"{key}\.([^:]+):", message)
    return (found[1],) if found else ()
