"""What the tests of the MySQL store share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import pytest

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.model import Granted
from incumbent.stores.mysql import statements
from incumbent.stores.mysql.engine import MysqlEngine
from incumbent.stores.mysql.wire import MysqlWire, Reply
from incumbent.stores.url import open_engine
from tests.stores import party as parties
from tests.stores.party import ASK, new_claim, soon
from tests.support.mariadb import MariaServer
from tests.support.pace import BUSY, in_time

__all__ = [
    "ASK",
    "Clock",
    "Party",
    "aged",
    "answers_within",
    "make_tables",
    "new_claim",
    "new_database",
    "party",
    "patiently",
    "soon",
]

_T = TypeVar("_T")


def make_tables(url: str) -> None:
    engine = open_engine(url)
    assert isinstance(engine, MysqlEngine)
    ((level, what, _),) = engine.fix(clock.now() + 20)
    assert level == "ok", what


def new_database(server: MariaServer) -> str:
    """A database of its own with the tables."""
    database = server.new_database()
    make_tables(server.url_of(database))
    return database


def aged(server: MariaServer, database: str) -> None:
    """Let its data be as old as if all leases had been asked for long ago."""
    server.sql("UPDATE incumbent_marker SET born=born-86400000000", database)


class Clock:
    """The server's clock, as our statements read it; `stands_at` microseconds, or `shift`ed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, of: type[MysqlWire] = MysqlWire) -> None:
        self.stands_at: int | None = None
        self.shift = 0
        ask = of.ask

        def moved(wire: MysqlWire, asked: str, until: float, *, in_doubt: bool) -> list[Reply]:
            return ask(wire, self._moved(asked), until, in_doubt=in_doubt)

        monkeypatch.setattr(of, "ask", moved)

    def _moved(self, asked: str) -> str:
        for real in (statements.CLOCK, statements.START):
            at = f"({real}+{self.shift})" if self.stands_at is None else str(self.stands_at)
            asked = asked.replace(real, at)
        # It does not stand still during a statement.
        return asked.replace(
            f"SELECT {self.stands_at},SLEEP", f"SELECT {self.stands_at}-2000,SLEEP"
        )


@dataclass
class Party(parties.Party):
    def take_and_use(self) -> Granted:
        """A lease of a name that was held before: the next take of it is one statement."""
        self.store.give(self.key, self.claim, self.take().token, soon())
        return self.take()


@contextmanager
def party(url: str, options: str = "restart_wait=0") -> Iterator[Party]:
    """An engine at `url`, closed at the end; by default young tables grant at once."""
    separator = "&" if "?" in url else "?"
    engine = open_engine(f"{url}{separator}{options}" if options else url)
    try:
        yield Party(engine)
    finally:
        engine.store().close()


def patiently(ask: Callable[[], _T], within: float = 10.0) -> _T:
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
