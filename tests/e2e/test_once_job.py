"""The job of the examples runs once in a fleet, and its next slot after its holder was killed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests import tiers
from tests.cli.tool import incumbent, start
from tests.e2e.fleet import Fleet, Place
from tests.support.servers import ROOT
from tests.support.waiting import eventually

INSTANCES, SPREAD = 5, 2.0
PATHS = ("/customers", "/invoices", "/stock")


@dataclass
class Endpoint:
    """A local server that counts calls and notes the terms that they carry."""

    port: int = 0
    calls: list[str] = field(default_factory=list)
    terms: set[str | None] = field(default_factory=set)


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    known = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known.calls.append(self.path)
            known.terms.add(self.headers.get("X-Lease-Term"))
            time.sleep(0.2)
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - their name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        known.port = server.server_port
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield known
        server.shutdown()


def job(endpoint: Endpoint) -> list[str]:
    urls = [f"--url=http://127.0.0.1:{endpoint.port}{path}" for path in PATHS]
    return [sys.executable, str(ROOT / "examples" / "sync.py"), *urls]


def start_fleet(place: Place, command: list[str]) -> list[subprocess.Popen[str]]:
    fleet = []
    for number in range(INSTANCES):
        # On a busy machine the store may not answer within the time of one try.
        options = ("--once-per", "12h", "--wait=20s", "--holder", f"instance-{number}")
        fleet.append(start("-s", place.url, "run", "nightly", *options, "--", *command))
        time.sleep(SPREAD / (INSTANCES - 1))
    return fleet


@pytest.mark.left(tiers.STORES, "redis")
def test_of_five_instances_one_calls_and_four_say_who_did(place: Place, endpoint: Endpoint) -> None:
    fleet = start_fleet(place, job(endpoint))
    said = [instance.communicate()[1] for instance in fleet]
    codes = [instance.returncode for instance in fleet]
    assert sorted(codes) == [0, 75, 75, 75, 75], said
    assert sorted(endpoint.calls) == sorted(PATHS)
    assert len(endpoint.terms) == 1
    assert None not in endpoint.terms
    who = f"instance-{codes.index(0)}"
    skipped = [lines for lines, code in zip(said, codes, strict=True) if code == 75]
    assert all(f"by {who}" in lines.splitlines()[-1] for lines in skipped)


@pytest.mark.left(tiers.LONG)
def test_the_next_slot_runs_after_its_holder_was_killed(place: Place, fleet: Fleet) -> None:
    began = time.monotonic()
    killed = fleet.begin("--once-per", "12s")
    killed.kill()
    eventually(lambda: not fleet.worker_lives())
    assert (
        incumbent("-s", place.url, "run", "job", "--once-per", "12s", "--", "true").returncode == 75
    )
    fleet.begin("--once-per", "12s", "--wait=40")
    assert time.monotonic() - began > 11.9
    fleet.judge()


@pytest.mark.left(tiers.STORES, "postgresql")
def test_a_lock_inside_the_command_fails_closed(place: Place, tmp_path: Path) -> None:
    script = "import incumbent; incumbent.Lock('other').acquire()"
    env = {"INCUMBENT_STORE": place.url, "XDG_STATE_HOME": str(tmp_path)}
    done = incumbent("run", "job", "--wait=20s", "--", sys.executable, "-c", script, env=env)
    assert done.returncode == 1
    assert "ConfigError: the store is withheld" in done.stderr
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
