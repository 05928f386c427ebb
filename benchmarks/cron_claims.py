"""Slots: what a claim costs, and many jobs at rest.

python -m benchmarks.cron_claims
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.support.servers import RedisServer

from benchmarks.cron_fleet import cpu_of_trees, end, events, start, until
from benchmarks.harness import Figure
from incumbent.cron.runs import Claimer
from incumbent.cron.schedule import Every
from incumbent.cron.spec import JobSlot, JobSpec
from incumbent.model import Refused
from incumbent.runtime.link import new_link

__all__ = ["Figure", "cron_rows"]

_CLAIMS = 500
_MANY = 10_000
_TURNS = 5


def cron_rows(idle: float = 30.0) -> list[Figure]:
    """All figures, on a Redis of our own."""
    with RedisServer() as server:
        return [
            *claim_rows(server),
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
            slot = JobSlot(f"t{turn}.{number}", 0.0)
            began = time.perf_counter()
            got = claimer.claim(spec, slot)
            granted.append(time.perf_counter() - began)
            assert not isinstance(got, Refused)
            began = time.perf_counter()
            assert isinstance(other.claim(spec, slot), Refused)
            refused.append(time.perf_counter() - began)
            claimer.release(got)
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
        process = start(url, folder, "many", "rest")
        try:
            until(lambda: events(folder, "ready"), 60)
            ready = time.monotonic() - began
            # All are registered once in the life of a fleet.
            until(lambda: _registered(url) >= _MANY, 120)
            time.sleep(2)
            before = cpu_of_trees([process.pid])
            time.sleep(seconds)
            used = (cpu_of_trees([process.pid]) - before) / seconds
        finally:
            end([process])
    return [
        Figure(f"{_MANY} jobs: from the start until ready", ready, "s"),
        Figure(f"{_MANY} jobs at rest", used * 100, "% of a core", 1.0),
    ]


def _registered(url: str) -> int:
    from incumbent.locks.clients import Client

    with Client(url, namespace="rest") as client:
        return sum(it.key.name.startswith("j") for it in client.scan("j", 20))


def main() -> None:
    """Measure and print."""
    for row in cron_rows(float(os.environ.get("IDLE", "30"))):
        wanted = "" if row.target is None else f" (wanted: at most {row.target:g})"
        print(f"{row.name}: {row.figure:.3g} {row.unit}{wanted}")
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"CPU of all children: {usage.ru_utime + usage.ru_stime:.1f} s")


if __name__ == "__main__":
    main()
