"""Parse the tables of a job file (TOML) into jobs, and problems with their places. Pure.

tomllib stops at the first fault of a text, and gives values without their places. So the text is
cut at its headers, and each piece is parsed separately: a fault does not hide the other pieces, and
a key is searched in its own piece only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from tomllib import TOMLDecodeError, loads
from typing import Any, Final

from incumbent.cron.fields import steps_without_effect
from incumbent.cron.schedule import Every, FixedTimes, Schedule, ScheduleError, cron_schedule
from incumbent.cron.spec import (
    DEFAULTS,
    GONE,
    SETTINGS,
    JobSpec,
    Problem,
    bounds_conflict,
    job_fields,
)
from incumbent.cron.variables import fill_in
from incumbent.durations import DAY, say_seconds
from incumbent.errors import ConfigError
from incumbent.printable import did_you_mean

_WHEN: Final = ("schedule", "every", "at")
_FAULTS_MOST: Final = 20
"""The most faults reported of one text: a text with more of them is not a job file."""
_Values = dict[str, Any]


# -- jobs and problems ---------------------------------------------------------------------------


def parse_jobfile(
    text: str, path: str, environ: Mapping[str, str] | None = None
) -> tuple[tuple[JobSpec, ...], tuple[Problem, ...]]:
    """Return all jobs with a readable command, and all problems.

    `environ`: the variables that values may name (see `variables`).

    Tables that are not TOML are left out. The other tables are read all the same, as far as their
    beginnings can be found.
    """
    reader = _JobFileReader(path, environ or {})
    reader.read(cut_pieces(text.replace("\r\n", "\n")))
    problems = sorted(reader.problems, key=lambda problem: (problem.line, problem.column))
    return tuple(reader.specs), tuple(problems)


@dataclass(slots=True)
class _JobFileReader:
    path: str
    environ: Mapping[str, str]
    specs: list[JobSpec] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    _common: _Values = field(default_factory=dict)
    _defaults_known: bool = True
    """False if [defaults] cannot be read: the settings that jobs have from there are unknown."""
    _lines: dict[str, int] = field(default_factory=dict)
    _count: int = 0

    def read(self, pieces: list[Piece]) -> None:
        faults = [piece.fault for piece in pieces if piece.fault is not None]
        for line, column, text in faults[:_FAULTS_MOST]:
            self._complain((line, column), text)
        self._defaults_known = not any(piece.hides_defaults for piece in pieces)
        for piece in pieces:
            self._read_defaults(piece)
        for piece in pieces:
            jobs = piece.values.get("job", [])
            if not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
                text = "job: write [[job]], with two brackets on each side"
                self._complain(piece.place("job"), text)
                continue
            for job in jobs:
                self._count += 1
                self._read_job(job, piece)

    def _complain(self, place: tuple[int, int], text: str, *, warning: bool = False) -> None:
        self.problems.append(Problem(self.path, *place, text, warning))

    def _read_defaults(self, piece: Piece) -> None:
        for key in piece.values:
            if key not in ("defaults", "job"):
                hint = did_you_mean(key, ("defaults", "job"))
                hint = hint or ": only [defaults] and [[job]]"
                self._complain(piece.place(key), f"unknown key {key!r}{hint}")
        defaults = piece.values.get("defaults", {})
        if isinstance(defaults, dict):
            self._common |= self._read_values(defaults, DEFAULTS, piece)
        else:
            self._complain(piece.place("defaults"), "defaults: a table, [defaults]")

    def _read_values(self, table: _Values, known: Mapping[str, Any], piece: Piece) -> _Values:
        """Return the readable settings of a table; report the others as problems."""
        values: _Values = {}
        for key, value in table.items():
            if key not in known:
                hint = GONE.get(key) or did_you_mean(key, known)
                hint = " (only a [[job]] has it)" if key in SETTINGS else hint
                self._complain(piece.place(key), f"unknown key {key!r}{hint}")
                continue
            try:
                values[key] = known[key](fill_in(value, key, self.environ), key)
            except ConfigError as error:
                self._complain(piece.place(key, *error.name.split(".", 1)[1:]), str(error))
        return values

    def _read_job(self, table: _Values, piece: Piece) -> None:
        own, common = self._read_values(table, SETTINGS, piece), self._common
        values = {**common, **own, "env": {**common.get("env", {}), **own.get("env", {})}}
        for key in ("name", "command"):
            if key not in table:
                self._complain(piece.place(), f"a job needs {key!r}")
        schedule = self._schedule(table, values, piece)
        if self._defaults_known:
            self._check_together(table, values, piece)
        self._check_new(values.get("name"), piece)
        if "command" in values:
            # Made despite problems, so that a missing command is reported too.
            fields = job_fields({"name": f"job {self._count}", **values})
            for key in _WHEN:
                fields.pop(key, None)
            spec = JobSpec(
                schedule=schedule or Every(DAY),
                source=f"{self.path}:{piece.line}",
                command_at=piece.place("command"),
                **fields,
            )
            self.specs.append(spec)

    # -- schedules -------------------------------------------------------------------------------

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
            match given[0]:
                case "every":
                    return Every(values["every"])
                case "at":
                    return FixedTimes(values["at"])
            return self._cron_schedule(values, piece)
        except ScheduleError as error:
            place = piece.place_inside("schedule", values["schedule"], error.at)
            self._complain(place, str(error))
        except ConfigError as error:
            self._complain(piece.place(given[0]), str(error))
        return None

    def _cron_schedule(self, values: _Values, piece: Piece) -> Schedule:
        text = values["schedule"]
        schedule = cron_schedule(text, values.get("timezone", "UTC"))
        for at, warning in steps_without_effect(text):
            self._complain(piece.place_inside("schedule", text, at), warning, warning=True)
        return schedule

    # -- checks across settings and jobs ---------------------------------------------------------

    def _check_together(self, table: _Values, values: _Values, piece: Piece) -> None:
        if text := bounds_conflict(values):
            self._complain(piece.place("at_least_for"), text)
        every, jitter = values.get("every"), values.get("jitter", 0.0)
        if every is not None and jitter >= every:
            text = f"jitter={say_seconds(jitter)} must be below every={say_seconds(every)}"
            self._complain(piece.place("jitter"), text)
        for key in ("catch_up_limit", "catch_up_window"):
            if key in values and values.get("catch_up", "no") == "no":
                self._complain(piece.place(key), f"{key} says nothing without catch_up")
        # Only the job's own setting: a default may be for other jobs.
        if "retry_backoff" in table and not values.get("retries"):
            text = "retry_backoff is not used without retries"
            self._complain(piece.place("retry_backoff"), text, warning=True)

    def _check_new(self, name: str | None, piece: Piece) -> None:
        if name in self._lines:
            text = f"the name {name!r} is that of the job in line {self._lines[name]} too"
            self._complain(piece.place("name"), text)
        elif name is not None:
            self._lines[name] = piece.line


# -- pieces of a text, with places ---------------------------------------------------------------

_HEADER: Final = re.compile(
    r"^[ \t]*\[{1,2}[ \t]*(?:job|defaults)[ \t]*\]{1,2}[ \t]*(?:#.*)?$", re.M
)
_LONG_TEXT: Final = re.compile(r'"{3}(?:\\.|[^\\])*?"{3,5}' + r"|'{3}.*?'{3,5}", re.S)
_WHERE: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


@dataclass(frozen=True, slots=True)
class Piece:
    """The text from one header to the next; `line`, which counts from 1, is its first line.

    `fault`: line, column and the reason why it is not TOML; then there are no values.
    """

    line: int
    text: str
    values: dict[str, Any] = field(default_factory=dict)
    fault: tuple[int, int, str] | None = None

    @property
    def hides_defaults(self) -> bool:
        """Whether this piece cannot be read and has `[defaults]`."""
        return self.fault is not None and bool(
            re.search(r"^[ \t]*\[+[ \t]*defaults\b", self.text, re.M)
        )

    def place(self, *names: str) -> tuple[int, int]:
        """Line and column of a key, else of the table around it; both count from 1."""
        return _place(self.text, self._find(*names)[0], self.line)

    def place_inside(self, name: str, value: str, at: int) -> tuple[int, int]:
        """The place of the character `at` of a text value; its beginning if it has escapes."""
        _, start = self._find(name)
        as_it_is = self.text.startswith(value, start + 1)
        return _place(self.text, start + 1 + at if as_it_is else start, self.line)

    def _find(self, *names: str) -> tuple[int, int]:
        """The offsets of a key and of its value."""
        text, key, value = _blank(self.text), len(self.text) - len(self.text.lstrip(" \t")), 0
        for name in names:
            word = rf"""["']?{re.escape(name)}["']?"""
            pattern = rf"^[ \t]*((?:\[+[ \t]*)?(?:\w+[ \t]*\.[ \t]*)*{word})[ \t]*(?:=[ \t]*|[.\]])"
            found = re.compile(pattern, re.M).search(text, key)
            if found:
                key, value = found.start(1), found.end()
        return key, value


def cut_pieces(text: str) -> list[Piece]:
    """The pieces of a text. If each can be read, but not the whole, the last one says why."""
    starts = {0, *(header.start() for header in _HEADER.finditer(_blank(text))), len(text)}
    pieces, line = [], 1
    for start, end in pairwise(sorted(starts)):
        pieces.append(_read(text[start:end], line))
        line += text.count("\n", start, end)
    whole = _read(text, 1)
    if (whole.fault is None) == all(piece.fault is None for piece in pieces):
        return pieces
    # We cut at a line of a text value that looks like a header; or there is a table twice.
    return [whole] if whole.fault is None else [*pieces, Piece(1, "", fault=whole.fault)]


def _read(text: str, line: int) -> Piece:
    try:
        return Piece(line, text, loads(text))
    except TOMLDecodeError as error:
        found, what = _WHERE.search(str(error)), _WHERE.sub("", str(error))
    except RecursionError:
        found, what = None, "nested too deep"
    if found and found[1]:
        row, column = line + int(found[1]) - 1, int(found[2])
    else:
        row, column = _place(text, len(text), line)
    return Piece(line, text, fault=(row, column, f"this is not TOML: {what}"))


def _place(text: str, offset: int, line: int) -> tuple[int, int]:
    return line + text.count("\n", 0, offset), offset - text.rfind("\n", 0, offset)


def _blank(text: str) -> str:
    """The text with its multi-line values blanked, which may look like keys and headers."""
    if '"""' not in text and "'''" not in text:
        return text
    return _LONG_TEXT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
