"""PostgreSQL: a schema of another format is refused with what to do, and left alone."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from incumbent.errors import StoreUnavailable
from tests.stores.postgresql.world import Party, party, schema, soon
from tests.support.postgresql import PostgresServer

OTHER = "update incumbent.version set format = 2"


@pytest.fixture
def one(postgres_server: PostgresServer, database: str) -> Iterator[Party]:
    with party(postgres_server.url_of(database)) as made:
        yield made


def test_a_schema_of_another_format_is_refused_with_what_to_do_and_left_alone(
    one: Party, postgres_server: PostgresServer, database: str
) -> None:
    postgres_server.psql(OTHER, database)
    said = r"has format 2, and this version of incumbent speaks 1: stop the instances .* doctor"
    with pytest.raises(StoreUnavailable, match=said) as caught:
        one.take()
    assert caught.value.permanent
    assert postgres_server.psql("select format from incumbent.version", database) == [(2,)]
    ((level, _, _),) = one.engine.diagnose(15.0, soon())
    assert level == "error"


def test_a_schema_of_another_format_is_not_changed_by_the_file(
    postgres_server: PostgresServer, database: str
) -> None:
    postgres_server.psql(OTHER, database)
    with pytest.raises(psycopg.Error, match="another format than this file"):
        postgres_server.psql(schema(), database)
