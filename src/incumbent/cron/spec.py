"""The definition of a job, from a file or from Python, and a slot of a job. Both are immutable.

Each setting of a job has one reader, which takes a value from TOML or Python and returns the value
for JobSpec, or raises ConfigError. Pure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from incumbent.cron.schedule import Schedule, find_zone, parse_instant, slot_id
from incumbent.durations import DAY, parse_duration, say_seconds
from incumbent.errors import ConfigError
from incumbent.notify.receivers import Ping, Receiver, parse_ping, parse_receiver
from incumbent.stores.names import check_name

Overlap = Literal["skip", "queue"]


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a file, with its place; line and column count from 1.

    A `warning` keeps no job from starting.
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
    """The rule for slots at which no instance was up.

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
    """The text after the first `%` in a crontab."""
    timezone: str = "UTC"
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that are set on top of the environment of the instance."""
    cwd: str | None = None
    at_most_for: float | None = None
    at_least_for: float = 0.0
    retries: int = 0
    retry_backoff: float = 10.0
    catch_up: CatchUp = CatchUp()
    overlap: Overlap = "skip"
    jitter: float = 0.0
    """The most seconds by which a slot starts later; its share is the same in all instances."""
    success_codes: frozenset[int] = frozenset({0})
    keep_output: int = 4096
    on_failure: tuple[str, ...] | None = None
    notify: Receiver | None = field(default=None, repr=False)
    ping: Ping | None = field(default=None, repr=False)
    keep_runs: int = 100
    keep_for: float = 30 * DAY
    source: str = ""
    """`file:line`."""
    command_at: tuple[int, int] = field(default=(1, 1), compare=False, repr=False)
    """Line and column of the command, for problems with it."""

    @property
    def argv(self) -> tuple[str, ...] | None:
        """The program and its arguments; None for a callable."""
        if self.shell_line is not None:
            return (self.shell, "-c", self.shell_line)
        return self.command


def is_scheduled(slot_name: str) -> bool:
    """Whether a slot of this name comes from a schedule, and not from an operator."""
    return slot_name[:1].isdigit()


@dataclass(frozen=True, slots=True)
class JobSlot:
    """One piece of work of a job. `only_check`: not to be run, only to be checked in the ledger.

    `waits_its_turn`: it waits, neither late nor skipped, for as long as the catch-up rule lets it.
    `triggered_by`: the operator who asked for it, with the reason.
    """

    name: str
    due: float
    attempt: int = 1
    only_check: bool = False
    waits_its_turn: bool = False
    triggered_by: str = field(default="", compare=False)

    @property
    def scheduled(self) -> bool:
        """Whether the slot comes from a schedule, and not from an operator."""
        return is_scheduled(self.name)

    @classmethod
    def at(cls, due: float, *, only_check: bool = False) -> JobSlot:
        """The slot of a scheduled instant."""
        return cls(slot_id(due), due, only_check=only_check)

    @classmethod
    def from_holder(cls, name: str, now: float) -> JobSlot | None:
        """The slot that a holder names, to be accounted for; None if the text names no slot.

        `now`: the instant for a manual slot, whose name has none.
        """
        instant, _, attempt = name.partition("#")
        try:
            due = now if name.startswith("manual/") else parse_instant(instant.partition("~")[0])
            return cls(name, due, int(attempt or 1), only_check=True)
        except (ConfigError, ValueError):
            return None

    def next_attempt(self) -> JobSlot:
        """The next attempt, after a holder vanished."""
        attempt = self.attempt + 1
        name = f"{self.name.partition('#')[0]}#{attempt}"
        return JobSlot(name, self.due, attempt, triggered_by=self.triggered_by)


# -- settings, each with its reader ----------------------------------------------------------------


def _text(value: object, key: str) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ConfigError(f"{key}: a text in quotes, not {_kind(value)}", name=key)
    return value


def _whole(least: int, most: int) -> Callable[[object, str], int]:
    def read(value: object, key: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ConfigError(f"{key}: a whole number from {least} to {most}", name=key)
        return value

    return read


def _duration(least: float, most: float) -> Callable[[object, str], float]:
    def read(value: Any, key: str) -> float:
        return parse_duration(value, key, least=least, most=most)

    return read


def _word(*words: str) -> Callable[[object, str], str]:
    def read(value: object, key: str) -> str:
        if value not in words or not isinstance(value, str):
            raise ConfigError(f"{key}={value!r}: one of {', '.join(words)}", name=key)
        return value

    return read


def _command(value: object, key: str) -> tuple[str, ...] | str:
    """Read a command: a list is executed as it is, a text by /bin/sh."""
    if isinstance(value, str) and value.strip():
        return _text(value, key)
    if not (isinstance(value, list) and value and all(isinstance(word, str) for word in value)):
        value = [""]
    if not value[0]:
        raise ConfigError(f'{key}: a list such as ["curl", "-fsS", URL], or a shell line', name=key)
    if any("\0" in word for word in value):
        raise ConfigError(f"{key}: no argument can hold a NUL character", name=key)
    return tuple(value)


def _at_failure(value: object, key: str) -> tuple[str, ...]:
    command = _command(value, key)
    return ("/bin/sh", "-c", command) if isinstance(command, str) else command


def _env(value: object, key: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ConfigError(f'{key}: a table such as {{ LANG = "C" }}', name=key)
    for name, text in value.items():
        if not isinstance(text, str) or "\0" in text:
            where = f"{key}.{name}"
            raise ConfigError(f"{where}: a text in quotes, not {_kind(text)}", name=where)
        if not name or "=" in name or "\0" in name:
            raise ConfigError(f"{key}: {name!r} cannot be the name of a variable", name=key)
    return dict(value)


def _timezone(value: object, key: str) -> str:
    find_zone(name := _text(value, key))
    return name


def _codes(value: object, key: str) -> frozenset[int]:
    read = _whole(0, 255)
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{key}: a list of exit codes such as [0, 3]", name=key)
    return frozenset(read(code, key) for code in value)


def _times(value: object, key: str) -> tuple[float, ...]:
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{key}: a list such as [2026-12-24T18:00:00+01:00]", name=key)
    times = sorted(parse_instant(text) for text in value)
    if len(set(times)) < len(times):
        raise ConfigError(f"{key}: the same instant twice", name=key)
    return tuple(times)


def check_job_name(value: object) -> str:
    """Return the name of a job, or raise ConfigError."""
    name = check_name(value)
    if name.startswith("@"):
        raise ConfigError(f"{name!r}: names that begin with @ are incumbent's", name="name")
    return name


def _kind(value: object) -> str:
    return f"{str(value)[:40]!r} ({type(value).__name__})"


DEFAULTS: Final[dict[str, Callable[[object, str], object]]] = {
    "timezone": _timezone,
    "env": _env,
    "cwd": _text,
    "at_most_for": _duration(0.1, 366 * 86_400),
    "at_least_for": _duration(0, 366 * 86_400),
    "retries": _whole(0, 100),
    "retry_backoff": _duration(0, 86_400),
    "catch_up": _word("no", "last", "all"),
    "catch_up_limit": _whole(1, 1000),
    "catch_up_window": _duration(1, 366 * 86_400),
    "overlap": _word("skip", "queue"),
    "jitter": _duration(0, 86_400),
    "success_codes": _codes,
    "keep_output": _whole(0, 65_536),
    "on_failure": _at_failure,
    "notify": parse_receiver,
    "keep_runs": _whole(1, 10_000),
    "keep_for": _duration(60, 366 * 86_400),
}
"""The readers of the settings that `[defaults]` may set for every job."""

SETTINGS: Final = {
    **DEFAULTS,
    "name": lambda value, _: check_job_name(value),
    "command": _command,
    "schedule": _text,
    "every": _duration(1, 366 * 86_400),
    "at": _times,
    # Never a default: the pings of one job would hide that another one is silent.
    "ping": parse_ping,
}
"""The readers of the settings of a `[[job]]`."""

GONE: Final = {"seconds": ": a schedule with seconds has six fields, and that says it"}
"""Removed settings, each with a hint at its replacement."""


def bounds_conflict(values: Mapping[str, Any]) -> str:
    """The conflict of at_least_for and at_most_for, in words; empty if there is none."""
    least, most = values.get("at_least_for", 0.0), values.get("at_most_for")
    if most is None or least <= most:
        return ""
    return f"at_least_for={say_seconds(least)} is above at_most_for={say_seconds(most)}"


def job_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a JobSpec, from settings as their readers return them."""
    rule = {"catch_up": "mode", "catch_up_limit": "limit", "catch_up_window": "window"}
    made = {key: value for key, value in values.items() if key not in rule}
    made["catch_up"] = CatchUp(**{rule[key]: values[key] for key in rule if key in values})
    if isinstance(made.get("command"), str):
        made["shell_line"] = made.pop("command")
    return made


def wants_run(call: Callable[..., Any]) -> bool:
    """Whether the function has a parameter `run`."""
    try:
        return "run" in inspect.signature(call).parameters
    except (TypeError, ValueError):
        return False
