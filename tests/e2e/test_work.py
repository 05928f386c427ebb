"""`work`: many processes of one service, as many of them at work as there are permits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiers
from tests.cli.tool import answer, start
from tests.e2e.fleet import TIMES, WORKER, Fleet
from tests.support.waiting import eventually


def work(fleet: Fleet, holders: int, *command: str) -> subprocess.Popen[str]:
    words = ("work", "job", *TIMES, "--workers", "4", "--permits", str(holders))
    fleet.started.append(start("-s", fleet.store, *words, "--", *command))
    return fleet.started[-1]


def worker(fleet: Fleet, *options: str) -> list[str]:
    return [sys.executable, "-S", str(WORKER), str(fleet.folder), *options]


def records(fleet: Fleet) -> list[dict[str, object]]:
    found = answer("-s", fleet.store, "status", "--all")
    assert isinstance(found, list)
    return found


def children(pid: int) -> list[int]:
    """Of a process that may end meanwhile."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in text.split()]


def who_works(service: subprocess.Popen[str]) -> list[int]:
    """The workers whose command has begun: before its exec it has our command line."""
    return [
        pid
        for pid in children(service.pid)
        if any(str(WORKER) in command_of(below)[:3] for below in children(pid))
    ]


def command_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except OSError:
        return []


@pytest.mark.left(tiers.STORES, "postgresql")
def test_one_of_four_works_and_term_drains(fleet: Fleet) -> None:
    service = work(fleet, 1, *worker(fleet, "--for", "0.5"))
    eventually(lambda: len(fleet.begun) >= 4)
    service.terminate()
    _, said = service.communicate(timeout=60)
    assert service.returncode == 0, said
    assert not fleet.worker_lives()
    fleet.judge()


@pytest.mark.left(tiers.STORES, "redis")
def test_two_permits_are_held_by_two(fleet: Fleet) -> None:
    service = work(fleet, 2, "sleep", "60")
    eventually(lambda: [it["state"] for it in records(fleet)] == ["held", "held"])
    assert [it["name"] for it in records(fleet)] == ["job/1", "job/2"]
    service.terminate()
    assert service.wait(60) == 0
    eventually(lambda: [it["state"] for it in records(fleet)] == ["free", "free"])


@pytest.mark.left(tiers.LONG)
def test_a_worker_that_is_killed_is_replaced(fleet: Fleet) -> None:
    service = work(fleet, 1, *worker(fleet))
    eventually(lambda: who_works(service) and len(children(service.pid)) == 4)
    before = len(fleet.begun)
    os.kill(who_works(service)[0], signal.SIGKILL)
    eventually(lambda: len(fleet.begun) > before)
    eventually(lambda: len(children(service.pid)) == 4)
    service.terminate()
    assert service.wait(60) == 0
    fleet.judge()


@pytest.mark.left(tiers.STORES, "sqlite")
def test_workers_drain_when_their_parent_is_killed(fleet: Fleet) -> None:
    service = work(fleet, 1, *worker(fleet))
    eventually(lambda: len(fleet.begun) == 1)
    service.kill()
    eventually(lambda: not fleet.worker_lives())
    eventually(lambda: records(fleet)[0]["state"] == "free")
    fleet.judge()


@pytest.mark.left(tiers.STORES, "redis")
def test_a_command_that_does_not_exist_ends_the_service(fleet: Fleet) -> None:
    assert work(fleet, 1, "no-such-command").wait(60) == 127
