"""The plain loop that the demo compares with: SET NX PX, a thread that renews, a child.

    python -m incumbent.demo.naive FILE TTL CMD...

It works as such loops do: it compares a random value before it renews, tries again at the next
renewal after an error of the store, and stops the child as soon as a renewal says that the key
belongs to another. It has no deadline of its own, no guard process and no fencing token. One table
in SQLite stands in for Redis.
"""

from __future__ import annotations

import secrets
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from typing import Final

_RETRY_EVERY: Final = 0.1
_STORE_TIMEOUT: Final = 0.3
_POLL_EVERY: Final = 0.01

_TABLE: Final = "CREATE TABLE IF NOT EXISTS keys (key TEXT PRIMARY KEY, value, until)"
_SET_NX_PX: Final = """
    INSERT INTO keys VALUES ('plain', ?1, ?3 + ?2) ON CONFLICT (key) DO UPDATE
    SET value = ?1, until = ?3 + ?2 WHERE until <= ?3"""
_RENEW: Final = """
    UPDATE keys SET until = ?3 + ?2 WHERE key = 'plain' AND value = ?1 AND until > ?3"""


def _ask(path: str, statement: str, value: str, ttl: float) -> bool | None:
    """Whether the key is ours for another `ttl` seconds; None if the store gave no answer."""
    try:
        with closing(sqlite3.connect(path, timeout=_STORE_TIMEOUT, isolation_level=None)) as store:
            store.execute(_TABLE)
            store.execute("BEGIN IMMEDIATE")
            # Stands for the server's clock, read once the server has begun with the request.
            changed = store.execute(statement, (value, ttl, time.monotonic())).rowcount
            store.execute("COMMIT")
    except sqlite3.OperationalError:
        return None
    return changed > 0


def _campaign(path: str, ttl: float, command: list[str]) -> None:
    while True:
        value = secrets.token_hex(16)
        if _ask(path, _SET_NX_PX, value, ttl):
            _lead(path, value, ttl, command)
        time.sleep(_RETRY_EVERY)


def _lead(path: str, value: str, ttl: float, command: list[str]) -> None:
    lost = threading.Event()

    def renew() -> None:
        while not lost.wait(ttl / 3):
            if _ask(path, _RENEW, value, ttl) is False:
                lost.set()

    threading.Thread(target=renew, daemon=True).start()
    child = subprocess.Popen(command)
    while child.poll() is None and not lost.wait(_POLL_EVERY):
        pass
    lost.set()
    child.terminate()
    child.wait()


if __name__ == "__main__":
    _campaign(sys.argv[1], float(sys.argv[2]), sys.argv[3:])
