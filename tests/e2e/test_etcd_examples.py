"""The examples of the etcd lesson run, and show what they say."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from tests import tiers
from tests.cli.tool import environment
from tests.support.etcd import EtcdServer
from tests.support.etcd_cluster import EtcdCluster
from tests.support.pace import BUSY
from tests.support.servers import free_port
from tests.support.waiting import eventually

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(example: str, store: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, EXAMPLES / example],
        env=environment({"INCUMBENT_STORE": store, **settings}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.left(tiers.LONG)
def test_the_lock_is_taken_by_method_by_with_and_for_longer_than_its_ttl(
    own_etcd: EtcdServer,
) -> None:
    done = run("etcd_lock.py", own_etcd.store_url(), SECONDS_OF_WORK="4.5")
    assert done.returncode == 0, done.stderr
    said = [line.split(" ", 1)[1] for line in done.stdout.splitlines()]
    assert [line.split(":")[0] for line in said] == [
        "by method",
        "by with",
        "the other one is told who holds it",
        "for long",
        "renewed by hand",
    ]
    terms = [
        int(line.split("term ")[1].split(",")[0].split()[0]) for line in said if "term" in line
    ]
    assert terms == sorted(set(terms))


def test_two_of_them_take_turns(own_etcd: EtcdServer) -> None:
    settings = environment({"INCUMBENT_STORE": own_etcd.store_url(), "SECONDS_OF_WORK": "0.3"})
    both = [
        subprocess.Popen(
            [sys.executable, EXAMPLES / "etcd_lock.py"], env=settings, stdout=-1, text=True
        )
        for _ in range(2)
    ]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert all("for long" in text for text in said)


def test_without_a_server_the_examples_say_so_and_take_nothing() -> None:
    done = run("etcd_lock.py", f"etcd://127.0.0.1:{free_port()}", SECONDS_TO_WAIT="1")
    assert done.returncode == 69
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


# -- the client that carries on


@dataclass(frozen=True)
class Said:
    at: float
    what: str
    term: int


class Client:
    """The example, running, and what it printed."""

    def __init__(self, store: str, out: Path) -> None:
        self._out = out
        settings = {"INCUMBENT_STORE": store, "STEP": "0.05", "SECONDS": "60"}
        with out.open("wb") as stdout:
            self.process = subprocess.Popen(
                [sys.executable, EXAMPLES / "etcd_failover.py"],
                env=environment(settings),
                stdout=stdout,
                stdin=subprocess.DEVNULL,
            )

    @property
    def steps(self) -> list[Said]:
        whole = self._out.read_text().rpartition("\n")[0]
        words = [line.split(maxsplit=2) for line in whole.splitlines()]
        return [Said(float(at), what, int(term)) for at, what, term in words if what == "step"]

    def steps_since(self, instant: float) -> list[Said]:
        return [step for step in self.steps if step.at > instant]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(60)


@contextmanager
def client(store: str, out: Path) -> Iterator[Client]:
    running = Client(store, out)
    try:
        eventually(lambda: len(running.steps) > 5)
        yield running
    finally:
        running.stop()


@pytest.mark.left(tiers.LONG)
def test_the_client_carries_on_in_its_term_when_its_server_dies(tmp_path: Path) -> None:
    with EtcdCluster() as cluster:
        first = cluster.followers[0]
        with client(cluster.store_url(first), tmp_path / "said") as running:
            term = running.steps[0].term
            since = time.monotonic()
            first.kill()
            # Longer than its ttl: what goes on was renewed at another server.
            eventually(lambda: running.steps_since(since + 6))
            steps = running.steps_since(since)
            assert {step.term for step in steps} == {term}
            assert max(later.at - sooner.at for sooner, later in pairwise(steps)) < 1.0 + BUSY


@pytest.mark.left(tiers.LONG)
def test_the_client_stops_inside_the_lease_without_a_majority_and_comes_back(
    tmp_path: Path,
) -> None:
    with EtcdCluster() as cluster, client(cluster.store_url(), tmp_path / "said") as running:
        term = running.steps[0].term
        since = time.monotonic()
        for member in cluster.members[:2]:
            member.kill()
        time.sleep(6)
        assert all(step.at - since < 5 for step in running.steps_since(since))
        healed = time.monotonic()
        for member in cluster.members[:2]:
            member.launch()
        eventually(lambda: running.steps_since(healed), within=40)
        assert running.steps_since(healed)[0].term > term


def test_the_client_waits_out_a_cluster_that_grants_nothing_yet_and_does_not_spin(
    own_etcd: EtcdServer,
) -> None:
    store = own_etcd.store_url(restart_wait="3600s")
    done = run("etcd_failover.py", store, SECONDS="2")
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert all("nobody answers" in line and "restart_wait=0" in line for line in said)
    assert 1 <= len(said) <= 4
