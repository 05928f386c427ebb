"""Leases that the server handed to one in line, as a release of another made it free.

A lease that was handed over is believed from before the request that was refused last, for it was
granted later than that. Whoever has waited for long asks once more, and counts from there.
"""

from __future__ import annotations

from math import inf
from typing import Final

from incumbent import clock
from incumbent.model import Ask, Granted, Queued, TakeOutcome
from incumbent.stores.redis.waiting.places import Call, id_of, read_place
from incumbent.stores.redis.waiting.seats import Hearing

__all__ = ["HandOvers"]

_REMEMBERED: Final = 4096

_now = clock.now


class HandOvers:
    """Who asked when, and who was told that it holds a lease."""

    def __init__(self) -> None:
        self.sent: dict[str, tuple[float, int]] = {}
        """When those in line asked last, and the last token that anybody had been given by then."""
        self.handed: dict[str, tuple[Call, Hearing]] = {}
        """Whom the server has handed a lease."""

    def is_current(self, hearing: Hearing) -> bool:
        """Whether that is the connection by which is listened now."""
        raise NotImplementedError

    def hand_over(self, call: Call, hearing: Hearing) -> None:
        """The server has said so."""
        if len(self.handed) > _REMEMBERED:
            self.handed.clear()
        self.handed[call.id] = (call, hearing)

    def forget(self) -> None:
        """In a fork's child: all that was the parent's."""
        self.sent, self.handed = {}, {}

    def learn(self, claim: str, sent: float, outcome: TakeOutcome) -> None:
        """What came of a take that was sent at `sent`."""
        place = read_place(outcome.seen) if isinstance(outcome, Queued) else None
        if place is None:
            self.sent.pop(id_of(claim), None)
            self.handed.pop(id_of(claim), None)
            return
        if len(self.sent) > _REMEMBERED:
            self.sent.clear()
        self.sent[place.id] = (sent, place.last)

    def accept(self, claim: str, ask: Ask, wait: float) -> Granted | None:
        """The grant that came with a hand-over, unless the server has to be asked once more.

        `wait`: seconds for which a server that has just started is not believed.
        """
        call, hearing = self.handed.pop(id_of(claim), (None, None))
        sent, last = self.sent.pop(id_of(claim), (-inf, 0))
        if call is None or hearing is None or ask.queue is None:
            return None
        now = _now()
        # Twice, because the belief shrinks what it is told by the bound of the clocks' drift.
        short = 2 * (now - sent)
        known = call.claim == claim and call.seconds >= ask.ttl and self.is_current(hearing)
        # Said before that take was refused, and heard only now: it speaks of a lease that is over.
        old = call.token <= last
        if not known or old or short > ask.queue.spare or now < hearing.ear.born + wait:
            return None
        return Granted(claim, call.token, ask.ttl - short, hearing.ear.epoch)
