"""PostgreSQL with a clock that a test moves, and with bugs that a test plants into the schema."""

from __future__ import annotations

from collections.abc import Callable

from incumbent.stores.postgresql import open_postgresql
from incumbent.stores.postgresql.engine import PostgresEngine, schema
from incumbent.testing.contract import World
from tests.support.postgresql import PostgresServer

__all__ = ["MovedWorld", "moved_database"]

_CLOCK = """
CREATE TABLE public.moved (at timestamptz NOT NULL);
INSERT INTO public.moved VALUES (to_timestamp({at}));
CREATE FUNCTION public.moved_clock() RETURNS timestamptz
    LANGUAGE sql VOLATILE AS 'SELECT at FROM public.moved';
"""


def moved_database(
    server: PostgresServer, at: float, bug: Callable[[str], str] | None = None
) -> str:
    """A database whose leases are counted by a clock that stands still at `at` (unix seconds)."""
    database = server.new_database()
    text = schema()
    if bug is not None:
        planted = bug(text)
        assert planted != text, "the planted bug changes nothing"
        text = planted
    server.psql(_CLOCK.format(at=at), database)
    server.psql(text.replace("clock_timestamp()", "public.moved_clock()"), database)
    return database


class MovedWorld(World):
    """Time passes when it is told to."""

    def __init__(
        self, server: PostgresServer, at: float, bug: Callable[[str], str] | None = None
    ) -> None:
        self.server = server
        self.database = moved_database(server, at, bug)
        engine = open_postgresql(f"{server.url_of(self.database)}?restart_wait=0")
        assert isinstance(engine, PostgresEngine)
        super().__init__(engine)

    def pass_time(self, seconds: float) -> None:
        self.server.psql(
            f"update public.moved set at = at + {seconds} * interval '1 second'", self.database
        )
