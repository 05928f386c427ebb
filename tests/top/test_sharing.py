"""Semaphores and read-write locks, blocking and on asyncio, on a memory store."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

import incumbent
from incumbent import (
    AsyncReadWriteLock,
    AsyncSemaphore,
    ConfigError,
    Lock,
    Misuse,
    ReadWriteLock,
    Semaphore,
    clock,
)
from incumbent.locks.lock import LockEntry
from incumbent.model import Capabilities, Key
from tests.support.faulty import FaultyEngine
from tests.support.waiting import eventually

PATIENCE = 20.0
ITSELF = "would wait for itself"


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


def holders(engine: FaultyEngine, name: str = "a") -> list[str]:
    with incumbent.Client(engine) as client:
        return [holding.holder for holding in client.read(name).holdings]


def in_line(engine: FaultyEngine, count: int, name: str = "a") -> None:
    """Wait until so many stand in line."""
    table = engine.faulty._table
    eventually(lambda: count == len(table.line_of(Key("default", name)).waiters))


class Inside:
    """Who is in a body now, and how many at most were."""

    def __init__(self) -> None:
        self.now, self.most = 0, 0
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.now -= 1


# -- semaphores ------------------------------------------------------------------------------


@pytest.mark.parametrize("fair", [False, True])
def test_at_most_so_many_threads_are_inside_at_once_and_all_come_in(
    engine: FaultyEngine, *, fair: bool
) -> None:
    inside, semaphore = Inside(), Semaphore("a", 3, store=engine, timeout=PATIENCE, fair=fair)
    full = threading.Barrier(3)

    def work(number: int) -> None:
        for turn in range(5):
            with semaphore as lease, inside:
                if turn == 0 and number < 3:
                    full.wait(PATIENCE)
                lease.check()

    with ThreadPoolExecutor(3) as first:
        list(first.map(work, range(3)))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(3, 11)))
    assert inside.most == 3
    assert holders(engine) == []


def test_at_most_so_many_tasks_are_inside_at_once_and_all_come_in(engine: FaultyEngine) -> None:
    inside = Inside()

    async def work() -> None:
        for _ in range(5):
            async with AsyncSemaphore("a", 3, store=engine, timeout=PATIENCE) as lease:
                with inside:
                    await asyncio.sleep(0)
                    lease.check()

    async def scenario() -> None:
        await asyncio.gather(*(work() for _ in range(8)))

    asyncio.run(scenario())
    assert inside.most == 3
    assert holders(engine) == []


def test_a_thread_and_a_task_share_the_permits_of_one_name(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        async with AsyncSemaphore("a", 2, store=engine):
            assert await AsyncSemaphore("a", 2, store=engine).try_acquire() is None

    with Semaphore("a", 2, store=engine):
        asyncio.run(scenario())


def test_each_permit_has_a_token_of_its_own_and_the_loss_of_one_leaves_the_others(
    engine: FaultyEngine,
) -> None:
    leases = [Semaphore("a", 3, store=engine).acquire() for _ in range(3)]
    tokens = [lease.fencing_token for lease in leases]
    assert tokens == sorted(set(tokens))
    lost = leases[1].belief
    engine.faulty.give(lost.key, lost.claim_id, None, clock.now() + 30)
    with pytest.raises(incumbent.LeaseLost):
        leases[1].renew()
    assert [lease.renew() > 0 for lease in (leases[0], leases[2])] == [True, True]
    with Semaphore("a", 3, store=engine, timeout=0):
        assert Semaphore("a", 3, store=engine).try_acquire() is None
    assert [lease.release() for lease in (leases[0], leases[2])] == [True, True]


def test_permits_go_to_waiters_in_the_order_of_arrival(engine: FaultyEngine) -> None:
    leases = [Semaphore("a", 2, store=engine).acquire() for _ in range(2)]
    came: list[int] = []

    def wait(number: int) -> None:
        with Semaphore("a", 2, store=engine, fair=True, timeout=PATIENCE):
            came.append(number)

    threads = [threading.Thread(target=wait, args=(number,)) for number in range(4)]
    for count, thread in enumerate(threads, 1):
        thread.start()
        in_line(engine, count)
    leases[0].release()
    for thread in threads:
        thread.join(PATIENCE)
    assert came == [0, 1, 2, 3]
    leases[1].release()


def test_locked_says_whether_a_permit_is_left_and_owned_what_is_ones_own(
    engine: FaultyEngine,
) -> None:
    semaphore = Semaphore("a", 2, store=engine, holder="me")
    other = Semaphore("a", 2, store=engine)
    assert not other.locked()
    lease = semaphore.acquire()
    assert (semaphore.owned(), other.owned(), other.locked()) == (True, False, False)
    assert other.held_by() == "me"
    second = other.acquire(0)
    assert other.locked()
    assert ReadWriteLock("a", store=engine).read.locked()
    assert Lock("a", store=engine).locked()
    assert other.release()
    assert not semaphore.locked()
    assert not second.valid
    assert semaphore.release()
    assert not lease.valid
    with Lock("a", store=engine):
        assert semaphore.locked()


def test_locked_of_the_asyncio_side_says_whether_a_permit_is_left(engine: FaultyEngine) -> None:
    async def scenario() -> None:
        semaphore = AsyncSemaphore("a", 2, store=engine)
        async with semaphore:
            assert not await semaphore.locked()
            async with await AsyncSemaphore("a", 2, store=engine).acquire(0):
                assert await semaphore.locked()

    asyncio.run(scenario())


@pytest.mark.parametrize("permits", [0, -1, 10_001, 2.0, True, "2", None])
def test_a_number_of_permits_that_cannot_be_is_refused_with_it(
    engine: FaultyEngine, permits: Any
) -> None:
    for kind in (Semaphore, AsyncSemaphore):
        with pytest.raises(ConfigError, match=r"a number from 1 to 10,000") as refused:
            kind("a", permits, store=engine)
        assert f"permits={permits!r}" in str(refused.value)
        assert refused.value.name == "permits"
    assert Semaphore("a", 10_000, store=engine).permits == 10_000
    assert engine.faulty.calls["take"] == 0


@pytest.mark.parametrize(
    "setting", [{"once_per": "1h"}, {"slot": "monday"}, {"at_least_for": 5}], ids=str
)
def test_what_closes_a_name_is_refused_in_one_sentence(
    engine: FaultyEngine, setting: dict[str, Any]
) -> None:
    builds: list[Callable[[], object]] = [
        lambda: Semaphore("a", 2, store=engine, **setting),
        lambda: AsyncSemaphore("a", 2, store=engine, **setting),
        lambda: ReadWriteLock("a", store=engine, **setting),
        lambda: AsyncReadWriteLock("a", store=engine, **setting),
    ]
    for build in builds:
        with pytest.raises(ConfigError, match="a shared lease has others inside") as refused:
            build()
        assert refused.value.name == next(iter(setting))


def test_none_of_them_is_reentrant(engine: FaultyEngine) -> None:
    """A reader that enters again would be one that goes on to write."""
    builds: list[Callable[[], object]] = [
        lambda: Semaphore("a", 2, store=engine, reentrant=True),
        lambda: AsyncSemaphore("a", 2, store=engine, reentrant=True),
        lambda: ReadWriteLock("a", store=engine, reentrant=True),
        lambda: AsyncReadWriteLock("a", store=engine, reentrant=True),
    ]
    for build in builds:
        with pytest.raises(ConfigError, match="only a Lock can be entered again"):
            build()
    with (
        ReadWriteLock("a", store=engine).read,
        pytest.raises(Misuse, match="a reader cannot go on to write"),
    ):
        Lock("a", store=engine, reentrant=True).acquire()


def test_a_store_that_shares_nothing_or_keeps_no_line_says_so_when_it_is_built() -> None:
    engine = FaultyEngine()
    engine.capabilities = Capabilities(shared=False, queue=True)
    for build in (
        lambda: Semaphore("a", 2, store=engine),
        lambda: ReadWriteLock("a", store=engine),
    ):
        with pytest.raises(ConfigError, match="leases of one holder only"):
            build()
    engine = FaultyEngine()
    engine.capabilities = Capabilities(shared=True, queue=False)
    with Semaphore("a", 2, store=engine):
        pass
    with pytest.raises(ConfigError, match="needs a line of waiters"):
        ReadWriteLock("a", store=engine)


def differing(engine: FaultyEngine) -> list[Callable[[], Any]]:
    """Every way to ask for what is held with 4 permits, with another number."""

    async def entered() -> None:
        async with AsyncSemaphore("a", 6, store=engine, timeout=PATIENCE):
            pass

    def enter() -> None:
        with Semaphore("a", 6, store=engine, timeout=PATIENCE):
            pass

    return [
        Semaphore("a", 6, store=engine).acquire,
        Semaphore("a", 6, store=engine).try_acquire,
        Semaphore("a", 6, store=engine, fair=True, timeout=PATIENCE).acquire,
        enter,
        lambda: asyncio.run(AsyncSemaphore("a", 6, store=engine).acquire()),
        lambda: asyncio.run(AsyncSemaphore("a", 6, store=engine).try_acquire()),
        lambda: asyncio.run(entered()),
    ]


def test_another_number_of_permits_is_refused_with_both_and_leaves_nothing(
    engine: FaultyEngine,
) -> None:
    lease = Semaphore("a", 4, store=engine, holder="first").acquire()
    for ask in differing(engine):
        with pytest.raises(ConfigError, match=r"first with 4 permits, and we ask with 6"):
            ask()
    with pytest.raises(ConfigError, match=r"4 permits, and we ask with any number of readers"):
        ReadWriteLock("a", store=engine).read.try_acquire()
    assert holders(engine) == ["first"]
    in_line(engine, 0)
    lease.release()
    with Semaphore("a", 6, store=engine, timeout=0):
        assert len(holders(engine)) == 1


def test_a_waiter_hears_of_another_number_of_permits_when_its_turn_has_come(
    engine: FaultyEngine,
) -> None:
    writer = Lock("a", store=engine).acquire()
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            Semaphore("a", 6, store=engine, timeout=PATIENCE).acquire()
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            errors.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    in_line(engine, 1)
    # As an operator does: this one did not stand in line, and comes before the waiter.
    with engine.faulty._changed:
        writer.belief.leave_to_ttl()
        engine.faulty.give(writer.belief.key, writer.belief.claim_id, None, clock.now() + 30)
        lease = Semaphore("a", 4, store=engine, timeout=0).acquire()
    waiter.join(PATIENCE)
    assert [type(error) for error in errors] == [ConfigError]
    assert "with 4 permits, and we ask with 6" in str(errors[0])
    assert lease.renew() > 0
    in_line(engine, 0)
    lease.release()


# -- readers and writers ---------------------------------------------------------------------


def test_readers_read_together_and_a_writer_is_alone(engine: FaultyEngine) -> None:
    lock = ReadWriteLock("a", store=engine, timeout=PATIENCE)
    reading, writing = Inside(), Inside()
    together, overlaps = threading.Barrier(3), 0

    def read(turn: int) -> None:
        nonlocal overlaps
        with lock.read as lease, reading:
            if turn == 0:
                together.wait(PATIENCE)
            overlaps += bool(writing.now)
            lease.check()

    def write() -> None:
        nonlocal overlaps
        with lock.write as lease, writing:
            overlaps += bool(reading.now)
            lease.check()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(read, [0] * 3))
    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(*(read, 1) if n % 4 else (write,)) for n in range(40)]:
            done.result(PATIENCE)
    assert (reading.most >= 3, writing.most, overlaps) == (True, 1, 0)


def test_tasks_read_together_and_a_writer_is_alone(engine: FaultyEngine) -> None:
    lock = AsyncReadWriteLock("a", store=engine, timeout=PATIENCE)
    reading, writing = Inside(), Inside()
    seen: list[tuple[int, int]] = []

    async def use(side: incumbent.AsyncLock, inside: Inside) -> None:
        async with side as lease:
            with inside:
                await asyncio.sleep(0)
                seen.append((reading.now, writing.now))
                lease.check()

    async def scenario() -> None:
        sides = [(lock.write, writing) if n % 4 == 0 else (lock.read, reading) for n in range(24)]
        await asyncio.gather(*(use(*side) for side in sides))

    asyncio.run(scenario())
    assert not [both for both in seen if all(both)]
    assert (reading.most > 1, writing.most) == (True, 1)


def test_a_stream_of_readers_does_not_starve_a_writer(engine: FaultyEngine) -> None:
    lock = ReadWriteLock("a", store=engine, timeout=PATIENCE)
    over, wrote = threading.Event(), threading.Event()
    both = threading.Barrier(2)

    def read_on() -> None:
        """Two of them: each begins before the other ends."""
        while not over.is_set():
            with lock.read:
                try:
                    both.wait(0.05)
                except threading.BrokenBarrierError:
                    both.reset()

    def write() -> None:
        with lock.write:
            wrote.set()

    readers = [threading.Thread(target=read_on) for _ in range(2)]
    for reader in readers:
        reader.start()
    eventually(lambda: len(holders(engine)) == 2)
    writer = threading.Thread(target=write)
    writer.start()
    assert wrote.wait(PATIENCE)
    over.set()
    for thread in (*readers, writer):
        thread.join(PATIENCE)


def test_readers_that_come_after_a_waiting_writer_come_in_after_it(engine: FaultyEngine) -> None:
    lock = ReadWriteLock("a", store=engine, timeout=PATIENCE)
    first, came = lock.read.acquire(), []

    def use(side: Lock, name: str) -> None:
        with side as lease:
            came.append((name, lease.fencing_token))

    threads = [
        threading.Thread(target=use, args=(lock.write, "writer")),
        threading.Thread(target=use, args=(lock.read, "reader")),
    ]
    for count, thread in enumerate(threads, 1):
        thread.start()
        in_line(engine, count)
    first.release()
    for thread in threads:
        thread.join(PATIENCE)
    assert [name for name, _ in came] == ["writer", "reader"]
    tokens = [first.fencing_token, *(token for _, token in came)]
    assert tokens == sorted(set(tokens))


def test_a_writer_has_a_larger_token_than_every_reader_before_it(engine: FaultyEngine) -> None:
    lock = ReadWriteLock("a", store=engine)
    readers = [lock.read.acquire() for _ in range(3)]
    for lease in readers:
        lease.release()
    with lock.write as writer:
        assert writer.fencing_token > max(lease.fencing_token for lease in readers)


def test_write_is_the_lock_of_that_name(engine: FaultyEngine) -> None:
    lock = ReadWriteLock("a", store=engine)
    with Lock("a", store=engine):
        assert lock.read.try_acquire() is None
    with lock.read:
        assert Lock("a", store=engine).try_acquire() is None
    assert (lock.name, repr(lock)) == ("a", "<ReadWriteLock 'a'>")


def test_a_read_write_lock_that_is_not_fair_is_refused(engine: FaultyEngine) -> None:
    with pytest.raises(ConfigError, match="readers would starve"):
        ReadWriteLock("a", store=engine, fair=False)
    ReadWriteLock("a", store=engine, fair=True)


# -- waiting for oneself ---------------------------------------------------------------------

CANNOT_GO_ON = "a reader cannot go on to write"
SECOND = "for a second it would wait for itself"


@pytest.mark.parametrize(
    ("outer", "inner", "why"),
    [
        ("read", "write", CANNOT_GO_ON),
        ("read", "read", "a second reading"),
        ("write", "read", "is written by this very caller"),
        ("write", "write", "would wait for itself"),
        ("permit", "permit", SECOND),
    ],
)
def test_in_a_body_a_second_lease_of_the_name_is_refused_and_said_why(
    engine: FaultyEngine, outer: str, inner: str, why: str
) -> None:
    def sides() -> dict[str, Lock]:
        lock = ReadWriteLock("a", store=engine, timeout=PATIENCE)
        return {
            "read": lock.read,
            "write": lock.write,
            "permit": Semaphore("a", 2, store=engine, timeout=PATIENCE),
        }

    def async_sides() -> dict[str, incumbent.AsyncLock]:
        lock = AsyncReadWriteLock("a", store=engine, timeout=PATIENCE)
        return {
            "read": lock.read,
            "write": lock.write,
            "permit": AsyncSemaphore("a", 2, store=engine, timeout=PATIENCE),
        }

    mine = sides()
    with mine[outer] as lease:
        for wait in (sides()[inner].acquire, mine[inner].acquire, mine[inner].__enter__):
            with pytest.raises(Misuse, match=why) as refused:
                wait()
            assert ITSELF in str(refused.value)
        lease.check()
    with sides()[inner]:
        pass

    async def scenario() -> None:
        ours = async_sides()
        async with ours[outer] as lease:
            for wait in (async_sides()[inner].acquire, ours[inner].__aenter__):
                with pytest.raises(Misuse, match=why):
                    await wait()
            lease.check()

    asyncio.run(scenario())


def test_another_thread_reads_on_while_one_reads(engine: FaultyEngine) -> None:
    lock = ReadWriteLock("a", store=engine, timeout=PATIENCE)
    with ThreadPoolExecutor(1) as other, lock.read:
        assert other.submit(lock.read.acquire).result(PATIENCE).release()


def test_a_second_permit_may_be_tried(engine: FaultyEngine) -> None:
    semaphore = Semaphore("a", 2, store=engine, timeout=PATIENCE)
    with semaphore, Semaphore("a", 2, store=engine, timeout=0) as second:
        assert second.valid
        assert Semaphore("a", 2, store=engine).try_acquire() is None


# -- clients ---------------------------------------------------------------------------------


def test_a_client_makes_them_with_its_settings(engine: FaultyEngine) -> None:
    with incumbent.Client(engine, namespace="mine", ttl=9, holder="me") as client:
        with client.semaphore("a", 2), client.read_write_lock("b", timeout=1).read:
            held = [client.read(name).holdings[0] for name in "ab"]
        assert [(one.holder, one.ttl, one.permits) for one in held] == [
            ("me", 9, 2),
            ("me", 9, 0),
        ]

    async def scenario() -> None:
        async with incumbent.AsyncClient(engine, holder="it") as client:
            async with client.semaphore("a", 2), client.read_write_lock("b").write:
                held = [(await client.read(name)).holdings[0] for name in "ab"]
            assert [(one.holder, one.permits) for one in held] == [("it", 2), ("it", None)]

    asyncio.run(scenario())


def test_a_thread_that_leaves_at_the_same_time_hides_no_other(engine: FaultyEngine) -> None:
    semaphore = Semaphore("a", permits=3, store=engine)
    entries: list[Any] = semaphore._entries

    class Leaving:
        """The entry of another thread, which leaves just as it is looked at."""

        caller = object()

        @property
        def entered(self) -> bool:
            if self in entries:
                entries.remove(self)
            return True

    with semaphore as lease:
        last: Any = LockEntry(cast("Any", object()), lease, entered=True)
        entries.insert(0, Leaving())
        entries.append(last)
    assert entries == [last]
    entries.clear()
