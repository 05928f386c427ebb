"""Parse the lines of a plain crontab into jobs, and problems with their places. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from incumbent.cron.fields import steps_without_effect
from incumbent.cron.schedule import CronSchedule, ScheduleError, cron_schedule, find_zone
from incumbent.cron.spec import JobSpec, Problem, check_job_name
from incumbent.errors import ConfigError

_SETTING: Final = re.compile(r"""("[^"]*"|'[^']*'|[A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(.*)""")
_NAME_LINE: Final = re.compile(r"#[ \t]*name:[ \t]*(.*)")
_NOT_MAILED: Final = "what a job says is kept in its history"
_UNUSED: Final = {
    **dict.fromkeys(
        ("MAILTO", "MAILFROM", "CONTENT_TYPE", "CONTENT_TRANSFER_ENCODING"), _NOT_MAILED
    ),
    **dict.fromkeys(("NO_MAIL_OUTPUT", "CRON_MAIL_SUCCESS", "CRON_MAIL_FORMAT"), _NOT_MAILED),
    **dict.fromkeys(("RANDOM_DELAY", "DELAY"), "`jitter` in a job file delays starts"),
    "START_HOURS_RANGE": "write the hours into the schedule, such as `0 3-22 * * *`",
    "PERSISTENT": '`catch_up = "last"` in a job file runs what was missed',
    "BATCH": "write `nice` before the command",
    "CRON_INHERIT_VARIABLES": "jobs have the environment of the instance",
    "LOGNAME": "jobs run as the user of the instance",
}
"""Settings of other crons (vixie, cronie, anacron, systemd-cron) that do nothing here, and why."""
_A_DATE: Final = re.compile(r"\bdate\b[^|;&]*\+\S*$")
_EXPRESSION: Final = re.compile(r"(@\S+|\S+(?:[ \t]+\S+){0,4})(?:[ \t]+|$)(.*)", re.DOTALL)
_LIKE_A_FIELD: Final = re.compile(r"[\d*?][\d*/,?#L-]*|(?:MON|TUE|WED|THU|FRI|SAT|SUN)\b.*", re.I)


def parse_crontab(text: str, path: str) -> tuple[tuple[JobSpec, ...], tuple[Problem, ...]]:
    """Return all readable jobs, and all problems."""
    reader = _CrontabReader(path)
    for number, line in enumerate(text.split("\n"), 1):
        reader.read(number, line.removesuffix("\r"))
    reader.forget_name()
    return tuple(reader.specs), tuple(reader.problems)


def split_percent(command: str) -> tuple[str, str | None]:
    r"""(command, standard input): the first bare `%` ends the command, others are newlines.

    `\%` is a percent sign; every other backslash stays as it is. As cron does, the input gets a
    newline at its end if it has none.
    """
    parts = [""]
    for piece in re.findall(r"\\.|%|[^\\%]+|\\$", command, re.DOTALL):
        if piece == "%":
            parts.append("")
        else:
            parts[-1] += "%" if piece == "\\%" else piece
    line, *rest = parts
    if not rest:
        return line, None
    given = "\n".join(rest)
    return line, given if given.endswith("\n") else f"{given}\n"


def derived_name(command: str) -> str:
    """`program-1a2b3c4d`: the first word without its folder, and a digest of the whole command.

    Only the command counts, so the job keeps its name and its history if its schedule changes or
    it moves to another line.
    """
    words = [word for word in command.split() if not re.match(r"\w+=", word)]
    program = words[0].rsplit("/", 1)[-1] if words else ""
    slug = re.sub(r"[^A-Za-z0-9_]+", "-", program, flags=re.ASCII).strip("-")[:40]
    return f"{slug or 'job'}-{sha256(command.encode()).hexdigest()[:8]}"


@dataclass(slots=True)
class _CrontabReader:
    """Reads line by line: a setting applies to the jobs below it."""

    path: str
    specs: list[JobSpec] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    _env: dict[str, str] = field(default_factory=dict)
    _lines: dict[str, int] = field(default_factory=dict)
    _name: tuple[int, int, str] | None = None

    def read(self, number: int, line: str) -> None:
        start = len(line) - len(line.lstrip(" \t"))
        text = line[start:]
        if text.startswith("#"):
            if named := _NAME_LINE.fullmatch(text):
                self.forget_name()
                self._name = (number, start + named.start(1) + 1, named[1].strip())
        elif text and (setting := _SETTING.fullmatch(text)):
            self._read_setting(number, start, setting)
        elif text:
            self._read_job(number, start, text.rstrip())

    def forget_name(self) -> None:
        """Report a `# name:` line that no job used: its job went missing."""
        if self._name:
            line, column, name = self._name
            self._complain(line, column, f"the name {name!r} has no job below it")
        self._name = None

    def _complain(self, line: int, column: int, text: str, *, warning: bool = False) -> None:
        self.problems.append(Problem(self.path, line, column, text, warning))

    # -- settings --------------------------------------------------------------------------------

    def _read_setting(self, number: int, start: int, found: re.Match[str]) -> None:
        name, column = _unquoted(found[1]), start + found.start(2) + 1
        value = _unquoted(found[2].strip(" \t"))
        if name is None or value is None:
            self._complain(number, column, "the quotes do not match: nothing may follow them")
            return
        if name in ("TZ", "CRON_TZ"):
            try:
                find_zone(value)
            except ConfigError as error:
                alone = "; it stands on a line of its own" if " " in value else ""
                self._complain(number, column, f"{error}{alone}")
        if name in _UNUSED and value not in ("", "0"):
            self._complain(number, start + 1, f"{name} is not used: {_UNUSED[name]}", warning=True)
        elif re.search(r"\$[A-Za-z_{(]", value):
            text = f"cron puts no variables into {name}: `$` stays as it is"
            self._complain(number, start + 1, text, warning=True)
        self._env[name] = value

    # -- jobs ------------------------------------------------------------------------------------

    def _read_job(self, number: int, start: int, text: str) -> None:
        named, self._name = self._name, None
        found = _EXPRESSION.fullmatch(text)
        expression, command = (found[1], found[2]) if found else (text, "")
        column = start + (found.start(2) if found else len(text)) + 1
        if not command:
            self._complain(number, column, "a line is five fields (or @daily) and a command")
            return
        if not expression.startswith("@") and _LIKE_A_FIELD.fullmatch(command.split()[0]):
            text = "six fields: a crontab has five; seconds are for a job file (TOML)"
            self._complain(number, column, text)
            return
        schedule = self._schedule(number, start, expression)
        name = self._checked_name(number, start, command, named)
        schedule = schedule or cron_schedule("@yearly")
        line, stdin = split_percent(command)
        if stdin is not None and _A_DATE.search(line):
            text = "a bare % ends the command, as in cron: write \\% for date"
            self._complain(number, column, text, warning=True)
        # Made despite problems, so that a missing command is reported too.
        spec = JobSpec(
            name=name or f"line {number}",
            schedule=schedule,
            shell_line=line,
            stdin=stdin,
            shell=self._env.get("SHELL") or "/bin/sh",
            timezone=schedule.timezone,
            env=dict(self._env),
            cwd=self._env.get("HOME") or None,
            source=f"{self.path}:{number}",
            command_at=(number, column),
        )
        self.specs.append(spec)

    def _schedule(self, number: int, start: int, expression: str) -> CronSchedule | None:
        zone = self._env.get("CRON_TZ") or self._env.get("TZ") or "UTC"
        try:
            schedule = cron_schedule(expression, zone)
            for at, text in steps_without_effect(expression):
                self._complain(number, start + at + 1, text, warning=True)
            return schedule
        except ScheduleError as error:
            self._complain(number, start + error.at + 1, str(error))
        except ConfigError:
            # The time zone is wrong: the problem is reported at the zone's own line.
            pass
        return None

    def _checked_name(
        self, number: int, start: int, command: str, named: tuple[int, int, str] | None
    ) -> str | None:
        line, column, name = named or (number, start + 1, derived_name(command))
        try:
            check_job_name(name)
        except ConfigError as error:
            self._complain(line, column, str(error))
            return None
        if name in self._lines:
            hint = "" if named else ": the same command; write `# name: ...` above one of them"
            text = f"the name {name!r} is that of line {self._lines[name]} too{hint}"
            self._complain(line, column, text)
            return None
        self._lines[name] = number
        return name


def _unquoted(text: str) -> str | None:
    """The text without its quotes; None if the quotes do not match."""
    if text[:1] not in ('"', "'"):
        return text
    inner = text[1:-1]
    whole = len(text) > 1 and text[-1] == text[0] and text[0] not in inner
    return inner if whole else None
