"""PostgreSQL: a take that arrives after its claim was given up leaves no lease and uses no slot."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import psycopg
import pytest

from incumbent import Client
from incumbent.errors import OutcomeUnknown
from incumbent.model import Ask, Gone, Parting, Refused, Released, Slot
from tests.stores.postgresql.world import (
    ASK,
    Party,
    new_claim,
    new_database,
    party,
    settled,
    soon,
)
from tests.support.postgresql import PostgresServer
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually

SLOT = Slot("monday", 43_200.0)
ONCE = replace(ASK, slot=SLOT)


def settle(far: Party) -> None:
    """Of the second read nothing is on its way any more: what is sent next leaves at once."""
    for _ in range(2):
        far.store.read(far.key, soon())


def take_in_vain(far: Party, within: float) -> None:
    with pytest.raises(OutcomeUnknown):
        far.store.take(far.key, far.claim, ASK, soon(within))


def nothing_is_left(database: str, server: PostgresServer, key: str) -> None:
    assert server.psql(f"select claim from incumbent.record where key = '{key}'", database) in (
        [],
        [("",)],
    )
    assert server.psql("select * from incumbent.beside", database) == []


def test_a_take_that_the_network_held_back_until_its_time_was_over_is_refused(
    far: Party, near: Party, network: FaultProxy, database: str, postgres_server: PostgresServer
) -> None:
    settle(far)
    network.blackhole()
    take_in_vain(far, 1.0)
    time.sleep(0.3)
    network.heal()
    eventually(lambda: network.live == 0)  # it arrived, and what it was answered too
    nothing_is_left(database, postgres_server, str(far.key))
    near.take(new_claim(), ask=ONCE)


def test_a_take_that_was_given_up_before_its_time_was_over_is_refused_when_it_arrives(
    far: Party, near: Party, network: FaultProxy, database: str, postgres_server: PostgresServer
) -> None:
    # As by a cancellation: the claim is given up while the take may still come.
    async def main() -> None:
        store = await settled(far)
        network.blackhole()
        taking = asyncio.create_task(store.take(far.key, far.claim, ASK, soon(30)))
        await asyncio.sleep(0.1)
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        given = near.store.give(far.key, far.claim, None, soon(), parting=Parting(slot=SLOT.name))
        assert given == Gone()
        network.heal()
        await store.aclose()

    asyncio.run(main())
    eventually(lambda: network.live == 0)
    nothing_is_left(database, postgres_server, str(far.key))
    near.take(new_claim(), ask=ONCE)


BUSY = """
    select count(*) from pg_stat_activity
    where backend_type = 'client backend' and application_name <> 'operator' and state <> 'idle'
"""


def freeze_during_a_take(far: Party, server: PostgresServer) -> None:
    settle(far)
    server.freeze()
    try:
        take_in_vain(far, 1.0)
        time.sleep(0.3)
    finally:
        server.thaw()


def freeze_during_a_take_on_asyncio(far: Party, server: PostgresServer) -> None:
    async def main() -> None:
        store = await settled(far)
        server.freeze()
        try:
            with pytest.raises(OutcomeUnknown):
                await store.take(far.key, far.claim, ASK, soon(1.0))
            await asyncio.sleep(0.3)
        finally:
            server.thaw()
        await store.aclose()

    asyncio.run(main())


@pytest.mark.parametrize("freeze", [freeze_during_a_take, freeze_during_a_take_on_asyncio])
def test_a_frozen_server_does_not_execute_later_what_nobody_waits_for_any_more(
    freeze: Callable[[Party, PostgresServer], None], own_postgres: PostgresServer
) -> None:
    database = new_database(own_postgres)
    with party(own_postgres.url_of(database)) as far:
        freeze(far, own_postgres)
        eventually(lambda: own_postgres.psql(BUSY) == [(0,)])
        nothing_is_left(database, own_postgres, str(far.key))
        far.take(new_claim(), ask=ONCE)


ASKS_AND_DIES = """
import os, sys
from incumbent import Client, StoreUnavailable, OutcomeUnknown
client = Client(sys.argv[1], ttl=1.5)
for _ in range(2):  # the second leaves nothing on its way
    client.lock("other", timeout=10).acquire().release()
print("ready", flush=True)
sys.stdin.readline()
try:
    client.lock("nightly", once_per=43_200.0, timeout=0).acquire()
except (StoreUnavailable, OutcomeUnknown):
    os._exit(0)
"""


def test_a_take_whose_process_is_gone_before_it_arrives_uses_no_slot(
    far: Party, near: Party, network: FaultProxy
) -> None:
    command = [sys.executable, "-c", ASKS_AND_DIES, f"{far.engine.url}?restart_wait=0"]
    asker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert asker.stdout is not None
    assert asker.stdout.readline() == "ready\n"
    network.blackhole()
    asker.communicate("go\n", timeout=30)
    assert asker.returncode == 0
    time.sleep(0.3)
    network.heal()
    eventually(lambda: network.live == 0)
    with Client(near.engine) as other, other.lock("nightly", once_per=43_200.0, timeout=20):
        pass


def test_a_take_that_waited_for_a_locked_row_until_its_time_was_over_is_not_carried_out(
    far: Party, database: str, postgres_server: PostgresServer
) -> None:
    granted = far.take()
    far.store.give(far.key, far.claim, granted.token, soon())
    with psycopg.connect(postgres_server.url_of(database)) as operator:
        operator.execute("select from incumbent.record for update")
        take_in_vain(far, 0.5)
        time.sleep(0.2)
        operator.rollback()
    eventually(lambda: postgres_server.psql(BUSY, database) == [(0,)])
    nothing_is_left(database, postgres_server, str(far.key))


def test_who_gave_a_claim_up_can_never_be_granted_it_again(near: Party) -> None:
    granted = near.take()
    assert near.store.give(near.key, near.claim, None, soon()) == Released()
    refused = near.store.take(near.key, near.claim, ASK, soon())
    assert isinstance(refused, Refused)
    assert near.take(new_claim()).token > granted.token


def test_a_certain_release_leaves_no_mark(
    near: Party, database: str, postgres_server: PostgresServer
) -> None:
    granted = near.take()
    near.store.give(near.key, near.claim, granted.token, soon())
    near.take()
    assert postgres_server.psql("select rest from incumbent.record", database) == [("",)]


@pytest.mark.parametrize("ask", [ASK, ONCE])
def test_a_server_whose_clock_jumped_ahead_is_asked_what_time_it_is_and_serves_on(
    near: Party, ask: Ask
) -> None:
    # What a connection knows of the server's clock may be old.
    near.take()
    operations = near.store.operations  # type: ignore[attr-defined]
    (wire,) = operations.idle
    wire.ahead -= 3600.0
    near.key = near.key._replace(name="other")
    near.take(new_claim(), ask=ask)
    assert wire.closed
