"""Waiters of one process that share their looks at a store which cannot notify them.

For each name one of the waiters asks the store, and tells the others what it found. The pauses
between its looks grow while nothing changes. After a change, whoever is next in line looks soon,
and one that is further back looks later. A waiter only goes by a look that began after it came:

    asker     look ---- pause ---- look ------ pause ------ look          (goes: another one asks)
                |                   |           ^             |
    waiter      |      comes ------ hears       |             hears: it may be granted the name
    give of this process -----------------------'

The asker is whoever finds that nobody asks, or that the one who did is silent for too long: it may
be a task of an event loop that is blocked. Blocking and asynchronous sides share this. Each change
is one operation of a dict or one assignment, so there is no lock that a signal handler or a fork
could find taken.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from math import inf
from typing import Final, NamedTuple

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.model import Ask, Key, Queued, TakeOutcome
from incumbent.net.readers import Wakeup
from incumbent.rules.line import may_ask
from incumbent.rules.record import Line, seen_of
from incumbent.stores.deciding import present
from incumbent.stores.registers import Seen

IN_LINE: Final = "|"
"""Stands between the state that a waiter has seen, and the claim with which it stands in line."""
_SILENT: Final = 2.0
"""Seconds after which another waiter asks instead of one that should have asked by now."""
_LOOK_WITHIN: Final = 5.0

_now = clock.now


class Poll(NamedTuple):
    """Seconds until a waiter looks again, at most between two looks, and how they grow."""

    first: float = 0.02
    longest: float = 0.5
    growth: float = 1.25


NETWORK: Final = Poll()
LOCAL: Final = Poll(0.002, 0.025)


def may_have_changed(seen: str, found: Seen | StoreError) -> bool:
    """Whether a waiter that has `seen` this should ask for the name, after a look at its record."""
    if isinstance(found, StoreError):
        return True
    before, in_line, claim = seen.partition(IN_LINE)
    if in_line and before.startswith(f"{found.incarnation.id}:"):
        return may_ask(present(found), claim, found.now)
    return seen_of(found.record, found.incarnation.id) != before


def in_line(outcome: TakeOutcome, claim: str, ask: Ask) -> TakeOutcome:
    """The outcome of a take, for a claim that only has to look when its turn may have come."""
    # A pause or a closing concerns all, and candidates want to know who leads.
    behind = isinstance(outcome, Queued) and outcome.place > 0 and not ask.candidacy
    if isinstance(outcome, Queued) and behind and outcome.reason in ("held", "reserved"):
        return replace(outcome, seen=f"{outcome.seen}{IN_LINE}{claim}")
    return outcome


class _PollingWaiter:
    __slots__ = ("came", "hears", "seen", "wakeup")

    def __init__(self, seen: str, wakeup: Wakeup) -> None:
        self.seen, self.wakeup, self.came, self.hears = seen, wakeup, _now(), False


class _Name:
    """The waiters for one name; `asker`: who asks next, at the instant `due`."""

    def __init__(self) -> None:
        self.waiters: dict[int, _PollingWaiter] = {}
        self.asker: _PollingWaiter | None = None
        self.due = -inf
        self.pause = 0.0
        self.changes = -1

    def pause_after(self, found: Seen | StoreError, poll: Poll) -> float:
        """Seconds until the look after one that `found` this."""
        pause = self.pause * poll.growth
        if not isinstance(found, StoreError) and found.record.changes != self.changes:
            self.changes = found.record.changes
            pause = poll.first * (1 + self._place_in(present(found).line))
        return min(pause, poll.longest)

    def _place_in(self, line: Line) -> int:
        claims = {waiter.seen.partition(IN_LINE)[2] for waiter in list(self.waiters.values())}
        places = (place for place, it in enumerate(line.waiters) if it.claim in claims)
        return next(places, 0)

    def tell(self, found: Seen | StoreError, began: float) -> None:
        for waiter in list(self.waiters.values()):
            if waiter.came <= began and may_have_changed(waiter.seen, found):
                waiter.hears = True
                waiter.wakeup.wake()


class Looks:
    """The waiters of one store in this process, by name."""

    def __init__(self, poll: Poll = NETWORK) -> None:
        self._poll = poll
        self.forget()

    def forget(self) -> None:
        """Drop all waiters; in the child of a fork they are the parent's."""
        self._names: dict[Key, _Name] = {}

    def hurry(self, key: Key) -> None:
        """Have the asker look at once: this process has just changed the record."""
        name = self._names.get(key)
        if name is not None:
            self._at_once(name)

    def _at_once(self, name: _Name) -> None:
        asker, name.pause, name.due = name.asker, self._poll.first, min(name.due, _now())
        if asker is not None:
            asker.wakeup.wake()

    async def wait(
        self,
        key: Key,
        seen: str,
        until: float,
        wakeup: Wakeup,
        look: Callable[[Key, float], Awaitable[Seen | StoreError]],
    ) -> None:
        """See Store.wait_change. Return at `until`, or when a look says so (may_have_changed)."""
        name = self._names.setdefault(key, _Name())
        waiter = name.waiters[id(wakeup)] = _PollingWaiter(seen, wakeup)
        self._at_once(name)
        try:
            while not waiter.hears and (now := _now()) < until:
                if name.asker not in (None, waiter) and now < name.due + _SILENT:
                    await wakeup.wait(min(until, name.due + _SILENT))
                    continue
                name.asker = waiter
                if now < name.due:
                    await wakeup.wait(min(until, name.due))
                    continue
                found = await _looked(look(key, min(until, now + _LOOK_WITHIN)))
                name.tell(found, now)
                name.pause = name.pause_after(found, self._poll)
                name.due = _now() + name.pause
        finally:
            self._leave(key, name, waiter)

    def _leave(self, key: Key, name: _Name, waiter: _PollingWaiter) -> None:
        name.waiters.pop(id(waiter.wakeup), None)
        if name.asker is waiter:
            name.asker = None
        left = list(name.waiters.values())
        if name.asker is None:
            for other in [it for it in left if not it.hears][:1]:
                other.wakeup.wake()
        if not left and self._names.get(key) is name:
            found = self._names.pop(key, None)
            if found is not None and found.waiters:
                self._names.setdefault(key, found)  # another thread has just come


async def _looked(look: Awaitable[Seen | StoreError]) -> Seen | StoreError:
    try:
        return await look
    except StoreError as error:
        return error
