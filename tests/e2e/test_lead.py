"""`lead`: of three instances one works at a time, and after whatever befell it one works again."""

from __future__ import annotations

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests import tiers
from tests.cli.tool import answer, incumbent, start
from tests.e2e.fleet import WORKER, Fleet
from tests.support.waiting import eventually

# Where nothing is to be lost: a busy machine may cost a leader a short lease.
CALM = ("--ttl", "8", "--grace", "0.3")


def lead(
    fleet: Fleet, holder: str, times: tuple[str, ...], worker: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    command = [sys.executable, "-S", str(WORKER), str(fleet.folder), *worker]
    words = ("lead", "job", *times, "--holder", holder)
    fleet.started.append(start("-s", fleet.store, *words, "--", *command))
    return fleet.started[-1]


def three(fleet: Fleet, times: tuple[str, ...] = CALM) -> dict[str, subprocess.Popen[str]]:
    leads = {name: lead(fleet, name, times) for name in "abc"}
    eventually(lambda: fleet.begun)
    eventually(lambda: len(candidates(fleet)) == 2)
    return leads


def record(fleet: Fleet) -> dict[str, object]:
    found = answer("-s", fleet.store, "status", "job")
    assert isinstance(found, dict)
    return found


def candidates(fleet: Fleet) -> list[str]:
    found = record(fleet)["candidates"]
    assert isinstance(found, list)
    return found


def holder(fleet: Fleet) -> str:
    return str(record(fleet)["holder"])


def more_began(fleet: Fleet, before: int) -> bool:
    return len(fleet.begun) > before


def ask(fleet: Fleet, *words: str) -> subprocess.CompletedProcess[str]:
    return incumbent("-s", fleet.store, *words)


@pytest.mark.left(tiers.LONG)
def test_the_instance_of_higher_priority_takes_over_once_it_is_there(fleet: Fleet) -> None:
    times = ("--ttl", "3", "--grace", "0.3", "--step-down-after", "3")
    lead(fleet, "small", (*times, "--priority", "1"))
    eventually(lambda: fleet.begun)
    lead(fleet, "big", (*times, "--priority", "2"))
    eventually(lambda: holder(fleet) == "big")
    eventually(lambda: more_began(fleet, 1))
    said = ask(fleet, "why", "job").stdout
    assert "priority 2: steps down for a higher one, 3s into its term" in said
    eventually(lambda: candidates(fleet) == ["small"])


@pytest.mark.left(tiers.STORES, "redis")
def test_on_term_the_next_one_leads(fleet: Fleet) -> None:
    leads = three(fleet)
    while leads:
        before = len(fleet.begun)
        first = leads.pop(holder(fleet))
        first.terminate()
        assert first.wait(60) == 0
        if leads:
            eventually(partial(more_began, fleet, before))
            eventually(fleet.worker_lives)
    assert len(fleet.begun) == 3
    fleet.judge()


@pytest.mark.left(tiers.STORES, "sqlite")
def test_a_candidate_obeys_signals(fleet: Fleet) -> None:
    leads = three(fleet)
    codes = iter([(signal.SIGINT, 130), (signal.SIGTERM, 0)])
    for name in candidates(fleet):
        signum, code = next(codes)
        leads[name].send_signal(signum)
        assert leads[name].wait(60) == code
    assert fleet.worker_lives()
    fleet.judge()


@pytest.mark.left(tiers.STORES, "etcd")
def test_a_command_that_ends_gives_the_others_their_turn(fleet: Fleet) -> None:
    leads = {name: lead(fleet, name, CALM, worker=("--for", "0.1")) for name in "abc"}
    eventually(lambda: len(fleet.begun) >= 8)
    for instance in leads.values():
        instance.terminate()
    said = [instance.communicate(timeout=60)[1] for instance in leads.values()]
    assert sum("leading, term" in each for each in said) >= 2
    fleet.judge()


@pytest.mark.left(tiers.STORES, "sqlite", "redis")
def test_a_leader_that_crashes_in_a_loop_tells_how_each_term_ended(fleet: Fleet) -> None:
    words = ("lead", "job", *CALM, "--holder", "a", "--", "sh", "-c", "exit 3")
    instance = start("-s", fleet.store, *words)
    fleet.started.append(instance)
    eventually(lambda: ask(fleet, "history", "job").stdout.count("ended with exit 3") >= 3)
    assert "flapping: " in ask(fleet, "why", "job").stdout
    assert "flapping" in ask(fleet, "status").stdout
    flaps = record(fleet)["flapping"]
    assert isinstance(flaps, dict)
    assert flaps["last"] == "its command ended with exit 3"
    instance.terminate()
    said = instance.communicate(timeout=60)[1]
    assert said.count("ended: CMD ended with 3 after") >= 3
    assert instance.returncode == 0


@pytest.mark.left(tiers.STORES, "postgresql")
def test_a_holder_that_is_asked_to_resign_hands_over(fleet: Fleet) -> None:
    three(fleet)
    first = holder(fleet)
    done = ask(fleet, "resign", "job", "--reason", "maintenance")
    assert done.returncode == 0, done.stderr
    assert f"{first} has released it" in done.stderr
    eventually(lambda: len(fleet.begun) == 2)
    assert holder(fleet) != first
    fleet.judge()


@pytest.mark.left(tiers.STORES, "redis")
def test_a_lease_is_handed_to_the_candidate_that_was_named(fleet: Fleet) -> None:
    three(fleet)
    first, last = holder(fleet), candidates(fleet)[-1]
    done = ask(fleet, "resign", "job", "--to", last)
    assert done.returncode == 0, done.stderr
    assert f"{first} has released it; {last} holds it now" in done.stderr
    refused = ask(fleet, "resign", "job", "--to", "nobody")
    assert refused.returncode == 64
    assert "candidates are " in refused.stderr
    fleet.judge()


@pytest.mark.left(tiers.FORMS, "no-such-command-127")
@pytest.mark.parametrize(("command", "code"), [("no-such-command", 127), ("/etc/passwd", 126)])
def test_what_cannot_be_started_releases_at_once_and_ends_it(
    tmp_path: Path, command: str, code: int
) -> None:
    store = f"sqlite:///{tmp_path}/leases.db"
    done = incumbent("-s", store, "lead", "job", "--", command)
    assert done.returncode == code
    assert answer("-s", store, "status", "job")["state"] == "free"


@pytest.mark.left(tiers.FORMS, "options0-*")
@pytest.mark.parametrize(
    ("options", "script", "code"),
    [
        (("--restart", "never"), "exit 7", 7),
        (("--restart", "on-failure"), "exit 0", 0),
        (("--restart", "never", "--at-most-for", "0.3"), "sleep 30", 124),
    ],
)
def test_restart_says_when_it_ends(
    tmp_path: Path, options: tuple[str, ...], script: str, code: int
) -> None:
    store = f"sqlite:///{tmp_path}/leases.db"
    done = incumbent("-s", store, "lead", "job", *CALM, *options, "--", "sh", "-c", script)
    assert done.returncode == code, done.stderr
