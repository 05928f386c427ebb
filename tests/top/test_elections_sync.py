"""Blocking elections on a memory store with planned faults."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import incumbent
from incumbent import Election, Leader, LeaseLost, Term, clock
from incumbent.model import Key
from incumbent.rules.notices import RESIGN, encode_notice
from tests.support.faulty import Fault, FaultyEngine
from tests.support.pace import stood_still
from tests.support.waiting import eventually

KEY = Key("default", "a")


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


def election(engine: FaultyEngine, holder: str = "me", **settings: Any) -> Election:
    return Election("a", store=engine, holder=holder, **settings)


class Threads:
    """Calls that run beside the test; `results` has what they returned or raised."""

    def __init__(self) -> None:
        self.results: dict[str, Any] = {}
        self._threads: list[threading.Thread] = []

    def start(self, name: str, call: Callable[[], object]) -> None:
        def run() -> None:
            try:
                self.results[name] = call()
            except BaseException as error:  # noqa: BLE001 - whatever it is, the test looks at it
                self.results[name] = error

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def join(self) -> dict[str, Any]:
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()
        return self.results


@pytest.fixture
def threads() -> Iterator[Threads]:
    yield (started := Threads())
    started.join()


def ask_to_resign(engine: FaultyEngine, token: int, **said: Any) -> None:
    value = encode_notice(token=token, **said)
    engine.faulty.put(KEY, RESIGN, value, None, clock.now() + 30)


def test_a_term_is_a_lease_whose_number_is_the_fencing_token(engine: FaultyEngine) -> None:
    with election(engine).lead() as term:
        assert isinstance(term, incumbent.Lease)
        assert term.number == term.fencing_token
        assert not term.stopping
        term.check(need=2)
        first = term.number
    with election(engine).lead() as term:
        assert term.number > first


def test_two_candidates_never_lead_together(engine: FaultyEngine) -> None:
    term = election(engine).campaign()
    with pytest.raises(incumbent.NotAcquired):
        election(engine, "other").campaign(0)
    with pytest.raises(incumbent.AcquireTimeout):
        election(engine, "other").campaign(0.05)
    term.release()


def test_metadata_is_there_with_the_election_itself(engine: FaultyEngine) -> None:
    with election(engine, metadata={"at": "10.0.0.7:80"}).lead() as term:
        assert election(engine, "follower").leader() == Leader(
            "me", term.number, {"at": "10.0.0.7:80"}, b'{"at":"10.0.0.7:80"}'
        )
        assert engine.faulty.calls == {"take": 1, "read": 1}
    assert election(engine, "follower").leader() is None


def test_proclaim_replaces_the_metadata_now_and_for_later_terms(engine: FaultyEngine) -> None:
    candidate = election(engine, metadata={"version": "1"})
    for _ in range(2):
        with candidate.lead():
            candidate.proclaim({"version": "2"})
            leader = candidate.leader()
            assert leader is not None
            assert leader.metadata == {"version": "2"}
    with candidate.lead():
        leader = candidate.leader()
        assert leader is not None
        assert leader.metadata == {"version": "2"}


def test_proclaim_reaches_the_store_in_a_bounded_term_too(engine: FaultyEngine) -> None:
    candidate = election(engine, at_most_for=1)
    with candidate.lead():
        candidate.proclaim({"version": "2"})
        leader = candidate.leader()
        assert leader is not None
        assert leader.metadata == {"version": "2"}


def test_proclaim_says_when_the_store_did_not_hear_and_tries_on(engine: FaultyEngine) -> None:
    candidate = election(engine, ttl=20)
    with candidate.lead():
        engine.faulty.down = True
        with pytest.raises(incumbent.StoreUnavailable):
            candidate.proclaim({"version": "2"})
        engine.faulty.down = False

        def arrived() -> bool:
            leader = candidate.leader()
            return leader is not None and leader.metadata == {"version": "2"}

        eventually(arrived)


def test_only_the_leader_can_proclaim_resign_and_transfer(engine: FaultyEngine) -> None:
    candidate = election(engine)
    for act in (
        lambda: candidate.proclaim({}),
        candidate.resign,
        lambda: candidate.transfer(to="other"),
    ):
        with pytest.raises(incumbent.NotHeld):
            act()
    assert not engine.faulty.calls


def test_a_candidate_stands_once_at_a_time(engine: FaultyEngine, threads: Threads) -> None:
    candidate = election(engine)
    with candidate.lead(), pytest.raises(incumbent.Misuse, match="leads"):
        candidate.campaign(0)
    with election(engine, "other").lead():
        threads.start("first", lambda: candidate.campaign(2).release())
        eventually(lambda: engine.faulty.calls["take"] >= 3)
        with pytest.raises(incumbent.Misuse, match="campaigns"):
            candidate.campaign(0)
    assert threads.join() == {"first": True}


def test_run_returns_what_the_work_returns_by_itself(engine: FaultyEngine) -> None:
    assert election(engine).run(lambda term: term.number) > 0
    assert election(engine).leader() is None


def test_an_exception_of_the_work_propagates_after_the_release(engine: FaultyEngine) -> None:
    candidate = election(engine)
    with pytest.raises(ZeroDivisionError):
        candidate.run(lambda _: 1 / 0)
    assert candidate.leader() is None


def test_a_loss_of_another_lease_inside_the_work_is_the_works_own_error(
    engine: FaultyEngine,
) -> None:
    def work(term: Term) -> None:
        raise LeaseLost("of another", name="b")

    with pytest.raises(LeaseLost, match="of another"):
        election(engine).run(work)


def test_a_loss_of_a_namesake_in_another_namespace_is_the_works_own_error(
    engine: FaultyEngine,
) -> None:
    candidate = election(engine)

    def work(term: Term) -> None:
        with incumbent.Lock(candidate.name, store=engine, namespace="rows") as lease:
            lease.check(need=1000)

    with pytest.raises(LeaseLost, match="needed"):
        candidate.run(work)


def test_run_refuses_work_that_it_would_not_run(engine: FaultyEngine) -> None:
    async def work(term: Term) -> None: ...

    def begin(term: Term) -> Any:
        return work(term)

    def rows(term: Term) -> Iterator[int]:
        yield 1

    election = Election("a", store=engine)
    with pytest.raises(incumbent.Misuse, match="AsyncElection"):
        election.run(work)  # type: ignore[unused-coroutine]
    with pytest.raises(incumbent.ConfigError, match="generator"):
        election.run(rows)
    assert not engine.faulty.calls
    with pytest.raises(incumbent.Misuse, match="AsyncElection"):
        election.run(begin)
    assert election.leader() is None


def test_work_is_asked_to_stop_within_the_lease_and_runs_again_in_the_next_term(
    engine: FaultyEngine,
) -> None:
    valid: list[bool] = []

    def work(term: Term) -> str:
        if valid:
            return "second term"
        engine.faulty.down = True
        assert term.wait_stop(10)
        valid.append(term.valid)
        engine.faulty.down = False
        return "the value of a term that was stopped is not the end"

    assert election(engine, ttl=3, grace=1.5).run(work) == "second term"
    assert valid == [True]


def test_once_asked_to_stop_a_term_stays_stopping_whatever_is_proved_later(
    engine: FaultyEngine,
) -> None:
    # When it is asked to stop, three seconds are left to prove more.
    with election(engine, ttl=5.5, grace=3).lead() as term:
        engine.faulty.down = True
        assert term.wait_stop(20)
        engine.faulty.down = False
        term.renew()
        assert term.stopping


def test_wait_stop_is_not_fooled_by_renewals_and_keeps_its_timeout(engine: FaultyEngine) -> None:
    with election(engine, ttl=5).lead() as term:
        assert not term.wait_stop(5.5)
        term.check()


def test_a_lost_term_is_told_at_once_and_run_stands_again(engine: FaultyEngine) -> None:
    numbers: list[int] = []
    revoked: list[LeaseLost | None] = []

    def work(term: Term) -> int:
        numbers.append(term.number)
        if len(numbers) == 2:
            return len(numbers)
        holding = engine.faulty.read(KEY, clock.now() + 30).holdings[0]
        engine.faulty.give(KEY, holding.claim, None, clock.now() + 30)
        assert term.wait_stop(5)
        assert not term.valid
        return -1

    assert election(engine, ttl=3, on_revoked=revoked.append).run(work) == 2
    assert numbers[0] < numbers[1]
    eventually(lambda: len(revoked) == 2)
    first, second = revoked
    assert first is not None
    assert first.reason == "taken"
    assert second is None


def test_an_operators_word_ends_the_term_and_the_error_says_whose_it_was(
    engine: FaultyEngine,
) -> None:
    with pytest.raises(LeaseLost) as caught, election(engine, ttl=3).lead() as term:
        ask_to_resign(engine, term.number, who="ann", reason="maintenance")
        assert term.wait_stop(5)
    assert caught.value.reason == "broken"
    assert "resign by ann: maintenance" in str(caught.value)


def test_an_operators_transfer_keeps_the_name_for_the_successor(
    engine: FaultyEngine, threads: Threads
) -> None:
    with pytest.raises(LeaseLost, match="for c1"), election(engine, ttl=6).lead() as term:
        for name in ("c0", "c1", "c2"):
            threads.start(name, campaign_and_leave(engine, name))
        eventually(lambda: engine.stand(KEY, "c0", "c1", "c2"))
        ask_to_resign(engine, term.number, who="ann", to="c1")
        assert term.wait_stop(20)
    results = threads.join()
    assert min(results, key=results.__getitem__) == "c1"


def campaign_and_leave(engine: FaultyEngine, name: str) -> Callable[[], int]:
    def call() -> int:
        with election(engine, name).lead() as term:
            return term.number

    return call


@pytest.mark.parametrize("to", ["c0", "c1", "c2"])
def test_transfer_goes_to_the_named_one_of_three_candidates(
    engine: FaultyEngine, threads: Threads, to: str
) -> None:
    candidate = election(engine)
    with candidate.lead():
        for name in ("c0", "c1", "c2"):
            threads.start(name, campaign_and_leave(engine, name))
        eventually(lambda: engine.stand(KEY, "c0", "c1", "c2"))
        with pytest.raises(incumbent.NotCandidate) as caught:
            candidate.transfer(to="nobody")
        assert caught.value.candidates == ("c0", "c1", "c2")
        with pytest.raises(incumbent.ConfigError):
            candidate.transfer(to="me")
        assert candidate.term is not None
        with pytest.raises(incumbent.ConfigError):
            candidate.transfer(to=to, timeout=-1)
        assert candidate.term._claim.reserve_for is None
        candidate.transfer(to=to)
    results = threads.join()
    assert min(results, key=results.__getitem__) == to


def test_a_closing_goes_before_a_reservation(engine: FaultyEngine, threads: Threads) -> None:
    candidate = election(engine, at_least_for=0.5)
    with candidate.lead():
        threads.start("c0", campaign_and_leave(engine, "c0"))
        eventually(lambda: engine.faulty.calls["take"] >= 2)
        candidate.transfer(to="c0")
    record = engine.faulty.read(KEY, clock.now() + 30)
    assert record.closed_for > 0
    assert not record.reserved_for
    threads.join()


def test_resign_from_another_thread_asks_the_work_and_waits_for_its_end(
    engine: FaultyEngine, threads: Threads
) -> None:
    candidate = election(engine, ttl=3)
    terms: list[int] = []
    stopped: list[bool] = []

    def work(term: Term) -> str:
        terms.append(term.number)
        if len(terms) == 2:
            return "second term"
        stopped.append(term.wait_stop(5))
        stopped.append(term.valid)
        return "first term"

    threads.start("run", lambda: candidate.run(work))
    eventually(lambda: bool(terms))
    assert candidate.resign() is True
    assert stopped == [True, True]
    assert threads.join() == {"run": "second term"}


def test_resign_by_the_work_itself_only_asks(engine: FaultyEngine) -> None:
    candidate = election(engine)
    with candidate.lead() as term:
        assert candidate.resign() is False
        assert term.stopping
        assert term.valid
    assert candidate.leader() is None


def test_resign_releases_a_term_that_nobody_entered(engine: FaultyEngine) -> None:
    candidate = election(engine)
    term = candidate.campaign()
    assert candidate.resign() is True
    assert not term.valid
    assert candidate.leader() is None


def test_a_term_that_was_resigned_before_its_body_is_no_error_of_run(
    engine: FaultyEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "incumbent")
    candidate, resigned = election(engine), list[bool]()

    def resign_first(record: logging.LogRecord) -> bool:
        # The log hears of a term before its body begins.
        if "elected" in record.getMessage() and not resigned:
            resigned.append(candidate.resign())
        return True

    log = logging.getLogger("incumbent")
    log.addFilter(resign_first)
    try:
        assert candidate.run(lambda term: term.number) > 1
    finally:
        log.removeFilter(resign_first)
    assert resigned == [True]
    term = candidate.campaign()
    candidate.resign()
    with pytest.raises(LeaseLost, match="stepped down"), term:
        pass


def test_a_term_that_its_owner_released_cannot_be_entered(engine: FaultyEngine) -> None:
    term = election(engine).campaign()
    term.release()
    with pytest.raises(incumbent.AlreadyReleased), term:
        pass


def test_a_resignation_does_not_wait_longer_than_asked(
    engine: FaultyEngine, threads: Threads
) -> None:
    candidate = election(engine)
    inside, leave = threading.Event(), threading.Event()

    def lead() -> None:
        with candidate.lead():
            inside.set()
            leave.wait(30)

    threads.start("lead", lead)
    assert inside.wait(30)
    assert candidate.resign(timeout=0.05) is False
    assert candidate.term is not None
    leave.set()


def test_a_hand_over_wakes_the_next_leader_instead_of_letting_it_poll(
    engine: FaultyEngine, threads: Threads
) -> None:
    elected: list[float] = []

    def stand() -> None:
        with election(engine, "next").lead():
            elected.append(clock.now())

    with election(engine).lead():
        threads.start("next", stand)
        eventually(lambda: engine.faulty.calls["take"] == 2)
        threading.Event().wait(0.3)
        assert engine.faulty.calls["take"] == 2
        left = clock.now()
    threads.join()
    assert elected[0] - left - stood_still(left) < 0.2


def test_callbacks_hear_of_elections_ends_and_leaders_in_their_order(
    engine: FaultyEngine,
) -> None:
    told: list[object] = []
    candidate = election(
        engine,
        on_elected=lambda term: told.append(("elected", term.number)),
        on_revoked=lambda lost: told.append(("revoked", lost)),
        on_leader_change=lambda leader: told.append(leader and leader.holder),
    )
    other = election(engine, "other").campaign()
    with pytest.raises(incumbent.AcquireTimeout):
        candidate.campaign(0.05)
    other.release()
    with candidate.lead() as term:
        number = term.number
    expected = ["other", "me", ("elected", number), None, ("revoked", None)]
    eventually(lambda: len(told) == len(expected))
    assert told == expected


def test_a_callback_that_hangs_or_fails_delays_no_renewal(engine: FaultyEngine) -> None:
    going_on = threading.Event()

    def hang(term: object) -> None:
        going_on.wait(30)
        raise ZeroDivisionError

    with election(engine, ttl=3, on_elected=hang).lead() as term:
        assert not term.wait_stop(3.5)
        going_on.set()
        term.check()


def test_callbacks_cost_the_store_no_request(engine: FaultyEngine) -> None:
    with election(engine, on_leader_change=lambda _: None).lead():
        pass
    assert engine.faulty.calls == {"take": 1, "give": 1}


def test_a_dropped_term_is_given_back_though_the_election_lives(engine: FaultyEngine) -> None:
    candidate = election(engine, on_revoked=lambda _: None)
    with pytest.warns(ResourceWarning, match="dropped"):
        candidate.campaign()
        gc.collect()
    eventually(lambda: candidate.leader() is None)


def test_observe_begins_with_the_present_leader_and_yields_only_changes(
    engine: FaultyEngine,
) -> None:
    leader, follower = election(engine, metadata={"v": "1"}, ttl=3), election(engine, "other")
    news = follower.observe(timeout=30)
    assert next(news) is None
    with leader.lead() as term:
        assert next(news) == Leader("me", term.number, {"v": "1"}, b'{"v":"1"}')
        assert list(follower.observe(timeout=0.5)) == [follower.leader()]
        leader.proclaim({"v": "2"})
        second = next(news)
        assert second is not None
        assert second.metadata == {"v": "2"}
    assert next(news) is None


def test_observe_asks_no_more_than_once_a_ttl_while_nothing_changes(engine: FaultyEngine) -> None:
    with election(engine, ttl=15).lead():
        engine.faulty.calls.clear()
        assert len(list(election(engine, "other").observe(timeout=1))) == 1
        assert engine.faulty.calls["read"] <= 3


def test_observe_goes_on_through_an_outage(engine: FaultyEngine) -> None:
    news = election(engine, "other").observe(timeout=30)
    assert next(news) is None
    engine.faulty.plan("read", *[Fault.NOT_SENT] * 3, Fault.LOST_REPLY)
    with election(engine).lead():
        leader = next(news)
    assert leader is not None
    assert leader.holder == "me"


def test_observe_raises_what_trying_again_cannot_help(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise incumbent.StoreUnavailable("wrong password", permanent=True)

    monkeypatch.setattr(engine.faulty, "read", refuse)
    with pytest.raises(incumbent.StoreUnavailable, match="password"):
        next(election(engine).observe())


def test_a_client_hands_its_settings_to_its_elections() -> None:
    with (
        incumbent.Client("memory:elections", namespace="b", ttl="9s") as fleet,
        fleet.election("x", metadata={"at": "here"}).lead() as term,
    ):
        assert 5 < term.remaining < 9
        leader = fleet.election("x").leader()
        assert leader is not None
        assert leader.metadata == {"at": "here"}


@contextmanager
def interrupted_at(engine: FaultyEngine, op: str) -> Iterator[None]:
    """Ctrl-C while an operation waits for its answer, which the store has applied already."""
    original = getattr(engine.faulty, op)

    def interrupt(*args: Any, **how: Any) -> Any:
        answer = original(*args, **how)
        # As Python has it: a thread that pays what is owed meanwhile is not interrupted.
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return answer

    setattr(engine.faulty, op, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            yield
    finally:
        setattr(engine.faulty, op, original)


@pytest.mark.parametrize("op", ["take", "give"])
def test_interrupted_in_any_request_nothing_is_believed_and_nothing_stays(
    engine: FaultyEngine, op: str
) -> None:
    candidate = election(engine)
    with interrupted_at(engine, op):
        candidate.run(lambda _: None)
    assert candidate.term is None
    eventually(lambda: candidate.leader() is None)
    assert candidate.run(lambda _: "free again") == "free again"


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_ctrl_c_is_not_swallowed_by_a_clean_up_that_checks_the_term(
    engine: FaultyEngine, interrupt: type[BaseException]
) -> None:
    terms: list[int] = []

    def checks(term: Term) -> str:
        terms.append(term.number)
        if len(terms) == 1:
            term.check(need=3600)
        return "second term"

    def work(term: Term) -> str:
        try:
            raise interrupt
        finally:
            checks(term)

    candidate = election(engine)
    with pytest.raises(interrupt) as caught:
        candidate.run(work)
    assert isinstance(caught.value.__cause__, LeaseLost)
    assert candidate.leader() is None
    # What the caller handles is no interruption of the work.
    try:
        raise interrupt
    except interrupt:
        terms.clear()
        assert candidate.run(checks) == "second term"


def test_groups_of_losses_are_losses_of_the_term_but_not_if_ctrl_c_is_behind_them(
    engine: FaultyEngine,
) -> None:
    terms: list[int] = []

    def checks(term: Term) -> None:
        try:
            term.check(need=3600)
        except LeaseLost as lost:
            raise ExceptionGroup("of tasks", [ExceptionGroup("inside", [lost]), lost]) from None

    def work(term: Term) -> None:
        terms.append(term.number)
        if len(terms) < 3:
            checks(term)
        try:
            raise KeyboardInterrupt
        finally:
            checks(term)

    with pytest.raises(KeyboardInterrupt):
        election(engine).run(work)
    assert len(terms) == 3
