"""Makes a SQLite store silent: keeps its one write transaction open until standard input ends.

python -m incumbent.demo.silence FILE
"""

from __future__ import annotations

import sqlite3
import sys

__all__: list[str] = []


def _keep_silent(path: str) -> None:
    connection = sqlite3.connect(path, timeout=5.0, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    sys.stdout.write("silent\n")
    sys.stdout.flush()
    sys.stdin.read()
    connection.execute("ROLLBACK")
    connection.close()


if __name__ == "__main__":
    _keep_silent(sys.argv[1])
