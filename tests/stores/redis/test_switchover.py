"""An orderly switchover behind an address that stays, through which old connections live on.

Those who wait were subscribed to the old master, which is a replica now and hears all that the new
one publishes: as hints, and never as a lease.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest
import redis

from incumbent import AsyncClient, AsyncLease, Client, Lease, clock
from incumbent.errors import LeaseLost, NotAcquired
from tests import tiers
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.server, pytest.mark.timing(tiers.PROCESSES)]

TTL, HEARTBEAT = 3.0, 1.0
HAND_OVERS = 5


class Address:
    """Two servers and the address of the one that is the master."""

    def __init__(self, master: RedisServer, replica: RedisServer) -> None:
        self.master, self.replica = master, replica
        self.proxy = FaultProxy(master.port)

    @property
    def url(self) -> str:
        return f"{self.proxy.url}?restart_wait=0"

    def switch(self) -> None:
        """The replica has all, and becomes the master; nobody's connection is closed."""
        old, new = self.master, self.replica
        eventually(lambda: _offset(old) == _offset(new))
        new.cli("REPLICAOF", "NO", "ONE")
        old.cli("REPLICAOF", "127.0.0.1", str(new.port))
        self.proxy.target = ("127.0.0.1", new.port)
        eventually(lambda: "master_link_status:up" in old.cli("INFO", "replication"))
        self.master, self.replica = new, old

    def line(self, name: str) -> int:
        """How many wait at the master."""
        with redis.Redis(port=self.master.port) as raw:
            length = raw.zcard(f"incumbent:{{default/{name}}}:q")
        assert isinstance(length, int)
        return length

    def listeners(self) -> int:
        """How many processes and loops are subscribed at the master."""
        with redis.Redis(port=self.master.port) as raw:
            return len(raw.pubsub_channels("incumbent:to:*"))


def _offset(server: RedisServer) -> str:
    said = server.cli("INFO", "replication")
    return said.partition("master_repl_offset:")[2].split()[0]


@pytest.fixture
def address() -> Iterator[Address]:
    diskless = ["--repl-diskless-sync-delay", "0"]
    with RedisServer(diskless) as master, RedisServer(diskless) as replica:
        replica.cli("REPLICAOF", "127.0.0.1", str(master.port))
        eventually(lambda: "master_link_status:up" in replica.cli("INFO", "replication"))
        both = Address(master, replica)
        with both.proxy:
            yield both


@pytest.fixture
def name() -> str:
    return f"switch-{secrets.token_hex(4)}"


class Waiters:
    """One process's waiting, blocking: `wait` returns at once, the future has the lease."""

    def __init__(self, url: str) -> None:
        self._client = Client(url)
        self._pool = ThreadPoolExecutor(2)

    def wait(self, name: str) -> Future[Lease] | Future[AsyncLease]:
        return self._pool.submit(self._client.lock(name, ttl=TTL, timeout=20).acquire)

    def release(self, lease: Lease | AsyncLease) -> None:
        assert isinstance(lease, Lease)
        lease.release()

    def close(self) -> None:
        self._pool.shutdown()
        self._client.close()


class AsyncWaiters(Waiters):
    """The same in an event loop."""

    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._async = AsyncClient(url)

    def wait(self, name: str) -> Future[Lease] | Future[AsyncLease]:
        lock = self._async.lock(name, ttl=TTL, timeout=20)
        return asyncio.run_coroutine_threadsafe(lock.acquire(), self._loop)

    def release(self, lease: Lease | AsyncLease) -> None:
        assert isinstance(lease, AsyncLease)
        asyncio.run_coroutine_threadsafe(lease.release(), self._loop).result(30)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._async.aclose(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def waiters_of(kind: type[Waiters], url: str) -> Iterator[Waiters]:
    waiters = kind(url)
    try:
        yield waiters
    finally:
        waiters.close()


KINDS = pytest.mark.parametrize("kind", [Waiters, AsyncWaiters], ids=["sync", "async"])


def subscribe(
    waiters: Waiters, client: Client, address: Address, name: str, listeners: int = 1
) -> None:
    """Have them listen at the present master, as those do that have waited there once."""
    lease = client.lock(name, ttl=TTL).acquire()
    waiting = waiters.wait(name)
    eventually(lambda: address.listeners() == listeners)
    lease.release()
    waiters.release(waiting.result(10))


@pytest.mark.left(tiers.SIDES, "sync")
@KINDS
def test_what_a_waiter_hears_from_the_old_master_is_no_lease(
    address: Address, name: str, kind: type[Waiters]
) -> None:
    with ExitStack() as cleanup:
        pool = cleanup.enter_context(ThreadPoolExecutor(HAND_OVERS))
        client = cleanup.enter_context(Client(address.url))
        lines = []
        for at in range(HAND_OVERS):
            waiters = cleanup.enter_context(waiters_of(kind, address.url))
            lines.append((waiters, f"{name}-{at}"))
            subscribe(waiters, client, address, f"{name}-{at}", listeners=at + 1)
        address.switch()
        overlaps = list(pool.map(lambda line: _overlap(address, client, *line), lines))
    assert not any(overlaps), f"two held it in {sum(overlaps)} of {HAND_OVERS} hand-overs"


def _overlap(address: Address, client: Client, waiters: Waiters, name: str) -> bool:
    """Whether two believe to hold it after a hand-over at the new master."""
    lease = client.lock(name, ttl=TTL, timeout=20).acquire()
    waiting = waiters.wait(name)
    eventually(lambda: address.line(name) == 1)
    lease.release()
    found = False
    with suppress(NotAcquired):
        # Whoever asks first at the new master may have it.
        third = client.lock(name, ttl=TTL, timeout=0).acquire()
        until = clock.now() + HEARTBEAT / 2
        while not found and clock.now() < until:
            found = waiting.done() and waiting.result().valid and third.valid
            time.sleep(0.001)
        third.release()
    with suppress(LeaseLost):
        waiters.release(waiting.result(20))
    return found


@pytest.mark.left(tiers.SIDES, "async")
@KINDS
def test_after_a_switchover_waiters_listen_at_the_new_master(
    address: Address, name: str, kind: type[Waiters]
) -> None:
    with Client(address.url) as client, waiters_of(kind, address.url) as waiters:
        subscribe(waiters, client, address, name)
        address.switch()
        lease = client.lock(name, ttl=TTL, timeout=20).acquire()
        waiting = waiters.wait(name)
        eventually(lambda: address.line(name) == 1 and address.listeners() == 1)
        # There and back: the same server is another incarnation by then.
        lease.release()
        waiters.release(waiting.result(10))
        address.switch()
        lease = client.lock(name, ttl=TTL, timeout=20).acquire()
        waiting = waiters.wait(name)
        eventually(lambda: address.line(name) == 1 and address.listeners() == 1)
        lease.release()
        waiters.release(waiting.result(10))
