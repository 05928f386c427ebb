"""`postgresql://` answers as the executable specification does, whatever is done in any order.

Tokens, versions and epochs may differ in value; everything else is compared. The server's clock
stands still but when the test moves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from incumbent.model import ABSENT, ByClaim, ByVersion, Granted, Guard, Key, Queue, Record, Stored
from incumbent.stores.notices import encode_notice
from incumbent.stores.postgresql import open_postgresql
from incumbent.stores.table import MemoryTable
from tests.stores.postgresql.world import moved_database
from tests.stores.sqlite.test_same_as_table import FIELDS, SameAsTable, claims, keys
from tests.support.postgresql import PostgresServer

pytestmark = pytest.mark.server

_TABLES = ("record", "slot", "field", "history", "candidate", "given_up", "sharer")


class PostgresSameAsTable(SameAsTable):
    url: ClassVar[str]
    operator: ClassVar[psycopg.Connection[Any]]
    queues: ClassVar[list[Queue | None]] = [None]

    def __init__(self) -> None:
        super(SameAsTable, self).__init__()
        self.now = 1_000.0
        self._move()
        for table in _TABLES:
            self.operator.execute(f"delete from incumbent.{table}".encode())
        engine = open_postgresql(f"{self.url}?restart_wait=0")
        self.store = engine.store()  # type: ignore[assignment]
        self.table = MemoryTable()
        self.table.late_kept = 3600.0
        self.granted: dict[tuple[Key, str], tuple[Granted, Granted]] = {}
        self.token_of: dict[tuple[Key, int], int] = {}
        self.version_of: dict[tuple[Key, int], int] = {}

    def teardown(self) -> None:
        self.store.close()

    def _move(self) -> None:
        self.operator.execute(b"update public.moved set at = to_timestamp(%s)", (self.wall,))

    @rule(by=st.sampled_from([0.3, 1.0, 5.0, 30.0]))
    def time_passes(self, by: float) -> None:
        self.now += by
        self._move()

    @rule(key=keys, field=st.sampled_from(FIELDS), remove=st.booleans(), data=st.data())
    def put(self, key: Key, field: str, remove: bool, data: Any) -> None:
        claim = data.draw(claims)
        ours, theirs = self.granted.get((key, claim), (None, None))
        guards: list[tuple[Guard, Guard]] = [(None, None), (ABSENT, ABSENT)]
        guards += [
            (ByVersion(self.version_of.get((key, version), version)), ByVersion(version))
            for version in (1, 2)
        ]
        if ours and theirs:
            guards.append((ByClaim(claim, ours.token), ByClaim(claim, theirs.token)))
        guard, table_guard = data.draw(st.sampled_from(guards))
        values = [
            None if remove else encode_notice(who="op", token=it.token if it else 0)
            for it in (ours, theirs)
        ]
        stored = self.store.put(key, field, values[0], guard, self.until())
        expected = self.table.put(key, field, values[1], table_guard, self.now)
        assert type(stored) is type(expected)
        if isinstance(stored, Stored) and isinstance(expected, Stored):
            assert (stored.version == 0) == (expected.version == 0)
            self.version_of[key, expected.version] = stored.version

    def plain(self, record: Record, *, theirs: bool = False) -> list[object]:
        plain = super().plain(record, theirs=theirs)
        versions = {name: field.version for name, field in record.fields.items()}
        if theirs:
            versions = {name: self.version_of[record.key, it] for name, it in versions.items()}
        plain[4] = versions
        return plain


@pytest.fixture
def machine(postgres_server: PostgresServer) -> Iterator[type[PostgresSameAsTable]]:
    PostgresSameAsTable.url = postgres_server.url_of(moved_database(postgres_server, 1_000.0))
    with psycopg.connect(PostgresSameAsTable.url, autocommit=True) as operator:
        PostgresSameAsTable.operator = operator
        yield PostgresSameAsTable


@pytest.mark.timeout(180)
def test_the_server_answers_as_the_table_does(machine: type[PostgresSameAsTable]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
