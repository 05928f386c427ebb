"""Many waiters in several processes: while one process has its turn, the others ask for nothing."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import psycopg
import pytest

from incumbent import AsyncClient, clock
from incumbent.model import Refused
from incumbent.net.readers import SharedWakeup
from incumbent.stores import turns
from incumbent.stores.names import flat
from incumbent.stores.postgresql import subscriber
from incumbent.stores.postgresql.dialect import OURS
from incumbent.stores.postgresql.runner import Runner
from incumbent.stores.postgresql.subscriber import Subscriber
from incumbent.stores.postgresql.wire import Wire
from tests.stores.postgresql.world import Party, new_claim, new_database, party, soon
from tests.support.pace import took
from tests.support.postgresql import PostgresServer
from tests.support.waiting import eventually


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    return postgres_server.url_of(new_database(postgres_server))


def _leave_to_ours(one: Party, refused: Refused) -> None:
    """As if another waiter of this process were about to follow."""
    line = one.store.operations.turns.line(one.key)  # type: ignore[attr-defined]
    line.stand(new_claim(), refused)
    line.ours = True


# -- what is notified


@pytest.mark.parametrize("ours", [False, True])
def test_a_release_says_whether_it_is_left_to_a_waiter_of_its_process(
    url: str, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So long that a busy machine cannot make it look like that.
    monkeypatch.setattr(subscriber, "_FOLLOWS", 1.5)
    with party(url) as one, party(url) as other, psycopg.connect(url, autocommit=True) as listener:
        listener.execute("LISTEN incumbent")
        granted, key = one.take(), flat(one.key)
        refused = one.refused()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(other.store.wait_change, one.key, refused.seen, soon(20))
            marked = "select from incumbent.record where waited > clock_timestamp()"
            eventually(lambda: listener.execute(marked).rowcount == 1)
            time.sleep(0.1)
            if ours:
                _leave_to_ours(one, refused)
            began = clock.now()
            one.store.give(one.key, one.claim, granted.token, soon())
            # Even if nobody follows, the others look soon.
            waiting.result(5)
            assert (clock.now() - began >= subscriber._FOLLOWS) is ours
        heard = [each.payload for each in listener.notifies(timeout=5, stop_after=1 + ours)]
    assert heard == ([key + OURS, key] if ours else [key])


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


async def _waits(batches: list[list[str]]) -> tuple[float, int]:
    """For how long a waiter for "k" waits, and how many batches are left then."""
    wire = _Scripted([*batches])

    async def connect(_: float) -> Wire:
        return cast("Wire", wire)

    async def same() -> bool:
        return True

    began = clock.now()
    await Subscriber(connect, SharedWakeup).wait("k", soon(10), same)
    return took(began), len(wire.batches)


_LEFT = ["k" + OURS, "k"]


@pytest.mark.parametrize(
    "batches",
    [
        [["k"], ["x"]],
        [["j" + OURS, "j"], ["j" + OURS, "k"], ["x"]],
        [_LEFT, ["k"], ["x"]],
        [_LEFT, ["k" + OURS], ["k"], _LEFT * 2, ["k", "j"], ["x"]],
        [[*_LEFT, "k"], ["x"]],
        [_LEFT, ["k", *_LEFT], _LEFT, ["k"], ["x"]],
    ],
)
def test_a_waiter_looks_when_a_turn_is_over_and_not_before(
    monkeypatch: pytest.MonkeyPatch, batches: list[list[str]]
) -> None:
    monkeypatch.setattr(subscriber, "_FOLLOWS", 5.0)
    waited, left = asyncio.run(_waits(batches))
    assert left == 1
    assert waited < 4


def test_a_waiter_looks_although_nobody_follows() -> None:
    waited, left = asyncio.run(_waits([_LEFT]))
    assert left == 0
    assert subscriber._FOLLOWS <= waited < 5


# -- many


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
    for module, name in ((turns, "_BRIEF"), (turns, "TURN"), (subscriber, "_FOLLOWS")):
        monkeypatch.setattr(module, name, 5.0)
    asyncio.run(_in_clients(url, [20] * 8))
    # Where each looks at each change it is twice as many.
    assert asked.count("take") < 160 * 3


def test_one_of_another_process_comes_before_hundreds_of_one_process_have_had_it(
    url: str,
) -> None:
    order = asyncio.run(_in_clients(url, [500, 1]))
    assert order.index(1) < 500


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
