"""Waiters of one process that share their looks at a store which cannot notify them.

For each name one of the waiters reads the record, and notifies the others of what it found. The
pauses between its looks grow while nothing changes. After a change, the asker looks soon if it is
next in line, and later if it is further back. A waiter trusts only a look that began after it came:

    asker     look ---- pause ---- look ------ pause ------ look         (leaves: another one asks)
                |                   |           ^             |
    waiter      |      comes --- not notified   |             notified: it may be granted the name
    give of this process -----------------------'

A waiter becomes the asker if nobody asks, or if the asker is silent for too long: it may be a task
of an event loop that is blocked. Blocking and asynchronous sides share this. Each change is one
operation of a dict or one assignment, so there is no lock that a signal handler or a fork could
find taken.
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
from incumbent.rules.record import seen_of
from incumbent.stores.deciding import present
from incumbent.stores.registers import Seen

IN_LINE: Final = "|"
"""Separates the state that a waiter has seen from the claim with which it stands in line."""
# Seconds after which another waiter asks instead of an asker that should have asked.
_SILENT: Final = 2.0
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
    """Whether a waiter that has `seen` this should ask for the name, now that `found` is read."""
    if isinstance(found, StoreError):
        return True
    before, in_line, claim = seen.partition(IN_LINE)
    if in_line and before.startswith(f"{found.incarnation.id}:"):
        return may_ask(present(found), claim, found.now)
    return seen_of(found.record, found.incarnation.id) != before


def in_line(outcome: TakeOutcome, claim: str, ask: Ask) -> TakeOutcome:
    """The outcome of a take, for a claim that need not ask before its turn may have come."""
    # A pause or a closing concerns everybody, and candidates want to know who leads.
    behind = isinstance(outcome, Queued) and outcome.place > 0 and not ask.candidacy
    if isinstance(outcome, Queued) and behind and outcome.reason in ("held", "reserved", "turn"):
        return replace(outcome, seen=f"{outcome.seen}{IN_LINE}{claim}")
    return outcome


class _PollingWaiter:
    __slots__ = ("came", "notified", "seen", "wakeup")

    def __init__(self, seen: str, wakeup: Wakeup) -> None:
        self.seen, self.wakeup, self.came, self.notified = seen, wakeup, _now(), False


class _Name:
    """The waiters for one name; `asker`: the one that asks next, at the instant `due`."""

    def __init__(self) -> None:
        self.waiters: dict[int, _PollingWaiter] = {}
        self.asker: _PollingWaiter | None = None
        self.due = -inf
        self.pause = 0.0
        self.changes = -1

    def pause_after(self, found: Seen | StoreError, poll: Poll) -> float:
        """Seconds until the next look, after one that `found` this."""
        pause = self.pause * poll.growth
        if not isinstance(found, StoreError) and found.record.changes != self.changes:
            self.changes = found.record.changes
            ours = {waiter.seen.partition(IN_LINE)[2] for waiter in list(self.waiters.values())}
            line = present(found).line.waiters
            place = next((at for at, it in enumerate(line) if it.claim in ours), 0)
            pause = poll.first * (1 + place)
        return min(pause, poll.longest)

    def notify(self, found: Seen | StoreError, began: float) -> None:
        for waiter in list(self.waiters.values()):
            if waiter.came <= began and may_have_changed(waiter.seen, found):
                waiter.notified = True
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
        """Have the asker look at once, because this process has just changed the record."""
        name = self._names.get(key)
        if name is not None:
            self._at_once(name)

    def end_waits(self) -> None:
        """Have all waiters return."""
        for name in self._names.copy().values():
            for waiter in name.waiters.copy().values():
                waiter.notified = True
                waiter.wakeup.wake()

    def _at_once(self, name: _Name) -> None:
        # The instant before the wake-up: a woken asker reads it at once.
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
            while not waiter.notified and (now := _now()) < until:
                if name.asker not in (None, waiter) and now < name.due + _SILENT:
                    # Another one asks. If it should have asked long ago, this one takes over.
                    await wakeup.wait(min(until, name.due + _SILENT))
                    continue
                name.asker = waiter
                if now < name.due:
                    await wakeup.wait(min(until, name.due))
                    continue
                found: Seen | StoreError
                try:
                    found = await look(key, min(until, now + _LOOK_WITHIN))
                # News as well: all of them ask, and each take says what is wrong.
                except StoreError as error:
                    found = error
                # `now` is from before the look: a waiter that has come since needs another look.
                name.notify(found, now)
                name.pause = name.pause_after(found, self._poll)
                # From the answer on: a store that is slow is not asked more often for it.
                name.due = _now() + name.pause
        finally:
            self._leave(key, name, waiter)

    def _leave(self, key: Key, name: _Name, waiter: _PollingWaiter) -> None:
        name.waiters.pop(id(waiter.wakeup), None)
        if name.asker is waiter:
            name.asker = None
        left = list(name.waiters.values())
        if name.asker is None:
            # One of them becomes the asker.
            for other in [it for it in left if not it.notified][:1]:
                other.wakeup.wake()
        # A waiter that found this name before it was forgotten is its own asker: slower, not wrong.
        if not left and self._names.get(key) is name:
            found = self._names.pop(key, None)
            if found is not None and found.waiters:
                self._names.setdefault(key, found)  # another thread has just come
