"""What the commands beside `run` say, and do."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from incumbent import Client, Lock, clock
from incumbent.model import Ask, Granted, Key
from incumbent.runtime.link import link_for
from tests import tiers
from tests.cli.tool import answer, incumbent, start


def status(store: str, *options: str) -> Any:
    return json.loads(incumbent("-s", store, "status", "--json", *options).stdout)["result"]


@contextmanager
def holding(store: str, ttl: str) -> Iterator[subprocess.Popen[str]]:
    """A renewing holder, "them", of "job"."""
    words = ("--ttl", ttl, "--grace", "0.1", "--once-per", "2h", "--holder", "them")
    command = ("sh", "-c", "echo begun; exec sleep 100")
    with start("-s", store, "run", "job", *words, "--", *command) as it:
        # Only now its start is on record: frozen before, it might keep the file locked.
        assert it.stdout is not None
        assert it.stdout.readline() == "begun\n"
        yield it
        it.terminate()
        it.communicate()


@pytest.fixture
def held(store: str) -> Iterator[subprocess.Popen[str]]:
    with holding(store, "8") as it:
        yield it


@pytest.mark.usefixtures("held")
def test_status_shows_who_holds_what(store: str) -> None:
    (record,) = status(store)
    assert record.keys() == status(store, "job").keys()
    assert (record["name"], record["holder"], record["foreign"]) == ("job", "them", False)
    assert 0 < record["ttl_left"] <= record["ttl"] == 8
    assert 7100 < record["slots"]["once"] <= 7200
    shown = incumbent("-s", store, "status").stdout.splitlines()
    assert shown[0].split()[:3] == ["NAME", "STATE", "HOLDER"]
    assert shown[1].split()[:3] == ["job", "held", "them"]
    one = incumbent("-s", store, "status", "job").stdout
    assert re.search(r"^holder +them$", one, re.MULTILINE)
    assert re.search(r"^slot +once: ", one, re.MULTILINE)


def test_status_of_an_unknown_name_is_free(store: str) -> None:
    assert status(store, "nobody")["state"] == "free"


def test_status_shows_a_closed_name(store: str) -> None:
    incumbent("-s", store, "run", "job", "--at-least-for", "1h", "--", "true")
    assert status(store, "job")["state"] == "closed"
    assert "job   closed " in incumbent("-s", store, "status").stdout
    assert "closed for another " in incumbent("-s", store, "status", "job").stdout


def test_watching_goes_on_until_interrupted(store: str) -> None:
    with start("-s", store, "status", "--watch") as watching:
        assert watching.stdout is not None
        lines = [watching.stdout.readline() for _ in range(2)]
        watching.send_signal(signal.SIGINT)
        watching.communicate()
    assert [line.split()[0] for line in lines] == ["NAME", "NAME"]
    assert watching.returncode == 0


def test_wait_returns_when_the_name_is_free(store: str, held: subprocess.Popen[str]) -> None:
    with start("-s", store, "wait", "job") as waiting:
        time.sleep(0.3)
        assert waiting.poll() is None
        held.terminate()
        assert waiting.wait(60) == 0
        waiting.communicate()


@pytest.mark.usefixtures("held")
def test_wait_gives_up_with_75(store: str) -> None:
    done = incumbent("-s", store, "wait", "job", "--timeout", "2")
    assert done.returncode == 75
    assert "held by them" in done.stderr


def test_wait_for_what_nobody_holds_returns_at_once(store: str) -> None:
    done = incumbent("-s", store, "wait", "job", "--timeout", "0")
    assert (done.returncode, done.stderr) == (0, "")


def test_break_asks_the_holder_and_tells_what_it_did(
    store: str, held: subprocess.Popen[str]
) -> None:
    done = incumbent("-s", store, "break", "job", "--reason", "maintenance")
    assert done.returncode == 0
    assert "them has released it" in done.stderr or "ttl ran out" in done.stderr
    assert held.wait(60) == 123


@pytest.mark.left(tiers.LONG)
def test_break_outlasts_a_holder_that_cannot_answer(store: str) -> None:
    # `break` is to start within this ttl: that takes seconds on a busy machine.
    with holding(store, "10") as stopped:
        stopped.send_signal(signal.SIGSTOP)
        try:
            done = incumbent("-s", store, "break", "job")
        finally:
            stopped.send_signal(signal.SIGCONT)
    assert done.returncode == 0
    assert "its ttl ran out" in done.stderr


def test_a_forced_break_says_how_long_two_may_act(store: str, held: subprocess.Popen[str]) -> None:
    done = incumbent("-s", store, "break", "job", "--force")
    assert done.returncode == 0
    assert "them may still act beside the next holder for up to" in done.stderr
    assert status(store, "job")["state"] != "held"
    assert held.wait(60) == 123


def test_a_forced_break_removes_all_who_share_it(store: str) -> None:
    client = Client(store, namespace="default")
    first, second = (Ask(60.0, holder, 2) for holder in ("first", "second"))
    leases, key = link_for(client).store, Key("default", "job")
    for claim, ask in (("a" * 32, first), ("b" * 32, second)):
        assert isinstance(leases.take(key, claim, ask, clock.now() + 5), Granted)
    done = incumbent("-s", store, "break", "job", "--force")
    for who in ("first", "second"):
        assert f"removed; {who} may still act beside" in done.stderr
    assert leases.read(key, clock.now() + 5).holdings == ()
    client.close()


def test_break_of_what_nobody_holds_does_nothing(store: str) -> None:
    done = incumbent("-s", store, "break", "job")
    assert (done.returncode, done.stderr) == (0, "incumbent: job: nobody holds it\n")


def test_a_reason_is_bounded(store: str) -> None:
    assert incumbent("-s", store, "break", "job", "--reason", "x" * 201).returncode == 64


def test_history_says_who_held_it_when(store: str) -> None:
    for who in ("first", "second"):
        incumbent("-s", store, "run", "job", "--holder", who, "--", "true")
    shown = incumbent("-s", store, "history", "job").stdout.splitlines()
    assert [line.split()[3] for line in shown] == ["TOKEN", "first", "second"]
    past = answer("-s", store, "history", "job")
    assert [it["holder"] for it in past] == ["first", "second"]
    assert past[0]["token"] < past[1]["token"]
    assert all(it["seconds"] >= 0 for it in past)


def test_history_says_that_a_lock_of_a_program_was_released(store: str) -> None:
    with Lock("job", store=store):
        pass
    (row,) = incumbent("-s", store, "history", "job").stdout.splitlines()[1:]
    assert row.endswith("  released")


def test_doctor_finds_a_sane_store_sane(store: str) -> None:
    done = incumbent("-s", store, "doctor")
    assert (done.returncode, done.stderr) == (0, "")
    assert "renewed every 3s" in done.stdout
    findings = json.loads(incumbent("-s", store, "doctor", "--json").stdout)["result"]
    assert {finding["level"] for finding in findings} <= {"ok", "warning"}


def test_doctor_says_what_counts_ttls_what_a_lease_costs_and_what_ends_it(store: str) -> None:
    said = incumbent("-s", store, "doctor").stdout
    assert "ttls count on this host's clock since boot" in said
    assert "costs one request; a restart or a failover may end leases" in said


def test_doctor_says_of_the_isolation_what_run_makes_of_it(store: str) -> None:
    found = json.loads(incumbent("-s", store, "doctor", "--json").stdout)["result"][-1]
    ran = incumbent("-s", store, "-v", "run", "a", "--", "true")
    assert ("no PID namespace" in ran.stderr) == (found["level"] == "warning")
    assert ("in a PID namespace" in found["what"]) == (found["level"] == "ok")


def test_a_memory_store_is_said_to_exclude_nobody() -> None:
    done = incumbent("-s", "memory:", "run", "a", "--once-per", "1h", "--", "true")
    assert done.returncode == 0
    assert "excludes no other" in done.stderr


def test_doctor_refuses_times_that_do_not_fit(store: str) -> None:
    done = incumbent("-s", store, "doctor", "--ttl", "5s", "--grace", "4.8s")
    assert done.returncode == 64
    assert "is too short" in done.stderr


def test_doctor_cannot_prove_a_store_that_is_away(tmp_path: Path) -> None:
    done = incumbent("-s", f"redis+unix://{tmp_path}/no.sock", "doctor")
    assert done.returncode == 69
    assert done.stdout.startswith("error")
