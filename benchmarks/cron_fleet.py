"""Real instances for the figures of jobs: started, listened to, measured, ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["cpu_of_trees", "end", "events", "start", "until"]


def start(url: str, folder: Path, holder: str, namespace: str) -> subprocess.Popen[bytes]:
    """An instance with the jobs of `folder`."""
    tool = str(Path(sys.executable).with_name("incumbent"))
    line = [tool, "-s", url, "-N", namespace, "cron", str(folder / "jobs.toml"), "--holder", holder]
    with (folder / f"{holder}.log").open("wb") as log:
        return subprocess.Popen(line, stdout=log, start_new_session=True)


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    """What all instances have said of one kind."""
    found = []
    for path in folder.glob("*.log"):
        for line in path.read_text().splitlines():
            with suppress(ValueError):
                event = json.loads(line)
                if event["event"] == kind:
                    found.append(event)
    return found


def until(condition: Callable[[], object], within: float) -> None:
    """Wait for it; TimeoutError after `within` seconds."""
    last = time.monotonic() + within
    while not condition():
        if time.monotonic() > last:
            raise TimeoutError(f"did not come true within {within} s")
        time.sleep(0.1)


def end(fleet: Iterable[subprocess.Popen[bytes]]) -> None:
    """TERM to all, and wait."""
    fleet = list(fleet)
    for process in fleet:
        process.send_signal(signal.SIGTERM)
    for process in fleet:
        process.wait(40)


def cpu_of_trees(pids: Iterable[int]) -> float:
    """Seconds used by processes and all below them, the dead ones that were waited for too."""
    below: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                below.setdefault(int(fields[1]), []).append(int(entry.name))
                used[int(entry.name)] = sum(map(int, fields[11:15]))
    ticks, open_ = 0, list(pids)
    while open_:
        pid = open_.pop()
        ticks += used.get(pid, 0)
        open_ += below.get(pid, [])
    return ticks / os.sysconf("SC_CLK_TCK")
