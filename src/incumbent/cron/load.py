"""From a file to jobs. A file with any problem starts nothing; all of its problems are told."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from incumbent.cron.commands import Checker
from incumbent.cron.crontab import parse_crontab
from incumbent.cron.jobfile import parse_jobfile
from incumbent.cron.schedule import FixedTimes
from incumbent.cron.spec import JobSpec, Problem
from incumbent.errors import ConfigError

__all__ = ["Loaded", "load_jobs", "parse_jobs"]

_LARGEST: Final = 64 * 1024 * 1024
_TOML: Final = re.compile(r"^[ \t]*(?:\[\[[ \t]*job[ \t]*\]\]|\[[ \t]*defaults[ \t]*\])", re.M)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The jobs, and what is wrong, in the order of the lines.

    From `load_jobs`: with any error there are no jobs. From `parse_jobs`: those whose command can
    be read, to look for it.
    """

    specs: tuple[JobSpec, ...]
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that keep the jobs from starting."""
        return tuple(it for it in self.problems if not it.warning)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """The others."""
        return tuple(it for it in self.problems if it.warning)


def load_jobs(path: str, environ: Mapping[str, str], now: float) -> Loaded:
    """Read and check a file; raises ConfigError if it cannot be read at all.

    `environ`: what jobs will find, to look for their commands. `now`: fixed times before it get a
    warning.
    """
    _need_cronsim()
    try:
        with Path(path).open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", name="file") from error
    if len(content) > _LARGEST:
        raise ConfigError(f"{path}: more than {_LARGEST} bytes are no job file", name="file")
    text, problems = _decoded(content, path)
    if problems:
        return Loaded((), problems)
    parsed = parse_jobs(text, path)
    found = [*parsed.problems, *_of_machine(parsed.specs, path, Checker(environ), now)]
    problems = tuple(sorted(found, key=lambda it: (it.line, it.column)))
    broken = any(not it.warning for it in problems)
    return Loaded(() if broken else parsed.specs, problems)


def parse_jobs(text: str, path: str) -> Loaded:
    """What the text says, wherever it is read."""
    is_toml = path.endswith(".toml") or _TOML.search(text) is not None
    specs, problems = (parse_jobfile if is_toml else parse_crontab)(text, path)
    if not specs and not problems:
        problems = (Problem(path, 1, 1, "there is no job in it"),)
    return Loaded(specs, problems)


def _need_cronsim() -> None:
    try:
        import cronsim  # noqa: F401 - only whether it is there
    except ImportError as error:
        text = "schedules need cronsim: pip install 'incumbent[cron]'"
        raise ConfigError(text, name="file") from error


def _decoded(content: bytes, path: str) -> tuple[str, tuple[Problem, ...]]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return "", (_at(content[: error.start], path, "this is not UTF-8 text"),)
    if "\0" in text:
        return "", (_at(content[: content.index(0)], path, "a NUL character is no text"),)
    return text, ()


def _at(before: bytes, path: str, text: str) -> Problem:
    column = len(before) - before.rfind(b"\n")
    return Problem(path, before.count(b"\n") + 1, column, text)


def _of_machine(
    specs: tuple[JobSpec, ...], path: str, checker: Checker, now: float
) -> list[Problem]:
    problems = []
    for spec in specs:
        if wrong := checker.what_is_wrong(spec):
            of_job = spec.name if spec.name.startswith(("job ", "line ")) else f"job {spec.name}"
            problems.append(Problem(path, *spec.command_at, f"{of_job}: {wrong}"))
        if isinstance(spec.schedule, FixedTimes) and spec.schedule.next_after(now) is None:
            text = f"job {spec.name}: all of its times are past"
            problems.append(Problem(path, *spec.command_at, text, warning=True))
    return problems
