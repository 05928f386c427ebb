"""PostgreSQL behind a network that loses, delays and swallows: three answers, each in time."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Gone, Released, Renewed
from tests.faults.postgresql_world import (
    Party,
    answers_within,
    new_claim,
    new_database,
    party,
    soon,
)
from tests.support.postgresql import PostgresServer
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

TAKE, GIVE, RENEW = b"incumbent.take", b"incumbent.give", b"incumbent.renew"


@pytest.fixture
def database(postgres_server: PostgresServer) -> str:
    return new_database(postgres_server)


@pytest.fixture
def network(postgres_server: PostgresServer) -> Iterator[FaultProxy]:
    with FaultProxy(postgres_server.port) as faulty:
        yield faulty


@pytest.fixture
def here(postgres_server: PostgresServer, database: str, network: FaultProxy) -> Iterator[Party]:
    with party(postgres_server.url_of(database, port=network.port)) as one:
        yield one


@pytest.fixture
def direct(postgres_server: PostgresServer, database: str, here: Party) -> Iterator[Party]:
    with party(postgres_server.url_of(database)) as one:
        one.key = here.key
        yield one


# -- answers that are lost


def test_a_lost_answer_is_unknown_not_no(here: Party, network: FaultProxy, direct: Party) -> None:
    network.close_after_request(TAKE, times=10)
    with pytest.raises(OutcomeUnknown):
        here.take()
    network.heal()
    first = direct.refused().holders[0]
    assert first.claim == here.claim
    assert here.take().token == first.token


def test_a_connection_that_dies_between_two_calls_is_no_error(
    here: Party, network: FaultProxy
) -> None:
    granted = here.take()
    network.cut()
    assert here.store.renew([here.renewal(granted)], soon()) == [Renewed()]
    network.cut()
    assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()


def test_a_connection_that_dies_between_two_calls_is_no_error_on_asyncio(
    here: Party, network: FaultProxy
) -> None:
    async def main() -> None:
        store = here.engine.async_store()
        await store.read(here.key, soon())
        granted = await here.take_async()
        network.cut()
        assert await store.renew([here.renewal(granted)], soon()) == [Renewed()]
        await store.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_give_whose_answer_was_lost_is_asked_for_again_and_says_that_nobody_knows(
    here: Party, network: FaultProxy, how: str
) -> None:
    async def give(token: int) -> None:
        store = here.engine.async_store()
        await store.read(here.key, soon())
        network.close_after_request(GIVE)
        try:
            await store.give(here.key, here.claim, token, soon())
        finally:
            await store.aclose()

    granted = here.take()
    # "gone" would be a loss of the lease, which the first request may have given back.
    with pytest.raises(OutcomeUnknown, match="given back, or it was lost before"):
        if how == "async":
            asyncio.run(give(granted.token))
        else:
            network.close_after_request(GIVE)
            here.store.give(here.key, here.claim, granted.token, soon())
    assert here.store.read(here.key, soon()).holdings == ()


# -- networks that say nothing


@pytest.mark.parametrize("fault", ["blackhole", "drop_replies", "drop_requests"])
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_network_that_swallows_delays_nobody_past_the_deadline(
    here: Party, network: FaultProxy, fault: str, how: str
) -> None:
    granted = here.take_and_use()
    getattr(network, fault)()

    async def main() -> None:
        store = here.engine.async_store()
        with answers_within(0.3), pytest.raises(StoreError):
            await store.renew([here.renewal(granted)], soon(0.3))
        await store.aclose()

    if how == "async":
        asyncio.run(main())
    else:
        with answers_within(0.3), pytest.raises(OutcomeUnknown):
            here.store.renew([here.renewal(granted)], soon(0.3))
        # This one has to connect first: certainly not applied.
        with answers_within(0.3), pytest.raises(StoreUnavailable):
            here.store.renew([here.renewal(granted)], soon(0.3))


def test_a_slow_network_is_waited_for_no_longer_than_asked(
    here: Party, network: FaultProxy
) -> None:
    granted = here.take_and_use()
    network.delay(0.0, reply=0.2)
    assert here.store.renew([here.renewal(granted)], soon(1)) == [Renewed()]
    network.delay(0.0, reply=0.6)
    with answers_within(0.3), pytest.raises(OutcomeUnknown):
        here.store.renew([here.renewal(granted)], soon(0.3))
    network.heal()
    # The late answer belongs to nobody: the next question gets its own.
    assert here.refused().holders[0].claim == here.claim
    assert here.store.give(here.key, new_claim(), None, soon()) == Gone()


def test_a_host_that_accepts_and_says_nothing_keeps_to_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with party(f"postgresql://app@127.0.0.1:{port}/none") as one:
            with answers_within(0.3), pytest.raises(StoreUnavailable):
                one.take(within=0.3)
            with answers_within(0.3), pytest.raises(StoreUnavailable):
                asyncio.run(one.take_async(within=0.3))


def test_a_network_that_refuses_is_unavailable(here: Party, network: FaultProxy) -> None:
    granted = here.take()
    network.refuse()
    with pytest.raises(StoreError):
        here.take(within=0.3)
    with answers_within(0.3), pytest.raises(StoreUnavailable) as caught:
        here.take(within=0.3)
    assert not caught.value.permanent
    network.heal()
    assert here.store.renew([here.renewal(granted)], soon()) == [Renewed()]


# -- waiting


def seconds_waited(one: Party, seen: str, within: float) -> float:
    began = clock.now()
    one.store.wait_change(one.key, seen, soon(within))
    return clock.now() - began


def test_losing_the_connection_is_hint_enough(here: Party, network: FaultProxy) -> None:
    here.take()
    seen = here.refused().seen
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(seconds_waited, here, seen, 8.0)
        time.sleep(0.2)
        network.cut()
        time.sleep(0.1)
        # Told, or listening again on another connection: what happens now is not missed.
        with party(here.engine.url.replace(str(network.port), str(network.target[1]))) as other:
            other.store.give(here.key, here.claim, None, soon())
        assert waiting.result() < 2.0


def test_a_waiter_in_a_black_hole_returns_in_time(here: Party, network: FaultProxy) -> None:
    here.take()
    seen = here.refused().seen
    network.blackhole()
    with answers_within(0.4):
        try:
            here.store.wait_change(here.key, seen, soon(0.4))
        except StoreError:
            pass


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_waiter_is_told_within_milliseconds(here: Party, direct: Party, how: str) -> None:
    here.take()
    seen = here.refused().seen

    def wait() -> float:
        if how == "sync":
            here.store.wait_change(here.key, seen, soon(8))
        else:
            asyncio.run(waited())
        return clock.now()

    async def waited() -> None:
        store = here.engine.async_store()
        await store.wait_change(here.key, seen, soon(8))
        await store.aclose()

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        time.sleep(0.3)
        given = clock.now()
        direct.store.give(here.key, here.claim, None, soon())
        assert waiting.result() - given < 0.25


def test_waiting_sends_nothing(here: Party, postgres_server: PostgresServer, database: str) -> None:
    """No polling: what many waiters ask for in one second could be counted on two hands."""
    here.take()
    seen = here.refused().seen
    with ThreadPoolExecutor(5) as pool:
        waiting = [pool.submit(seconds_waited, here, seen, 2.2) for _ in range(5)]
        time.sleep(0.6)
        before = queries_begun(postgres_server, database)
        time.sleep(1.2)
        assert queries_begun(postgres_server, database) == before
        assert min(it.result() for it in waiting) > 1.9


def queries_begun(server: PostgresServer, database: str) -> list[tuple[object, ...]]:
    return server.psql(
        f"select pid, query_start from pg_stat_activity where datname = '{database}' order by pid"
    )


class Interrupted(BaseException):
    pass


def test_a_signal_ends_an_operation_at_once_and_its_connection(
    here: Party, network: FaultProxy
) -> None:
    granted = here.take()
    network.delay(0.0, reply=1.0)

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with answers_within(0.1), pytest.raises(Interrupted):
            here.store.renew([here.renewal(granted)], soon(3))
    finally:
        signal.signal(signal.SIGALRM, before)
    network.heal()
    assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()


def test_a_cancelled_operation_closes_its_connection(here: Party, network: FaultProxy) -> None:
    async def main() -> None:
        store = here.engine.async_store()
        await store.read(here.key, soon())
        network.delay(0.0, reply=1.0)
        taking = asyncio.create_task(store.read(here.key, soon(3)))
        await asyncio.sleep(0.1)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        network.heal()
        record = await store.read(here.key, soon())
        assert record.key == here.key
        await store.aclose()

    asyncio.run(main())


def test_many_threads_share_an_engine_and_one_lease_has_one_holder(
    here: Party, postgres_server: PostgresServer
) -> None:
    held, most = 0, 0
    guard = threading.Lock()

    def compete(_: int) -> None:
        nonlocal held, most
        for _ in range(20):
            claim = new_claim()
            try:
                here.take(claim)
            except AssertionError:
                continue
            with guard:
                held += 1
                most = max(most, held)
            with guard:
                held -= 1
            here.store.give(here.key, claim, None, soon())

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(compete, range(6)))
    assert most == 1


def test_closing_lets_go_of_every_connection(here: Party, network: FaultProxy) -> None:
    here.take()
    asyncio.run(here.take_async())
    here.store.close()
    eventually(lambda: network.live == 0)
