"""Nothing runs before the guard is armed, nothing is left of who stood by; and as PID 1."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from incumbent import clock
from incumbent.cli.main import main
from incumbent.supervise import guarding
from tests import tiers
from tests.cli.tool import answer, command_line, environment, start
from tests.e2e.fleet import TIMES, TTL, WORKER, Fleet, died_within
from tests.supervise.test_guard import BOTH, DAEMON, ROOT, gone, guard_of, named, parent_of
from tests.support.needs import needs
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    needs(sys.platform == "linux", "the guard needs Linux"),
    pytest.mark.timing(tiers.PROCESSES),
]


@pytest.fixture(name="fleet")
def _fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(f"sqlite:///{tmp_path}/leases.db", tmp_path)
    yield fleet
    fleet.close()


@pytest.fixture(name="folders")
def _folders() -> Iterator[Path]:
    """Where the sockets' folders are made; pytest's own paths are too long for a socket."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def worker(fleet: Fleet, *options: str) -> list[str]:
    return [sys.executable, "-S", str(WORKER), str(fleet.folder), *options]


def lead(fleet: Fleet, folders: Path, *options: str) -> subprocess.Popen[str]:
    line = ("-s", fleet.store, "lead", "job", *TIMES, *options, "--", *worker(fleet))
    fleet.started.append(start(*line, env={"TMPDIR": str(folders)}))
    return fleet.started[-1]


def status(fleet: Fleet) -> Any:
    return answer("-s", fleet.store, "status", "job")


def two(fleet: Fleet, folders: Path, *options: str) -> list[subprocess.Popen[str]]:
    """Who leads, and who stands by."""
    first = lead(fleet, folders, *options)
    eventually(lambda: fleet.begun)
    second = lead(fleet, folders, "--holder", "standby", *options)
    eventually(lambda: status(fleet)["candidates"] == ["standby"])
    return [first, second]


def waiting_child(pid: int, but: int) -> int:
    """What will be CMD: the child of a candidate that is not its guard."""

    def found() -> list[int]:
        pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
        return [it for it in pids if parent_of(it) == pid and it != but]

    return eventually(found)[0]


# -- the handshake -------------------------------------------------------------------------------

FROZEN = """
import os, signal, sys
from incumbent.supervise.guarding import GuardFault, start_guard
from incumbent.supervise.launch import PreparedCommand
from incumbent.supervise.run import Command, supervise
from incumbent.supervise.signals import Signals
from incumbent.locks.lock import Lock

with start_guard(sys.argv[2]) as guard, Signals() as signals:
    ready = PreparedCommand(guard, 15) if sys.argv[3] == "ahead" else None
    os.kill(guard.pid, signal.SIGSTOP)
    lock = Lock("job", store=sys.argv[1], timeout=0)
    try:
        supervise(lock.acquire(), Command(["touch", sys.argv[4]]), signals, guard, ready=ready)
    except GuardFault as error:
        print(error, flush=True)
    print(lock.held_by())
"""


@pytest.mark.left(tiers.SIDES, "ahead-*-pidns", "late-*-pgroup")
@BOTH
@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("ahead", "the command could not be put under the guard"),
        ("late", "the guard does not answer"),
    ],
)
def test_a_guard_that_does_not_answer_lets_nothing_run_and_the_lease_is_given_back(
    fleet: Fleet, isolation: str, when: str, said: str
) -> None:
    ran = fleet.folder / "ran"
    done = subprocess.run(
        [sys.executable, "-c", FROZEN, fleet.store, isolation, when, str(ran)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.splitlines() == [said, "None"], done.stderr
    assert not ran.exists()


@pytest.mark.left(tiers.SIDES, "pidns")
@BOTH
def test_a_candidate_whose_guard_froze_ends_when_it_is_elected(
    fleet: Fleet, folders: Path, isolation: str
) -> None:
    first, second = two(fleet, folders, "--isolate", isolation)
    os.kill(guard_of(second.pid), signal.SIGSTOP)
    first.terminate()
    _, said = second.communicate(timeout=60)
    assert second.returncode == 125
    assert "the command could not be put under the guard: no command may run any more" in said
    assert len(fleet.begun) == 1
    assert status(fleet)["state"] == "free"


TIGHT = """
import os, resource, sys
from incumbent.supervise import guarding

receive, free = guarding._receive, int(sys.argv.pop(1))

def tight(channel, kind, *more, **named):
    if kind is not guarding.Kind.READY:
        return receive(channel, kind, *more, **named)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + free, hard))
    try:
        return receive(channel, kind, *more, **named)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

guarding._receive = tight
from incumbent.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@needs(ROOT, "PID namespaces need root")
@pytest.mark.parametrize("free", [0, 1])
def test_a_namespace_for_which_no_descriptor_is_free_lets_nothing_run(
    fleet: Fleet, free: int
) -> None:
    ran = fleet.folder / "ran"
    line = ("-s", fleet.store, "run", "--isolate", "pidns", "job", "--", "touch", str(ran))
    done = subprocess.run(
        [sys.executable, "-c", TIGHT, str(free), *line],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert not ran.exists()
    assert done.returncode == 125
    assert "no file descriptor is free; raise their limit (ulimit -n); nothing ran" in done.stderr
    assert status(fleet)["state"] == "free"


def test_a_guard_that_does_not_come_up_is_no_defect_of_ours(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(guarding, "_HELLO_WITHIN", 0.0)
    assert main(["-s", "memory:", "run", "job", "--", "true"]) == 125
    said = capsys.readouterr().err
    assert "the guard does not answer; nothing ran, so try again" in said
    assert "defect" not in said


# -- standing by ---------------------------------------------------------------------------------


@pytest.mark.left(tiers.SIDES, "pgroup")
@BOTH
def test_a_candidate_replaces_the_waiting_process_that_was_killed(
    fleet: Fleet, folders: Path, isolation: str
) -> None:
    first, second = two(fleet, folders, "--isolate", isolation)
    guard = guard_of(second.pid)
    waits = waiting_child(second.pid, guard)
    os.kill(waits, signal.SIGKILL)
    eventually(lambda: gone(waits))
    first.terminate()
    eventually(lambda: len(fleet.begun) == 2)
    second.terminate()
    assert second.wait(60) == 0


@pytest.mark.left(tiers.CRASHES, "9-pidns")
@BOTH
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_a_candidate_leaves_neither_process_nor_folder(
    fleet: Fleet, folders: Path, isolation: str, signum: int
) -> None:
    _, second = two(fleet, folders, "--isolate", isolation)
    guard = guard_of(second.pid)
    left = [waiting_child(second.pid, guard), guard, *named("incumbent-init", guard)]
    assert len(list(folders.iterdir())) == 2
    second.send_signal(signum)
    second.wait(60)
    eventually(lambda: all(map(gone, left)))
    eventually(lambda: len(list(folders.iterdir())) == 1)
    assert len(fleet.begun) == 1


@pytest.mark.left(tiers.SIDES, "pidns")
@BOTH
def test_a_supervisor_that_is_killed_leaves_no_folder(
    fleet: Fleet, folders: Path, isolation: str
) -> None:
    leader = lead(fleet, folders, "--isolate", isolation)
    eventually(lambda: fleet.begun)
    assert [it.stat().st_mode & 0o777 for it in folders.iterdir()] == [0o711]
    leader.kill()
    leader.wait(60)
    eventually(lambda: not list(folders.iterdir()))


# -- as PID 1 ------------------------------------------------------------------------------------


def contained(fleet: Fleet, *options: str) -> tuple[subprocess.Popen[str], int]:
    """As a container runs it, and the number of its PID 1 as we see it."""
    line = ("-s", fleet.store, "run", "job", "--wait=40", *TIMES, "--isolate", "container", "--")
    jail = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    process = subprocess.Popen(
        [*jail, *command_line(*line, *worker(fleet, *options))],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    fleet.started.append(process)
    eventually(lambda: fleet.begun)
    return process, waiting_child(process.pid, 0)


@pytest.mark.left(
    tiers.SIDES, "supervisor-9-options2", "supervisor-19-options0", "guard-9-options1"
)
@needs(ROOT, "PID namespaces need root")
@pytest.mark.parametrize("options", [("--stubborn",), DAEMON, ("--stubborn", "--stranger")])
@pytest.mark.parametrize(
    ("whom", "signum"),
    [
        ("supervisor", signal.SIGKILL),
        ("supervisor", signal.SIGSTOP),
        ("guard", signal.SIGKILL),
    ],
)
def test_in_a_container_everything_is_dead_before_another_can_lead(
    fleet: Fleet, whom: str, signum: int, options: tuple[str, ...]
) -> None:
    process, first = contained(fleet, *options)
    since = clock.now()
    os.kill(first if whom == "supervisor" else guard_of(first), signum)
    died_within(fleet, since, TTL)
    if signum == signal.SIGSTOP:
        os.kill(first, signal.SIGCONT)
    assert process.wait(60) != 0


@needs(ROOT, "PID namespaces need root")
def test_in_a_container_the_commands_own_code_comes_out(fleet: Fleet) -> None:
    process, _ = contained(fleet)
    (fleet.folder / "stop").touch()
    assert process.wait(60) == 0
    assert status(fleet)["state"] == "free"
