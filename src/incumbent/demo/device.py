"""What the leader writes to: it remembers the largest token and refuses a smaller one.

    python -m incumbent.demo.device SOCKET

A line `SIDE TOKEN` is a write, answered with `taken` or `refused`. Token 0 says that the writer has
none: the device has nothing to compare then, and takes it.
"""

from __future__ import annotations

import sys

from incumbent.demo.lines import LineServer

__all__: list[str] = []


class _Device:
    def __init__(self) -> None:
        self._largest: dict[str, int] = {}

    def write(self, _number: int, line: str) -> str:
        side, said = line.split()
        token = int(said)
        if 0 < token < self._largest.get(side, 0):
            return "refused"
        self._largest[side] = max(token, self._largest.get(side, 0))
        return "taken"


if __name__ == "__main__":
    LineServer(sys.argv[1], _Device().write, lambda number: None).serve()
