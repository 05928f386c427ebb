"""The command is dead within a ttl of any fault of supervisor and guard; flock judges.

The exceptions are tests too: what nobody can promise must not be promised by accident.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from incumbent import clock
from tests import tiers
from tests.cli.tool import answer, command_line, incumbent, start
from tests.e2e.fleet import TTL, Fleet, died_within
from tests.support.etcd import EtcdServer
from tests.support.needs import needs
from tests.support.pace import BUSY
from tests.support.waiting import eventually

ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
PIDNS = pytest.param("pidns", marks=needs(ROOT, "PID namespaces need root"))
PGROUP = pytest.param("pgroup", marks=needs(sys.platform == "linux", "the guard needs Linux"))
BOTH = pytest.mark.parametrize("isolation", [PIDNS, PGROUP])

pytestmark = [pytest.mark.slow, pytest.mark.timing(tiers.PROCESSES)]


@dataclass
class Instance:
    """A supervisor with its guard, whose command works."""

    process: subprocess.Popen[str]
    guard: int
    frozen: set[int] = field(default_factory=set)

    @property
    def pid(self) -> int:
        return self.process.pid

    def send(self, pid: int, signum: int) -> None:
        os.kill(pid, signum)
        if signum == signal.SIGSTOP:
            self.frozen.add(pid)

    def thaw(self) -> None:
        for pid in self.frozen:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue


def of(pid: int, what: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{what}").read_bytes()
    except OSError:
        return b""


def parent_of(pid: int) -> int:
    stat = of(pid, "stat").rpartition(b")")[2].split()
    return int(stat[1]) if stat else 0


def named(name: str, parent: int) -> list[int]:
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [
        pid for pid in pids if of(pid, "comm").strip() == name.encode() and parent_of(pid) == parent
    ]


def guard_of(pid: int) -> int:
    return eventually(lambda: named("incumbent-guard", pid))[0]


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.fixture(params=["sqlite"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    store = f"sqlite:///{tmp_path}/leases.db"
    if request.param == "etcd":
        etcd: EtcdServer = request.getfixturevalue("own_etcd")
        store = etcd.store_url()
    fleet = Fleet(store, tmp_path)
    yield fleet
    fleet.close()


def begin(fleet: Fleet, isolation: str, *worker: str) -> Instance:
    process = fleet.begin("--isolate", isolation, worker=worker)
    return Instance(process, guard_of(process.pid))


# -- the faults ----------------------------------------------------------------------------------

KILL, STOP = signal.SIGKILL, signal.SIGSTOP
FAULTS: dict[str, Callable[[Instance], list[tuple[int, int]]]] = {
    "supervisor killed": lambda it: [(it.pid, KILL)],
    "supervisor stopped": lambda it: [(it.pid, STOP)],
    "guard killed": lambda it: [(it.guard, KILL)],
    # Stopped first: who sees the other's end has an instant to act.
    "both killed": lambda it: [(pid, how) for how in (STOP, KILL) for pid in (it.pid, it.guard)],
    "guard stopped, supervisor killed": lambda it: [(it.guard, STOP), (it.pid, KILL)],
    "supervisor stopped, guard killed": lambda it: [(it.pid, STOP), (it.guard, KILL)],
}

DAEMON = ("--stubborn", "--daemon")


def cases() -> Iterator[object]:
    for isolation in (PIDNS, PGROUP):
        name = str(isolation.values[0])
        for fault in FAULTS:
            for worker in (("--stubborn",), DAEMON):
                if name == "pgroup" and (fault, worker) in ESCAPES:
                    continue
                yield pytest.param(
                    name, fault, worker, id=f"{name}-{fault}-{worker[-1]}", marks=isolation.marks
                )


# Who is left to kill them? Only a PID namespace has the kernel for that.
ESCAPES = [
    ("both killed", DAEMON),
    ("guard stopped, supervisor killed", DAEMON),
    ("supervisor stopped, guard killed", DAEMON),
    ("supervisor stopped, guard killed", ("--stubborn",)),
]


@pytest.mark.left(
    tiers.MEET,
    "pidns-supervisor killed---stubborn-sqlite",
    "pgroup-supervisor stopped---stubborn-sqlite",
    "pidns-guard killed---stubborn-etcd",
    "pgroup-both killed---stubborn-etcd",
    "pidns-guard stopped, supervisor killed---daemon-sqlite",
    "pidns-supervisor stopped, guard killed---daemon-etcd",
)
@pytest.mark.parametrize("fleet", ["sqlite", "etcd"], indirect=True)
@pytest.mark.parametrize(("isolation", "fault", "worker"), list(cases()))
def test_the_tree_is_dead_before_another_can_lead(
    fleet: Fleet, isolation: str, fault: str, worker: tuple[str, ...]
) -> None:
    instance = begin(fleet, isolation, *worker)
    second = fleet.start("--wait=40", "--isolate", isolation)
    for pid, signum in FAULTS[fault](instance):
        instance.send(pid, signum)
    since = clock.now()
    try:
        died_within(fleet, since, TTL)
        # Who was frozen in a transaction keeps SQLite's lock until it goes on.
        instance.thaw()
        eventually(lambda: len(fleet.begun) == 2)
        fleet.judge()
    finally:
        instance.thaw()
        second.terminate()
        second.wait(60)


@pytest.mark.left(tiers.SIDES, "*worker0")
@needs(sys.platform == "linux", "the guard needs Linux")
@pytest.mark.parametrize(("fault", "worker"), ESCAPES)
def test_a_process_group_has_nobody_to_kill_it_when_both_are_away(
    fleet: Fleet, fault: str, worker: tuple[str, ...]
) -> None:
    instance = begin(fleet, "pgroup", *worker)
    while not fleet.worker_lives():  # a busy machine kept its supervisor from renewing in time
        instance = begin(fleet, "pgroup", *worker)
    for pid, signum in FAULTS[fault](instance):
        instance.send(pid, signum)
    time.sleep(TTL)
    lives = fleet.worker_lives()
    instance.thaw()
    assert lives, "better than promised: docs/supervision.md says that it escapes"


@pytest.mark.left(tiers.SIDES, "*pidns")
@BOTH
def test_with_supervisor_and_guard_stopped_the_command_outlives_the_lease(
    fleet: Fleet, isolation: str
) -> None:
    instance = begin(fleet, isolation, "--stubborn")
    for pid in (instance.pid, instance.guard):
        instance.send(pid, STOP)
    time.sleep(1.3 * TTL)
    lives = fleet.worker_lives()
    since = clock.now()
    instance.thaw()
    assert lives, "better than promised: docs/supervision.md says that they overlap"
    died_within(fleet, since, BUSY)
    assert instance.process.wait(60) == 123


@pytest.mark.left(tiers.LONG)
@BOTH
def test_a_guard_that_is_stopped_alone_stops_nobody(fleet: Fleet, isolation: str) -> None:
    instance = begin(fleet, isolation, "--for", str(2 * TTL))
    instance.send(instance.guard, STOP)
    assert instance.process.wait(60) == 0
    assert gone(instance.guard)


@pytest.mark.left(tiers.LONG)
@BOTH
def test_a_guard_that_was_stopped_heeds_the_proofs_in_its_queue(
    fleet: Fleet, isolation: str
) -> None:
    instance = begin(fleet, isolation, "--for", str(2.5 * TTL))
    instance.send(instance.guard, STOP)
    time.sleep(1.3 * TTL)
    instance.thaw()
    assert instance.process.wait(60) == 0


@pytest.mark.left(tiers.SIDES, "*pgroup")
@BOTH
def test_the_death_of_the_guard_is_a_fault_of_ours_and_gives_the_lease_back(
    fleet: Fleet, isolation: str
) -> None:
    instance = begin(fleet, isolation, *DAEMON)
    os.kill(instance.guard, KILL)
    _, said = instance.process.communicate(timeout=60)
    assert instance.process.returncode == 125
    assert "the guard is dead" in said
    assert answer("-s", fleet.store, "status", "job")["state"] == "free"
    assert not fleet.worker_lives()


@pytest.mark.left(tiers.SIDES, "*pidns")
@BOTH
def test_a_thawed_supervisor_says_that_the_lease_is_over(fleet: Fleet, isolation: str) -> None:
    instance = begin(fleet, isolation, "--stubborn")
    since = clock.now()
    instance.send(instance.pid, STOP)
    died_within(fleet, since, TTL)
    time.sleep(0.3)
    instance.thaw()
    assert instance.process.wait(60) == 123


# -- the tree ------------------------------------------------------------------------------------


@BOTH
def test_a_daemon_that_the_command_leaves_behind_is_ended_before_the_release(
    fleet: Fleet, isolation: str
) -> None:
    script = f"{sys.executable} -S {DAEMONISES} {fleet.folder}; exit 3"
    done = incumbent(
        *("-s", fleet.store, "run", "job", "--isolate", isolation, "--", "sh", "-c", script)
    )
    assert done.returncode == 3, done.stderr
    assert (fleet.folder / "asked").read_text() == "TERM"
    assert not fleet.worker_lives()


DAEMONISES = Path(__file__).with_name("daemonises.py")


@BOTH
def test_no_process_and_no_zombie_is_left(fleet: Fleet, isolation: str) -> None:
    instance = begin(fleet, isolation)
    inits = named("incumbent-init", instance.guard)
    assert len(inits) >= (isolation == "pidns")
    (fleet.folder / "stop").touch()
    assert instance.process.wait(60) == 0
    assert all(map(gone, (instance.guard, *inits)))


@pytest.mark.left(tiers.SIDES, "*pgroup")
@BOTH
def test_a_guard_leaves_with_a_supervisor_that_is_killed(fleet: Fleet, isolation: str) -> None:
    instance = begin(fleet, isolation)
    instance.process.kill()
    instance.process.wait()
    eventually(lambda: of(instance.guard, "stat").rpartition(b")")[2].split()[:1] in ([], [b"Z"]))


@BOTH
def test_orphans_are_reaped_while_the_command_runs(fleet: Fleet, isolation: str) -> None:
    count = "ps -eo stat= | grep -c ^Z" if isolation == "pidns" else "echo 0"
    # A busy machine may need a while until all have ended and are reaped.
    none = f"for i in $(seq 100); do [ $({count}) = 0 ] && exit 0; sleep 0.1; done; exit 1"
    script = f"for i in 1 2 3 4 5; do (true &) ; done; sleep 0.3; {none}"
    process = start(
        *("-s", fleet.store, "run", "job", "--isolate", isolation, "--", "sh", "-c", script)
    )
    fleet.started.append(process)
    assert process.wait(60) == 0


@needs(ROOT, "PID namespaces need root")
def test_the_command_sees_only_its_own_processes(fleet: Fleet) -> None:
    line = ("run", "job", "--", "sh", "-c", "echo $$; ls -d /proc/[0-9]*")
    said = incumbent("-s", fleet.store, *line).stdout.split()
    assert said[0] == "2"
    assert set(said[1:]) <= {f"/proc/{pid}" for pid in range(1, 9)}


# prctl(2), PR_CAPBSET_DROP: what is executed next is root without CAP_SYS_ADMIN.
WITHOUT_SYS_ADMIN = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 21, 0, 0, 0);"
    "os.execv(sys.argv[1], sys.argv[1:])"
)


@needs(ROOT, "only root loses something with its rights")
def test_without_the_right_to_it_a_namespace_is_refused_and_auto_does_with_less(
    fleet: Fleet,
) -> None:
    tool = [sys.executable, "-c", WITHOUT_SYS_ADMIN, *command_line("-s", fleet.store)]

    def run(*line: str) -> subprocess.CompletedProcess[str]:
        command = [*tool, *line]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    refused = run("run", "job", "--isolate", "pidns", "--", "true")
    assert refused.returncode == 64
    assert "isolate=pidns cannot be had here" in refused.stderr
    weaker = run("run", "job", "--", "true")
    assert weaker.returncode == 0
    assert weaker.stderr.count("no PID namespace") == 1
    known = run("run", "job", "--isolate", "pgroup", "--", "true")
    assert "no PID namespace" not in known.stderr


@pytest.mark.parametrize("isolation", ["jail", "container"])
def test_an_isolation_that_cannot_be_had_is_refused_before_anything_opens(
    fleet: Fleet, isolation: str
) -> None:
    line = ("run", "job", "--isolate", isolation, "--", "true")
    done = incumbent("-s", fleet.store, *line)
    assert done.returncode == 64
    assert isolation in done.stderr
    assert not (fleet.folder / "leases.db").exists()


# -- as a function -------------------------------------------------------------------------------

CALLS = """
import os, signal, sys
from incumbent.supervise.guarding import start_guard
from incumbent.supervise.run import Command, supervise
from incumbent.supervise.signals import Signals
from incumbent.locks.lock import Lock

def report(course):
    print(course.phase.name, flush=True)
    if course.phase.name == "RUNNING":
        print("rung", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

with start_guard(sys.argv[2]) as guard, Signals() as signals:
    for _ in range(2):
        ending = supervise(
            Lock("job", store=sys.argv[1], timeout=0).acquire(), Command(["sh", "-c", sys.argv[3]]),
            signals, guard, stop_on={signal.SIGTERM}, report=report,
        )
        print(ending.cause, ending.status, ending.confirmed, flush=True)
"""


@pytest.mark.left(tiers.SIDES, "*pidns")
@BOTH
def test_one_guard_serves_many_terms_that_signals_end_in_order(
    fleet: Fleet, isolation: str
) -> None:
    # The shell says that it was asked; the grace is there for it.
    command = "trap 'echo asked; exit 7' TERM; while :; do sleep 0.01; done"
    done = subprocess.run(
        [sys.executable, "-c", CALLS, fleet.store, isolation, command],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    term = ["RUNNING", "rung", "STOPPING", "signal:SIGTERM"]
    said = [line.split()[0] for line in done.stdout.splitlines() if line != "asked"]
    assert said == term * 2, done.stderr
    assert "True" in done.stdout.splitlines()[-1]
