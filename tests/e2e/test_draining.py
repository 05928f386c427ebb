"""A leader that was asked to end says so at once, and not only when its command has ended."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.cli.tool import incumbent, start
from tests.support.waiting import eventually

# It begins to drain when it is asked to, and ends when the test says so.
DRAINS = "trap 'touch asked' TERM; touch began; while ! [ -e stop ]; do sleep 0.02; done"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def manager(here: Path) -> Iterator[socket.socket]:
    """What systemd hears."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind("notify")
        heard.settimeout(60)
        yield heard


@pytest.fixture
def leader(
    request: pytest.FixtureRequest, here: Path, manager: socket.socket
) -> Iterator[subprocess.Popen[str]]:
    ttl = getattr(request, "param", "9")
    words = ("lead", "job", "--ttl", ttl, "--grace", "3", "--listen", "127.0.0.1:0")
    line = ("-s", f"sqlite:///{here}/leases.db", *words, "--", "sh", "-c", DRAINS)
    it = start(*line, env={"NOTIFY_SOCKET": str(here / "notify")})
    yield it
    (here / "stop").touch()
    it.terminate()
    it.communicate(timeout=60)


def until_heard(manager: socket.socket, line: str) -> None:
    while manager.recv(4096).decode() != line:
        pass


def readiness(url: str) -> int:
    try:
        with urlopen(f"{url}/readyz", timeout=30) as page:
            return int(page.status)
    except HTTPError as error:
        with error:
            return error.code


def url_of(leader: subprocess.Popen[str]) -> str:
    assert leader.stderr is not None
    for line in leader.stderr:
        if found := re.search(r"http://[\d.:]+", line):
            return found[0]
    raise AssertionError("it does not say where it listens")


def test_readyz_and_systemd_know_while_the_command_drains(
    here: Path, manager: socket.socket, leader: subprocess.Popen[str]
) -> None:
    url = url_of(leader)
    eventually((here / "began").exists)
    eventually(lambda: readiness(url) == 200)
    leader.terminate()
    until_heard(manager, "STOPPING=1")
    assert readiness(url) == 503
    eventually((here / "asked").exists)
    assert leader.poll() is None
    (here / "stop").touch()
    assert leader.wait(60) == 0


def test_term_is_obeyed_also_when_the_term_ends_for_another_reason(
    here: Path, manager: socket.socket, leader: subprocess.Popen[str]
) -> None:
    eventually((here / "began").exists)
    asks = start("-s", f"sqlite:///{here}/leases.db", "resign", "job")
    eventually((here / "asked").exists)
    leader.send_signal(signal.SIGTERM)
    until_heard(manager, "STOPPING=1")
    (here / "stop").touch()
    assert leader.wait(60) == 0
    asks.communicate(timeout=60)


@pytest.mark.parametrize("leader", ["60"], indirect=True)
def test_a_long_end_is_shown_to_the_others(here: Path, leader: subprocess.Popen[str]) -> None:
    eventually((here / "began").exists)
    leader.terminate()
    line = ("-s", f"sqlite:///{here}/leases.db", "status", "job", "--json")
    # Long before a renewal would be due.
    eventually(lambda: "stopping" in incumbent(*line).stdout, within=8)
