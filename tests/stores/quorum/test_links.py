"""A blocking connection to one server of a quorum that replies late, in parts, or never."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from incumbent import clock
from incumbent.model import Key
from incumbent.stores.quorum import open_quorum
from incumbent.stores.quorum.links import QuorumLink, SyncPanel
from incumbent.stores.quorum.nodes import Quorum


@pytest.fixture
def panel() -> SyncPanel:
    return SyncPanel(open_quorum("redis+quorum://h1,h2,h3").store().operations.dialer)


@pytest.fixture
def pair() -> Iterator[tuple[QuorumLink, socket.socket]]:
    ours, theirs = socket.socketpair()
    link = QuorumLink(ours)
    with theirs:
        yield link, theirs
    link.close()


def test_replies_that_come_in_parts_are_waited_for_together(
    pair: tuple[QuorumLink, socket.socket],
) -> None:
    link, server = pair
    server.sendall(b":1\r\n:2\r\n:3")
    assert link.replies(3) is None
    server.sendall(b"\r\n")
    assert link.replies(3) == [1, 2, 3]


def test_of_replies_that_nobody_waits_for_any_more_the_rest_is_skipped(
    pair: tuple[QuorumLink, socket.socket], panel: SyncPanel
) -> None:
    link, server = pair
    server.sendall(b":1\r\n")
    assert link.replies(2) is None
    link.fall_behind(2)
    assert panel._is_usable(link, clock.now())
    server.sendall(b":2\r\n:3\r\n")
    assert link.replies(1) == [3]


def test_a_connection_that_was_closed_after_a_late_reply_is_not_used(
    pair: tuple[QuorumLink, socket.socket], panel: SyncPanel
) -> None:
    link, server = pair
    link.fall_behind(1)
    server.sendall(b":1\r\n")
    server.close()
    assert not panel._is_usable(link, clock.now())


def test_what_is_closed_cannot_be_taken_by_another_thread_meanwhile(
    panel: SyncPanel, monkeypatch: pytest.MonkeyPatch
) -> None:
    operations = open_quorum("redis+quorum://h1,h2,h3").store().operations
    idle = operations.idle
    idle += [panel, SyncPanel(operations.dialer)]
    there: list[bool] = []
    monkeypatch.setattr(SyncPanel, "close", lambda it: there.append(it in idle))
    operations.let_go()
    assert there == [False, False]


def test_many_threads_remember_claims_at_once() -> None:
    kept: dict[tuple[Key, str], int] = {}

    def remember(thread: int) -> None:
        for number in range(20_000):
            Quorum.remember(kept, Key("n", "job"), f"{thread} {number}", number)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert [*pool.map(remember, range(4))] == [None] * 4
    finally:
        sys.setswitchinterval(before)
    assert len(kept) <= 4096
