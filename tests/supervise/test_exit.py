"""A process that leaves gives what is owed its time, also what the keeper is paying just then."""

from __future__ import annotations

import threading
from typing import Any

from incumbent import clock
from incumbent.locks.lock import Lock
from incumbent.model import GiveOutcome, Released
from incumbent.runtime.keeper import Keeper
from incumbent.stores.memory import MemoryStore
from tests.support.faulty import FaultyEngine
from tests.support.pace import BUSY, took


class SlowStore(MemoryStore):
    """Its `give` waits until it is let through."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()
        self.let_through = threading.Event()
        self.given = False

    def give(self, *_: Any, **__: Any) -> GiveOutcome:
        self.asked.set()
        self.given = self.let_through.wait(5)
        return Released()


def test_an_exit_waits_for_the_release_that_the_keeper_has_in_hand() -> None:
    store = SlowStore()
    keeper = Keeper(store)
    lease = Lock("job", store=FaultyEngine()).acquire()
    keeper.owe(lease._claim.debt(clock.now(), undo_slot=False))
    assert store.asked.wait(30)
    threading.Timer(0.05, store.let_through.set).start()
    keeper.drain(5)
    assert store.given
    keeper.close()
    lease.release()


def test_an_exit_does_not_wait_for_ever() -> None:
    store = SlowStore()
    keeper = Keeper(store)
    lease = Lock("job", store=FaultyEngine()).acquire()
    keeper.owe(lease._claim.debt(clock.now(), undo_slot=False))
    assert store.asked.wait(30)
    began = clock.now()
    keeper.drain(0.1)
    assert took(began) < 0.1 + BUSY
    store.let_through.set()
    keeper.close()
    lease.release()
