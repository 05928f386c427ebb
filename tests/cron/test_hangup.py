"""SIGHUP: a terminal that closes ends an instance; everywhere else it reads the jobs anew."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.tool import command_line, environment
from tests.cron.fleet import NEVER_DUE
from tests.e2e.test_terminal import IN_TERMINAL
from tests.support.waiting import eventually, written

WITHIN = 60.0


class OnTerminal:
    """`incumbent cron` in the foreground of a terminal, with its events in a file."""

    def __init__(self, folder: Path) -> None:
        self.events = folder / "events"
        jobs = folder / "jobs.toml"
        jobs.write_text(f'[[job]]\nname = "never"\n{NEVER_DUE}\ncommand = "true"\n')
        store = f"sqlite:///{folder}/leases.db"
        line = command_line("-s", store, "cron", jobs)
        self._keyboard, tty = pty.openpty()
        # Its events outlive the terminal in a file.
        shell = ("/bin/sh", "-c", 'events=$1; shift; exec "$@" >"$events"', "sh", self.events)
        self.process = subprocess.Popen(
            [sys.executable, "-S", IN_TERMINAL, os.ttyname(tty), *shell, *line],
            env=environment(),
            start_new_session=True,
        )
        self._tty = tty

    def says(self, word: str) -> bool:
        return word in written(self.events)

    def hang_up(self) -> None:
        os.close(self._keyboard)
        self._keyboard = -1

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self._keyboard >= 0:
            self.hang_up()
        os.close(self._tty)


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[OnTerminal]:
    made = OnTerminal(tmp_path)
    yield made
    made.close()


def test_a_terminal_that_closes_ends_the_instance(instance: OnTerminal) -> None:
    eventually(lambda: instance.says("ready"))
    instance.hang_up()
    assert instance.process.wait(WITHIN) == 128 + signal.SIGHUP
    assert instance.says("SIGHUP")


def test_a_hup_on_an_open_terminal_reads_the_jobs_anew(instance: OnTerminal) -> None:
    eventually(lambda: instance.says("ready"))
    instance.process.send_signal(signal.SIGHUP)
    eventually(lambda: instance.says("reloaded"))
    instance.process.send_signal(signal.SIGTERM)
    assert instance.process.wait(WITHIN) == 0
