"""Hand-over of one lock among ten waiting processes, and what they ask the server meanwhile."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import psycopg
from tests.support.postgresql import PostgresServer

from benchmarks.hand_overs import WAITERS, hand_overs
from benchmarks.harness import Figure
from benchmarks.leaders import gaps_after_a_crash
from benchmarks.postgresql_pairs import bench_server

__all__ = ["postgresql_leader_rows"]

_QUIET = 5.0


def postgresql_leader_rows(turns: int) -> list[Figure]:
    """Everything."""
    with bench_server() as (server, url, ours_url):
        gaps = hand_overs({"PALs": (_pals, url), "ours": (_incumbent, ours_url)}, turns)
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


def _asked(server: PostgresServer, url: str) -> float:
    """Statements a second, as the server's own log has them; the holder renews meanwhile."""
    from incumbent import Lock

    server.set("log_statement=all")
    context = multiprocessing.get_context("spawn")
    with Lock("quiet", store=url, ttl=60):
        waiters = [context.Process(target=_wait_for_quiet, args=(url,)) for _ in range(WAITERS)]
        for waiter in waiters:
            waiter.start()
        while server.log.count("LISTEN") < WAITERS:
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
        b"select (expires - incumbent.clock()) / 1e6::float from incumbent.record"
        b" where key = 'default/bench'"
    )
    # One connection for all: making one takes as long as what is measured.
    with psycopg.connect(url, autocommit=True) as connection:

        def left() -> float:
            ((seconds,),) = connection.execute(question).fetchall()
            return float(seconds)

        with tempfile.TemporaryDirectory() as folder:
            return gaps_after_a_crash(left, ours_url, Path(folder), turns)
