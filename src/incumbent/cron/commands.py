"""Whether what a job is to run is there, as far as that can be told before it runs."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from shutil import which
from typing import Final

from incumbent.cron.spec import JobSpec

__all__ = ["Checker"]

# Words of the shell itself, and characters that only the shell can make sense of.
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
# As in the files of Debian's packages; a container need not have them in /etc/passwd.
_USERS: Final = frozenset(
    ("root", "daemon", "nobody", "www-data", "backup", "postgres", "mysql", "redis", "git")
)


class Checker:
    """Looks each program up once; for one reading of a file, as programs come and go."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._seen: dict[tuple[str, str | None, str], str | None] = {}

    def what_is_wrong(self, spec: JobSpec) -> str | None:
        """In words; None if nothing is, or if only running the job can tell."""
        if spec.cwd is not None and not Path(spec.cwd).is_dir():
            return f"there is no folder {spec.cwd!r} to run in"
        path = spec.env.get("PATH") or self._environ.get("PATH") or os.defpath
        if spec.shell_line is not None:
            wrong = self._missing(spec.shell, spec.cwd, path) or self._of_line(spec, path)
        else:
            wrong = self._missing(spec.command[0], spec.cwd, path) if spec.command else None
        if wrong is None and spec.on_failure:
            wrong = self._missing(spec.on_failure[0], spec.cwd, path)
        return wrong

    def _of_line(self, spec: JobSpec, path: str) -> str | None:
        word = _first_word(spec.shell_line or "")
        wrong = self._missing(word, spec.cwd, path) if word else None
        if wrong and word in _USERS | _users_here():
            return f"{wrong}; is it the user of a system crontab? That column has no place here"
        return wrong

    def _missing(self, program: str, cwd: str | None, path: str) -> str | None:
        asked = (program, cwd, path)
        if asked not in self._seen:
            self._seen[asked] = _missing(program, cwd, path)
        return self._seen[asked]


def _first_word(line: str) -> str | None:
    """The program, if the line begins with a plain one."""
    for raw in line.split():
        if _ASSIGNMENT.match(raw):
            if raw.startswith("PATH=") or _UNSURE.search(raw) or "'" in raw or '"' in raw:
                return None
            continue
        word = raw.rstrip(";&")
        if _UNSURE.search(word) or word in _OF_THE_SHELL:
            return None
        return _without_quotes(word)
    return None


def _without_quotes(word: str) -> str | None:
    try:
        words = shlex.split(word)
    except ValueError:
        return None
    return words[0] if len(words) == 1 else None


def _missing(program: str, cwd: str | None, path: str) -> str | None:
    if "/" in program:
        place = Path(cwd or ".", program)
        if not place.exists():
            return f"there is no {program!r}"
        return None if _can_run(place) else f"{program!r} is not executable"
    if which(program, path=path):
        return None
    return f"no {program!r} in {path if len(path) <= 80 else f'{path[:77]}...'}"


def _can_run(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _users_here() -> frozenset[str]:
    from pwd import getpwall

    return frozenset(it.pw_name for it in getpwall())
