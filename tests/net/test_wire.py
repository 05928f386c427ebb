"""A blocking connection keeps the deadline, whatever the other end does."""

from __future__ import annotations

from typing import Any

import pytest

from incumbent.net import wire
from incumbent.net.pool import Broken


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
