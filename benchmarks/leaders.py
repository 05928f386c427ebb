"""Leaders as whole processes: hand-over, take-over after a crash, memory and idle CPU.

All instants are CLOCK_BOOTTIME of one machine. What a bare start of the same child takes is
measured in the same turn, so that ours can be told from that of the operating system.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.support.servers import RedisServer

from benchmarks.harness import Figure

__all__ = ["Figure", "gaps_after_a_crash", "leader_rows"]

Left = Callable[[], float]
"""Asks the store for how many seconds the lease is still held."""

_TTL = 1.0
_CHILD = """
import os, signal, sys, time
def note(what):
    stamp = time.clock_gettime(time.CLOCK_BOOTTIME)
    os.write(log, b"%s %f\\n" % (what, stamp))
log = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def end(*_):
    note(b"end")
    os._exit(0)
signal.signal(signal.SIGTERM, end)
note(b"begin")
signal.pause()
"""


@dataclass
class Team:
    """Two instances of `incumbent lead` of which one runs the child."""

    url: str
    log: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, ttl: float = _TTL) -> subprocess.Popen[bytes]:
        tool = str(Path(sys.executable).with_name("incumbent"))
        line = [tool, "-q", "-s", self.url, "lead", "bench", "--ttl", str(ttl), "--"]
        it = subprocess.Popen([*line, *_child(self.log)], stderr=subprocess.DEVNULL)
        self.started.append(it)
        return it

    def notes(self, what: str) -> list[float]:
        text = self.log.read_text() if self.log.exists() else ""
        words = [line.split() for line in text.splitlines()]
        return [float(stamp) for kind, stamp in words if kind == what]

    def await_begin(self, count: int) -> float:
        """When the `count`-th child began."""
        _until(lambda: len(self.notes("begin")) >= count)
        return self.notes("begin")[count - 1]

    def close(self) -> None:
        for it in self.started:
            it.terminate()
        for it in self.started:
            it.wait(20)


def leader_rows(turns: int, idle: float) -> list[Figure]:
    """Everything; `idle` is for how many seconds CPU is watched."""
    with RedisServer() as server, tempfile.TemporaryDirectory() as folder:
        url = f"{server.url}?restart_wait=0"
        place = Path(folder)
        return [
            *_hand_over(url, place, turns),
            *gaps_after_a_crash(_left_on(server), url, place, turns),
            *_at_rest(url, place, idle),
        ]


def _hand_over(url: str, folder: Path, turns: int) -> list[Figure]:
    gaps, bare = [], []
    with _team(url, folder / "hand-over") as team:
        leader, standby = team.start(), team.start()
        for turn in range(turns):
            team.await_begin(turn + 1)
            time.sleep(0.4)
            # Who leads is the one that has a child.
            if not _workers(leader.pid):
                leader, standby = standby, leader
            leader.terminate()
            gaps.append(team.await_begin(turn + 2) - team.notes("end")[turn])
            leader.wait(10)
            bare.append(_bare_start(folder / "bare"))
            leader, standby = standby, team.start()
    ours = [gap - start for gap, start in zip(gaps, bare, strict=True)]
    return [
        Figure("graceful hand-over, last instant to first, median", _ms(gaps), "ms", 60),
        Figure("... beyond the bare start of the child", _ms(ours), "ms", 10),
        Figure("(bare start of the child)", _ms(bare), "ms"),
    ]


def _left_on(server: RedisServer) -> Left:
    return lambda: int(server.cli("PTTL", "incumbent:{default/bench}")) / 1000


def gaps_after_a_crash(left: Left, url: str, folder: Path, turns: int) -> list[Figure]:
    """From the instant at which the record of a killed leader expires to the next leader."""
    return [
        Figure(
            "SIGKILL of the tree: next leader after the ttl ran out, API, median",
            _ms([_api_gap(left, url, folder / f"api-{turn}") for turn in range(turns)]),
            "ms",
            5,
        ),
        Figure(
            "SIGKILL of the tree: next child after the ttl ran out, median",
            _ms([_child_gap(left, url, folder / f"child-{turn}") for turn in range(turns)]),
            "ms",
            100,
        ),
    ]


def _api_gap(left: Left, url: str, log: Path) -> float:
    from incumbent.locks.elections import Election

    led: list[float] = []

    def campaign() -> None:
        with Election("bench", store=url, ttl=_TTL).lead():
            led.append(_now())

    with _team(url, log) as team:
        leader = team.start()
        team.await_begin(1)
        waiter = threading.Thread(target=campaign)
        waiter.start()
        free_at = _kill_tree(left, leader)
        waiter.join(10)
    return led[0] - free_at


def _child_gap(left: Left, url: str, log: Path) -> float:
    with _team(url, log) as team:
        leader = team.start()
        team.await_begin(1)
        team.start()
        free_at = _kill_tree(left, leader)
        return team.await_begin(2) - free_at


def _kill_tree(left: Left, leader: subprocess.Popen[bytes]) -> float:
    """Kill all of it at a random instant of the renewal interval; when the record expires."""
    time.sleep(0.5 + random.random() * _TTL / 5)
    # The supervisor first: it would give the lease back when it sees the others die.
    for pid in (leader.pid, *_below(leader.pid)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    leader.wait(10)
    asked = _now()
    seconds = left()
    # The client process that asked takes longer to start than to be answered.
    return (asked + _now()) / 2 + seconds


def _at_rest(url: str, folder: Path, seconds: float) -> list[Figure]:
    with _team(url, folder / "rest") as team:
        leader = team.start(ttl=15)
        team.await_begin(1)
        time.sleep(1)
        ours = [leader.pid, *(pid for pid in _below(leader.pid) if pid not in _workers(leader.pid))]
        before = sum(map(_ticks, ours))
        time.sleep(seconds)
        used = (sum(map(_ticks, ours)) - before) / os.sysconf("SC_CLK_TCK")
        pss = sum(map(_pss, ours)) / 1024
    return [
        Figure(f"memory of one leader, PSS of {len(ours)} processes", pss, "MiB", 45),
        Figure("idle at ttl 15 s, of a core", 100 * used / seconds, "%", 0.2),
    ]


# -- processes -----------------------------------------------------------------------------------


@contextmanager
def _team(url: str, log: Path) -> Iterator[Team]:
    team = Team(url, log)
    try:
        yield team
    finally:
        team.close()


def _child(log: Path) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", _CHILD, str(log)]


def _bare_start(log: Path) -> float:
    before = _now()
    alone = Team("", log)
    it = subprocess.Popen(_child(log))
    _until(lambda: bool(alone.notes("begin")))
    it.terminate()
    it.wait(5)
    began = alone.notes("begin")[-1]
    log.unlink()
    return began - before


def _below(pid: int) -> list[int]:
    """All descendants."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found += [child, *_below(child)]
    return found


def _workers(pid: int) -> list[int]:
    """Those of its descendants that are the child of the benchmark."""
    # Guard and init are forks of the supervisor, whose own command line names the child, too.
    begin = b"\0".join(word.encode() for word in _child(Path())[:3])
    return [it for it in _below(pid) if Path(f"/proc/{it}/cmdline").read_bytes().startswith(begin)]


def _ticks(pid: int) -> int:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(words[11]) + int(words[12])


def _pss(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def _until(done: Callable[[], bool], within: float = 20.0) -> None:
    until = _now() + within
    while not done():
        if _now() > until:
            raise TimeoutError("the benchmark waited in vain")
        time.sleep(0.001)


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _ms(seconds: list[float]) -> float:
    return median(seconds) * 1000
