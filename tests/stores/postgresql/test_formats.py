"""PostgreSQL: clients and schemas of different formats refuse each other, and misread nothing."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.model import Renewed, Slot
from incumbent.stores.postgresql.engine import PostgresEngine
from incumbent.stores.postgresql.errors import RECORD_FORMAT
from tests.stores.postgresql.world import ASK, Party, new_claim, party, schema, soon
from tests.support.postgresql import PostgresServer

# What format 1 lacked. Its take had one argument less, under the same name.
BACK_TO_1 = """
    alter table incumbent.record drop column doubted;
    alter table incumbent.epoch drop column longest;
    drop table incumbent.given_up, incumbent.forgotten;
    drop function incumbent.take(text, text, bigint, text, bytea, bigint, bigint, text, bigint,
        bigint, bigint);
    update incumbent.version set major = 1, minor = 0;
    create or replace function incumbent.hello() returns text language sql as $$
        select json_build_object('major', v.major, 'minor', v.minor, 'pid', pg_backend_pid(),
            'up', 100.0) from incumbent.version v $$;
"""
TAKE_OF_1 = "select incumbent.take('a/b', 'c', 9000000, 'h', '', 1, 0, null, null, 0)"


@pytest.fixture
def one(postgres_server: PostgresServer, database: str) -> Iterator[Party]:
    with party(postgres_server.url_of(database)) as made:
        yield made


def test_a_schema_of_an_older_format_is_refused_with_what_to_do_and_left_alone(
    one: Party, postgres_server: PostgresServer, database: str
) -> None:
    postgres_server.psql(BACK_TO_1, database)
    with pytest.raises(
        StoreUnavailable, match=r"format 1\.0.*stop the instances.*doctor"
    ) as caught:
        one.take()
    assert caught.value.permanent
    assert postgres_server.psql("select major from incumbent.version", database) == [(1,)]
    ((level, _, _),) = one.engine.diagnose(15.0, soon())
    assert level == "error"


def test_an_operator_brings_an_older_schema_up_and_keeps_what_is_in_it(
    one: Party, postgres_server: PostgresServer, database: str
) -> None:
    held = one.take()
    one.store.put(one.key, "state", b"kept", None, soon())
    postgres_server.psql(BACK_TO_1, database)
    assert isinstance(one.engine, PostgresEngine)
    ((level, what, _),) = one.engine.fix(clock.now() + 20)
    assert level == "ok", what
    assert one.store.renew([one.renewal(held)], soon()) == [Renewed()]
    assert one.store.read(one.key, soon()).fields["state"].value == b"kept"
    one.key = one.key._replace(name="other")
    one.take(new_claim(), ask=ASK)


def test_a_client_of_the_older_format_that_is_connected_already_is_refused_in_words(
    one: Party, postgres_server: PostgresServer, database: str
) -> None:
    with pytest.raises(psycopg.errors.FeatureNotSupported, match="speaks format 1: upgrade"):
        postgres_server.psql(TAKE_OF_1, database)
    assert postgres_server.psql("select * from incumbent.record", database) == []


def test_a_client_of_the_older_format_that_connects_hears_another_one(
    postgres_server: PostgresServer, database: str
) -> None:
    ((said,),) = postgres_server.psql("select incumbent.hello()", database)
    assert f'"major" : {RECORD_FORMAT}' in said


def test_a_newer_schema_is_not_set_back(postgres_server: PostgresServer, database: str) -> None:
    newer = "update incumbent.version set major = major + 1"
    postgres_server.psql(newer, database)
    with pytest.raises(psycopg.Error, match="newer than this file"):
        postgres_server.psql(schema(), database)


def test_used_slots_survive_the_change_of_the_format(
    one: Party, postgres_server: PostgresServer, database: str
) -> None:
    once = ASK.__class__(10.0, "me", slot=Slot("monday", 3600.0))
    granted = one.take(ask=once)
    one.store.give(one.key, granted.claim, granted.token, soon())
    postgres_server.psql(BACK_TO_1, database)
    postgres_server.psql(schema(), database)
    assert one.refused(ask=once).reason == "closed"
