"""What the server says of its own accord to those in line, so that they need not ask.

That it handed one the lease, as a release of another made it free. The server cannot know that a
process is not frozen: it grants for that one's heartbeat, and the first renewal, which comes early,
brings the rest. Asking once more does so too. A lease that was handed over is believed from before
the request that was refused last, for it was granted later than that. Whoever has waited for long
asks once more, and counts from there.

And that the lease is still held, as the first in line has seen: then the others look when that time
is over, if nothing is heard before. Only a refusal is ever repeated by that.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Final, NamedTuple

from incumbent import clock
from incumbent.model import Ask, Granted, Queued, TakeOutcome
from incumbent.stores.redis.waiting.places import Call, id_of, read_place
from incumbent.stores.redis.waiting.seats import Hearing

__all__ = ["HandOvers"]

_REMEMBERED: Final = 4096
_LOOKS_EVERY: Final = 20.0
"""Times its ttl after which one in line asks the server for itself, whatever is said."""

_now = clock.now


class _Said(NamedTuple):
    """What was heard, by which connection, and until when it can matter."""

    call: Call
    hearing: Hearing
    until: float


class _Asked(NamedTuple):
    """A take of one in line: when it was sent, and what came of it.

    `last`: the last token that anybody had been given by then.
    """

    sent: float
    last: int
    outcome: Queued


class HandOvers:
    """Who asked when, and who was told what."""

    def __init__(self) -> None:
        self.sent: dict[str, _Asked] = {}
        """The last takes of those in line."""
        self.handed: dict[str, _Said] = {}
        """Whom the server has handed a lease, and who may go on waiting."""

    def is_current(self, hearing: Hearing) -> bool:
        """Whether that is the connection by which is listened now."""
        raise NotImplementedError

    def remember(self, call: Call, hearing: Hearing) -> None:
        """The server has said so to one that may only be about to wait."""
        if len(self.handed) > _REMEMBERED:
            self.handed.clear()
        self.handed[call.id] = _Said(call, hearing, _now() + call.seconds)

    def has_to_look(self, id_: str) -> None:
        """What was heard last is that it has to look, or that something has happened."""
        said = self.handed.get(id_)
        if said is not None and said.call.rest:
            self.handed.pop(id_, None)

    def forget(self) -> None:
        """In a fork's child: all that was the parent's."""
        self.sent, self.handed = {}, {}

    def learn(self, claim: str, sent: float, outcome: TakeOutcome) -> None:
        """What came of a take that was sent at `sent`."""
        place = read_place(outcome.seen) if isinstance(outcome, Queued) else None
        if place is None or not isinstance(outcome, Queued):
            self.sent.pop(id_of(claim), None)
            self.handed.pop(id_of(claim), None)
            return
        if len(self.sent) > _REMEMBERED:
            self.sent.clear()
        self.sent[place.id] = _Asked(sent, place.last, outcome)

    def answer(self, claim: str, ask: Ask, wait: float) -> Granted | Queued | None:
        """What the server has said already, unless it has to be asked.

        `wait`: seconds for which a server that has just started is not believed.
        """
        said, asked = self.handed.get(id_of(claim)), self.sent.get(id_of(claim))
        if said is None:
            self._drop_one()
        elif asked is not None and ask.queue is not None and self.is_current(said.hearing):
            if said.call.rest:
                return _go_on(said, asked, ask)
            self.handed.pop(id_of(claim), None)
            self.sent.pop(id_of(claim), None)
            return _handed(said, asked, claim, ask, wait)
        else:
            self.handed.pop(id_of(claim), None)
        return None

    def _drop_one(self) -> None:
        """Who gives up leaves words behind; nobody else would look at them again."""
        for id_, said in list(self.handed.items())[:1]:
            if said.until < _now():
                self.handed.pop(id_, None)


def _handed(said: _Said, asked: _Asked, claim: str, ask: Ask, wait: float) -> Granted | None:
    call, now = said.call, _now()
    # Twice, because the belief shrinks what it is told by the bound of the clocks' drift.
    ttl = call.seconds - 2 * (now - asked.sent)
    short = ask.ttl - ttl > (ask.queue.spare if ask.queue else -inf)
    # Said before that take was refused, and heard only now: it speaks of a lease that is over.
    old = call.token <= asked.last
    if call.claim != claim or old or short or now < said.hearing.ear.born + wait:
        return None
    confirm = call.seconds < ask.ttl
    return Granted(claim, call.token, ttl, said.hearing.ear.epoch, confirm)


def _go_on(said: _Said, asked: _Asked, ask: Ask) -> Queued | None:
    now = _now()
    if now >= said.until or now - asked.sent > _LOOKS_EVERY * ask.ttl:
        return None
    return replace(asked.outcome, retry_after=said.until - now)
