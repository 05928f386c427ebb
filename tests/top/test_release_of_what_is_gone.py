"""A body that outlived its lease never reports success: also if only the release finds that out."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from incumbent import (
    AsyncClient,
    AsyncElection,
    AsyncLock,
    Client,
    Election,
    LeaseLost,
    Lock,
    Term,
    clock,
    exclusive,
    once,
)
from incumbent.cron.ledger import SlotState, runs_of
from incumbent.lease import LeaseState
from incumbent.locks import leases
from incumbent.locks.leases import SingleLease, release_unless_lost
from incumbent.locks.losses import ClaimRefs
from incumbent.model import Ask, Gone, Granted, Key
from incumbent.protocol.claim import Claim
from incumbent.protocol.release import release_blocking
from incumbent.runtime.sync import SyncPort
from tests.support.faulty import Fault, FaultyEngine

TTL = 60.0


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


def remove(engine: FaultyEngine, name: str = "a", *, rival: bool = True) -> None:
    """An operator removes the record under its holder, and another one takes the name."""
    key = Key("default", name)
    store = engine.faulty
    (holding,) = store.read(key, clock.now() + 30).holdings
    store.give(key, holding.claim, None, clock.now() + 30)
    if rival:
        granted = store.take(key, "f" * 32, Ask(TTL, "rival"), clock.now() + 30)
        assert isinstance(granted, Granted)


def held_by_the_rival(engine: FaultyEngine, name: str = "a") -> bool:
    holdings = engine.faulty.read(Key("default", name), clock.now() + 30).holdings
    return [holding.holder for holding in holdings] == ["rival"]


# -- blocking


@pytest.mark.parametrize("rival", [True, False])
def test_a_body_whose_lease_was_removed_does_not_end_in_success(
    engine: FaultyEngine, rival: bool
) -> None:
    lock = Lock("a", store=engine, ttl=TTL)
    with pytest.raises(LeaseLost, match="gone from the store") as lost, lock:
        remove(engine, rival=rival)
    assert lost.value.reason == "taken"
    assert held_by_the_rival(engine) is rival


def test_a_release_of_what_was_removed_is_a_loss(engine: FaultyEngine) -> None:
    lease = Lock("a", store=engine, ttl=TTL).acquire()
    remove(engine)
    with pytest.raises(LeaseLost, match="gone from the store"):
        lease.release()
    assert lease.lost
    with pytest.raises(LeaseLost):
        lease.check()
    with pytest.raises(LeaseLost):
        lease.release()
    assert held_by_the_rival(engine)


def test_the_error_of_a_body_whose_lease_was_removed_is_not_masked(engine: FaultyEngine) -> None:
    with pytest.raises(ZeroDivisionError) as failed, Lock("a", store=engine, ttl=TTL):
        remove(engine)
        raise ZeroDivisionError
    assert "gone from the store" in failed.value.__notes__[0]


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of leases whose loss would have ended the process."""
    names: list[str] = []

    def record(refs: ClaimRefs) -> None:
        claims = [claim for ref in refs if (claim := ref())]
        lost = [claim for claim in claims if claim.machine.state is LeaseState.LOST]
        names.extend(claim.wanted.key.name for claim in lost)

    monkeypatch.setattr(leases, "exit_if_lost", record)
    return names


def test_a_release_that_finds_the_loss_ends_no_process_and_masks_no_error(
    engine: FaultyEngine, exits: list[str]
) -> None:
    lock = Lock("a", store=engine, ttl=TTL, if_lost="exit")
    with pytest.raises(ZeroDivisionError), lock:
        remove(engine, rival=False)
        raise ZeroDivisionError
    with pytest.raises(LeaseLost), lock:
        remove(engine, rival=False)
    lease = lock.acquire()
    remove(engine, rival=False)
    with pytest.raises(LeaseLost):
        lease.release()
    assert exits == []


def test_a_loss_before_the_release_ends_the_process(engine: FaultyEngine, exits: list[str]) -> None:
    lease = Lock("a", store=engine, ttl=TTL, if_lost="exit").acquire()
    remove(engine, rival=False)
    with pytest.raises(LeaseLost):
        lease.renew()
    assert exits == ["a"]


def test_a_body_whose_deadline_passes_while_the_store_confirms_its_release_has_succeeded(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = SingleLease._release_reentry

    def look_and_expire(self: SingleLease) -> bool:
        inner = look(self)
        self._claim.machine.note_expired()
        return inner

    def expire_and_release(port: SyncPort, claim: Claim, now: float) -> bool:
        claim.machine.note_expired()
        return release_blocking(port, claim, now)

    async def work() -> None:
        async with AsyncLock("a", store=engine, ttl=TTL):
            pass

    monkeypatch.setattr(SingleLease, "_release_reentry", look_and_expire)
    monkeypatch.setattr(leases, "release_blocking", expire_and_release)
    with Lock("a", store=engine, ttl=TTL):
        pass
    asyncio.run(work())


def test_who_watches_hears_of_the_loss_that_the_release_found(engine: FaultyEngine) -> None:
    losses: list[LeaseLost] = []
    told = threading.Event()

    def hear(lost: LeaseLost) -> None:
        losses.append(lost)
        told.set()

    with pytest.raises(LeaseLost), Lock("a", store=engine, ttl=TTL, on_lost=hear):
        remove(engine)
    assert told.wait(30)
    assert losses[0].reason == "taken"


# -- "don't know" is no loss


@pytest.mark.parametrize("fault", list(Fault))
def test_a_release_without_an_answer_is_no_loss(engine: FaultyEngine, fault: Fault) -> None:
    lease = Lock("a", store=engine, ttl=TTL).acquire()
    remove(engine)
    engine.faulty.plan("give", fault)
    assert lease.release() is False
    assert not lease.lost


def test_gone_after_the_deadline_is_no_loss(
    engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lock("a", store=engine, ttl=TTL).acquire()
    claim, give = lease._claim, engine.faulty.give

    def slowly(*asked: Any, **how: Any) -> Any:
        claim.machine.deadline = clock.now()
        give(*asked, **how)
        return Gone()

    monkeypatch.setattr(engine.faulty, "give", slowly)
    assert lease.release() is False
    assert not lease.lost
    assert claim.machine.state is not LeaseState.RELEASED


def test_a_release_that_the_store_confirmed_is_none(engine: FaultyEngine) -> None:
    lease = Lock("a", store=engine, ttl=TTL).acquire()
    assert lease.release() is True
    assert not lease.lost


def test_at_least_for_and_a_slot_are_released_in_order(engine: FaultyEngine) -> None:
    with Lock("a", store=engine, ttl=TTL, at_least_for=5, once_per=60):
        pass
    lease = Lock("b", store=engine, ttl=TTL, once_per=60).acquire()
    assert release_unless_lost(lease, undo_slot=True)


# -- asyncio


def test_a_task_whose_lease_was_removed_does_not_end_in_success(engine: FaultyEngine) -> None:
    async def work() -> None:
        async with AsyncLock("a", store=engine, ttl=TTL):
            remove(engine)

    with pytest.raises(LeaseLost, match="gone from the store"):
        asyncio.run(work())
    assert held_by_the_rival(engine)


def test_an_async_release_of_what_was_removed_is_a_loss(engine: FaultyEngine) -> None:
    async def work() -> None:
        lease = await AsyncLock("a", store=engine, ttl=TTL).acquire()
        remove(engine)
        await lease.release()

    with pytest.raises(LeaseLost, match="gone from the store"):
        asyncio.run(work())


def test_the_error_of_a_task_whose_lease_was_removed_is_not_masked(engine: FaultyEngine) -> None:
    async def work() -> None:
        async with AsyncLock("a", store=engine, ttl=TTL):
            remove(engine)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as failed:
        asyncio.run(work())
    assert "gone from the store" in failed.value.__notes__[0]


def test_an_async_release_that_finds_the_loss_ends_no_process_and_masks_no_error(
    engine: FaultyEngine, exits: list[str]
) -> None:
    async def work() -> None:
        async with AsyncLock("a", store=engine, ttl=TTL, if_lost="exit"):
            remove(engine)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(work())
    assert exits == []


def test_a_cancelled_task_whose_lease_was_removed_stays_cancelled(engine: FaultyEngine) -> None:
    async def work() -> None:
        async with AsyncLock("a", store=engine, ttl=TTL):
            remove(engine)
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(5)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(work())


# -- everything that is made of locks


def test_clients_and_decorators_do_not_report_success_either(engine: FaultyEngine) -> None:
    @exclusive("decorated", store=engine, ttl=TTL)
    def work() -> str:
        remove(engine, "decorated")
        return "done"

    with pytest.raises(LeaseLost):
        work()
    with Client(engine) as client, pytest.raises(LeaseLost), client.lock("a", ttl=TTL):
        remove(engine)


def test_async_clients_and_decorators_do_not_report_success_either(engine: FaultyEngine) -> None:
    @exclusive("decorated", store=engine, ttl=TTL)
    async def work() -> str:
        remove(engine, "decorated")
        return "done"

    async def by_client() -> None:
        async with AsyncClient(engine) as client, client.lock("a", ttl=TTL):
            remove(engine)

    for coroutine in (work(), by_client()):
        with pytest.raises(LeaseLost):
            asyncio.run(coroutine)


def test_once_does_not_report_success_and_the_ledger_says_lost(engine: FaultyEngine) -> None:
    @once("blocking", per=3600, store=engine, ttl=TTL)
    def work() -> str:
        remove(engine, "blocking")
        return "done"

    @once("task", per=3600, store=engine, ttl=TTL)
    async def work_async() -> str:
        remove(engine, "task")
        return "done"

    with pytest.raises(LeaseLost):
        work()
    with pytest.raises(LeaseLost):
        asyncio.run(work_async())
    for name in ("blocking", "task"):
        fields = engine.faulty.read(Key("default", name), clock.now() + 30).fields
        assert [run.state for run, _ in runs_of(fields).values()] == [SlotState.LOST]


def test_a_term_whose_record_was_removed_ends_in_a_loss(engine: FaultyEngine) -> None:
    heard: list[LeaseLost | None] = []
    told = threading.Event()

    def revoked(lost: LeaseLost | None) -> None:
        heard.append(lost)
        told.set()

    candidate = Election("a", store=engine, ttl=TTL, on_revoked=revoked)
    with pytest.raises(LeaseLost), candidate.lead():
        remove(engine)
    assert told.wait(30)
    assert heard[0] is not None
    assert heard[0].reason == "taken"


def test_an_async_term_whose_record_was_removed_ends_in_a_loss(engine: FaultyEngine) -> None:
    async def lead() -> None:
        async with AsyncElection("a", store=engine, ttl=TTL).lead():
            remove(engine)

    with pytest.raises(LeaseLost):
        asyncio.run(lead())


def test_work_whose_term_was_removed_returns_no_value(engine: FaultyEngine) -> None:
    terms: list[int] = []

    def work(term: Term) -> int:
        terms.append(term.number)
        if len(terms) == 1:
            remove(engine, rival=False)
        return len(terms)

    assert Election("a", store=engine, ttl=TTL).run(work) == 2


def test_resigning_what_was_removed_is_a_loss(engine: FaultyEngine) -> None:
    candidate = Election("a", store=engine, ttl=TTL)
    term = candidate.campaign()
    remove(engine)
    with pytest.raises(LeaseLost):
        candidate.resign()
    assert term.lost
