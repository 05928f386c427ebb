"""What a hub is made of: who waits, who reads for all, and what has been heard so far."""

from __future__ import annotations

from collections.abc import Hashable
from math import inf
from typing import Any, Protocol

from incumbent.model import Key
from incumbent.stores.redis.waiting.places import Place

__all__ = ["Bell", "Ear", "Hearing", "Host", "Seat", "Waiter"]


class Bell(Protocol):
    """What wakes one that waits."""

    def ring(self) -> None:
        """Wake it, now or at its next wait; from any thread."""

    async def wait(self, until: float) -> None:
        """Return when rung, or at `until`, or earlier."""


class Ear(Protocol):
    """The subscriber connection, used by who has the seat."""

    epoch: str
    """Of the server: see exchange.AnyWire."""
    interruptible: bool
    """Whether an exception in `next` loses nothing."""

    def say(self, request: bytes, until: float) -> None:
        """Send. Raises Broken."""

    async def next(self, until: float) -> Any:
        """The next message; None at `until`, or when poked. Raises Broken."""

    def poke(self) -> None:
        """Have `next` return; from any thread."""

    def close(self) -> None:
        """Let go at once."""


class Waiter:
    """One that waits. `look_at`: when it has to look, whatever happens.

    `listens`: it has relied on the connection, and has to look when that is lost.
    """

    __slots__ = ("bell", "channels", "listens", "look_at", "place", "told")

    def __init__(self, bell: Bell, place: Place | None, channels: list[str]) -> None:
        self.bell = bell
        self.place = place
        self.channels = channels
        self.look_at = inf
        self.listens = False
        self.told = False


class Hearing:
    """What one connection has been subscribed to, and has heard."""

    def __init__(self, ear: Ear, inbox: str) -> None:
        self.ear = ear
        self.inbox = inbox.encode()
        self.since = 0
        """When the inbox was listened to at the latest, on the server's clock (microseconds)."""
        self.outdated = False
        """Whether it leads to another incarnation of the server than the takes."""
        self.asked: dict[str, None] = {}
        self.confirmed: set[str] = set()
        self.heard: dict[str, int] = {}


class Seat:
    """Who has it reads."""

    def __init__(self) -> None:
        self.hearing: Hearing | None = None
        self.failures = 0
        self.retry_at = -inf
        self.taken_by: Hashable = None

    def drop(self) -> None:
        """Close the connection."""
        hearing, self.hearing = self.hearing, None
        if hearing is not None:
            hearing.ear.close()


class Host(Protocol):
    """What a hub needs of the exchange that it belongs to, for the time of one call."""

    async def open_ear(self, until: float) -> Ear:
        """A fresh connection, to listen by. Raises StoreUnavailable."""

    async def server_time(self, until: float) -> int:
        """The server's clock in microseconds. Raises StoreError."""

    async def is_unchanged(self, key: Key, seen: str, until: float) -> bool:
        """Whether what was seen is as it was. Raises StoreError."""

    def new_bell(self) -> Bell:
        """A bell that has not been rung."""

    def me(self) -> Hashable:
        """What tells one thread from another; tasks don't interrupt each other."""
