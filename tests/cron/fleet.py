"""Instances of `incumbent cron` as real processes, and what their jobs left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from incumbent import clock
from incumbent.cron.executor import Executor
from incumbent.cron.fleet import PRESENCE
from incumbent.cron.ledger import SlotRecord, read_job, runs_of
from incumbent.cron.load import load_jobs
from incumbent.cron.spec import JobSlot, JobSpec
from incumbent.locks.clients import Client
from incumbent.model import Key, Refused
from incumbent.runtime.link import new_link
from tests.cli.tool import command_line, environment, incumbent
from tests.cron.quick import quiet
from tests.support.waiting import eventually

T = TypeVar("T")

PRESENCE_KEY = Key("default", PRESENCE)
TIMES = ("--ttl", "5", "--grace", "1")
"""A busy machine keeps them: what a lost lease does is asked for with SHORT."""
SHORT = ("--ttl", "1.5", "--grace", "0.3")
NEVER_DUE = "at = [2099-01-01T00:00:00Z]"
"""For what runs only when it is triggered: every hour is due while a test crosses the hour."""

REAL_PROCESSES = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(sys.platform != "linux", reason="/proc"),
]
"""The marks of tests that start instances as processes, and look at them in /proc."""


def real_processes(test: T) -> T:
    """Mark one test so; a module whose tests all are of this kind has them as `pytestmark`."""
    marked: Any = test
    for mark in REAL_PROCESSES:
        marked = mark(marked)
    return cast("T", marked)


@dataclass
class CronFleet:
    """A folder, a store and a job file; instances write their events to files of their own."""

    store: str
    folder: Path
    jobs: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)
    """What instances that start from now on find in their environment, too."""

    def __post_init__(self) -> None:
        self.file = self.folder / "jobs.toml"
        self.file.write_text(self.jobs)

    def start(self, *options: str, file: str = "") -> subprocess.Popen[bytes]:
        number = len(self.processes) + 1
        holder = ("--holder", f"i{number}")
        line = ("-s", self.store, "cron", file or str(self.file), *TIMES, *holder, *options)
        errors_to = self.folder / f"errors{number}"
        with (self.folder / f"events{number}").open("wb") as out, errors_to.open("wb") as errors:
            process = subprocess.Popen(
                command_line(*line),
                env=environment({"FOLDER": str(self.folder), **self.env}),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                cwd=self.folder,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        found = []
        for path in sorted(self.folder.glob("events*")):
            for line in path.read_text().splitlines():
                with suppress(ValueError):
                    event = json.loads(line)
                    if not kinds or event["event"] in kinds:
                        found.append(event)
        return found

    @property
    def errors(self) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob("errors*")))

    def ran(self) -> Counter[str]:
        """How often each slot was run, as the jobs themselves noted it."""
        path = self.folder / "ran"
        return Counter(path.read_text().split()) if path.exists() else Counter()

    def runs(self, job: str) -> dict[str, SlotRecord]:
        fields = self._client.read(job, 5).fields
        return {slot: run for slot, (run, _) in runs_of(fields).items()}

    def since(self, job: str) -> float:
        return float(read_job(self._client.read(job, 5).fields)["since"])

    def trigger(self, job: str) -> None:
        """Once now; the fleet may only just have begun to say which jobs it has."""
        eventually(lambda: self._registered(job))
        done = incumbent("-s", self.store, "trigger", job)
        assert done.returncode == 0, done.stderr

    def _registered(self, job: str) -> bool:
        return bool(read_job(self._client.read(job, 5).fields))

    @cached_property
    def _client(self) -> Client:
        """One for all looks, and there are hundreds; `stop` closes it, the next look opens it."""
        return Client(self.store)

    def account(self) -> None:
        """What a look in ten minutes writes: by then a slot that nobody came to is missed."""
        with closing(new_link(self.store)) as link:
            for name in link.store.read(PRESENCE_KEY, clock.now() + 5).fields:
                link.store.put(PRESENCE_KEY, name, None, None, clock.now() + 5)
            specs = load_jobs(str(self.file), environment(), 0.0).specs
            later = Executor(
                specs, "default", link.port, Bystander(), quiet, lambda: clock.wall() + 600
            )
            later.begin(link.store.scan("default", "", clock.now() + 10))
            until = clock.now() + 1.5
            while clock.now() < until:
                later.carry_out_orders()
                time.sleep(0.05)

    # -- faults --------------------------------------------------------------------------------

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """With all that it started, as the end of a container does."""
        for pid in (*descendants(process.pid), process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    @staticmethod
    def freeze(process: subprocess.Popen[bytes]) -> list[int]:
        pids = [process.pid, *descendants(process.pid)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        return pids

    @staticmethod
    def thaw(pids: Sequence[int]) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def stop(self) -> list[int]:
        """TERM to all, and their exit codes."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        until = time.monotonic() + 60
        for process in self.processes:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.kill(process)
        if "_client" in vars(self):
            self._client.close()
            del self._client
        return [process.returncode for process in self.processes]


class Bystander:
    """A Launcher that gets nothing."""

    def claim(self, spec: JobSpec, slot: JobSlot) -> Refused:
        return Refused("closed", retry_after=60.0)

    def launch(self, spec: JobSpec, slot: JobSlot, grant: object) -> None:
        raise AssertionError

    def run_on_failure(self, spec: JobSpec, run: SlotRecord) -> None:
        pass


def children(pid: int) -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                stat = (entry / "stat").read_text()
                if int(stat.rpartition(")")[2].split()[1]) == pid:
                    found.append(int(entry.name))
    return found


def descendants(pid: int) -> list[int]:
    return [each for child in children(pid) for each in (child, *descendants(child))]


def identity(pid: int) -> str:
    """What tells it from a later process of the same number; empty for a zombie, or nobody."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else f"{pid}@{fields[19]}"


def note(then: str = "") -> str:
    """A command for a job file: notes its slot in one write, then does something else."""
    script = (
        "import os,time;"
        "f=os.open(os.environ['FOLDER']+'/ran',os.O_WRONLY|os.O_CREAT|os.O_APPEND);"
        "os.write(f,(os.environ['INCUMBENT_LEASE_NAME']+'@'+os.environ['INCUMBENT_LEASE_SLOT']"
        "+chr(10)).encode());" + then
    )
    return json.dumps([sys.executable, "-S", "-c", script])
