"""Thousands of free names at once in one process that has no connection open, on each store.

Each contender takes and gives back every name once. They take turns in one run, and each turn's
ratio is to the peer of the same turn. The worst of all turns counts: a burst that collapses now and
then is not fast. On a machine that others use, too, the ratio of CPU says more than a worst ratio.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from statistics import median
from typing import Any

import redis
import redis.asyncio
from psycopg_pool import AsyncConnectionPool
from tests.support.etcd import EtcdServer
from tests.support.servers import RedisServer

from benchmarks.etcd_gateway import create, delete, request
from benchmarks.harness import Figure
from benchmarks.postgresql_pairs import bench_server
from incumbent import AsyncClient, Client, clock

__all__ = ["at_once_rows"]

_NAMES = 10_000
_OF_A_QUORUM, _OF_ETCD, _OF_POSTGRESQL = 3_000, 3_000, 3_000
_THREADS, _EACH = 200, 10
_POOL = 50
"""Connections of redis-py's pool."""
_BARE = 64
"""Connections to etcd's gateway for the bare requests."""
_PATIENCE = 60.0

Burst = Callable[[], int]
"""Take and give all names once; returns how many it did not get, or still has to give."""


def at_once_rows(turns: int) -> list[Figure]:
    """Every store, alone and beside a process that burns CPU on each core."""
    with ExitStack() as stack:
        ways = list(_ways(stack))
        alone = [
            row for what, unit, burst, most in ways for row in _row(what, unit, burst, most, turns)
        ]
        stack.enter_context(_busy())
        what, unit, burst, most = ways[0]
        return [*alone, *_row(f"{what}, beside busy processes", unit, burst, most, turns)]


def _row(what: str, unit: Burst, burst: Burst, most: float, turns: int) -> Iterator[Figure]:
    ratios, of_cpu, seconds, missed = [], [], [], 0
    for _ in range(turns):
        took: dict[Burst, float] = {}
        cpu: dict[Burst, float] = {}
        for each in random.sample([unit, burst], 2):
            began, used = clock.now(), time.process_time()
            left = each()
            took[each], cpu[each] = clock.now() - began, time.process_time() - used
            missed += left if each is burst else 0
        seconds.append(took[burst])
        ratios.append(took[burst] / took[unit])
        of_cpu.append(cpu[burst] / cpu[unit])
    yield Figure(f"{what}: by {unit.__doc__}, the worst ratio", max(ratios), "", most)
    yield Figure("... the median", median(ratios), "")
    yield Figure("... CPU of this process, the median", median(of_cpu), "")
    yield Figure("... seconds, median", median(seconds), "s")
    yield Figure("... not granted, or owed afterwards", missed, "", 0)


def _ways(stack: ExitStack) -> Iterator[tuple[str, Burst, Burst, float]]:
    single, *servers = [stack.enter_context(RedisServer()) for _ in range(4)]
    etcd = stack.enter_context(EtcdServer())
    _, dsn, postgresql = stack.enter_context(bench_server())
    ports = [server.port for server in servers]
    one = f"{single.url}?restart_wait=0"
    quorum = "redis+quorum://" + ",".join(f"127.0.0.1:{port}" for port in ports) + "?restart_wait=0"
    yield (
        f"{_NAMES:,} names, Redis, asyncio",
        _named(f"redis.asyncio Lock on a pool of {_POOL}", _their_tasks, [single.port], _NAMES),
        partial(_our_tasks, one, _NAMES),
        1.0,
    )
    yield (
        f"{_THREADS} threads of {_EACH} names, Redis",
        _named(f"redis-py Lock on a pool of {_POOL}", _their_threads, single.port),
        partial(_our_threads, one),
        1.0,
    )
    yield (
        f"{_OF_A_QUORUM:,} names, quorum of 3, asyncio",
        _named("a redis.asyncio Lock on each server", _their_tasks, ports, _OF_A_QUORUM),
        partial(_our_tasks, quorum, _OF_A_QUORUM),
        1.0,
    )
    yield (
        f"{_OF_ETCD:,} names, etcd, asyncio",
        _named(f"as many bare requests on {_BARE} connections", _bare_requests, etcd.port),
        partial(_our_tasks, etcd.store_url(), _OF_ETCD),
        3.0,
    )
    yield (
        f"{_OF_POSTGRESQL:,} names, PostgreSQL, asyncio",
        _named("as many statements on psycopg's pool of 10", _bare_statements, dsn),
        partial(_our_tasks, postgresql, _OF_POSTGRESQL),
        3.0,
    )


def _named(name: str, burst: Callable[..., int], *given: Any) -> Burst:
    def work() -> int:
        return burst(*given)

    work.__doc__ = name
    return work


@contextmanager
def _busy() -> Iterator[None]:
    busy = [
        multiprocessing.Process(target=_burn, daemon=True)
        for _ in range(multiprocessing.cpu_count())
    ]
    for each in busy:
        each.start()
    try:
        yield
    finally:
        for each in busy:
            each.kill()


def _burn() -> None:
    while True:
        pass


# -- ours -----------------------------------------------------------------------------------------


def _our_tasks(url: str, count: int) -> int:
    async def main() -> int:
        client, run = AsyncClient(url), secrets.token_hex(4)

        async def one(at: int) -> None:
            async with client.lock(f"{run}-{at}", timeout=_PATIENCE):
                pass

        failed = await _together(one, count)
        owed = _owed(client)
        await client.aclose()
        return failed + owed

    return asyncio.run(main())


def _our_threads(url: str) -> int:
    with Client(url) as client:
        run = secrets.token_hex(4)

        def one(at: int) -> None:
            for name in range(_EACH):
                with client.lock(f"{run}-{at}-{name}", timeout=_PATIENCE):
                    pass

        return _in_threads(one) + _owed(client)


def _owed(client: Any) -> int:
    """Releases that the keeper has still to confirm, a second later."""
    owed, end = client._link.keeper._state.debts._owed, clock.now() + 1
    while owed and clock.now() < end:
        time.sleep(0.05)
    return len(owed)


async def _together(one: Callable[[int], Awaitable[None]], count: int) -> int:
    outcomes = await asyncio.gather(*map(one, range(count)), return_exceptions=True)
    return sum(isinstance(each, BaseException) for each in outcomes)


def _in_threads(one: Callable[[int], None]) -> int:
    ready = threading.Barrier(_THREADS)

    def work(at: int) -> None:
        ready.wait()
        one(at)

    with ThreadPoolExecutor(_THREADS) as pool:
        ends = [pool.submit(work, at) for at in range(_THREADS)]
        return sum(end.exception() is not None for end in ends)


# -- peers ----------------------------------------------------------------------------------------


def _their_tasks(ports: Sequence[int], count: int) -> int:
    async def main() -> int:
        pools = [
            redis.asyncio.BlockingConnectionPool(
                host="127.0.0.1", port=port, max_connections=_POOL, timeout=_PATIENCE
            )
            for port in ports
        ]
        clients = [redis.asyncio.Redis(connection_pool=pool) for pool in pools]
        run = secrets.token_hex(4)

        async def lock(client: Any, at: int) -> None:
            async with client.lock(f"{run}-{at}", timeout=15, blocking_timeout=_PATIENCE):
                pass

        async def one(at: int) -> None:
            await asyncio.gather(*(lock(client, at) for client in clients))

        failed = await _together(one, count)
        for pool in pools:
            await pool.aclose()
        return failed

    return asyncio.run(main())


def _their_threads(port: int) -> int:
    pool = redis.BlockingConnectionPool(  # type: ignore[no-untyped-call]
        host="127.0.0.1", port=port, max_connections=_POOL, timeout=_PATIENCE
    )
    run = secrets.token_hex(4)
    with redis.Redis(connection_pool=pool) as client:

        def one(at: int) -> None:
            for name in range(_EACH):
                with client.lock(f"{run}-{at}-{name}", timeout=15, blocking_timeout=_PATIENCE):
                    pass

        failed = _in_threads(one)
    pool.disconnect()
    return failed


def _bare_requests(port: int) -> int:
    """For each name the two transactions of a lock, and nothing else of it."""

    async def main() -> int:
        run, names = secrets.token_hex(4), iter(range(_OF_ETCD))

        async def connection(_: int) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for at in names:
                for body in (create(f"{run}-{at}", "0"), delete(f"{run}-{at}")):
                    writer.write(request("kv/txn", body))
                    head = (await reader.readuntil(b"\r\n\r\n")).lower()
                    length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
                    await reader.readexactly(int(length))
            writer.close()

        return await _together(connection, _BARE)

    return asyncio.run(main())


def _bare_statements(dsn: str) -> int:
    async def main() -> int:
        async with AsyncConnectionPool(dsn, min_size=0, max_size=10, timeout=_PATIENCE) as pool:

            async def one(at: int) -> None:
                for _ in range(2):
                    async with pool.connection() as connection:
                        await connection.execute("SELECT pg_advisory_xact_lock(%s)", (at,))

            return await _together(one, _OF_POSTGRESQL)

    return asyncio.run(main())
