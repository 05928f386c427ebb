"""What acts at a lease's deadline waits for no store."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from incumbent import Client, Election, LeaseLost, Lock, clock
from incumbent.model import Renewal, RenewOutcome
from incumbent.runtime.deadlines import Deadlines
from incumbent.runtime.keeper import Keeper
from incumbent.runtime.link import link_for
from tests.support.faulty import FaultyEngine
from tests.support.pace import BUSY, in_time
from tests.support.waiting import eventually

TTL = 1.5
"""Long enough for the first renewal to begin on a busy machine too."""
_HANGS = 5.0
"""Seconds for which a renewal gets no answer: far longer than any lease here."""


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


def keeper_of(engine: FaultyEngine) -> Keeper:
    return link_for(engine).keeper


@pytest.fixture
def hanging(engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Renewals hang, whatever they were told to wait for at most; set when the first one does."""
    hangs, over = threading.Event(), threading.Event()

    def hang(renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        hangs.set()
        over.wait(_HANGS)
        return good(renewals, until)

    good = engine.faulty.renew
    monkeypatch.setattr(engine.faulty, "renew", hang)
    yield hangs
    over.set()


def lost_in_time(lock: Lock, hanging: threading.Event, told: threading.Event) -> None:
    lease = lock.acquire()
    with in_time(lease.remaining, late_at_most=BUSY):
        assert hanging.wait(60)
        assert told.wait(60)
    assert lease.lost


def test_on_lost_does_not_wait_for_the_renewal_that_hangs(
    engine: FaultyEngine, hanging: threading.Event
) -> None:
    told, losses = threading.Event(), list[LeaseLost]()

    def hear(lost: LeaseLost) -> None:
        losses.append(lost)
        told.set()

    lost_in_time(Lock("a", store=engine, ttl=TTL, on_lost=hear), hanging, told)
    assert [lost.reason for lost in losses] == ["expired"]


def test_who_waits_for_the_loss_does_not_wait_for_the_renewal_that_hangs(
    engine: FaultyEngine, hanging: threading.Event
) -> None:
    lease = Lock("a", store=engine, ttl=TTL).acquire()
    with in_time(lease.remaining, late_at_most=BUSY):
        assert lease.wait_lost(20)
    assert hanging.is_set()


def test_on_revoked_does_not_wait_for_the_renewal_that_hangs(
    engine: FaultyEngine, hanging: threading.Event
) -> None:
    told = threading.Event()
    election = Election("a", store=engine, ttl=TTL, on_revoked=lambda _: told.set())
    term = election.campaign()
    with in_time(term.remaining, late_at_most=BUSY):
        assert hanging.wait(60)
        assert told.wait(60)


def test_a_lease_that_is_renewed_is_told_of_once_and_only_when_it_ends(
    engine: FaultyEngine,
) -> None:
    losses: list[LeaseLost] = []
    lease = Lock("a", store=engine, ttl=3, on_lost=losses.append).acquire()
    first = lease._claim.machine.deadline
    # A busy machine may keep the renewals from running for longer than a short lease lasts.
    eventually(lambda: clock.now() > first)
    assert lease.valid
    assert not losses
    engine.faulty.down = True
    assert lease.wait_lost(20)
    eventually(lambda: losses)
    time.sleep(0.5)
    assert len(losses) == 1


def test_at_most_for_ends_a_lease_whose_store_hangs(
    engine: FaultyEngine, hanging: threading.Event
) -> None:
    told = threading.Event()
    lock = Lock("a", store=engine, ttl=2, at_most_for=0.3, on_lost=lambda _: told.set())
    lease = lock.acquire()
    with in_time(lease.remaining, late_at_most=BUSY):
        assert told.wait(30)


def test_what_was_released_leaves_nothing_to_watch(engine: FaultyEngine) -> None:
    lock = Lock("a", store=engine, ttl=60, on_lost=lambda _: None)
    for _ in range(200):
        lock.acquire().release()
    deadlines = keeper_of(engine)._state.deadlines
    assert len(deadlines._new) + len(deadlines._heap) <= 2


@pytest.mark.parametrize("aheads", [(0.0,) * 20, (0.1, 0.0) * 10, (0.0, 0.1) * 10])
def test_who_watches_through_many_deadlines_has_one_place(
    engine: FaultyEngine, aheads: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lock("a", store=engine, ttl=60).acquire()
    claim, deadlines = lease._claim, Deadlines(lambda claim: None)
    # The test takes the thread's steps.
    monkeypatch.setattr(deadlines.thread, "wake", lambda: None)
    for ahead in aheads:
        claim.machine.deadline = clock.now()
        deadlines.watch(claim, ahead)
        deadlines._plan_sleep()
        claim.machine.deadline = clock.now() + 60
        deadlines._act()
    assert deadlines._ahead == {claim.ref: max(aheads)}
    # One that is void stays until its time comes.
    assert len(deadlines._heap) <= len(set(aheads))
    lease.release()


def test_a_lease_that_ends_before_the_others_wakes_the_thread(engine: FaultyEngine) -> None:
    far = Lock("far", store=engine, ttl=60, on_lost=lambda _: None).acquire()
    deadlines = keeper_of(engine)._state.deadlines
    eventually(lambda: deadlines._heap)
    told = threading.Event()
    near = Lock("near", store=engine, ttl=TTL, on_lost=lambda _: told.set()).acquire()
    with in_time(near.remaining, late_at_most=BUSY):
        engine.faulty.down = True
        assert told.wait(60)
    assert far.valid
    engine.faulty.down = False
    far.release()


def test_a_closed_client_still_tells_of_the_end_of_what_it_renews_no_longer(
    engine: FaultyEngine,
) -> None:
    told = threading.Event()
    with Client(engine) as client:
        lease = client.lock("a", ttl=TTL, on_lost=lambda _: told.set()).acquire()
    with in_time(lease.remaining, late_at_most=BUSY):
        assert told.wait(60)
    assert lease.wait_lost(0)


def test_a_wait_for_the_loss_begun_after_the_client_was_closed_ends_in_time(
    engine: FaultyEngine,
) -> None:
    with Client(engine) as client:
        lease = client.lock("a", ttl=TTL).acquire()
    with in_time(lease.remaining, late_at_most=BUSY):
        assert lease.wait_lost(20)


def test_with_nobody_who_watches_there_is_no_thread(engine: FaultyEngine) -> None:
    deadlines = keeper_of(engine)._state.deadlines
    for _ in range(3):
        lease = Lock("a", store=engine, ttl=TTL, on_lost=lambda _: None).acquire()
        assert deadlines.thread.alarm is not None
        lease.release()
        eventually(lambda: deadlines.thread.alarm is None, within=10)


# -- the end of the process


_NOBODY_READS = """
import os, time
import incumbent

os.set_blocking(2, False)
try:
    while True:
        os.write(2, b"x" * 4096)
except BlockingIOError:
    os.set_blocking(2, True)
lease = incumbent.Lock("a", store="memory:", at_most_for=0.3, if_lost="exit").acquire()
time.sleep(100)
"""


def test_the_end_of_the_process_waits_for_nobody_who_reads_its_errors() -> None:
    program = [sys.executable, "-c", _NOBODY_READS]
    with subprocess.Popen(program, stderr=subprocess.PIPE) as process:
        assert process.wait(60) == 123
