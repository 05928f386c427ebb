"""Those who wait on a real server: handed over in turn, by few commands, whoever dies meanwhile."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from incumbent import AsyncClient, Client, clock
from incumbent.errors import AcquireTimeout
from incumbent.stores.redis.sync import RedisStore
from incumbent.stores.waiting import subscription_losses
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

WAITS = """
import sys
from incumbent import Lock
with Lock(sys.argv[2], store=sys.argv[1], ttl=float(sys.argv[3])) as lease:
    print("got", flush=True)
    lease.wait_lost()
"""

BEFORE = "return redis.call('ZADD', KEYS[1], 1, redis.call('ZRANGE', KEYS[1], 0, 0)[1])"
"""The first in line has been there for ever."""


@pytest.fixture
def name() -> str:
    return f"line-{secrets.token_hex(4)}"


@pytest.fixture
def url(redis_server: RedisServer) -> str:
    return f"{redis_server.url}?restart_wait=0"


@pytest.fixture
def raw(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=redis_server.port, socket_timeout=None) as client:
        yield client


@contextmanager
def another_process(url: str, name: str, ttl: float = 15) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS, url, name, str(ttl)], stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(raw: redis.Redis, name: str) -> int:
    length = raw.zcard(f"incumbent:{{default/{name}}}:q")
    assert isinstance(length, int)
    return length


def inboxes(raw: redis.Redis) -> int:
    return len(raw.pubsub_channels("incumbent:to:*"))


def got(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "got\n"


def test_a_fair_line_of_threads_is_served_in_order_by_one_connection(
    url: str, name: str, raw: redis.Redis
) -> None:
    order: list[int] = []

    def wait(index: int) -> None:
        with client.lock(name, fair=True):
            order.append(index)

    with Client(url) as client, ThreadPoolExecutor(6) as pool:
        before = inboxes(raw)
        lease = client.lock(name).acquire()
        waiting = []
        for index in range(6):
            waiting.append(pool.submit(wait, index))
            eventually(lambda at=index + 1: line(raw, name) == at)  # type: ignore[misc]
        eventually(lambda: inboxes(raw) > before)
        assert inboxes(raw) == before + 1
        lease.release()
        for each in waiting:
            each.result(5)
    assert order == list(range(6))
    assert line(raw, name) == 0


def test_a_fair_line_of_tasks_is_served_in_order_by_one_connection(
    url: str, name: str, raw: redis.Redis
) -> None:
    order: list[int] = []

    async def main() -> None:
        async with AsyncClient(url) as client:
            before = inboxes(raw)
            lease = await client.lock(name).acquire()

            async def wait(index: int) -> None:
                async with client.lock(name, fair=True):
                    order.append(index)

            async with asyncio.TaskGroup() as group:
                for index in range(20):
                    group.create_task(wait(index))
                while line(raw, name) < 20 or inboxes(raw) == before:
                    await asyncio.sleep(0.01)
                assert inboxes(raw) == before + 1
                await lease.release()

    asyncio.run(main())
    assert order == list(range(20))
    assert line(raw, name) == 0


def test_a_hand_over_takes_no_command_beyond_the_request_and_the_release(
    url: str, name: str, raw: redis.Redis
) -> None:
    turns = 20
    asked: list[str] = []

    def take_turns() -> None:
        for _ in range(turns):
            with client.lock(name, fair=True):
                time.sleep(0.002)

    watch: Any = raw.monitor  # redis-py does not say what it returns
    with Client(url) as client, watch() as monitor, ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: take_turns(), range(4)))
        raw.echo(name)
        for command in monitor.listen():
            if name in command["command"] and command["client_type"] != "lua":
                asked.append(command["command"])
                if command["command"].startswith("ECHO"):
                    break
    # What each process needs once, and its first requests, which find nobody to listen.
    assert len(asked) <= 2 * 4 * turns + 12


def test_one_that_was_killed_while_it_was_first_is_not_waited_for(
    url: str, name: str, raw: redis.Redis
) -> None:
    with Client(url) as client, ThreadPoolExecutor(1) as pool:
        lease = client.lock(name).acquire()
        with another_process(url, name) as first:
            eventually(lambda: line(raw, name) == 1)
            before = inboxes(raw)
            waiting = pool.submit(client.lock(name, timeout=10, fair=True).acquire)
            eventually(lambda: line(raw, name) == 2)
            eventually(lambda: inboxes(raw) > before)
            first.kill()
            first.wait()
            began = clock.now()
            # Its place is new: for as long as its heartbeat it might only be about to listen.
            raw.eval(BEFORE, 1, f"incumbent:{{default/{name}}}:q")
            lease.release()
            waiting.result(10).release()
        assert clock.now() - began < 1.0


def test_one_that_is_frozen_while_it_was_first_costs_one_ttl(
    url: str, name: str, raw: redis.Redis
) -> None:
    with Client(url) as client, ThreadPoolExecutor(1) as pool:
        lease = client.lock(name, ttl=1).acquire()
        with another_process(url, name, ttl=1) as first:
            eventually(lambda: line(raw, name) == 1)
            time.sleep(0.05)
            os.kill(first.pid, signal.SIGSTOP)
            waiting = pool.submit(client.lock(name, ttl=1, timeout=10, fair=True).acquire)
            eventually(lambda: line(raw, name) == 2)
            began = clock.now()
            lease.release()
            waiting.result(10).release()
            assert clock.now() - began < 1.6


def test_when_the_holder_dies_the_first_in_line_comes_as_soon_as_the_ttl_ran_out(
    url: str, name: str, raw: redis.Redis
) -> None:
    with Client(url) as client, another_process(url, name, ttl=1) as holder:
        got(holder)
        with ThreadPoolExecutor(2) as pool:
            acquire = client.lock(name, ttl=1, timeout=10).acquire
            waiting = [pool.submit(acquire) for _ in range(2)]
            eventually(lambda: line(raw, name) == 2)
            holder.kill()
            left = raw.pttl(f"incumbent:{{default/{name}}}")
            assert isinstance(left, int)
            over = clock.now() + left / 1000
            while not any(it.done() for it in waiting):
                time.sleep(0.001)
            # The delay itself is a figure of the benchmarks; one that looked at its own pace came
            # up to a ttl later.
            assert clock.now() - over < 0.5
            for each in waiting:
                if each.done():
                    each.result().release()
            for each in waiting:
                lease = each.result(5)
                if lease.valid:
                    lease.release()


def test_who_gives_up_leaves_the_line(url: str, name: str, raw: redis.Redis) -> None:
    with Client(url) as client:
        with client.lock(name):
            with pytest.raises(AcquireTimeout):
                client.lock(name, timeout=0.2, fair=True).acquire()
            eventually(lambda: line(raw, name) == 0)
        with client.lock(name, timeout=0):
            pass


def test_a_cancelled_task_leaves_the_line(url: str, name: str, raw: redis.Redis) -> None:
    async def main() -> None:
        async with AsyncClient(url) as client, client.lock(name):
            waiting = asyncio.create_task(client.lock(name).acquire())
            while line(raw, name) < 1:
                await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            while line(raw, name) > 0:
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_greedy_one_gets_it_once_in_a_row(url: str, name: str, raw: redis.Redis) -> None:
    order: list[str] = []
    over = threading.Event()

    def greedy() -> None:
        while not over.is_set():
            with client.lock(name):
                order.append("greedy")

    def modest() -> None:
        for _ in range(10):
            with client.lock(name):
                order.append("modest")

    with Client(url) as client, ThreadPoolExecutor(3) as pool:
        running = pool.submit(greedy)
        list(pool.map(lambda _: modest(), range(2)))
        over.set()
        running.result(5)
    first, last = order.index("modest"), len(order) - order[::-1].index("modest")
    runs = "".join(it[0] for it in order[first:last]).split("m")
    assert sorted(map(len, runs))[len(runs) // 2] <= 1
    assert max(map(len, runs)) <= 9


def test_what_a_server_out_of_memory_hands_over_is_written(
    url: str, name: str, raw: redis.Redis
) -> None:
    with Client(url) as client, ThreadPoolExecutor(1) as pool:
        lease = client.lock(name).acquire()
        waiting = pool.submit(client.lock(name, timeout=10).acquire)
        eventually(lambda: line(raw, name) == 1)
        time.sleep(0.05)
        raw.config_set("maxmemory", "1")
        try:
            lease.release()
            with waiting.result(10) as handed:
                value = raw.get(f"incumbent:{{default/{name}}}")
                assert isinstance(value, bytes)
                assert b" %d " % handed.fencing_token in value
        finally:
            raw.config_set("maxmemory", "0")


def test_a_paused_name_is_not_handed_over(url: str, name: str, raw: redis.Redis) -> None:
    with Client(url) as client, ThreadPoolExecutor(1) as pool:
        lock = client.lock(name)
        lease = lock.acquire()
        waiting = pool.submit(client.lock(name, timeout=10).acquire)
        eventually(lambda: line(raw, name) == 1)
        store, key = lock._link.store, lock._wanted.key
        store.put(key, "pause", b"{}", None, clock.now() + 1)
        lease.release()
        time.sleep(0.1)
        assert not waiting.done()
        store.put(key, "pause", None, None, clock.now() + 1)
        assert waiting.result(2).release()


def test_the_token_grows_over_hand_overs(url: str, name: str) -> None:
    tokens: list[int] = []

    def turns() -> None:
        for _ in range(20):
            with client.lock(name) as lease:
                tokens.append(lease.fencing_token)

    with Client(url) as client, ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: turns(), range(3)))
        record = client.read(name)
    assert tokens == sorted(set(tokens))
    assert [it.token for it in record.history] == tokens[-len(record.history) :]
    assert all(it.ended is not None for it in record.history)


def test_a_lost_subscription_is_counted_said_and_replaced(
    url: str, name: str, raw: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    with Client(url) as client, ThreadPoolExecutor(1) as pool:
        lock = client.lock(name)
        lease = lock.acquire()
        waiting = pool.submit(client.lock(name, timeout=10).acquire)
        eventually(lambda: line(raw, name) == 1)
        store = lock._link.store
        assert isinstance(store, RedisStore)
        hub = store._exchange.hub
        eventually(lambda: hub._seat.hearing is not None)
        before = subscription_losses()
        raw.client_kill_filter(_type="pubsub")
        eventually(lambda: hub.losses == 1)
        assert subscription_losses() == before + 1
        eventually(lambda: "the subscription was lost" in caplog.text)
        eventually(lambda: hub._seat.hearing is not None)
        time.sleep(0.05)
        began = clock.now()
        lease.release()
        waiting.result(5).release()
        assert clock.now() - began < 1.0
