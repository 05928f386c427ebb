"""A connection keeps the deadline, and each answer to its request, whatever the other end does."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from incumbent import clock
from incumbent.net import wire
from incumbent.net.aiowire import AsyncStream
from incumbent.net.dial import _SLICE, wait_ready
from incumbent.net.pool import Broken, Pool


class Trickle:
    """A socket that takes a byte in each tenth of a second."""

    def __init__(self) -> None:
        self.now = 100.0
        self.taken = b""

    def send(self, data: bytes) -> int:
        self.now += 0.1
        self.taken += data[:1]
        return 1

    def recv(self, size: int) -> bytes:
        return b""

    def settimeout(self, seconds: float | None) -> None:
        pass

    def close(self) -> None:
        pass


def test_an_end_that_takes_little_at_a_time_is_given_up_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sock: Any = Trickle()
    monkeypatch.setattr(wire, "_now", lambda: sock.now)
    one = wire.BlockingWire(sock)
    with pytest.raises(Broken) as caught:
        one.send(b"request" * 100, until=sock.now + 1.0)
    assert (caught.value.sent, caught.value.late) == (True, True)
    assert len(sock.taken) < 15


class Nowhere(asyncio.Transport):
    """A transport that leads nowhere."""

    def abort(self) -> None:
        pass


def test_an_idle_stream_on_which_something_came_unasked_is_not_used_again() -> None:
    async def main() -> None:
        stream, pool = AsyncStream(), Pool[AsyncStream]()
        stream.connection_made(Nowhere())
        pool.put_back(stream, pool.idle)
        stream.data_received(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 2\r\n\r\n{}")
        assert pool.trusted() is None
        assert stream.closed

    asyncio.run(main())


def test_a_thread_that_hangs_up_leaves_the_number_to_the_thread_that_reads() -> None:
    near, far = socket.socketpair()
    with near, far:
        one = wire.BlockingWire(near)
        one.hang_up()
        assert one.fileno() >= 0
        with pytest.raises(Broken, match="closed the connection"):
            one.receive(clock.now() + 10)


def test_a_wait_ends_at_its_deadline_and_not_with_the_slice_that_it_waits_in() -> None:
    ours, theirs = socket.socketpair()
    waited = []
    with ours, theirs:
        for _ in range(5):
            began = clock.now()
            assert not wait_ready(ours, began + 0.1, writing=False)
            waited.append(clock.now() - began)
    assert min(waited) >= 0.1
    # A busy machine is late now and then; the fastest tells of the rule.
    assert min(waited) < _SLICE / 2
