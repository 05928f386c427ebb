"""`incumbent demo` leaves nothing behind however it ends, and its judge sees what there is."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from incumbent.demo import judge
from incumbent.demo.judge import Account
from incumbent.demo.scenes import Stage
from tests import tiers
from tests.cli.tool import command_line, environment
from tests.support.servers import ROOT
from tests.support.waiting import eventually

ESCAPE = "\033["


@pytest.fixture
def folder() -> Iterator[Path]:
    # Not tmp_path, whose name may be too long for a unix socket in it.
    with tempfile.TemporaryDirectory(prefix="t") as made:
        yield Path(made)


def processes_in(folder: Path) -> list[int]:
    """All whose command line names the folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def start_demo(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command_line("demo"),
        env=environment({"TMPDIR": str(folder), "INCUMBENT_STORE": "redis://nowhere.invalid"}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.left(tiers.SIDES, "15-*")
@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_ended_demo_ends_its_processes_and_removes_its_folder(
    folder: Path, signum: int, code: int
) -> None:
    demo = start_demo(folder)
    eventually(lambda: len(processes_in(folder)) >= 8)
    demo.send_signal(signum)
    said, _ = demo.communicate(timeout=60)
    assert demo.returncode == code, said
    # What waited to become a command ends with its supervisor, a moment after it.
    eventually(lambda: processes_in(folder) == [])
    assert list(folder.iterdir()) == []


def test_a_killed_demo_leaves_no_process(folder: Path) -> None:
    demo = start_demo(folder)
    eventually(lambda: len(processes_in(folder)) >= 8)
    demo.kill()
    demo.communicate(timeout=60)
    eventually(lambda: not processes_in(folder))


def test_it_is_coloured_on_a_terminal_and_ends_with_its_interrupt_key(folder: Path) -> None:
    ours, theirs = os.openpty()
    in_terminal = [sys.executable, str(ROOT / "tests" / "e2e" / "in_terminal.py")]
    demo = subprocess.Popen(
        [*in_terminal, os.ttyname(theirs), *command_line("demo")],
        env=environment({"TMPDIR": str(folder), "TERM": "xterm"}),
        start_new_session=True,
    )
    try:
        said = ""
        while ESCAPE not in said:
            said += os.read(ours, 4096).decode()
        eventually(lambda: len(processes_in(folder)) >= 8)
        os.write(ours, b"\x03")
        assert demo.wait(timeout=60) == 130
    finally:
        demo.kill()
        demo.wait()
        os.close(ours)
        os.close(theirs)
    eventually(lambda: processes_in(folder) == [])


def test_the_judge_sees_who_lives_beside_whom() -> None:
    with Stage() as stage:

        def start(who: str, number: int) -> subprocess.Popen[bytes]:
            process = stage.start(who, stage.worker("plain", who))
            eventually(lambda: len(stage.ask(accounts="plain")) == number)
            return process

        first = start("one", 1)
        second = start("two", 2)
        stage.kill(first)
        stage.kill(second)
        start("three", 3)
        accounts = [Account(**facts) for facts in stage.ask(accounts="plain")]
    assert [list(account.met) for account in accounts] == [[], [0], []]
    assert accounts[2].ended is None


def test_the_judge_answers_as_soon_as_its_socket_can_be_seen(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "judge"
    seen = []

    class Listener(socket.socket):
        def listen(self, backlog: int = 0) -> None:
            seen.append(path.exists())
            super().listen(backlog)

    monkeypatch.setattr("incumbent.demo.judge.socket.socket", Listener)
    with judge._Judge(str(path))._listener, socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(path))
    assert seen == [False]


def test_the_device_refuses_a_smaller_term_of_the_same_side() -> None:
    with Stage() as stage:
        answers = [
            stage.ask(write=term, side=side)
            for term, side in ((5, "ours"), (4, "ours"), (5, "ours"), (4, "other"), (0, "ours"))
        ]
    assert answers == ["taken", "refused", "taken", "taken", "taken"]


def test_five_instances_of_one_job_run_it_once() -> None:
    """The smaller example of the same name."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "five_instances.py")],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "Exactly one did the job." in done.stdout
