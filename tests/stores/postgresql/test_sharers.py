"""PostgreSQL: what several hold at once, among those who look at the same moment, late or crash."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest

from incumbent.errors import LeaseLost
from incumbent.locks.several import Semaphore
from incumbent.model import UNLIMITED, Ask, Gone, Granted, Parting, Refused, Released
from incumbent.stores.postgresql import with_token
from tests.stores.postgresql.world import Party, new_claim, party, soon
from tests.support.postgresql import PostgresServer
from tests.support.waiting import eventually

WAITS = """
    select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = '{database}'
"""


def two(ttl: float = 10.0) -> Ask:
    return Ask(ttl, "me", 2)


@pytest.fixture
def one(postgres_server: PostgresServer, database: str) -> Iterator[Party]:
    with party(postgres_server.url_of(database)) as made:
        yield made


@pytest.fixture
def operator(
    one: Party, postgres_server: PostgresServer, database: str
) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(postgres_server.url_of(database)) as connection:
        yield connection


def waits(server: PostgresServer, database: str) -> bool:
    return server.psql(WAITS.format(database=database)) == [(1,)]


def leave(one: Party, grant: Granted) -> object:
    return one.store.give(one.key, grant.claim, grant.token, soon(), parting=Parting(shared=True))


# -- at the same moment --------------------------------------------------------------------------


def test_who_is_renewed_while_another_waits_for_the_row_still_counts(
    one: Party,
    operator: psycopg.Connection[tuple[object, ...]],
    postgres_server: PostgresServer,
    database: str,
) -> None:
    one.take(ask=two())
    dying = one.take(new_claim(), ask=two(1.0))
    kept = postgres_server.psql("select * from incumbent.record", database)
    one.store.renew([replace(one.renewal(dying, 60.0), shared=True)], soon())
    renewed = operator.execute("select rest, written, version from incumbent.record").fetchone()
    assert renewed is not None
    # As before the renewal, which then is written while the row is waited for.
    operator.execute(
        "update incumbent.record set rest = %s, written = %s, version = %s",
        (kept[0][16], kept[0][2], kept[0][1]),
    )
    operator.commit()
    eventually(lambda: one.store.read(one.key, soon()).holdings[1:] == ())
    operator.execute("select from incumbent.record for update")
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(one.store.take, one.key, new_claim(), two(), soon())
        eventually(lambda: waits(postgres_server, database))
        operator.execute(
            "update incumbent.record set rest = %s, written = %s, version = %s", renewed
        )
        operator.commit()
        outcome = taking.result()
    assert isinstance(outcome, Refused)
    assert len(outcome.holders) == 2


def test_who_finds_no_room_does_not_wait_for_the_row(
    one: Party, operator: psycopg.Connection[tuple[object, ...]]
) -> None:
    for _ in range(2):
        one.take(new_claim(), ask=two())
    operator.execute("select from incumbent.record for update")
    assert one.refused(ask=two()).reason == "held"
    assert one.refused(ask=Ask(10.0, "me", 3)).reason == "permits"


def test_a_shared_take_that_waited_for_the_row_until_its_time_was_over_is_not_carried_out(
    one: Party,
    operator: psycopg.Connection[tuple[object, ...]],
    postgres_server: PostgresServer,
    database: str,
) -> None:
    one.take(ask=two())
    operator.execute("select from incumbent.record for update")
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(one.store.take, one.key, new_claim(), two(), soon(0.3))
        assert isinstance(taking.exception(), Exception)
        time.sleep(0.2)  # the server's clock is known to some milliseconds
        operator.rollback()
    eventually(lambda: not waits(postgres_server, database))
    assert len(one.store.read(one.key, soon()).holdings) == 1


# -- what a crash makes of it --------------------------------------------------------------------


def test_the_longest_ttl_of_those_who_share_is_known_after_a_crash(
    one: Party, postgres_server: PostgresServer, database: str
) -> None:
    one.take(ask=two(100.0))
    one.take(new_claim(), ask=two())
    postgres_server.psql("truncate incumbent.epoch", database)
    postgres_server.psql("select incumbent.hello()", database)
    assert postgres_server.psql("select longest from incumbent.epoch", database) == [(100_000_000,)]


# -- beside the rest -----------------------------------------------------------------------------


def test_of_those_who_share_the_newest_alone_may_write_under_its_token(
    one: Party, postgres_server: PostgresServer, database: str
) -> None:
    url = f"{postgres_server.url_of(database)}?restart_wait=0"
    older, newer = (Semaphore("gpu", 2, store=url).acquire() for _ in range(2))
    with psycopg.connect(postgres_server.url_of(database)) as connection:
        with_token(newer, connection)
        with pytest.raises(LeaseLost):
            with_token(older, connection)
    older.release()
    newer.release()


def test_readers_leave_nothing_behind(
    one: Party, postgres_server: PostgresServer, database: str
) -> None:
    grants = [one.take(new_claim(), ask=Ask(10.0, "me", UNLIMITED)) for _ in range(3)]
    assert [leave(one, grant) for grant in grants] == [Released()] * 3
    assert [leave(one, grant) for grant in grants] == [Gone()] * 3
    left = "select claim, rest, expires from incumbent.record"
    assert postgres_server.psql(left, database) == [("", "", 0)]
