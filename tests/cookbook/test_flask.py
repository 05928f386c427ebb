"""Flask under gunicorn: one request at a time for each order, over all workers."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote

import pytest

import incumbent
from tests import tiers
from tests.cookbook.recipe import Program, Recipe, cooked
from tests.cron.fleet import children
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.server, pytest.mark.left(tiers.FRAMEWORKS)]

Answer = tuple[int, str]


@pytest.fixture
def recipe(own_redis: RedisServer, tmp_path: Path) -> Iterator[Recipe]:
    store = f"{own_redis.url}?restart_wait=0"
    with cooked("flask", tmp_path, INCUMBENT_STORE=store) as recipe:
        yield recipe


@pytest.fixture
def server(recipe: Recipe) -> Program:
    bind = ("--bind", "127.0.0.1:PORT", "--preload")
    return recipe.serve("gunicorn", "--workers", "2", "--threads", "4", *bind, "app:app")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def ship(server: Program, order: str, takes: float = 0.0) -> Answer:
    return server.ask(f"/orders/{quote(order, safe='')}/ship?takes={takes}", "POST")


def at_once(pool: ThreadPoolExecutor, server: Program, orders: list[str]) -> list[Answer]:
    futures: list[Future[Answer]] = [pool.submit(ship, server, order, 10.0) for order in orders]
    return [future.result() for future in futures]


def test_of_many_requests_for_one_order_one_ships_and_the_others_get_409(
    server: Program, pool: ThreadPoolExecutor
) -> None:
    answers = at_once(pool, server, ["4711"] * 6)
    assert sorted(status for status, _ in answers) == [200, 409, 409, 409, 409, 409]
    assert ship(server, "4711")[0] == 200


def test_different_orders_are_shipped_side_by_side(
    server: Program, pool: ThreadPoolExecutor
) -> None:
    answers = at_once(pool, server, ["Müller & Söhne", "a b", "a:b", "{x}"])
    assert [status for status, _ in answers] == [200] * 4
    assert len({json.loads(body)["shipped"] for _, body in answers}) == 4


def test_an_order_of_a_worker_that_died_opens_when_the_ttl_has_run_out(
    server: Program, pool: ThreadPoolExecutor, own_redis: RedisServer
) -> None:
    first = pool.submit(ship, server, "4711", 9.0)
    look = incumbent.Lock(incumbent.safe_name("order", "4711"), store=own_redis.url)
    eventually(look.locked)
    for worker in children(server.pid):
        os.kill(worker, signal.SIGKILL)
    assert first.result()[0] == 0
    eventually(lambda: server.ask("/healthz")[0] == 200)
    assert ship(server, "4711")[0] == 409
    eventually(lambda: ship(server, "4711")[0] == 200)


def test_without_the_store_a_request_is_asked_to_come_again(
    server: Program, own_redis: RedisServer
) -> None:
    assert ship(server, "4711")[0] == 200
    own_redis.kill()
    assert ship(server, "4711")[0] == 503
