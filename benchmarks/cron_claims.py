"""Slots: what a claim costs, a hundred due at once over five instances, and many jobs at rest.

python -m benchmarks.cron_claims
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from tests.support.servers import RedisServer

from benchmarks.harness import Figure
from incumbent.cron.claims import Claimer
from incumbent.cron.judge import Slot
from incumbent.cron.schedule import Every
from incumbent.cron.spec import JobSpec
from incumbent.links import new_link
from incumbent.model import Refused

__all__ = ["Figure", "cron_rows"]

_CLAIMS = 500
_INSTANCES, _SLOTS = 5, 100
_MANY = 10_000
_TURNS = 5


def cron_rows(idle: float = 30.0) -> list[Figure]:
    """All figures, on a Redis of our own."""
    with RedisServer() as server:
        return [
            *claim_rows(server),
            *burst_rows(_trusted(server)),
            *rest_rows(_trusted(server), idle),
        ]


def _trusted(server: RedisServer) -> str:
    # It is new, and nobody held anything before.
    return f"{server.url}?restart_wait=0"


# -- a claim ---------------------------------------------------------------------------------------


def claim_rows(server: RedisServer) -> list[Figure]:
    """Requests and microseconds of a claim; the peer's skip is an acquire that is refused."""
    import redis

    spec = JobSpec(name="bench", schedule=Every(1), command=("true",))
    link = new_link(_trusted(server))
    claimer = Claimer(link, "bench", {"holder": "one"})
    other = Claimer(link, "bench", {"holder": "two"})
    granted, refused, peer_skip, trips = [], [], [], []
    for turn in range(_TURNS):
        before = _requests(server)
        for number in range(_CLAIMS):
            slot = Slot(f"t{turn}.{number}", 0.0)
            began = time.perf_counter()
            got = claimer.claim(spec, slot)
            granted.append(time.perf_counter() - began)
            assert not isinstance(got, Refused)
            began = time.perf_counter()
            assert isinstance(other.claim(spec, slot), Refused)
            refused.append(time.perf_counter() - began)
            claimer.give_back(got)
        # The release is one request too; what asks for the count is not counted.
        trips.append((_requests(server) - before) / _CLAIMS - 1)
        with redis.Redis.from_url(server.url) as client:
            taken = client.lock("peer", timeout=15, blocking=False)
            taken.acquire()
            skipping = client.lock("peer", timeout=15, blocking=False)
            for _ in range(_CLAIMS):
                began = time.perf_counter()
                skipping.acquire()
                peer_skip.append(time.perf_counter() - began)
            taken.release()
    link.close()
    return [
        Figure("requests of a claim, granted or refused", median(trips) / 2, "", 1.0),
        Figure("claim of a slot, granted", median(granted) * 1e6, "us"),
        Figure("claim of a slot, refused", median(refused) * 1e6, "us"),
        Figure("redis-py Lock, refused (knows no slots)", median(peer_skip) * 1e6, "us"),
    ]


def _requests(server: RedisServer) -> int:
    """Scripts that the server has run, for takes and gives are one each."""
    for line in server.cli("INFO", "commandstats").splitlines():
        if line.startswith("cmdstat_evalsha:"):
            return int(line.partition("calls=")[2].partition(",")[0])
    return 0


# -- many at once ----------------------------------------------------------------------------------


def burst_rows(url: str) -> list[Figure]:
    """A hundred jobs of one instant: how late the last one starts, and who runs how many."""
    with tempfile.TemporaryDirectory(prefix="incumbent-bench-") as name:
        folder = Path(name)
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 12))
        jobs = [
            f'[[job]]\nname = "j{number}"\nat = [{at}]\ncommand = ["true"]\n'
            for number in range(_SLOTS)
        ]
        (folder / "jobs.toml").write_text("\n".join(jobs))
        fleet = [_start(url, folder, f"i{number}", "burst") for number in range(_INSTANCES)]
        try:
            _until(lambda: len(_events(folder, "ready")) == _INSTANCES, 30)
            _until(lambda: len(_events(folder, "started")) >= _SLOTS, 60)
        finally:
            _end(fleet)
        started = _events(folder, "started")
    late = sorted(event["late"] for event in started)
    shares = Counter(event["instance"] for event in started)
    runs = [shares.get(f"i{number}", 0) for number in range(_INSTANCES)]
    return [
        Figure(f"{_SLOTS} slots at once: half of them run after", late[len(late) // 2], "s"),
        Figure(f"{_SLOTS} slots at once: all of them run after", late[-1], "s", 1.0),
        Figure("... the instance with the most runs", max(runs), "runs", 35),
        Figure("... the instance with the fewest", min(runs), "runs"),
    ]


# -- at rest ---------------------------------------------------------------------------------------


def rest_rows(url: str, seconds: float) -> list[Figure]:
    """Ten thousand jobs of which none is due: how long it takes to be ready, and CPU at rest."""
    with tempfile.TemporaryDirectory(prefix="incumbent-bench-") as name:
        folder = Path(name)
        jobs = [
            f'[[job]]\nname = "j{number}"\nschedule = "{number % 60} {number // 60 % 24} 1 1 *"\n'
            'command = ["true"]\n'
            for number in range(_MANY)
        ]
        (folder / "jobs.toml").write_text("\n".join(jobs))
        began = time.monotonic()
        process = _start(url, folder, "many", "rest")
        try:
            _until(lambda: _events(folder, "ready"), 60)
            ready = time.monotonic() - began
            # All are registered once in the life of a fleet.
            _until(lambda: _registered(url) >= _MANY, 120)
            time.sleep(2)
            before = _cpu(process.pid)
            time.sleep(seconds)
            used = (_cpu(process.pid) - before) / seconds
        finally:
            _end([process])
    return [
        Figure(f"{_MANY} jobs: from the start until ready", ready, "s"),
        Figure(f"{_MANY} jobs at rest", used * 100, "% of a core", 1.0),
    ]


def _registered(url: str) -> int:
    from incumbent.sync import Client

    with Client(url, namespace="rest") as client:
        return sum(it.key.name.startswith("j") for it in client.scan("j", 20))


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- processes -------------------------------------------------------------------------------------


def _start(url: str, folder: Path, holder: str, namespace: str) -> subprocess.Popen[bytes]:
    tool = str(Path(sys.executable).with_name("incumbent"))
    line = [tool, "-s", url, "-N", namespace, "cron", str(folder / "jobs.toml"), "--holder", holder]
    with (folder / f"{holder}.log").open("wb") as log:
        return subprocess.Popen(line, stdout=log, start_new_session=True)


def _events(folder: Path, kind: str) -> list[dict[str, Any]]:
    found = []
    for path in folder.glob("*.log"):
        for line in path.read_text().splitlines():
            with suppress(ValueError):
                event = json.loads(line)
                if event["event"] == kind:
                    found.append(event)
    return found


def _until(condition: Callable[[], object], within: float) -> None:
    until = time.monotonic() + within
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"did not come true within {within} s")
        time.sleep(0.1)


def _end(fleet: list[subprocess.Popen[bytes]]) -> None:
    for process in fleet:
        process.send_signal(signal.SIGTERM)
    for process in fleet:
        process.wait(40)


def main() -> None:
    """Measure and print."""
    for row in cron_rows(float(os.environ.get("IDLE", "30"))):
        wanted = "" if row.target is None else f" (wanted: at most {row.target:g})"
        print(f"{row.name}: {row.figure:.3g} {row.unit}{wanted}")
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"CPU of all children: {usage.ru_utime + usage.ru_stime:.1f} s")


if __name__ == "__main__":
    main()
