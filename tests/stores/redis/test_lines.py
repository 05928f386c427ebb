"""Those who wait on a real server: in turn, by few commands, whoever dies or freezes meanwhile."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from math import inf
from typing import Any

import pytest
import redis

from incumbent import AsyncClient, Client, Lock, Policy, clock
from incumbent.errors import AcquireTimeout, NotAcquired
from incumbent.net.subscriptions import subscription_losses
from incumbent.stores.redis.sync import RedisStore
from tests import tiers
from tests.support.pace import lasted, took
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

WAITS = """
import sys
from incumbent import Lock, clock
url, name, ttl, fair = sys.argv[1:]
with Lock(name, store=url, ttl=float(ttl), fair=fair == "True") as lease:
    print("got", lease.fencing_token, clock.now(), flush=True)
    lease.wait_lost()
"""

AWAITS = """
import asyncio, sys
from incumbent import AsyncLock, clock
url, name, ttl, fair = sys.argv[1:]
async def main():
    async with AsyncLock(name, store=url, ttl=float(ttl), fair=fair == "True") as lease:
        print("got", lease.fencing_token, clock.now(), flush=True)
        await lease.wait_lost()
asyncio.run(main())
"""

CROWD = """
import sys, threading
from incumbent import Client
url, name, ttl, fair = sys.argv[1:]
client = Client(url)
def wait():
    with client.lock(name, ttl=float(ttl), fair=fair == "True") as lease:
        lease.wait_lost()
threads = [threading.Thread(target=wait) for _ in range({places})]
for each in threads:
    each.start()
"""

BRIEFLY = """
import sys, time
from incumbent import Lock, clock
url, name, ttl, fair = sys.argv[1:]
with Lock(name, store=url, ttl=float(ttl), fair=fair == "True") as lease:
    print("got", lease.fencing_token, clock.now(), flush=True)
    time.sleep(0.5)
"""

TTL, HEARTBEAT = 9.0, 3.0
LATE = 2.5
"""A busy machine may be so late, and a second heartbeat would be later."""

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
def another_process(
    url: str, name: str, ttl: float = 15, *, program: str = WAITS, fair: bool = False
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", program, url, name, str(ttl), str(fair)],
        stdout=subprocess.PIPE,
        text=True,
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


def inboxes(raw: redis.Redis, name: str) -> set[str]:
    """Those of all in line."""
    waiters: Any = raw.zrange(f"incumbent:{{default/{name}}}:q", 0, -1)
    return {it.decode().split()[1] for it in waiters}


def hears(raw: redis.Redis, name: str) -> bool:
    """Whether all in line are subscribed: asked of the server, for it may not know it yet."""
    channels: Any = raw.pubsub_channels("incumbent:to:*")
    return inboxes(raw, name) <= {it.decode().rpartition(":")[2] for it in channels}


def listeners(raw: redis.Redis, name: str) -> int:
    """The number of connections that listen to the inboxes of all in line."""
    found: Any = raw.pubsub_numsub(*(f"incumbent:to:{it}" for it in inboxes(raw, name)))
    return sum(count for _, count in found)


def sleeps(lock: Lock) -> bool:
    """Whether somebody in this process waits, and will not ask once more before it is told."""
    store = lock._link.store
    assert isinstance(store, RedisStore)
    hub = store.operations.hub
    subscription = hub._role.subscriptions[0]
    # 0 until the server has confirmed it.
    since = (subscription and subscription.since) or inf
    return any(it.listens and it.place and it.place.at > since for it in list(hub._waiters))


def got(process: subprocess.Popen[str]) -> tuple[int, float]:
    """Its token, and when it began to believe."""
    assert process.stdout is not None
    word, token, at = process.stdout.readline().split()
    assert word == "got"
    return int(token), float(at)


def test_a_fair_line_of_threads_is_served_in_order_by_one_connection(
    url: str, name: str, raw: redis.Redis
) -> None:
    order: list[int] = []

    def wait(index: int) -> None:
        with client.lock(name, fair=True):
            order.append(index)

    with Client(url) as client, ThreadPoolExecutor(6) as pool:
        lease = client.lock(name).acquire()
        waiting = []
        for index in range(6):
            waiting.append(pool.submit(wait, index))
            eventually(lambda at=index + 1: line(raw, name) == at)  # type: ignore[misc]
        eventually(lambda: hears(raw, name))
        assert len(inboxes(raw, name)) == 1
        assert listeners(raw, name) == 1
        lease.release()
        for each in waiting:
            each.result(20)
    assert order == list(range(6))
    assert line(raw, name) == 0


def test_a_fair_line_of_tasks_is_served_in_order_by_one_connection(
    url: str, name: str, raw: redis.Redis
) -> None:
    order: list[int] = []

    async def main() -> None:
        async with AsyncClient(url) as client:
            lease = await client.lock(name).acquire()

            async def wait(index: int) -> None:
                async with client.lock(name, fair=True):
                    order.append(index)

            async with asyncio.TaskGroup() as group:
                for index in range(20):
                    group.create_task(wait(index))
                while line(raw, name) < 20 or not hears(raw, name):
                    await asyncio.sleep(0.01)
                assert len(inboxes(raw, name)) == 1
                assert listeners(raw, name) == 1
                await lease.release()

    asyncio.run(main())
    assert order == list(range(20))
    assert line(raw, name) == 0


def test_a_hand_over_takes_three_requests(url: str, name: str, raw: redis.Redis) -> None:
    turns = 20
    asked: list[str] = []

    def take_turns() -> None:
        for _ in range(turns):
            # Nothing is asked twice because a busy machine answers late.
            with client.lock(name, fair=True, policy=patient):
                time.sleep(0.002)

    patient = Policy(60, request_timeout=10)
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
    assert len(asked) <= 3 * 4 * turns + 12


def test_in_a_busy_line_nobody_is_told_but_those_whose_turn_comes(
    url: str, name: str, raw: redis.Redis
) -> None:
    waiters, turns = 12, 10

    def take_turns() -> None:
        for _ in range(turns):
            with client.lock(name):
                pass

    def published() -> int:
        return int(raw.info("commandstats").get("cmdstat_publish", {"calls": 0})["calls"])

    with Client(url) as client, ThreadPoolExecutor(waiters) as pool:
        before = published()
        list(pool.map(lambda _: take_turns(), range(waiters)))
        # For those who look on, and for the one whose turn it is. The rest is for who watches.
        assert published() - before <= 3 * waiters * turns


def test_one_that_was_killed_while_it_was_first_is_not_waited_for(
    url: str, name: str, raw: redis.Redis
) -> None:
    with Client(url) as client, ThreadPoolExecutor(1) as pool:
        lease = client.lock(name).acquire()
        with another_process(url, name) as first:
            eventually(lambda: line(raw, name) == 1)
            waiting = pool.submit(client.lock(name, timeout=10, fair=True).acquire)
            eventually(lambda: line(raw, name) == 2 and hears(raw, name))
            first.kill()
            first.wait()
            began = clock.now()
            # Its place is new: for as long as its heartbeat it might only be about to listen.
            raw.eval(BEFORE, 1, f"incumbent:{{default/{name}}}:q")
            lease.release()
            waiting.result(10).release()
        # A heartbeat of this ttl is five seconds.
        assert took(began) < 3.0


@pytest.mark.left(tiers.SIDES, "sync-default", "async-fair")
@pytest.mark.parametrize("fair", [True, False], ids=["fair", "default"])
@pytest.mark.parametrize("program", [WAITS, AWAITS], ids=["sync", "async"])
def test_one_that_is_frozen_when_its_turn_comes_costs_its_heartbeat_and_believes_nothing(
    url: str, name: str, raw: redis.Redis, program: str, fair: bool
) -> None:
    with Client(url) as client, ThreadPoolExecutor(1) as pool:
        lock = client.lock(name, ttl=TTL, timeout=10, fair=fair)
        lease = lock.acquire()
        with another_process(url, name, TTL, program=program, fair=fair) as first:
            eventually(lambda: line(raw, name) == 1)
            eventually(lambda: hears(raw, name))
            os.kill(first.pid, signal.SIGSTOP)
            waiting = pool.submit(lock.acquire)
            eventually(lambda: line(raw, name) == 2 and sleeps(lock))
            began = clock.now()
            lease.release()
            with waiting.result(10) as second:
                assert lasted(began, HEARTBEAT * 0.9, HEARTBEAT + LATE)
                os.kill(first.pid, signal.SIGCONT)
                eventually(lambda: line(raw, name) == 1)
                ended = clock.now()
            token, at = got(first)
            assert token > second.fencing_token
            assert at > ended


@pytest.mark.left(tiers.SIDES, "1-3-default", "2-1-fair")
@pytest.mark.parametrize("fair", [True, False], ids=["fair", "default"])
@pytest.mark.parametrize(("processes", "places"), [(1, 3), (2, 1), (3, 1)])
def test_frozen_processes_ahead_cost_one_heartbeat_together_however_many_places_they_have(
    url: str, name: str, raw: redis.Redis, processes: int, places: int, fair: bool
) -> None:
    with Client(url) as client, ThreadPoolExecutor(1) as pool, ExitStack() as frozen:
        lock = client.lock(name, ttl=TTL, timeout=20, fair=fair)
        lease = lock.acquire()
        ahead = []
        for count in range(1, processes + 1):
            crowd = CROWD.format(places=places)
            each = frozen.enter_context(another_process(url, name, TTL, program=crowd, fair=fair))
            eventually(lambda at=count: line(raw, name) == places * at)  # type: ignore[misc]
            eventually(lambda: hears(raw, name))
            ahead.append(each.pid)
        # Only now: the first would be dropped while a slow machine starts the others.
        for pid in ahead:
            os.kill(pid, signal.SIGSTOP)
        waiting = pool.submit(lock.acquire)
        eventually(lambda: line(raw, name) == processes * places + 1 and sleeps(lock))
        began = clock.now()
        lease.release()
        with waiting.result(20):
            assert lasted(began, HEARTBEAT * 0.9, HEARTBEAT + LATE)


def test_a_frozen_process_costs_one_heartbeat_also_where_the_last_in_line_is_frozen(
    url: str, name: str, raw: redis.Redis
) -> None:
    with Client(url) as client, ThreadPoolExecutor(1) as pool, ExitStack() as frozen:

        def freeze_one(place: int) -> None:
            process = frozen.enter_context(another_process(url, name, TTL, fair=True))
            eventually(lambda: line(raw, name) == place + 1 and hears(raw, name))
            os.kill(process.pid, signal.SIGSTOP)

        lock = client.lock(name, ttl=TTL, timeout=20, fair=True)
        lease = lock.acquire()
        freeze_one(0)
        waiting = pool.submit(lock.acquire)
        eventually(lambda: line(raw, name) == 2 and sleeps(lock))
        freeze_one(2)
        began = clock.now()
        lease.release()
        with waiting.result(20):
            assert lasted(began, HEARTBEAT * 0.9, HEARTBEAT + LATE)


def test_one_that_looked_too_early_looks_again_when_the_turn_of_a_frozen_one_is_over(
    url: str, name: str, raw: redis.Redis
) -> None:
    with ExitStack() as others, Client(url) as client, ThreadPoolExecutor(1) as pool:
        lock = client.lock(name, ttl=TTL, timeout=20, fair=True)
        lease = lock.acquire()
        waiters = []
        for program in (BRIEFLY, WAITS):
            process = another_process(url, name, TTL, program=program, fair=True)
            waiters.append(others.enter_context(process))
            eventually(lambda: line(raw, name) == len(waiters) and hears(raw, name))
        os.kill(waiters[1].pid, signal.SIGSTOP)
        waiting = pool.submit(lock.acquire)
        eventually(lambda: line(raw, name) == 3 and sleeps(lock))
        lease.release()
        # It holds the lease for half a second, and until then we were told to look.
        _, at = got(waiters[0])
        with waiting.result(20):
            assert lasted(at + 0.5, HEARTBEAT * 0.9, HEARTBEAT + LATE)


def test_when_a_holder_dies_after_some_hand_overs_the_next_one_comes_as_soon_as_the_ttl_ran_out(
    url: str, name: str, raw: redis.Redis
) -> None:
    with ExitStack() as others, Client(url) as client:
        lease = client.lock(name, ttl=TTL).acquire()
        waiters = []
        for program in (BRIEFLY, WAITS, WAITS, WAITS):
            process = another_process(url, name, TTL, program=program, fair=True)
            waiters.append(others.enter_context(process))
            eventually(lambda: line(raw, name) == len(waiters) and hears(raw, name))
        lease.release()
        got(waiters[0])
        _, at = got(waiters[1])
        waiters[1].kill()
        got(waiters[2])
        assert lasted(at, TTL - 0.1, TTL + LATE), took(at)


def test_when_the_holder_dies_the_first_in_line_comes_as_soon_as_the_ttl_ran_out(
    url: str, name: str, raw: redis.Redis
) -> None:
    ttl = 4.0
    with Client(url) as client, another_process(url, name, ttl) as holder:
        got(holder)
        with ThreadPoolExecutor(2) as pool:
            acquire = client.lock(name, ttl=ttl, timeout=20).acquire
            waiting = [pool.submit(acquire) for _ in range(2)]
            eventually(lambda: line(raw, name) == 2)
            holder.kill()
            left = raw.pttl(f"incumbent:{{default/{name}}}")
            assert isinstance(left, int)
            over = clock.now() + left / 1000
            came = as_completed(waiting, 20)
            next(came).result().release()
            # The delay itself is a figure of the benchmarks; one that looked at its own pace came
            # up to a ttl later.
            assert took(over) < LATE
            next(came).result().release()


async def all_stand(client: AsyncClient, name: str, holders: list[str]) -> None:
    """These are listed; who stood still for longer than it is listed, is again once it looks."""
    until = clock.now() + 20
    while (standing := [it.holder for it in (await client.read(name)).candidates]) != holders:
        assert clock.now() < until, standing
        await asyncio.sleep(0.05)


@pytest.mark.left(tiers.LONG)
def test_while_a_lease_is_held_only_the_first_in_line_looks_and_all_stay_candidates(
    url: str, name: str, raw: redis.Redis
) -> None:
    ttl, watched = 1.2, 5.6
    # Longer than one that no longer looks is listed.
    assert watched > 2 * 2 * ttl + ttl / 6
    takes: list[str] = []

    async def main() -> None:
        async with AsyncClient(url) as client:
            # The leader's is long: this is about those who wait.
            ttls = (20.0, ttl, ttl, ttl)
            stands = [client.election(name, ttl=it, holder=f"c{n}") for n, it in enumerate(ttls)]
            campaigns = [asyncio.create_task(stands[0].campaign())]
            await campaigns[0]
            for place, each in enumerate(stands[1:]):
                campaigns.append(asyncio.create_task(each.campaign()))
                while line(raw, name) <= place:
                    await asyncio.sleep(0.01)
            # The others hear of what the first has seen at its first look by time.
            await asyncio.sleep(2 * ttl)
            watch: Any = raw.monitor  # redis-py does not say what it returns
            with watch() as monitor:
                await asyncio.sleep(watched)
                raw.echo(name)
                for command in monitor.listen():
                    if "ECHO" in command["command"]:
                        break
                    if name in command["command"] and command["client_type"] != "lua":
                        takes.extend(re.findall(r"incumbent1 ([0-9a-f]{32})  ", command["command"]))
            await all_stand(client, name, ["c1", "c2", "c3"])
            for campaign in campaigns[1:]:
                campaign.cancel()
            await asyncio.wait(campaigns)
            await campaigns[0].result().release()

    asyncio.run(main())
    (_, first), *others = Counter(takes).most_common()
    assert first < watched / (ttl * 0.7)
    # On a busy machine the first may be late, and then they look too: by themselves six times.
    assert sum(count for _, count in others) <= 2


def test_fair_candidates_lead_in_the_order_in_which_they_came(
    url: str, name: str, raw: redis.Redis
) -> None:
    led: list[int] = []

    async def main() -> None:
        all_stand = asyncio.Event()
        async with AsyncClient(url) as client:

            async def stand(index: int) -> None:
                candidate = client.election(name, holder=f"c{index}", fair=True)
                term = await candidate.campaign()
                led.append(index)
                await all_stand.wait()
                await term.release()
                if line(raw, name):
                    # Even at the instant at which nobody leads.
                    with pytest.raises(NotAcquired):
                        await client.election(name, holder="greedy", timeout=0).campaign()

            async with asyncio.TaskGroup() as group:
                for index in range(4):
                    group.create_task(stand(index))
                    while line(raw, name) < index or not led:
                        await asyncio.sleep(0.002)
                all_stand.set()

    asyncio.run(main())
    assert led == [0, 1, 2, 3]


def test_when_the_first_in_line_dies_with_the_holder_the_next_one_looks(
    url: str, name: str, raw: redis.Redis
) -> None:
    ttl, heartbeat = 0.9, 0.3
    with Client(url) as client, another_process(url, name, ttl) as holder:
        got(holder)
        with another_process(url, name, ttl) as first, ThreadPoolExecutor(1) as pool:
            eventually(lambda: line(raw, name) == 1)
            waiting = pool.submit(client.lock(name, ttl=ttl, timeout=20).acquire)
            eventually(lambda: line(raw, name) == 2)
            # Long enough for it to rely on the first.
            time.sleep(1.5 * ttl)
            holder.kill()
            first.kill()
            began = clock.now()
            waiting.result(20).release()
            # By itself it looks every twenty of its ttls.
            assert took(began) < ttl + 2 * heartbeat + 4.0


def test_who_gives_up_leaves_the_line(url: str, name: str, raw: redis.Redis) -> None:
    with Client(url) as client:
        lease = client.lock(name).acquire()
        with pytest.raises(AcquireTimeout):
            client.lock(name, timeout=1, fair=True).acquire()
        eventually(lambda: line(raw, name) == 0)
        # It was refused, which is no doubt: nothing is noted for later takes to read.
        assert raw.hget(f"incumbent:{{default/{name}}}:r", "d") is None
        lease.release()
        with client.lock(name, timeout=0):
            pass


def test_who_gives_up_further_back_leaves_the_line_too(
    url: str, name: str, raw: redis.Redis
) -> None:
    with Client(url) as client, ThreadPoolExecutor(1) as pool:
        lease = client.lock(name).acquire()
        waiting = pool.submit(client.lock(name, timeout=10).acquire)
        eventually(lambda: line(raw, name) == 1)
        with pytest.raises(AcquireTimeout):
            client.lock(name, timeout=1, fair=True).acquire()
        eventually(lambda: line(raw, name) == 1)
        lease.release()
        waiting.result(10).release()


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
        running.result(30)
    first, last = order.index("modest"), len(order) - order[::-1].index("modest")
    runs = "".join(it[0] for it in order[first:last]).split("m")
    assert sorted(map(len, runs))[len(runs) // 2] <= 1
    assert max(map(len, runs)) <= 9


def test_a_server_out_of_memory_lets_go_and_grants_when_it_has_memory_again(
    url: str, name: str, raw: redis.Redis
) -> None:
    with Client(url) as client, ThreadPoolExecutor(1) as pool:
        lock = client.lock(name, timeout=10)
        lease = lock.acquire()
        waiting = pool.submit(lock.acquire)
        eventually(lambda: sleeps(lock))
        raw.config_set("maxmemory", "1")
        try:
            assert lease.release()
            assert not raw.exists(f"incumbent:{{default/{name}}}")
            time.sleep(0.1)
            assert not waiting.done()
        finally:
            raw.config_set("maxmemory", "0")
        waiting.result(10).release()


def test_a_paused_name_is_given_to_nobody_in_line(url: str, name: str, raw: redis.Redis) -> None:
    with Client(url) as client, ThreadPoolExecutor(1) as pool:
        lock = client.lock(name)
        lease = lock.acquire()
        waiting = pool.submit(client.lock(name, timeout=10).acquire)
        eventually(lambda: line(raw, name) == 1)
        store, key = lock._link.store, lock._wanted.key
        store.put(key, "pause", b"{}", None, clock.now() + 10)
        lease.release()
        time.sleep(0.1)
        assert not waiting.done()
        store.put(key, "pause", None, None, clock.now() + 10)
        assert waiting.result(20).release()


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
        lease = client.lock(name, ttl=60).acquire()
        waiting = pool.submit(client.lock(name, timeout=20).acquire)
        # What the server does not know as a subscriber yet, it does not end.
        eventually(lambda: line(raw, name) == 1 and hears(raw, name))
        before = subscription_losses()
        raw.client_kill_filter(_type="pubsub")
        eventually(lambda: subscription_losses() == before + 1)
        eventually(lambda: "the subscription was lost" in caplog.text)
        eventually(lambda: hears(raw, name))
        lease.release()
        # A waiter that does not listen looks when the lease would run out.
        waiting.result(10).release()
