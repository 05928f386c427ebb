"""A holder that is frozen between its last check and its write, and writes once it goes on.

python -m tests.fencing.stale KIND TARGET STORE
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from incumbent import Client, Lease, LeaseLost
from incumbent.fencing import headers, replace_file, with_token, write_redis

TASKS = Path("/proc/self/task")
"""Our threads, if this is Linux: also those that Python does not list."""


class Stopping:
    """A lease that is proved, and then nothing runs for as long as somebody likes."""

    def __init__(self, lease: Lease, client: Client) -> None:
        self.name = lease.name
        self.fencing_token = lease.fencing_token
        self._lease, self._client = lease, client

    def check(self) -> None:
        self._lease.check()
        # A renewal that is frozen while it writes keeps the store's file locked, and `close` does
        # not wait for one that is under way.
        self._client.close()
        while TASKS.exists() and len([*TASKS.iterdir()]) > 1:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGSTOP)


def write_sqlite(lease: Stopping, target: str) -> None:
    with closing(sqlite3.connect(target)) as connection, connection:
        with_token(lease, connection)
        connection.execute("INSERT INTO work VALUES ('stale')")


def write_postgresql(lease: Stopping, target: str) -> None:
    import psycopg

    with psycopg.connect(target) as connection:
        with_token(lease, connection)
        connection.execute("INSERT INTO work VALUES ('stale')")


def write_alchemy(lease: Stopping, target: str) -> None:
    import sqlalchemy

    with sqlalchemy.create_engine(target).begin() as connection:
        with_token(lease, connection)
        connection.execute(sqlalchemy.text("INSERT INTO work VALUES ('stale')"))


def write_key(lease: Stopping, target: str) -> None:
    import redis

    write_redis(lease, redis.Redis.from_url(target), ("RPUSH", "work", "stale"))


def write_file(lease: Stopping, target: str) -> None:
    replace_file(lease, target, b"stale")


def write_http(lease: Stopping, target: str) -> None:
    request = Request(target, b"stale", headers(lease))
    try:
        urlopen(request, timeout=20).close()
    except HTTPError as error:
        with error:
            if error.code != 409:
                raise
            raise LeaseLost(error.read().decode(), name=lease.name, reason="taken") from None


WRITERS: dict[str, Callable[[Stopping, str], None]] = {
    "sqlite": write_sqlite,
    "postgresql": write_postgresql,
    "sqlalchemy": write_alchemy,
    "redis": write_key,
    "file": write_file,
    "http": write_http,
}


def main(kind: str, target: str, store: str) -> None:
    client = Client(store)
    lease = client.lock("job", ttl=3.0).acquire()
    try:
        WRITERS[kind](Stopping(lease, client), target)
        outcome = "written"
    except LeaseLost as error:
        outcome = f"refused {error.reason}"
    os.write(1, outcome.encode())
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
