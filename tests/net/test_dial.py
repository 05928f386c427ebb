"""Names and connections, blocking and on asyncio: made within a deadline, or not at all."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from incumbent import clock
from incumbent.net import aiowire
from incumbent.net.dial import connect, connect_unix, literal_address, resolve, run_bounded
from tests.support.pace import took

HERE = "127.0.0.1"


def soon(seconds: float = 5.0) -> float:
    return clock.now() + seconds


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server((HERE, 0)) as sock:
        yield sock


def port_of(sock: socket.socket) -> int:
    port: int = sock.getsockname()[1]
    return port


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1%eth0"])
def test_an_address_needs_no_resolver(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", None)
    assert literal_address(host) == host
    assert resolve(host, 1, soon()) == [host]
    assert asyncio.run(aiowire.resolve(host, 1)) == [host]


@pytest.mark.parametrize("host", ["localhost", "127.1", "1", "::g", "", "a%b", "h\0"])
def test_a_name_is_no_address(host: str) -> None:
    assert literal_address(host) is None


@pytest.mark.parametrize("host", ["x" * 64 + ".example", ".example"])
def test_what_cannot_be_a_name_is_an_os_error(host: str) -> None:
    with pytest.raises(OSError, match="no host name"):
        resolve(host, 1, soon())
    with pytest.raises(OSError, match="no host name"):
        asyncio.run(aiowire.resolve(host, 1))


def test_work_that_takes_too_long_is_left_alone() -> None:
    over, ended = threading.Event(), threading.Event()

    def work() -> None:
        over.wait(10)
        ended.set()

    began = clock.now()
    with pytest.raises(TimeoutError, match="too late"):
        run_bounded(work, soon(0.1), "too late")
    assert took(began) < 2
    over.set()
    assert ended.wait(30)


def test_an_error_of_the_work_is_the_callers() -> None:
    with pytest.raises(ZeroDivisionError):
        run_bounded(lambda: 1 // 0, soon(), "")


def test_where_no_thread_can_be_started_the_caller_works(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", refuse)
    assert run_bounded(threading.get_ident, soon(), "") == threading.get_ident()


def test_where_no_thread_can_be_started_a_loop_is_not_blocked_and_nothing_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_work: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(aiowire, "start_bare_thread", refuse)
    with pytest.raises(OSError, match="cannot be looked up: can't start new thread"):
        asyncio.run(aiowire.resolve("name.example", 1))


def test_the_next_address_is_tried(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("dial", "aiowire"):
        found = ["::1", "127.0.0.2", HERE]
        monkeypatch.setattr(f"incumbent.net.{module}.look_up", lambda *_, found=found: found)

    async def main() -> None:
        await (await aiowire.connect(Silent, "name.example", port_of(listener))).close()

    connect("name.example", port_of(listener), soon()).close()
    asyncio.run(main())


def test_an_address_that_never_answers_leaves_time_for_the_next_one(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead, port = "127.0.0.2", port_of(listener)
    for module in ("dial", "aiowire"):
        monkeypatch.setattr(f"incumbent.net.{module}.look_up", lambda *_: [dead, HERE])

    async def main() -> None:
        async with asyncio.timeout(3):
            made = await aiowire.connect(Silent, "name.example", port, until=soon(3))
        await made.close()

    # A full backlog: the kernel answers no further handshake.
    with socket.create_server((dead, port), backlog=0), socket.create_connection((dead, port)):
        connect("name.example", port, soon(3)).close()
        asyncio.run(main())


class Silent(asyncio.Protocol):
    """Has nothing to say."""

    def __init__(self) -> None:
        self._lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost.set_result(None)

    async def close(self) -> None:
        self._transport.close()
        await self._lost


def test_a_refused_connection_names_the_address(listener: socket.socket) -> None:
    port = port_of(listener)
    listener.close()
    with pytest.raises(ConnectionRefusedError, match=f"{HERE}.*{port}"):
        connect(HERE, port, soon())
    with pytest.raises(ConnectionRefusedError, match=f"{HERE}.*{port}"):
        asyncio.run(aiowire.connect(Silent, HERE, port))


def test_a_name_without_an_address_is_an_os_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("incumbent.net.dial.look_up", lambda *_: [])
    with pytest.raises(OSError, match="no address"):
        connect("name.example", 1, soon())


def test_after_an_error_of_a_signal_handler_no_other_address_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[object] = []

    def hangs(*given: Any) -> None:
        if given[1][1] != 1:
            raise OSError("the connection of a thread that another test left")
        tried.append(given)
        time.sleep(20)

    def handle(*_: object) -> None:
        raise TimeoutError("the handler's own")

    monkeypatch.setattr("incumbent.net.dial.resolve", lambda *_: [HERE, "127.0.0.2"])
    monkeypatch.setattr("incumbent.net.dial._connected", hangs)
    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(TimeoutError, match="the handler's own"):
            connect("name.example", 1, soon())
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(tried) == 1


def test_a_connection_that_nobody_accepts_ends_in_time() -> None:
    # A full backlog: the kernel answers no further handshake.
    with socket.create_server((HERE, 0), backlog=0) as full:
        waiting: list[socket.socket] = []
        began = clock.now()
        with pytest.raises(TimeoutError, match="no connection in time"):
            waiting.extend(connect(HERE, port_of(full), soon(0.2)) for _ in range(10))
        assert took(began) < 3
        for each in waiting:
            each.close()


def test_a_handshake_that_nobody_answers_ends_in_time(listener: socket.socket) -> None:
    context = ssl.create_default_context()
    began = clock.now()
    with pytest.raises(TimeoutError, match="no TLS handshake in time"):
        connect(HERE, port_of(listener), soon(0.2), tls=context)
    assert took(began) < 2
    gc.collect()


def on_asyncio(path: str) -> None:
    async def main() -> None:
        await (await aiowire.connect_unix(Silent, path)).close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "dial",
    [lambda path: connect_unix(path, soon()).close(), on_asyncio],
    ids=["blocking", "asyncio"],
)
def test_a_unix_socket(dial: Callable[[str], None], tmp_path: Path) -> None:
    path = str(tmp_path / "it.sock")
    with pytest.raises(FileNotFoundError):
        dial(path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        dial(path)
    with pytest.raises(ConnectionRefusedError):
        dial(path)


def test_silent_connections_are_probed(listener: socket.socket) -> None:
    with connect(HERE, port_of(listener), soon()) as sock:
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
