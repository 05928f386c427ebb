"""A machine that slept past the lease: its command is killed at once when it wakes.

The whole instance is stopped, and CLOCK_MONOTONIC is made to have stood still meanwhile, as a
suspend does. While it sleeps nobody can kill anything, so what counts is the moment of waking.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import tiers
from tests.chaos import judge
from tests.chaos.actors import PRODUCT, File, Instance
from tests.chaos.schedule import ISOLATIONS, TTL, Schedule
from tests.support.needs import needs
from tests.support.waiting import eventually

ASLEEP = 1.6 * TTL
AT_ONCE = 0.3
SHIM = Path(__file__).with_name("suspend.c")
EVERYONE = ("supervisor", "guard", "child")

pytestmark = [
    pytest.mark.slow,
    needs(shutil.which("cc") is not None, "a C compiler: the clock is a preloaded library"),
    needs(os.geteuid() == 0, "root: PID namespaces"),
    pytest.mark.timing(tiers.PROCESSES),
]


class Sleep:
    """A library to preload, and by how much its CLOCK_MONOTONIC is behind."""

    def __init__(self, folder: Path) -> None:
        library, self._lag = folder / "suspend.so", folder / "lag"
        flags = ("-O1", "-shared", "-fPIC", "-ldl")
        command = ["cc", str(SHIM), *flags, "-o", str(library)]
        subprocess.run(command, check=True, capture_output=True, timeout=30)
        self.set(0.0)
        self.environment = {"LD_PRELOAD": str(library), "INCUMBENT_TEST_LAG": str(self._lag)}

    def set(self, seconds: float) -> None:
        with self._lag.open("r+b" if self._lag.exists() else "wb") as file:
            file.write(struct.pack("q", int(seconds * 1e9)))


@pytest.fixture
def sleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sleep:
    made = Sleep(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tests.chaos.actors.environment", lambda _=None: {**os.environ})
    return made


def test_the_shim_holds_back_the_one_clock_and_not_the_other(sleep: Sleep) -> None:
    sleep.set(100.0)
    script = "import time; print(time.monotonic() - time.clock_gettime(time.CLOCK_BOOTTIME))"
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    here = time.monotonic() - time.clock_gettime(time.CLOCK_BOOTTIME)
    assert float(said.stdout) - here == pytest.approx(-100.0, abs=5)


@pytest.mark.left(tiers.SIDES, "supervisor-pidns", "guard-pgroup")
@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("first", EVERYONE[:2])
def test_a_command_that_slept_past_its_lease_is_killed_when_it_wakes(
    sleep: Sleep, tmp_path: Path, isolation: str, first: str
) -> None:
    # A busy machine may be late once; what misses the suspend lives on time and again, see below.
    folders = [tmp_path / str(one) for one in range(3)]
    assert not all(lives_on(sleep, one, PRODUCT, isolation, first) for one in folders)


def test_a_clock_that_misses_the_suspend_is_caught(sleep: Sleep, tmp_path: Path) -> None:
    planted = ("-m", "tests.chaos.planted", "a_clock_that_misses_suspend")
    # It dies when what was left of its lease is over: little, if the last renewal was late.
    assert any(lives_on(sleep, tmp_path / str(one), planted) for one in range(4))


def lives_on(
    sleep: Sleep,
    folder: Path,
    product: tuple[str, ...],
    isolation: str = "pidns",
    first: str = "guard",
) -> bool:
    folder.mkdir()
    sleep.set(0.0)
    return seconds_to_die(sleep, folder, isolation, first, product) >= AT_ONCE


def seconds_to_die(
    sleep: Sleep, folder: Path, isolation: str, first: str, product: tuple[str, ...]
) -> float:
    """From waking; AT_ONCE if it lives that long. Of the instance `first` wakes first."""
    schedule = Schedule(0, "sqlite", isolation, ("--stubborn",))
    file = File(folder)
    only = Instance(schedule, 0, file.url(0), folder, product)
    only.start()
    try:
        eventually(lambda: judge.leader(folder), within=20)
        time.sleep(0.3)
        only.look()
        for role in EVERYONE:
            only.send("stop", role)
        # From here on only the clock can tell: the store says nothing.
        file.begin("file locked", [])
        time.sleep(ASLEEP)
        sleep.set(ASLEEP)
        for role in sorted(EVERYONE, key=lambda role: role != first):
            only.resume(role)
        woke = time.monotonic()
        while judge.worker_lives(folder) and time.monotonic() < woke + AT_ONCE:
            time.sleep(0.005)
        return time.monotonic() - woke
    finally:
        (folder / "stop").touch()
        file.close()
        only.ask_to_end()
        only.close()
