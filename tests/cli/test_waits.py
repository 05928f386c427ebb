"""Waiting: a terminal is told for what, and what waiting cannot fix is not waited for."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from incumbent import NotAcquired, clock
from incumbent.cli.text import refusal_line, wait_line
from incumbent.model import PLAIN, Ask, Granted, Holding, Key, Parting, Refused, Slot
from incumbent.net.dial import is_ready
from incumbent.runtime.link import link_for
from tests import tiers
from tests.cli.tool import command_line, environment, incumbent

PATIENCE = 30.0
SINCE = r"since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d"


def take(store: str, claim: str = "c", **ask: object) -> Granted:
    made = Ask(60.0, "other", **ask)  # type: ignore[arg-type]  # as the test names them
    outcome = link_for(store).store.take(Key("default", "job"), claim, made, clock.now() + 5)
    assert isinstance(outcome, Granted)
    return outcome


def give(store: str, granted: Granted, parting: Parting = PLAIN) -> None:
    key, until = Key("default", "job"), clock.now() + 5
    link_for(store).store.give(key, granted.claim, granted.token, until, parting=parting)


class Screen:
    """The terminal at which a command writes its errors."""

    def __init__(self, ours: int, process: subprocess.Popen[bytes]) -> None:
        self._ours = ours
        self.process = process
        self.text = ""

    def read_until(self, words: str) -> str:
        """All that it shows once it shows these words (a regular expression)."""
        end = time.monotonic() + PATIENCE
        while not re.search(words, self.text):
            assert time.monotonic() < end, self.text
            if is_ready(self._ours, writing=False, seconds=0.1):
                with suppress(OSError):  # nobody has it open any more
                    self.text += os.read(self._ours, 65_536).decode()
            elif self.process.poll() is not None:
                raise AssertionError(self.text)
        return self.text


@contextmanager
def at_a_terminal(*words: str) -> Iterator[Screen]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command_line(*words),
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        yield Screen(ours, process)
    finally:
        process.terminate()
        process.wait(PATIENCE)
        os.close(ours)


def test_a_run_that_waits_says_who_holds_it_since_when_and_how_long_it_waits(store: str) -> None:
    take(store)
    with at_a_terminal("-s", store, "run", "job", "--wait=55s", "--", "true") as screen:
        said = screen.read_until(r"waiting.*\n")
    assert re.search(rf"job: waiting, at most [1-5]\d\.?\d*s more: held by other {SINCE}", said), (
        said
    )


def test_a_run_that_waits_without_end_says_that(store: str) -> None:
    take(store)
    with at_a_terminal("-s", store, "run", "job", "--wait", "--", "true") as screen:
        said = screen.read_until(r"waiting.*\n")
    assert re.search(rf"job: waiting, no limit: held by other {SINCE}", said), said


@pytest.mark.left(tiers.FORMS, "paused-*", "used-*")
@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("paused", "paused: nobody may take it until it is unpaused"),
        ("closed", r"closed for another \S+, after other"),
        ("reserved", "reserved for a-successor"),
        ("used", r"its slot is used, by other, for another \S+"),
    ],
)
def test_a_run_that_waits_says_what_else_is_in_the_way(store: str, state: str, words: str) -> None:
    granted = take(store, slot=Slot("once", 40.0) if state == "used" else None)
    reserve_for = "a-successor" if state == "reserved" else None
    closed_for = 50.0 if state in ("closed", "reserved") else 0.0
    give(store, granted, Parting(closed_for, reserve_for))
    if state == "paused":
        incumbent("-s", store, "pause", "job")
    once = ("--once-per", "40s") if state == "used" else ()
    with at_a_terminal("-s", store, "run", "job", *once, "--wait=55s", "--", "true") as screen:
        said = screen.read_until(r"waiting.*\n")
    assert re.search(words, said), said


def test_the_turn_of_another_is_called_a_turn() -> None:
    assert wait_line(Refused("turn", (Holding("b"),), 5.0)) == "the turn of b, first in line"
    error = NotAcquired(name="job", held_by="b", reason="turn")
    assert refusal_line(error) == "it is the turn of b, first in line"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("wait", "job"), rf"waiting, no limit: held by other {SINCE}"),
        (("break", "job"), rf"waiting, at most \S+ more: held by other {SINCE}"),
        (("resign", "job"), rf"waiting, at most \S+ more: held by other {SINCE}"),
        (("pause", "job"), rf"waiting, at most \S+ more: held by other {SINCE}"),
    ],
)
def test_an_operator_who_waits_is_told_for_whom(
    store: str, command: tuple[str, ...], words: str
) -> None:
    take(store)
    with at_a_terminal("-s", store, *command) as screen:
        said = screen.read_until(r"waiting.*\n")
    assert re.search(words, said), said


@pytest.mark.parametrize("quiet", [False, True])
def test_a_pipe_and_a_quiet_terminal_are_told_nothing_before_the_end(
    store: str, quiet: bool
) -> None:
    take(store)
    words = ("-s", store, *(["-q"] if quiet else []), "run", "job", "--wait=2s", "--", "true")
    if not quiet:
        done = incumbent(*words)
        assert done.returncode == 75
        assert done.stderr.count("\n") == 1
        return
    with at_a_terminal(*words) as screen:
        assert screen.process.wait(PATIENCE) == 75
        assert screen.text == ""


# -- slots that are used --------------------------------------------------------------------------


@pytest.mark.left(tiers.MEET, "once0---wait=25s", "once1---wait")
@pytest.mark.parametrize("wait", ["--wait", "--wait=25s"])
@pytest.mark.parametrize("once", [("--once-per", "60s"), ("--slot", "2026-11-26")])
def test_a_slot_that_was_used_is_not_waited_for(
    store: str, wait: str, once: tuple[str, str]
) -> None:
    assert incumbent("-s", store, "run", "job", *once, "--", "true").returncode == 0
    began = time.monotonic()
    again = incumbent("-s", store, "run", "job", *once, wait, "--", "true")
    assert again.returncode == 75
    assert re.search(r"already ran by \S+; its slot stays used for another", again.stderr)
    assert time.monotonic() - began < 20


@pytest.mark.left(tiers.FORMS, "--wait=60s")
@pytest.mark.parametrize("wait", ["--wait", "--wait=60s"])
def test_those_that_wait_leave_when_the_run_has_used_the_slot(store: str, wait: str) -> None:
    words = command_line(*("-s", store, "run", "job", "--once-per", "1h", wait, "--", "sleep", "1"))
    runs = [subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE) for _ in range(3)]
    said = b"".join(run.communicate(timeout=50)[1] for run in runs)
    assert sorted(run.returncode for run in runs) == [0, 75, 75]
    assert said.count(b"already ran by") == 2


def test_a_slot_that_ends_within_the_wait_is_waited_for(store: str) -> None:
    once = ("--once-per", "3s")
    assert incumbent("-s", store, "run", "job", *once, "--", "true").returncode == 0
    assert incumbent("-s", store, "run", "job", *once, "--wait=25s", "--", "true").returncode == 0


def test_a_name_that_is_closed_is_waited_for(store: str) -> None:
    give(store, take(store), Parting(closed_for=1.5))
    assert incumbent("-s", store, "run", "job", "--wait=25s", "--", "true").returncode == 0
