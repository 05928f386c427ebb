"""Each command that runs things answers on its pages, tells systemd, and obeys the variable."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests import tiers
from tests.cli.tool import environment, incumbent, start
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
JOBS = """
[[job]]
name = "yearly"
schedule = "0 0 1 1 *"
command = ["true"]
"""
MODULE = """
import incumbent
jobs = incumbent.Jobs()
@jobs.every("300d")
def yearly(): pass
"""
WAYS = {
    "run": ("run", "job", "--", "sleep", "30"),
    "lead": ("lead", "job", "--", "sleep", "30"),
    "work": ("work", "job", "--workers", "2", "--", "sleep", "30"),
    "cron": ("cron", "jobs.toml"),
    "functions": ("cron", "jobs_here:jobs"),
}


@pytest.fixture(params=WAYS)
def words(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, ...]:
    monkeypatch.chdir(tmp_path)
    Path("jobs.toml").write_text(JOBS)
    Path("jobs_here.py").write_text(MODULE)
    return ("-s", f"sqlite:///{tmp_path}/leases.db", *WAYS[request.param])


@pytest.fixture
def manager(words: tuple[str, ...]) -> Iterator[socket.socket]:
    """What systemd hears."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind("notify")
        heard.settimeout(60)
        yield heard


@pytest.fixture
def running(words: tuple[str, ...], manager: socket.socket) -> Iterator[subprocess.Popen[str]]:
    settings = {"INCUMBENT_LISTEN": "127.0.0.1:0", "NOTIFY_SOCKET": "notify"}
    it = start(*words, env={**settings, "NOTIFY_SOCKET": str(Path("notify").resolve())})
    yield it
    it.terminate()
    it.communicate(timeout=60)


def url_of(running: subprocess.Popen[str]) -> str:
    assert running.stderr is not None
    for line in running.stderr:
        if found := re.search(r"http://[\d.:]+", line):
            return found[0]
    raise AssertionError("it does not say where it listens")


def status(url: str) -> int:
    try:
        with urlopen(url, timeout=30) as page:
            return int(page.status)
    except HTTPError as error:
        with error:
            return error.code


@pytest.mark.left(tiers.FORMS, "run", "work", "functions")
def test_each_command_answers_its_probes_and_tells_systemd(
    running: subprocess.Popen[str], manager: socket.socket
) -> None:
    url = url_of(running)
    assert status(f"{url}/healthz") == 200
    eventually(lambda: status(f"{url}/readyz") == 200)
    assert status(f"{url}/leader") == status(f"{url}/metrics") == 200
    heard: set[str] = set()
    while "READY=1" not in heard or not any(line.startswith("STATUS=") for line in heard):
        heard.add(manager.recv(4096).decode())
    running.terminate()
    while "STOPPING=1" not in heard:
        heard.add(manager.recv(4096).decode())


def test_a_cron_replica_counts_the_runs_of_its_commands(tmp_path: Path) -> None:
    ends = {"well": "true", "badly": "false"}
    jobs = (
        f'[[job]]\nname = "{name}"\nevery = "1s"\ncommand = ["{word}"]\n'
        for name, word in ends.items()
    )
    (tmp_path / "jobs.toml").write_text("".join(jobs))
    words = ("cron", tmp_path / "jobs.toml", "--listen", ":0")
    with start("-s", f"sqlite:///{tmp_path}/leases.db", *words) as replica:
        try:
            url = url_of(replica)

            def shown(series: str) -> bool:
                with urlopen(f"{url}/metrics", timeout=30) as page:
                    lines = page.read().decode().splitlines()
                values = [line.rpartition(" ")[2] for line in lines if line.startswith(series)]
                return bool(values) and float(values[0]) > 0

            for series in (
                'job_runs_total{name="well",state="ok"}',
                'job_runs_total{name="badly",state="failed"}',
                'job_run_seconds_count{name="badly"}',
                'job_last_success_timestamp_seconds{name="well"}',
                'job_next_run_timestamp_seconds{name="well"}',
            ):
                eventually(lambda series=series: shown(f"incumbent_{series}"))  # type: ignore[misc]
            assert not shown('incumbent_job_runs_total{name="well",state="failed"}')
        finally:
            replica.terminate()
            replica.communicate(timeout=60)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def probe(path: str, port: int) -> int:
    words = [sys.executable, str(ROOT / "deploy" / "probe.py"), path]
    env = environment({"INCUMBENT_LISTEN": f"127.0.0.1:{port}"})
    return subprocess.run(words, env=env, stderr=subprocess.DEVNULL, check=False).returncode


def test_the_images_probe_finds_a_cron_replica_healthy(tmp_path: Path) -> None:
    """deploy/Dockerfile sets the variable, whatever the command is."""
    (tmp_path / "jobs.toml").write_text(JOBS)
    port = free_port()
    store = f"sqlite:///{tmp_path}/leases.db"
    settings = {"INCUMBENT_LISTEN": f"127.0.0.1:{port}"}
    with start("-s", store, "cron", tmp_path / "jobs.toml", env=settings) as replica:
        try:
            eventually(lambda: probe("/healthz", port) == probe("/readyz", port) == 0)
            # What else is started in that container inherits the variable, and has no port.
            other = incumbent("-s", store, "run", "other", "--", "true", env=settings)
            assert other.returncode == 0
            assert "no pages of this run" in other.stderr
            asked = incumbent("-s", store, "run", "other", "--listen", f":{port}", "--", "true")
            assert asked.returncode == 64
        finally:
            replica.terminate()
            replica.communicate(timeout=60)


def test_the_page_of_a_service_answers_for_all_workers_and_ends_with_them(tmp_path: Path) -> None:
    words = ("work", "job", "--workers", "3", "--listen", ":0", "--", "sleep", "60")
    with start("-s", f"sqlite:///{tmp_path}/leases.db", *words) as service:
        try:
            url = url_of(service)
            eventually(lambda: status(f"{url}/leaderz") == 200)
            series = [f'incumbent_is_leader{{worker="w{number}"' for number in (1, 2, 3)]

            def shown() -> str:
                with urlopen(f"{url}/metrics", timeout=30) as page:
                    return str(page.read().decode())

            eventually(lambda: all(one in shown() for one in series))
            leads = re.compile(r"incumbent_is_leader\{.*?\} (\d)")
            eventually(lambda: sorted(leads.findall(shown())) == ["0", "0", "1"])
        finally:
            service.terminate()
        assert service.wait(60) == 0


def test_a_service_whose_port_is_used_runs_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        words = ("work", "job", "--workers", "1", "--listen", f":{port}", "--", "touch", "ran")
        done = incumbent("-s", f"sqlite:///{tmp_path}/leases.db", *words)
    assert done.returncode == 64
    assert "already in use" in done.stderr
    assert not (tmp_path / "leases.db").exists()


def test_readyz_of_a_waiting_run_follows_the_store(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/leases.db"
    with start("-s", store, "run", "job", "--", "sh", "-c", "echo on; sleep 60") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "on\n"
        words = ("run", "job", "--wait", "--listen", ":0", "--", "true")
        with start("-s", store, *words) as waiting:
            try:
                url = url_of(waiting)
                eventually(lambda: status(f"{url}/readyz") == 200)
                assert status(f"{url}/leaderz") == 503
            finally:
                waiting.terminate()
                holder.terminate()
                waiting.communicate(timeout=60)
                holder.communicate(timeout=60)
