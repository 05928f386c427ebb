"""What supervisor and guard tell each other: datagrams of one fixed size, so none comes in part."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Final

__all__ = ["ISOLATIONS", "Kind", "Message", "receive"]

ISOLATIONS: Final = ("pidns", "container", "pgroup")
"""From the strongest to the weakest."""

_LAYOUT: Final = Struct("=BBIqd")
_LONGEST: Final = 512


class Kind(IntEnum):
    """The first three go to the guard, BORN and FOLDER too; the others come from it."""

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
    """The text is a socket of the supervisor's, to remove with its folder; empty for none."""


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
        """As bytes."""
        code = ISOLATIONS.index(self.isolation)
        head = _LAYOUT.pack(self.kind, code, self.term, self.pid, self.seconds)
        return head + self.text.encode()[: _LONGEST - len(head)]

    @classmethod
    def parsed(cls, data: bytes) -> Message:
        """From bytes; raises ValueError for what nobody of us sent."""
        if len(data) < _LAYOUT.size:
            raise ValueError(f"a message of {len(data)} bytes")
        kind, code, term, pid, seconds = _LAYOUT.unpack_from(data)
        text = data[_LAYOUT.size :].decode(errors="replace")
        return cls(Kind(kind), term, pid, seconds, ISOLATIONS[code], text)


def receive(fd: int) -> Message | None:
    """The next message; None at the end. Raises BlockingIOError if there is none yet."""
    try:
        data = os.read(fd, _LONGEST)
    except ConnectionResetError:
        return None
    return Message.parsed(data) if data else None
