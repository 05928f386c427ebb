"""`demo`: faults on real processes, judged from outside, beside a plain loop."""

from __future__ import annotations

import os
import sys

from incumbent.cli.parser import Request
from incumbent.demo.story import tell

__all__ = ["command"]

_COLOURS = {"bold": 1, "red": 31, "green": 32}


def command(request: Request) -> int:
    """See the module. The store is one of its own, whatever the settings say."""
    del request
    return tell(_say, _paint)


def _say(line: str) -> None:
    print(line, flush=True)


def _paint(text: str, colour: str) -> str:
    coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    if not coloured or colour not in _COLOURS:
        return text
    return f"\033[{_COLOURS[colour]}m{text}\033[0m"
