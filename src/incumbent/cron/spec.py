"""What a job is, read from a file or given in Python, and a slot of it. Neither ever changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from incumbent.cron.schedule import Schedule, parse_instant, slot_id
from incumbent.durations import DAY
from incumbent.errors import ConfigError

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
    keep_output: int = 4096
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


def is_scheduled(slot: str) -> bool:
    """Whether a slot of this name comes from a schedule, and not from an operator."""
    return slot[:1].isdigit()


@dataclass(frozen=True, slots=True)
class Slot:
    """One piece of work of a job. `missed`: not to be run, only to be accounted for.

    `caught`: late, and to be run all the same by the job's rule for catching up.
    """

    name: str
    due: float
    attempt: int = 1
    missed: bool = False
    caught: bool = False

    @property
    def scheduled(self) -> bool:
        """Whether a schedule named it, and not an operator."""
        return is_scheduled(self.name)

    @classmethod
    def at(cls, due: float, *, missed: bool = False) -> Slot:
        """The slot of a scheduled instant."""
        return cls(slot_id(due), due, missed=missed)

    @classmethod
    def held(cls, name: str, now: float) -> Slot | None:
        """The slot that a holder names, to be accounted for; None for what is no slot of ours.

        `now`: the instant of a trigger, whose name has none.
        """
        instant, _, attempt = name.partition("#")
        try:
            due = now if name.startswith("manual/") else parse_instant(instant)
            return cls(name, due, int(attempt or 1), missed=True)
        except (ConfigError, ValueError):
            return None

    def again(self) -> Slot:
        """The next attempt, after a holder vanished."""
        attempt = self.attempt + 1
        return Slot(f"{self.name.partition('#')[0]}#{attempt}", self.due, attempt)
