"""Django on MariaDB: leases in the site's database, a command that one host runs, a fence."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import tiers
from tests.cookbook.recipe import BINARIES, Recipe, cooked
from tests.cookbook.test_django import COMMAND, held
from tests.stores.mysql.world import aged
from tests.support.mariadb import MariaServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.server, pytest.mark.left(tiers.FRAMEWORKS)]


@pytest.fixture
def database(maria_server: MariaServer) -> str:
    return maria_server.new_database()


@pytest.fixture
def recipe(maria_server: MariaServer, database: str, tmp_path: Path) -> Iterator[Recipe]:
    settings = {
        "DJANGO_SETTINGS_MODULE": "production",
        "MYSQL_HOST": "127.0.0.1",
        "MYSQL_PORT": str(maria_server.port),
        "MYSQL_DATABASE": database,
        "MYSQL_USER": "root",
    }
    with cooked("django-mariadb", tmp_path, BINARIES, **settings) as recipe:
        recipe.run("django-admin", "startproject", "shop", ".", "--settings=")
        recipe.run("python", "manage.py", "migrate")
        yield recipe


@pytest.fixture
def old(recipe: Recipe, maria_server: MariaServer, database: str) -> Recipe:
    """One whose tables were made long ago: the marker comes with the first use."""
    recipe.start(*COMMAND).process.wait(60)
    aged(maria_server, database)
    return recipe


@pytest.fixture
def books(maria_server: MariaServer, database: str) -> Callable[[], int]:
    return lambda: int(maria_server.sql("SELECT COUNT(*) FROM books", database)[0][0])


def test_the_migration_may_be_applied_to_a_database_that_has_the_tables(recipe: Recipe) -> None:
    recipe.run("python", "manage.py", "migrate", "leases", "zero")
    recipe.run("python", "manage.py", "migrate", "leases")


def test_new_tables_say_how_long_they_grant_nothing(recipe: Recipe) -> None:
    command = recipe.start(*COMMAND)
    assert command.process.wait(60) == 1
    assert "incumbent.errors.StoreUnavailable" in command.said


def test_of_two_hosts_one_closes_the_books(old: Recipe, books: Callable[[], int]) -> None:
    first = held(old, 25)
    assert "books" in old.run(*COMMAND)
    assert first.process.wait(60) == 0, first.said
    assert books() == 1
    assert "closed" in old.run(*COMMAND)
    assert books() == 2


def test_a_command_that_was_frozen_writes_nothing_after_a_later_one(
    old: Recipe, books: Callable[[], int]
) -> None:
    first = held(old, 25)
    first.process.send_signal(signal.SIGSTOP)
    eventually(lambda: "closed" in old.run(*COMMAND), within=60)
    first.process.send_signal(signal.SIGCONT)
    assert first.process.wait(60) == 1
    assert "LeaseLost" in first.said
    assert books() == 1
