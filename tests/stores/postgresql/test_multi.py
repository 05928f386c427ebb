"""PostgreSQL: several names in one transaction, which no other can deadlock with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from incumbent import AsyncClient, Client, StoreError
from incumbent.model import Granted, Key, Refused, Released
from incumbent.stores.base import Give, Take
from tests.stores.postgresql.world import ASK, Party, new_claim, party, soon
from tests.support.postgresql import PostgresServer
from tests.support.proxy import FaultProxy, requests_sent
from tests.support.waiting import eventually

pytestmark = pytest.mark.server

LOCKED = """
    select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = '{database}'
"""
BUSY = "select count(*) from pg_stat_activity where state = 'active' and datname = '{database}'"
SLOW = """
    create function public.slow() returns trigger language plpgsql as
        'begin perform pg_sleep(0.6); return new; end';
    create trigger slow before insert on incumbent.history
        for each row execute function public.slow();
"""


@pytest.fixture
def one(postgres_server: PostgresServer, database: str) -> Iterator[Party]:
    with party(postgres_server.url_of(database)) as made:
        yield made


def takes(*names: str) -> list[Take]:
    return [Take(Key("default", name), new_claim(), ASK) for name in names]


def take_all(party: Party, asked: Sequence[Take], within: float = 5.0) -> list[Any]:
    store: Any = party.store
    outcomes: list[Any] = store.take_all(asked, soon(within))
    return outcomes


def give_all(party: Party, asked: Sequence[Take], granted: Sequence[Any]) -> list[Any]:
    store: Any = party.store
    gives = [Give(it.key, it.claim, by.token) for it, by in zip(asked, granted, strict=True)]
    outcomes: list[Any] = store.give_all(gives, soon())
    return outcomes


def held(party: Party) -> list[str]:
    return [it.key.name for it in party.store.scan("default", "", soon()) if it.holdings]


def test_all_names_are_taken_in_two_round_trips_and_given_back_in_two(
    postgres_server: PostgresServer, database: str, network: FaultProxy, one: Party
) -> None:
    url = f"{postgres_server.url_of(database, port=network.port)}"
    url += f"{'&' if '?' in url else '?'}restart_wait=0"
    found: list[int] = []
    with Client(url) as client:
        lock = client.multi_lock(["a", "b", "c"], timeout=5)
        with lock:
            pass  # connects, and has the statements prepared
        for _ in range(2):
            client.read("a")  # after the second nothing is on its way any more
        with requests_sent() as sent, lock as lease:
            found.append(len(sent))
            lease.check()
            assert held(one) == ["a", "b", "c"]
        found.append(len(sent) - found[-1])

    async def scenario() -> None:
        async with AsyncClient(url) as client:
            lock = client.multi_lock(["a", "b", "c"], timeout=5)
            async with lock:
                pass
            for _ in range(2):
                await client.read("a")
            with requests_sent() as sent:
                async with lock:
                    found.append(len(sent))
                found.append(len(sent) - found[-1])

    asyncio.run(scenario())
    assert found == [2, 2, 2, 2]


def test_each_is_answered_as_if_it_were_alone(one: Party) -> None:
    (other,) = take_all(one, middle := takes("b"))
    first, second, third = take_all(one, asked := takes("a", "b", "c"))
    assert isinstance(first, Granted)
    assert isinstance(second, Refused)
    assert (second.reason, second.holders[0].token) == ("held", other.token)
    assert held(one) == ["a", "b", "c"]
    given = give_all(one, [asked[0], *middle, asked[2]], [first, other, third])
    assert given == [Released()] * 3
    assert held(one) == []


def test_transactions_that_name_them_in_another_order_wait_for_each_other_in_one_direction(
    one: Party, postgres_server: PostgresServer, database: str
) -> None:
    last = takes("b")
    give_all(one, last, take_all(one, last))
    with (
        psycopg.connect(postgres_server.url_of(database)) as operator,
        ThreadPoolExecutor(2) as pool,
    ):
        operator.execute("select from incumbent.record where key = 'default/b' for update")

        def waiting() -> int:
            ((count,),) = postgres_server.psql(LOCKED.format(database=database))
            return int(count)

        first = pool.submit(take_all, one, ahead := takes("b", "a"))
        eventually(lambda: waiting() == 1)
        second = pool.submit(take_all, one, takes("a", "b"))
        eventually(lambda: waiting() == 2)
        operator.rollback()
        granted = first.result()
        assert [type(it) for it in granted] == [Granted, Granted]
        assert [type(it) for it in second.result()] == [Refused, Refused]
        assert give_all(one, ahead[::-1], granted[::-1]) == [Released()] * 2


def test_of_takes_that_waited_for_a_row_until_their_time_was_over_none_is_carried_out(
    one: Party, postgres_server: PostgresServer, database: str
) -> None:
    last = takes("b")
    give_all(one, last, take_all(one, last))
    with psycopg.connect(postgres_server.url_of(database)) as operator:
        operator.execute("select from incumbent.record where key = 'default/b' for update")
        with pytest.raises(StoreError):
            take_all(one, takes("a", "b"), within=0.3)
        time.sleep(0.2)  # the server's clock is known to some milliseconds
        operator.rollback()
    eventually(lambda: postgres_server.psql(BUSY.format(database=database)) == [(0,)])
    assert held(one) == []


def test_what_was_granted_before_the_time_was_over_goes_with_what_came_too_late(
    one: Party, postgres_server: PostgresServer, database: str
) -> None:
    before = takes("a")
    give_all(one, before, take_all(one, before))
    postgres_server.psql(SLOW, database)
    with pytest.raises(StoreError):
        take_all(one, takes("a", "b"), within=0.3)
    eventually(lambda: postgres_server.psql(BUSY.format(database=database)) == [(0,)])
    assert held(one) == []


def test_the_waiters_of_the_same_process_are_told_of_each_name(
    one: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    turns = one.engine.store().operations.turns  # type: ignore[attr-defined]
    monkeypatch.setattr(turns, "note_given", lambda key, _claim: told.append(key.name))
    give_all(one, asked := takes("a", "b"), take_all(one, asked))
    assert told == ["a", "b"]
