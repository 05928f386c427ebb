"""Planted bugs that no simulated world can have: of a real clock, of the store's arithmetic, of
sockets. For each, one check that the real code passes and the mutant does not.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, Literal

import pytest

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.model import Ask, Granted, Key, Refused, Renewal, TakeOutcome
from incumbent.stores.base import Store
from incumbent.stores.memory import MemoryTable
from incumbent.stores.url import open_engine
from tests.contract.mutants import RenewalShortens
from tests.support.proxy import FaultProxy

HOUR = 3600.0
FREE, TAKEN = Key("sim", "free"), Key("sim", "taken")
MAIN, HANDLER, OTHER = "a" * 32, "b" * 32, "c" * 32
PATIENCE = 10.0  # a connection is several exchanges, each of them slow here


# -- a shorter renewal overtaking a longer ---------------------------------------------------


def holds_after_a_short_renewal_overtook_a_long_one(table: MemoryTable) -> bool:
    """The long one was sent first and believed, the short one arrives after it."""
    grant = table.take(FREE, MAIN, Ask(2.0, "me"), 0.0, 1.0)
    assert isinstance(grant, Granted)
    for ttl in (60.0, 2.0):
        table.renew(Renewal(FREE, MAIN, grant.token, ttl, grant.epoch), 1.0)
    return isinstance(table.take(FREE, OTHER, Ask(2.0, "other"), 30.0, 30.0), Refused)


def test_a_shorter_renewal_does_not_overtake_a_longer_one() -> None:
    assert holds_after_a_short_renewal_overtook_a_long_one(MemoryTable())


def test_a_store_where_it_does_is_caught() -> None:
    assert not holds_after_a_short_renewal_overtook_a_long_one(RenewalShortens())


# -- a clock that misses suspend -------------------------------------------------------------


def shows_an_hour_of_suspend(
    which: Literal["deadlines", "monotonic"], patch: pytest.MonkeyPatch
) -> bool:
    """CLOCK_BOOTTIME counts it, CLOCK_MONOTONIC does not: a clock is read before and after."""
    read = time.clock_gettime
    now = _fresh_clock().now if which == "deadlines" else time.monotonic
    before = now()

    def after(clock_id: int) -> float:
        return read(clock_id) + (HOUR if clock_id == time.CLOCK_BOOTTIME else 0.0)

    patch.setattr(time, "clock_gettime", after)
    now = _fresh_clock().now if which == "deadlines" else time.monotonic
    return bool(now() - before >= HOUR)


def _fresh_clock() -> ModuleType:
    # Its own copy: the module binds its clock when it is imported.
    spec = find_spec("incumbent.clock")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_clock_of_deadlines_counts_suspend(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shows_an_hour_of_suspend("deadlines", monkeypatch)


def test_a_clock_that_misses_suspend_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not shows_an_hour_of_suspend("monotonic", monkeypatch)


# -- a connection shared with a signal handler -----------------------------------------------


class _SharedByAll(list[Any]):
    """A free-list that hands its connection out and keeps it."""

    def pop(self, index: Any = -1) -> Any:
        wire = self[index]
        if wire._sock.fileno() < 0:
            del self[index]
        return wire

    def append(self, wire: Any) -> None:
        self[:] = [wire]


def tell_main_after(seconds: float) -> threading.Timer:
    # Not setitimer: the timeout of the test run may own its signal.
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(seconds, signal.pthread_kill, (main, signal.SIGUSR1))
    timer.start()
    return timer


def answers_with_a_handler_in_between(
    store: Store, proxy: FaultProxy
) -> tuple[TakeOutcome | Exception, TakeOutcome | Exception]:
    """What the main line and a signal handler were told, when one asked during the other's wait."""
    told: list[TakeOutcome | Exception] = []

    def ask(key: Key, claim: str) -> None:
        try:
            told.append(store.take(key, claim, Ask(30.0, claim[:4]), clock.now() + PATIENCE))
        except (StoreError, ValueError) as error:
            # ValueError: of a socket that the other closed meanwhile.
            told.append(error)

    store.take(TAKEN, OTHER, Ask(30.0, "other"), clock.now() + PATIENCE)
    before = signal.signal(signal.SIGUSR1, lambda *_: ask(TAKEN, HANDLER))
    proxy.delay(reply=0.6)
    timer = tell_main_after(0.2)
    try:
        ask(FREE, MAIN)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)
    by_handler, by_main = told
    return by_main, by_handler


@pytest.fixture
def redis_store(proxy: FaultProxy) -> Iterator[Store]:
    store = open_engine(f"{proxy.url}?restart_wait=0").store()
    yield store
    store.close()


def test_a_signal_handler_has_a_connection_of_its_own(
    redis_store: Store, proxy: FaultProxy
) -> None:
    by_main, by_handler = answers_with_a_handler_in_between(redis_store, proxy)
    assert isinstance(by_main, Granted)
    assert by_main.claim == MAIN
    assert isinstance(by_handler, Refused)


def test_a_connection_shared_with_a_signal_handler_is_caught(
    redis_store: Any, proxy: FaultProxy
) -> None:
    redis_store.operations.idle = _SharedByAll()
    by_main, by_handler = answers_with_a_handler_in_between(redis_store, proxy)
    assert not (isinstance(by_main, Granted) and isinstance(by_handler, Refused))
    # The echo of the claim: not even then does anybody believe a lease that is not his.
    assert not isinstance(by_handler, Granted)
