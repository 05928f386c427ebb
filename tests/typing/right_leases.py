"""Locks, elections, clients and jobs: what their calls return."""

# pyright: strict

from collections.abc import Callable
from datetime import timedelta
from typing import assert_type

import incumbent


def lost(loss: incumbent.LeaseLost) -> None:
    assert_type(loss.reason, str)


def blocking() -> None:
    lock = incumbent.Lock("job", timeout=timedelta(seconds=5), ttl="20s", on_lost=lost)
    with lock as lease:
        assert_type(lease, incumbent.Lease)
        assert_type(lease.fencing_token, int)
        lease.check(need=2)
    assert_type(lock.try_acquire(), incumbent.Lease | None)
    assert_type(lock.held_by(), str | None)
    with incumbent.Client("memory:", ttl="20s") as client:
        assert_type(client.lock("job", fair=True), incumbent.Lock)
        assert_type(client.lock("job", reentrant=True), incumbent.Lock)
        with client.multi_lock(["a", "b"], timeout=1) as both:
            assert_type(both, incumbent.MultiLease)
            assert_type(both.tokens["a"], int)
        assert_type(client.election("job", on_elected=elected), incumbent.Election)
        assert_type(client.semaphore("api", 4, timeout=5), incumbent.Semaphore)
        assert_type(client.read_write_lock("prices", ttl=9).read, incumbent.Lock)
    semaphore = incumbent.Semaphore("api", permits=4, timeout="5s", fair=True)
    assert_type(semaphore.permits, int)
    assert_type(semaphore.try_acquire(), incumbent.Lease | None)
    with semaphore as lease, incumbent.ReadWriteLock("prices").write as writer:
        assert_type(lease, incumbent.Lease)
        assert_type(writer, incumbent.Lease)


async def asynchronous() -> None:
    async with incumbent.AsyncLock("job", timeout=5) as lease:
        assert_type(lease, incumbent.AsyncLease)
        assert_type(await lease.renew(), float)
    async with incumbent.AsyncClient() as client:
        assert_type(await client.lock("job").try_acquire(), incumbent.AsyncLease | None)
        both = await client.multi_lock(["a", "b"]).try_acquire()
        assert_type(both, incumbent.AsyncMultiLease | None)
        assert_type(client.semaphore("api", 4), incumbent.AsyncSemaphore)
        assert_type(client.read_write_lock("prices").write, incumbent.AsyncLock)
    semaphore = incumbent.AsyncSemaphore("api", 4)
    async with semaphore as lease, incumbent.AsyncReadWriteLock("prices").read as reader:
        assert_type(lease, incumbent.AsyncLease)
        assert_type(reader, incumbent.AsyncLease)
    assert_type(await semaphore.acquire(), incumbent.AsyncLease)


def elected(term: incumbent.Term) -> None:
    assert_type(term.number, int)


def work(term: incumbent.Term) -> str:
    return term.name


async def async_work(term: incumbent.AsyncTerm) -> int:
    return term.number


def shares() -> None:
    def consume(shard: incumbent.Shard) -> None:
        assert_type(shard.number, int)

    shards = incumbent.Shards("orders", 64, metadata={"at": "10.0.0.7"}, ttl="20s")
    with shards.running(consume) as same:
        assert_type(same, incumbent.Shards)
        assert_type(shards.owned(), tuple[incumbent.Shard, ...])
    group = incumbent.Client("memory:").group("orders", holder="a")
    with group.join({"v": "1"}):
        assert_type(group.members(), tuple[incumbent.Member, ...])
        assert_type(next(group.observe()), tuple[incumbent.Member, ...])


async def shares_async() -> None:
    async def consume(shard: incumbent.AsyncShard) -> None:
        assert_type(shard.number, int)

    async with incumbent.AsyncClient().shards("orders", 64).running(consume) as shards:
        assert_type(shards.owned(), tuple[incumbent.AsyncShard, ...])


def leads() -> None:
    election = incumbent.Election("switch", metadata={"at": "10.0.0.7"}, on_elected=elected)
    assert_type(election.run(work), str)
    assert_type(election.term, incumbent.Term | None)
    assert_type(election.leader(), incumbent.Leader | None)
    several = incumbent.Client("memory:").election("feed", permits=3)
    assert_type(several.leaders(), tuple[incumbent.Leader, ...])
    assert_type(several.permits, int)
    with election.lead() as term:
        assert_type(term, incumbent.Term)
    assert_type(next(election.observe()), incumbent.Leader | None)


async def leads_async() -> None:
    election = incumbent.AsyncElection("switch")
    assert_type(await election.run(async_work), int)
    assert_type(await election.leaders(), tuple[incumbent.Leader, ...])
    async for leader in election.observe():
        assert_type(leader, incumbent.Leader | None)


jobs = incumbent.Jobs("memory:")


@jobs.cron("30 5 * * *", tz="Europe/Berlin", at_most_for=300)
def nightly(run: incumbent.JobRun) -> int:
    run.check(need=2)
    return run.attempt


count: Callable[[incumbent.JobRun], int] = nightly
