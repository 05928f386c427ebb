"""What the rest of this project sees of a lease, and the commands that it needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from incumbent import clock
from incumbent.lease import Proof
from incumbent.model import Key, Notice
from incumbent.policy import Policy
from incumbent.protocol.held import Held
from incumbent.protocol.link import Link


class Belief:
    """One lease, seen by the rest of this project. `link`: the drivers of its store."""

    __slots__ = ("_held", "link")

    def __init__(self, link: Link, held: Held) -> None:
        self.link: Final = link
        self._held = held

    @property
    def key(self) -> Key:
        """The name and its namespace."""
        return self._held.wanted.key

    @property
    def claim(self) -> str:
        """What tells this holding from all others in the store."""
        return self._held.claim

    @property
    def token(self) -> int:
        """The fencing token."""
        return self._held.machine.token

    @property
    def slot(self) -> str | None:
        """The slot that was claimed with the lease."""
        return self._held.wanted.slot

    @property
    def policy(self) -> Policy:
        """The times that the lease was taken with."""
        return self._held.wanted.policy

    @property
    def notice(self) -> Notice | None:
        """The operator's word that ended the lease."""
        return self._held.notice

    @property
    def answered(self) -> bool:
        """Whether the store answered the last renewal."""
        return self._held.failures == 0

    @property
    def proof(self) -> Proof:
        """What is proved at this instant."""
        return self._held.machine.proof(clock.now())

    def watch(self, ended: Callable[[], None]) -> None:
        """Call `ended`, from any thread, when the lease ends; it must not block."""
        self.link.keeper.watch(self._held, ended)

    def follow(self, proved: Callable[[], None]) -> None:
        """Call `proved` in the keeper's thread after each proved renewal; it must not block."""
        self.link.keeper.follow(self._held, proved)

    def proclaim(self, meta: bytes, *, after: float = 0.0) -> None:
        """Change the record's metadata, with a renewal of its own `after` seconds at the latest."""
        self._held.proclaim(meta)
        if self._held.machine.valid(clock.now()):
            self.link.keeper.renew_now(self._held, _nothing, after=after)

    def abandon(self) -> None:
        """Neither renew nor release: something works on, and the ttl ends the lease."""
        if self._held.machine.valid(clock.now()):
            self._held.machine.left()
        self.link.keeper.disarm(self._held)


def _nothing() -> None:
    pass
