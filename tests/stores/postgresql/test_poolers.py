"""A real pgbouncer in each of its modes: excludes across server sessions, and waits by looking."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from incumbent import AsyncLock, Lock, NotAcquired, clock
from incumbent.errors import StoreError
from incumbent.model import Released, Renewed
from tests import tiers
from tests.cli.tool import incumbent
from tests.stores.postgresql.world import (
    Party,
    answers_within,
    new_claim,
    new_database,
    party,
    patiently,
    soon,
)
from tests.support.pace import BUSY, took
from tests.support.postgresql import PgBouncer, PostgresServer

LISTENING = "select 1 from pg_stat_activity where query ilike 'listen%'"
MODES = ["transaction", "session", "statement"]


@pytest.fixture(params=MODES)
def pooler(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    with PgBouncer(postgres_server, request.param) as bouncer:
        yield bouncer


@pytest.fixture
def by_transaction(postgres_server: PostgresServer) -> Iterator[PgBouncer]:
    """Two server sessions for any number of clients."""
    with PgBouncer(postgres_server, "transaction", ["default_pool_size = 2"]) as bouncer:
        yield bouncer


@pytest.mark.parametrize("how", ["sync", "async"])
def test_every_operation_works_behind_a_pooler(pooler: PgBouncer, database: str, how: str) -> None:
    with party(pooler.url_of(database)) as one, party(pooler.url_of(database)) as two:
        two.key = one.key
        granted = one.take() if how == "sync" else asyncio.run(one.take_async())
        assert two.refused().holders[0].claim == one.claim
        assert one.store.renew([one.renewal(granted)], soon()) == [Renewed()]
        one.store.put(one.key, "note", b"x", None, soon())
        assert two.store.read(one.key, soon()).fields["note"].value == b"x"
        assert [it.key for it in two.store.scan("faults", one.key.name, soon())] == [one.key]
        assert one.store.give(one.key, one.claim, granted.token, soon()) == Released()
        two.take()


def test_many_clients_that_share_server_sessions_never_hold_together(
    by_transaction: PgBouncer, database: str
) -> None:
    """Advisory locks fail here: they belong to the server's session, which two clients share."""
    url = by_transaction.url_of(database)
    parties = [party(url) for _ in range(6)]
    inside, most, grants = 0, 0, 0

    def compete(one: Party) -> None:
        nonlocal inside, most, grants
        for _ in range(15):
            claim = new_claim()
            try:
                one.take(claim)
            except AssertionError:
                continue
            inside, most, grants = inside + 1, max(most, inside + 1), grants + 1
            time.sleep(0.001)
            inside -= 1
            one.store.give(one.key, claim, None, soon())

    with ThreadPoolExecutor(6) as pool:
        opened = [it.__enter__() for it in parties]
        for one in opened:
            one.key = opened[0].key
        list(pool.map(compete, opened))
        for it in parties:
            it.__exit__(None, None, None)
    assert grants > 1
    assert most == 1


@pytest.mark.left(tiers.MEET, "session-async", "transaction-sync")
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_waiter_behind_a_pooler_learns_of_a_release(
    pooler: PgBouncer, database: str, how: str
) -> None:
    url = f"{pooler.url_of(database)}?restart_wait=0"

    async def wait() -> None:
        lease = await AsyncLock("job", store=url, timeout=8).acquire()
        await lease.release()

    def waited() -> float:
        began = clock.now()
        if how == "sync":
            Lock("job", store=url, timeout=30).acquire().release()
        else:
            asyncio.run(wait())
        return clock.now() - began

    with ThreadPoolExecutor(1) as pool, Lock("job", store=url, timeout=0):
        waiting = pool.submit(waited)
        time.sleep(0.5)
        with pytest.raises(NotAcquired):
            Lock("job", store=url, timeout=0).acquire()
        given = clock.now()
    assert waiting.result() >= 0.4
    assert took(given) < 1.0 + BUSY


def test_waiters_behind_a_pooler_leave_its_sessions_to_others(
    by_transaction: PgBouncer, postgres_server: PostgresServer, database: str
) -> None:
    with party(by_transaction.url_of(database)) as one:
        one.take()
        seen = one.refused().seen
        with ThreadPoolExecutor(8) as pool:
            waiting = [
                pool.submit(one.store.wait_change, one.key, seen, soon(1.5)) for _ in range(8)
            ]
            time.sleep(0.3)
            # Both server sessions would be taken if a waiter kept one.
            for _ in range(5):
                with answers_within(0.5):
                    one.refused()
            for it in waiting:
                it.result()
    assert postgres_server.psql(f"{LISTENING} and datname = '{database}'") == []


def test_a_session_pool_that_is_full_is_an_error_in_time(
    postgres_server: PostgresServer, database: str
) -> None:
    with (
        PgBouncer(postgres_server, "session", ["default_pool_size = 1"]) as bouncer,
        party(bouncer.url_of(database)) as one,
        party(bouncer.url_of(database)) as two,
    ):
        granted = one.take()
        with answers_within(0.5), pytest.raises(StoreError):
            two.take(within=0.5)
        assert one.store.renew([one.renewal(granted)], soon()) == [Renewed()]


def test_a_frozen_pooler_delays_nobody_past_the_deadline(
    by_transaction: PgBouncer, database: str
) -> None:
    with party(by_transaction.url_of(database)) as one:
        granted = one.take()
        by_transaction.freeze()
        try:
            for _ in range(2):
                with answers_within(0.3), pytest.raises(StoreError):
                    one.store.renew([one.renewal(granted)], soon(0.3))
        finally:
            by_transaction.thaw()
        assert one.store.renew([one.renewal(granted)], soon()) == [Renewed()]


def test_a_pooler_without_its_server_is_unavailable_and_recovers(
    own_postgres: PostgresServer,
) -> None:
    database = new_database(own_postgres)
    with (
        PgBouncer(own_postgres, options=["server_login_retry = 0.1"]) as bouncer,
        party(bouncer.url_of(database)) as one,
    ):
        granted = one.take()
        own_postgres.shut_down()
        for _ in range(2):
            with answers_within(0.5), pytest.raises(StoreError):
                one.store.renew([one.renewal(granted)], soon(0.5))
        own_postgres.start()
        renewed = patiently(lambda: one.store.renew([one.renewal(granted)], soon(2)))
        assert renewed == [Renewed()]


def test_the_doctor_says_how_waiters_learn_behind_a_pooler(
    by_transaction: PgBouncer, database: str
) -> None:
    said = incumbent("-s", f"{by_transaction.url_of(database)}?restart_wait=0", "doctor")
    assert "pool" in said.stdout, said.stdout + said.stderr
