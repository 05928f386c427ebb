"""Fifty threads in one line: none is late for its turn only if nothing else runs beside them."""

from __future__ import annotations

import secrets
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from incumbent import Client
from tests import tiers
from tests.support.arrivals import overtaken, watch_arrivals
from tests.support.servers import RedisServer

pytestmark = pytest.mark.crowd(tiers.MANY)


def test_of_fifty_fair_waiters_none_is_overtaken_more_than_twice_by_whoever_asked_later(
    redis_server: RedisServer,
) -> None:
    url, name = f"{redis_server.url}?restart_wait=0", f"line-{secrets.token_hex(4)}"
    clients = [Client(url) for _ in range(5)]

    def take_turns(index: int) -> None:
        # One of them is greedy.
        for _ in range(20 if index == 0 else 4):
            # A waiter that is silent in its turn for a third of its ttl loses its place. With a
            # long ttl, a waiter that a busy machine keeps does not.
            with clients[index % 5].lock(name, ttl=60, fair=True):
                pass
            time.sleep(0 if index == 0 else 0.001)

    with watch_arrivals(redis_server.port, name) as arrivals, ThreadPoolExecutor(50) as pool:
        list(pool.map(take_turns, range(50)))
    for client in clients:
        client.close()
    counts = overtaken(arrivals)
    assert len(counts) == 49 * 4 + 20
    assert max(counts.values()) <= 2
