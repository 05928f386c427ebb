"""Hundreds of free names at once, from a process that has no connection yet.

FAILURES 106: the time of each request began before it was written, so that all were late, asked
again, and owed a release.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import incumbent
from tests import tiers
from tests.stores.mysql import world as mysql
from tests.stores.postgresql.world import new_database
from tests.support.proxy import FaultProxy, ProxiedLink
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

NAMES = 300
THREADS, EACH = 100, 2
PATIENCE = 60.0
TTL = 15.0
A_STEP = 1.5
"""Seconds of one step of the event loop: longer than the answer to a request may take."""


class CountingProxy(FaultProxy):
    """Knows how many connections there were at a time at most."""

    most = 0

    def sent(self, link: ProxiedLink, chunk: bytes) -> None:
        self.most = max(self.most, self.live)


@dataclass
class Behind:
    """A store behind proxies, and the most connections to each that a burst may have at a time."""

    url: str
    proxies: list[CountingProxy]
    of_tasks: int
    of_threads: int

    def most(self) -> int:
        return max((proxy.most for proxy in self.proxies), default=0)


# Takes and gives have their places, and the keeper one more. A connection whose answer was late is
# replaced, and is there a little longer on a busy machine.
MOST = {
    "redis": (4, 80),
    "quorum": (4, 80),
    "etcd": (140, 80),
    "postgresql": (16, 16),
    "mysql": (16, 16),
}


@pytest.fixture(
    params=[
        *("redis", "quorum", "etcd", "postgresql", "sqlite"),
        pytest.param("mysql", marks=pytest.mark.full),
    ]
)
def behind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Behind]:
    with ExitStack() as ends:
        match request.param:
            case "sqlite":
                yield Behind(f"sqlite://{tmp_path}/leases.db", [], 0, 0)
                return
            case "etcd":
                ports = [request.getfixturevalue("etcd_server").port]
                url = f"etcd://{{}}/bursts-{tmp_path.name}?restart_wait=0"
            case "postgresql":
                server = request.getfixturevalue("postgres_server")
                ports = [server.port]
                url = server.url_of(new_database(server)).replace(f"127.0.0.1:{server.port}", "{}")
            case "mysql":
                maria = request.getfixturevalue("maria_server")
                ports = [maria.port]
                url = maria.url_of(mysql.new_database(maria)).replace(
                    f"127.0.0.1:{maria.port}", "{}"
                )
                url += "?restart_wait=0"
            case "redis":
                ports = [request.getfixturevalue("own_redis").port]
                url = "redis://{}?restart_wait=0"
            case _:
                ports = [ends.enter_context(RedisServer()).port for _ in range(3)]
                url = "redis+quorum://{},{},{}?restart_wait=0"
        proxies = [ends.enter_context(CountingProxy(port)) for port in ports]
        places = [f"127.0.0.1:{proxy.port}" for proxy in proxies]
        yield Behind(url.format(*places), proxies, *MOST[request.param])


def owes_nothing(client: Any) -> None:
    """Every release that is still owed is confirmed soon; as a rule there is none."""
    eventually(lambda: not client._link.keeper._state.debts._owed)


@pytest.mark.left(tiers.STORES, "redis", "sqlite")
def test_all_tasks_are_granted_over_few_connections(behind: Behind) -> None:
    async def main() -> None:
        async with incumbent.AsyncClient(behind.url, ttl=TTL) as client:

            async def one(at: int) -> None:
                async with client.lock(f"n{at}", timeout=PATIENCE):
                    pass

            tasks = [asyncio.create_task(one(at)) for at in range(NAMES)]
            # All have begun to ask, and then nothing runs here for a while.
            asyncio.get_running_loop().call_soon(time.sleep, A_STEP)
            await asyncio.gather(*tasks)
            owes_nothing(client)

    asyncio.run(main())
    assert behind.most() <= behind.of_tasks


@pytest.mark.left(tiers.STORES, "redis", "postgresql")
def test_all_threads_are_granted_over_few_connections(behind: Behind) -> None:
    ready = threading.Barrier(THREADS)
    with incumbent.Client(behind.url, ttl=TTL) as client, ThreadPoolExecutor(THREADS) as pool:

        def work(at: int) -> None:
            ready.wait()
            for name in range(EACH):
                with client.lock(f"n{at}-{name}", timeout=PATIENCE):
                    pass

        for done in [pool.submit(work, at) for at in range(THREADS)]:
            done.result()
        owes_nothing(client)
    assert behind.most() <= behind.of_threads
