"""How a `run` ended, for the exit code, the line on stderr and the result file."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from incumbent.cli.text import iso, say
from incumbent.errors import ConfigError

__all__ = ["Verdict", "check_result_file", "write_result"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """`line` is empty if nothing is to be printed; instants are the wall clock's."""

    outcome: str
    code: int
    line: str = ""
    held_by: str | None = None
    reason: str = ""
    term: int | None = None
    started: float | None = None
    ended: float | None = None

    def during(self, term: int, started: float, ended: float) -> Verdict:
        """The same, of a lease that was held."""
        return replace(self, term=term, started=started, ended=ended)


def check_result_file(path: str) -> None:
    """Raise ConfigError, before anything begins, if it could not be written at the end."""
    folder = os.path.dirname(path) or "."  # noqa: PTH120 - pathlib costs start-up time
    if os.path.isdir(path) or not os.access(folder, os.W_OK | os.X_OK):  # noqa: PTH112 - likewise
        raise ConfigError(f"result_file={path!r} cannot be written", name="result_file")


def write_result(path: str, verdict: Verdict, name: str, holder: str) -> None:
    """Write it whole or not at all: a reader never sees half of it."""
    from json import dumps
    from pathlib import Path

    text = dumps(_as_json(verdict, name, holder), indent=2)
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.write_text(text + "\n", encoding="utf-8")
        draft.replace(target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        say(f"{name}: the result file {path} cannot be written: {error.strerror}")


def _as_json(verdict: Verdict, name: str, holder: str) -> dict[str, object]:
    return {
        "outcome": verdict.outcome,
        "exit_code": verdict.code,
        "name": name,
        "holder": holder,
        "held_by": verdict.held_by,
        "term": verdict.term,
        "started": None if verdict.started is None else iso(verdict.started),
        "ended": None if verdict.ended is None else iso(verdict.ended),
        "reason": verdict.reason,
    }
