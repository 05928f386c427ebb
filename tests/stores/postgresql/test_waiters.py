"""Many waiters in several processes: who is told, and how much they ask."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, cast

import psycopg
import pytest

from incumbent import AsyncClient, clock
from incumbent.model import Key, Queue, Queued, Released
from incumbent.net.readers import SharedWakeup
from incumbent.stores import turns
from incumbent.stores.deciding import present
from incumbent.stores.names import flat
from incumbent.stores.plan import Plan, run_blocking
from incumbent.stores.postgresql.runner import Runner
from incumbent.stores.postgresql.subscriber import NotificationListener
from incumbent.stores.postgresql.wire import PostgresWire
from incumbent.stores.registers import Load, Wanted
from tests import tiers
from tests.stores.postgresql.world import ASK, Party, new_claim, new_database, party, soon
from tests.support.postgresql import PostgresServer


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    return postgres_server.url_of(new_database(postgres_server))


# -- what is notified


@pytest.mark.parametrize("waiting", [0, 2])
def test_a_release_names_the_first_in_line(url: str, waiting: int) -> None:
    with party(url) as one, psycopg.connect(url, autocommit=True) as listener:
        listener.execute("LISTEN incumbent")
        granted, key, ask = one.take(), flat(one.key), replace(ASK, queue=Queue(5.0, fair=True))
        claims = [new_claim() for _ in range(waiting)]
        for claim in claims:
            refused = one.store.take(one.key, claim, ask, soon())
            assert isinstance(refused, Queued)
        # Whoever waits says so in the record.
        _marks(one)
        one.store.give(one.key, one.claim, granted.token, soon())
        heard = [each.payload for each in listener.notifies(timeout=5, stop_after=1)]
    assert heard == [" ".join([key, *claims[:1]])]


@pytest.mark.parametrize("candidacy", [0.0, 20.0])
def test_everybody_who_waits_learns_of_the_grant_to_a_candidate(url: str, candidacy: float) -> None:
    with party(url) as one, psycopg.connect(url, autocommit=True) as listener:
        listener.execute("LISTEN incumbent")
        granted, key = one.take(), flat(one.key)
        one.store.give(one.key, one.claim, granted.token, soon())
        _marks(one)
        one.store.take(one.key, new_claim(), replace(ASK, candidacy=candidacy), soon())
        one.store.put(Key("default", "end"), "f", b"x", None, soon())
        heard = [each.payload for each in listener.notifies(timeout=20, stop_after=1)]
    assert heard[0] == (key if candidacy else "default/end")


def _marks(one: Party) -> None:
    """As a waiter does that begins to wait."""
    operations: Any = one.store.operations  # type: ignore[attr-defined]
    run_blocking(operations.run(operations.dialect.unchanged(one.key, "", 20.0), soon()))


# -- what is made of it


class _Scripted:
    """A connection that is told one batch after the other, and then nothing."""

    closed = False

    def __init__(self, batches: list[list[str]]) -> None:
        self.batches = batches

    async def query(self, *_: object) -> None:
        """LISTEN."""

    async def notified(self, until: float) -> list[str]:
        if self.batches:
            return self.batches.pop(0)
        await asyncio.sleep(max(0.0, until - clock.now()))
        return []

    def close(self) -> None:
        self.closed = True


async def _waits(batches: list[list[str]], claim: str) -> int:
    """How many batches are left when a waiter for "k" goes on."""
    wire = _Scripted([*batches])

    async def connect(_: float) -> PostgresWire:
        return cast("PostgresWire", wire)

    async def same() -> bool:
        return True

    await NotificationListener(connect, SharedWakeup).wait("k", claim, soon(10), same)
    return len(wire.batches)


@pytest.mark.parametrize(
    ("claim", "batches"),
    [
        ("", [["k"], ["x"]]),
        ("", [["j"], ["j", "k"], ["x"]]),
        ("", [["j c"], ["k c"], ["x"]]),
        ("c", [["k d"], ["k c"], ["x"]]),
        ("c", [["j c", "k d"], ["k d", "k"], ["x"]]),
    ],
)
def test_a_waiter_looks_when_its_turn_may_have_come_and_not_before(
    claim: str, batches: list[list[str]]
) -> None:
    assert asyncio.run(_waits(batches, claim)) == 1


# -- many


def test_one_waiter_of_a_process_stands_in_the_line_of_the_store(url: str) -> None:
    unfair = replace(ASK, queue=Queue(5.0))
    with party(url) as one, party(url) as other:
        other.key = one.key

        def stand(party: Party, count: int) -> list[str]:
            claims = [new_claim() for _ in range(count)]
            for claim in claims:
                # Asked twice, as no refusal of another waiter is shared then.
                for _ in range(2):
                    assert isinstance(party.store.take(party.key, claim, unfair, soon()), Queued)
            return claims

        def in_line() -> list[str]:
            operations: Any = one.store.operations  # type: ignore[attr-defined]
            (seen,) = run_blocking(operations.run(_load(one.key), soon()))
            return [waiter.claim for waiter in present(seen).line.waiters]

        held = one.take()
        theirs = stand(other, 3)
        assert in_line() == theirs[:1]
        other.store.give(other.key, theirs[0], None, soon())
        assert in_line() == []
        # The next one stands for the others now.
        refused = other.store.take(other.key, theirs[2], unfair, soon())
        assert isinstance(refused, Queued)
        assert in_line() == theirs[2:]
        assert one.store.give(one.key, one.claim, held.token, soon()) == Released()


def _load(key: Key) -> Plan[Any, Any]:
    def start(_facts: Any, _until: float) -> Any:
        return (yield Load((Wanted(key),)))

    return Plan("look", start, (key,))


@pytest.mark.left(tiers.LONG)
def test_150_that_join_a_line_at_once_ask_three_times_at_most(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []
    query = PostgresWire.query

    async def counted(self: PostgresWire, request: Any, until: float) -> Any:
        asked.append(request.sql)
        return await query(self, request, until)

    async def join(store: Any, one: Party) -> int:
        ask = replace(ASK, queue=Queue(5.0, fair=True))
        outcome = await store.take(one.key, new_claim(), ask, soon(60))
        assert isinstance(outcome, Queued)
        return outcome.place

    async def all_at_once(one: Party) -> list[int]:
        store = one.engine.async_store()
        try:
            return await asyncio.gather(*(join(store, one) for _ in range(150)))
        finally:
            await store.aclose()

    monkeypatch.setattr(PostgresWire, "query", counted)
    with party(url) as one:
        one.take(ask=replace(ASK, ttl=600.0))
        places = asyncio.run(all_at_once(one))
    assert sorted(places) == list(range(150))
    assert sum(b"hello" not in sql for sql in asked) <= 3 * 150


@pytest.mark.left(tiers.LONG)
def test_of_a_turn_other_processes_ask_for_little(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    carry_out = Runner.carry_out

    def counted(self: Any, wire: Any, plan: Any, until: float) -> Any:
        asked.append(plan.kind)
        return carry_out(self, wire, plan, until)

    monkeypatch.setattr(Runner, "carry_out", counted)
    # However slow this machine is.
    for name in ("_BRIEF", "TURN"):
        monkeypatch.setattr(turns, name, 5.0)
    asyncio.run(_in_clients(url, [20] * 8))
    # On a quiet machine it is twice as often as there are grants; where each process looks at each
    # change, eight times.
    assert asked.count("take") < 160 * 4


def test_one_of_another_process_comes_before_hundreds_of_one_process_have_had_it(
    url: str,
) -> None:
    order = asyncio.run(_in_clients(url, [200, 1]))
    assert order.index(1) < 200


async def _in_clients(url: str, waiters: list[int]) -> list[int]:
    """So many waiters of each client take a lease once: of which clients, in their order."""
    clients = [AsyncClient(f"{url}?restart_wait=0") for _ in waiters]
    order: list[int] = []

    async def one(which: int) -> None:
        async with clients[which].lock("many", ttl=60, timeout=60):
            order.append(which)

    try:
        async with clients[0].lock("many", ttl=60):
            each = [which for which, count in enumerate(waiters) for _ in range(count)]
            tasks = [asyncio.create_task(one(which)) for which in each]
            # Until then each has asked, and waits.
            await asyncio.sleep(1.0)
        await asyncio.gather(*tasks)
    finally:
        for client in clients:
            await client.aclose()
    return order
