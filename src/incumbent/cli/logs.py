"""Standard error while something runs: lines for people, or JSON for programs."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import Final

from incumbent import clock

_OWN: Final = "incumbent.cli"
_STANDARD: Final = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
"""What each record of `logging` has; the rest are fields of ours, or of the user's."""
_as_json = False


def begin(log_format: str | None, *, quiet: bool, verbose: bool) -> None:
    """Say what the library logs; `log_format`: "json", or the lines for people."""
    global _as_json  # noqa: PLW0603 - one process, one standard error
    _as_json = log_format == "json"
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if _as_json else logging.Formatter("incumbent: %(message)s"))
    log = logging.getLogger("incumbent")
    log.addHandler(handler)
    level = logging.INFO if verbose else logging.WARNING
    log.setLevel(logging.ERROR if quiet else level)


def say(line: str) -> None:
    """See `text.say`."""
    _write(_json("info", _OWN, line, clock.wall()) if _as_json else f"incumbent: {line}")


def tell(label: str, line: str) -> None:
    """`say` with the time, for what runs for long; `label`: the name that it is about."""
    now = clock.wall()
    if _as_json:
        _write(_json("info", _OWN, line, now, {"name": label}))
    else:
        _write(f"incumbent: {_stamp(now)} {label}: {line}")


def _write(line: str) -> None:
    try:
        # In one write: processes that share a stderr must not come between a line and its end.
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


class _Json(logging.Formatter):
    """One line of JSON a record, with its `extra` fields."""

    def format(self, record: logging.LogRecord) -> str:
        facts = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        level = record.levelname.lower()
        return _json(level, record.name, record.getMessage(), record.created, facts)


def _json(
    level: str, logger: str, message: str, when: float, facts: Mapping[str, object] | None = None
) -> str:
    from json import dumps

    fixed = {"time": _stamp(when), "level": level, "logger": logger, "message": message}
    return dumps({**fixed, **(facts or {})}, default=str, ensure_ascii=False)


def _stamp(when: float) -> str:
    """RFC 3339, in UTC, with milliseconds."""
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(when))
    return f"{seconds}.{int(when % 1 * 1000):03}Z"
