"""What a job is: read from a file or given in Python, checked, and never changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from incumbent.cron.schedule import Schedule
from incumbent.durations import DAY

__all__ = ["CatchUp", "JobSpec", "Overlap", "Problem"]

Overlap = Literal["skip", "queue"]


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a file, and where; line and column count from 1.

    A `warning` keeps nothing from starting.
    """

    path: str
    line: int
    column: int
    text: str
    warning: bool = False

    def __str__(self) -> str:
        kind = "warning: " if self.warning else ""
        return f"{self.path}:{self.line}:{self.column}: {kind}{self.text}"


@dataclass(frozen=True, slots=True)
class CatchUp:
    """What to do about slots at which nobody was up.

    "no": record them. "last": run the last one. "all": run the last `limit`, oldest first. Only
    slots of the last `window` seconds are run.
    """

    mode: Literal["no", "last", "all"] = "no"
    limit: int = 10
    window: float = DAY


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """One job. Exactly one of `command`, `shell_line` and `call` is given. Times are seconds."""

    name: str
    schedule: Schedule
    command: tuple[str, ...] | None = None
    shell_line: str | None = None
    """Run by `shell -c`."""
    call: Callable[..., Any] | None = None
    shell: str = "/bin/sh"
    stdin: str | None = None
    """What a crontab has after the first `%`."""
    timezone: str = "UTC"
    env: Mapping[str, str] = field(default_factory=dict)
    """Set on top of the environment of the instance."""
    cwd: str | None = None
    at_most_for: float | None = None
    at_least_for: float = 0.0
    retries: int = 0
    retry_backoff: float = 10.0
    catch_up: CatchUp = CatchUp()
    overlap: Overlap = "skip"
    jitter: float = 0.0
    """A slot starts up to this much later, by a share that is the same in all instances."""
    success_codes: frozenset[int] = frozenset({0})
    output_bytes: int = 4096
    on_failure: tuple[str, ...] | None = None
    keep_runs: int = 100
    keep_for: float = 30 * DAY
    source: str = ""
    """`file:line`."""
    command_at: tuple[int, int] = field(default=(1, 1), compare=False, repr=False)
    """Line and column of the command, to complain of it."""

    @property
    def argv(self) -> tuple[str, ...] | None:
        """What is executed; None for a callable."""
        if self.shell_line is not None:
            return (self.shell, "-c", self.shell_line)
        return self.command
