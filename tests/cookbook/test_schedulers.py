"""Celery's beat and APScheduler's scheduler: one of them runs, and the other takes over."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest

from incumbent import Client
from tests import tiers
from tests.cookbook.recipe import Program, Recipe, cooked
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

SENDS = re.compile(r"\[([\d :,-]{23}): .*Sending due task")

pytestmark = [pytest.mark.server, pytest.mark.left(tiers.FRAMEWORKS)]


def ticks(*programs: Program) -> list[float]:
    """When each tick was, in order."""
    return sorted(float(words[-1]) for words in _ticked(programs))


def terms(program: Program) -> list[int]:
    """The number of the term of each tick."""
    return [int(words[-2]) for words in _ticked((program,))]


def _ticked(programs: Iterable[Program]) -> Iterator[list[str]]:
    for program in programs:
        # A line is written in pieces.
        whole = program.said.rpartition("\n")[0].splitlines()
        yield from (words for words in map(str.split, whole) if "tick" in words[-3:-1])


def sent(*beats: Program) -> list[float]:
    """When they sent something, by their own logs: a busy worker may tick twice in a row."""
    found = [f"{at} +0000" for beat in beats for at in SENDS.findall(beat.said)]
    return sorted(datetime.strptime(at, "%Y-%m-%d %H:%M:%S,%f %z").timestamp() for at in found)


@pytest.fixture
def scheduler(own_redis: RedisServer, tmp_path: Path) -> Iterator[Recipe]:
    store = f"{own_redis.url}?restart_wait=0"
    with cooked("apscheduler", tmp_path, INCUMBENT_STORE=store) as recipe:
        yield recipe


@pytest.fixture
def celery(own_redis: RedisServer, tmp_path: Path) -> Iterator[Recipe]:
    store, broker = f"{own_redis.url}/0?restart_wait=0", f"{own_redis.url}/1"
    with cooked("celery", tmp_path, INCUMBENT_STORE=store, BROKER=broker) as recipe:
        yield recipe


def service(recipe: Recipe) -> Program:
    return recipe.start("python", "service.py")


def beat(recipe: Recipe, host: str) -> Program:
    command = ("celery", "-A", "tasks", "beat", "--schedule", f"beat-{host}", "--loglevel", "info")
    lead = ("python", "-m", "incumbent", "lead", "beat", "--ttl", "6s", "--holder", host)
    return recipe.start(*lead, "--", *command)


def test_one_of_two_schedulers_ticks_and_hands_over_when_it_is_stopped(scheduler: Recipe) -> None:
    first = service(scheduler)
    eventually(lambda: ticks(first))
    second = service(scheduler)
    eventually(lambda: len(ticks(first)) > 4)
    assert ticks(second) == []
    assert first.terminate() == 0, first.said
    eventually(lambda: ticks(second))
    assert max(ticks(first)) < min(ticks(second))
    with Client(scheduler.settings["INCUMBENT_STORE"]) as client:
        now, *before = reversed(client.read("scheduler").history)
    # Only who gives a lease back notes when.
    assert now.ended is None
    assert [one.ended is None for one in before] == [False]


def test_a_scheduler_that_was_frozen_ticks_no_more_in_its_term(scheduler: Recipe) -> None:
    first = service(scheduler)
    eventually(lambda: ticks(first))
    second = service(scheduler)
    first.process.send_signal(signal.SIGSTOP)
    eventually(lambda: ticks(second))
    before = terms(first)
    first.process.send_signal(signal.SIGCONT)
    # Its late ticks are refused, unless the scheduler is shut down before it comes to them.
    assert second.terminate() == 0, second.said
    after = eventually(lambda: terms(first)[len(before) :])
    assert max(before) < min(terms(second)) < min(after)


def test_of_two_beats_one_sends_and_the_other_takes_over(celery: Recipe) -> None:
    worker = celery.start("celery", "-A", "tasks", "worker", "--concurrency", "1", "-l", "warning")
    first, second = beat(celery, "a"), beat(celery, "b")

    def sends() -> list[Program]:
        return [one for one in (first, second) if "Sending due task" in one.said]

    (sender,) = eventually(sends)
    (other,) = {first, second} - {sender}
    eventually(lambda: len(ticks(worker)) > 3)
    assert sends() == [sender]
    sender.kill()
    eventually(lambda: sends() == [sender, other] or sends() == [other, sender])
    assert min(later - earlier for earlier, later in pairwise(sent(first, second))) > 0.3
