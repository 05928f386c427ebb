"""What a hub of a quorum is made of: who waits, who reads for all, and what the nodes confirmed."""

from __future__ import annotations

from collections.abc import Hashable
from math import inf
from typing import Any, Final, Protocol, TypeAlias

from incumbent.model import Key
from incumbent.net.readers import Wakeup

__all__ = ["CONNECTED", "Ears", "Hearing", "Host", "Seat", "Waiter", "Word"]

CONNECTED: Final = object()
"""What is heard of a node first."""
Word: TypeAlias = "tuple[int, Any]"
"""A node, and what it said: CONNECTED, a message, or the exception that ended it."""

_CONFIRM_WITHIN: Final = 0.1


class Ears(Protocol):
    """The connections of who has the seat, one to each node."""

    interruptible: bool
    """Whether an exception in `next` loses nothing."""

    def begin(self, node: int, until: float) -> None:
        """Connect to it; `next` tells what came of that."""

    def say(self, node: int, request: bytes, until: float) -> None:
        """Send. Raises Broken."""

    async def next(self, until: float) -> Word | None:
        """What is heard next; None at `until`, or when poked."""

    def poke(self) -> None:
        """Have `next` return; from any thread."""

    def drop(self, node: int) -> None:
        """Close that connection, if there is one."""

    def close(self) -> None:
        """Let go at once; nothing is written."""


class Host(Protocol):
    """What a hub needs of the store, for the time of one call."""

    async def is_unchanged(self, key: Key, seen: str, until: float) -> bool:
        """Whether what was seen is as it was. Raises StoreError."""

    def new_ears(self) -> Ears:
        """None of them connected."""

    def new_bell(self) -> Wakeup:
        """A bell that has not been rung."""

    def me(self) -> Hashable:
        """What tells one thread from another; tasks don't interrupt each other."""


class Waiter:
    """`listens`: it has relied on the nodes that speak of its channel. `look_at`: when it looks."""

    __slots__ = ("bell", "channel", "listens", "look_at", "told", "words")

    def __init__(self, bell: Wakeup, channel: str) -> None:
        self.bell = bell
        self.channel = channel
        self.listens = self.told = False
        self.look_at = inf
        self.words: set[int] = set()

    def tell(self) -> None:
        """It has to look."""
        self.told = True
        self.bell.ring()


class Hearing:
    """What one node has been asked, since when, and has confirmed."""

    def __init__(self) -> None:
        self.asked: dict[str, float] = {}
        self.confirmed: set[str] = set()


class Seat:
    """Who has it reads."""

    def __init__(self, nodes: int) -> None:
        self.ears: Ears | None = None
        self.heard: list[Hearing | None] = [None] * nodes
        self.connecting: dict[int, None] = {}
        self.retry_at = [-inf] * nodes
        self.failures = [0] * nodes
        self.why: BaseException | None = None
        self.taken_by: Hashable = None

    def confirmed(self, channel: str) -> int:
        """How many nodes speak of it."""
        return sum(it is not None and channel in it.confirmed for it in self.heard)

    def may_confirm(self, channel: str, now: float) -> bool:
        """Whether one more may do so soon."""
        if self.ears is None or self.connecting:
            return True
        return any(
            it is not None
            and channel not in it.confirmed
            and now < it.asked.get(channel, now) + _CONFIRM_WITHIN
            for it in self.heard
        )

    def drop(self) -> None:
        """Close all."""
        ears, self.ears = self.ears, None
        self.heard = [None] * len(self.heard)
        self.connecting = {}
        if ears is not None:
            ears.close()
