"""The pytest plugin, and how a user would test a job with it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import incumbent
from incumbent import clock
from incumbent.errors import LeaseLost, StoreUnavailable
from incumbent.testing.plugin import World, incumbent_world

__all__ = ["incumbent_world"]

HOUR = 3600.0
LONG = 300.0
"""Many renewals, and twenty times the default ttl."""


# -- a user's job, and the user's tests of it ------------------------------------------------


def send_invoices(invoices: list[str], send: Callable[[str, int], None]) -> int:
    """Sends what only one process may send, and stops when that is not proved any more."""
    sent = 0
    with incumbent.Lock("invoices", timeout=0) as lease:
        for invoice in invoices:
            lease.check(need=1)
            send(invoice, lease.fencing_token)
            sent += 1
    return sent


def test_a_job_runs_while_nobody_else_holds_its_name(incumbent_world: World) -> None:
    sent: list[str] = []
    assert send_invoices(["a", "b"], lambda invoice, _: sent.append(invoice)) == 2
    assert sent == ["a", "b"]


def test_a_job_does_not_run_while_another_holds_its_name(incumbent_world: World) -> None:
    with (
        incumbent.Lock("invoices", store=incumbent_world.store, holder="other"),
        pytest.raises(incumbent.NotAcquired) as refused,
    ):
        send_invoices(["a"], lambda *_: None)
    assert refused.value.held_by == "other"


def test_a_job_runs_after_the_holder_crashed(incumbent_world: World) -> None:
    lease = incumbent.Lock("invoices", holder="other").acquire()
    incumbent_world.expire("invoices")
    assert send_invoices(["a"], lambda *_: None) == 1
    assert lease.lost


def test_a_job_stops_when_the_store_is_gone_for_too_long(incumbent_world: World) -> None:
    sent: list[str] = []

    def send(invoice: str, _: int) -> None:
        sent.append(invoice)
        with incumbent_world.cut_store():
            incumbent_world.advance(60)

    with pytest.raises(LeaseLost):
        send_invoices(["a", "b"], send)
    assert sent == ["a"]


def test_a_long_job_keeps_its_lease(incumbent_world: World) -> None:
    def send(*_: object) -> None:
        incumbent_world.advance(LONG)

    assert send_invoices(["a", "b"], send) == 2


# -- the clock -------------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["url", "store", None])
def test_a_client_of_the_worlds_store_renews_too(incumbent_world: World, named: str | None) -> None:
    store = getattr(incumbent_world, named) if named else None
    with incumbent.Client(store) as client, client.lock("a") as lease:
        incumbent_world.advance(LONG)
        assert lease.valid
        assert incumbent.Lock("a").try_acquire() is None
    with incumbent.Lock("a") as lease:
        incumbent_world.advance(LONG)
        assert lease.valid


def test_time_passes_for_every_clock(incumbent_world: World) -> None:
    before, wall = clock.now(), clock.wall()
    incumbent_world.advance(HOUR)
    assert HOUR <= clock.now() - before < HOUR + 30
    assert HOUR <= clock.wall() - wall < HOUR + 30


def test_the_clock_is_the_real_one_after_the_test() -> None:
    assert "World" not in repr(clock.now)


def test_a_short_outage_is_outlasted(incumbent_world: World) -> None:
    with incumbent.Lock("job", ttl=15) as lease:
        with incumbent_world.cut_store():
            incumbent_world.advance(5)
        incumbent_world.advance(60)
        assert lease.valid


def test_a_waiter_is_served_when_time_has_passed(incumbent_world: World) -> None:
    held = incumbent.Lock("job", store=incumbent_world.store).acquire()
    got: list[incumbent.Lease] = []
    waiter = threading.Thread(target=lambda: got.append(incumbent.Lock("job").acquire(HOUR)))
    waiter.start()
    incumbent_world.expire(held)
    waiter.join(10)
    assert got
    assert got[0].fencing_token > held.fencing_token
    got[0].release()


def test_once_per_counts_by_the_moved_clock(incumbent_world: World) -> None:
    def runs() -> bool:
        lease = incumbent.Lock("nightly", once_per="12h").try_acquire()
        return lease is not None and lease.release()

    assert runs()
    incumbent_world.advance(11 * HOUR)
    assert not runs()
    incumbent_world.advance(2 * HOUR)
    assert runs()


# -- misfortunes -----------------------------------------------------------------------------


def test_a_lost_lease_is_told(incumbent_world: World) -> None:
    told: list[LeaseLost] = []
    lease = incumbent.Lock("job", on_lost=told.append).acquire()
    incumbent_world.lose(lease)
    assert lease.lost
    assert [lost.reason for lost in told] == ["taken"]


def test_an_expired_lease_is_told(incumbent_world: World) -> None:
    told: list[LeaseLost] = []
    lease = incumbent.Lock("job", on_lost=told.append).acquire()
    incumbent_world.expire(lease)
    assert not lease.valid
    assert [lost.reason for lost in told] == ["expired"]


def test_one_lease_expires_alone(incumbent_world: World) -> None:
    one, other = (incumbent.Lock(name).acquire() for name in ("one", "other"))
    incumbent_world.expire(one)
    assert one.lost
    assert other.valid
    other.release()


def test_a_cut_store_is_not_a_no(incumbent_world: World) -> None:
    with incumbent_world.cut_store(), pytest.raises(StoreUnavailable):
        incumbent.Lock("job").try_acquire()
    assert incumbent.Lock("job").acquire(0).release()


def test_a_body_that_outlived_its_lease_reports_no_success(incumbent_world: World) -> None:
    with pytest.raises(LeaseLost), incumbent.Lock("job") as lease:
        incumbent_world.lose(lease)


def test_time_passes_at_once_although_a_thread_has_nothing_more_to_do(
    incumbent_world: World,
) -> None:
    lease = incumbent.Lock("job", on_lost=print).acquire()
    incumbent_world.advance(1)
    lease.release()
    began = time.monotonic()
    incumbent_world.advance(60)
    assert time.monotonic() - began < 4


# -- asyncio ---------------------------------------------------------------------------------


def run_body(world: World, misfortune: Callable[[Any], Any]) -> list[str]:
    """What a body under an AsyncLock lived to see."""
    seen: list[str] = []

    async def body() -> None:
        async with incumbent.AsyncLock("job", store=world.store) as lease:
            try:
                await misfortune(lease)
                await asyncio.sleep(0.2)
                seen.append("went on")
            finally:
                seen.append("cleaned up " + ("inside" if lease.valid else "too late"))

    try:
        asyncio.run(body())
    except LeaseLost as lost:
        seen.append(lost.reason)
    return seen


def test_an_async_body_is_cancelled_inside_its_lease(incumbent_world: World) -> None:
    async def outage(_: object) -> None:
        with incumbent_world.cut_store():
            await incumbent_world.advance_async(60)

    assert run_body(incumbent_world, outage) == ["cleaned up inside", "expired"]


def test_an_async_body_is_cancelled_when_its_lease_is_lost(incumbent_world: World) -> None:
    async def lose(lease: incumbent.AsyncLease) -> None:
        incumbent_world.lose(lease)

    assert run_body(incumbent_world, lose) == ["cleaned up too late", "taken"]


def test_an_async_body_goes_on_for_long(incumbent_world: World) -> None:
    async def long(_: object) -> None:
        await incumbent_world.advance_async(LONG)

    assert run_body(incumbent_world, long) == ["went on", "cleaned up inside"]


def test_an_async_body_is_bounded_by_at_most_for(incumbent_world: World) -> None:
    async def body() -> None:
        async with incumbent.AsyncLock("job", at_most_for=LONG):
            await incumbent_world.advance_async(2 * LONG)

    with pytest.raises(LeaseLost) as lost:
        asyncio.run(body())
    assert lost.value.reason == "at_most_for"


def test_one_permit_runs_out_or_is_lost_and_the_others_stay(incumbent_world: World) -> None:
    semaphore = incumbent.Semaphore("api", 3)
    leases = [semaphore.acquire(0) for _ in range(3)]
    incumbent_world.expire(leases[0])
    incumbent_world.lose(leases[1])
    assert [lease.lost for lease in leases] == [True, True, False]
    incumbent_world.advance(LONG)
    assert leases[2].valid
    with incumbent.Client(incumbent_world.store) as client:
        assert len(client.read("api").holdings) == 1
    leases[2].release()


def test_all_readers_of_a_name_run_out_at_once(incumbent_world: World) -> None:
    prices = incumbent.ReadWriteLock("prices")
    readers = [prices.read.acquire(0) for _ in range(2)]
    incumbent_world.expire("prices")
    assert [lease.lost for lease in readers] == [True, True]
    with prices.write:
        pass


def test_a_coroutine_waits_for_its_timeout_and_not_for_what_the_clock_was_advanced_by(
    incumbent_world: World,
) -> None:
    incumbent_world.advance(HOUR)

    async def wait() -> None:
        await incumbent.AsyncLock("a", store=incumbent_world.store, timeout=0.2).acquire()

    with incumbent.Lock("a", store=incumbent_world.store):
        began = time.monotonic()
        with pytest.raises(incumbent.AcquireTimeout):
            asyncio.run(wait())
        assert time.monotonic() - began < 5.0
