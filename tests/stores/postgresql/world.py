"""What the fault tests of the PostgreSQL store share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from typing import TypeVar

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.model import Ask, Granted
from incumbent.stores.base import AsyncStore
from incumbent.stores.postgresql import open_postgresql
from incumbent.stores.postgresql.engine import PostgresEngine
from incumbent.stores.url import open_engine
from incumbent.testing.contract import World
from tests.stores import party as parties
from tests.stores.party import ASK, new_claim, soon
from tests.support.pace import BUSY, in_time
from tests.support.postgresql import PostgresServer

__all__ = [
    "AGED",
    "ASK",
    "TEMPLATE",
    "MovedWorld",
    "Party",
    "answers_within",
    "make_template",
    "moved_database",
    "new_claim",
    "new_database",
    "party",
    "patiently",
    "schema",
    "settled",
    "soon",
]

TEMPLATE = "with_schema"
AGED = """
    select incumbent.begin_epoch();
    update incumbent.epoch set born = born - interval '1 day';
"""

_T = TypeVar("_T")


@cache
def schema() -> str:
    """The file that is shipped, as an administrator would apply it."""
    return (files("incumbent.stores") / "postgresql" / "schema.sql").read_text()


def make_template(server: PostgresServer) -> None:
    server.psql(f"create database {TEMPLATE}")
    server.psql(schema(), TEMPLATE)
    server.templates.add(TEMPLATE)


def new_database(server: PostgresServer) -> str:
    """A database of its own with the schema, made long ago: it grants at once.

    On the server that a worker's tests share it is the copy of a template.
    """
    if TEMPLATE in server.templates:
        database = server.new_database(TEMPLATE)
    else:
        database = server.new_database()
        server.psql(schema(), database)
    server.psql(AGED, database)
    return database


@dataclass
class Party(parties.Party):
    def take_and_use(self) -> Granted:
        """A lease, on a connection whose statements are prepared: a renewal leaves at once."""
        granted = self.take()
        for _ in range(3):
            self.store.renew([self.renewal(granted)], soon())
        return granted

    async def take_async(self, claim: str = "", within: float = 5.0, ask: Ask = ASK) -> Granted:
        try:
            return await super().take_async(claim, within, ask)
        finally:
            await self.engine.async_store().aclose()


@contextmanager
def party(url: str, options: str = "restart_wait=0") -> Iterator[Party]:
    """An engine at `url`, closed at the end; by default young databases grant at once."""
    separator = "&" if "?" in url else "?"
    engine = open_engine(f"{url}{separator}{options}" if options else url)
    try:
        yield Party(engine)
    finally:
        engine.store().close()


async def settled(one: Party) -> AsyncStore:
    """Its asynchronous side. Nothing is on its way any more: what is sent next leaves at once."""
    store = one.engine.async_store()
    for _ in range(2):
        await store.read(one.key, soon())
    return store


def patiently(ask: Callable[[], _T], within: float = 8.0) -> _T:
    """The first answer that is no error: a server that restarts has old connections to end."""
    give_up = clock.now() + within
    while True:
        try:
            return ask()
        except StoreError as error:
            if clock.now() > give_up:
                raise
            time.sleep(min(error.retry_after or 0.02, 1.5))


answers_within = partial(in_time, late_at_most=BUSY)


# -- a clock that a test moves, and bugs that a test plants into the schema

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
    server.psql(_CLOCK.format(at=at), database)
    server.psql(moved_schema(bug), database)
    return database


def moved_schema(bug: Callable[[str], str] | None = None) -> str:
    """The schema, perhaps with a bug, on the clock of such a database."""
    text = schema()
    if bug is not None:
        planted = bug(text)
        assert planted != text, "the planted bug changes nothing"
        text = planted
    return text.replace("clock_timestamp()", "public.moved_clock()")


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
