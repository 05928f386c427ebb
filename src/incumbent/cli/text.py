"""Shows instants, records, tables and messages, and parses instants."""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from os import environ, get_terminal_size
from typing import TYPE_CHECKING, Final, TextIO

from incumbent import clock
from incumbent.cli.parser import CommandRequest
from incumbent.durations import parse_duration, say_seconds, utc
from incumbent.errors import AcquireTimeout, ConfigError, NotAcquired
from incumbent.model import Holding, Refused
from incumbent.printable import json_line, printable, printable_lines
from incumbent.protocol.messages import names_of
from incumbent.rules.endings import FLAPPING

if TYPE_CHECKING:
    from datetime import tzinfo


_WAITING_SAID_AFTER: Final = 1.0


def refusal_line(error: NotAcquired, permits: int | None = None) -> str:
    """The message of a refusal: the holder and the time left; `permits`: the limit of holders."""
    left = None if error.retry_after is None else say_seconds(max(0.0, error.retry_after))
    by = error.held_by or "another"
    waited = isinstance(error, AcquireTimeout)
    gave_up = f"gave up after {say_seconds(error.waited)}: " if waited else ""
    match error.reason:
        case "used":
            still = f"; its slot stays used for another {left}" if left else ""
            why = f"already ran by {by}{still}"
        case "closed":
            why = f"already ran by {by}" + (f"; closed for another {left}" if left else "")
        case "paused":
            why = "paused: nobody may take it until it is unpaused"
        case "reserved":
            why = f"reserved for {by}"
        case "turn":
            why = f"it is the turn of {by}, first in line"
        case "held" if permits:
            why = f"no permit left of {permits}, one is held by {by}"
        case _:
            why = f"held by {by}" + (f", ttl {left} left" if left else "")
    return f"{gave_up}{why}"


def wait_line(refused: Refused) -> str:
    """What a waiter waits for: the reason of a refusal, the holders, and since when they hold."""
    by = names_of(refused.holders) or "another"
    left = "" if refused.retry_after is None else f" for another {say_seconds(refused.retry_after)}"
    match refused.reason:
        case "used":
            return f"its slot is used, by {by},{left}" if left else f"its slot is used, by {by}"
        case "paused":
            return "paused: nobody may take it until it is unpaused"
        case "closed":
            return f"closed{left}, after {by}"
        case "reserved":
            return f"reserved for {by}"
        case "turn":
            return f"the turn of {by}, first in line"
        case _:
            return held(refused.holders)


def held(holders: Sequence[Holding]) -> str:
    """The holders, and since when the first of them holds."""
    since = holders[0].held_for if holders else None
    when = "" if since is None else f" since {iso(clock.wall() - since)}"
    return f"held by {names_of(holders) or 'another'}{when}"


@contextmanager
def announce_wait(request: CommandRequest, until: float, what: Callable[[], str]) -> Iterator[None]:
    """On a terminal, say what the body waits for (`what`, "" for nothing yet) after a second."""
    if request.on("quiet") or not sys.stderr.isatty():
        yield
        return

    def say_it() -> None:
        limit = f"at most {say_seconds(until - clock.now())} more" if until < inf else "no limit"
        if found := what():
            say(f"{request.name}: waiting, {limit}: {found}")

    timer = threading.Timer(_WAITING_SAID_AFTER, say_it)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def iso(instant: float) -> str:
    """An instant of the wall clock in local time, with the offset from UTC."""
    from datetime import UTC, datetime

    local = datetime.fromtimestamp(instant, UTC).astimezone()
    return local.isoformat(sep=" ", timespec="seconds")


def parse_since(text: str, now: float) -> float:
    """The instant `2h` before `now`, or an instant as in instant_of. Raises ConfigError."""
    try:
        return now - parse_duration(text, "since")
    except ConfigError:
        # Its message names both forms: what is neither is refused once.
        return instant_of(text, "since", now, "2h, ")


def instant_of(
    text: str, what: str, now: float, also: str = "", zone: tzinfo | None = None
) -> float:
    """The instant of `05:30` (the last one), or of `2026-11-21T05:30`. Raises ConfigError.

    A text without a time zone is in `zone`, or in local time if that is None.
    """
    from datetime import datetime, timedelta

    # Without a zone these are clock times without an offset: the offset of another day, or of
    # another hour of this one, may differ.
    here = datetime.fromtimestamp(now, zone)
    try:
        if len(text) <= 8 and ":" in text:
            time = datetime.strptime(text, "%H:%M" if text.count(":") == 1 else "%H:%M:%S")  # noqa: DTZ007 - only its time
            found = here.replace(
                hour=time.hour, minute=time.minute, second=time.second, microsecond=0, fold=0
            )
            return (found if found.timestamp() <= now else found - timedelta(days=1)).timestamp()
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=zone)).timestamp()
    except ValueError:
        raise ConfigError(
            f"{what}={text[:40]!r}: write {also}05:30, 2026-11-21T05:30 or 2026-11-21T05:30:00Z",
            name=what,
        ) from None


def as_json(request: CommandRequest, result: object) -> str:
    """A result as JSON, in the envelope that all commands share."""
    from json import dumps

    asked = {"command": request.command, "namespace": request.namespace}
    return dumps({**asked, "time": utc(clock.wall()), "result": result}, indent=2)


def print_json(request: CommandRequest, result: object) -> None:
    """Print a result as JSON; see as_json."""
    print(as_json(request, result))


def draw(request: CommandRequest, rows: Sequence[Sequence[str]], below: Sequence[str] = ()) -> None:
    """Print rows as a table, and lines below it.

    On a terminal lines are cut to its width, and coloured unless NO_COLOR is set.
    """
    on_terminal = sys.stdout.isatty()
    # Not that of shutil, which believes COLUMNS: an old value would break the lines of --watch.
    width = get_terminal_size(sys.stdout.fileno()).columns if on_terminal else 0
    lines = [*_aligned(rows, width), *map(printable, below)]
    if on_terminal and not environ.get("NO_COLOR"):
        # After they were aligned and cut: a colour has letters, but no width.
        lines = [_COLOURED.sub(_coloured, line) for line in lines]
    if on_terminal and request.on("watch"):
        # Overwrite the old lines, then erase the rest, so that nothing flickers.
        print("\x1b[H" + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J", end="")
    else:
        print("\n".join(lines))
    sys.stdout.flush()


_COLOURS: Final = {
    **dict.fromkeys(("held", "ok", "running"), 32),
    **dict.fromkeys(("paused", "closed", "reserved", "stopping", "waiting", "warning"), 33),
    **dict.fromkeys(("cannot tell", "not ours", "failed", "timed out", "lost", "missed"), 31),
    **dict.fromkeys(("gone", "nobody is up", "error", FLAPPING), 31),
}
# A cell; a result may have its exit code and its count: "failed (3) x2".
_COLOURED: Final = re.compile(rf"(?<=  )({'|'.join(_COLOURS)})((?: \(\d+\))?(?: x\d+)?)(?=  |$)")


def _coloured(match: re.Match[str]) -> str:
    return f"\x1b[{_COLOURS[match[1]]}m{match[0]}\x1b[0m"


def coloured(word: str) -> str:
    """A word in its colour, on a terminal and unless NO_COLOR is set."""
    if word not in _COLOURS or not sys.stdout.isatty() or environ.get("NO_COLOR"):
        return word
    return f"\x1b[{_COLOURS[word]}m{word}\x1b[0m"


def _aligned(rows: Sequence[Sequence[str]], most: int) -> list[str]:
    """The lines of a table; the widest columns are cut to fit `most` characters (0: no limit)."""
    # Before it is measured: what stands for a control character is longer than that.
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    while most and sum(widths) + 2 * (len(widths) - 1) > most and max(widths) > _NARROWEST:
        widths[widths.index(max(widths))] -= 1
    return ["  ".join(map(_fit, row, widths)).rstrip() for row in rows]


_NARROWEST: Final = 8


def _fit(cell: str, width: int) -> str:
    return cell.ljust(width) if len(cell) <= width else f"{cell[: width - 1]}…"


def table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns; no column is cut."""
    print("\n".join(_aligned(rows, 0)))
    sys.stdout.flush()


def fault_line(error: Exception) -> str:
    """The message for an unexpected error."""
    if isinstance(error, OSError):
        whose = "the system refuses"
    else:
        place = source_of(error)
        whose = f"an error in {place}" if place else "a defect of incumbent"
    return f"{whose}: {type(error).__name__}: {error}"


def source_of(error: BaseException) -> str:
    """The file and line that raised it, if it is neither ours nor Python's; else ""."""
    place, trace = "", error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        # The innermost frame counts: what fails below ours is ours, whoever called.
        if package == "incumbent":
            place = ""
        elif package not in sys.stdlib_module_names:
            place = f"{frame.f_code.co_filename}, line {trace.tb_lineno}"
        trace = trace.tb_next
    return place


# -- standard error while a command runs: lines of text, or JSON for programs ----------------------

_OWN: Final = "incumbent.cli"
# Attributes that every record of `logging` has; others are our fields, or the user's.
_STANDARD: Final = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
_as_json = False


def begin_log(log_format: str | None, *, quiet: bool, verbose: bool) -> None:
    """Write the library's log to stderr; `log_format`: "json", else lines of text."""
    global _as_json  # noqa: PLW0603 - one process, one standard error
    _as_json = log_format == "json"
    handler = _Handler()
    handler.setFormatter(_Json() if _as_json else _Text())
    log = logging.getLogger("incumbent")
    log.addHandler(handler)
    level = logging.INFO if verbose else logging.WARNING
    log.setLevel(logging.ERROR if quiet else level)


def say(line: str) -> None:
    """Write one line to stderr; a closed stderr is no error."""
    as_text = f"incumbent: {printable(line)}"
    _write(_json("info", _OWN, line, clock.wall()) if _as_json else as_text)


def log_line(label: str, line: str) -> None:
    """`say` with the time, for commands that run for long; `label`: the name concerned."""
    now = clock.wall()
    if _as_json:
        _write(_json("info", _OWN, line, now, {"name": label}))
    else:
        _write(f"incumbent: {_stamp(now)} {label}: {printable(line)}")


# Seconds: a reader of stderr that stands still loses lines. It must keep no instance from
# campaigning, leading or ending, and no keeper from renewing.
_TYPED_WITHIN: Final = 0.5


def _write(line: str) -> None:
    try:
        if _is_writable(sys.stderr):
            # Write the line at once, so that processes that share a stderr cannot split it.
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
    # ValueError: it was closed. A line that cannot be written must end nothing that holds a lease.
    except (OSError, ValueError):
        pass


def _is_writable(stream: TextIO) -> bool:
    from select import POLLOUT, poll

    try:
        number = stream.fileno()
    except (OSError, ValueError):
        return True  # It is no file, but a buffer in memory.
    # Not select(), which fails for a descriptor above 1023.
    waiting = poll()
    waiting.register(number, POLLOUT)
    return bool(waiting.poll(_TYPED_WITHIN * 1000))


class _Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        _write(self.format(record))


class _Text(logging.Formatter):
    """Formats a record as one line, with its traceback below it."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"incumbent: {printable(record.getMessage())}"
        if record.exc_info:
            line += f"\n{printable_lines(self.formatException(record.exc_info))}"
        return line


class _Json(logging.Formatter):
    """Formats a record as one line of JSON, with its `extra` fields."""

    def format(self, record: logging.LogRecord) -> str:
        facts = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        level = record.levelname.lower()
        return _json(level, record.name, record.getMessage(), record.created, facts)


def _json(
    level: str, logger: str, message: str, when: float, facts: Mapping[str, object] | None = None
) -> str:
    fixed = {"time": _stamp(when), "level": level, "logger": logger, "message": message}
    return json_line({**fixed, **(facts or {})})


def _stamp(when: float) -> str:
    """An instant of the wall clock: RFC 3339, in UTC, with milliseconds."""
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(when))
    # Cut, not rounded: 0.9996 s would become 1000 ms.
    return f"{seconds}.{int(when % 1 * 1000):03}Z"
