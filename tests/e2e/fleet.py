"""Stores with faults, instances under a judge, and what the judge saw."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.cli.tool import start
from tests.support.pace import took
from tests.support.waiting import eventually

WORKER = Path(__file__).with_name("worker.py")
TTL = 4.0
TIMES = ("--ttl", str(TTL), "--grace", "1.5")

Fault = Callable[[], object]


@dataclass
class Place:
    """A store, and by name what can befall it: how it begins and how it ends."""

    url: str
    faults: dict[str, tuple[Fault, Fault]] = field(default_factory=dict)


@contextmanager
def locked_file(path: Path) -> Iterator[Place]:
    """A SQLite store; "silent": another process keeps its write transaction open."""
    peer: list[sqlite3.Connection] = []

    def begin() -> None:
        peer.append(sqlite3.connect(path, isolation_level=None, check_same_thread=False))
        peer[0].execute("PRAGMA busy_timeout=5000")
        peer[0].execute("BEGIN IMMEDIATE")

    def end() -> None:
        while peer:
            peer.pop().close()

    try:
        yield Place(f"sqlite:///{path}", {"silent": (begin, end)})
    finally:
        end()


@dataclass
class Fleet:
    """Instances that run the worker under one name, in one folder with one judge."""

    store: str
    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, *options: str, worker: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        command = [sys.executable, "-S", str(WORKER), str(self.folder), *worker]
        line = ("-s", self.store, "run", "job", *TIMES, *options, "--", *command)
        self.started.append(start(*line))
        return self.started[-1]

    def begin(self, *options: str, worker: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """Start one, and return when its worker works."""
        before = len(self.begun)
        # One try has a fifth of a second of the store's time: a busy machine may take longer.
        patience = () if any(it.startswith("--wait") for it in options) else ("--wait=40",)
        instance = self.start(*patience, *options, worker=worker)
        eventually(lambda: len(self.begun) > before or instance.poll() is not None)
        assert len(self.begun) > before, instance.communicate()
        return instance

    @property
    def log(self) -> list[list[str]]:
        path = self.folder / "log"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def begun(self) -> list[int]:
        """The terms of all workers, in the order in which they began."""
        return [int(line[1]) for line in self.log if line[0] == "begin"]

    def worker_lives(self) -> bool:
        fd = os.open(self.folder / "judge", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def judge(self) -> None:
        """No two workers at once, and terms that only grow."""
        assert "overlap" not in [line[0] for line in self.log]
        assert self.begun == sorted(set(self.begun))

    def close(self) -> None:
        (self.folder / "stop").touch()
        for instance in self.started:
            if instance.poll() is None:
                instance.kill()
            instance.communicate()
        eventually(lambda: not self.worker_lives())


def died_within(fleet: Fleet, since: float, seconds: float) -> None:
    """The last worker is gone `seconds` after `since` (of incumbent.clock) at the latest."""
    while True:
        # Read before the look: a worker that is found alive was alive then, however late the look.
        after = took(since)
        if not fleet.worker_lives():
            return
        assert after < seconds, f"alive {after:.3f} s after the fault, at most {seconds} s"
        time.sleep(0.003)
