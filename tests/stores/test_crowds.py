"""Thirty threads of four clients want a name at once, in each way in which it can be had.

Never are more inside than may be, and all of them come in. The same with members and shards.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field

import pytest

from incumbent import Client, Shard
from tests.chaos.schedule import SHARES
from tests.support.waiting import eventually

THREADS, CLIENTS, TURNS = 30, 4, 2
MEMBERS, SHARDS = 5, 12
WORK = 0.02
PATIENCE, TTL = 100.0, 60.0
"""Seconds for all to come in; and of a lease, so that no machine is too slow for it."""
FULL = THREADS
"""A writer, or one that is alone, takes as much room as all readers together."""
HAVE_SHARING = ("memory", *SHARES["permits"])
HAVE_LINES = ("memory", *SHARES["readers"])
EACH = (*HAVE_SHARING, "quorum")


@dataclass
class Room:
    """Who is inside, by the room that each takes; more than `FULL` is never there."""

    taken: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def of(self, size: int) -> Iterator[None]:
        with self.lock:
            self.taken += size
            assert self.taken <= FULL, f"{self.taken} of {FULL}"
        # Else they would hardly ever meet.
        time.sleep(WORK)
        yield
        with self.lock:
            self.taken -= size


def alone(client: Client, _: int) -> AbstractContextManager[object]:
    return client.lock("a", ttl=TTL, timeout=PATIENCE)


def fair(client: Client, _: int) -> AbstractContextManager[object]:
    return client.lock("a", ttl=TTL, timeout=PATIENCE, fair=True)


def permits(client: Client, _: int) -> AbstractContextManager[object]:
    return client.semaphore("a", 3, ttl=TTL, timeout=PATIENCE)


def seats(client: Client, number: int) -> AbstractContextManager[object]:
    return client.election("a", permits=3, holder=f"c{number}", ttl=TTL, timeout=PATIENCE).lead()


def readers(client: Client, number: int) -> AbstractContextManager[object]:
    both = client.read_write_lock("a", ttl=TTL, timeout=PATIENCE)
    return both.read if number % 5 else both.write


def several(client: Client, number: int) -> AbstractContextManager[object]:
    # Any two of them have a name in common.
    names = (("a", "b"), ("b", "c"), ("c", "a"))[number % 3]
    return client.multi_lock(names, ttl=TTL, timeout=PATIENCE)


Way = Callable[[Client, int], AbstractContextManager[object]]
WAYS: tuple[tuple[Way, Callable[[int], int], tuple[str, ...]], ...] = (
    (alone, lambda _: FULL, EACH),
    (several, lambda _: FULL, EACH),
    (permits, lambda _: FULL // 3, HAVE_SHARING),
    (seats, lambda _: FULL // 3, HAVE_SHARING),
    (fair, lambda _: FULL, HAVE_LINES),
    (readers, lambda number: 1 if number % 5 else FULL, HAVE_LINES),
)
"""How a name is had, how much room a thread takes inside, and the stores that have it."""

pytestmark = [pytest.mark.server, pytest.mark.full, pytest.mark.timeout(240)]


@pytest.fixture
def clients(every_store: str) -> Iterator[list[Client]]:
    with ExitStack() as ends:
        yield [ends.enter_context(Client(every_store)) for _ in range(CLIENTS)]


@pytest.mark.parametrize(
    ("every_store", "way", "size"),
    [
        pytest.param(store, way, size, id=f"{way.__name__}-{store}")
        for way, size, stores in WAYS
        for store in stores
    ],
    indirect=["every_store"],
)
def test_a_crowd_is_never_too_many_inside_and_all_come_in(
    clients: list[Client], way: Way, size: Callable[[int], int]
) -> None:
    ready, room = threading.Barrier(THREADS), Room()

    def come_in(number: int) -> int:
        entering, client = 0, clients[number % CLIENTS]
        ready.wait(PATIENCE)
        for _ in range(TURNS):
            with way(client, number), room.of(size(number)):
                entering += 1
        return entering

    with ThreadPoolExecutor(THREADS) as pool:
        came = list(pool.map(come_in, range(THREADS)))
    assert came == [TURNS] * THREADS
    assert room.taken == 0
    eventually(lambda: not [found for found in clients[0].scan() if found.holdings])


@pytest.mark.parametrize("every_store", EACH, indirect=True)
def test_a_crowd_of_members_is_seen_whole_and_leaves_nobody_behind(clients: list[Client]) -> None:
    names, ready = [f"m{number:02}" for number in range(THREADS)], threading.Barrier(THREADS)
    leave = threading.Event()

    def join(number: int) -> None:
        ready.wait(PATIENCE)
        with clients[number % CLIENTS].group("crowd", holder=names[number], ttl=TTL).join():
            leave.wait(PATIENCE)

    group = clients[0].group("crowd")
    with ThreadPoolExecutor(THREADS) as pool:
        joined = [pool.submit(join, number) for number in range(THREADS)]
        try:
            eventually(lambda: [member.holder for member in group.members()] == names)
        finally:
            leave.set()
        for one in joined:
            one.result()
    eventually(lambda: group.members() == ())


@pytest.mark.parametrize("every_store", EACH, indirect=True)
def test_a_crowd_that_divides_shards_never_has_one_twice(clients: list[Client]) -> None:
    rooms: dict[str, Room] = {}
    crowded: list[AssertionError] = []

    def hold(shard: Shard) -> None:
        try:
            with rooms.setdefault(shard.name, Room()).of(FULL):
                shard.wait_stop()
        except AssertionError as error:
            crowded.append(error)

    members = [
        clients[number % CLIENTS].shards("orders", SHARDS, holder=f"m{number}", ttl=TTL)
        for number in range(MEMBERS)
    ]
    with ExitStack() as running:
        for member in members:
            running.enter_context(member.running(hold))
        eventually(
            lambda: (
                sum(len(member.owned()) for member in members) == SHARDS
                and all(member.owned() for member in members)
            ),
            PATIENCE,
        )
    assert not crowded
