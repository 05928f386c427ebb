"""Hand-over of one lock among ten waiting processes, and what they ask the server meanwhile.

All instants are CLOCK_MONOTONIC of one machine. A hand-over counts from the instant before the
holder's release to the instant after the next process's acquire; a process that takes the lock
twice in a row handed nothing over.
"""

from __future__ import annotations

import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import psycopg
from tests.support.postgresql import PostgresServer

from benchmarks.harness import Figure
from benchmarks.leaders import gaps_after_a_crash
from benchmarks.postgresql_pairs import bench_server

__all__ = ["postgresql_leader_rows"]

_WAITERS = 10
_ROUNDS = 3
_HOLD = 0.004
_APART = 0.06
_QUIET = 5.0

Maker = Callable[[str], Callable[[], AbstractContextManager[object]]]


def postgresql_leader_rows(turns: int) -> list[Figure]:
    """Everything."""
    with bench_server() as (server, url, ours_url):
        gaps = _in_turns({"PALs": (_pals, url), "ours": (_incumbent, ours_url)}, turns)
        peers, ours = gaps["PALs"], gaps["ours"]
        return [
            Figure("hand-over with 10 waiters, median", ours, "ms", round(peers, 2)),
            Figure("... PALs", peers, "ms"),
            Figure(
                "statements a second of 10 waiters",
                _asked(server, ours_url),
                "/s",
                1,
            ),
            *_after_a_crash(url, ours_url, turns),
        ]


def _incumbent(url: str) -> Callable[[], AbstractContextManager[object]]:
    from incumbent import Lock

    return lambda: Lock("hand-over", store=url, ttl=15)


def _pals(url: str) -> Callable[[], AbstractContextManager[object]]:
    import pals

    locker = pals.Locker("bench", url.replace("postgresql://", "postgresql+psycopg://"))
    return lambda: locker.lock("hand-over", acquire_timeout=60_000)


def _in_turns(contenders: dict[str, tuple[Maker, str]], turns: int) -> dict[str, float]:
    """Milliseconds, the median of all hand-overs of each."""
    gaps: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(_ROUNDS):
        for name, (make, url) in contenders.items():
            gaps[name] += _hand_overs(make, url, turns)
    return {name: 1000 * median(found) for name, found in gaps.items()}


def _hand_overs(make: Maker, url: str, turns: int) -> list[float]:
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for _ in range(_WAITERS):
        here, there = context.Pipe()
        processes.append(context.Process(target=_wait_in_turn, args=(make, url, turns, there)))
        pipes.append(here)
    for process in processes:
        process.start()
    for pipe in pipes:
        pipe.recv()
    for pipe in pipes:
        pipe.send("go")
    spans = sorted((*span, who) for who, pipe in enumerate(pipes) for span in pipe.recv())
    for process in processes:
        process.join()
    # The first turns meet processes that still come, the last ones too few that wait.
    middle = spans[_WAITERS:-_WAITERS]
    return [b[0] - a[1] for a, b in pairwise(middle) if a[2] != b[2]]


def _wait_in_turn(make: Maker, url: str, turns: int, pipe: Connection) -> None:
    lock = make(url)
    with lock():
        pass  # connections are made, statements prepared
    pipe.send("ready")
    pipe.recv()
    spans = []
    for _ in range(turns):
        time.sleep(_APART * random.random())
        with lock():
            got = time.monotonic()
            time.sleep(_HOLD)
            spans.append((got, time.monotonic()))
    pipe.send(spans)


def _asked(server: PostgresServer, url: str) -> float:
    """Statements a second, as the server's own log has them; the holder renews meanwhile."""
    from incumbent import Lock

    server.set("log_statement=all")
    context = multiprocessing.get_context("spawn")
    with Lock("quiet", store=url, ttl=60):
        waiters = [context.Process(target=_wait_for_quiet, args=(url,)) for _ in range(_WAITERS)]
        for waiter in waiters:
            waiter.start()
        while server.log.count("LISTEN") < _WAITERS:
            time.sleep(0.1)
        time.sleep(1)
        before = len(server.log)
        time.sleep(_QUIET)
        said = server.log[before:].splitlines()
    for waiter in waiters:
        waiter.join()
    server.set("log_statement=none")
    asked = [line for line in said if "SELECT" in line and "incumbent.renew" not in line]
    return len(asked) / _QUIET


def _wait_for_quiet(url: str) -> None:
    from incumbent import Lock

    with Lock("quiet", store=url, ttl=60):
        pass


def _after_a_crash(url: str, ours_url: str, turns: int) -> list[Figure]:
    question = (
        b"select date_part('epoch', expires - clock_timestamp()) from incumbent.record"
        b" where key = 'default/bench'"
    )
    # One connection for all: making one takes as long as what is measured.
    with psycopg.connect(url, autocommit=True) as connection:

        def left() -> float:
            ((seconds,),) = connection.execute(question).fetchall()
            return float(seconds)

        with tempfile.TemporaryDirectory() as folder:
            return gaps_after_a_crash(left, ours_url, Path(folder), turns)
