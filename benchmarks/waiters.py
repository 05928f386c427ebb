"""Many who wait for few leases on each kind of store: grants a second, and waits that time out.

Every waiter takes its lease once, and gives it back at once. All instants are CLOCK_BOOTTIME of one
machine. Grants a second count from the instant before the first holder's release to the last grant.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from math import inf
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from tests.support.etcd import EtcdServer
from tests.support.servers import RedisServer

from benchmarks.harness import Figure
from benchmarks.mysql_pairs import bench_server as mariadb_server
from benchmarks.postgresql_pairs import bench_server
from incumbent import AcquireTimeout, AsyncClient, Client, StoreError, clock

__all__ = ["waiter_rows"]

_WAITERS = 200
_PROCESSES = 20
_TASKS = 5000
_NAMES = 50
_PATIENCE = 60.0
_TTL = 15
_SLOWER_MOST = 4.0
"""By so many times the grants of Redis may exceed another store's."""


def waiter_rows(turns: int) -> list[Figure]:
    """All stores in turns, in an order drawn anew each time."""
    with _stores() as urls:
        ways: dict[str, Callable[[str], tuple[float, int]]] = {
            "200 waiters of one process": partial(_grants_a_second, processes=1),
            f"200 waiters of {_PROCESSES} processes": partial(
                _grants_a_second, processes=_PROCESSES
            ),
            f"{_TASKS:,} tasks on {_NAMES} names": _many_names,
        }
        found: dict[tuple[str, str], list[tuple[float, int]]] = {}
        for _ in range(turns):
            for what, way in ways.items():
                for store in random.sample(list(urls), len(urls)):
                    found.setdefault((what, store), []).append(way(urls[store]))
        return [figure for what in ways for figure in _figures(what, list(urls), found)]


def _figures(
    what: str, stores: Sequence[str], found: dict[tuple[str, str], list[tuple[float, int]]]
) -> Iterator[Figure]:
    unit = found[what, stores[0]]
    for store in stores:
        runs = found[what, store]
        yield Figure(f"{what}, {store}: grants", median(rate for rate, _ in runs), "/s")
        if runs is not unit:
            slower = median(a / b if b else inf for (a, _), (b, _) in zip(unit, runs, strict=True))
            wanted = _SLOWER_MOST if "waiters" in what else None
            yield Figure(f"... those of {stores[0]} by these, ratio", slower, "", wanted)
        yield Figure("... waits that timed out", sum(late for _, late in runs), "", 0)


@contextmanager
def _stores() -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        redis, etcd = stack.enter_context(RedisServer()), stack.enter_context(EtcdServer())
        _, _, postgresql = stack.enter_context(bench_server())
        _, mariadb = stack.enter_context(mariadb_server())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        yield {
            "Redis": f"{redis.url}?restart_wait=0",
            "etcd": etcd.store_url(),
            "PostgreSQL": postgresql,
            "MariaDB": mariadb,
            "SQLite": f"sqlite://{folder / 'leases.db'}",
        }


def _rate(granted: Sequence[float], began: float) -> float:
    """Grants a second; 0 if nobody was granted in time."""
    return len(granted) / (max(granted) - began) if granted else 0.0


# -- one name -------------------------------------------------------------------------------------


def _grants_a_second(url: str, processes: int) -> tuple[float, int]:
    context = multiprocessing.get_context("fork")
    ends = [context.Pipe() for _ in range(processes)]
    pipes = [here for here, _ in ends]
    with Client(url) as client:
        lease = client.lock("one", ttl=_TTL).acquire(timeout=_PATIENCE)
        each = [partial(_wait_in_process, url, _WAITERS // processes, there) for _, there in ends]
        children = [context.Process(target=target, daemon=True) for target in each]
        for child in children:
            child.start()
        for _, there in ends:
            there.close()
        for pipe in pipes:
            pipe.recv()
        # Until then each has asked, and waits.
        time.sleep(3)
        began = clock.now()
        lease.release()
        granted = [instant for pipe in pipes for instant in pipe.recv()]
    for child in children:
        child.join()
    return _rate(granted, began), _WAITERS - len(granted)


def _wait_in_process(url: str, waiters: int, pipe: Connection) -> None:
    pipe.send(None)
    names = ["one"] * waiters
    pipe.send(asyncio.run(_wait_for(url, names)))


async def _wait_for(url: str, names: Sequence[str]) -> list[float]:
    """The instants of all grants."""
    async with AsyncClient(url) as client:
        found = await asyncio.gather(*(_take_a_turn(client, name) for name in names))
    return [instant for instant in found if instant is not None]


async def _take_a_turn(client: AsyncClient, name: str) -> float | None:
    try:
        async with client.lock(name, ttl=_TTL, timeout=_PATIENCE):
            return clock.now()
    except (AcquireTimeout, StoreError):
        # The last try may have found no time for an answer.
        return None


# -- many names -----------------------------------------------------------------------------------


def _many_names(url: str) -> tuple[float, int]:
    """In a process of its own, so that each store finds the same one."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=_all_at_once, args=(url, there), daemon=True)
    child.start()
    there.close()
    began, granted = here.recv()
    child.join()
    return _rate(granted, began), _TASKS - len(granted)


def _all_at_once(url: str, pipe: Connection) -> None:
    names = [f"many-{index % _NAMES}" for index in range(_TASKS)]
    began = clock.now()
    pipe.send((began, asyncio.run(_wait_for(url, names))))
