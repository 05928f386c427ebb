"""The messages between supervisor and guard: datagrams, so that none arrives in part."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final

ISOLATIONS: Final = ("pidns", "container", "pgroup")
"""From the strongest to the weakest."""

MARK: Final = "INCUMBENT_LEASE_MARK"
"""The variable that identifies a descendant which left its group and lost its parents."""

_LAYOUT: Final = Struct("=BBIqd")
_LONGEST: Final = 512


class Kind(IntEnum):
    """HELLO, READY and ARMED come from the guard; the others go to it."""

    NEW = 1
    """A term begins; `seconds` is its ttl."""
    PROOF = 2
    """`seconds`: the instant of `clock.now` at which the tree has to be killed."""
    END = 3
    BORN = 4
    """From the command, before its exec; `pid` is its own."""
    HELLO = 5
    """The text says why there can be no PID namespace; empty if there can."""
    READY = 6
    """The answer to NEW; for pidns with the descriptors of the namespace's init and of itself."""
    ARMED = 7
    """The answer to BORN: a deadline is set."""
    FOLDER = 8
    """The text is the path of the supervisor's socket, to remove with its folder; or empty."""


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
        """From bytes. Raises ValueError for bytes that `packed` does not make."""
        if len(data) < _LAYOUT.size:
            raise ValueError(f"a message of {len(data)} bytes")
        kind, code, term, pid, seconds = _LAYOUT.unpack_from(data)
        text = data[_LAYOUT.size :].decode(errors="replace")
        return cls(Kind(kind), term, pid, seconds, ISOLATIONS[code], text)


def mark_of(secret: str, term: int) -> str:
    """The value of MARK for one term of one guard."""
    return f"{secret}-{term}"


def receive(fd: int) -> Message | None:
    """The next message; None at the end. Raises BlockingIOError if there is none yet."""
    try:
        data = os.read(fd, _LONGEST)
    except ConnectionResetError:
        return None
    return Message.parsed(data) if data else None
