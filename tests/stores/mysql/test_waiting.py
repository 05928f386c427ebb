"""Waiters: in line, in a crowd, and with few requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest

from incumbent import AsyncClient, Client, clock
from incumbent.model import Granted, Queue, Queued, Released
from incumbent.stores.mysql.exchange import MysqlExchange
from incumbent.stores.polling import Looks, Poll
from incumbent.stores.pooled_registers import PooledStore
from incumbent.stores.registers import Swap
from tests import tiers
from tests.stores.mysql.world import ASK, Clock, Party, new_claim, party, soon
from tests.support.mariadb import MariaServer
from tests.support.proxy import FaultProxy, requests_sent
from tests.support.waiting import eventually

LINED = replace(ASK, queue=Queue(30.0, fair=True))


def statements_in(sent: list[bytes]) -> int:
    """The exchanges about a name; each packet of a client is one write."""
    return sum(chunk[4:5] == b"\3" and b"faults/" in chunk for chunk in sent)


def test_an_uncontended_lease_is_one_statement_each(far: Party) -> None:
    granted = far.take_and_use()
    with requests_sent() as sent:
        far.store.renew([far.renewal(granted)], soon())
        far.store.give(far.key, granted.claim, granted.token, soon())
        far.take()
    assert statements_in(sent) == 3


def test_a_crowd_that_joins_a_line_at_once_needs_three_requests_each(
    far: Party, network: FaultProxy
) -> None:
    granted = far.take_and_use()
    count, start = 150, Barrier(10)
    claims = [new_claim() for _ in range(count)]

    def join(part: list[str]) -> list[int]:
        start.wait(30)
        found = []
        for claim in part:
            outcome = far.store.take(far.key, claim, LINED, soon(60))
            assert isinstance(outcome, Queued), outcome
            found.append(outcome.place)
        return found

    with requests_sent() as sent, ThreadPoolExecutor(10) as pool:
        found = pool.map(join, [claims[at::10] for at in range(10)])
        places = [place for part in found for place in part]
    assert statements_in(sent) <= 3 * count
    # All stand in line, each at a place of its own; who came first saw less of it.
    assert max(places) == count - 1
    assert far.store.give(far.key, granted.claim, granted.token, soon(30)) == Released()
    first = far.refused(new_claim())
    assert first.reason == "turn"


def test_those_who_joined_are_served_in_the_order_of_arrival(near: Party, far: Party) -> None:
    granted = far.take_and_use()
    claims = [new_claim() for _ in range(5)]
    for place, claim in enumerate(claims):
        side = (near, far)[place % 2]
        outcome = side.store.take(side.key, claim, LINED, soon())
        assert isinstance(outcome, Queued)
        assert outcome.place == place
    far.store.give(far.key, granted.claim, granted.token, soon())
    for place, claim in enumerate(claims):
        assert near.refused(new_claim()).reason == "turn"
        for later in claims[place + 1 :]:
            assert isinstance(far.store.take(far.key, later, LINED, soon()), Queued)
        outcome = near.store.take(near.key, claim, LINED, soon())
        assert isinstance(outcome, Granted), (place, outcome)
        near.store.give(near.key, claim, outcome.token, soon())


def test_who_joined_while_another_swapped_is_not_forgotten(near: Party, far: Party) -> None:
    """A swap takes into the record whom it has seen, and leaves the others beside it."""
    granted = far.take_and_use()
    first, second = new_claim(), new_claim()
    far.store.take(far.key, first, LINED, soon())
    near.store.put(near.key, "state", b"1", None, soon())  # takes the first into the record
    near.store.take(near.key, second, LINED, soon())
    assert near.store.give(near.key, granted.claim, granted.token, soon()) == Released()
    outcome = near.store.take(near.key, second, LINED, soon())
    assert isinstance(outcome, Queued)
    assert outcome.place == 1
    assert isinstance(far.store.take(far.key, first, LINED, soon()), Granted)


def test_who_joins_between_a_look_and_its_swap_stays_beside_the_record(
    near: Party, far: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    far.take_and_use()
    first, second, late = new_claim(), new_claim(), [new_claim()]
    far.store.take(far.key, first, LINED, soon())
    swap = MysqlExchange.swap

    def overtaken(self: MysqlExchange, swaps: Sequence[Swap], until: float) -> object:
        if late:
            near.store.take(near.key, late.pop(), LINED, soon())
        return swap(self, swaps, until)

    monkeypatch.setattr(MysqlExchange, "swap", overtaken)
    far.store.put(far.key, "state", b"1", None, soon())
    outcome = far.store.take(far.key, second, LINED, soon())
    assert isinstance(outcome, Queued)
    assert outcome.place == 2


def test_who_joins_while_the_clock_stands_still_stands_behind(
    near: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    near.take_and_use()
    Clock(monkeypatch).stands_at = int(clock.wall() * 1e6)
    # The store has them in the order of their names within one instant.
    for place, claim in enumerate(sorted((new_claim() for _ in range(4)), reverse=True)):
        outcome = near.store.take(near.key, claim, LINED, soon())
        assert isinstance(outcome, Queued)
        assert outcome.place == place


def test_a_give_that_others_wait_for_begins_the_turn_of_the_first(near: Party, far: Party) -> None:
    """Else it would have been its turn until the ttl of the holder ends, and be nobody's then."""
    granted = far.take_and_use()
    brief = replace(ASK, queue=Queue(5.0, fair=True))
    for _ in range(2):
        far.store.take(far.key, new_claim(), brief, soon())
    far.store.give(far.key, granted.claim, granted.token, soon())
    refused = near.refused()
    assert refused.reason == "turn"
    assert refused.retry_after is not None
    assert refused.retry_after <= 5.0


def test_who_joined_comes_before_others_when_the_ttl_of_the_holder_ends(far: Party) -> None:
    far.store.give(far.key, far.claim, far.take().token, soon())
    far.take(ask=replace(ASK, ttl=3.0))
    first = new_claim()
    assert isinstance(far.store.take(far.key, first, LINED, soon()), Queued)
    eventually(lambda: not far.store.read(far.key, soon()).holdings)
    assert far.refused().reason == "turn"
    assert isinstance(far.store.take(far.key, first, LINED, soon()), Granted)


def test_waiters_of_one_process_share_their_looks(far: Party, network: FaultProxy) -> None:
    far.take_and_use()
    claims = [new_claim() for _ in range(12)]
    seen = {}
    for claim in claims:
        outcome = far.store.take(far.key, claim, LINED, soon())
        assert isinstance(outcome, Queued)
        seen[claim] = outcome.seen
    started = clock.now()
    with requests_sent() as sent, ThreadPoolExecutor(12) as pool:
        list(
            pool.map(
                lambda claim: far.store.wait_change(far.key, seen[claim], started + 3.0), claims
            )
        )
    # One of them looks, at growing intervals of 0.02 to 0.5 s.
    assert statements_in(sent) <= 40


@pytest.fixture
def looks_seldom(here: Party) -> None:
    """Its waiters look at once, soon again, and then after 20 s: whoever waits so long shows."""
    assert isinstance(here.store, PooledStore)
    here.store.operations.looks = Looks(Poll(first=0.02, longest=600.0, growth=1000.0))


@pytest.mark.usefixtures("looks_seldom")
def test_a_release_of_this_process_is_heard_at_once(here: Party) -> None:
    granted = here.take_and_use()
    claim = new_claim()
    outcome = here.store.take(here.key, claim, LINED, soon())
    assert isinstance(outcome, Queued)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(here.store.wait_change, here.key, outcome.seen, soon(60))
        time.sleep(0.5)
        here.store.give(here.key, granted.claim, granted.token, soon())
        started = clock.now()
        waiting.result(60)
    assert clock.now() - started < 15


@pytest.mark.usefixtures("looks_seldom")
def test_blocking_and_asyncio_waiters_of_one_process_share_their_looks(
    here: Party, maria_server: MariaServer
) -> None:
    granted = here.take_and_use()
    with ThreadPoolExecutor(1) as pool:

        async def main() -> float:
            store = here.engine.async_store()
            ours = await store.take(here.key, new_claim(), LINED, soon())
            theirs = here.store.take(here.key, new_claim(), LINED, soon())
            assert isinstance(ours, Queued)
            assert isinstance(theirs, Queued)
            blocked = pool.submit(here.store.wait_change, here.key, theirs.seen, soon(2))
            waiting = asyncio.create_task(store.wait_change(here.key, ours.seen, soon(60)))
            await asyncio.sleep(0.5)
            await store.give(here.key, granted.claim, granted.token, soon())
            started = clock.now()
            await waiting
            took = clock.now() - started
            blocked.result(10)
            return took

        assert asyncio.run(main()) < 15


@pytest.mark.left(tiers.LONG)
def test_a_waiter_whose_loop_is_blocked_keeps_no_other_waiting(here: Party) -> None:
    granted = here.take_and_use()
    refused = here.refused()

    async def main() -> None:
        store = here.engine.async_store()
        waiting = asyncio.create_task(store.wait_change(here.key, refused.seen, soon(30)))
        await asyncio.sleep(0.3)
        with ThreadPoolExecutor(1) as pool:
            blocked = pool.submit(here.store.wait_change, here.key, refused.seen, soon(30))
            here.store.give(here.key, granted.claim, granted.token, soon())
            started = clock.now()
            blocked.result(20)  # and the loop stands still meanwhile
            assert clock.now() - started < 5
        await waiting

    asyncio.run(main())


def test_two_processes_worth_of_waiters_all_get_the_lease(
    maria_server: MariaServer, database: str
) -> None:
    url = f"{maria_server.url_of(database)}?restart_wait=0"
    inside = [0, 0]

    def work(client: Client) -> None:
        for _ in range(3):
            with client.lock("crowd", ttl=10).acquire(timeout=60):
                inside[0] += 1
                inside[1] = max(inside[1], inside[0])
                time.sleep(0.002)
                inside[0] -= 1

    clients = [Client(url), Client(url)]
    with ThreadPoolExecutor(10) as pool:
        list(pool.map(work, clients * 5))
    for client in clients:
        client.close()
    assert inside == [0, 1]


@pytest.mark.left(tiers.LONG)
def test_a_hundred_tasks_wait_without_a_thread_each(
    maria_server: MariaServer, database: str
) -> None:
    done = []

    async def work(client: AsyncClient, index: int) -> None:
        async with await client.lock("tasks", ttl=20).acquire(timeout=90):
            done.append(index)

    async def main() -> None:
        async with AsyncClient(f"{maria_server.url_of(database)}?restart_wait=0") as client:
            await asyncio.gather(*(work(client, index) for index in range(100)))

    asyncio.run(main())
    assert sorted(done) == list(range(100))


@pytest.mark.left(tiers.LONG)
def test_a_line_is_not_lost_over_a_restart(own_maria: MariaServer) -> None:
    from tests.stores.mysql.world import new_database, patiently

    with party(own_maria.url_of(new_database(own_maria))) as one:
        granted = one.take_and_use()
        claim = new_claim()
        assert isinstance(one.store.take(one.key, claim, LINED, soon()), Queued)
        own_maria.restart()
        patiently(lambda: one.store.give(one.key, granted.claim, granted.token, soon()))
        assert one.refused(new_claim()).reason == "turn"
        assert isinstance(one.store.take(one.key, claim, LINED, soon()), Granted)


def test_waiters_go_one_after_the_other_without_a_pause(
    far: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the one that looks goes, another one looks, before it is missed."""
    for bound in ("stores.polling._SILENT", "net.readers.SLICE"):
        monkeypatch.setattr(f"incumbent.{bound}", 60.0)
    far.take_and_use()
    seen = far.refused().seen
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(far.store.wait_change, far.key, seen, soon(0.5))
        time.sleep(0.1)
        second = pool.submit(far.store.wait_change, far.key, seen, soon(60))
        first.result(30)
        started = clock.now()
        other = far.store.put(far.key, "pause", b"{}", None, soon())
        assert other is not None
        second.result(60)
    assert clock.now() - started < 20
