"""Django: leases in the site's database, a command that one host runs, writes with a fence."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import Request, urlopen

import pytest

from tests import tiers
from tests.cookbook.recipe import BINARIES, Program, Recipe, cooked
from tests.stores.postgresql.world import AGED
from tests.support.postgresql import PostgresServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.server, pytest.mark.left(tiers.FRAMEWORKS)]

COMMAND = ("python", "manage.py", "close_books")


@pytest.fixture
def database(postgres_server: PostgresServer) -> str:
    return postgres_server.new_database()


@pytest.fixture
def recipe(postgres_server: PostgresServer, database: str, tmp_path: Path) -> Iterator[Recipe]:
    url = urlsplit(postgres_server.url_of(database))
    settings = {
        "DJANGO_SETTINGS_MODULE": "production",
        "PGHOST": url.hostname or "",
        "PGPORT": str(url.port),
        "PGDATABASE": database,
        "PGUSER": url.username or "",
        "PGPASSWORD": unquote(url.password or ""),
    }
    with cooked("django", tmp_path, BINARIES, **settings) as recipe:
        recipe.run("django-admin", "startproject", "shop", ".", "--settings=")
        recipe.run("python", "manage.py", "migrate")
        yield recipe


@pytest.fixture
def old(recipe: Recipe, postgres_server: PostgresServer, database: str) -> Recipe:
    """One whose schema was made long ago."""
    postgres_server.psql(AGED, database)
    return recipe


@pytest.fixture
def books(postgres_server: PostgresServer, database: str) -> Callable[[], int]:
    return lambda: postgres_server.psql("select count(*) from books", database)[0][0]


def held(recipe: Recipe, takes: float) -> Program:
    """A command that has the lease and goes on for so long."""
    holder = recipe.start(*COMMAND, "--takes", str(takes))
    look = "import django; django.setup(); from leases import lock; print(lock('books').held_by())"
    eventually(lambda: recipe.python(look).strip() != "None")
    return holder


def test_the_migration_may_be_applied_to_a_database_that_has_the_schema(recipe: Recipe) -> None:
    recipe.run("python", "manage.py", "migrate", "leases", "zero")
    recipe.run("python", "manage.py", "migrate", "leases")


def test_a_new_schema_says_how_long_it_grants_nothing(recipe: Recipe) -> None:
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


def test_the_staff_of_the_site_may_see_the_page_and_others_may_not(old: Recipe) -> None:
    assert "closed" in old.run(*COMMAND)
    sign_in = """
import django; django.setup()
from django.contrib.auth.models import User
from django.test import Client
for name, staff in ("ann", True), ("bob", False):
    client = Client()
    client.force_login(User.objects.create_user(name, is_staff=staff))
    print(client.cookies["sessionid"].value)
"""
    ann, bob = old.python(sign_in).split()
    words = ("uvicorn", "admin_page:application", "--port", "PORT", "--log-level", "warning")
    program = old.serve(*words, at="/admin/login/")

    def seen(path: str, session: str = "") -> tuple[int, str]:
        url = f"http://127.0.0.1:{program.port}{path}"
        try:
            with urlopen(Request(url, headers={"Cookie": f"sessionid={session}"})) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as refused:
            return refused.code, ""

    assert [seen("/incumbent/", who)[0] for who in ("", bob, "forged")] == [401] * 3
    status, page = seen("/incumbent/", ann)
    assert (status, "books" in page) == (200, True)
    assert seen("/incumbent/api/v1/leases/books", ann)[0] == 200
    assert seen("/incumbents", ann)[0] == 404
    assert "Traceback" not in program.said


def test_a_command_that_was_frozen_writes_nothing_after_a_later_one(
    old: Recipe, books: Callable[[], int]
) -> None:
    first = held(old, 25)
    first.process.send_signal(signal.SIGSTOP)
    eventually(lambda: "closed" in old.run(*COMMAND), within=40)
    first.process.send_signal(signal.SIGCONT)
    assert first.process.wait(60) == 1
    assert "LeaseLost" in first.said
    assert books() == 1
