"""`sqlite:` what several hold at once: among processes, and in the file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pytest

from incumbent import clock
from incumbent.errors import NotAcquired
from incumbent.locks.several import Semaphore
from incumbent.model import UNLIMITED, Ask, Granted, Parting, Queue, Queued, Refused, Released
from incumbent.stores.plan import run_blocking
from incumbent.stores.polling import may_have_changed
from incumbent.stores.registers import Swap, Wanted
from incumbent.stores.sqlite.connection import SqliteConnection
from incumbent.stores.sqlite.records import Records
from tests.stores.sqlite.test_store import ASK, KEY, Machine, soon
from tests.support.pace import BUSY, took
from tests.support.waiting import written

pytestmark = pytest.mark.slow

PERMITS = 3
TTL = 2.0

PRELUDE = """
import os, sys
from incumbent.locks.several import Semaphore
path = sys.argv[1]
permits = Semaphore("licence", 3, store=f"sqlite://{path}", ttl=2, timeout=60)
log = os.open(path + ".log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
"""
GREEDY = """
for _ in range(20):
    with permits:
        os.write(log, b"+1 ")
        os.write(log, b"-1 ")
"""
HOLDER = """
with permits:
    print("in", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "leases.db")
    yield machine
    machine.store.close()


def start(path: Path, code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def share(machine: Machine, permits: int, ttl: float = 10.0) -> Granted:
    return machine.grant(ask=Ask(ttl, "me", permits))


def leave(machine: Machine, grant: Granted) -> None:
    outcome = machine.store.give(
        KEY, grant.claim, grant.token, soon(), parting=Parting(shared=True)
    )
    assert outcome == Released()


def place(machine: Machine, claim: str, permits: int | None) -> Queued:
    ask = Ask(10.0, claim, permits, Queue(3.0))
    outcome = machine.take(claim=claim, ask=ask)
    assert isinstance(outcome, Queued)
    return outcome


# -- among processes -----------------------------------------------------------------------------


def test_of_eight_processes_never_more_are_inside_than_there_are_permits(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    processes = [start(path, GREEDY) for _ in range(8)]
    try:
        assert [process.wait(60) for process in processes] == [0] * 8
    finally:
        for process in processes:
            end(process)
    # Each line is written while the permit is held, and in one step.
    inside = list(accumulate(map(int, written(Path(f"{path}.log")).split())))
    assert len(inside) == 8 * 20 * 2
    assert max(inside) <= PERMITS
    assert inside[-1] == 0


def test_the_permit_of_a_killed_process_comes_back_after_its_ttl(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    holders = [start(path, HOLDER) for _ in range(PERMITS)]
    mine = Semaphore("licence", PERMITS, store=f"sqlite://{path}", ttl=TTL)
    try:
        for holder in holders:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "in\n"
        with pytest.raises(NotAcquired):
            mine.acquire(timeout=0)
        end(holders[0])
        killed = clock.now()
        with pytest.raises(NotAcquired):
            mine.acquire(timeout=0)
        with mine.acquire(timeout=30):
            assert took(killed) < TTL + BUSY
            assert mine.locked()
            with pytest.raises(NotAcquired):
                Semaphore("licence", PERMITS, store=f"sqlite://{path}").acquire(timeout=0)
    finally:
        for holder in holders:
            end(holder)


# -- in the file ---------------------------------------------------------------------------------


def test_who_is_behind_a_silent_first_looks_once_its_turn_is_over(machine: Machine) -> None:
    kept, left = share(machine, 2, 100.0), share(machine, 2, 100.0)
    place(machine, "first", 2)
    seen = place(machine, "second", 2).seen
    leave(machine, left)
    assert not looks(machine, seen)
    machine.sleep(1.5)
    assert looks(machine, seen)
    machine.grant(claim="second", ask=Ask(10.0, "me", 2, Queue(3.0)))
    leave(machine, kept)


def looks(machine: Machine, seen: str) -> bool:
    """Whether a waiter asks again at once."""
    return may_have_changed(seen, run_blocking(machine.store.operations.look(KEY, soon())))


def test_a_reboot_ends_what_was_shared(machine: Machine) -> None:
    share(machine, 1, 1e6)
    machine.reboot()
    assert machine.store.read(KEY, soon()).holdings == ()
    share(machine, 1)


def test_a_thousand_permits_are_counted(machine: Machine) -> None:
    ask = Ask(10.0, "me", 1000)
    first = machine.grant(ask=ask)

    def others(db: SqliteConnection) -> None:
        records = Records(db)
        seen = records.load(Wanted(KEY))
        (mine,) = seen.record.grants
        many = tuple(mine._replace(claim=f"{first.claim}{number}") for number in range(999))
        records.write(Swap(Wanted(KEY), seen, seen.record._replace(grants=(mine, *many))))

    machine.file.transact(others)
    refused = machine.take(ask=ask)
    assert isinstance(refused, Refused)
    assert len(refused.holders) == 1000


def test_who_leaves_first_takes_the_lease_from_nobody_else(machine: Machine) -> None:
    short, long = share(machine, UNLIMITED, 5.0), share(machine, UNLIMITED, 10.0)
    leave(machine, short)
    assert isinstance(machine.take(ask=ASK), Refused)
    leave(machine, long)
    assert machine.grant(ask=ASK).token > long.token
