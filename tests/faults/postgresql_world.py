"""What the fault tests of the PostgreSQL store share."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.resources import files
from typing import TypeVar

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.model import Ask, Granted, Key, Refused, Renewal
from incumbent.stores.base import AsyncStore, Engine, Store
from incumbent.stores.registry import open_engine
from tests.support.pace import in_time
from tests.support.postgresql import PostgresServer

ASK = Ask(10.0, "host-1")
LATE_AT_MOST = 0.15
TEMPLATE = "with_schema"
FIRST = {"postgres", "template1"}
"""The databases of a new server."""
AGED = """
    select incumbent.begin_epoch();
    update incumbent.epoch set born = born - interval '1 day';
"""

_T = TypeVar("_T")


def soon(seconds: float = 5.0) -> float:
    return clock.now() + seconds


def new_claim() -> str:
    return secrets.token_hex(16)


@cache
def schema() -> str:
    """The file that is shipped, as an administrator would apply it."""
    return (files("incumbent.stores") / "postgresql" / "schema.sql").read_text()


def new_database(server: PostgresServer) -> str:
    """A database of its own with the schema, made long ago: it grants at once.

    Most servers have one only. From the second one on they are copies of a template.
    """
    made = {name for (name,) in server.psql("select datname from pg_database")}
    if TEMPLATE not in made and made != FIRST:
        server.psql(f"create database {TEMPLATE}")
        server.psql(schema(), TEMPLATE)
        made.add(TEMPLATE)
    if TEMPLATE in made:
        database = server.new_database(TEMPLATE)
    else:
        database = server.new_database()
        server.psql(schema(), database)
    server.psql(AGED, database)
    return database


@dataclass
class Party:
    """One engine and a lease of its own."""

    engine: Engine
    key: Key = field(default_factory=lambda: Key("faults", secrets.token_hex(6)))
    claim: str = field(default_factory=new_claim)

    @property
    def store(self) -> Store:
        return self.engine.store()

    def take(self, claim: str = "", within: float = 5.0, ask: Ask = ASK) -> Granted:
        outcome = self.store.take(self.key, claim or self.claim, ask, soon(within))
        assert isinstance(outcome, Granted), outcome
        return outcome

    def take_and_use(self) -> Granted:
        """A lease, on a connection whose statements are prepared: a renewal leaves at once."""
        granted = self.take()
        for _ in range(3):
            self.store.renew([self.renewal(granted)], soon())
        return granted

    def refused(self, claim: str = "", ask: Ask = ASK) -> Refused:
        outcome = self.store.take(self.key, claim or new_claim(), ask, soon())
        assert isinstance(outcome, Refused), outcome
        return outcome

    async def take_async(self, claim: str = "", within: float = 5.0, ask: Ask = ASK) -> Granted:
        store = self.engine.async_store()
        try:
            outcome = await store.take(self.key, claim or self.claim, ask, soon(within))
        finally:
            await store.aclose()
        assert isinstance(outcome, Granted), outcome
        return outcome

    def renewal(self, granted: Granted, ttl: float = 10.0) -> Renewal:
        return Renewal(self.key, granted.claim, granted.token, ttl, granted.epoch)


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


answers_within = partial(in_time, late_at_most=LATE_AT_MOST)
