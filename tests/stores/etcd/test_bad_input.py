"""What cannot serve is named, with what to do; the command exits 69 and nothing was taken."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from incumbent.errors import ConfigError, StoreError, StoreUnavailable
from incumbent.stores.url import open_engine
from tests import tiers
from tests.cli.tool import incumbent
from tests.stores.etcd.world import party
from tests.support.etcd import EtcdServer
from tests.support.servers import free_port

pytestmark = pytest.mark.server

NOT_FOUND = (404, "text/plain; charset=utf-8", "404 page not found\n")


@contextmanager
def stand_in(version: dict[str, str] | None, answer: tuple[int, str, str]) -> Iterator[str]:
    """Something that answers HTTP, `version` at /version and `answer` to everything else."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if self.path == "/version" and version is not None:
                self._say(200, "application/json", json.dumps(version))
            else:
                self._say(*answer)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self._say(*answer)

        def _say(self, status: int, kind: str, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - their name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"etcd://127.0.0.1:{server.server_port}"
        server.shutdown()


def refused(url: str) -> StoreUnavailable:
    with party(url) as one, pytest.raises(StoreUnavailable) as caught:
        one.take()
    return caught.value


def exits_69(url: str, folder: Path) -> str:
    """The command says why in its last line, and did not run."""
    mark = folder / "ran"
    done = incumbent("-s", url, "run", "job", "--", "touch", str(mark))
    assert done.returncode == 69, done.stderr
    assert not mark.exists()
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("incumbent:")
    return done.stderr


def test_a_gateway_that_is_switched_off_is_named(tmp_path: Path) -> None:
    with EtcdServer(["--enable-grpc-gateway=false"]) as server:
        error = refused(server.store_url())
        assert error.permanent
        assert "enable-grpc-gateway" in str(error)
        assert "enable-grpc-gateway" in exits_69(server.store_url(), tmp_path)


def test_an_etcd_that_is_too_old_is_named(tmp_path: Path) -> None:
    with stand_in({"etcdserver": "3.3.27", "etcdcluster": "3.3.0"}, NOT_FOUND) as url:
        error = refused(url)
        assert error.permanent
        assert "older than etcd 3.4" in str(error)
        assert "older than etcd 3.4" in exits_69(url, tmp_path)


@pytest.mark.left(tiers.FORMS, "html", "list")
@pytest.mark.parametrize(
    "answer",
    [
        NOT_FOUND,
        (200, "text/html", "<html>welcome</html>"),
        (200, "application/json", "[]"),
        (200, "application/json", "{}"),
        (502, "text/html", "<html>bad gateway</html>"),
    ],
    ids=["404", "html", "list", "empty object", "502"],
)
def test_something_else_that_speaks_http_is_never_taken_for_a_grant(
    tmp_path: Path, answer: tuple[int, str, str]
) -> None:
    with stand_in(None, answer) as url:
        with party(url) as one, pytest.raises(StoreError):
            one.take()
        exits_69(url, tmp_path)


def test_nothing_that_listens_is_named_with_its_address(tmp_path: Path) -> None:
    port = free_port()
    error = refused(f"etcd://127.0.0.1:{port}")
    assert not error.permanent
    assert f"127.0.0.1:{port}" in str(error)
    assert str(port) in exits_69(f"etcd://127.0.0.1:{port}", tmp_path)


def test_a_wrong_password_exits_69_and_does_not_show(tmp_path: Path) -> None:
    with EtcdServer() as server:
        server.enable_auth()
        said = exits_69(server.store_url(login="root:open-wrong"), tmp_path)
        assert "password" in said
        assert "open-wrong" not in said


def test_a_frozen_server_exits_69_in_time(own_etcd: EtcdServer, tmp_path: Path) -> None:
    own_etcd.freeze()
    try:
        exits_69(own_etcd.store_url(), tmp_path)
    finally:
        own_etcd.thaw()


@pytest.mark.parametrize(
    "url",
    [
        "etcd://host:0",
        "etcd://host:99999",
        "etcd://host:port",
        "etcd://h1,,h2",
        "etcd://:password@host",
        "etcd://host,host",
        "etcd://host//prefix",
        "etcd://host?unknown=1",
        "etcd://host?ca=/x",
        "etcds://host?cert=/does/not/exist",
        "etcds://host?ca=/does/not/exist",
    ],
)
def test_a_url_that_cannot_work_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(ConfigError):
        engine = open_engine(url)
        engine.store()
