"""Four Cotyledon workers on one lease: whoever prints, prints alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import tiers
from tests.cli.tool import environment
from tests.support.etcd import EtcdServer
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

SERVICE = Path(__file__).resolve().parents[2] / "examples" / "cotyledon_service.py"


@dataclass(frozen=True)
class Line:
    term: int
    worker: int
    pid: int
    what: str


class Service:
    """The example, running, and what its workers printed."""

    def __init__(self, store: str, out: Path) -> None:
        self._out = out
        settings = {"INCUMBENT_STORE": store, "SECONDS_HELD": "0.06", "SECONDS_BETWEEN": "0.02"}
        with out.open("wb") as stdout:
            self.process = subprocess.Popen(
                [sys.executable, SERVICE], env=environment(settings), stdout=stdout, stdin=-3
            )

    def lines(self) -> list[Line]:
        whole = self._out.read_text().rpartition("\n")[0]
        return [_parse(line) for line in whole.splitlines()]

    def workers_since(self, term: int) -> set[int]:
        return {line.worker for line in self.lines() if line.term > term}

    def last_term(self) -> int:
        return max((line.term for line in self.lines()), default=0)

    def pid_that_prints(self) -> int:
        """Of a worker that has just begun."""
        seen: list[Line] = []

        def begun() -> bool:
            seen[:] = self.lines()[-1:]
            return bool(seen) and seen[0].what != "end"

        eventually(begun)
        return seen[0].pid

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


def _parse(line: str) -> Line:
    term, _, worker, _, pid, what = line.split(maxsplit=5)
    return Line(int(term), int(worker), int(pid), what)


def judge(lines: list[Line]) -> None:
    """Terms never go back, and a term is of one process: so no hold is interleaved with another."""
    assert [line.term for line in lines] == sorted(line.term for line in lines)
    printers: dict[int, int] = {}
    for line in lines:
        assert printers.setdefault(line.term, line.pid) == line.pid


@pytest.fixture(params=["sqlite", "redis", "etcd"])
def service(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Service]:
    store = f"sqlite:///{tmp_path / 'leases.db'}"
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        store = f"{server.url}?restart_wait=0&key={{name}}:{os.getpid()}"
    if request.param == "etcd":
        etcd: EtcdServer = request.getfixturevalue("own_etcd")
        store = etcd.store_url()
    running = Service(store, tmp_path / "printed")
    yield running
    if running.process.poll() is None:
        running.stop()


@pytest.mark.left(tiers.STORES, "sqlite")
def test_every_worker_gets_its_turn_and_none_prints_into_another_s(service: Service) -> None:
    eventually(lambda: service.workers_since(0) == {0, 1, 2, 3}, within=90)
    judge(service.lines())


@pytest.mark.left(tiers.LONG)
def test_a_killed_worker_is_restarted_and_its_lease_is_taken_over(service: Service) -> None:
    eventually(lambda: service.workers_since(0) == {0, 1, 2, 3}, within=90)
    killed = service.pid_that_prints()
    os.kill(killed, signal.SIGKILL)
    term = service.last_term()
    eventually(lambda: service.workers_since(term) == {0, 1, 2, 3}, within=90)
    lines = service.lines()
    assert killed not in {line.pid for line in lines if line.term > term}
    judge(lines)


@pytest.mark.left(tiers.STORES, "etcd")
def test_on_term_the_turn_ends_in_order_and_the_service_exits(service: Service) -> None:
    service.pid_that_prints()
    assert service.stop() == 0
    lines = service.lines()
    assert lines[-1].what == "end"
    judge(lines)
