"""The pages and systemd's datagrams, on real sockets, when things go wrong."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit

import pytest

from incumbent import clock
from incumbent.errors import ConfigError
from incumbent.locks.leases import Lease
from incumbent.locks.lock import Lock
from incumbent.serve.health import start_health
from incumbent.serve.situation import Situation
from tests.support.faulty import FaultyEngine
from tests.support.needs import needs
from tests.support.pace import lasted, took
from tests.support.waiting import eventually

SECRET = "s3cret-s3cret-s3cret"


@pytest.fixture
def situation() -> Situation:
    return Situation("job", "node-1", "pgroup", ttl=15)


@pytest.fixture
def lease() -> Iterator[Lease]:
    held = Lock("job", store=FaultyEngine(), holder="node-1").acquire()
    yield held
    if held.valid:
        held.release()


@pytest.fixture
def url(situation: Situation) -> Iterator[str]:
    with start_health(situation, listen="127.0.0.1:0") as served:
        assert served is not None
        yield served


def get(url: str, token: str | None = None, method: str = "GET") -> tuple[int, str]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(url, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def connect(url: str) -> socket.socket:
    where = urlsplit(url)
    assert where.hostname is not None
    return socket.create_connection((where.hostname, where.port or 80), timeout=30)


# -- pages ------------------------------------------------------------------------------------


def test_the_pages_follow_the_situation_at_every_question(
    url: str, situation: Situation, lease: Lease
) -> None:
    assert get(f"{url}/healthz") == (200, "ok\n")
    assert get(f"{url}/readyz")[0] == 503
    situation.note_answered()
    situation.note_standby("node-2")
    assert get(f"{url}/readyz")[0] == 200
    assert get(f"{url}/leaderz")[0] == 503
    situation.note_leading(lease)
    assert get(f"{url}/leaderz")[0] == 200
    assert get(f"{url}/readyz")[0] == 200
    assert json.loads(get(f"{url}/leader")[1])["term"] == lease.fencing_token
    # Nobody tells the situation of this one.
    lease._claim.machine.note_gone("taken")
    assert get(f"{url}/leaderz")[0] == 503
    assert json.loads(get(f"{url}/leader?x=1")[1])["leading"] is False
    assert "incumbent_store_up" in get(f"{url}/metrics")[1]
    assert get(f"{url}/")[0] == 404
    situation.note_stopping()
    assert get(f"{url}/readyz")[0] == 503


def test_healthz_fails_while_the_loop_hangs(url: str, situation: Situation) -> None:
    situation.pulse(clock.now() - 6)
    status, body = get(f"{url}/healthz")
    assert status == 503
    assert "overdue" in body
    situation.pulse(clock.now() + 10)
    assert get(f"{url}/healthz")[0] == 200


def test_head_has_the_same_headers_and_no_body(url: str) -> None:
    where = urlsplit(url)
    link = HTTPConnection(where.hostname or "", where.port, timeout=30)
    link.request("HEAD", "/healthz")
    response: HTTPResponse = link.getresponse()
    assert (response.status, response.read()) == (200, b"")
    assert response.headers["Content-Length"] == "3"
    assert response.headers["Connection"] == "close"
    assert response.headers["Server"] == "incumbent"
    link.close()


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed_over_http(url: str, method: str) -> None:
    assert get(f"{url}/healthz", method=method)[0] == 405


def raw(url: str, request: bytes) -> bytes:
    with connect(url) as link:
        link.sendall(request)
        said = b""
        try:
            while more := link.recv(4096):
                said += more
        except ConnectionError:
            pass
        return said


def test_nonsense_and_endless_heads_end_the_connection(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert b" 400 " in raw(url, b"\x00\xff nonsense nonsense nonsense\r\n\r\n").split(b"\r\n")[0]
    assert raw(url, b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 20_000) == b""
    assert (
        raw(url, b"GET /healthz HTTP/1.1\r\n\r\nGET /leader HTTP/1.1\r\n\r\n").count(b"HTTP/1.1")
        == 1
    )
    assert get(f"{url}/healthz")[0] == 200
    assert capfd.readouterr() == ("", "")


def test_a_peer_that_drips_is_cut_off_after_two_seconds(url: str) -> None:
    began = clock.now()
    with connect(url) as link:
        link.settimeout(0.1)
        while took(began) < 8:
            try:
                link.sendall(b"x")
                if link.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
    assert lasted(began, 1.5, 4)


def test_a_peer_that_never_reads_is_cut_off_after_two_seconds(
    url: str, situation: Situation
) -> None:
    situation.note_standby("x" * 10_000_000)
    began = clock.now()
    with connect(url) as link:
        link.sendall(b"GET /leader HTTP/1.1\r\n\r\n")
        link.recv(1)
        time.sleep(4)
        size = 0
        while data := link.recv(1 << 20):
            size += len(data)
    assert size < 10_000_000
    assert took(began) < 8


# -- where it listens -------------------------------------------------------------------------


def test_the_url_names_the_port_that_the_system_chose(url: str) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:[1-9]\d*", url)
    assert get(f"{url}/healthz")[0] == 200


def test_it_listens_on_ipv6_too(situation: Situation) -> None:
    with start_health(situation, listen="[::1]:0") as url:
        assert url is not None
        assert url.startswith("http://[::1]:")
        assert get(f"{url}/healthz")[0] == 200


def test_the_ipv6_wildcard_serves_ipv4_too(situation: Situation, tmp_path: Path) -> None:
    with start_health(situation, listen="[::]:0", token_file=str(token_in(tmp_path))) as url:
        port = urlsplit(url or "").port
        assert get(f"http://127.0.0.1:{port}/healthz")[0] == 200
        assert get(f"http://[::1]:{port}/healthz")[0] == 200


def test_a_used_port_is_named(situation: Situation) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with (
            pytest.raises(ConfigError, match=f"port {port} .*already in use"),
            start_health(situation, listen=f"127.0.0.1:{port}"),
        ):
            pass
    assert situation.view().role == "starting"


def test_the_port_is_free_again_at_once_after_the_end(situation: Situation) -> None:
    with start_health(situation, listen=":0") as url:
        get(f"{url}/healthz")
        port = urlsplit(url or "").port
    began = clock.now()
    with start_health(Situation("job", "h"), listen=f":{port}"):
        pass
    assert took(began) < 5


def token_in(folder: Path) -> Path:
    token = folder / "token"
    token.write_text(SECRET + "\n")
    token.chmod(0o400)
    return token


def test_without_a_token_other_hosts_get_the_probes_alone(situation: Situation) -> None:
    situation.note_answered()
    with start_health(situation, listen="0.0.0.0:0") as served:
        url = f"http://127.0.0.1:{urlsplit(served or '').port}"
        assert get(f"{url}/healthz")[0] == 200
        assert get(f"{url}/readyz")[0] == 200
        for path in ("/leader", "/leaderz", "/metrics", "/", "/healthz/", "//healthz"):
            status, body = get(url + path, SECRET)
            assert status == 403
            assert "--token-file" in body


def test_a_token_without_an_address_is_a_mistake(situation: Situation, tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match="needs --listen"),
        start_health(situation, token_file=str(token_in(tmp_path))),
    ):
        pass


def test_a_public_page_asks_for_the_token_except_from_probes(
    situation: Situation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    situation.note_answered()
    token = str(token_in(tmp_path))
    with start_health(situation, listen="0.0.0.0:0", token_file=token) as served:
        url = f"http://127.0.0.1:{urlsplit(served or '').port}"
        assert get(f"{url}/healthz")[0] == 200
        assert get(f"{url}/readyz")[0] == 200
        for path in ("/leader", "/leaderz", "/metrics", "/", "/healthz/"):
            for wrong in (None, "wrong", SECRET[:-1]):
                status, body = get(url + path, wrong)
                assert status == 401
                assert "`Authorization: Bearer TOKEN`" in body
                assert SECRET not in body
        assert get(f"{url}/leader", SECRET)[0] == 200
        assert get(f"{url}/metrics", SECRET)[0] == 200
    assert SECRET not in caplog.text


# -- systemd ----------------------------------------------------------------------------------


class Manager:
    """The service manager's end of NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.settimeout(0.01)
        self.heard: list[str] = []

    def hears(self, line: str) -> bool:
        self.listen()
        return line in self.heard

    def listen(self) -> None:
        try:
            while True:
                self.heard += self._socket.recv(4096).decode().splitlines()
        except TimeoutError:
            pass

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    address = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    monkeypatch.delenv("WATCHDOG_PID", raising=False)
    found = Manager(address)
    yield found
    found.close()


def test_systemd_hears_ready_the_transitions_and_the_end(
    manager: Manager, situation: Situation, lease: Lease
) -> None:
    with start_health(situation):
        eventually(lambda: manager.hears("STATUS=starting"))
        assert "READY=1" not in manager.heard
        situation.note_answered()
        situation.note_standby("node-2")
        eventually(lambda: manager.hears("STATUS=standing by, led by node-2"))
        assert manager.heard.count("READY=1") == 1
        situation.note_leading(lease)
        eventually(lambda: manager.hears(f"STATUS=leading job, term {lease.fencing_token}"))
    assert manager.hears("STOPPING=1")
    assert manager.heard.count("READY=1") == 1
    assert "WATCHDOG=1" not in manager.heard


def test_systemd_hears_signs_of_life_only_while_the_loop_turns(
    manager: Manager, situation: Situation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "100000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    with start_health(situation):
        eventually(lambda: manager.hears("WATCHDOG=1"))
        situation.pulse(clock.now() - 60)

        def is_silent() -> bool:
            manager.listen()
            manager.heard.clear()
            # Five of its intervals, in which a sign would be due ten times.
            time.sleep(0.5)
            return not manager.hears("WATCHDOG=1")

        # One may have been on its way.
        eventually(is_silent)
        situation.pulse(clock.now() + 60)
        eventually(lambda: manager.hears("WATCHDOG=1"))


def test_another_processs_signs_of_life_are_not_ours(
    manager: Manager, situation: Situation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    with start_health(situation):
        situation.note_standby(None)
        eventually(lambda: manager.hears("READY=1"))
    manager.listen()
    assert "WATCHDOG=1" not in manager.heard


@needs(sys.platform == "linux", "abstract sockets are Linux's")
def test_systemds_abstract_sockets_are_understood(
    situation: Situation, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"incumbent-test-{os.getpid()}-{time.monotonic_ns()}"
    manager = Manager(f"\0{name}")
    monkeypatch.setenv("NOTIFY_SOCKET", f"@{name}")
    with start_health(situation):
        situation.note_standby(None)
        eventually(lambda: manager.hears("READY=1"))
    manager.close()


def test_a_service_manager_that_is_gone_stops_nobody(
    situation: Situation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "gone"))
    with start_health(situation):
        situation.note_standby(None)


def test_without_listening_no_http_server_is_loaded() -> None:
    script = (
        "import sys, incumbent.serve.health as it\n"
        "from incumbent.serve.situation import Situation\n"
        "with it.start_health(Situation('a', 'b')): print(*sys.modules)"
    )
    environ = {key: value for key, value in os.environ.items() if key != "NOTIFY_SOCKET"}
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environ
    ).stdout.split()
    assert not {"incumbent.serve.http", "asyncio"} & set(loaded)
