"""The listener's own: probes find a place whatever others do, and what becomes of connections."""

from __future__ import annotations

import gc
import resource
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

import pytest

from incumbent.serve import http
from incumbent.serve.http import PageServer
from incumbent.serve.pages import OPEN_PATHS, TEXT, Page, Routes
from tests import tiers
from tests.support.waiting import eventually

LARGE = Page(200, TEXT, b"x" * 20_000_000)
ROUTES: Routes = {
    **dict.fromkeys(OPEN_PATHS, lambda _: Page(200, TEXT, "ok\n")),
    "/large": lambda _: LARGE,
    "/metrics": lambda _: Page(200, TEXT, "up 1\n"),
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PageServer]:
    """One with few places, so that few peers take all of them."""
    monkeypatch.setattr(http, "_READING", 8)
    monkeypatch.setattr(http, "_ANSWERS", 4)
    # Who is dropped has made room for others: a busy machine is slower than what peers are given.
    monkeypatch.setattr(http, "_TIMEOUT", 6.0)
    served = PageServer(ROUTES, "127.0.0.1:0", None)
    yield served
    served.close()


def connect(server: PageServer) -> socket.socket:
    where = urlsplit(server.url)
    return socket.create_connection((where.hostname or "", where.port or 0), timeout=30)


def asks(server: PageServer, path: str) -> int:
    """The status of the answer; 0 if the connection is dropped, or silent for very long."""
    where = urlsplit(server.url)
    link = HTTPConnection(where.hostname or "", where.port, timeout=30)
    try:
        link.request("GET", path)
        return link.getresponse().status
    except (OSError, HTTPException):
        return 0
    finally:
        link.close()


@contextmanager
def besieged(server: PageServer, peers: int, sent: bytes) -> Iterator[Callable[[], int]]:
    """So many peers send this, wait until they are dropped, and come again. Counts them."""
    over, came = threading.Event(), [0]

    def peer() -> None:
        while not over.is_set():
            with suppress(OSError), connect(server) as link:
                link.sendall(sent)
                came[0] += 1
                link.settimeout(3)
                # Not more: a peer that does not read.
                link.recv(1)
                over.wait(3 if b"/large" in sent else 0)
            over.wait(0.02)

    threads = [threading.Thread(target=peer, daemon=True) for _ in range(peers)]
    for thread in threads:
        thread.start()
    eventually(lambda: came[0] >= peers)
    yield lambda: came[0]
    over.set()
    for thread in threads:
        thread.join(10)


NUISANCES = {
    "silence": b"",
    "half a head": b"GET /healthz HTTP/1.1\r\nX: ",
    "a body that does not come": b"POST /large HTTP/1.1\r\nContent-Length: 9000\r\n\r\nx",
    "no reading": b"GET /large HTTP/1.1\r\n\r\n",
    "a probe and half of the next": b"GET /healthz HTTP/1.1\r\n\r\nGET /hea",
}


@pytest.mark.left(tiers.FORMS, "half a head", "no reading", "silence")
@pytest.mark.parametrize("sent", NUISANCES.values(), ids=NUISANCES)
def test_probes_are_answered_beside_peers_that_take_every_place(
    server: PageServer, sent: bytes
) -> None:
    with besieged(server, 24, sent):
        for path in OPEN_PATHS * 10:
            assert asks(server, path) == 200


def test_answers_that_are_not_taken_are_few_and_keep_no_probe_waiting(server: PageServer) -> None:
    with ExitStack() as stack:
        readers = [stack.enter_context(connect(server)) for _ in range(4)]
        for reader in readers:
            reader.sendall(NUISANCES["no reading"])
            reader.recv(1)
        assert asks(server, "/metrics") == 503
        assert asks(server, "/readyz") == 200
        assert asks(server, "/nothing") == 404
        eventually(lambda: asks(server, "/metrics") == 200)


def test_the_oldest_unfinished_head_goes_first(server: PageServer) -> None:
    with ExitStack() as stack:
        peers = []
        for _ in range(8):
            peers.append(stack.enter_context(connect(server)))
            peers[-1].sendall(NUISANCES["half a head"])
        # An answer is only given once those before it were accepted.
        assert asks(server, "/healthz") == 200
        eventually(lambda: is_closed(peers[0]))
        assert not any(map(is_closed, peers[1:]))
        peers[7].sendall(b"y\r\n\r\n")
        assert peers[7].recv(12) == b"HTTP/1.1 200"


def is_closed(link: socket.socket) -> bool:
    link.setblocking(False)
    try:
        return link.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    finally:
        link.settimeout(30)


def test_a_process_that_may_open_few_files_keeps_some_for_its_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    monkeypatch.setattr(http, "_TIMEOUT", 60.0)
    served = PageServer(ROUTES, "127.0.0.1:0", None)
    with ExitStack() as stack:
        stack.callback(served.close)
        peers = [stack.enter_context(connect(served)) for _ in range(40)]
        assert asks(served, "/healthz") == 200
        eventually(lambda: sum(map(is_closed, peers)) == 40 + 1 - 64 // 4)


def test_connections_that_come_as_it_closes_are_closed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: left.append(str(found.exc_value)))
    for _ in range(30):
        server = PageServer({}, "127.0.0.1:0", None)
        with ExitStack() as clients:
            for _ in range(6):
                clients.enter_context(connect(server))
            server.close()
    gc.collect()
    assert left == []


def test_probes_and_refusals_that_are_not_taken_leave_the_places_of_the_pages(
    server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ROUTES, "/healthz", lambda _: LARGE)
    monkeypatch.setitem(ROUTES, "/refused", lambda _: LARGE._replace(status=403))
    with ExitStack() as stack:
        for path in ("healthz", "refused") * 4:
            reader = stack.enter_context(connect(server))
            reader.sendall(f"GET /{path} HTTP/1.1\r\n\r\n".encode())
            reader.recv(1)
        assert asks(server, "/metrics") == 200
