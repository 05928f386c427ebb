"""Load jobs from a file. A file with any error starts no job; all of its problems are reported.

A job's program is looked up too, as far as that is possible before the job runs.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from pwd import getpwall
from shutil import which
from typing import Final

from incumbent.cron.crontab import parse_crontab
from incumbent.cron.jobfile import parse_jobfile
from incumbent.cron.schedule import FixedTimes
from incumbent.cron.spec import JobSpec, Problem
from incumbent.errors import ConfigError

_LARGEST: Final = 64 * 1024 * 1024
_OF_OTHERS: Final = (".yaml", ".yml", ".json", ".py")
_EXPECTED: Final = (
    "FILE is a crontab or a job file in TOML; jobs in Python are named as package.module:jobs"
)
_TOML: Final = re.compile(r"^[ \t]*(?:\[\[[ \t]*job[ \t]*\]\]|\[[ \t]*defaults[ \t]*\])", re.M)


@dataclass(frozen=True, slots=True)
class LoadedJobs:
    """The jobs of a file, and its problems, in the order of the lines.

    From `load_jobs`: no jobs if there is any error. From `parse_jobs`: all jobs with a readable
    command, so that it can be looked up.
    """

    specs: tuple[JobSpec, ...]
    problems: tuple[Problem, ...]

    @property
    def errors(self) -> tuple[Problem, ...]:
        """The problems that keep the jobs from starting."""
        return tuple(problem for problem in self.problems if not problem.warning)

    @property
    def warnings(self) -> tuple[Problem, ...]:
        """The problems that keep no job from starting."""
        return tuple(problem for problem in self.problems if problem.warning)


def load_jobs(path: str, environ: Mapping[str, str], now: float) -> LoadedJobs:
    """Read and check a file; raises ConfigError if it cannot be read at all.

    `environ`: the environment of the jobs, for variables and for the PATH of their commands.
    `now`: a job whose fixed times are all before it gets a warning.
    """
    _need_cronsim()
    try:
        with Path(path).open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        text = f"{path}: {error.strerror or error}; {_EXPECTED}"
        raise ConfigError(text, name="file") from error
    if len(content) > _LARGEST:
        raise ConfigError(f"{path}: more than {_LARGEST} bytes are no job file", name="file")
    text, problems = _decoded(content, path)
    if problems:
        return LoadedJobs((), problems)
    parsed = parse_jobs(text, path, environ)
    kind = Path(path).suffix
    if parsed.errors and kind in _OF_OTHERS:
        return LoadedJobs(
            (), (Problem(path, 1, 1, f"{kind} is another kind of file; {_EXPECTED}"),)
        )
    found = [*parsed.problems, *_of_machine(parsed.specs, path, environ, now)]
    problems = tuple(sorted(found, key=lambda problem: (problem.line, problem.column)))
    broken = any(not problem.warning for problem in problems)
    # Absolute, because a worker changes to the folder again for each attempt.
    specs = (
        spec if spec.cwd is None else replace(spec, cwd=str(Path(spec.cwd).absolute()))
        for spec in parsed.specs
    )
    return LoadedJobs(() if broken else tuple(specs), problems)


def parse_jobs(text: str, path: str, environ: Mapping[str, str] | None = None) -> LoadedJobs:
    """Parse the text, without looking at this machine. `environ`: what a job file may name."""
    is_toml = path.endswith(".toml") or _TOML.search(text) is not None
    if is_toml:
        specs, problems = parse_jobfile(text, path, environ)
    else:
        specs, problems = parse_crontab(text, path)
    if not specs and not problems:
        problems = (Problem(path, 1, 1, "there is no job in it"),)
    return LoadedJobs(specs, problems)


def _need_cronsim() -> None:
    try:
        import cronsim  # noqa: F401 - only to see whether it is installed
    except ImportError as error:
        text = "schedules need the extra cron: pip install 'incumbent[cron]' (cronsim>=2.6)"
        raise ConfigError(text, name="file") from error


def _decoded(content: bytes, path: str) -> tuple[str, tuple[Problem, ...]]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return "", (_at(content[: error.start], path, f"this is not UTF-8 text; {_EXPECTED}"),)
    if "\0" in text:
        return "", (
            _at(content[: content.index(0)], path, f"a NUL character is no text; {_EXPECTED}"),
        )
    return text, ()


def _at(before: bytes, path: str, text: str) -> Problem:
    column = len(before) - before.rfind(b"\n")
    return Problem(path, before.count(b"\n") + 1, column, text)


def _of_machine(
    specs: tuple[JobSpec, ...], path: str, environ: Mapping[str, str], now: float
) -> list[Problem]:
    problems = []
    # Cached for one reading only, as programs come and go.
    missing = cache(_missing)
    for spec in specs:
        if wrong := _what_is_wrong(spec, environ, missing):
            of_job = spec.name if spec.name.startswith(("job ", "line ")) else f"job {spec.name}"
            problems.append(Problem(path, *spec.command_at, f"{of_job}: {wrong}"))
        if isinstance(spec.schedule, FixedTimes) and spec.schedule.next_after(now) is None:
            text = f"job {spec.name}: all of its times are past"
            problems.append(Problem(path, *spec.command_at, text, warning=True))
    return problems


# Words of the shell itself, and characters that only the shell can interpret.
_OF_THE_SHELL: Final = frozenset(
    (
        *(".", ":", "[", "alias", "bg", "break", "case", "cd", "command", "continue", "echo"),
        *("eval", "exec", "exit", "export", "false", "fg", "for", "getopts", "hash", "if", "jobs"),
        *("kill", "local", "printf", "pwd", "read", "readonly", "return", "set", "shift"),
        *("source", "test", "then", "time", "times", "trap", "true", "type", "ulimit", "umask"),
        *("unalias", "unset", "until", "wait", "while", "!", "{", "((", "[["),
    )
)
_UNSURE: Final = re.compile(r"""[$`~*?\[\](){}<>|&;!\\#\n]""")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
# Users in the crontabs of Debian's packages; a container may lack them in /etc/passwd.
_USERS: Final = frozenset(
    ("root", "daemon", "nobody", "www-data", "backup", "postgres", "mysql", "redis", "git")
)


def _what_is_wrong(
    spec: JobSpec, environ: Mapping[str, str], missing: Callable[[str, str | None, str], str | None]
) -> str | None:
    """The reason why a job cannot run; None if there is none, or if only running it can tell."""
    if spec.cwd is not None and not Path(spec.cwd).is_dir():
        return f"there is no folder {spec.cwd!r} to run in"
    path = spec.env.get("PATH") or environ.get("PATH") or os.defpath
    words = [spec.command[0]] if spec.command else []
    if spec.shell_line is not None:
        words = [spec.shell, _first_word(spec.shell_line) or spec.shell]
    if spec.on_failure:
        words.append(spec.on_failure[0])
    for place, word in enumerate(words):
        if wrong := missing(word, spec.cwd, path):
            of_line = spec.shell_line is not None and place == 1
            if of_line and word in _USERS | {user.pw_name for user in getpwall()}:
                wrong += "; is it the user of a system crontab? That column has no place here"
            return wrong
    return None


def _first_word(line: str) -> str | None:
    """The program of a shell line, if its first word is a plain name; else None."""
    for raw in line.split():
        if _ASSIGNMENT.match(raw):
            if raw.startswith("PATH=") or _UNSURE.search(raw) or "'" in raw or '"' in raw:
                return None
            continue
        word = raw.rstrip(";&")
        if _UNSURE.search(word) or word in _OF_THE_SHELL:
            return None
        try:
            words = shlex.split(word)
        except ValueError:
            return None
        return words[0] if len(words) == 1 else None
    return None


def _missing(program: str, cwd: str | None, path: str) -> str | None:
    if "/" in program:
        place = Path(cwd or ".", program)
        if not place.exists():
            return f"there is no {program!r}"
        runs = place.is_file() and os.access(place, os.X_OK)
        return None if runs else f"{program!r} is not executable"
    if which(program, path=path):
        return None
    return f"no {program!r} in {path if len(path) <= 80 else f'{path[:77]}...'}"
