"""What a lease's row means, with every instant handed in. Pure."""

from __future__ import annotations

from typing import NamedTuple

from incumbent.model import Holding, Refused
from incumbent.stores.sqlite.schema import FORMAT, LATCH


class Row(NamedTuple):
    """The file's state, and beside it a lease's row, whose fields are None for an unknown key."""

    boot: str
    floor: int
    reserved: int
    format: int | None
    claim: str | None
    holder: str
    token: int
    ttl: float
    meta: bytes
    since: float
    expires: float
    started: float
    ended: float | None
    closed_until: float
    grants: int
    changes: int
    version: int
    switched: int
    lined: float
    due: float
    overtaken: int

    @property
    def newer(self) -> bool:
        """Whether a later release wrote the row: it counts as held, for we cannot read it."""
        return self.format is not None and self.format > FORMAT

    def held(self, now: float) -> bool:
        """Whether somebody holds the lease."""
        return self.newer or (self.claim is not None and self.expires > now)

    def held_by(self, claim: str, now: float) -> bool:
        """Whether this claim holds the lease."""
        return self.claim == claim and self.expires > now and not self.newer

    def shared(self, now: float) -> bool:
        """Whether the lease is a latch of those who share it."""
        return self.held_by(LATCH, now)

    def beside(self) -> Row:
        """What one who may share the lease finds there: the others are not in its way."""
        return self._replace(claim=None)

    def holder_at(self, now: float) -> tuple[str, int] | None:
        """The claim that holds the lease, with its token."""
        claim = self.claim
        return (claim, self.token) if claim is not None and self.held_by(claim, now) else None

    def closed(self, now: float) -> bool:
        """Whether a release keeps the lease closed: perhaps but for one holder."""
        return (self.closed_until or 0) > now

    def holding(self, now: float) -> Holding:
        """The present holding, as far as it can be read."""
        if self.newer:
            return Holding("(written by a newer release)", foreign=True)
        left, age = self.expires - now, now - self.since
        return Holding(self.holder, self.token, left, self.ttl, age, self.meta, self.claim or "")

    def refusal(
        self, holder: str, slot: Holding | None, reserved: str, paused: bool, now: float, seen: str
    ) -> Refused | None:
        """Why `holder` may not have the lease now, or None.

        `slot`: the other user of its slot. `reserved`: the holder that a closing lets in, or "".
        """
        if self.held(now):
            holding = self.holding(now)
            return Refused("held", (holding,), holding.remaining, seen)
        if paused:
            return Refused("paused", seen=seen)
        if self.closed(now) and not (reserved and reserved == holder):
            left = self.closed_until - now
            if reserved:
                return Refused("reserved", (Holding(reserved, remaining=left),), left, seen)
            return Refused("closed", (Holding(self.holder, self.token, left),), left, seen)
        return Refused("closed", (slot,), slot.remaining, seen) if slot else None


def seen_of(epoch: str, changes: int | None) -> str:
    """What `wait_change` compares: another text after every change, and for another file."""
    return "" if changes is None else f"{epoch}:{changes}"
