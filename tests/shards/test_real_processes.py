"""64 shards over 8 processes that are killed, frozen and ended; their journals are checked."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from incumbent import Group, clock
from tests import tiers
from tests.history.checker import check
from tests.history.events import History
from tests.shards.fleet import TTL, Fleet, longest_gap
from tests.shards.worker import SHARDS
from tests.support.waiting import eventually

BUSY = 8.0
"""Seconds for what a machine with other things to do may take on top."""


@pytest.fixture
def fleet(url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(url, tmp_path)
    yield made
    made.kill_all()


@pytest.mark.left(tiers.LONG)
def test_64_shards_over_8_processes_survive_kills_freezes_and_departures(fleet: Fleet) -> None:
    for _ in range(8):
        fleet.start()
    eventually(lambda: len(Group("orders", store=fleet.store).members()) == 8)
    fleet.await_all()

    killed = fleet.take()
    died = clock.now()
    killed.kill()
    killed.wait()
    fleet.start()
    eventually(lambda: fleet.all_beat_since(died + TTL))

    frozen = fleet.take()
    frozen.send_signal(signal.SIGSTOP)
    stopped = clock.now()
    eventually(lambda: fleet.all_beat_since(stopped + TTL))
    frozen.send_signal(signal.SIGCONT)
    fleet.running.append(frozen)
    fleet.await_all()

    leaving = fleet.take()
    leaving.terminate()
    assert leaving.wait(60) == 0
    two = [fleet.take(), fleet.take()]
    for process in two:
        process.kill()
        process.wait()
    fleet.await_all()
    fleet.start()
    eventually(lambda: len(Group("orders", store=fleet.store).members()) == 6)
    # Whoever was frozen is a member again, and has its shards.
    fleet.await_all()
    time.sleep(0.5)
    fleet.close()

    history = History(list(fleet.witnesses()))
    assert check(history) == []
    assert len(history.events) > 2 * SHARDS
    assert longest_gap(history) <= TTL + BUSY
    assert Group("orders", store=fleet.store).members() == ()
