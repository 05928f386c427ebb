"""Three instances, a failed job, an outage, a wrong clock: what an operator reads is true."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import tiers
from tests.cli.tool import answer, command_line, environment, incumbent
from tests.cron.fleet import NEVER_DUE
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(240)]

INSTANCE = Path(__file__).resolve().parents[2] / "examples/fleet/instance.py"
JOBS = f"""
[[job]]
name = "breaks"
{NEVER_DUE}
command = ["sh", "-c", "echo no disk >&2; exit 3"]
[[job]]
name = "tick"
every = "1s"
command = ["true"]
"""
AHEAD = 40


class Fleet:
    """Three instances with one job file, of which the third has a wrong clock, and the page."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder, self.store = folder, store
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, holder: str, clock_off: int = 0) -> subprocess.Popen[str]:
        jobs = self.folder / "jobs.toml"
        jobs.write_text(JOBS)
        words = ("-s", self.store, "cron", str(jobs), "--ttl", "5", "--grace", "1")
        return self._run(
            [sys.executable, str(INSTANCE), *words, "--holder", holder],
            {"CLOCK_OFF": str(clock_off)},
        )

    def serve(self) -> str:
        page = self._run(command_line("-s", self.store, "serve", "--listen", "127.0.0.1:0"), {})
        assert page.stderr is not None
        return page.stderr.readline().split()[-1]

    def _run(self, line: list[str], more: dict[str, str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            line,
            env=environment(more),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
        )
        self.processes.append(process)
        return process

    def close(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.communicate(timeout=60)

    def ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        return incumbent("-s", self.store, *words)

    def says(self, *words: str) -> str:
        done = self.ask(*words)
        return done.stdout + done.stderr


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def fleet(tmp_path: Path, redis: RedisServer) -> Iterator[Fleet]:
    made = Fleet(tmp_path, f"{redis.url}?restart_wait=30s")
    yield made
    made.close()


def shown(page: str) -> str:
    with urllib.request.urlopen(page, timeout=30) as reply:
        return re.sub(r"<[^>]+>", " ", reply.read().decode())


@pytest.mark.left(tiers.LONG)
def test_what_an_operator_reads_is_true_at_each_step(fleet: Fleet, redis: RedisServer) -> None:
    page = fleet.serve()

    # A new server grants nothing for a while, and nobody calls a name free meanwhile.
    assert fleet.ask("run", "x", "--", "true").returncode == 69
    assert answer("-s", fleet.store, "status", "x")["state"] == "waiting"
    assert "nobody is given a lease yet" in fleet.says("status")
    eventually(lambda: "grants nothing yet" in shown(page))

    # Three instances come up; a job fails.
    first, second, third = fleet.start("i1"), fleet.start("i2"), fleet.start("i3", AHEAD)
    eventually(lambda: "3 up: i1, i2, i3" in fleet.says("jobs"))
    eventually(lambda: re.search(r"tick .* ok ", fleet.says("jobs")), within=90)
    assert answer("-s", fleet.store, "status", "breaks")["state"] == "free"
    assert fleet.ask("trigger", "breaks").returncode == 0
    eventually(lambda: "failed (3)" in fleet.says("history", "breaks"))
    assert "failed (3) on i" in fleet.says("why", "breaks")
    eventually(lambda: "breaks" in shown(page) and "failed (3)" in shown(page))

    # An outage: nobody knows, and what was missed is not put down to instances that were up.
    redis.freeze()
    away = fleet.ask("status")
    assert (away.returncode, away.stdout) == (69, "")
    eventually(lambda: "gives no answer" in shown(page))
    redis.thaw()
    eventually(lambda: fleet.ask("status").returncode == 0)
    eventually(lambda: "gives no answer" not in shown(page))
    before = len(answer("-s", fleet.store, "history", "tick"))
    eventually(lambda: len(answer("-s", fleet.store, "history", "tick")) > before)
    assert "nobody was up" not in fleet.says("history", "tick") + fleet.says("why", "tick")

    # The one with a wrong clock runs what the others leave, and its clock is named.
    for instance in (first, second):
        instance.send_signal(signal.SIGTERM)
        assert instance.wait(60) == 0
    eventually(lambda: "1 up: i3" in fleet.says("jobs"))
    assert fleet.ask("trigger", "breaks").returncode == 0
    said = re.compile(r"the clock of i3 was (\d+)[.\d]*s ahead of the store's")
    eventually(lambda: said.search(fleet.says("why", "breaks")))
    assert abs(int(said.findall(fleet.says("why", "breaks"))[0]) - AHEAD) <= 10

    # Nobody is left.
    third.send_signal(signal.SIGTERM)
    assert third.wait(60) == 0
    eventually(lambda: "no instance is up" in fleet.says("jobs"))
    gone = fleet.ask("trigger", "breaks", "--timeout", "2")
    assert (gone.returncode, "no instance took it" in gone.stderr) == (75, True)
