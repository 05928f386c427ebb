"""The once-job of the examples calls every endpoint and says what came of it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

SYNC = Path(__file__).resolve().parents[2] / "examples" / "sync.py"


@dataclass
class Endpoint:
    """A local HTTP server; the path of a request is the status it answers with."""

    port: int = 0
    calls: list[str] = field(default_factory=list)
    terms: list[str | None] = field(default_factory=list)

    def url(self, status: int) -> str:
        return f"http://127.0.0.1:{self.port}/{status}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.calls.append(f"{request.command} {request.path}")
        self.terms.append(request.headers.get("X-Lease-Term"))
        request.send_response(int(request.path.removeprefix("/")))
        request.send_header("Content-Length", "0")
        request.end_headers()


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    known = Endpoint()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known.answer(self)

        def do_POST(self) -> None:
            known.answer(self)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - their name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        known.port = server.server_port
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield known
        server.shutdown()


def sync(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return subprocess.run(
        [sys.executable, SYNC, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=clean | environment,
    )


def test_all_well_exits_zero_and_reports_each(endpoint: Endpoint) -> None:
    done = sync("--url", endpoint.url(200), "--url", endpoint.url(204))
    assert done.returncode == 0
    assert [line.split()[:3] for line in done.stdout.splitlines()] == [
        ["ok", endpoint.url(200), "200"],
        ["ok", endpoint.url(204), "204"],
    ]


def test_one_failing_endpoint_does_not_stop_the_others(endpoint: Endpoint) -> None:
    done = sync("--url", endpoint.url(500), "--url", endpoint.url(200))
    assert done.returncode == 1
    assert endpoint.calls == ["GET /500", "GET /200"]
    assert f"FAIL {endpoint.url(500)} 500" in done.stdout


def test_an_endpoint_that_is_not_there_does_not_stop_the_others(endpoint: Endpoint) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        done = sync("--url", gone, "--url", endpoint.url(200))
    assert done.returncode == 1
    assert f"FAIL {gone} [Errno 111] Connection refused" in done.stdout
    assert endpoint.calls == ["GET /200"]


def test_an_endpoint_that_never_answers_fails_in_time(endpoint: Endpoint) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        done = sync("--timeout", "2", "--url", url, "--url", endpoint.url(200))
    assert done.returncode == 1
    assert f"FAIL {url} timed out" in done.stdout
    assert endpoint.calls == ["GET /200"]


def test_a_file_gives_one_url_a_line(endpoint: Endpoint, tmp_path: Path) -> None:
    urls = tmp_path / "urls"
    urls.write_text(f"# ours\n\n  {endpoint.url(200)}\n{endpoint.url(201)}\n")
    assert sync("--file", urls, "--method", "POST").returncode == 0
    assert endpoint.calls == ["POST /200", "POST /201"]


def test_the_term_is_said_and_sent_along(endpoint: Endpoint) -> None:
    done = sync("--url", endpoint.url(200), INCUMBENT_LEASE_TERM="7", INCUMBENT_LEASE_NAME="job")
    assert done.stdout.startswith("lease job term 7\n")
    assert endpoint.terms == ["7"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--file", os.devnull],
        ["--file", "/does/not/exist"],
        ["--url", "file:///etc/passwd"],
        ["--url", "http://"],
        ["--url", "http://127.0.0.1/", "--timeout", "nan"],
        ["--url", "http://127.0.0.1/", "--method", "DELETE"],
    ],
    ids=["nothing", "no-file", "other-scheme", "no-host", "timeout", "method"],
)
def test_nothing_sensible_to_call_is_a_usage_error(arguments: list[str]) -> None:
    done = sync(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "sync: error:" in done.stderr


def test_without_a_list_it_calls_the_endpoints_beside_it() -> None:
    done = sync("--timeout", "5")
    assert [line.split()[1] for line in done.stdout.splitlines()] == [
        "http://127.0.0.1:8000/",
        "http://127.0.0.1:8000/README.md",
    ]
