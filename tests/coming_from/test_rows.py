"""Both columns of "Coming from another lock" do what the page says, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.coming_from import of_etcd, of_files, of_jobs, of_redis
from tests.coming_from.cases import CASES, LIBRARIES, Servers
from tests.coming_from.environments import bin_of
from tests.coming_from.pages import Row, all_rows
from tests.coming_from.sides import NOT_RUN, Both, Here, Side, There, Told
from tests.support.servers import RedisServer

# The first that needs an environment makes it.
pytestmark = pytest.mark.timeout(600)

OURS = """\
import incumbent
from incumbent import AsyncLock, Client, Election, Lock, Semaphore, exclusive, once"""
OF = (of_etcd, of_files, of_jobs, of_redis)
"""Those that have the cases."""


@pytest.fixture(scope="module")
def three_servers() -> Iterator[list[RedisServer]]:
    with ExitStack() as running:
        yield [running.enter_context(RedisServer()) for _ in range(3)]


@pytest.fixture
def both(
    row: Row, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Both]:
    servers = Servers(request, tmp_path)
    library = LIBRARIES[row.section]
    monkeypatch.setenv("INCUMBENT_STORE", library.store(servers))
    monkeypatch.chdir(tmp_path)

    def make() -> tuple[Side, Side]:
        theirs = side_of(library.environment)
        ours = Here()
        for side, setup in (
            (theirs, library.theirs(servers)),
            (ours, f"{OURS}\n{library.ours(servers)}"),
        ):
            assert "raises" not in (made := side.run(setup)), made
        return theirs, ours

    pair = Both(row, make, library.take, library.give)
    try:
        if not library.commands:
            pair.prepare()
        yield pair
    finally:
        pair.close()


def side_of(environment: str) -> Side:
    if environment == NOT_RUN:
        return Told()
    return There(bin_of(environment) / "python") if environment else Here()


@pytest.mark.left(
    "installs the libraries of which `make test` has no other use",
    "redis-py:*",
    "python-redis-lock:*",
    "redlock-ng:*",
    "filelock:*",
)
@pytest.mark.parametrize("row", all_rows(), ids=lambda row: row.id)
def test_both_calls_of_a_row_do_what_the_page_says(row: Row, both: Both) -> None:
    CASES[row.section, row.theirs](both)


def test_each_row_has_a_case_and_each_case_a_row() -> None:
    rows = [(row.section, row.theirs) for row in all_rows()]
    assert sorted(rows) == sorted(CASES)


def test_each_section_of_the_pages_has_a_table() -> None:
    assert {row.section for row in all_rows()} == set(LIBRARIES)
