"""`sqlite:` among greedy processes: a release leaves a chance to those who wait."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from functools import partial
from itertools import groupby
from pathlib import Path

import pytest

from incumbent import Lock, clock
from tests import tiers
from tests.support.pace import BUSY, took
from tests.support.waiting import eventually

pytestmark = pytest.mark.crowd(tiers.MANY)

MOST_IN_A_ROW = 9

GREEDY = """
import os, sys, time
from incumbent import Lock
path, kind, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
log = os.open(path + ".log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
lock = Lock("hot", store=f"sqlite://{path}", ttl=10)
def note(left):
    # After its last there are fewer who want it.
    os.write(log, f"{os.getpid()} {'' if left else '- '}".encode())
def blocking():
    for left in reversed(range(number)):
        with lock:
            note(left)
async def asynchronous():
    from incumbent import AsyncLock
    lock = AsyncLock("hot", store=f"sqlite://{path}", ttl=10)
    for left in reversed(range(number)):
        async with lock:
            note(left)
Lock("warm", store=f"sqlite://{path}").acquire().release()
print("ready", flush=True)
sys.stdin.readline()
if kind == "blocking":
    blocking()
else:
    import asyncio
    asyncio.run(asynchronous())
print("done", flush=True)
"""


def start(path: Path, kind: str, number: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", GREEDY, str(path), kind, str(number)]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def go(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")


@pytest.mark.left(tiers.SIDES, "asynchronous")
@pytest.mark.parametrize("kind", ["blocking", "asynchronous"])
def test_none_of_four_greedy_processes_keeps_the_others_waiting(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "leases.db"
    processes = [start(path, kind, 60) for _ in range(4)]
    holder = Lock("hot", store=f"sqlite://{path}", ttl=10).acquire()
    try:
        go(processes)
        eventually(partial(stand_in_line, path, 4))
        holder.release()
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "done\n"
    finally:
        for process in processes:
            end(process)
    grants = Path(f"{path}.log").read_text().split()
    assert len(grants) == 4 * 61
    all_want = grants[: grants.index("-")]
    runs = [len(list(same)) for _, same in groupby(all_want)]
    # Now and then a busy machine keeps the first in line from its turn, which another one takes.
    assert sum(run > MOST_IN_A_ROW for run in runs) <= len(runs) // 10, runs
    assert len(set(all_want)) == 4


@pytest.mark.left(tiers.SIDES, "19")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_waiters_that_died_or_froze_keep_a_free_name_from_nobody_for_long(
    tmp_path: Path, how: signal.Signals
) -> None:
    path = tmp_path / "leases.db"
    holder = Lock("hot", store=f"sqlite://{path}", ttl=10).acquire()
    silent = [start(path, "blocking", 1) for _ in range(5)]
    last = start(path, "blocking", 1)
    try:
        for count, process in enumerate(silent, 1):
            go([process])
            eventually(partial(stand_in_line, path, count))
        go([last])
        eventually(partial(stand_in_line, path, 6))
        for process in silent:
            os.kill(process.pid, how)
        before = clock.now()
        holder.release()
        assert last.stdout is not None
        assert last.stdout.readline() == "done\n"
        # A heartbeat is a second at most: one of them may cost it, and not each.
        assert took(before) < 1.0 + BUSY
    finally:
        for process in (*silent, last):
            end(process)


def stand_in_line(path: Path, count: int) -> bool:
    connection = sqlite3.connect(path)
    try:
        hot = "SELECT count(*) FROM waiting WHERE key = 'default/hot'"
        return connection.execute(hot).fetchall() == [(count,)]
    finally:
        connection.close()
