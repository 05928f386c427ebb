"""Many waiters on etcd: each gets its turn, for a few requests, whoever dies or freezes."""

from __future__ import annotations

import asyncio
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any

import pytest

from incumbent import AcquireTimeout, AsyncClient, Client, StoreError, clock
from incumbent.errors import OutcomeUnknown, StoreUnavailable
from incumbent.model import OVERTAKEN_MOST, Key, Parting, Queue, Queued, Refused
from incumbent.stores import turns
from incumbent.stores.etcd import client as etcd_client
from incumbent.stores.etcd.kv import EtcdProgram
from incumbent.stores.etcd.obstacles import Obstacles
from incumbent.stores.etcd.taking import EtcdTake
from tests import tiers
from tests.stores.etcd.world import ASK, new_claim, party, soon
from tests.support.etcd import EtcdServer
from tests.support.pace import took
from tests.support.waiting import eventually

pytestmark = pytest.mark.server

_TTL = 60
"""Seconds: a wake-up that is lost costs as much, and a test that loses one is late."""
MOMENT = 8.0
"""Seconds: a place in line ends after more than twice as many."""
_LINE_TTL = replace(ASK, ttl=float(_TTL), queue=Queue(5.0))

_CHILD = """
import asyncio, json, sys, threading
from incumbent import AsyncClient, Client, clock

url, tasks, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
got = []

def in_a_thread(client):
    with client.lock("many", ttl=60, timeout=50):
        got.append(clock.now())

async def in_a_task(client):
    async with client.lock("many", ttl=60, timeout=50):
        got.append(clock.now())

async def main():
    async with AsyncClient(url) as client:
        await asyncio.gather(*(in_a_task(client) for _ in range(tasks)))

with Client(url) as client:
    each = [threading.Thread(target=in_a_thread, args=(client,)) for _ in range(threads)]
    for thread in each:
        thread.start()
    asyncio.run(main())
    for thread in each:
        thread.join()
print(json.dumps(got))
"""

_ONE = """
import sys
from incumbent import Client

with Client(sys.argv[1]) as client, client.lock("one", ttl=60):
    print("got it", flush=True)
    sys.stdin.read()
"""


def _line(server: EtcdServer) -> list[str]:
    """The keys of the processes whose waiters wait, in the order of the line."""
    return list(server.values("/incumbent/default!l/", by_age=True))


def _program(text: str, *args: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", text, *map(str, args)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@contextmanager
def _waiting_processes(server: EtcdServer, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Programs that wait for "one", in the order of the line."""
    programs = []
    try:
        for number in range(count):
            programs.append(_program(_ONE, server.store_url()))
            eventually(lambda number=number: len(_line(server)) > number)  # type: ignore[misc]
        yield programs
    finally:
        for program in programs:
            program.kill()
            program.communicate()


@pytest.mark.left(tiers.LONG)
def test_two_hundred_waiters_in_processes_threads_and_tasks_get_it_for_few_requests(
    own_etcd: EtcdServer,
) -> None:
    url = own_etcd.store_url()
    with Client(url) as client:
        etcd_lease = client.lock("many", ttl=_TTL).acquire()
        programs = [_program(_CHILD, url, 40, 10) for _ in range(4)]
        # A client of threads and one of tasks each have a place in the line.
        eventually(lambda: len(_line(own_etcd)) == 8)
        before = own_etcd.requests()
        began = clock.now()
        etcd_lease.release()
        got = [json.loads(program.communicate(timeout=60)[0]) for program in programs]
        asked = own_etcd.requests()
    assert [len(instants) for instants in got] == [50] * 4
    assert max(map(max, got)) - began < _TTL / 2
    requests = sum(asked[call] - before.get(call, 0) for call in ("Txn", "Watch", "Range"))
    # A take and a give; of each hand-over to another process also a refusal, a look and watches.
    assert requests < 200 * 4.5, asked
    assert _line(own_etcd) == []


def test_among_tasks_of_one_process_a_grant_costs_two_requests(own_etcd: EtcdServer) -> None:
    async def one(client: AsyncClient) -> None:
        async with client.lock("many", ttl=_TTL, timeout=30):
            pass

    async def main() -> None:
        async with AsyncClient(own_etcd.store_url()) as client:
            await one(client)
            before = own_etcd.requests()["Txn"]
            await asyncio.gather(*(one(client) for _ in range(100)))
            # And for some it is looked where they stand in line.
            assert own_etcd.requests()["Txn"] - before < 100 * 2.5

    asyncio.run(main())


@pytest.mark.left(tiers.SIDES, "9")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_waiter_that_dies_or_freezes_holds_up_the_others_for_a_moment(
    own_etcd: EtcdServer, how: signal.Signals
) -> None:
    with Client(own_etcd.store_url()) as client:
        etcd_lease = client.lock("one", ttl=_TTL).acquire()
        with _waiting_processes(own_etcd, 3) as (first, second, third):
            first.send_signal(how)
            if how == signal.SIGKILL:
                first.wait()
            began = clock.now()
            etcd_lease.release()
            assert second.stdout is not None
            assert second.stdout.readline() == "got it\n"
            assert took(began) < MOMENT
            # And it is waited for no more.
            began = clock.now()
            second.communicate()
            assert third.stdout is not None
            assert third.stdout.readline() == "got it\n"
            assert took(began) < MOMENT


@pytest.mark.left(tiers.LONG)
def test_if_the_first_two_in_line_die_the_others_wait_until_their_places_end(
    own_etcd: EtcdServer,
) -> None:
    with Client(own_etcd.store_url()) as client:
        etcd_lease = client.lock("one", ttl=_TTL).acquire()
        with _waiting_processes(own_etcd, 3) as (*dead, third):
            for program in dead:
                program.kill()
            began = clock.now()
            etcd_lease.release()
            assert third.stdout is not None
            assert third.stdout.readline() == "got it\n"
            assert took(began) < 25


def test_who_gives_up_leaves_the_line(own_etcd: EtcdServer) -> None:
    url = own_etcd.store_url()
    with Client(url) as client, Client(url) as other:
        etcd_lease = client.lock("one", ttl=_TTL).acquire()
        with pytest.raises(AcquireTimeout):
            other.lock("one", ttl=_TTL, timeout=2).acquire()
        eventually(lambda: _line(own_etcd) == [])
        etcd_lease.release()
        other.lock("one", ttl=_TTL).acquire(timeout=20).release()


def test_of_a_process_that_waits_twice_the_other_process_comes_between(
    own_etcd: EtcdServer,
) -> None:
    _, order = _in_turn(own_etcd, 3, 0.1)
    assert order.index("theirs") < 3


def test_brief_leases_of_one_process_follow_each_other_as_often_as_others_may_be_overtaken(
    own_etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow this machine is.
    monkeypatch.setattr(turns, "_BRIEF", 5.0)
    monkeypatch.setattr(turns, "TURN", 5.0)
    asked, order = _in_turn(own_etcd, 20, 0.0)
    # The first in line, and those that overtake the next one.
    assert order.index("theirs") <= 1 + OVERTAKEN_MOST
    # Each takes and gives; of one process it is two clients, which look once at each turn.
    assert asked < 21 * 5


def all_wait(client: Client, count: int) -> bool:
    store: Any = client._link.store
    return len(store.operations.turns.line(Key("default", "one")).waiters) == count


def _in_turn(own_etcd: EtcdServer, ours: int, hold: float) -> tuple[int, list[str]]:
    """Requests, and the order, of so many waiters of one process before one of another process."""
    url = own_etcd.store_url()
    order: list[str] = []

    def wait(client: Client, who: str) -> None:
        with client.lock("one", ttl=_TTL, timeout=50):
            order.append(who)
            time.sleep(hold)

    with Client(url) as holder, Client(url) as one, Client(url) as other:
        etcd_lease = holder.lock("one", ttl=_TTL).acquire()
        with ThreadPoolExecutor(ours + 1) as pool:
            waiting = [pool.submit(wait, one, "ours") for _ in range(ours)]
            eventually(lambda: len(_line(own_etcd)) == 1)
            # One place is for all of them: the server does not know how many have come.
            eventually(lambda: all_wait(one, ours))
            waiting.append(pool.submit(wait, other, "theirs"))
            eventually(lambda: len(_line(own_etcd)) == 2)
            before = own_etcd.requests()["Txn"]
            etcd_lease.release()
            for each in waiting:
                each.result(50)
            asked = own_etcd.requests()["Txn"] - before
    assert _line(own_etcd) == []
    return asked, order


def test_a_named_successor_hears_of_it_wherever_it_stands(own_etcd: EtcdServer) -> None:
    url = own_etcd.store_url()
    with party(url) as holder, party(url) as one, party(url) as two, party(url) as named:
        granted = holder.take()
        got = threading.Event()

        def stand(who: str, at: object) -> None:
            ask, claim = replace(_LINE_TTL, holder=who), new_claim()
            store = at.store  # type: ignore[attr-defined]
            while isinstance(found := store.take(holder.key, claim, ask, soon()), Refused):
                if ended.is_set():
                    return
                store.wait_change(holder.key, found.seen, soon(20 if who == "named" else 1))
            if who == "named":
                got.set()

        ended = threading.Event()
        with ThreadPoolExecutor(3) as pool:
            for who, at in (("one", one), ("two", two), ("named", named)):
                before = len(_places(own_etcd))
                pool.submit(stand, who, at)
                eventually(lambda before=before: len(_places(own_etcd)) > before)  # type: ignore[misc]
            began = clock.now()
            gives = partial(
                holder.store.give, parting=Parting(closed_for=10.0, reserve_for="named")
            )
            gives(holder.key, holder.claim, granted.token, soon())
            assert got.wait(15)
            assert took(began) < 15
            ended.set()


def _places(server: EtcdServer) -> list[str]:
    return server.keys("/incumbent/faults!l/")


def test_waiting_is_no_change_and_shows_nowhere(own_etcd: EtcdServer) -> None:
    with party(own_etcd.store_url()) as here, party(own_etcd.store_url()) as other:
        here.take()
        seen = here.refused().seen
        queued = other.store.take(here.key, new_claim(), _LINE_TTL, soon())
        assert isinstance(queued, Queued)
        other.store.wait_change(here.key, queued.seen, soon(0.5))
        assert len(_places(own_etcd)) == 1
        assert here.refused().seen == seen == here.store.read(here.key, soon()).seen
        assert [record.key for record in here.store.scan("faults", "", soon())] == [here.key]


def test_a_take_that_joined_and_then_failed_has_to_be_given_up(
    own_etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key in line is kept alive with those of its process, and would be the first one day."""
    refusal = EtcdTake._refusal

    def fails_in_line(take: EtcdTake, found: Obstacles) -> EtcdProgram[Refused | None]:
        if take.line.entry_in(found):
            raise StoreUnavailable("no time is left")
        return (yield from refusal(take, found))

    with party(own_etcd.store_url()) as one, party(own_etcd.store_url()) as other:
        one.key = other.key = Key("default", "one")
        one.take(ask=_LINE_TTL)
        for claim in ("c0", "c1"):
            # The first makes the etcd lease, so it joins by a request of its own.
            monkeypatch.setattr(EtcdTake, "_refusal", fails_in_line)
            with pytest.raises(OutcomeUnknown):
                other.store.take(other.key, claim, _LINE_TTL, soon())
            monkeypatch.undo()
            assert len(_line(own_etcd)) == 1
            other.store.give(other.key, claim, None, soon())
            assert _line(own_etcd) == []


def test_no_wake_up_is_lost_among_tasks_that_come_and_go(
    own_etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_client, "_RECHECK_EVERY", inf)
    seed = int(os.environ.get("LINE_SEED", "0")) or secrets.randbits(32)
    sys.stdout.write(f"LINE_SEED={seed}\n")
    chance, url = random.Random(seed), own_etcd.store_url()
    inside: list[int] = []

    async def one(client: AsyncClient, number: int, patience: float | None, hold: float) -> None:
        try:
            async with client.lock("one", ttl=_TTL, timeout=patience):
                assert not inside
                inside.append(number)
                try:
                    await asyncio.sleep(hold)
                finally:
                    inside.remove(number)
        except (AcquireTimeout, StoreError):
            # Within 50 ms there may be no answer.
            assert patience is not None

    async def main() -> None:
        clients = [AsyncClient(url) for _ in range(5)]
        tasks = []
        for number in range(120):
            patience = chance.choice([None, None, None, 0.05, 0.5])
            hold = chance.choice([0, 0, 0.01])
            tasks.append(asyncio.create_task(one(chance.choice(clients), number, patience, hold)))
            if chance.random() < 0.2:
                await asyncio.sleep(chance.random() / 20)
            if chance.random() < 0.1 and (waiting := [it for it in tasks if not it.done()]):
                chance.choice(waiting).cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in done:
            assert outcome is None or isinstance(outcome, asyncio.CancelledError), outcome
        for client in clients:
            await client.aclose()

    began = clock.now()
    asyncio.run(main())
    assert took(began) < _TTL / 2
    eventually(lambda: _line(own_etcd) == [])
