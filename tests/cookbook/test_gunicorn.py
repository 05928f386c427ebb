"""gunicorn and Django: of all workers one leads, and jobs run once; runserver; its own tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import incumbent
from tests import tiers
from tests.cookbook.recipe import Program, Recipe, cooked
from tests.cron.fleet import children
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.server, pytest.mark.left(tiers.FRAMEWORKS)]

GUNICORN = ("gunicorn", "--workers", "2", "--bind", "127.0.0.1:PORT")
KINDS = {"sync": (), "threads": ("--threads", "4"), "preloaded": ("--preload",)}


@pytest.fixture
def recipe(own_redis: RedisServer, tmp_path: Path) -> Iterator[Recipe]:
    store = f"{own_redis.url}?restart_wait=0"
    cooking = cooked(
        "gunicorn", tmp_path, INCUMBENT_STORE=store, DJANGO_SETTINGS_MODULE="production"
    )
    with cooking as recipe:
        recipe.run("django-admin", "startproject", "shop", ".", "--settings=")
        yield recipe


def served(recipe: Recipe, *options: str) -> Program:
    return recipe.serve(*GUNICORN, *options, "shop.wsgi", at="/leads")


def leader(store: str) -> int:
    """The process that leads."""
    lock = incumbent.Lock("session", store=store)
    return int(eventually(lambda: lock.held_by() or "").rpartition(":")[2])


def fences(program: Program, what: str) -> list[int]:
    whole = program.said.rpartition("\n")[0].splitlines()
    return [int(line.split()[-1]) for line in whole if line.startswith(what)]


@pytest.mark.parametrize("kind", KINDS)
def test_of_the_workers_of_two_hosts_one_leads_and_jobs_run_once(
    recipe: Recipe, own_redis: RedisServer, kind: str
) -> None:
    two = [served(recipe, *KINDS[kind]) for _ in range(2)]
    workers = {pid: program for program in two for pid in children(program.pid)}
    assert len(workers) == 4
    leading = workers[leader(own_redis.url)]
    eventually(lambda: len(fences(leading, "polled")) > 3)
    (other,) = set(two) - {leading}
    assert fences(other, "polled") == []
    assert len(set(fences(leading, "polled"))) == 1
    eventually(lambda: len([fence for one in two for fence in fences(one, "tidied")]) > 2)
    tidied = [fence for one in two for fence in fences(one, "tidied")]
    assert len(set(tidied)) == len(tidied)


def test_a_host_that_is_stopped_hands_over_and_a_worker_that_dies_is_followed(
    recipe: Recipe, own_redis: RedisServer
) -> None:
    two = [served(recipe) for _ in range(2)]
    first = leader(own_redis.url)
    os.kill(first, signal.SIGKILL)
    eventually(lambda: leader(own_redis.url) != first)
    second = leader(own_redis.url)
    leading = next(one for one in two if second in children(one.pid))
    leading.process.terminate()
    assert leading.process.wait(60) == 0, leading.said
    # Not released, it would be held for the rest of its ttl.
    assert leader(own_redis.url) not in (first, second)
    assert "Traceback" not in leading.said


def test_of_two_requests_for_an_order_one_ships_it(recipe: Recipe, own_redis: RedisServer) -> None:
    server = served(recipe, "--threads", "4")
    lock = incumbent.Lock("order:4711", store=own_redis.url)
    with ThreadPoolExecutor() as pool:
        first = pool.submit(server.ask, "/orders/4711/ship?takes=15", "POST")
        eventually(lock.locked)
        assert server.ask("/orders/4711/ship", "POST")[0] == 409
        assert server.ask("/orders/a%20b/ship", "POST")[0] == 200
        assert first.result()[0] == 200
    own_redis.kill()
    assert server.ask("/orders/4711/ship", "POST")[0] == 503


@pytest.mark.parametrize("options", [("--noreload",), ()], ids=["plain", "reloading"])
def test_runserver_leads_in_the_process_that_serves_and_releases_at_its_end(
    recipe: Recipe, own_redis: RedisServer, options: tuple[str, ...]
) -> None:
    command = ("python", "manage.py", "runserver", "PORT", *options)
    server = recipe.serve(*command, at="/leads")
    serving = children(server.pid)[-1] if not options else server.pid
    assert leader(own_redis.url) == serving
    os.kill(serving, signal.SIGINT)
    server.process.wait(60)
    # Not released, it would be held for the rest of its ttl.
    assert not incumbent.Lock("session", store=own_redis.url).locked()


def test_the_tests_of_the_recipe_need_no_server(recipe: Recipe, own_redis: RedisServer) -> None:
    own_redis.kill()
    assert "2 passed" in recipe.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider")
