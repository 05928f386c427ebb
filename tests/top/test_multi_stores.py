"""Locks on several names on real stores: never two at a time, never a deadlock, few requests."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import redis

import incumbent
from incumbent import AsyncClient, AsyncMultiLock, Client, Lock, MultiLock, NotAcquired
from incumbent.stores.sqlite.file import SqliteFile
from tests import tiers
from tests.support.proxy import FaultProxy, requests_sent
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

ROUNDS = 25

# Whoever is inside has the file; an overlap makes os.open raise.
WORK = f"""
import os, sys
from incumbent import MultiLock
url, inside, *names = sys.argv[1:]
lock = MultiLock(names, store=url, timeout=30)
for _ in range({ROUNDS}):
    with lock as lease:
        os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
        lease.check()
        os.unlink(inside)
"""


def held(client: Client) -> list[str]:
    return sorted(found.key.name for found in client.scan() if found.holdings)


@pytest.mark.left(tiers.STORES, "memory", "redis")
def test_all_names_are_held_or_none_is(every_store: str) -> None:
    with Client(every_store) as client:
        with client.multi_lock(["b", "a", "c"], timeout=5) as first:
            assert held(client) == ["a", "b", "c"]
            assert first.renew() > 10
        assert held(client) == []
        tokens = first.tokens
        other = client.lock("b", holder="other").acquire()
        assert other.fencing_token > tokens["b"]
        lock = client.multi_lock(["c", "b", "a"])
        with pytest.raises(NotAcquired, match="'b' is held by other"):
            lock.acquire(0)
        with pytest.raises(incumbent.AcquireTimeout, match="'b'"):
            lock.acquire(2)
        eventually(lambda: held(client) == ["b"])
        other.release()
        with lock as lease:
            assert all(lease.tokens[name] > tokens[name] for name in "abc")


@pytest.mark.left(tiers.STORES, "memory", "sqlite", "redis", "etcd", "postgresql", "mysql")
def test_a_waiter_gets_all_of_them_when_the_last_is_free(every_store: str) -> None:
    with Client(every_store) as client:
        other = client.lock("b").acquire()
        got: list[Any] = []
        waiter = threading.Thread(
            target=lambda: got.append(client.multi_lock(["b", "a"]).acquire(20))
        )
        waiter.start()
        eventually(lambda: "a" in held(client))
        other.release()
        waiter.join(20)
        assert held(client) == ["a", "b"]
        assert got[0].release()


@pytest.mark.left(tiers.STORES, "memory", "sqlite", "redis", "etcd", "postgresql", "mysql")
def test_while_it_waits_for_a_name_those_behind_it_are_left_to_others(every_store: str) -> None:
    with Client(every_store) as client:
        other = client.lock("b").acquire()
        got: list[Any] = []
        lock = client.multi_lock(["a", "b", "c"])
        waiter = threading.Thread(target=lambda: got.append(lock.acquire(20)))
        waiter.start()
        eventually(lambda: held(client) == ["a", "b"])
        for _ in range(3):
            assert client.lock("c", timeout=1).acquire().release()
        other.release()
        waiter.join(20)
        assert held(client) == ["a", "b", "c"]
        assert got[0].release()


@pytest.mark.left(tiers.STORES, "sqlite", "etcd")
def test_two_processes_that_name_them_in_another_order_neither_overlap_nor_deadlock(
    every_store: str, tmp_path: Path
) -> None:
    if every_store.startswith("memory:"):
        threads = [
            threading.Thread(target=cross, args=(every_store, names))
            for names in (["a", "b"], ["b", "a"])
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        return
    inside = str(tmp_path / "inside")
    command = [sys.executable, "-c", WORK, every_store, inside]
    workers = [subprocess.Popen([*command, *names]) for names in (("a", "b"), ("b", "a", "c"))]
    assert [worker.wait(120) for worker in workers] == [0, 0]


_inside = threading.Semaphore(1)


def cross(every_store: str, names: list[str]) -> None:
    lock = MultiLock(names, store=every_store, timeout=30)
    for _ in range(ROUNDS):
        with lock:
            assert _inside.acquire(blocking=False)
            _inside.release()


@pytest.mark.left(tiers.STORES, "memory", "sqlite", "redis", "etcd", "postgresql", "mysql")
def test_tasks_of_one_loop_never_overlap(every_store: str) -> None:
    inside = 0

    async def work(client: AsyncClient, names: list[str]) -> None:
        nonlocal inside
        for _ in range(5):
            async with client.multi_lock(names, timeout=30) as lease:
                inside += 1
                assert inside == 1
                await asyncio.sleep(0)
                lease.check()
                inside -= 1

    async def scenario() -> None:
        async with AsyncClient(every_store) as client, asyncio.TaskGroup() as tasks:
            for names in (["a", "b"], ["b", "a"], ["c", "b"]):
                tasks.create_task(work(client, names))

    asyncio.run(scenario())


@pytest.mark.server
def test_redis_is_asked_once_for_all_names_and_once_to_give_them_back(
    redis_server: RedisServer,
) -> None:
    with FaultProxy(redis_server.port) as proxy:
        namespace = "multi-count"
        with Client(proxy.url, namespace=namespace) as client:
            lock = client.multi_lock(["a", "b"], timeout=5)
            with lock:
                pass
            with requests_sent() as sent, lock:
                assert len(sent) == 1
                assert held(Client(redis_server.url, namespace=namespace)) == ["a", "b"]
            assert len(sent) == 2

        async def scenario() -> None:
            async with AsyncClient(proxy.url, namespace=namespace) as client:
                lock = client.multi_lock(["a", "b"], timeout=5)
                async with lock:
                    pass
                with requests_sent() as sent:
                    async with lock:
                        assert len(sent) == 1
                    assert len(sent) == 2

        asyncio.run(scenario())


@pytest.mark.server
def test_a_server_that_forgot_its_scripts_is_sent_them_again(own_redis: RedisServer) -> None:
    lock = MultiLock(["a", "b", "c"], store=f"{own_redis.url}?restart_wait=0", timeout=5)
    with redis.Redis(port=own_redis.port) as raw:
        for _ in range(3):
            raw.script_flush()
            with lock as lease:
                assert len(lease.tokens) == 3
                raw.script_flush()


@pytest.mark.server
def test_a_server_that_was_restarted_is_met_anew(own_redis: RedisServer) -> None:
    url = f"{own_redis.url}?restart_wait=0"

    async def scenario() -> None:
        async with AsyncClient(url) as client:
            for _ in range(3):
                async with client.multi_lock(["a", "b"], timeout=10) as lease:
                    lease.check()
                own_redis.restart()

    with Client(url) as client:
        for _ in range(3):
            with client.multi_lock(["a", "b"], timeout=10) as lease:
                lease.check()
            own_redis.restart()
    asyncio.run(scenario())


@pytest.mark.server
def test_a_name_that_lies_there_for_somebody_else_is_an_error_of_all(
    own_redis: RedisServer,
) -> None:
    with (
        redis.Redis(port=own_redis.port) as raw,
        Client(f"{own_redis.url}?restart_wait=0") as client,
    ):
        raw.rpush("incumbent:{default/b}", "a list")
        with pytest.raises(incumbent.StoreError):
            client.multi_lock(["a", "b", "c"], timeout=5).acquire()
        eventually(lambda: client.read("a").holdings == client.read("c").holdings == ())


@pytest.mark.server
def test_a_reply_that_is_lost_leaves_none_of_them_held(
    own_redis: RedisServer, proxy: FaultProxy
) -> None:
    with Client(f"{proxy.url}?restart_wait=0", ttl="5s") as client:
        lock = client.multi_lock(["a", "b"])
        with lock:
            pass
        proxy.drop_replies()
        with pytest.raises(incumbent.StoreError):
            lock.acquire(0)
        proxy.heal()
        with Client(f"{own_redis.url}?restart_wait=0") as direct:
            eventually(lambda: held(direct) == [])


@pytest.mark.server
def test_a_release_whose_reply_is_lost_stays_owed(
    own_redis: RedisServer, proxy: FaultProxy
) -> None:
    with Client(f"{proxy.url}?restart_wait=0", ttl="5s") as client:
        lease = client.multi_lock(["a", "b"]).acquire()
        proxy.drop_requests()
        assert not lease.release()
        proxy.heal()
        with Client(f"{own_redis.url}?restart_wait=0") as direct:
            eventually(lambda: held(direct) == [])


def test_sqlite_needs_one_transaction_each_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, begun = f"sqlite:///{tmp_path}/leases.db", []
    lock = MultiLock(["a", "b", "c"], store=url, timeout=5)
    with lock:
        pass
    transact = SqliteFile.transact

    def counted(self: Any, *args: Any, **more: Any) -> Any:
        begun.append(args)
        return transact(self, *args, **more)

    monkeypatch.setattr(SqliteFile, "transact", counted)
    with lock:
        assert len(begun) == 1
    assert len(begun) == 2


def test_the_asyncio_side_of_sqlite_takes_them_in_one_go_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        url = f"sqlite:///{tmp_path}/leases.db"
        async with AsyncMultiLock(["a", "b"], store=url, timeout=5) as lease:
            assert Lock("a", store=url).try_acquire() is None
            lease.check()

    asyncio.run(scenario())
