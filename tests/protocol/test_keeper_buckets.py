"""How the keeper spreads renewals over time, and what it sends again unchanged."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from math import inf

import pytest

from incumbent import Lease, Lock, clock
from incumbent.lease import LeaseMachine, LeaseState
from incumbent.model import Batch, Renewal, RenewOutcome
from incumbent.protocol.claim import Claim
from incumbent.runtime.buckets import FULL, Bucket, Buckets, _next_in_phase, grid
from incumbent.runtime.keeper import Keeper, _requests
from incumbent.runtime.link import link_for
from tests.support.faulty import Fault, FaultyEngine
from tests.support.waiting import eventually

Renew = Callable[[Sequence[Renewal], float], list[RenewOutcome]]


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


def keeper_of(engine: FaultyEngine) -> Keeper:
    return link_for(engine).keeper


def take(engine: FaultyEngine, number: int, ttl: float = 0.6) -> list[Lease]:
    return [Lock(f"n{at}", store=engine, ttl=ttl).acquire() for at in range(number)]


def wrap_renew(
    engine: FaultyEngine, patch: pytest.MonkeyPatch, around: Callable[[Renew], Renew]
) -> None:
    patch.setattr(engine.faulty, "renew", around(engine.faulty.renew))


# -- when


def test_a_bucket_however_late_keeps_its_phase_and_is_never_due_too_late() -> None:
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    for _ in range(2000):
        every = chance.choice([0.02, 0.3, 1.8, 3.0, 86_400 / 5]) * chance.uniform(0.9, 1.1)
        width = grid(every)
        assert every / 32 <= width <= every / 16, seed
        due = width * chance.randrange(1, 1 << 30)
        sent = due + chance.choice([0.0, 0.01, 1, 20]) * every * chance.random()
        again = _next_in_phase(due, every, sent)
        period = every - every % width
        assert (again - due) % period == 0, seed
        assert due < again <= sent + every < again + period, seed


def test_what_is_taken_at_once_is_spread_over_buckets_of_a_bounded_size(
    engine: FaultyEngine,
) -> None:
    lease = Lock("a", store=engine, ttl=60).acquire()
    buckets = Buckets(threading.RLock())
    now = clock.now()
    some = [Claim(lease._claim.port, lease._claim.wanted) for _ in range(4 * FULL)]
    for claim in some:
        buckets.add(claim, now + 11, earliest=now)
    sizes = [len(bucket) for bucket in buckets.take(inf)]
    assert sizes == [FULL] * 4
    lease.release()


def test_where_each_is_a_request_those_taken_at_once_are_spread_evenly(
    engine: FaultyEngine,
) -> None:
    lease = Lock("a", store=engine, ttl=60).acquire()
    buckets = Buckets(threading.RLock(), spread=True)
    now = clock.now()
    # The bucket lives as long as its claims.
    claims = [Claim(lease._claim.port, lease._claim.wanted) for _ in range(100)]
    for claim in claims:
        buckets.add(claim, now + 11.9, earliest=now)
    found = buckets.take(inf)
    assert sum(len(bucket) for bucket in found) == 100
    assert min(bucket.due for bucket in found) >= now - grid(12.0)
    # At least 23 instants, half a second apart: at most ten renewals a second.
    assert max(len(bucket) for bucket in found) <= 5
    lease.release()


def test_what_finds_no_room_is_renewed_all_the_same(engine: FaultyEngine) -> None:
    lease = Lock("a", store=engine, ttl=60).acquire()
    buckets = Buckets(threading.RLock())
    now = clock.now()
    some = [Claim(lease._claim.port, lease._claim.wanted) for _ in range(2 * FULL + 1)]
    for claim in some:
        buckets.add(claim, now + 1, earliest=now + 0.5)
    assert sum(len(bucket) for bucket in buckets.take(inf)) == len(some)
    lease.release()


def test_one_that_is_asked_for_often_is_remembered_once(engine: FaultyEngine) -> None:
    with Lock("a", store=engine, ttl=30) as lease:
        for _ in range(10):
            lease.renew()
        eventually(lambda: list(keeper_of(engine)._state.buckets.refs()) == [lease._claim.ref])


def test_a_thread_that_is_late_asks_for_all_at_once(engine: FaultyEngine) -> None:
    lease = Lock("a", store=engine, ttl=60).acquire()
    due = [Bucket(100 + at / 8, 2.0) for at in range(4)]
    some = [Claim(lease._claim.port, lease._claim.wanted) for _ in range(1200)]
    lease.release()
    for number, bucket in enumerate(due):
        bucket.update(dict.fromkeys(claim.ref for claim in some[: 200 * number]))
    small, *large = due
    assert list(_requests(due, 100.9)) == [*([one] for one in large), [small]]
    assert list(_requests(due, 101.1)) == [due]
    assert list(_requests([], 100.6)) == []


def test_leases_of_many_ttls_are_all_renewed(engine: FaultyEngine) -> None:
    leases = [Lock(f"n{at}", store=engine, ttl=3 + at / 50).acquire() for at in range(40)]
    time.sleep(4.2)
    assert [lease.valid for lease in leases] == [True] * 40
    for lease in leases:
        lease.release()


# -- the same again


def test_what_is_sent_again_unchanged_is_the_same_object(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = keeper_of(engine)
    leases = take(engine, 5, ttl=60)
    bucket = Bucket(0.0, 12.0)
    for lease in leases:
        bucket[lease._claim.ref] = None
    sent: list[Sequence[Renewal]] = []

    def watch(renew: Renew) -> Renew:
        def answer(renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
            sent.append(renewals)
            return renew(renewals, until)

        return answer

    wrap_renew(engine, monkeypatch, watch)

    def again() -> Sequence[Renewal]:
        keeper._renew_buckets([bucket])
        return sent[-1]

    first = again()
    assert isinstance(first, Batch)
    assert again() is first
    leases.pop().release()
    assert len(again()) == 4
    assert again() is sent[-2]
    leases[0]._claim.proclaim(b"new")
    assert [each.meta for each in again()] == [b"new", None, None, None]
    assert leases[0]._claim.proclaimed == b"new"
    assert again() is sent[-2]
    for lease in leases:
        lease.release()


def test_metadata_changed_back_after_a_lost_answer_is_sent_again(
    engine: FaultyEngine,
) -> None:
    """The last batch says the other thing, and the store perhaps believes it."""
    keeper = keeper_of(engine)
    (lease,) = take(engine, 1, ttl=60)
    claim, bucket = lease._claim, Bucket(0.0, 12.0)
    bucket[claim.ref] = None
    old = b"old"
    claim.proclaim(old)
    keeper._renew_buckets([bucket])
    claim.proclaim(b"new")
    engine.faulty.plan("renew", Fault.LOST_REPLY)
    keeper._renew_buckets([bucket])
    claim.proclaim(old)
    bucket[claim.ref] = None
    keeper._renew_buckets([bucket])
    assert engine.faulty.read(claim.wanted.key, inf).holdings[0].meta == b"old"
    lease.release()


def test_metadata_whose_answer_was_lost_is_proclaimed_by_the_next(engine: FaultyEngine) -> None:
    keeper = keeper_of(engine)
    (lease,) = take(engine, 1, ttl=60)
    claim, bucket = lease._claim, Bucket(0.0, 12.0)
    claim.proclaim(b"new")
    engine.faulty.plan("renew", Fault.LOST_REPLY)
    for _ in range(2):
        bucket[claim.ref] = None
        keeper._renew_buckets([bucket])
    assert claim.proclaimed == b"new"
    lease.release()


def test_leases_of_one_request_have_each_the_deadline_of_its_ttl(engine: FaultyEngine) -> None:
    keeper = keeper_of(engine)
    bucket = Bucket(0.0, 12.0)
    ttls = (60, 90, 61)
    leases = [Lock(f"n{ttl}", store=engine, ttl=ttl).acquire() for ttl in ttls]
    for lease in leases:
        bucket[lease._claim.ref] = None
    keeper._renew_buckets([bucket])
    machines = [lease._claim.machine for lease in leases]
    left = [machine.deadline - bucket.sent for machine in machines]
    assert left == pytest.approx([machine.policy.span for machine in machines], abs=0.1)
    stops = [machine.stop_at - bucket.sent for machine in machines]
    assert stops == pytest.approx([machine.policy.renew_deadline for machine in machines], abs=0.1)
    for lease in leases:
        lease.release()


# -- what goes wrong in a batch


def test_the_lost_answer_of_a_batch_proves_nothing_and_all_are_tried_again(
    engine: FaultyEngine,
) -> None:
    leases = take(engine, 50, ttl=3)
    engine.faulty.plan("renew", *[Fault.LOST_REPLY] * 3)
    before = [lease._claim.machine.deadline for lease in leases]
    eventually(lambda: keeper_of(engine).stats.failures >= 3)
    failed = [lease for lease in leases if lease._claim.failures]
    assert all(lease._claim.machine.deadline in before for lease in failed)
    time.sleep(3.2)
    assert all(lease.valid for lease in leases)
    for lease in leases:
        lease.release()


def test_a_batch_that_is_answered_late_revives_nobody(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()

    def late(renew: Renew) -> Renew:
        def answer(renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
            outcomes = renew(renewals, until)
            time.sleep(0.5)
            answered.set()
            return outcomes

        return answer

    wrap_renew(engine, monkeypatch, late)
    leases = take(engine, 20, ttl=0.4)
    assert answered.wait(30)
    eventually(lambda: all(lease._claim.machine.state is LeaseState.LOST for lease in leases))
    assert not any(lease.valid for lease in leases)


def test_an_answer_that_nobody_expected_costs_no_lease(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries = iter([True] * 2)

    def broken(renew: Renew) -> Renew:
        def answer(renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
            if next(tries, False):
                raise ValueError("a defect of the store")
            return renew(renewals, until)

        return answer

    wrap_renew(engine, monkeypatch, broken)
    leases = take(engine, 20, ttl=4)
    time.sleep(4.5)
    assert all(lease.valid for lease in leases)
    assert "incumbent-keeper ended by an error" in caplog.text
    for lease in leases:
        lease.release()


def test_one_that_is_let_go_while_its_batch_is_made_costs_no_other(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    leases = take(engine, 10, ttl=3)
    leaver = leases.pop(5)
    mark = LeaseMachine.note_renewal_sent

    def after_the_look(self: LeaseMachine, now: float) -> None:
        if self is leaver._claim.machine and self.state is LeaseState.HELD:
            leaver.release()
        mark(self, now)

    monkeypatch.setattr(LeaseMachine, "note_renewal_sent", after_the_look)
    time.sleep(3.3)
    assert leaver._claim.machine.state is LeaseState.RELEASED
    assert all(lease.valid for lease in leases)
    assert "ended by an error" not in caplog.text
    for lease in leases:
        lease.release()


def test_leases_come_and_go_while_batches_are_under_way(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(renew: Renew) -> Renew:
        def answer(renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
            time.sleep(0.01)
            return renew(renewals, until)

        return answer

    wrap_renew(engine, monkeypatch, slow)
    kept = take(engine, 30, ttl=3)
    lost: list[str] = []
    until = clock.now() + 3.5

    def come_and_go(name: str) -> None:
        while clock.now() < until:
            with Lock(name, store=engine, ttl=3, on_lost=lambda _: lost.append(name)):
                time.sleep(0.002)

    threads = [threading.Thread(target=come_and_go, args=(f"t{at}",)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == []
    assert all(lease.valid for lease in kept)
    for lease in kept:
        lease.release()
    eventually(lambda: not list(keeper_of(engine)._state.buckets.refs()))


def test_a_lease_whose_renewal_is_under_way_is_found_by_a_fork(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []

    def look(renew: Renew) -> Renew:
        def answer(renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
            found.append(len(set(keeper_of(engine)._state.buckets.refs())))
            return renew(renewals, until)

        return answer

    wrap_renew(engine, monkeypatch, look)
    leases = take(engine, 10, ttl=2)
    eventually(lambda: len(found) >= 5)
    assert set(found[2:]) == {10}
    for lease in leases:
        lease.release()


def test_a_holder_that_sees_the_end_before_the_keeper_is_told_all_the_same(
    engine: FaultyEngine,
) -> None:
    told = threading.Event()
    lease = Lock("a", store=engine, ttl=0.4, on_lost=lambda _: told.set()).acquire()
    engine.faulty.down = True
    lease._claim.machine.note_expired()
    assert told.wait(30)
