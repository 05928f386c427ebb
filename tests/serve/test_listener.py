"""The listener's own: what becomes of connections when it closes."""

from __future__ import annotations

import gc
import socket
import sys
from contextlib import ExitStack

import pytest

from incumbent.serve.http import PageServer


def test_connections_that_come_as_it_closes_are_closed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: left.append(str(found.exc_value)))
    for _ in range(30):
        server = PageServer({}, "127.0.0.1:0", None)
        address = server.url.removeprefix("http://").rstrip("/").rpartition(":")
        with ExitStack() as clients:
            for _ in range(6):
                clients.enter_context(socket.create_connection((address[0], int(address[2]))))
            server.close()
    gc.collect()
    assert left == []
