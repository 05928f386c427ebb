"""The keeper thread: what it renews, when, and what it pays."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from math import inf
from pathlib import Path

import pytest

from incumbent import Client, LeaseLost, Lock, Policy, clock
from incumbent.model import Renewal, Renewed
from incumbent.protocol.renew import Batches, renew
from incumbent.runtime.keeper import Keeper
from incumbent.runtime.link import link_for
from incumbent.runtime.threads import Alarm, Notifier, _QueueAlarm, make_alarm
from incumbent.stores.plan import run_blocking
from tests.support.faulty import Fault, FaultyEngine
from tests.support.needs import needs
from tests.support.pace import BUSY, lasted, took
from tests.support.waiting import eventually


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


def keeper_of(engine: FaultyEngine) -> Keeper:
    return link_for(engine).keeper


@pytest.mark.parametrize("alarm", [make_alarm(), _QueueAlarm()])
def test_an_alarm_sleeps_until_its_instant_or_until_it_is_woken(alarm: Alarm) -> None:
    started = clock.now()
    alarm.wait_until(started + 0.05)
    assert lasted(started, 0.045, 0.05 + BUSY)
    alarm.wait_until(started - 10)
    alarm.wake()
    alarm.wait_until(inf)
    threading.Timer(0.05, alarm.wake).start()
    alarm.wait_until(inf)
    assert took(started) < 0.1 + 2 * BUSY


@needs(Path("/proc/self/fd").is_dir(), "counts the descriptors that Linux lists")
def test_a_client_that_was_closed_leaves_no_descriptor(tmp_path: Path) -> None:
    def use_one() -> int:
        with Client(f"sqlite:///{tmp_path}/leases.db") as client, client.lock("a").acquire():
            pass
        return len(list(Path("/proc/self/fd").iterdir()))

    before = use_one()
    for _ in range(20):
        use_one()
    eventually(lambda: use_one() <= before + 2)


_ENDED_WITHIN_THE_MUTEX = """
import os, threading
import incumbent

lock = incumbent.Lock("a", store="memory:")
lease = lock.acquire()
apart = {"mutex": lease._link.keeper._state.mutex, "inside": threading.Event()}
# In a namespace of its own: a thread that lasts would keep this one, and the lease.
exec('''
def stay():
    import time
    with mutex:
        inside.set()
        time.sleep(60)
''', apart)
threading.Thread(target=apart["stay"], daemon=True).start()
apart["inside"].wait()
"""

_TAKES_ANOTHER = """
import sys

# Out of the garbage that the finalizer is part of, whose finalizers come in any order.
sys.lease = lease

class AtTheEnd:
    def __del__(self, lease=lease, lock=lock, write=os.write):
        lease.release()
        lock.try_acquire().release()
        write(1, b"took another")

kept = AtTheEnd()
"""


@pytest.mark.parametrize(("then", "said"), [("", b""), (_TAKES_ANOTHER, b"took another")])
def test_a_process_ends_whatever_its_daemon_threads_are_doing(then: str, said: bytes) -> None:
    program = [sys.executable, "-c", _ENDED_WITHIN_THE_MUTEX + then]
    ended = subprocess.run(program, timeout=60, check=True, stdout=subprocess.PIPE)
    assert ended.stdout == said


def test_leases_taken_together_are_renewed_in_few_requests(engine: FaultyEngine) -> None:
    leases = [Lock(f"n{i}", store=engine, ttl=4).acquire() for i in range(200)]
    time.sleep(4.5)
    assert all(lease.valid for lease in leases)
    assert engine.faulty.calls["renew"] <= keeper_of(engine).stats.renewals / 4
    for lease in leases:
        lease.release()


def test_a_released_lease_is_not_renewed(engine: FaultyEngine) -> None:
    Lock("a", store=engine, ttl=0.3).acquire().release()
    time.sleep(0.2)
    assert engine.faulty.calls["renew"] == 0


# -- leases that the thread has not given their places yet


@pytest.fixture
def asleep(engine: FaultyEngine) -> Iterator[Keeper]:
    """A keeper whose thread wakes in a minute, before any lease of ten minutes is due."""
    keeper = keeper_of(engine)
    lease = Lock("first", store=engine, ttl=600).acquire()
    keeper.renew_now(lease._claim, lambda: None, after=60)
    yield keeper
    if lease.valid:
        lease.release()


def test_a_lease_that_is_due_before_the_thread_wakes_wakes_it(
    engine: FaultyEngine, asleep: Keeper
) -> None:
    with Lock("brief", store=engine, ttl=4) as lease:
        assert lease._claim.ref not in asleep._state.new
        assert not lease.wait_lost(4.5)


def test_a_lease_that_ends_before_the_thread_wakes_leaves_nothing(
    engine: FaultyEngine, asleep: Keeper
) -> None:
    lease = Lock("a", store=engine, ttl=600).acquire()
    assert list(asleep._state.new) == [lease._claim.ref]
    lease.release()
    assert not asleep._state.new
    assert lease._claim.bucket is None


def test_a_new_lease_has_its_place_once_the_thread_has_woken(
    engine: FaultyEngine, asleep: Keeper
) -> None:
    with Lock("a", store=engine, ttl=600) as lease:
        claim = lease._claim
        assert list(asleep._state.new) == [claim.ref]
        asleep._state.thread.wake()
        eventually(lambda: not asleep._state.new)
        assert claim.ref in list(asleep._state.buckets.refs())


def test_few_leases_wait_for_their_places(engine: FaultyEngine, asleep: Keeper) -> None:
    leases = [Lock(f"n{at}", store=engine, ttl=600).acquire() for at in range(100)]
    assert len(asleep._state.new) <= 64
    for lease in leases:
        lease.release()


def test_a_new_lease_can_be_renewed_at_once(engine: FaultyEngine, asleep: Keeper) -> None:
    with Lock("a", store=engine, ttl=600) as lease:
        assert lease._claim.ref in asleep._state.new
        before = engine.faulty.calls["renew"]
        assert lease.renew() > 0
        assert engine.faulty.calls["renew"] == before + 1


def test_a_new_lease_that_is_to_be_renewed_soon_is_not_put_off(
    engine: FaultyEngine, asleep: Keeper
) -> None:
    with Lock("a", store=engine, ttl=600) as lease:
        asleep.renew_now(lease._claim, lambda: None, after=100)
        soon = lease._claim.bucket
        asleep._plan_sleep(asleep._state)
        assert lease._claim.bucket is soon
        assert not asleep._state.new


def test_a_new_lease_is_found_by_a_fork(engine: FaultyEngine, asleep: Keeper) -> None:
    lease = Lock("a", store=engine, ttl=600).acquire()
    assert lease._claim.ref in asleep._state.new
    asleep.forked()
    assert lease._claim.machine.reason == "forked"


def test_a_renewal_that_failed_is_tried_again_before_the_deadline(engine: FaultyEngine) -> None:
    engine.faulty.plan("renew", Fault.NOT_SENT, Fault.LOST_REPLY, Fault.LOST_REQUEST)
    with Lock("a", store=engine, ttl=3) as lease:
        eventually(lambda: engine.faulty.calls["renew"] >= 5)
        lease.check()


def test_one_lease_that_is_gone_does_not_cost_the_others(engine: FaultyEngine) -> None:
    with Lock("kept", store=engine, ttl=3) as kept:
        gone = Lock("gone", store=engine, ttl=0.9).acquire()
        claim = gone._claim
        engine.faulty.give(claim.wanted.key, claim.id, None, 0)
        assert gone.wait_lost(10)
        assert not kept.wait_lost(3.5)


def test_only_what_the_store_proved_counts_as_renewed(engine: FaultyEngine) -> None:
    keeper = keeper_of(engine)
    usual, under_way, gone = (Lock(name, store=engine, ttl=60).acquire() for name in "abc")
    bounded = Lock("d", store=engine, ttl=60, at_most_for=30).acquire()
    # It is renewed for this alone.
    bounded._claim.proclaim(b"news")
    claims = [lease._claim for lease in (usual, bounded, under_way, gone)]
    under_way._claim.machine.note_renewal_sent(clock.now())
    engine.faulty.give(gone._claim.wanted.key, gone._claim.id, None, 0)
    keeper._renew(claims, Batches())
    assert bounded._claim.machine.ends_by_at_most_for
    assert keeper.stats.renewals == 2
    under_way._claim.machine.note_unrenewed()
    for lease in (usual, bounded, under_way):
        lease.release()


def test_metadata_that_were_replaced_are_never_sent_again(engine: FaultyEngine) -> None:
    lease = Lock("a", store=engine, ttl=600).acquire()
    claim, port = lease._claim, lease._link.port
    mine, others = Batches(), Batches()

    def stored(batches: Batches) -> bytes:
        batches.begin()
        run_blocking(renew(port, [claim], batches))
        return engine.faulty.read(claim.wanted.key, clock.now() + 9).holdings[0].meta

    claim.proclaim(b"older")
    assert stored(mine) == b"older"
    claim.proclaim(b"newer")
    # As a lease that was hurried into another bucket, and comes back into the first.
    assert stored(others) == b"newer"
    assert stored(mine) == b"newer"
    lease.release()


def test_a_debt_is_paid_until_the_store_answers(engine: FaultyEngine) -> None:
    engine.faulty.plan("give", Fault.NOT_SENT, Fault.LOST_REQUEST, Fault.NOT_SENT)
    assert Lock("a", store=engine).acquire().release() is False
    eventually(lambda: Lock("a", store=engine).held_by() is None)


def test_a_claim_in_doubt_is_not_settled_by_a_store_that_never_saw_it(
    engine: FaultyEngine,
) -> None:
    engine.faulty.plan("take", Fault.LOST_REQUEST, Fault.LOST_REQUEST)
    with pytest.raises(Exception, match="lost"):
        Lock("a", store=engine, ttl=0.5).try_acquire()
    eventually(lambda: engine.faulty.calls["give"] >= 3)


def test_what_is_owed_is_paid_when_the_keeper_is_closed(engine: FaultyEngine) -> None:
    lease = Lock("a", store=engine).acquire()
    keeper = keeper_of(engine)
    keeper.owe(lease._claim.debt(clock.now(), undo_slot=False))
    keeper.close()
    assert Lock("a", store=engine).held_by() is None
    with pytest.raises(LeaseLost):
        lease.release()


def test_the_keeper_never_keeps_a_dropped_lease_alive(engine: FaultyEngine) -> None:
    with pytest.warns(ResourceWarning):
        Lock("a", store=engine, ttl=0.3).acquire()
    gc.collect()
    eventually(lambda: not list(keeper_of(engine)._state.buckets.refs()))


def test_an_outage_is_told_once_and_not_at_every_try(
    engine: FaultyEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "incumbent"):
        lease = Lock("a", store=engine, ttl=0.4).acquire()
        engine.faulty.down = True
        assert lease.wait_lost(20)
    assert caplog.messages.count("a: waiting for the store: planned: not sent") == 1


def test_a_callback_that_fails_is_logged_and_the_next_one_runs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done = threading.Event()
    notifier = Notifier()

    def fail() -> None:
        raise RuntimeError("the user's")

    with caplog.at_level(logging.ERROR, "incumbent"):
        notifier.call(fail)
        notifier.call(done.set)
        assert done.wait(30)
    assert "a callback failed" in caplog.text


def test_who_watches_a_lease_that_was_lost_already_is_told_at_once(engine: FaultyEngine) -> None:
    keeper = keeper_of(engine)
    with pytest.raises(LeaseLost), Lock("a", store=engine, ttl=30).acquire() as lease:
        lease._claim.machine.note_gone("taken")
        told: list[bool] = []
        keeper.watch(lease._claim, lambda: told.append(True))
        keeper.watch(lease._claim, lambda: told.append(True), ahead=None)
        assert told == [True, True]


def test_a_renewal_waits_for_its_answer_no_longer_than_a_request_may_take(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = keeper_of(engine).port
    patience: list[float] = []

    async def renew_until(renewals: list[Renewal], until: float) -> list[Renewed]:
        patience.append(until - sent)
        return [Renewed() for _ in renewals]

    with Lock("a", store=engine, policy=Policy(30, request_timeout=0.7)).acquire() as lease:
        sent = clock.now()
        monkeypatch.setattr(port, "renew", renew_until)
        assert run_blocking(renew(port, [lease._claim])) is None
    # Else it would be the rest of the lease, some 20 s.
    (waited,) = patience
    assert 0.69 < waited < 5
