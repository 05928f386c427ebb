"""The clients that a suite can have: with clocks that are off, and without a resolver."""

from __future__ import annotations

import datetime as dt
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.model import Ask, Granted, Key, Record
from incumbent.stores.base import Engine
from incumbent.stores.memory import MemoryEngine, MemoryStore
from incumbent.testing.clients import other_process, resolver_stands_still
from tests import tiers

pytestmark = pytest.mark.slow

KEY = Key("clients", "job")
DAY = 86_400.0


class Telling(MemoryStore):
    """Its records say what the clocks of its process say."""

    def read(self, key: Key, until: float) -> Record:
        clocks = {
            "wall": clock.wall(),
            "now": clock.now(),
            "ns": time.time_ns() / 1e9,
            "monotonic": time.monotonic(),
            "utc": dt.datetime.now(dt.UTC).timestamp(),
            "naive": dt.datetime.now().timestamp(),  # noqa: DTZ005 - users do it
            "left": until - clock.now(),
            "kind": float(isinstance(dt.datetime.fromtimestamp(0, dt.UTC), dt.datetime)),
        }
        return Record(key, slots=clocks)

    def wait_change(self, key: Key, seen: str, until: float) -> None:
        raise StoreUnavailable("nothing changes here")

    def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        raise SystemExit("the process ends")


def make() -> MemoryEngine:
    return MemoryEngine("memory:elsewhere", Telling())


@pytest.fixture(params=[DAY, -DAY], ids=["ahead", "behind"])
def offset(request: pytest.FixtureRequest) -> float:
    given: float = request.param
    return given


@pytest.fixture
def engine(offset: float) -> Iterator[Engine]:
    there = other_process(make, clock_offset=offset)
    with closing(there.store()):
        yield there


@pytest.mark.left(tiers.SIDES, "behind")
def test_every_clock_of_the_other_process_is_off(engine: Engine, offset: float) -> None:
    told = engine.store().read(KEY, clock.now() + 20).slots
    for name in ("wall", "ns", "utc", "naive"):
        assert abs(told[name] - time.time() - offset) < DAY / 4, name
    # Since boot: another host was started at another time, and never after now.
    assert told["now"] > clock.now() + DAY / 2
    assert told["monotonic"] > time.monotonic() + DAY / 2
    assert told["kind"] == 1


@pytest.mark.left(tiers.SIDES, "ahead")
def test_its_deadlines_are_those_of_the_asker(engine: Engine) -> None:
    assert 0 < engine.store().read(KEY, clock.now() + 20).slots["left"] <= 20


@pytest.mark.left(tiers.SIDES, "ahead")
def test_errors_come_from_there_and_it_starts_again_after_a_close(engine: Engine) -> None:
    store = engine.store()
    with pytest.raises(StoreUnavailable, match="nothing changes"):
        store.wait_change(KEY, "", clock.now() + 20)
    claim = "0" * 32
    assert isinstance(store.take(KEY, claim, Ask(60.0, "me"), clock.now() + 20), Granted)
    store.close()
    again = store.take(KEY, "1" * 32, Ask(60.0, "me"), clock.now() + 20)
    assert isinstance(again, Granted), "a new process has a new memory"
    assert engine.capabilities == MemoryEngine.capabilities
    assert engine.diagnose(15.0, clock.now() + 30) == []


def test_a_process_that_ends_by_itself_is_an_outage() -> None:
    with pytest.raises(StoreUnavailable, match="ended"):
        # What makes an engine here, and nowhere else.
        other_process(partial(make_in, os.getpid()))


def make_in(process: int) -> MemoryEngine:
    if os.getpid() != process:
        raise SystemExit("no such store")
    return make()


def test_no_request_waits_for_the_start_of_the_process(tmp_path: Path) -> None:
    """On a busy machine it may take longer than an answer."""
    made = tmp_path / "made"
    there = other_process(partial(make_and_note, os.getpid(), made))
    with closing(there.store()):
        assert made.exists()


def make_and_note(here: int, made: Path) -> MemoryEngine:
    if os.getpid() != here:
        made.touch()
    return make()


def test_a_process_that_ended_is_started_again_by_the_next_request() -> None:
    there = other_process(make)
    with closing(there.store()) as store:
        with pytest.raises(StoreUnavailable, match="ended"):
            store.scan("any", "", clock.now() + 20)
        assert store.read(KEY, clock.now() + 20).key == KEY


def test_a_resolver_that_stands_still_answers_afterwards() -> None:
    found: list[object] = []
    with resolver_stands_still():
        asking = threading.Thread(target=lambda: found.append(socket.getaddrinfo("localhost", 1)))
        asking.start()
        asking.join(0.05)
        assert found == []
    asking.join(20)
    assert found
