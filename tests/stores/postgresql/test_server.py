"""What a PostgreSQL server can do to its clients: never taken for "free", and survived."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Timer

import psycopg
import pytest

from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Ask, Gone, Granted, Released, Renewed, Slot
from incumbent.policy import TTL_DEFAULT
from tests import tiers
from tests.stores.postgresql.world import (
    Party,
    answers_within,
    new_claim,
    new_database,
    party,
    patiently,
    soon,
)
from tests.support.postgresql import PostgresServer
from tests.support.proxy import FaultProxy
from tests.support.waiting import eventually


@pytest.fixture
def here(postgres_server: PostgresServer, database: str) -> Iterator[Party]:
    with party(postgres_server.url_of(database)) as one:
        yield one


@pytest.fixture
def own(own_postgres: PostgresServer) -> Iterator[Party]:
    with party(own_postgres.url_of(new_database(own_postgres))) as one:
        yield one


def alter(server: PostgresServer, database: str, *settings: str) -> None:
    """What an administrator sets for new sessions of one database."""
    for setting in settings:
        server.psql(f"alter database {database} set {setting}")


# -- backends that end


def end_all(server: PostgresServer, database: str) -> None:
    """Have the server end every session of the database, and wait until none is left."""
    sessions = f"from pg_stat_activity where datname = '{database}'"
    assert server.psql(f"select pg_terminate_backend(pid) {sessions}")
    eventually(lambda: not server.psql(f"select 1 {sessions}"))


def test_a_lease_outlives_the_end_of_every_backend(
    here: Party, postgres_server: PostgresServer, database: str
) -> None:
    granted = here.take()
    end_all(postgres_server, database)
    assert here.store.renew([here.renewal(granted)], soon()) == [Renewed()]
    end_all(postgres_server, database)
    assert here.refused().holders[0].claim == here.claim
    end_all(postgres_server, database)
    assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()


def test_a_lease_outlives_the_end_of_every_backend_on_asyncio(
    here: Party, postgres_server: PostgresServer, database: str
) -> None:
    async def main() -> None:
        store = here.engine.async_store()
        granted = await store.take(here.key, here.claim, Ask(10.0, "h"), soon())
        assert isinstance(granted, Granted)
        end_all(postgres_server, database)
        assert await store.renew([here.renewal(granted)], soon()) == [Renewed()]
        end_all(postgres_server, database)
        assert await store.give(here.key, here.claim, None, soon()) == Released()
        await store.aclose()

    asyncio.run(main())


def test_a_session_that_the_server_ended_for_idling_is_opened_again(
    postgres_server: PostgresServer, database: str
) -> None:
    alter(postgres_server, database, "idle_session_timeout = '400ms'")
    with party(postgres_server.url_of(database)) as one:
        granted = one.take()
        time.sleep(0.6)
        assert one.store.renew([one.renewal(granted)], soon()) == [Renewed()]


def test_a_waiter_that_idles_too_long_for_the_server_still_hears(
    postgres_server: PostgresServer, database: str
) -> None:
    # Longer than a busy machine takes from a login to its first request.
    alter(postgres_server, database, "idle_session_timeout = '400ms'")
    with party(postgres_server.url_of(database)) as one:
        patiently(one.take)
        seen = patiently(one.refused).seen
        # Losing the connection is hint enough; a wait must neither fail nor outlast its time.
        with answers_within(1.0):
            one.store.wait_change(one.key, seen, soon(1.0))
        assert patiently(one.refused).seen == seen


def test_a_request_on_its_way_while_its_session_ends_for_idling_was_not_carried_out(
    postgres_server: PostgresServer, database: str
) -> None:
    alter(postgres_server, database, "idle_session_timeout = '300ms'")
    with (
        FaultProxy(postgres_server.port) as proxy,
        party(postgres_server.url_of(database, port=proxy.port)) as one,
    ):
        one.take()
        alter(postgres_server, database, "idle_session_timeout = 0")
        one.refused()
        one.refused()
        proxy.delay(0.6, reply=0.0)
        healing = Timer(0.1, proxy.heal)
        healing.start()
        # Sent at once, and told of the end before it arrives.
        assert one.refused().holders[0].claim == one.claim
        healing.join()


def test_an_end_for_idling_that_comes_with_the_answer_before_is_no_doubt(
    postgres_server: PostgresServer, database: str
) -> None:
    alter(postgres_server, database, "idle_session_timeout = '1s'")
    with (
        FaultProxy(postgres_server.port) as proxy,
        party(postgres_server.url_of(database, port=proxy.port)) as one,
    ):
        one.store.read(one.key, soon())
        one.store.read(one.key, soon())
        proxy.delay(0.0, reply=0.4)
        one.take()
        # After 0.4 s comes that its statement is prepared, after 1.4 s the session's end, and
        # after 1.8 s the connection's.
        time.sleep(1.6)
        proxy.heal()
        assert one.refused().holders[0].claim == one.claim


def test_no_operation_leaves_a_transaction_open(
    postgres_server: PostgresServer, database: str
) -> None:
    alter(postgres_server, database, "idle_in_transaction_session_timeout = '50ms'")
    with party(postgres_server.url_of(database)) as one:
        granted = one.take(ask=Ask(10.0, "h", slot=Slot("s", 5)))
        one.refused()
        one.store.renew([one.renewal(granted)], soon())
        one.store.put(one.key, "note", b"x", None, soon())
        one.store.read(one.key, soon())
        states = postgres_server.psql(
            "select state from pg_stat_activity"
            f" where datname = '{database}' and backend_type = 'client backend'"
        )
        assert {state for (state,) in states} <= {"idle"}


# -- limits of time


def test_a_statement_timeout_of_the_database_is_an_error_and_ends_nothing(
    postgres_server: PostgresServer, database: str
) -> None:
    alter(postgres_server, database, "statement_timeout = '100ms'")
    with party(postgres_server.url_of(database)) as one:
        granted = one.take()
        with locked_row(postgres_server, database), pytest.raises(StoreError):
            one.store.renew([one.renewal(granted)], soon(1.0))
        assert one.store.renew([one.renewal(granted)], soon()) == [Renewed()]


@contextmanager
def locked_row(server: PostgresServer, database: str) -> Iterator[None]:
    """Somebody's transaction has every record."""
    with psycopg.connect(server.url_of(database)) as peer:
        peer.execute("select 1 from incumbent.record for update")
        yield
        peer.rollback()


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_row_that_somebody_keeps_locked_is_an_error_in_time(
    here: Party, postgres_server: PostgresServer, database: str, how: str
) -> None:
    granted = here.take()

    async def on_asyncio() -> None:
        store = here.engine.async_store()
        try:
            await store.renew([here.renewal(granted)], soon(0.4))
        finally:
            await store.aclose()

    with locked_row(postgres_server, database):
        # Who is refused writes nothing, and waits for nobody.
        assert here.refused().holders[0].claim == here.claim
        with answers_within(0.4), pytest.raises(StoreError):
            if how == "sync":
                here.store.renew([here.renewal(granted)], soon(0.4))
            else:
                asyncio.run(on_asyncio())
    assert here.store.renew([here.renewal(granted)], soon()) == [Renewed()]


def test_a_request_that_nobody_waits_for_any_more_does_not_stay_on_the_server(
    here: Party, postgres_server: PostgresServer, database: str
) -> None:
    granted = here.take()
    busy = f"select 1 from pg_stat_activity where state = 'active' and datname = '{database}'"
    with locked_row(postgres_server, database):
        with pytest.raises(StoreError):
            here.store.renew([here.renewal(granted)], soon(0.2))
        # Its lock_timeout is a second.
        eventually(lambda: not postgres_server.psql(busy))


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_stricter_isolation_by_default_changes_no_answer(
    postgres_server: PostgresServer, database: str, level: str
) -> None:
    alter(postgres_server, database, f"default_transaction_isolation = '{level}'")
    with party(postgres_server.url_of(database)) as one:
        granted = one.take()
        assert one.refused().holders[0].token == granted.token
        assert one.store.renew([one.renewal(granted)], soon()) == [Renewed()]
        assert one.store.give(one.key, one.claim, granted.token, soon()) == Released()
        assert one.take(new_claim()).token > granted.token


def test_settings_of_the_session_change_no_answer(
    postgres_server: PostgresServer, database: str
) -> None:
    postgres_server.psql("create table if not exists record (key text)", database)
    alter(
        postgres_server,
        database,
        "search_path = 'public'",
        "timezone = 'Asia/Kolkata'",
        "datestyle = 'German'",
        "intervalstyle = 'sql_standard'",
        "bytea_output = 'escape'",
        "extra_float_digits = 0",
        "standard_conforming_strings = off",
        "synchronous_commit = off",
    )
    with party(postgres_server.url_of(database)) as one:
        granted = one.take(ask=Ask(10.0, "Zo\\ë", meta=bytes(range(256))))
        holding = one.refused().holders[0]
        assert (holding.holder, holding.meta) == ("Zo\\ë", bytes(range(256)))
        assert holding.remaining is not None
        assert 2 < holding.remaining <= 10
        assert one.store.renew([one.renewal(granted)], soon()) == [Renewed()]


# -- the whole server


@pytest.mark.parametrize("how", ["shut down", "killed", "crashed"])
def test_a_lease_ends_with_a_crash_and_lives_through_an_orderly_restart(
    own: Party, own_postgres: PostgresServer, how: str
) -> None:
    granted = own.take()
    if how == "crashed":
        own_postgres.crash()
    else:
        own_postgres.restart(graceful=how == "shut down")
    (outcome,) = patiently(lambda: own.store.renew([own.renewal(granted)], soon()))
    if how == "shut down":
        # Everything was written: nobody else can have been granted it meanwhile.
        assert outcome == Renewed()
    else:
        assert outcome == Gone("store_restarted")


@pytest.mark.left(tiers.MEET, "10.0-15.0-killed", "40.0-40.0-crashed")
@pytest.mark.parametrize("how", ["killed", "crashed"])
@pytest.mark.parametrize(("ttl", "wait"), [(10.0, TTL_DEFAULT), (40.0, 40.0)])
def test_nothing_is_granted_after_a_crash_while_a_holder_may_believe_whatever_the_askers_ttl(
    own_postgres: PostgresServer, how: str, ttl: float, wait: float
) -> None:
    with party(own_postgres.url_of(new_database(own_postgres)), "restart_wait=0") as one:
        before = one.take(ask=Ask(ttl, "h"))
        own_postgres.psql("checkpoint")  # a crash takes the last commits back
        own_postgres.crash() if how == "crashed" else own_postgres.restart()
        with party(one.engine.url.replace("restart_wait=0", ""), "") as careful:
            careful.key = one.key
            with pytest.raises(StoreUnavailable, match="restart_wait") as caught:
                careful.take(new_claim(), ask=Ask(3.0, "h"))
        left = caught.value.retry_after
        assert left is not None
        assert wait - 10 < left <= wait
        one.key = Party(one.engine).key
        assert one.take(new_claim()).token > before.token


def test_tokens_grow_over_a_crash_that_lost_commits(
    own: Party, own_postgres: PostgresServer
) -> None:
    grants: list[Granted] = []
    for _ in range(3):
        grants.append(patiently(partial(own.take, new_claim())))
        give_back(own, grants[-1])
        own_postgres.restart()
        # The crash may have kept a take and lost its give, also of the grant before.
        for granted in grants:
            patiently(partial(give_back, own, granted))
    tokens = [granted.token for granted in grants]
    assert tokens == sorted(set(tokens))


def give_back(one: Party, granted: Granted) -> None:
    one.store.give(one.key, granted.claim, granted.token, soon())


@pytest.mark.left(tiers.SIDES, "sync", "async")
@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_frozen_server_delays_nobody_past_the_deadline(
    own: Party, own_postgres: PostgresServer, how: str
) -> None:
    granted = own.take_and_use()
    own_postgres.freeze()
    try:
        with answers_within(0.4), pytest.raises(OutcomeUnknown):
            own.store.renew([own.renewal(granted)], soon(0.4))
        # A new connection is not answered either, and nothing of it was applied.
        with answers_within(0.4), pytest.raises(StoreUnavailable):
            if how == "sync":
                own.take(within=0.4)
            else:
                asyncio.run(own.take_async(within=0.4))
    finally:
        own_postgres.thaw()
    assert own.store.renew([own.renewal(granted)], soon()) == [Renewed()]


def test_a_server_that_is_not_there_is_unavailable(
    own: Party, own_postgres: PostgresServer
) -> None:
    granted = own.take()
    own_postgres.shut_down()
    for _ in range(2):
        with answers_within(0.5), pytest.raises(StoreError):
            own.take(within=0.5)
    with pytest.raises(StoreUnavailable) as caught:
        own.take(within=0.5)
    assert not caught.value.permanent
    own_postgres.start()
    assert own.store.renew([own.renewal(granted)], soon()) == [Renewed()]


def connected(url: str) -> psycopg.Connection:
    """A connection, as soon as one is free."""
    made: list[psycopg.Connection] = []

    def connect() -> bool:
        with suppress(psycopg.OperationalError):
            made.append(psycopg.connect(url))
        return bool(made)

    eventually(connect)
    return made[0]


@pytest.mark.left(tiers.LONG)
def test_a_server_without_a_free_connection_is_an_outage_that_may_pass() -> None:
    with PostgresServer(["max_connections=5", "superuser_reserved_connections=1"]) as server:
        database = new_database(server)
        server.psql("create role app login")
        server.psql(
            "grant usage on schema incumbent to app;"
            "grant execute on all functions in schema incumbent to app",
            database,
        )
        url = server.url_of(database, "app")
        with party(url) as one:
            # The sessions from before end by and by.
            peers = [connected(server.url_of(database, "app")) for _ in range(4)]
            with pytest.raises(StoreUnavailable) as caught:
                one.take()
            assert not caught.value.permanent
            assert "connection" in str(caught.value)
            for peer in peers:
                peer.close()
            patiently(one.take)
