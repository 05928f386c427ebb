"""`postgresql://` answers as the second model of the contract does, whatever is done in any order.

The server's clock stands still but when the test moves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from incumbent.model import Queue
from incumbent.stores.postgresql import open_postgresql
from tests.rules.same_as_model import SameAsModel
from tests.stores.postgresql.world import moved_database
from tests.support.postgresql import PostgresServer

pytestmark = pytest.mark.server

_TABLES = ("record", "slot", "field", "history", "candidate", "given_up", "sharer")


class PostgresAsModel(SameAsModel):
    url: ClassVar[str]
    operator: ClassVar[psycopg.Connection[Any]]
    queues: ClassVar[list[Queue | None]] = [None]
    late_kept = 3600.0

    def begin(self) -> None:
        self.move()
        for table in _TABLES:
            self.operator.execute(f"delete from incumbent.{table}".encode())
        self.store = open_postgresql(f"{self.url}?restart_wait=0").store()

    def teardown(self) -> None:
        self.store.close()

    def move(self) -> None:
        self.operator.execute(b"update public.moved set at = to_timestamp(%s)", (self.wall,))


@pytest.fixture
def machine(postgres_server: PostgresServer) -> Iterator[type[PostgresAsModel]]:
    PostgresAsModel.url = postgres_server.url_of(moved_database(postgres_server, 1_000.0))
    with psycopg.connect(PostgresAsModel.url, autocommit=True) as operator:
        PostgresAsModel.operator = operator
        yield PostgresAsModel


@pytest.mark.timeout(180)
def test_the_server_answers_as_the_model_does(machine: type[PostgresAsModel]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=25,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
