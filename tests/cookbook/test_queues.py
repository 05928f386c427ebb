"""Queues that deliver twice, and in parallel: one job at a time for each customer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import tiers
from tests.cookbook.recipe import Program, Recipe, cooked
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.server, pytest.mark.left(tiers.FRAMEWORKS)]

EVENT = re.compile(r"(begin|end) ([a-z]+) (\d+\.\d+)")


@dataclass(frozen=True)
class Queue:
    """How the jobs of a recipe are sent, and how a worker is started."""

    page: str
    send: tuple[str, ...]
    worker: tuple[str, ...]


QUEUES = {
    queue.page: queue
    for queue in (
        Queue(
            "celery",
            ("python", "-c", "import sys, tasks; [tasks.report.delay(c) for c in sys.argv[1:]]"),
            ("celery", "-A", "tasks", "worker", "--concurrency", "2", "--loglevel", "warning"),
        ),
        Queue("rq", ("python", "send.py"), ("rq", "worker", "--url", "BROKER")),
        Queue(
            "dramatiq",
            ("python", "actors.py"),
            ("dramatiq", "actors", "--processes", "1", "--threads", "4"),
        ),
        Queue("arq", ("python", "worker.py"), ("arq", "worker.WorkerSettings")),
    )
}


@pytest.fixture(params=QUEUES)
def queue(request: pytest.FixtureRequest) -> Queue:
    return QUEUES[request.param]


@pytest.fixture
def broker(own_redis: RedisServer) -> str:
    return f"{own_redis.url}/1"


@pytest.fixture
def recipe(queue: Queue, own_redis: RedisServer, broker: str, tmp_path: Path) -> Iterator[Recipe]:
    store = f"{own_redis.url}/0?restart_wait=0"
    with cooked(queue.page, tmp_path, INCUMBENT_STORE=store, BROKER=broker) as recipe:
        yield recipe


def work(recipe: Recipe, queue: Queue, broker: str) -> Program:
    return recipe.start(*(word.replace("BROKER", broker) for word in queue.worker))


def said(*workers: Program) -> list[tuple[float, str, str]]:
    """When each job began and ended, and whose it was, in order."""
    # Threads print side by side: an end of line may come after the words of another.
    found = [event for worker in workers for event in EVENT.findall(worker.said)]
    return sorted((float(when), what, customer) for what, customer, when in found)


def ended(*workers: Program) -> list[str]:
    return sorted(customer for _, what, customer in said(*workers) if what == "end")


def overlaps(events: list[tuple[float, str, str]]) -> list[str]:
    """Customers of whom two jobs ran at once."""
    running: set[str] = set()
    twice = []
    for _, what, customer in events:
        if what == "begin" and customer in running:
            twice.append(customer)
        (running.add if what == "begin" else running.discard)(customer)
    return twice


def test_jobs_of_one_customer_never_run_side_by_side_and_all_run(
    recipe: Recipe, queue: Queue, broker: str
) -> None:
    workers = [work(recipe, queue, broker) for _ in range(2)]
    recipe.run(*queue.send, "alice", "alice", "bob", "alice")
    eventually(lambda: len(ended(*workers)) == 4, within=60)
    assert ended(*workers) == ["alice", "alice", "alice", "bob"]
    assert overlaps(said(*workers)) == []


def test_after_a_worker_was_killed_the_next_job_of_its_customer_runs(
    recipe: Recipe, queue: Queue, broker: str
) -> None:
    first = work(recipe, queue, broker)
    recipe.run(*queue.send, "alice")
    eventually(lambda: any(what == "begin" for _, what, _ in said(first)))
    first.kill()
    second = work(recipe, queue, broker)
    recipe.run(*queue.send, "alice")
    eventually(lambda: "alice" in ended(second), within=60)
    assert ended(first) == []
