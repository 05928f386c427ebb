"""A job file (TOML): its tables as jobs, or as problems with their places. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from incumbent.cron.schedule import Every, FixedTimes, Schedule, ScheduleError, cron_schedule
from incumbent.cron.settings import DEFAULTS, GONE, SETTINGS, Line
from incumbent.cron.spec import CatchUp, JobSpec, Problem
from incumbent.cron.toml_errors import Piece, cut
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
_FAULTS_MOST: Final = 20
"""Faults that are told of one text: more of them say that it is something else."""
_Values = dict[str, Any]


def parse_jobfile(text: str, path: str) -> tuple[tuple[JobSpec, ...], tuple[Problem, ...]]:
    """All jobs whose command can be read, and all problems.

    Tables that are not TOML are left out, and what the others say is read all the same, as far as
    it can be told where they begin.
    """
    reader = _Reader(path)
    reader.read(cut(text.replace("\r\n", "\n")))
    problems = sorted(reader.problems, key=lambda it: (it.line, it.column))
    return tuple(reader.specs), tuple(problems)


@dataclass(slots=True)
class _Reader:
    path: str
    specs: list[JobSpec] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    _common: _Values = field(default_factory=dict)
    _defaults_known: bool = True
    """False if [defaults] cannot be read: nothing can be said of what a job has from there."""
    _lines: dict[str, int] = field(default_factory=dict)
    _count: int = 0

    def read(self, pieces: list[Piece]) -> None:
        faults = [it.fault for it in pieces if it.fault is not None]
        for line, column, text in faults[:_FAULTS_MOST]:
            self._complain((line, column), text)
        self._defaults_known = not any(it.hides_defaults for it in pieces)
        for piece in pieces:
            self._defaults(piece)
        for piece in pieces:
            jobs = piece.values.get("job", [])
            if not isinstance(jobs, list) or not all(isinstance(it, dict) for it in jobs):
                text = "job: write [[job]], with two brackets on each side"
                self._complain(piece.place("job"), text)
                continue
            for job in jobs:
                self._count += 1
                self._job(job, piece)

    def _complain(self, place: tuple[int, int], text: str) -> None:
        self.problems.append(Problem(self.path, *place, text))

    def _defaults(self, piece: Piece) -> None:
        for key in piece.values:
            if key not in ("defaults", "job"):
                hint = near_word(key, ("defaults", "job")) or ": only [defaults] and [[job]]"
                self._complain(piece.place(key), f"unknown key {key!r}{hint}")
        defaults = piece.values.get("defaults", {})
        if isinstance(defaults, dict):
            self._common |= self._values(defaults, DEFAULTS, piece)
        else:
            self._complain(piece.place("defaults"), "defaults: a table, [defaults]")

    def _values(self, table: _Values, known: Mapping[str, Any], piece: Piece) -> _Values:
        """What can be read of a table; the rest is complained of."""
        values: _Values = {}
        for key, value in table.items():
            if key not in known:
                hint = GONE.get(key) or near_word(key, known)
                hint = " (only a [[job]] has it)" if key in SETTINGS else hint
                self._complain(piece.place(key), f"unknown key {key!r}{hint}")
                continue
            try:
                values[key] = known[key](value, key)
            except ConfigError as error:
                self._complain(piece.place(key, *_variable(str(error), key)), str(error))
        return values

    def _job(self, table: _Values, piece: Piece) -> None:
        own, common = self._values(table, SETTINGS, piece), self._common
        values = {**common, **own, "env": {**common.get("env", {}), **own.get("env", {})}}
        for key in ("name", "command"):
            if key not in table:
                self._complain(piece.place(), f"a job needs {key!r}")
        schedule = self._schedule(table, values, piece)
        if self._defaults_known:
            self._check_together(values, piece)
        self._check_new(values.get("name"), piece)
        if "command" in values:
            # Also with problems, so that it is told too if the command is not there.
            values = {"name": f"job {self._count}", **values}
            self.specs.append(self._spec(values, schedule or Every(DAY), piece))

    # -- when ------------------------------------------------------------------------------------

    def _schedule(self, table: _Values, values: _Values, piece: Piece) -> Schedule | None:
        given = [key for key in table if key in _WHEN]
        if len(given) != 1:
            what = "both " + " and ".join(given) if given else "none"
            text = f"a job needs one of {', '.join(_WHEN)}; it has {what}"
            self._complain(piece.place(*given[1:2]), text)
            return None
        if given[0] not in values:
            return None
        try:
            return self._made(given[0], values)
        except ScheduleError as error:
            place = piece.place_inside("schedule", values["schedule"], error.at)
            self._complain(place, str(error))
        except ConfigError as error:
            self._complain(piece.place(given[0]), str(error))
        return None

    def _made(self, kind: str, values: _Values) -> Schedule:
        if kind == "every":
            return Every(values["every"])
        if kind == "at":
            return FixedTimes(values["at"])
        return cron_schedule(values["schedule"], values.get("timezone", "UTC"))

    # -- together --------------------------------------------------------------------------------

    def _check_together(self, values: _Values, piece: Piece) -> None:
        least, most = values.get("at_least_for", 0.0), values.get("at_most_for")
        if most is not None and least > most:
            text = f"at_least_for={say_seconds(least)} is above at_most_for={say_seconds(most)}"
            self._complain(piece.place("at_least_for"), text)
        every, jitter = values.get("every"), values.get("jitter", 0.0)
        if every is not None and jitter >= every:
            text = f"jitter={say_seconds(jitter)} must be below every={say_seconds(every)}"
            self._complain(piece.place("jitter"), text)
        for key in ("catch_up_limit", "catch_up_window"):
            if key in values and values.get("catch_up", "no") == "no":
                self._complain(piece.place(key), f"{key} says nothing without catch_up")

    def _check_new(self, name: str | None, piece: Piece) -> None:
        if name in self._lines:
            text = f"the name {name!r} is that of the job in line {self._lines[name]} too"
            self._complain(piece.place("name"), text)
        elif name is not None:
            self._lines[name] = piece.line

    def _spec(self, values: _Values, schedule: Schedule, piece: Piece) -> JobSpec:
        command, usual = values["command"], CatchUp()
        kept: _Values = {key: values[key] for key in _AS_THEY_ARE if key in values}
        if "keep_output" in values:
            kept["output_bytes"] = values["keep_output"]
        return JobSpec(
            schedule=schedule,
            command=None if isinstance(command, Line) else command,
            shell_line=command.text if isinstance(command, Line) else None,
            timezone=values.get("timezone", "UTC"),
            env=values["env"],
            catch_up=CatchUp(
                values.get("catch_up", usual.mode),
                values.get("catch_up_limit", usual.limit),
                values.get("catch_up_window", usual.window),
            ),
            source=f"{self.path}:{piece.line}",
            command_at=piece.place("command"),
            **kept,
        )


def _variable(message: str, key: str) -> tuple[str, ...]:
    """The variable that a complaint about `env` is of, to point at it."""
    found = re.match(rf"{key}\.([^:]+):", message)
    return (found[1],) if found else ()
