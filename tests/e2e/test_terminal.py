"""On a terminal the command is in the foreground: it reads, and ^C and ^Z are its own."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from incumbent import clock
from incumbent.net.dial import is_ready
from tests import tiers
from tests.cli.tool import answer, command_line, environment
from tests.e2e.fleet import locked_file
from tests.support.pace import BUSY, took

pytestmark = pytest.mark.timing(tiers.PROCESSES)

WITHIN = 60.0
TTL = 4.0
CTRL_C, CTRL_Z = b"\x03", b"\x1a"
IN_TERMINAL = Path(__file__).with_name("in_terminal.py")


class Session:
    """A command on a pseudo-terminal, as a person uses it."""

    def __init__(self, store: str, script: str) -> None:
        self._keyboard, self._tty = pty.openpty()
        command = command_line(
            *("-s", store, "run", "-q", "job", "--ttl", str(TTL), "--grace", "0.3", "--"),
            *(sys.executable, "-S", "-u", "-c", script),
        )
        self.process = subprocess.Popen(
            [sys.executable, "-S", IN_TERMINAL, os.ttyname(self._tty), *command],
            env=environment(),
            start_new_session=True,
        )
        self.seen = ""

    def press(self, keys: bytes) -> None:
        os.write(self._keyboard, keys)

    def read(self, seconds: float) -> str:
        """What appears within `seconds`."""
        if not is_ready(self._keyboard, writing=False, seconds=seconds):
            return ""
        try:
            return os.read(self._keyboard, 4096).decode()
        except OSError:
            return ""

    def expect(self, text: str) -> None:
        until = time.monotonic() + WITHIN
        while text not in self.seen:
            assert time.monotonic() < until, self.seen
            self.seen += self.read(0.1)

    def ended(self) -> int:
        code = self.process.wait(WITHIN)
        while more := self.read(0.05):
            self.seen += more
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._keyboard)
        os.close(self._tty)


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/leases.db"


@pytest.fixture
def sessions() -> Iterator[list[Session]]:
    opened: list[Session] = []
    yield opened
    for session in opened:
        session.close()


TICKS = "import time\nprint('ready')\nwhile True:\n    time.sleep(0.05); print('tick')"
LOCKS = "import fcntl\nkept = open({!r}, 'w')\nfcntl.flock(kept, fcntl.LOCK_EX)\n" + TICKS
COUNTS_INT = (
    "import signal, time, sys\n"
    "came = []\n"
    "signal.signal(signal.SIGINT, lambda *_: came.append(1))\n"
    "print('ready')\n"
    "while not came: time.sleep(0.01)\n"
    "time.sleep(0.3)\n"
    "print('interrupted', len(came), 'time')\n"
)


def open_session(sessions: list[Session], store: str, script: str) -> Session:
    sessions.append(Session(store, script))
    return sessions[-1]


def test_the_command_reads_the_terminal(sessions: list[Session], store: str) -> None:
    session = open_session(sessions, store, "print('read:', input('name? ').upper())")
    session.expect("name? ")
    session.press(b"nobody\n")
    assert session.ended() == 0
    assert "read: NOBODY" in session.seen


def test_ctrl_c_ends_the_command_by_its_signal(sessions: list[Session], store: str) -> None:
    script = "import signal\nsignal.signal(2, signal.SIG_DFL)\n" + TICKS
    session = open_session(sessions, store, script)
    session.expect("ready")
    session.press(CTRL_C)
    assert session.ended() == 128 + signal.SIGINT
    assert answer("-s", store, "status", "job")["state"] == "free"


def test_ctrl_c_arrives_once(sessions: list[Session], store: str) -> None:
    session = open_session(sessions, store, COUNTS_INT)
    session.expect("ready")
    session.press(CTRL_C)
    assert session.ended() == 0
    assert "interrupted 1 time" in session.seen


def test_ctrl_z_stops_the_command_and_keeps_the_lease(sessions: list[Session], store: str) -> None:
    session = open_session(sessions, store, TICKS)
    session.expect("tick")
    session.press(CTRL_Z)
    time.sleep(1.4 * TTL)
    session.read(0)
    assert "tick" not in session.read(0.3)
    assert answer("-s", store, "status", "job")["state"] == "held"
    session.seen = ""
    session.press(CTRL_Z)
    session.expect("tick")
    session.press(CTRL_C)
    assert session.ended() != 0


def test_ctrl_c_also_ends_a_stopped_command(sessions: list[Session], store: str) -> None:
    session = open_session(
        sessions, store, "import signal\nsignal.signal(2, signal.SIG_DFL)\n" + TICKS
    )
    session.expect("tick")
    session.press(CTRL_Z)
    time.sleep(0.3)
    session.press(CTRL_C)
    assert session.ended() == 128 + signal.SIGINT


@pytest.mark.left(tiers.LONG)
def test_a_stopped_command_is_dead_when_its_lease_is_over(
    sessions: list[Session], tmp_path: Path
) -> None:
    alive = tmp_path / "alive"
    with locked_file(tmp_path / "leases.db") as place:
        session = open_session(sessions, place.url, LOCKS.format(str(alive)))
        session.expect("tick")
        session.press(CTRL_Z)
        time.sleep(0.2)
        place.faults["silent"][0]()
        began = clock.now()
        with alive.open("w") as file:
            # Until the command is dead: what runs it has more to do before it ends, too.
            fcntl.flock(file, fcntl.LOCK_EX)
        assert took(began) < TTL + BUSY
        assert session.ended() == 123
