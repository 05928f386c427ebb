"""Waiting on a quorum: one connection to each server for all who wait, and woken by a majority."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import redis

from incumbent import AsyncLock, Lock, clock
from incumbent.errors import StoreUnavailable
from incumbent.model import Ask, Granted, Key, Refused, Released
from incumbent.net.subscriptions import subscription_losses
from incumbent.stores.quorum import waiting
from incumbent.stores.redis.records import Naming
from tests.stores.quorum.world import Members, Party, channel_of, party, soon, take_everywhere
from tests.support.forks import exit_code, fork
from tests.support.pace import BUSY, LONG, WOKEN, lasted, took
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.server

ASK = Ask(60.0, "host-1")
TRUSTED = "restart_wait=0"
SIDES = ("sync", "async")
CROWD = 50


@pytest.fixture(scope="module")
def three() -> Iterator[Members]:
    with Members(3) as members:
        yield members


@pytest.fixture(autouse=True)
def healed(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "three" in request.fixturenames:
        for member in request.getfixturevalue("three").all:
            member.server.thaw()
            member.proxy.heal()


@pytest.fixture
def held(three: Members) -> Iterator[Held]:
    with party(three.url(TRUSTED)) as one, party(three.url(TRUSTED)) as other:
        other.key = one.key
        yield Held(one, other, three)


class Held:
    """A lease, and another engine whose waits for it are looked at."""

    def __init__(self, one: Party, other: Party, members: Members) -> None:
        self.one, self.other, self.members = one, other, members
        self.granted = take_everywhere(members.all, one, ASK)
        self.seen = other.refused(ASK).seen

    def give(self) -> None:
        assert self.one.give(self.granted) == Released()

    def wait(self, seconds: float = LONG) -> float:
        began = clock.now()
        self.other.store.wait_change(self.other.key, self.seen, soon(seconds))
        return clock.now() - began

    async def wait_async(self, seconds: float = LONG) -> float:
        began = clock.now()
        store = self.other.engine.async_store()
        await store.wait_change(self.other.key, self.seen, soon(seconds))
        return clock.now() - began

    @contextmanager
    def waiting(self, side: str, count: int = 1, seconds: float = LONG) -> Iterator[Waits]:
        """So many wait in threads, or in tasks of one loop."""
        with ThreadPoolExecutor(count) as pool:
            if side == "sync":
                yield Waits([pool.submit(self.wait, seconds) for _ in range(count)])
            else:
                yield Waits([pool.submit(asyncio.run, self._all(count, seconds))])

    async def _all(self, count: int, seconds: float) -> float:
        waits = await asyncio.gather(*(self.wait_async(seconds) for _ in range(count)))
        await self.other.engine.async_store().aclose()
        return max(waits)


class Waits:
    def __init__(self, futures: list[Future[float]]) -> None:
        self._futures = futures

    def longest(self) -> float:
        return max(it.result(LONG + BUSY) for it in self._futures)

    @property
    def over(self) -> bool:
        return any(it.done() for it in self._futures)


def subscribers(server: RedisServer, key: Key) -> int:
    with redis.Redis(port=server.port) as raw:
        return int(raw.pubsub_numsub(channel_of(key))[0][1])


def listened_to(members: Members, key: Key, places: tuple[int, ...] = (0, 1, 2)) -> None:
    servers = [members.all[at].server for at in places]
    eventually(lambda: all(subscribers(it, key) for it in servers))
    # And most of them were looked at, which comes after that.
    eventually(lambda: sum(looked_at(it, key) for it in servers) >= 2)


def looked_at(server: RedisServer, key: Key) -> bool:
    """Whether the look of one that waits has left its mark: the end will be told."""
    return value_at(server, key).split()[3:4] == ["1"]


def all_looked_at(held: Held) -> bool:
    # A majority is enough for a look; one more that waits comes to those that answered too late.
    held.wait(0.5)
    return all(looked_at(it.server, held.one.key) for it in held.members.all)


def value_at(server: RedisServer, key: Key) -> str:
    return server.cli("GET", Naming(None).of(key).lease)


def told_on(server: RedisServer, key: Key) -> None:
    server.cli("PUBLISH", channel_of(key), "")


@pytest.mark.parametrize("side", SIDES)
def test_a_crowd_that_waits_has_one_connection_to_each_server(
    three: Members, held: Held, side: str
) -> None:
    with held.waiting(side, CROWD) as waits:
        listened_to(three, held.one.key)
        for member in three.all:
            with redis.Redis(port=member.server.port) as raw:
                listeners = [it for it in raw.client_list() if it["sub"] != "0"]
            assert len(listeners) == 1
        assert not waits.over
        held.give()
        began = clock.now()
        waits.longest()
        assert took(began) < BUSY


def test_a_crowd_makes_no_threads_that_stay(three: Members, held: Held) -> None:
    with held.waiting("sync", 5) as waits:
        listened_to(three, held.one.key)
        eventually(lambda: not any(it.name == "incumbent-dial" for it in threading.enumerate()))
        ours = [it.name for it in threading.enumerate() if it.name.startswith("incumbent")]
        assert not [name for name in ours if "wait" in name or "listen" in name]
        held.give()
        waits.longest()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_frozen_server_holds_up_no_wait(three: Members, held: Held, side: str, when: str) -> None:
    if when == "before":
        three.all[0].server.freeze()
    with held.waiting(side) as waits:
        listened_to(three, held.one.key, (1, 2) if when == "before" else (0, 1, 2))
        three.all[0].server.freeze()
        assert not waits.over
        held.give()
        began = clock.now()
        waits.longest()
        assert took(began) < BUSY


@pytest.mark.parametrize("side", SIDES)
def test_the_words_of_a_majority_count_at_once(
    three: Members, held: Held, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "LINGER", 5.0)
    with held.waiting(side, 3) as waits:
        listened_to(three, held.one.key)
        eventually(lambda: all_looked_at(held))
        three.all[1].server.freeze()
        held.give()
        began = clock.now()
        waits.longest()
        assert took(began) < BUSY


@pytest.mark.parametrize("side", SIDES)
def test_the_word_of_one_server_counts_a_moment_later(
    three: Members, held: Held, side: str
) -> None:
    """Else who is told by a single one would wait for ever."""
    with held.waiting(side, 3) as waits:
        listened_to(three, held.one.key)
        began = clock.now()
        told_on(three.all[1].server, held.one.key)
        waits.longest()
        assert lasted(began, waiting.LINGER * 0.8, waiting.LINGER + BUSY)


@pytest.mark.parametrize("side", SIDES)
def test_a_lost_majority_of_subscriptions_is_hint_enough_and_counted(
    three: Members, held: Held, side: str
) -> None:
    with held.waiting(side, 4) as waits:
        listened_to(three, held.one.key)
        losses = subscription_losses()
        three.all[0].server.cli("CLIENT", "KILL", "TYPE", "pubsub")
        eventually(lambda: subscription_losses() > losses)
        # Two are a majority: nothing can be missed; and the first is listened to again.
        listened_to(three, held.one.key)
        assert not waits.over
        began = clock.now()
        for at in (0, 1):
            three.all[at].proxy.refuse()
        waits.longest()
        assert took(began) < BUSY


@pytest.mark.parametrize("side", SIDES)
def test_servers_that_all_restarted_are_listened_to_again(side: str) -> None:
    with Members(3) as three, party(three.url(TRUSTED)) as one, party(three.url(TRUSTED)) as other:
        other.key = one.key

        def hand_over() -> None:
            held = Held(one, other, three)
            with held.waiting(side) as waits:
                listened_to(three, one.key)
                held.give()
                assert waits.longest() < WOKEN

        hand_over()
        for member in three.all:
            member.server.restart()
        hand_over()


def test_the_seat_is_passed_on_by_those_who_leave(three: Members, held: Held) -> None:
    """Whoever reads for all goes first; the others hear all the same."""
    with ThreadPoolExecutor(6) as pool:
        # Long enough for the first of them to have subscribed on a busy machine too.
        short = [pool.submit(held.wait, 1.5 + at / 20) for at in range(3)]
        listened_to(three, held.one.key)
        long = [pool.submit(held.wait, LONG) for _ in range(3)]
        for at, it in enumerate(short):
            assert it.result(LONG) < 1.5 + at / 20 + BUSY
        assert not any(it.done() for it in long)
        held.give()
        assert all(it.result(LONG) < WOKEN for it in long)


def test_two_names_are_waited_for_by_the_same_connections(three: Members, held: Held) -> None:
    another = Party(held.one.engine)
    second = Held(another, Party(held.other.engine, another.key), three)
    with held.waiting("sync") as first, second.waiting("sync") as then:
        listened_to(three, held.one.key)
        listened_to(three, second.one.key)
        second.give()
        assert then.longest() < WOKEN
        assert not first.over
        held.give()
        assert first.longest() < WOKEN


def test_what_was_said_while_nobody_waited_is_no_news(three: Members, held: Held) -> None:
    assert held.wait(0.1) > 0.09
    for member in three.all:
        told_on(member.server, held.one.key)
    time.sleep(0.02)
    assert held.wait(0.2) > 0.19


@pytest.mark.parametrize("side", SIDES)
def test_what_changed_before_listening_began_is_seen(held: Held, side: str) -> None:
    held.give()
    with held.waiting(side) as waits:
        assert waits.longest() < WOKEN


def test_a_cancelled_wait_leaves_the_others_alone(three: Members, held: Held) -> None:
    async def main() -> None:
        tasks = [asyncio.create_task(held.wait_async()) for _ in range(3)]
        await asyncio.to_thread(listened_to, three, held.one.key)
        # The first of them reads for all.
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await tasks[0]
        await asyncio.to_thread(held.give)
        assert max(await asyncio.gather(*tasks[1:])) < WOKEN
        await held.other.engine.async_store().aclose()

    asyncio.run(main())


class Interrupted(BaseException):
    pass


def alarm(handler: Callable[..., None], after: float = 0.15) -> Callable[..., object]:
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, after)
    return lambda: signal.signal(signal.SIGALRM, before)


def test_a_signal_ends_a_wait_at_once_and_the_next_one_hears(three: Members, held: Held) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted

    undo = alarm(interrupt)
    try:
        began = clock.now()
        with pytest.raises(Interrupted):
            held.wait()
        assert took(began) < BUSY
    finally:
        undo()
    with held.waiting("sync") as waits:
        listened_to(three, held.one.key)
        held.give()
        assert waits.longest() < WOKEN


def test_a_handler_may_wait_in_the_thread_that_reads_for_all(held: Held) -> None:
    inner: list[float] = []
    # The first finds the seat taken by its own thread, takes another, and has all look.
    undo = alarm(lambda *_: inner.extend(held.wait(0.1) for _ in range(2)))
    try:
        held.wait(0.5)
    finally:
        undo()
    assert 0.09 < inner[1] < 0.1 + BUSY


def test_a_fork_takes_no_word_from_its_parent(three: Members, held: Held) -> None:
    """The child waits by connections of its own, and both are told."""
    with held.waiting("sync") as waits:
        listened_to(three, held.one.key)
        child = fork(lambda: 0 if held.wait() < WOKEN else 2)
        servers = [member.server for member in three.all]
        eventually(lambda: all(subscribers(it, held.one.key) == 2 for it in servers))
        assert not waits.over
        held.give()
        assert waits.longest() < WOKEN
        assert exit_code(child) == 0


def test_without_any_subscription_the_holders_ttl_is_waited_for() -> None:
    """Who may not subscribe anywhere looks when the lease of one that died runs out."""
    rights = ["on", ">secret", "~*", "&*", "+@all", "-subscribe"]
    with Members(3) as three:
        for member in three.all:
            member.server.cli("ACL", "SETUSER", "deaf", *rights)
        url = three.url(TRUSTED)
        with party(url.replace("://", "://deaf:secret@")) as deaf, party(url) as one:
            granted = one.take(ASK)
            assert isinstance(granted, Granted)
            deaf.key = one.key
            refused = deaf.try_take(ASK)
            assert isinstance(refused, Refused)
            with pytest.raises(StoreUnavailable, match=r"listened to.*NOPERM"):
                deaf.store.wait_change(one.key, refused.seen, soon(5))
        with party(url) as one:
            one.key = Key("default", "deaf")
            one.take(Ask(2.0, "them"))
            began = clock.now()
            lock = Lock("deaf", store=url.replace("://", "://deaf:secret@"), ttl=30)
            with lock.acquire(timeout=20):
                assert lasted(began, 1.6, 2.0 + BUSY)


@pytest.mark.parametrize("side", SIDES)
def test_a_waiter_beside_a_redlock_looks_again_and_again(three: Members, side: str) -> None:
    with party(three.url(TRUSTED)) as one, ThreadPoolExecutor(1) as pool:
        main = Naming(None).of(one.key).lease
        settings: dict[str, Any] = {"ttl": 60.0, "timeout": 30.0, "store": one.engine}
        nodes = [redis.Redis(port=member.server.port) for member in three.all]
        for node in nodes:
            node.set(main, "redlock", px=60_000)

        async def wait_async() -> bool:
            made = AsyncLock(one.key.name, namespace=one.key.namespace, **settings)
            return await (await made.acquire()).release()

        def wait() -> bool:
            if side == "async":
                return asyncio.run(wait_async())
            made = Lock(one.key.name, namespace=one.key.namespace, **settings)
            return made.acquire().release()

        waiting = pool.submit(wait)
        time.sleep(0.3)
        for node in nodes:
            node.delete(main)
            node.close()
        assert waiting.result()
