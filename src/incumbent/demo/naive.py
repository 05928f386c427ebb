"""The plain loop that the demo compares with: SET NX PX, a thread that renews, a child.

    python -m incumbent.demo.naive FILE WHO TTL -- CMD...

It does what such loops do: a random value is compared before renewing and deleting, an error of the
store is tried again at the next renewal, and the child is stopped as soon as a renewal says that
the key is another's. It has no deadline of its own, no guard beside it and no fencing token. The
engine of Redis is stood in for by one table in SQLite.
"""

from __future__ import annotations

import secrets
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

__all__ = ["Keys"]

_RETRY_EVERY: Final = 0.1
_STORE_TIMEOUT: Final = 0.3
_LOOK_EVERY: Final = 0.01


class Keys:
    """`SET key value NX PX`, and compare-and-renew, as one would send them to Redis."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._change("CREATE TABLE IF NOT EXISTS keys (key TEXT PRIMARY KEY, value, until)", ())

    def set_nx(self, key: str, value: str, ttl: float) -> bool:
        """Whether the key was free, and is ours for `ttl` seconds."""
        return self._change(
            "INSERT INTO keys VALUES (?1, ?2, ?4 + ?3) ON CONFLICT (key) DO UPDATE"
            " SET value = ?2, until = ?4 + ?3 WHERE until <= ?4",
            (key, value, ttl),
        )

    def renew(self, key: str, value: str, ttl: float) -> bool:
        """Whether it was still ours, and is for another `ttl` seconds."""
        return self._change(
            "UPDATE keys SET until = ?4 + ?3 WHERE key = ?1 AND value = ?2 AND until > ?4",
            (key, value, ttl),
        )

    def _change(self, statement: str, values: tuple[object, ...]) -> bool:
        connection = sqlite3.connect(self._path, timeout=_STORE_TIMEOUT, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            # The server's clock, asked when the server gets to it.
            now = (time.monotonic(),) if values else ()
            changed = connection.execute(statement, (*values, *now)).rowcount
            connection.execute("COMMIT")
        finally:
            connection.close()
        return changed > 0


def _call(ask: Callable[[], bool]) -> bool | None:
    """None: the store gave no answer."""
    try:
        return ask()
    except sqlite3.OperationalError:
        return None


def _campaign(keys: Keys, key: str, ttl: float, command: list[str]) -> None:
    while True:
        value = secrets.token_hex(16)
        if _call(lambda value=value: keys.set_nx(key, value, ttl)):  # type: ignore[misc]
            _lead(keys, key, value, ttl, command)
        time.sleep(_RETRY_EVERY)


def _lead(keys: Keys, key: str, value: str, ttl: float, command: list[str]) -> None:
    lost = threading.Event()

    def renew() -> None:
        while not lost.is_set():
            time.sleep(ttl / 3)
            if _call(lambda: keys.renew(key, value, ttl)) is False:
                lost.set()

    threading.Thread(target=renew, daemon=True).start()
    child = subprocess.Popen(command)
    while child.poll() is None and not lost.is_set():
        time.sleep(_LOOK_EVERY)
    lost.set()
    child.terminate()
    child.wait()


if __name__ == "__main__":
    _campaign(Keys(sys.argv[1]), "plain", float(sys.argv[3]), sys.argv[5:])
