"""What happened, for machines: one line of JSON an event, on standard output."""

from __future__ import annotations

import json
import os
import select
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Protocol

from incumbent import clock

_STDOUT = 1
_LONGEST = 4096
"""Bytes: as many as a pipe takes in one piece, so that lines of many processes never mix."""


class Emit(Protocol):
    """Hears of events."""

    def __call__(self, event: str, /, **facts: Any) -> None: ...


class Events:
    """Writes them to `fd`; a reader that has stopped must not make us wait, and loses lines."""

    def __init__(self, fd: int = _STDOUT, **always: Any) -> None:
        self._fd = fd
        self._always = always
        self.dropped = 0

    def knowing(self, fd: int | None = None, **more: Any) -> Events:
        """The same, with more facts in every line."""
        return Events(self._fd if fd is None else fd, **{**self._always, **more})

    def __call__(self, event: str, /, **facts: Any) -> None:
        """Say it; facts that are None are left out."""
        when = datetime.fromtimestamp(clock.wall(), UTC).isoformat(timespec="milliseconds")
        facts = {"time": when.replace("+00:00", "Z"), "event": event, **self._always, **facts}
        line = _line({key: value for key, value in facts.items() if value is not None})
        poll = select.poll()
        with suppress(OSError, ValueError):
            poll.register(self._fd, select.POLLOUT)
            if poll.poll(0):
                os.write(self._fd, line)
                return
        self.dropped += 1


def _line(facts: dict[str, Any]) -> bytes:
    while True:
        line = json.dumps(facts, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"
        if len(line) <= _LONGEST:
            return line
        # Only texts of a command's making are that long.
        longest = max(facts, key=lambda key: len(str(facts[key])))
        facts[longest] = str(facts[longest])[: len(str(facts[longest])) * 3 // 4]
