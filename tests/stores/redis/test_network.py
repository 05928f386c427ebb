"""Redis behind a network that loses, delays and swallows: three answers, each in time."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import ABSENT, ByClaim, Granted, Refused, Released, Stored
from tests.stores.redis.world import ASK, Party, new_claim, party, soon
from tests.support.pace import BUSY, in_time, stood_still
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer

WITHIN = 0.8
"""Seconds: enough for a busy machine to send a request."""
HANGS = 20.0


answers_within = partial(in_time, late_at_most=BUSY)


@contextmanager
def unknown_within(seconds: float) -> Iterator[None]:
    """OutcomeUnknown in time; that nothing was sent only where the machine stood still before."""
    began = clock.now()
    with answers_within(seconds), pytest.raises(StoreError) as caught:
        yield
    assert isinstance(caught.value, OutcomeUnknown) or stood_still(began) > 0, caught.value


# -- answers that are lost


def test_a_lost_answer_on_a_new_connection_is_unknown_not_no(
    here: Party, proxy: FaultProxy, direct: Party
) -> None:
    proxy.close_after_request(b"EVALSHA", times=1)
    with pytest.raises(OutcomeUnknown):
        here.take()
    direct.key = here.key
    assert direct.refused().holders[0].claim == here.claim


def test_a_take_whose_answer_was_lost_is_the_same_grant_when_repeated(
    here: Party, proxy: FaultProxy
) -> None:
    proxy.close_after_request(b"EVALSHA", times=1)
    with pytest.raises(OutcomeUnknown):
        here.take()
    first = here.store.read(here.key, soon()).holdings[0]
    assert here.take().token == first.token


def test_a_connection_that_dies_between_two_calls_is_no_error(
    here: Party, proxy: FaultProxy
) -> None:
    granted = here.take()
    proxy.cut()
    assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()


def test_a_take_in_doubt_is_left_to_the_caller_who_counts_the_doubts(
    here: Party, proxy: FaultProxy
) -> None:
    here.take(new_claim())
    here.store.give(here.key, here.store.read(here.key, soon()).holdings[0].claim, None, soon())
    proxy.close_after_request(b"EVALSHA", times=1)
    with pytest.raises(OutcomeUnknown):
        here.take()


def test_a_give_whose_answer_was_lost_is_asked_for_again_and_says_that_nobody_knows(
    here: Party, proxy: FaultProxy
) -> None:
    granted = here.take()
    proxy.close_after_request(b"EVALSHA", times=1)
    # "gone" would be a loss of the lease, which the first request may have given back.
    with pytest.raises(OutcomeUnknown, match="given back, or it was lost before"):
        here.store.give(here.key, here.claim, granted.token, soon())
    assert here.store.read(here.key, soon()).holdings == ()


def test_a_write_that_must_not_be_repeated_is_not(here: Party, proxy: FaultProxy) -> None:
    here.take()
    proxy.close_after_request(b"EVALSHA", times=1)
    with pytest.raises(OutcomeUnknown):
        here.store.put(here.key, "state", b"1", ABSENT, soon())
    assert here.store.read(here.key, soon()).fields["state"].version == 1


def test_a_write_by_the_holder_is_repeated(here: Party, proxy: FaultProxy) -> None:
    granted = here.take()
    proxy.close_after_request(b"EVALSHA", times=1)
    outcome = here.store.put(here.key, "s", b"1", ByClaim(here.claim, granted.token), soon())
    assert isinstance(outcome, Stored)


def test_a_second_try_that_cannot_connect_leaves_the_first_in_doubt(
    here: Party, proxy: FaultProxy
) -> None:
    here.take()
    # The first request arrives and loses its answer; then nobody can connect any more.
    proxy.close_after_request(b"EVALSHA", times=1)
    site = here.engine._site
    site.target = replace(site.target, port=1)
    with pytest.raises(OutcomeUnknown) as caught:
        here.store.give(here.key, here.claim, None, soon())
    assert isinstance(caught.value.__cause__, StoreUnavailable)


def test_a_server_known_to_be_gone_was_certainly_not_asked(here: Party, proxy: FaultProxy) -> None:
    here.take()
    proxy.refuse()
    time.sleep(0.15)
    with pytest.raises(StoreUnavailable) as caught:
        here.take()
    assert not caught.value.permanent
    assert isinstance(caught.value.__cause__, Exception)


# -- deadlines


def blackholed(proxy: FaultProxy) -> None:
    proxy.blackhole()


def slow(proxy: FaultProxy) -> None:
    proxy.delay(0.0, reply=5.0)


@pytest.mark.parametrize("fault", [blackholed, slow])
def test_no_answer_by_the_deadline_is_unknown(
    here: Party, proxy: FaultProxy, fault: Callable[[FaultProxy], None]
) -> None:
    here.take()
    fault(proxy)
    with unknown_within(WITHIN):
        here.take(within=WITHIN)
    proxy.heal()


def test_a_black_hole_swallows_no_first_connection_longer_than_the_deadline(
    here: Party, proxy: FaultProxy
) -> None:
    proxy.blackhole()
    with answers_within(WITHIN), pytest.raises(StoreUnavailable):
        here.take(within=WITHIN)


@pytest.mark.parametrize("used", [False, True])
def test_async_calls_keep_their_deadline_in_a_black_hole(
    here: Party, proxy: FaultProxy, used: bool
) -> None:
    async def main() -> None:
        if used:
            await here.take_async()
        proxy.blackhole()
        with answers_within(WITHIN), pytest.raises(StoreError):
            await here.take_async(within=WITHIN)

    asyncio.run(main())


def test_a_frozen_server_is_waited_for_until_the_deadline(own_redis: RedisServer) -> None:
    with party(own_redis.url) as one:
        one.take()
        own_redis.freeze()
        with unknown_within(WITHIN):
            one.take(within=WITHIN)
        with answers_within(WITHIN), pytest.raises(StoreUnavailable):
            one.take(within=WITHIN)
        own_redis.thaw()
        assert isinstance(one.take(), Granted)


def test_an_answer_that_comes_late_is_not_read_by_the_next_request(
    here: Party, proxy: FaultProxy
) -> None:
    here.take()
    proxy.delay(0.0, reply=2 * WITHIN)
    with pytest.raises(OutcomeUnknown):
        here.take(within=WITHIN)
    proxy.heal()
    time.sleep(2 * WITHIN)
    stranger = new_claim()
    assert isinstance(here.store.take(here.key, stranger, ASK, soon()), Refused)


def test_a_deadline_that_has_passed_sends_nothing(here: Party) -> None:
    here.take()
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            here.store.take(here.key, new_claim(), ASK, clock.now() - 1)
        here.store.close()


def test_a_request_larger_than_the_socket_takes_arrives_whole(here: Party) -> None:
    here.take()
    value = b"x" * 3_000_000
    assert here.store.put(here.key, "large", value, None, soon(5)) == Stored(1)
    assert here.store.read(here.key, soon(5)).fields["large"].value == value
    assert here.store.put(here.key, "large", None, None, soon(5)) == Stored(0)


def test_a_large_request_into_a_black_hole_keeps_its_deadline(
    here: Party, proxy: FaultProxy
) -> None:
    here.take()
    proxy.blackhole()
    with unknown_within(WITHIN):
        here.store.put(here.key, "large", b"x" * 20_000_000, None, soon(WITHIN))


def test_signals_that_keep_coming_do_not_move_the_deadline(here: Party, proxy: FaultProxy) -> None:
    here.take()
    proxy.blackhole()
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
    try:
        with unknown_within(WITHIN):
            here.take(within=WITHIN)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# -- names that do not resolve


@pytest.fixture
def hung_resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    resolved = threading.Event()
    really = socket.getaddrinfo

    def hang(host: Any, *rest: Any, **more: Any) -> Any:
        if host == "slow.example":
            resolved.wait(HANGS)
            raise OSError("no such name")
        return really(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    yield
    resolved.set()


@pytest.mark.usefixtures("hung_resolver")
def test_a_resolver_that_hangs_does_not_hold_up_the_caller() -> None:
    with (
        party("redis://slow.example") as one,
        in_time(0.2, late_at_most=HANGS / 4),
        pytest.raises(StoreUnavailable),
    ):
        one.take(within=0.2)


@pytest.mark.usefixtures("hung_resolver")
def test_a_resolver_that_hangs_does_not_hold_up_the_end_of_the_loop() -> None:
    async def main() -> None:
        with party("redis://slow.example") as one, pytest.raises(StoreUnavailable):
            await one.take_async(within=0.2)

    # What asyncio needs is imported here, perhaps for the first time.
    with in_time(0.3, late_at_most=HANGS / 4):
        asyncio.run(main())


def test_a_name_that_does_not_exist_is_unavailable() -> None:
    with party("redis://no-such-host.invalid") as one:
        with pytest.raises(StoreUnavailable):
            one.take()

        async def main() -> None:
            with pytest.raises(StoreUnavailable):
                await one.take_async()

        asyncio.run(main())


def test_a_name_resolved_too_late_is_not_connected_to(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    really, resolved = socket.getaddrinfo, threading.Event()

    def delayed(*arguments: Any, **more: Any) -> Any:
        time.sleep(0.3)
        resolved.set()
        return really(*arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", delayed)
    url = f"redis://localhost:{redis_server.port}"
    with party(url) as one, answers_within(0.1), pytest.raises(StoreUnavailable, match="in time"):
        one.take(within=0.1)
    assert resolved.wait(30)
    # A socket left open would be a ResourceWarning, which is an error here.
    gc.collect()
