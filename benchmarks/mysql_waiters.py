"""MariaDB: hand-over among ten waiting processes, what waiters ask, and a thousand renewals."""

from __future__ import annotations

import multiprocessing
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from tests.support.mariadb import MariaServer

from benchmarks.hand_overs import WAITERS, hand_overs
from benchmarks.harness import Contender, Figure, compare, one_core
from benchmarks.mysql_pairs import bench_server, driver
from incumbent import clock
from incumbent.model import Ask, Batch, Granted, Key, Renewal, Renewed
from incumbent.stores.url import open_engine

__all__ = ["mysql_waiter_rows"]

_MANY = 1_000
_TTL = 60.0
_QUIET = 5.0


def mysql_waiter_rows(turns: int) -> list[Figure]:
    """Everything."""
    with bench_server() as (server, url):
        gaps = hand_overs({"GET_LOCK": (_get_lock, url), "ours": (_incumbent, url)}, turns)
        return [
            Figure("hand-over with 10 waiters, median", gaps["ours"], "ms"),
            Figure("... GET_LOCK, which the server hands over", gaps["GET_LOCK"], "ms"),
            Figure(
                "statements a second of 10 waiting processes, two a look", _asked(server, url), "/s"
            ),
            *_renewals(url, turns),
        ]


def _incumbent(url: str) -> Callable[[], AbstractContextManager[object]]:
    from incumbent import Lock

    return lambda: Lock("hand-over", store=url, ttl=15)


def _get_lock(url: str) -> Callable[[], AbstractContextManager[object]]:
    connection = driver(url)

    @contextmanager
    def held() -> Iterator[None]:
        cursor = connection.cursor()
        cursor.execute("SELECT GET_LOCK('hand-over',60)")
        yield
        cursor.execute("SELECT RELEASE_LOCK('hand-over')")

    return held


def _asked(server: MariaServer, url: str) -> float:
    """What clients asked for in a second; the holder's renewals are among it."""
    from incumbent import Lock

    context = multiprocessing.get_context("spawn")
    with Lock("quiet", store=url, ttl=_TTL):
        waiters = [context.Process(target=_wait_for_quiet, args=(url,)) for _ in range(WAITERS)]
        for waiter in waiters:
            waiter.start()
        while _status(server, "Threads_connected") < WAITERS:
            time.sleep(0.1)
        time.sleep(2)
        before = _status(server, "Com_select")
        time.sleep(_QUIET)
        asked = _status(server, "Com_select") - before
    for waiter in waiters:
        waiter.join()
    return asked / _QUIET


def _status(server: MariaServer, name: str) -> int:
    ((_, value),) = server.sql(f"SHOW GLOBAL STATUS LIKE '{name}'")
    return int(value)


def _wait_for_quiet(url: str) -> None:
    from incumbent import Lock

    with Lock("quiet", store=url, ttl=_TTL):
        pass


def _renewals(url: str, turns: int) -> list[Figure]:
    """One request of a thousand, on one core with the server, beside a bare UPDATE of as many."""
    with one_core():
        bare = Contender("bare", _bare_renewals(url))
        ours = Contender("ours", _our_renewals(url))
        rows = compare([bare, ours], turns, 1)
    return [
        Figure(f"renewal of {_MANY:,} leases", rows[1].microseconds / 1000, "ms"),
        Figure("... by a bare UPDATE of as many rows, ratio", rows[1].wall_ratio, ""),
    ]


def _our_renewals(url: str) -> Callable[[], object]:
    store = open_engine(url).store()

    def taken(name: str) -> Renewal:
        key = Key("default", name)
        grant = store.take(key, secrets.token_hex(16), Ask(_TTL, "bench"), clock.now() + 10)
        assert isinstance(grant, Granted)
        return Renewal(key, grant.claim, grant.token, _TTL, grant.epoch)

    batch = Batch([taken(f"lease-{at}") for at in range(_MANY)])

    def renew() -> None:
        answers = store.renew(batch, clock.now() + 10)
        if not all(isinstance(it, Renewed) for it in answers):
            raise RuntimeError("not all leases were renewed")

    return renew


def _bare_renewals(url: str) -> Callable[[], object]:
    cursor: Any = driver(url).cursor()
    cursor.execute(
        "CREATE TABLE bare_lease (name VARCHAR(64) PRIMARY KEY, holder VARCHAR(64),"
        " expires BIGINT) ENGINE=InnoDB"
    )
    rows = [(f"lease-{at}", secrets.token_hex(16)) for at in range(_MANY)]
    cursor.executemany("INSERT INTO bare_lease VALUES (%s,%s,0)", rows)
    held = ",".join(f"('{name}','{holder}')" for name, holder in rows)

    def renew() -> None:
        changed = cursor.execute(
            "UPDATE bare_lease SET expires=UNIX_TIMESTAMP(SYSDATE(6))*1000000+15000000"
            f" WHERE (name,holder) IN ({held})"
        )
        if changed != _MANY:
            raise RuntimeError("the bare statement did not renew all rows")

    return renew
