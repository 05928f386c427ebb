"""Waiting on Redis: woken by what happens, and never later than `until`."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis

from incumbent import clock
from incumbent.model import Ask, Parting, Slot
from tests.stores.redis.world import Party, new_claim, party, soon
from tests.support.pace import BUSY, LONG, WOKEN, lasted, took
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer
from tests.support.waiting import eventually


@pytest.fixture
def here(redis_server: RedisServer) -> Iterator[Party]:
    with party(redis_server.url) as one:
        yield one


def listening(one: Party, server: RedisServer) -> None:
    channel = f"{one.main}:c"
    with redis.Redis(port=server.port) as raw:
        eventually(lambda: raw.pubsub_numsub(channel)[0][1] >= 1)
        # The look at the record comes after the listener knows that it listens.
        eventually(lambda: any(client["cmd"] in {"get", "hget"} for client in raw.client_list()))


def subscribers(server: RedisServer) -> set[str]:
    with redis.Redis(port=server.port) as raw:
        return {client["id"] for client in raw.client_list() if client["sub"] != "0"}


def seconds_waited(one: Party, seen: str, within: float, *, on_asyncio: bool) -> float:
    began = clock.now()
    if on_asyncio:
        asyncio.run(_wait(one, seen, within))
    else:
        one.store.wait_change(one.key, seen, soon(within))
    return clock.now() - began


async def _wait(one: Party, seen: str, within: float) -> None:
    await one.engine.async_store().wait_change(one.key, seen, soon(within))


@pytest.mark.parametrize("on_asyncio", [False, True])
@pytest.mark.parametrize("what", ["give", "close", "pause"])
def test_a_waiter_is_woken(
    here: Party, redis_server: RedisServer, what: str, on_asyncio: bool
) -> None:
    granted = here.take()
    seen = here.refused().seen
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(seconds_waited, here, seen, LONG, on_asyncio=on_asyncio)
        listening(here, redis_server)
        if what == "pause":
            here.store.put(here.key, "pause", b"{}", None, soon())
        else:
            closed_for = 1.0 if what == "close" else 0.0
            here.store.give(
                here.key, here.claim, granted.token, soon(), parting=Parting(closed_for=closed_for)
            )
        assert waiting.result() < WOKEN


@pytest.mark.parametrize("on_asyncio", [False, True])
def test_a_waiter_that_nothing_happens_to_returns_in_time(here: Party, on_asyncio: bool) -> None:
    here.take()
    seen, began = here.refused().seen, clock.now()
    seconds_waited(here, seen, 0.2, on_asyncio=on_asyncio)
    assert lasted(began, 0.19, 0.2 + BUSY)


@pytest.mark.parametrize("on_asyncio", [False, True])
def test_what_changed_before_listening_began_is_seen(here: Party, on_asyncio: bool) -> None:
    granted = here.take()
    seen = here.refused().seen
    here.store.give(here.key, here.claim, granted.token, soon())
    assert seconds_waited(here, seen, LONG, on_asyncio=on_asyncio) < WOKEN


def test_the_next_holder_is_not_the_one_that_was_seen(here: Party) -> None:
    granted = here.take()
    seen = here.refused().seen
    here.store.give(here.key, here.claim, granted.token, soon())
    here.take(new_claim())
    assert seconds_waited(here, seen, LONG, on_asyncio=False) < WOKEN


def test_a_waiter_for_a_paused_name_is_woken_by_the_end_of_the_pause(
    here: Party, redis_server: RedisServer
) -> None:
    here.store.put(here.key, "pause", b"{}", None, soon())
    refused = here.refused()
    assert refused.reason == "paused"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(seconds_waited, here, refused.seen, LONG, on_asyncio=False)
        listening(here, redis_server)
        here.store.put(here.key, "pause", None, None, soon())
        assert waiting.result() < WOKEN


def test_a_waiter_for_a_used_slot_is_woken_when_it_is_given_back(
    here: Party, redis_server: RedisServer
) -> None:
    ask = Ask(10.0, "h", slot=Slot("today 1", 60.0))
    granted = here.take(ask=ask)
    here.store.give(here.key, here.claim, granted.token, soon())
    refused = here.refused(ask=ask)
    assert refused.reason == "used"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(seconds_waited, here, refused.seen, LONG, on_asyncio=False)
        listening(here, redis_server)
        here.store.give(here.key, here.claim, None, soon(), parting=Parting(slot="today 1"))
        assert waiting.result() < WOKEN


def test_one_connection_listens_for_one_wait_after_another(
    here: Party, redis_server: RedisServer
) -> None:
    other, others = Party(here.engine), subscribers(redis_server)
    here.take()
    other.take()
    seen = here.refused().seen
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            waiting = pool.submit(here.store.wait_change, here.key, seen, soon(LONG))
            listening(here, redis_server)
            here.store.put(here.key, "note", b"", None, soon())
            waiting.result()
            assert len(subscribers(redis_server) - others) == 1
    # What was said on the earlier channel is not taken for news of this one.
    here.store.put(here.key, "note", None, None, soon())
    began = clock.now()
    other.store.wait_change(other.key, other.refused().seen, soon(0.2))
    assert clock.now() - began > 0.19


def test_losing_the_connection_is_hint_enough(redis_server: RedisServer) -> None:
    with FaultProxy(redis_server.port) as proxy, party(proxy.url) as one:
        one.take()
        seen = one.refused().seen
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(seconds_waited, one, seen, LONG, on_asyncio=False)
            listening(one, redis_server)
            proxy.cut()
            assert waiting.result() < WOKEN


def test_a_listener_that_died_meanwhile_is_replaced(redis_server: RedisServer) -> None:
    with FaultProxy(redis_server.port) as proxy, party(proxy.url) as one:
        one.take()
        seen = one.refused().seen
        timer = threading.Timer(0.05, one.store.put, (one.key, "note", b"", None, soon()))
        timer.start()
        one.store.wait_change(one.key, seen, soon(5))
        timer.join()
        proxy.cut()
        time.sleep(0.05)
        began = clock.now()
        one.store.wait_change(one.key, seen, soon(0.2))
        assert lasted(began, 0.19, 0.2 + BUSY)


def test_a_waiter_in_a_black_hole_returns_in_time(redis_server: RedisServer) -> None:
    with FaultProxy(redis_server.port) as proxy, party(proxy.url) as one:
        one.take()
        seen = one.refused().seen
        proxy.blackhole()
        began = clock.now()
        one.store.wait_change(one.key, seen, soon(0.3))
        assert lasted(began, 0.25, 0.3 + BUSY)


def test_a_cancelled_waiter_keeps_nothing(here: Party, redis_server: RedisServer) -> None:
    here.take()
    seen = here.refused().seen

    async def main() -> None:
        waiting = asyncio.create_task(_wait(here, seen, LONG))
        await asyncio.to_thread(listening, here, redis_server)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not here.engine.async_store().hub._waiters

    asyncio.run(main())


class Interrupted(BaseException):
    pass


def test_a_signal_ends_a_wait_at_once_and_keeps_nothing(
    here: Party, redis_server: RedisServer
) -> None:
    here.take()
    seen, hub = here.refused().seen, here.store.operations.hub

    def interrupt(*_: object) -> None:
        raise Interrupted

    def interrupt_the_reader() -> None:
        listening(here, redis_server)
        eventually(lambda: any(it.listens and not it.is_asking for it in hub._waiters))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, interrupt)
    began = clock.now()
    try:
        with ThreadPoolExecutor(1) as pool, pytest.raises(Interrupted):
            pool.submit(interrupt_the_reader)
            here.store.wait_change(here.key, seen, soon(LONG))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert took(began) < WOKEN
    assert not hub._waiters
    # A message may have been half read.
    assert hub._role.subscriptions == [None]
