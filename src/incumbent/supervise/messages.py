"""The messages between supervisor and guard: datagrams, so that no message arrives in part."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final

ISOLATIONS: Final = ("pidns", "container", "pgroup")
"""The kinds of isolation, from the strongest to the weakest."""

MARK: Final = "INCUMBENT_LEASE_MARK"
"""The variable that identifies a descendant which left its group and lost its parents."""

_LAYOUT: Final = Struct("=BBIqd")
_LONGEST: Final = 512


class Kind(IntEnum):
    """The kind of a message. HELLO, READY and ARMED come from the guard; the others go to it."""

    NEW = 1
    """A term begins; `seconds` is its ttl."""
    PROOF = 2
    """`seconds` is the instant of `clock.now` at which the tree has to be killed."""
    END = 3
    BORN = 4
    """Sent by the command before its exec; `pid` is its own."""
    HELLO = 5
    """The text says why no PID namespace can be made; it is empty if one can."""
    READY = 6
    """The answer to NEW; for pidns with a pidfd of the namespace's init, and the namespace."""
    ARMED = 7
    """The answer to BORN: a deadline is set."""
    FOLDER = 8
    """The text is the path of the supervisor's socket, to be removed with its folder; or empty."""


@dataclass(frozen=True, slots=True)
class Message:
    """One datagram."""

    kind: Kind
    term: int = 0
    pid: int = 0
    seconds: float = 0.0
    isolation: str = "pgroup"
    text: str = ""

    def packed(self) -> bytes:
        """The message as bytes; the text is cut at the longest datagram."""
        code = ISOLATIONS.index(self.isolation)
        head = _LAYOUT.pack(self.kind, code, self.term, self.pid, self.seconds)
        return head + self.text.encode()[: _LONGEST - len(head)]

    @classmethod
    def parsed(cls, data: bytes) -> Message:
        """The message from bytes. Raises ValueError for bytes that `packed` does not make."""
        if len(data) < _LAYOUT.size:
            raise ValueError(f"a message of {len(data)} bytes")
        kind, code, term, pid, seconds = _LAYOUT.unpack_from(data)
        text = data[_LAYOUT.size :].decode(errors="replace")
        return cls(Kind(kind), term, pid, seconds, ISOLATIONS[code], text)


def mark_of(secret: str, term: int) -> str:
    """The value of MARK for one term of one guard."""
    return f"{secret}-{term}"


def receive(fd: int) -> Message | None:
    """The next message; None once the peer is gone. Raises BlockingIOError if there is none yet."""
    try:
        data = os.read(fd, _LONGEST)
    except ConnectionResetError:
        return None
    return Message.parsed(data) if data else None
