"""MariaDB behind a network that loses, delays and swallows: three answers, each in time."""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import pytest

from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import ABSENT, Gone, Granted, Released, Renewed, Stale, Stored
from tests import tiers
from tests.stores.mysql.world import (
    ASK,
    Party,
    answers_within,
    new_claim,
    party,
    soon,
)
from tests.support.forks import in_a_child
from tests.support.mariadb import MariaServer
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

WRITE = b"UPDATE incumbent_lease"


def test_a_lost_answer_is_unknown_not_no(far: Party, network: FaultProxy, near: Party) -> None:
    far.store.give(far.key, far.claim, far.take().token, soon())
    network.close_after_request(WRITE, times=10)
    with pytest.raises(OutcomeUnknown):
        far.take()
    network.heal()
    first = near.refused().holders[0]
    assert first.claim == far.claim
    assert far.take().token == first.token


def test_a_read_whose_answer_was_lost_has_changed_nothing(far: Party, network: FaultProxy) -> None:
    far.take_and_use()
    network.close_after_request(b"LEFT JOIN", times=10)
    with pytest.raises(StoreUnavailable):
        far.store.read(far.key, soon())


@pytest.mark.left(tiers.SIDES, "sync")
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_connection_that_dies_between_two_calls_is_no_error(
    far: Party, network: FaultProxy, how: str
) -> None:
    async def main() -> None:
        store = far.engine.async_store()
        granted = await far.take_async()
        network.cut()
        assert await store.renew([far.renewal(granted)], soon()) == [Renewed()]
        network.cut()
        assert await store.give(far.key, far.claim, granted.token, soon()) == Released()

    if how == "async":
        asyncio.run(main())
        return
    granted = far.take()
    network.cut()
    assert far.store.renew([far.renewal(granted)], soon()) == [Renewed()]
    network.cut()
    assert far.store.give(far.key, far.claim, granted.token, soon()) == Released()


def test_a_give_whose_answer_was_lost_is_asked_for_again_and_says_that_nobody_knows(
    far: Party, network: FaultProxy
) -> None:
    granted = far.take_and_use()
    network.close_after_request(WRITE)
    # "gone" would be a loss of the lease, which the first request may have given back.
    with pytest.raises(OutcomeUnknown, match="given back, or it was lost before"):
        far.store.give(far.key, far.claim, granted.token, soon())
    assert far.store.read(far.key, soon()).holdings == ()


@pytest.mark.left(tiers.SIDES, "sync-blackhole", "async-drop_replies")
@pytest.mark.parametrize("fault", ["blackhole", "drop_replies", "drop_requests"])
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_network_that_swallows_delays_nobody_past_the_deadline(
    far: Party, network: FaultProxy, fault: str, how: str
) -> None:
    granted = far.take_and_use()
    getattr(network, fault)()

    async def main() -> None:
        store = far.engine.async_store()
        with answers_within(0.5), pytest.raises(StoreError):
            await store.renew([far.renewal(granted)], soon(0.5))

    if how == "async":
        asyncio.run(main())
        return
    with answers_within(1.0), pytest.raises(OutcomeUnknown):
        far.store.renew([far.renewal(granted)], soon(1.0))
    # This one has to connect first: certainly not applied.
    with answers_within(0.5), pytest.raises(StoreUnavailable):
        far.store.renew([far.renewal(granted)], soon(0.5))


def test_an_answer_that_drips_does_not_extend_the_deadline() -> None:
    """A driver's own timeout begins again with each byte."""
    with socket.create_server(("127.0.0.1", 0)) as dripping:
        threading.Thread(target=drip, args=(dripping,), daemon=True).start()
        url = f"mysql://app@127.0.0.1:{dripping.getsockname()[1]}/none"
        with party(url) as one, answers_within(0.6), pytest.raises(StoreUnavailable):
            one.take(within=0.6)


def drip(listener: socket.socket) -> None:
    peer, _ = listener.accept()
    with peer:
        for _ in range(100):
            try:
                peer.sendall(b"\x5a")
            except OSError:
                return
            time.sleep(0.1)


def test_a_slow_network_is_waited_for_no_longer_than_asked(far: Party, network: FaultProxy) -> None:
    granted = far.take_and_use()
    network.delay(0.0, reply=0.2)
    assert far.store.renew([far.renewal(granted)], soon(5)) == [Renewed()]
    network.delay(0.0, reply=3.0)
    with answers_within(1.0), pytest.raises(OutcomeUnknown):
        far.store.renew([far.renewal(granted)], soon(1.0))
    network.heal()
    # The late answer belongs to nobody: the next question gets its own.
    assert far.refused().holders[0].claim == far.claim
    assert far.store.give(far.key, new_claim(), None, soon()) == Gone()


def test_a_host_that_accepts_and_says_nothing_keeps_to_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with party(f"mysql://app@127.0.0.1:{port}/none") as one:
            with answers_within(0.5), pytest.raises(StoreUnavailable):
                one.take(within=0.5)
            with answers_within(0.5), pytest.raises(StoreUnavailable):
                asyncio.run(one.take_async(within=0.5))


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 64, b"\0" * 64])
def test_a_peer_that_speaks_something_else_is_an_outage_that_says_so(said: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            peer, _ = other.accept()
            with peer:
                peer.sendall(said)

        threading.Thread(target=answer, daemon=True).start()
        url = f"mysql://app@127.0.0.1:{other.getsockname()[1]}/none"
        with party(url) as one, pytest.raises(StoreUnavailable, match="cannot be reached"):
            one.take(within=2)


def test_a_name_that_the_resolver_does_not_answer_for_keeps_to_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped = threading.Event()

    def slow(*_: object, **__: object) -> list[object]:
        stopped.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    with party("mysql://app@db.example/none") as one:
        with answers_within(0.5), pytest.raises(StoreUnavailable):
            one.take(within=0.5)
        with answers_within(0.5), pytest.raises(StoreUnavailable):
            asyncio.run(one.take_async(within=0.5))
    stopped.set()


# -- takes that come too late


def test_a_take_that_the_network_held_back_until_its_time_was_over_is_refused(
    far: Party, near: Party, network: FaultProxy
) -> None:
    far.store.give(far.key, far.claim, far.take().token, soon())
    network.hold(WRITE)
    with pytest.raises(OutcomeUnknown):
        far.store.take(far.key, far.claim, ASK, soon(1.0))
    time.sleep(0.3)
    network.heal()
    eventually(lambda: network.live == 0)
    assert near.store.read(near.key, soon()).holdings == ()


@pytest.mark.parametrize("known", [True, False])
def test_a_take_that_was_given_up_is_refused_when_it_arrives(
    far: Party, near: Party, network: FaultProxy, known: bool
) -> None:
    """As by a cancellation: the claim is given up while the take may still come."""
    if known:
        far.store.give(far.key, far.claim, far.take().token, soon())
    else:
        far.store.read(far.key, soon())
    claim = new_claim()
    network.hold(WRITE if known else b"START TRANSACTION")
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(far.store.take, far.key, claim, ASK, soon(30))
        eventually(lambda: network.holds)
        assert near.store.give(near.key, claim, None, soon()) == Gone()
        network.heal()
        assert not isinstance(taking.result(30), Granted)
    assert near.store.read(near.key, soon()).holdings == ()
    near.take(new_claim())


def test_a_take_of_a_cancelled_task_is_given_back_after_it(
    far: Party, near: Party, network: FaultProxy
) -> None:
    far.store.give(far.key, far.claim, far.take().token, soon())

    async def main() -> None:
        store = far.engine.async_store()
        network.delay(0.0, reply=0.5)
        taking = asyncio.create_task(store.take(far.key, far.claim, ASK, soon(10)))
        await asyncio.sleep(0.2)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        assert await store.give(far.key, far.claim, None, soon(10)) == Released()

    asyncio.run(main())
    near.take(new_claim())


# -- repeats


def test_a_write_that_is_not_repeatable_is_not_repeated(far: Party, network: FaultProxy) -> None:
    far.store.put(far.key, "state", b"0", None, soon())
    network.close_after_request(WRITE)
    with pytest.raises(OutcomeUnknown):
        far.store.put(far.key, "other", b"1", ABSENT, soon())
    assert far.store.put(far.key, "other", b"2", ABSENT, soon()) == Stale()
    network.close_after_request(WRITE)
    assert isinstance(far.store.put(far.key, "state", b"3", None, soon()), Stored)
    assert far.store.read(far.key, soon()).fields["state"].value == b"3"


# -- interruptions and forks


def test_a_signal_in_the_middle_of_an_answer_costs_the_connection_only(
    far: Party, network: FaultProxy
) -> None:
    class Alarm(Exception):
        pass

    def ring(_: int, __: FrameType | None) -> None:
        raise Alarm

    granted = far.take_and_use()
    network.delay(0.0, reply=0.6)
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(Alarm):
            far.store.renew([far.renewal(granted)], soon())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    network.heal()
    assert far.refused().holders[0].token == granted.token
    assert far.store.renew([far.renewal(granted)], soon()) == [Renewed()]


def test_a_forked_child_uses_connections_of_its_own(here: Party, maria_server: MariaServer) -> None:
    granted = here.take_and_use()
    assert here.store.renew([here.renewal(granted, ttl=60.0)], soon()) == [Renewed()]

    def child() -> int:
        assert here.refused().holders[0].token == granted.token
        here.store.close()
        return 0

    assert in_a_child(child) == 0
    # The parent's connection is as it was.
    assert here.store.renew([here.renewal(granted)], soon()) == [Renewed()]
    assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()


@pytest.mark.left(tiers.SIDES)
def test_a_child_that_was_forked_in_the_middle_of_a_request_leaves_its_answer_alone(
    far: Party, network: FaultProxy
) -> None:
    granted = far.take_and_use()
    network.delay(0.0, reply=0.3)
    with ThreadPoolExecutor(1) as pool:
        renewing = pool.submit(far.store.renew, [far.renewal(granted)], soon(10))
        time.sleep(0.1)
        assert in_a_child(lambda: 0 if far.refused().holders else 1) == 0
        assert renewing.result(10) == [Renewed()]


@pytest.mark.left(tiers.SIDES)
def test_many_threads_share_few_connections(here: Party, maria_server: MariaServer) -> None:
    def pairs(index: int) -> int:
        for turn in range(5):
            key = here.key._replace(name=f"{here.key.name}-{index}")
            claim = new_claim()
            outcome = here.store.take(key, claim, ASK, soon(30))
            assert isinstance(outcome, Granted), (turn, outcome)
            assert here.store.give(key, claim, outcome.token, soon(30)) == Released()
        return index

    with ThreadPoolExecutor(40) as pool:
        assert list(pool.map(pairs, range(40))) == list(range(40))
    database = here.engine.url.rpartition("/")[2]
    asked = f"SELECT COUNT(*) FROM information_schema.processlist WHERE db='{database}'"
    eventually(lambda: maria_server.sql(asked)[0][0] <= 11)


def test_a_wait_for_a_server_that_is_away_ends_in_time(far: Party, network: FaultProxy) -> None:
    far.take()
    seen = far.refused().seen
    network.blackhole()
    with answers_within(0.5):
        far.store.wait_change(far.key, seen, soon(0.5))
