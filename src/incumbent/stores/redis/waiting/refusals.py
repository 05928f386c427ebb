"""What the server says of its own accord to those in line who need not ask.

That the lease is still held, as the first in line has seen: then the others look when that time is
over, if nothing is heard before. Only a refusal is ever repeated by that, and never a grant.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, NamedTuple

from incumbent import clock
from incumbent.model import Ask, Queued, TakeOutcome
from incumbent.stores.redis.waiting.places import Call, id_of, read_place
from incumbent.stores.redis.waiting.seats import Hearing

__all__ = ["Refusals"]

_REMEMBERED: Final = 4096
_LOOKS_EVERY: Final = 20.0
"""Times its ttl after which one in line asks the server for itself, whatever is said."""

_now = clock.now


class _Said(NamedTuple):
    """By which connection it was heard, and until when it can matter."""

    hearing: Hearing
    until: float


class _Asked(NamedTuple):
    """A take of one in line: when it was sent, and what came of it."""

    sent: float
    outcome: Queued


class Refusals:
    """Who asked when, and who was told to wait on."""

    def __init__(self) -> None:
        self.asked: dict[str, _Asked] = {}
        """The last takes of those in line."""
        self.waits_on: dict[str, _Said] = {}
        """Who may go on waiting."""

    def is_current(self, hearing: Hearing) -> bool:
        """Whether that is the connection by which is listened now."""
        raise NotImplementedError

    def remember(self, call: Call, hearing: Hearing) -> None:
        """The server has said so to one that may only be about to wait."""
        if len(self.waits_on) > _REMEMBERED:
            self.waits_on.clear()
        self.waits_on[call.id] = _Said(hearing, _now() + call.seconds)

    def has_to_look(self, id_: str) -> None:
        """What was heard last is that it has to look, or that something has happened."""
        self.waits_on.pop(id_, None)

    def forget(self) -> None:
        """In a fork's child: all that was the parent's."""
        self.asked, self.waits_on = {}, {}

    async def said_or_asked(
        self, claim: str, ask: Ask, take: Callable[[], Awaitable[TakeOutcome]]
    ) -> TakeOutcome:
        """What the server has said already to one in line; otherwise what `take` returns."""
        if self.waits_on and (said := self.answer(claim, ask)) is not None:
            return said
        sent = _now()
        outcome = await take()
        if self.asked or type(outcome) is Queued:
            self.learn(claim, sent, outcome)
        return outcome

    def learn(self, claim: str, sent: float, outcome: TakeOutcome) -> None:
        """What came of a take that was sent at `sent`."""
        place = read_place(outcome.seen) if isinstance(outcome, Queued) else None
        if place is None or not isinstance(outcome, Queued):
            self.asked.pop(id_of(claim), None)
            self.waits_on.pop(id_of(claim), None)
            return
        if len(self.asked) > _REMEMBERED:
            self.asked.clear()
        self.asked[place.id] = _Asked(sent, outcome)

    def answer(self, claim: str, ask: Ask) -> Queued | None:
        """The refusal that the server has said already, unless it has to be asked."""
        said, asked = self.waits_on.get(id_of(claim)), self.asked.get(id_of(claim))
        if said is None:
            self._drop_one()
        elif asked is not None and ask.queue is not None and self.is_current(said.hearing):
            return _go_on(said, asked, ask)
        else:
            self.waits_on.pop(id_of(claim), None)
        return None

    def _drop_one(self) -> None:
        """Who gives up leaves words behind; nobody else would look at them again."""
        for id_, said in list(self.waits_on.items())[:1]:
            if said.until < _now():
                self.waits_on.pop(id_, None)


def _go_on(said: _Said, asked: _Asked, ask: Ask) -> Queued | None:
    now = _now()
    if now >= said.until or now - asked.sent > _LOOKS_EVERY * ask.ttl:
        return None
    return replace(asked.outcome, retry_after=said.until - now)
