"""`postgresql://` answers as the second model of the contract does, whatever is done in any order.

The server's clock stands still but when the test moves it.
"""

from __future__ import annotations

import psycopg
import pytest

from incumbent.model import Ask, Key, TakeOutcome
from incumbent.stores import recall
from incumbent.stores.plan import run_blocking
from incumbent.stores.postgresql.dialect import PostgresDialect
from incumbent.stores.postgresql.engine import PostgresStore
from incumbent.stores.postgresql.site import site_of_url
from tests import tiers
from tests.rules.histories import Subject, play
from tests.stores.postgresql.world import moved_database
from tests.support.postgresql import PostgresServer

pytestmark = pytest.mark.server

_AT_ONCE = 5
_TABLES = ("record", "beside", "history", "joined")


class _EachForItself(PostgresStore):
    """Its waiters do not take turns: each claim asks the server, as those of many processes do."""

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        operations = self.operations
        return run_blocking(operations.run(operations.dialect.take(key, claim, ask), until))


@pytest.mark.left(tiers.SEEDS, "0")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("first", range(0, 4 * _AT_ONCE, _AT_ONCE))
def test_the_server_answers_as_the_model_does(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    monkeypatch.setattr(recall, "_SLOWER", 1.0)
    url = postgres_server.url_of(moved_database(postgres_server, 1_000.0))
    with psycopg.connect(url, autocommit=True) as operator:

        def move(now: float, wall: float) -> None:
            operator.execute(b"update public.moved set at = to_timestamp(%s)", (wall,))
            monkeypatch.setattr(recall, "_now", lambda: now)

        for seed in range(first, first + _AT_ONCE):
            move(1_000.0, 1_800_000_000.0)
            for table in _TABLES:
                operator.execute(f"delete from incumbent.{table}".encode())
            site = site_of_url(f"{url}?restart_wait=0")
            store = _EachForItself(site, PostgresDialect(site.where, site.restart_wait))
            play(seed, Subject(store, move))
            store.close()
