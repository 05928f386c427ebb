"""Blocking locks on a memory store with planned faults."""

from __future__ import annotations

import copy
import ctypes
import gc
import logging
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import FrameType

import pytest

import incumbent
from incumbent import Lock, clock
from incumbent.errors import StoreUnavailable
from incumbent.lease import LeaseMachine
from incumbent.model import Ask, Key, TakeOutcome
from tests.support.faulty import Fault, FaultyEngine
from tests.support.forks import in_a_child
from tests.support.pace import took
from tests.support.waiting import eventually


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


def test_a_lease_is_proved_and_has_a_token(engine: FaultyEngine) -> None:
    with Lock("a", store=engine, holder="me") as lease:
        assert lease.valid
        assert not lease.lost
        assert 10 < lease.remaining < 14.5
        assert lease.fencing_token > 0
        assert (lease.name, lease.holder) == ("a", "me")
        lease.check(need=2)


def test_tokens_grow_from_holder_to_holder(engine: FaultyEngine) -> None:
    tokens = []
    for _ in range(5):
        with Lock("a", store=engine) as lease:
            tokens.append(lease.fencing_token)
    assert tokens == sorted(set(tokens))


def test_a_second_lock_is_refused_and_told_who_holds(engine: FaultyEngine) -> None:
    with Lock("a", store=engine, holder="first"):
        second = Lock("a", store=engine, timeout=0)
        assert second.try_acquire() is None
        assert second.held_by() == "first"
        with pytest.raises(incumbent.NotAcquired, match="held by first") as caught:
            second.acquire()
    assert caught.value.held_by == "first"
    assert caught.value.reason == "held"
    assert caught.value.retry_after == pytest.approx(15, abs=5)


def test_waiting_ends_with_a_timeout_error_that_says_how_long(engine: FaultyEngine) -> None:
    lease, began = Lock("a", store=engine).acquire(), clock.now()
    with pytest.raises(TimeoutError, match="waited") as caught:
        Lock("a", store=engine, timeout="50ms").acquire()
    lease.release()
    assert isinstance(caught.value, incumbent.AcquireTimeout)
    assert 0.05 <= caught.value.waited <= clock.now() - began


@pytest.mark.parametrize("before", ["no", "a reason"])
def test_a_try_that_the_time_was_too_short_for_does_not_hide_the_word_before_it(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    take, tries = engine.faulty.take, count()

    def tried(key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        if next(tries) == 0:
            if before == "a reason":
                raise StoreUnavailable("the disk is full")
            return take(key, claim, ask, until)
        time.sleep(max(0.0, until - clock.now()))
        raise StoreUnavailable("not asked in time")

    holder = Lock("a", store=engine, holder="them").acquire()
    # Who was refused looks once more when it is released, and hears nothing.
    threading.Timer(0.1, holder.release).start()
    monkeypatch.setattr(engine.faulty, "take", tried)
    match, error = {
        "no": ("them", incumbent.AcquireTimeout),
        "a reason": ("the disk is full", StoreUnavailable),
    }[before]
    with pytest.raises(error, match=match):
        Lock("a", store=engine, timeout=0.6).acquire()
    assert next(tries) > 1


def test_a_waiter_gets_the_lease_as_soon_as_it_is_given_back(engine: FaultyEngine) -> None:
    first = Lock("a", store=engine).acquire()
    got: list[incumbent.Lease] = []
    waiter = threading.Thread(target=lambda: got.append(Lock("a", store=engine).acquire()))
    waiter.start()
    eventually(lambda: engine.faulty.calls["take"] >= 2)
    first.release()
    # Who is not told waits until the ttl has run out, 15 s.
    waiter.join(10)
    assert got
    got[0].release()


def test_a_with_block_is_never_entered_without_the_lease(engine: FaultyEngine) -> None:
    engine.faulty.down = True
    entered = False
    with pytest.raises(incumbent.StoreUnavailable), Lock("a", store=engine, timeout=0):
        entered = True
    assert not entered


def test_a_lost_reply_is_asked_again_with_the_same_claim(engine: FaultyEngine) -> None:
    engine.faulty.plan("take", Fault.LOST_REPLY)
    lease = Lock("a", store=engine).try_acquire()
    assert lease is not None
    lease.release()
    assert engine.faulty.calls["take"] == 2


def test_an_outcome_that_stays_unknown_is_believed_by_nobody_and_given_back(
    engine: FaultyEngine,
) -> None:
    engine.faulty.plan("take", Fault.LOST_REPLY, Fault.LOST_REPLY)
    with pytest.raises(incumbent.OutcomeUnknown):
        Lock("a", store=engine).try_acquire()
    eventually(lambda: Lock("a", store=engine).held_by() is None)


def test_an_unsent_take_is_an_error_and_not_a_refusal(engine: FaultyEngine) -> None:
    engine.faulty.plan("take", Fault.NOT_SENT)
    with pytest.raises(incumbent.StoreUnavailable):
        Lock("a", store=engine).try_acquire()


def test_a_waiter_outlasts_a_store_that_is_away(engine: FaultyEngine) -> None:
    engine.faulty.plan("take", Fault.NOT_SENT, Fault.LOST_REQUEST, Fault.NOT_SENT)
    with Lock("a", store=engine, timeout=5) as lease:
        assert lease.valid


def test_release_says_whether_the_store_confirmed_it(engine: FaultyEngine) -> None:
    assert Lock("a", store=engine).acquire().release() is True
    engine.faulty.plan("give", Fault.LOST_REQUEST)
    assert Lock("a", store=engine).acquire().release() is False
    eventually(lambda: Lock("a", store=engine).held_by() is None)


def test_a_released_lease_can_neither_be_used_nor_released_again(engine: FaultyEngine) -> None:
    lease = Lock("a", store=engine).acquire()
    lease.release()
    assert not lease.valid
    assert not lease.lost
    with pytest.raises(incumbent.AlreadyReleased):
        lease.check()
    with pytest.raises(incumbent.AlreadyReleased):
        lease.release()


def test_a_body_that_outlived_its_lease_reports_no_success(engine: FaultyEngine) -> None:
    with (
        pytest.raises(incumbent.LeaseLost) as caught,
        Lock("a", store=engine, ttl=0.3) as lease,
    ):
        engine.faulty.down = True
        assert lease.wait_lost(20)
    assert caught.value.reason == "expired"


def test_the_bodys_own_error_is_never_masked(engine: FaultyEngine) -> None:
    with pytest.raises(ZeroDivisionError) as caught, Lock("a", store=engine, ttl=0.3) as lease:
        engine.faulty.restart(empty=True)
        lease.wait_lost(20)
        raise ZeroDivisionError("mine")
    assert "ended with a restart of the store" in caught.value.__notes__[0]


def test_an_error_while_giving_back_does_not_replace_the_bodys_success(
    engine: FaultyEngine,
) -> None:
    with Lock("a", store=engine):
        engine.faulty.down = True
    engine.faulty.down = False


def test_check_wants_as_much_proof_as_was_asked(engine: FaultyEngine) -> None:
    with Lock("a", store=engine) as lease, pytest.raises(incumbent.LeaseLost) as caught:
        lease.check(need="20s")
    assert caught.value.reason == "need"


def test_check_says_what_is_no_duration(engine: FaultyEngine) -> None:
    with Lock("a", store=engine) as lease:
        lease.check(need=2)
        with pytest.raises(incumbent.ConfigError, match="need='soon' is not a duration"):
            lease.check(need="soon")


@pytest.mark.parametrize("need", [float("nan"), -5.0, -5])
def test_check_wants_a_number_of_seconds_that_can_be_compared(
    engine: FaultyEngine, need: float
) -> None:
    with Lock("a", store=engine) as lease, pytest.raises(incumbent.ConfigError, match="need"):
        lease.check(need=need)


def test_a_lease_is_renewed_for_as_long_as_the_body_runs(engine: FaultyEngine) -> None:
    with Lock("a", store=engine, ttl=3) as lease:
        assert not lease.wait_lost(3.5)
        lease.check()
    assert engine.faulty.calls["renew"] >= 2


def test_renew_proves_a_fresh_ttl(engine: FaultyEngine) -> None:
    with Lock("a", store=engine) as lease:
        time.sleep(0.05)
        before = lease.remaining
        assert lease.renew() > before


def test_a_renewal_without_an_answer_is_an_error_but_not_yet_a_loss(engine: FaultyEngine) -> None:
    with Lock("a", store=engine) as lease:
        engine.faulty.down = True
        with pytest.raises(incumbent.StoreUnavailable, match="could not be renewed"):
            lease.renew()
        assert lease.valid
        engine.faulty.down = False


def test_a_record_that_was_removed_ends_the_lease_at_the_next_renewal(
    engine: FaultyEngine,
) -> None:
    lease = Lock("a", store=engine).acquire()
    (holding,) = engine.faulty.read(lease._claim.wanted.key, 0).holdings
    engine.faulty.give(lease._claim.wanted.key, holding.claim, holding.token, 0)
    with pytest.raises(incumbent.LeaseLost) as caught:
        lease.renew()
    assert caught.value.reason == "taken"


def test_at_most_for_ends_a_holder_that_hangs(engine: FaultyEngine) -> None:
    lease = Lock("a", store=engine, ttl=0.3, at_most_for=0.2).acquire()
    assert lease.wait_lost(20)
    with pytest.raises(incumbent.LeaseLost) as caught:
        lease.release()
    assert caught.value.reason == "at_most_for"


def test_at_least_for_keeps_the_name_closed_after_a_short_body(engine: FaultyEngine) -> None:
    with Lock("a", store=engine, at_least_for=30):
        pass
    with pytest.raises(incumbent.NotAcquired) as caught:
        Lock("a", store=engine, timeout=0).acquire()
    assert caught.value.reason == "closed"
    assert caught.value.retry_after == pytest.approx(30, abs=10)


def test_once_per_starts_once_however_short_the_body_is(engine: FaultyEngine) -> None:
    lock = Lock("a", store=engine, once_per="1h", timeout=0)
    with lock:
        pass
    assert lock.try_acquire() is None


def test_once_per_counts_a_run_that_died(engine: FaultyEngine) -> None:
    lock = Lock("a", store=engine, once_per="1h", timeout=0)
    with pytest.raises(KeyError), lock:
        raise KeyError
    assert lock.try_acquire() is None


def test_on_lost_is_called_with_the_loss_and_not_after_a_release(engine: FaultyEngine) -> None:
    losses: list[incumbent.LeaseLost] = []
    Lock("a", store=engine, on_lost=losses.append).acquire().release()
    lease = Lock("a", store=engine, ttl=0.3, on_lost=losses.append).acquire()
    engine.faulty.down = True
    eventually(lambda: losses)
    assert [loss.reason for loss in losses] == ["expired"]
    assert lease.lost


def test_a_callback_that_fails_or_hangs_costs_no_renewal(engine: FaultyEngine) -> None:
    over = threading.Event()

    def fail(_: incumbent.LeaseLost) -> None:
        over.wait(30)
        raise RuntimeError("the user's")

    with Lock("healthy", store=engine, ttl=3) as healthy:
        sick = Lock("sick", store=engine, ttl=0.3, at_most_for=0.1, on_lost=fail).acquire()
        assert sick.wait_lost(20)
        assert not healthy.wait_lost(3.5)
        over.set()


def test_a_lease_that_is_dropped_is_given_back_with_a_warning(
    engine: FaultyEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.warns(ResourceWarning, match="dropped without a release"):
        Lock("a", store=engine).acquire()
        gc.collect()
    eventually(lambda: Lock("a", store=engine).held_by() is None)
    assert "a: a lease was dropped without a release, and is given back" in caplog.messages


def test_a_lock_is_not_reentrant_and_says_so_instead_of_waiting_for_itself(
    engine: FaultyEngine,
) -> None:
    lock = Lock("a", store=engine)
    with lock, pytest.raises(incumbent.Misuse, match="would wait for itself"), lock:
        pass


def test_one_lock_serves_many_threads_one_at_a_time(engine: FaultyEngine) -> None:
    lock = Lock("a", store=engine)
    inside = overlaps = 0

    def work() -> None:
        nonlocal inside, overlaps
        for _ in range(20):
            with lock as lease:
                lease.check()
                inside += 1
                overlaps += inside > 1
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert overlaps == 0


def test_each_thread_leaves_the_lease_that_it_entered_though_another_came_meanwhile(
    engine: FaultyEngine,
) -> None:
    lock = Lock("a", store=engine)
    entered, over = threading.Event(), threading.Event()
    theirs: list[incumbent.Lease] = []

    def work() -> None:
        with lock as lease:
            theirs.append(lease)
            entered.set()
            over.wait(30)

    other = threading.Thread(target=work)
    with pytest.raises(incumbent.LeaseLost), lock as mine:
        engine.faulty.give(mine.belief.key, mine.belief.claim_id, mine.fencing_token, 0)
        with pytest.raises(incumbent.LeaseLost):
            mine.renew()
        other.start()
        assert entered.wait(30)
    assert theirs[0].valid
    over.set()
    other.join()


def test_a_lease_may_be_released_by_another_thread(engine: FaultyEngine) -> None:
    lease = Lock("a", store=engine).acquire()
    thread = threading.Thread(target=lease.release)
    thread.start()
    thread.join(30)
    assert Lock("a", store=engine).held_by() is None


def in_another_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(30)


@pytest.mark.parametrize("make", [Lock, lambda name, **of: incumbent.MultiLock([name, "b"], **of)])
@pytest.mark.parametrize("bare", [False, True])
def test_a_body_whose_lease_another_thread_releases_hears_of_it(
    engine: FaultyEngine, make: Callable[..., Lock], bare: bool
) -> None:
    lock = make("a", store=engine)
    with (
        pytest.raises(incumbent.AlreadyReleased, match="released while its body ran"),
        lock.acquire() if bare else lock as lease,
    ):
        in_another_thread(lease.release)
        assert not lease.valid
    with lock as lease:
        lease.release()
    with pytest.raises(ValueError, match="its own"), lock as lease:
        in_another_thread(lease.release)
        raise ValueError("its own")


def test_a_leader_whose_term_another_thread_releases_lost_it(engine: FaultyEngine) -> None:
    terms = list[incumbent.Term]()
    election = incumbent.Election("a", store=engine)
    with pytest.raises(incumbent.LeaseLost, match="stepped down"), election.lead() as term:
        in_another_thread(term.release)

    def work(term: incumbent.Term) -> None:
        terms.append(term)
        if len(terms) == 1:
            in_another_thread(term.release)

    election.run(work)
    assert len(terms) == 2


def test_a_holding_that_goes_on_is_not_taken_away_from_its_bodies(engine: FaultyEngine) -> None:
    lock = Lock("a", store=engine, reentrant=True)
    with lock, lock as inner:
        in_another_thread(inner.release)
    assert not lock.locked()
    with pytest.raises(incumbent.AlreadyReleased, match="its body ran"), lock as lease:
        in_another_thread(lease.release)


@pytest.mark.parametrize(
    "make",
    [
        Lock,
        lambda name, **of: Lock(name, reentrant=True, **of),
        lambda name, **of: incumbent.MultiLock([name, "b"], **of),
    ],
)
@pytest.mark.parametrize("whole", [True, False])
def test_of_two_threads_that_release_a_lease_at_once_one_does(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Lock], whole: bool
) -> None:
    """`whole`: before the first has begun; else before it has come to the second of two names."""
    asked, go_on = threading.Event(), threading.Event()
    leaving, answers = LeaseMachine.note_leaving, list[bool]()

    def slow_leaving(machine: LeaseMachine) -> None:
        if not whole:
            leaving(machine)
        if not asked.is_set():
            asked.set()
            assert go_on.wait(30)
        if whole:
            leaving(machine)

    monkeypatch.setattr(LeaseMachine, "note_leaving", slow_leaving)
    lock = make("a", store=engine)
    with pytest.raises(incumbent.AlreadyReleased), lock as lease:
        other = threading.Thread(target=lambda: answers.append(lease.release()))
        other.start()
        assert asked.wait(30)
        with pytest.raises(incumbent.AlreadyReleased):
            lease.release()
    go_on.set()
    other.join(30)
    assert answers == [True]
    with lock:
        pass


def test_a_generator_whose_threads_take_turns_may_be_released_by_each(
    engine: FaultyEngine,
) -> None:
    """As a dependency of a web framework."""

    def dependency() -> Iterator[incumbent.Lease]:
        with Lock("a", store=engine) as lease:
            yield lease

    steps = dependency()
    in_another_thread(next(steps).release)
    assert next(steps, None) is None


def test_an_exit_policy_ends_the_process_at_the_loss(engine: FaultyEngine) -> None:
    def lose() -> int:
        lease = Lock("a", store=engine, ttl=0.3, if_lost="exit").acquire()
        engine.faulty.down = True
        time.sleep(20)
        return int(lease.valid)

    assert in_a_child(lose) == 123


def test_the_child_of_a_fork_holds_nothing_and_takes_nothing_from_its_parent(
    engine: FaultyEngine,
) -> None:
    with Lock("a", store=engine) as lease:

        def look() -> int:
            forked = not lease.valid and lease.lost and lease._claim.machine.reason == "forked"
            lost_in_child = isinstance(lease._loss_before_release(), incumbent.LeaseLost)
            return 0 if forked and lost_in_child and not engine.faulty.calls["give"] else 2

        assert in_a_child(look) == 0
        lease.check()


def test_the_child_of_a_fork_can_take_leases_of_its_own(engine: FaultyEngine) -> None:
    def hold() -> int:
        with Lock("b", store=engine, ttl=3) as lease:
            return 2 if lease.wait_lost(3.2) else 0

    with Lock("a", store=engine):
        assert in_a_child(hold) == 0


@pytest.fixture
def interrupting() -> Iterator[None]:
    def interrupt(_: int, __: FrameType | None) -> None:
        raise InterruptedError("by a signal")

    before = signal.signal(signal.SIGALRM, interrupt)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("interrupting")
def test_a_signal_in_the_middle_of_a_take_leaves_nothing_behind(engine: FaultyEngine) -> None:
    engine.faulty.delay = 0.5
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    with pytest.raises(InterruptedError):
        Lock("a", store=engine).acquire()
    engine.faulty.delay = 0
    eventually(lambda: Lock("a", store=engine).held_by() is None)


@pytest.mark.usefixtures("interrupting")
def test_a_signal_ends_a_wait_at_once(engine: FaultyEngine) -> None:
    lease = Lock("a", store=engine).acquire()
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    started = clock.now()
    with pytest.raises(InterruptedError):
        Lock("a", store=engine).acquire()
    # Who misses the signal waits for the ttl, 15 s.
    assert took(started) < 5
    lease.release()


def test_errors_cross_a_process_boundary_with_their_fields(engine: FaultyEngine) -> None:
    with (
        Lock("a", store=engine, holder="first"),
        pytest.raises(incumbent.NotAcquired) as caught,
    ):
        Lock("a", store=engine, timeout=0).acquire()
    copy = pickle.loads(pickle.dumps(caught.value))
    assert vars(copy) == vars(caught.value)
    assert str(copy) == str(caught.value)


def test_a_client_hands_its_settings_to_its_locks() -> None:
    with incumbent.Client("memory:client", namespace="billing", ttl="9s", holder="me") as fleet:
        with fleet.lock("invoice-7", timeout=1) as lease:
            assert 5 < lease.remaining < 9
            record = fleet.read("invoice-7")
            assert record.holdings[0].holder == "me"
            assert [str(found.key) for found in fleet.scan("inv")] == ["billing/invoice-7"]
        assert fleet.url == "memory:client"


def test_locks_and_leases_are_of_their_process_and_say_so() -> None:
    with incumbent.Client("memory:copied") as client, client.lock("a") as lease:
        for it in (lease, client, client.lock("a"), client.election("a")):
            for copied in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match="cannot be copied or pickled"):
                    copied(it)


def test_a_lock_shows_what_it_locks_and_no_password() -> None:
    lock = Lock("a", store="redis://me:s3cret@127.0.0.1:1")
    assert repr(lock) == "<Lock 'a' of redis://me:***@127.0.0.1:1/0>"
    with incumbent.Client("redis://:s3cret@127.0.0.1:1") as client:
        assert repr(client) == "<Client of redis://:***@127.0.0.1:1/0>"


def test_a_lease_shows_whether_it_is_valid() -> None:
    with Lock("shown", store="memory:shown") as lease:
        assert repr(lease) == f"<Lease 'shown' token={lease.fencing_token} valid>"
    assert repr(lease).endswith(" released>")


def test_a_lock_of_a_closed_client_takes_nothing_that_nobody_would_renew(tmp_path: Path) -> None:
    with incumbent.Client(f"sqlite://{tmp_path}/leases.db") as client:
        lock, election = client.lock("a"), client.election("a")
    for take in (lock.acquire, lock.try_acquire, election.campaign):
        with pytest.raises(incumbent.Misuse, match="was closed"):
            take()


@pytest.mark.parametrize(
    "make",
    [
        lambda client: client.lock("a").acquire,
        lambda client: client.multi_lock(["a", "b"]).acquire,
        lambda client: client.election("a").campaign,
    ],
)
def test_who_waits_while_the_client_is_closed_takes_nothing_that_nobody_would_renew(
    make: Callable[[incumbent.Client], Callable[[], object]], engine: FaultyEngine
) -> None:
    client, holder = incumbent.Client(engine), Lock("a", store=engine).acquire()
    take, refused = make(client), list[str]()

    def wait() -> None:
        with pytest.raises(incumbent.Misuse) as caught:
            take()
        refused.append(str(caught.value))

    waiter = threading.Thread(target=wait)
    waiter.start()
    eventually(lambda: engine.faulty.calls["take"] >= 2)
    client.close()
    holder.release()
    waiter.join(30)
    assert "was closed" in refused[0]
    # What was granted all the same is given back by the keeper's thread.
    eventually(lambda: not any(Lock(name, store=engine).locked() for name in ("a", "b")))


def test_a_client_that_is_closed_ends_no_renewals_but_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: FaultyEngine
) -> None:
    monkeypatch.setenv("INCUMBENT_STORE", f"sqlite://{tmp_path}/leases.db")
    for store in (None, engine):
        with Lock("a", store=store).acquire() as lease:
            with incumbent.Client(store) as client, client.lock("b"):
                pass
            assert lease.renew() > 10


def test_code_that_keeps_the_interpreter_loses_the_lease_and_hears_of_it(
    engine: FaultyEngine,
) -> None:
    lease = Lock("a", store=engine, ttl=0.4).acquire()
    # PyDLL keeps the interpreter's lock during the call: no other thread can run, ours included.
    ctypes.PyDLL(None).usleep(600_000)
    with pytest.raises(incumbent.LeaseLost, match="did not schedule its renewal thread"):
        lease.check()


def test_a_refusal_names_a_ttl_that_differs(engine: FaultyEngine) -> None:
    with (
        Lock("a", store=engine, ttl=9),
        pytest.raises(incumbent.NotAcquired, match="a ttl of 9s and we 15s"),
    ):
        Lock("a", store=engine, timeout=0).acquire()


def test_a_lease_of_before_a_fork_that_is_asked_in_the_child_says_so_once(
    engine: FaultyEngine,
) -> None:
    with Lock("a", store=engine) as lease:

        def look() -> int:
            lines: list[str] = []
            handler = logging.Handler()
            handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
            logging.getLogger("incumbent").addHandler(handler)
            asked = [lease.valid for _ in range(3)]
            said = [line for line in lines if "which was forked after it was acquired" in line]
            return 0 if asked == [False] * 3 and len(said) == 1 else 2

        assert in_a_child(look) == 0
        assert lease.valid
