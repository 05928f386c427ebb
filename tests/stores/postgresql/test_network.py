"""PostgreSQL behind a network that loses, delays and swallows: three answers, each in time."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Gone, Released, Renewed
from tests.stores.postgresql.world import (
    Party,
    answers_within,
    new_claim,
    party,
    settled,
    soon,
)
from tests.support.pace import LONG, WOKEN
from tests.support.postgresql import PostgresServer
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

TAKE, GIVE, RENEW = b"incumbent.take", b"incumbent.give", b"incumbent.renew"


# -- answers that are lost


def test_a_lost_answer_is_unknown_not_no(far: Party, network: FaultProxy, near: Party) -> None:
    network.close_after_request(TAKE, times=10)
    with pytest.raises(OutcomeUnknown):
        far.take()
    network.heal()
    first = near.refused().holders[0]
    assert first.claim == far.claim
    assert far.take().token == first.token


def test_a_connection_that_dies_between_two_calls_is_no_error(
    far: Party, network: FaultProxy
) -> None:
    granted = far.take()
    network.cut()
    assert far.store.renew([far.renewal(granted)], soon()) == [Renewed()]
    network.cut()
    assert far.store.give(far.key, far.claim, granted.token, soon()) == Released()


def test_a_connection_that_dies_between_two_calls_is_no_error_on_asyncio(
    far: Party, network: FaultProxy
) -> None:
    async def main() -> None:
        store = await settled(far)
        granted = await far.take_async()
        network.cut()
        assert await store.renew([far.renewal(granted)], soon()) == [Renewed()]
        await store.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_give_whose_answer_was_lost_is_asked_for_again_and_says_that_nobody_knows(
    far: Party, network: FaultProxy, how: str
) -> None:
    async def give(token: int) -> None:
        store = await settled(far)
        network.close_after_request(GIVE)
        try:
            await store.give(far.key, far.claim, token, soon())
        finally:
            await store.aclose()

    granted = far.take()
    # "gone" would be a loss of the lease, which the first request may have given back.
    with pytest.raises(OutcomeUnknown, match="given back, or it was lost before"):
        if how == "async":
            asyncio.run(give(granted.token))
        else:
            network.close_after_request(GIVE)
            far.store.give(far.key, far.claim, granted.token, soon())
    assert far.store.read(far.key, soon()).holdings == ()


# -- networks that say nothing


@pytest.mark.parametrize("fault", ["blackhole", "drop_replies", "drop_requests"])
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_network_that_swallows_delays_nobody_past_the_deadline(
    far: Party, network: FaultProxy, fault: str, how: str
) -> None:
    granted = far.take_and_use()
    getattr(network, fault)()

    async def main() -> None:
        store = far.engine.async_store()
        with answers_within(0.3), pytest.raises(StoreError):
            await store.renew([far.renewal(granted)], soon(0.3))
        await store.aclose()

    if how == "async":
        asyncio.run(main())
    else:
        with answers_within(0.3), pytest.raises(OutcomeUnknown):
            far.store.renew([far.renewal(granted)], soon(0.3))
        # This one has to connect first: certainly not applied.
        with answers_within(0.3), pytest.raises(StoreUnavailable):
            far.store.renew([far.renewal(granted)], soon(0.3))


def test_a_slow_network_is_waited_for_no_longer_than_asked(far: Party, network: FaultProxy) -> None:
    granted = far.take_and_use()
    network.delay(0.0, reply=0.2)
    assert far.store.renew([far.renewal(granted)], soon()) == [Renewed()]
    network.delay(0.0, reply=1.0)
    with answers_within(0.3), pytest.raises(OutcomeUnknown):
        far.store.renew([far.renewal(granted)], soon(0.3))
    network.heal()
    # The late answer belongs to nobody: the next question gets its own.
    assert far.refused().holders[0].claim == far.claim
    assert far.store.give(far.key, new_claim(), None, soon()) == Gone()


def test_a_host_that_accepts_and_says_nothing_keeps_to_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with party(f"postgresql://app@127.0.0.1:{port}/none") as one:
            with answers_within(0.3), pytest.raises(StoreUnavailable):
                one.take(within=0.3)
            with answers_within(0.3), pytest.raises(StoreUnavailable):
                asyncio.run(one.take_async(within=0.3))


def test_a_network_that_refuses_is_unavailable(far: Party, network: FaultProxy) -> None:
    granted = far.take()
    network.refuse()
    with pytest.raises(StoreError):
        far.take(within=0.3)
    with answers_within(0.3), pytest.raises(StoreUnavailable) as caught:
        far.take(within=0.3)
    assert not caught.value.permanent
    network.heal()
    assert far.store.renew([far.renewal(granted)], soon()) == [Renewed()]


# -- waiting


def seconds_waited(one: Party, seen: str, within: float) -> float:
    began = clock.now()
    one.store.wait_change(one.key, seen, soon(within))
    return clock.now() - began


def test_losing_the_connection_is_hint_enough(
    far: Party, network: FaultProxy, postgres_server: PostgresServer, database: str
) -> None:
    listening = f"select 1 from pg_stat_activity where datname = '{database}' and query ~ '^LISTEN'"
    far.take()
    seen = far.refused().seen
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(seconds_waited, far, seen, LONG)
        eventually(lambda: postgres_server.psql(listening))
        network.cut()
        time.sleep(0.1)
        # Told, or listening again on another connection: what happens now is not missed.
        with party(far.engine.url.replace(str(network.port), str(network.target[1]))) as other:
            other.store.give(far.key, far.claim, None, soon())
        assert waiting.result() < WOKEN


def test_a_waiter_in_a_black_hole_returns_in_time(far: Party, network: FaultProxy) -> None:
    far.take()
    seen = far.refused().seen
    network.blackhole()
    with answers_within(0.4):
        try:
            far.store.wait_change(far.key, seen, soon(0.4))
        except StoreError:
            pass


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_waiter_is_told_at_once(
    far: Party, near: Party, postgres_server: PostgresServer, database: str, how: str
) -> None:
    far.take()
    seen = far.refused().seen

    def wait() -> float:
        if how == "async":
            return asyncio.run(waited())
        far.store.wait_change(far.key, seen, soon(LONG))
        return clock.now()

    async def waited() -> float:
        store = far.engine.async_store()
        await store.wait_change(far.key, seen, soon(LONG))
        told = clock.now()
        await store.aclose()
        return told

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait)
        # It listens, and the record says so.
        awaited = "select 1 from incumbent.record where waited > incumbent.clock()"
        eventually(lambda: postgres_server.psql(awaited, database))
        given = clock.now()
        near.store.give(far.key, far.claim, None, soon())
        # Milliseconds on a machine that is not busy.
        assert waiting.result() - given < WOKEN


def test_waiting_sends_nothing(far: Party, postgres_server: PostgresServer, database: str) -> None:
    """No polling: what many waiters ask for in one second could be counted on two hands."""
    far.take()
    seen = far.refused().seen

    def quiet_for(seconds: float) -> bool:
        before = queries_begun(postgres_server, database)
        time.sleep(seconds)
        return queries_begun(postgres_server, database) == before

    with ThreadPoolExecutor(5) as pool:
        waiting = [pool.submit(seconds_waited, far, seen, LONG) for _ in range(5)]
        # Once all have begun to wait.
        eventually(lambda: quiet_for(1.2))
        assert not any(it.done() for it in waiting)
        far.store.give(far.key, far.claim, None, soon())
        assert max(it.result() for it in waiting) < LONG


def queries_begun(server: PostgresServer, database: str) -> list[tuple[object, ...]]:
    return server.psql(
        f"select pid, query_start from pg_stat_activity where datname = '{database}' order by pid"
    )


class Interrupted(BaseException):
    pass


def test_a_signal_ends_an_operation_at_once_and_its_connection(
    far: Party, network: FaultProxy
) -> None:
    granted = far.take()
    network.delay(0.0, reply=1.0)

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with answers_within(0.1), pytest.raises(Interrupted):
            far.store.renew([far.renewal(granted)], soon(3))
    finally:
        signal.signal(signal.SIGALRM, before)
    network.heal()
    assert far.store.give(far.key, far.claim, granted.token, soon()) == Released()


def test_a_cancelled_operation_closes_its_connection(far: Party, network: FaultProxy) -> None:
    async def main() -> None:
        store = await settled(far)
        network.delay(0.0, reply=1.0)
        taking = asyncio.create_task(store.read(far.key, soon(3)))
        await asyncio.sleep(0.1)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        network.heal()
        record = await store.read(far.key, soon())
        assert record.key == far.key
        await store.aclose()

    asyncio.run(main())


def test_many_threads_share_an_engine_and_one_lease_has_one_holder(
    far: Party, postgres_server: PostgresServer
) -> None:
    held, most = 0, 0
    guard = threading.Lock()

    def compete(_: int) -> None:
        nonlocal held, most
        for _ in range(20):
            claim = new_claim()
            try:
                far.take(claim)
            except AssertionError:
                continue
            with guard:
                held += 1
                most = max(most, held)
            with guard:
                held -= 1
            far.store.give(far.key, claim, None, soon())

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(compete, range(6)))
    assert most == 1


def test_closing_lets_go_of_every_connection(far: Party, network: FaultProxy) -> None:
    far.take()
    asyncio.run(far.take_async())
    far.store.close()
    eventually(lambda: network.live == 0)
