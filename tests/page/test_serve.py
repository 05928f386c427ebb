"""`incumbent serve`, and the page beside the pages of an instance."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests import tiers
from tests.cli.tool import incumbent, start
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


@contextmanager
def started(
    *words: str | Path, env: Mapping[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that listens, and its URL."""
    with start(*words, env=env) as process:
        assert process.stderr is not None
        try:
            found = re.search(r"http://\S+", process.stderr.readline())
            assert found is not None
            yield process, found[0]
        finally:
            process.kill()


def page(url: str) -> str:
    with urlopen(url, timeout=60) as response:
        text: str = response.read().decode()
    return text


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_it_serves_the_page_until_it_is_told_to_end(
    tmp_path: Path, signum: signal.Signals, code: int
) -> None:
    store = f"sqlite://{tmp_path}/leases.db"
    assert (
        incumbent("-s", store, "run", "nightly", "--once-per", "1d", "--", "true").returncode == 0
    )
    with started("-s", store, "serve", "--listen", "127.0.0.1:0") as (process, url):
        assert "nightly" in page(url)
        assert page(f"{url}/healthz") == "ok\n"
        process.send_signal(signum)
        assert process.wait(60) == code


@pytest.mark.left(tiers.FORMS, "0.0.0.0:0-False*")
@pytest.mark.parametrize(
    ("listen", "guarded", "said"),
    [
        ("127.0.0.1:0", False, "everybody on this host may look; to act needs --token-file"),
        ("0.0.0.0:0", False, "without --token-file it serves /healthz and /readyz alone"),
        ("0.0.0.0:0", True, "who has a token of --token-file may look and act"),
    ],
)
def test_it_says_at_the_start_who_may_look_and_act(
    tmp_path: Path, listen: str, guarded: bool, said: str
) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    token.chmod(0o600)
    words = ("--token-file", token) if guarded else ()
    store = f"sqlite://{tmp_path}/leases.db"
    with started("-s", store, "serve", "--listen", listen, *words) as (process, _):
        assert process.stderr is not None
        assert said in process.stderr.readline()


def test_it_tells_systemd_that_it_listens_lives_and_ends(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "100000"}
        words = ("-s", f"sqlite://{tmp_path}/x.db", "serve", "--listen", "127.0.0.1:0")
        with started(*words, env=env) as (process, url):
            missing = {"READY=1", f"STATUS=the page is at {url}", "WATCHDOG=1"}
            while missing:
                missing.discard(manager.recv(4096).decode())
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            while manager.recv(4096) != b"STOPPING=1":
                pass


def test_an_instance_that_listens_serves_it_too(tmp_path: Path) -> None:
    store = f"sqlite://{tmp_path}/leases.db"
    with started(
        "-s",
        store,
        "lead",
        "telnet",
        "--holder",
        "node-7",
        "--listen",
        "127.0.0.1:0",
        "--",
        "sleep",
        "60",
    ) as (_, url):
        eventually(lambda: "node-7" in page(url))


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--listen", "nowhere", "nowhere"),
        ("--token-file", "missing", "missing"),
        ("-s", "http://x", "scheme"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, flag: str, value: str, said: str) -> None:
    done = incumbent("-s", f"sqlite://{tmp_path}/x.db", "serve", flag, value)
    assert done.returncode == 64
    assert said in done.stderr
