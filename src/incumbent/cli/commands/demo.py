"""`demo`: faults on real processes, judged from outside, beside a plain loop."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn

from incumbent.cli.parser import Request
from incumbent.demo.story import tell

__all__ = ["command"]

_COLOURS = {"bold": 1, "red": 31, "green": 32}


def command(request: Request) -> int:
    """See the module. The store is one of its own, whatever the settings say."""
    del request
    # As ^C: what was started is ended on the way out.
    signal.signal(signal.SIGTERM, _leave)
    return tell(_say, _paint)


def _leave(signum: int, _frame: object) -> NoReturn:
    raise SystemExit(128 + signum)


def _say(line: str) -> None:
    print(line, flush=True)


def _paint(text: str, colour: str) -> str:
    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    if not coloured or colour not in _COLOURS:
        return text
    return f"\033[{_COLOURS[colour]}m{text}\033[0m"
