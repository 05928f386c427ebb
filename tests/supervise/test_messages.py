"""What supervisor and guard say arrives whole, or is refused."""

from __future__ import annotations

import socket

import pytest

from incumbent.supervise.messages import ISOLATIONS, Kind, Message, receive


@pytest.mark.parametrize("isolation", ISOLATIONS)
@pytest.mark.parametrize("kind", Kind)
def test_every_message_survives_the_way(kind: Kind, isolation: str) -> None:
    message = Message(kind, 7, 2**40, 1234.000000001, isolation, "why — a reason")
    assert Message.parsed(message.packed()) == message


@pytest.mark.parametrize("data", [b"", b"\1", b"\xff" * 64, Message(Kind.NEW).packed()[:-1]])
def test_what_nobody_sent_is_refused(data: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        Message.parsed(data)


def test_nothing_yet_and_the_end_are_different_answers() -> None:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    with ours:
        with pytest.raises(BlockingIOError):
            receive(ours.fileno())
        its.send(Message(Kind.HELLO).packed())
        its.close()
        assert receive(ours.fileno()) == Message(Kind.HELLO)
        assert receive(ours.fileno()) is None
