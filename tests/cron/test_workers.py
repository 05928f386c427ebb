"""Workers that stand by and do one task after the other: what is the same, and what is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from incumbent import clock
from incumbent.cron import worker as worker_process
from incumbent.cron.events import Events
from incumbent.cron.ledger import TAIL, SlotRecord, SlotState, runs_of
from incumbent.cron.runs import GAVE_BACK, NOT_BEGUN, STARTED, STATE_OF, Claimer
from incumbent.cron.schedule import Every
from incumbent.cron.spec import JobSlot, JobSpec
from incumbent.cron.worker import WorkerSettings
from incumbent.cron.zygote import RunOnFailure, StandBy, Stop, Zygote
from incumbent.model import Key, Refused
from incumbent.net.dial import is_ready
from incumbent.runtime.link import new_link
from tests import tiers
from tests.cron.fleet import REAL_PROCESSES, CronFleet, children, descendants, identity
from tests.support.waiting import eventually

pytestmark = REAL_PROCESSES

TTL = 6.0


class Bench:
    """An instance without a clock: tasks are sent by hand."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder}/leases.db"
        self._log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
        self.zygote = Zygote(
            WorkerSettings(self.url, "default", "me", {"ttl": TTL}), Events(self._log)
        )
        self.link = new_link(self.url)
        self.claimer = Claimer(self.link, "default", {"holder": "me", "ttl": TTL, "grace": 0.2})
        self.number = 0

    def send(self, command: str, **more: Any) -> str:
        self.number += 1
        line = ("sh", "-c", command)
        spec = JobSpec(name="job", schedule=Every(60), command=line, **more)
        slot = JobSlot(f"2026-01-01T00:00:{self.number:02}Z", 1_767_225_600.0 + self.number)
        held = self.claimer.claim(spec, slot)
        assert not isinstance(held, Refused), held
        self.zygote.send(self.claimer.task_of(spec, slot, held))
        return slot.name

    def ended(self, within: float = 40.0) -> int:
        said: list[int] = []
        while not said or said == [STARTED]:
            assert is_ready(self.zygote.fd, writing=False, seconds=within), f"no end, only {said}"
            said += [code for _, _, code in self.zygote.reports()]
        return said[-1]

    def run(self, command: str, **more: Any) -> SlotRecord:
        slot = self.send(command, **more)
        state = STATE_OF[self.ended()]
        record = self.record(slot)
        assert record.state is state
        return record

    def record(self, slot: str) -> SlotRecord:
        fields = self.link.store.read(Key("default", "job"), clock.now() + 5).fields
        return runs_of(fields)[slot][0]

    def is_free(self, slot: str) -> bool:
        """Whether nothing is on record of the slot, and nobody has claimed it."""
        record = self.link.store.read(Key("default", "job"), clock.now() + 5)
        return not (record.holdings or slot in record.slots or slot in runs_of(record.fields))

    def workers(self) -> list[int]:
        return sorted(pid for pid in children(self.zygote.pid) if identity(pid))

    def stand_by(self, workers: int = 1) -> list[int]:
        """With the process that waits to become a command."""
        self.zygote.send(StandBy(workers, workers))
        eventually(lambda: len(self.workers()) == workers)
        eventually(lambda: all(map(is_prepared, self.workers())))
        return self.workers()

    def close(self) -> None:
        self.zygote.close()
        self.link.close()
        os.close(self._log)


def is_prepared(worker: int) -> bool:
    # A guard has its parent's name until it gives itself one.
    return sorted(map(name_of, children(worker))) == ["incumbent-guard", "incumbent-zygot"]


def is_pending(pid: int, signum: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.findall(r"^(?:SigPnd|ShdPnd):\s+(\w+)$", status, re.MULTILINE)
    return any(int(mask, 16) >> (signum - 1) & 1 for mask in found)


def name_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def standard(pid: int) -> list[Path]:
    return [Path(f"/proc/{pid}/fd/{number}").readlink() for number in (1, 2)]


def guard_of(worker: int) -> int:
    (guard,) = [pid for pid in children(worker) if name_of(pid) == "incumbent-guard"]
    return guard


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def test_a_worker_does_one_task_after_the_other_and_each_has_its_own_output(bench: Bench) -> None:
    before = bench.stand_by()
    for word in ("one", "two", "three"):
        run = bench.run(f"echo {word}; echo and $INCUMBENT_LEASE_SLOT >&2")
        assert (run.state, run.output) == (SlotState.OK, f"{word}\nand {run.slot}")
    assert bench.run("exit 3").code == 3
    assert bench.workers() == before
    # Between tasks it has no task's pipe.
    assert standard(before[0]) == standard(bench.zygote.pid)
    # One that nobody wants any more leaves after its task.
    bench.zygote.send(StandBy(0, 1))
    slot = bench.send("sleep 0.3")
    bench.zygote.send(StandBy(0, 0))
    assert STATE_OF[bench.ended()] is SlotState.OK
    assert bench.record(slot).state is SlotState.OK
    eventually(lambda: not bench.workers())


def test_the_output_of_a_run_is_seen_while_it_goes_on_and_whole_at_its_end(
    bench: Bench, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    slot = bench.send(f"echo first; until test -e {go}; do sleep 0.1; done; echo last")

    def output() -> str:
        fields = bench.link.store.read(Key("default", "job"), clock.now() + 30).fields
        return "".join(one.output for one, _ in runs_of(fields).values())

    eventually(lambda: output() == "first")
    going = bench.record(slot)
    assert going.state is SlotState.RUNNING
    assert going.output_seen is not None
    go.touch()
    assert STATE_OF[bench.ended()] is SlotState.OK
    assert (bench.record(slot).output, bench.record(slot).output_seen) == ("first\nlast", None)
    assert TAIL not in bench.link.store.read(Key("default", "job"), clock.now() + 30).fields


def test_a_task_that_moves_its_worker_or_feeds_it_is_the_last_of_it(
    bench: Bench, tmp_path: Path
) -> None:
    here = Path.cwd()
    (first,) = bench.stand_by()
    assert bench.run("pwd; cat", cwd=str(tmp_path), stdin="words").output == f"{tmp_path}\nwords"
    eventually(lambda: first not in bench.workers())
    assert bench.run("pwd; cat").output == str(here)


def test_what_a_command_left_behind_is_gone_before_the_next_task(bench: Bench) -> None:
    (worker,) = bench.stand_by()
    assert bench.run("sleep 300 & echo $!").state is SlotState.OK
    below = [name_of(pid) for pid in descendants(worker)]
    assert "sleep" not in below
    assert bench.workers() == [worker]


def test_a_worker_that_is_gone_or_has_no_guard_is_replaced(bench: Bench) -> None:
    (worker,) = bench.stand_by()
    # One that dies while it comes up is replaced later.
    assert bench.run("true").state is SlotState.OK
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: bench.workers() not in ([], [worker]), within=6)
    (second,) = bench.stand_by()
    assert bench.run("true").state is SlotState.OK
    os.kill(guard_of(second), signal.SIGKILL)
    # At once, and not when it would have prepared for the next task.
    eventually(lambda: second not in bench.workers(), within=6)
    (third,) = bench.stand_by()
    assert bench.run("true").state is SlotState.OK
    assert bench.workers() == [third]


def test_a_worker_whose_guard_died_gives_the_slot_back(bench: Bench) -> None:
    (worker,) = bench.stand_by()
    guard = guard_of(worker)
    os.kill(worker, signal.SIGSTOP)
    try:
        slot = bench.send("true")
        os.kill(guard, signal.SIGKILL)
        eventually(lambda: not identity(guard))
    finally:
        # Who is stopped hears no TERM either.
        os.kill(worker, signal.SIGCONT)
    # Nothing ran without a guard.
    assert bench.ended() == GAVE_BACK
    assert bench.is_free(slot)


def test_a_task_that_comes_with_the_signal_to_leave_is_given_back(bench: Bench) -> None:
    """Else its slot would be lost, though nothing of it ever ran."""
    (worker,) = bench.stand_by()
    os.kill(worker, signal.SIGSTOP)
    slot = bench.send("true")
    # After the task: the zygote handles one message after the other.
    bench.zygote.send(Stop())
    eventually(lambda: is_pending(worker, signal.SIGTERM))
    os.kill(worker, signal.SIGCONT)
    assert bench.ended() == GAVE_BACK
    assert bench.is_free(slot)


def test_a_stop_before_the_worker_of_a_task_is_there_loses_nothing(bench: Bench) -> None:
    os.kill(bench.zygote.pid, signal.SIGSTOP)
    slot = bench.send("sleep 30")
    bench.zygote.send(Stop())
    os.kill(bench.zygote.pid, signal.SIGCONT)
    if bench.ended() == GAVE_BACK:
        assert bench.is_free(slot)
    else:
        # The signal took so long that the command ran, and was stopped.
        assert bench.record(slot).state is SlotState.LOST


def test_a_worker_that_cannot_be_made_ready_has_not_begun_its_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = mock.Mock(side_effect=BlockingIOError("no process"))
    monkeypatch.setattr(worker_process, "start_guard", failing)
    bench = Bench(tmp_path)
    try:
        slot = bench.send("true")
        assert bench.ended() == NOT_BEGUN
        fields = bench.link.store.read(Key("default", "job"), clock.now() + 5).fields
        assert slot not in runs_of(fields)
    finally:
        bench.close()


def test_a_command_of_a_worker_that_was_used_before_dies_with_it(bench: Bench) -> None:
    (worker,) = bench.stand_by()
    bench.run("true")
    bench.run("true")
    bench.send("trap '' TERM; setsid sh -c 'sleep 300' & sleep 300")
    eventually(lambda: [name_of(it) for it in descendants(worker)].count("sleep") == 2)
    tree = [pid for pid in descendants(worker) if name_of(pid) == "sleep"]
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: not any(map(identity, tree)), within=TTL)
    assert bench.ended() == -signal.SIGKILL


def test_workers_leave_with_their_instance(bench: Bench) -> None:
    below = [bench.zygote.pid, *bench.stand_by(3)]
    below += [pid for worker in below[1:] for pid in descendants(worker)]
    assert len(below) >= 1 + 3 * 3
    bench.zygote.close()
    assert not any(map(identity, below))


def test_a_child_of_the_zygote_never_goes_on_in_its_place(bench: Bench) -> None:
    """Else it would do what came after its own message too: here, end a worker it cannot tell."""
    bench.stand_by()
    notice = JobSpec(name="job", schedule=Every(60), command=("true",), on_failure=("true",))
    os.kill(bench.zygote.pid, signal.SIGSTOP)
    try:
        bench.zygote.send(
            RunOnFailure(notice, SlotRecord("2025-01-01T00:00:00Z", SlotState.FAILED, 0.0))
        )
        bench.send("sleep 0.5")
    finally:
        os.kill(bench.zygote.pid, signal.SIGCONT)
    assert STATE_OF[bench.ended()] is SlotState.OK


def test_the_zygote_never_goes_on_as_its_instance(tmp_path: Path) -> None:
    script = (
        "from incumbent.cron.events import Events;"
        "from incumbent.cron.worker import WorkerSettings;"
        "from incumbent.cron.zygote import Zygote;"
        f"fleet = WorkerSettings('sqlite:///{tmp_path}/leases.db', 'default', 'me', {{}});"
        "Zygote(fleet, Events(2)).close();"
        "print('here', flush=True)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout == "here\n"


# -- many at once ----------------------------------------------------------------------------------


@pytest.mark.left(tiers.LONG)
def test_an_instance_runs_no_more_at_a_time_than_it_may_and_all_in_the_end(tmp_path: Path) -> None:
    jobs, most = 24, 3
    fleet = CronFleet(f"sqlite:///{tmp_path}/leases.db", tmp_path, "")
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 12))
    line = "echo + >> $FOLDER/log; sleep 0.1; echo - >> $FOLDER/log"
    fleet.file.write_text(
        "\n".join(
            f'[[job]]\nname = "j{it}"\nat = [{at}]\ncommand = "{line}"\n' for it in range(jobs)
        )
    )
    try:
        fleet.start("--max-runs", str(most))
        eventually(lambda: len(fleet.events("ok")) == jobs, within=60)
    finally:
        fleet.stop()
    on, highest = 0, 0
    for sign in (tmp_path / "log").read_text().split():
        on += 1 if sign == "+" else -1
        highest = max(highest, on)
    # Whether as many as may are ever between their two signs is the machine's business.
    assert on == 0
    assert highest <= most
    (full,) = fleet.events("full")
    assert full["running"] == most
    assert full["waiting"] > 0
