"""Waiters of one process take turns: of those for one name only the first looks at the store.

No order is promised beyond that. A waiter leaves when it was granted, when it gives up, or when
nothing was heard of it for too long; then the next one is the first. One that comes new hears what
another one was just told, and asks nothing.

The turn of a process is brief: while leases are held briefly, its waiters follow each other without
a look at the store, and other processes wait for the end of that.

Blocking and asynchronous sides share this. Each change is one operation of a dict or one
assignment, so there is no lock that a signal handler or a fork could meet.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from functools import partial
from math import inf
from typing import Final, TypeVar, Unpack

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.model import Ask, GiveOutcome, Granted, Holding, Key, Queued, Refused, TakeOutcome
from incumbent.net.readers import Wakeup
from incumbent.stores.base import Parting
from incumbent.stores.plan import Planned

_FRESH: Final = 0.5
"""For so many seconds a refusal is told to others, and an answer on its way is waited for."""
_SILENT: Final = 15.0
"""A waiter of which nothing is heard for so many seconds stands in line no more."""
_BRIEF: Final = 0.01
TURN: Final = 0.05
"""For so many seconds at most a process lets its own waiters follow each other."""
_MARK: Final = "|"

Facts = TypeVar("Facts")

_now = clock.now


class _Waiter:
    """`due`: it is heard of by then; `told`: it shall look although it is not the first."""

    __slots__ = ("due", "told", "wakeup")

    def __init__(self, wakeup: Wakeup | None = None) -> None:
        self.due = inf
        self.told = False
        self.wakeup = wakeup

    def tell(self) -> None:
        if self.wakeup is not None:
            self.wakeup.wake()


class _Line:
    """The waiters of one name in the order of arrival, and those that come new.

    `holder`: a claim of this process that holds the lease; `asked`: the instant at which a new one
    began to ask; `refused`: the last refusal, of the instant `at`; `since`: this process has its
    turn since then; `ours`: the first waiter follows without a look; `listens`: it looks already.
    """

    def __init__(self) -> None:
        self.waiters: dict[str, _Waiter] = {}
        self.new: dict[str, _Waiter] = {}
        self.asked = -inf
        self.holder: str | None = None
        self.refused: Refused | None = None
        self.at = -inf
        self.since = inf
        self.ours = self.listens = False

    def keeps_turn(self, claim: str) -> bool:
        """Whether one more waiter of this process may follow `claim`."""
        others = len(self.waiters) > (claim in self.waiters)
        return others and not self.listens and _now() - self.since < TURN

    def first(self) -> _Waiter | None:
        """Whose turn it is."""
        now = _now()
        while self.waiters:
            try:
                claim, waiter = next(iter(self.waiters.items()))
            except (StopIteration, RuntimeError):
                continue  # another thread has just changed it
            if waiter.due >= now:
                return waiter
            self.waiters.pop(claim, None)
        return None

    def stand(self, claim: str, refused: Refused) -> Queued:
        self.waiters.setdefault(claim, _Waiter()).due = _now() + _SILENT
        claims = list(self.waiters)
        place = claims.index(claim) if claim in claims else 0
        seen = f"{refused.seen}{_MARK}{claim}"
        return Queued(refused.reason, refused.holders, refused.retry_after, seen, place)

    def leave(self, claim: str) -> None:
        if self.waiters.pop(claim, None) is not None:
            self.tell_first()

    def tell_first(self) -> None:
        first = self.first()
        if first is not None:
            first.tell()

    async def hear(self, claim: str, until: float, wakeup: Callable[[], Wakeup]) -> Refused | None:
        """What another one was told, or (None) nothing: `claim` has to ask itself."""
        woken: Wakeup | None = None
        try:
            while (now := _now()) < until and now >= self.at + _FRESH and now < self.asked + _FRESH:
                if woken is not None:
                    await woken.wait(min(until, self.asked + _FRESH))
                    continue
                # The answer may have come meanwhile: the condition is looked at again.
                woken = wakeup()
                self.new[claim] = _Waiter(woken)
        finally:
            self.new.pop(claim, None)
        if now < self.at + _FRESH:
            return self.refused
        self.asked = now
        return None

    def heard(self, refused: Refused | None) -> None:
        """One that asked has its answer, or None if that is none for others."""
        self.asked, before = -inf, self.refused
        if refused is not None and refused.reason == "held":
            self.refused, self.at = refused, _now()
        elif refused is not None and refused.reason == "reserved":
            # It may be for one of the others, each of which looks once.
            self.refused, self.at = refused, -inf
            if before is None or before.seen != refused.seen:
                self.tell()
        for new in list(self.new.values()):
            new.tell()

    def tell(self) -> None:
        """Have all of them look."""
        for waiter in list(self.waiters.values()):
            waiter.told = True
            waiter.tell()


class Turns:
    """The waiters of one engine."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """In a fork's child: they were the parent's."""
        self._lines: dict[Key, _Line] = {}
        self.doubted: set[str] = set()
        """Claims whose last take got no answer: the lease may be theirs."""

    def line(self, key: Key) -> _Line:
        line = self._lines.get(key)
        if line is None:
            line = self._lines.setdefault(key, _Line())
        return line

    def leave(self, key: Key, claim: str) -> None:
        """It waits no more: the next one has its turn."""
        self.doubted.discard(claim)
        line = self._seen(key)
        line.leave(claim)
        self.tidy(key, line)

    def _seen(self, key: Key) -> _Line:
        """To look at: where nobody waits it is a line that nobody else sees."""
        return self._lines.get(key) or _Line()

    def holds(self, key: Key) -> bool:
        """Whether a claim of this process holds the lease, as far as is known here."""
        return self._seen(key).holder is not None

    def is_ours(self, key: Key) -> bool:
        """Whether a waiter of this process follows the one that has the lease, or asks for it."""
        return self._seen(key).ours

    def make_ours(self, key: Key) -> None:
        """No other process waits."""
        self._seen(key).ours = True

    def end_turn(self, key: Key) -> float:
        """Let other processes come first. For how many seconds this one had its turn, or 0."""
        line = self._seen(key)
        if line.since == inf:
            return 0.0
        since, line.since, line.ours = line.since, inf, False
        return _now() - since

    def given(self, key: Key, claim: str) -> None:
        """It holds the lease no more, as far as is known here."""
        line = self._seen(key)
        if line.holder == claim:
            line.holder = None
            line.tell_first()

    def tidy(self, key: Key, line: _Line) -> None:
        """Forget a line in which nobody stands; another one may have begun since."""
        if line.waiters or line.new or self._lines.get(key) is not line:
            return
        found = self._lines.pop(key, None)
        if found is not None and (found.waiters or found.new):
            # Somebody joined it just now.
            self._lines.setdefault(key, found)

    def waits(self, key: Key | None = None) -> bool:
        """Whether anybody does, for that name or at all."""
        return bool(self._lines if key is None else self._seen(key).waiters)

    def tell_all(self, key: Key) -> None:
        """Have all of them look."""
        self.line(key).tell()

    async def wait(
        self,
        key: Key,
        claim: str,
        until: float,
        wakeup: Wakeup,
        listen: Callable[[], Awaitable[None]],
    ) -> None:
        """Return at `until`, when told, or when the first in line has listened to its end."""
        line = self.line(key)
        waiter = line.waiters.setdefault(claim, _Waiter())
        waiter.due, waiter.wakeup = inf, wakeup
        listens = False
        try:
            while not waiter.told and _now() < until:
                first = line.first()
                if first is waiter:
                    if line.holder is not None:
                        # Most holders of our own are brief: their release is heard here at once.
                        await wakeup.wait(min(until, _now() + _BRIEF))
                    ours, line.ours = line.ours, False
                    if not ours or line.holder is not None:
                        listens = line.listens = True
                        await listen()
                    return
                # The first may have gone without a word.
                await wakeup.wait(until if first is None else min(until, first.due))
        except StoreError:
            # Another one may have more luck.
            line.leave(claim)
            raise
        finally:
            line.listens = line.listens and not listens
            waiter.told, waiter.wakeup, waiter.due = False, None, _now() + _SILENT


class TakesTurns(Planned[Facts]):
    """Operations of an engine whose waiters take turns (`Capabilities.turns`).

    Candidates do not, for they want to know the leader; nor do holders that share a lease.
    """

    turns: Turns

    @abstractmethod
    def wakeup(self) -> Wakeup:
        """What wakes a waiter of this side, from any thread."""

    @abstractmethod
    async def wait_any_change(self, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change."""

    async def wait_turn(self, key: Key, seen: str, until: float) -> None:
        """The same for the first waiter of this process."""
        await self.wait_any_change(key, seen, until)

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        if ask.queue is None or ask.candidacy > 0 or ask.permits is not None:
            return await self.run(self.dialect.take(key, claim, ask), until)
        line = self.turns.line(key)
        if claim not in line.waiters and claim not in self.turns.doubted:
            heard = await line.hear(claim, until, self.wakeup)
            if heard is not None:
                return line.stand(claim, heard)
        refused: Refused | None = None
        try:
            self.turns.doubted.add(claim)
            keeps = line.ours = line.keeps_turn(claim)
            outcome = await self.run(self.dialect.take(key, claim, ask), until)
            self.turns.doubted.discard(claim)
            if isinstance(outcome, Granted):
                line.holder = claim
                if keeps:
                    line.since = min(line.since, _now())
                line.leave(claim)
                if line.new:
                    holding = Holding(ask.holder, outcome.token, ask.ttl, ask.ttl)
                    refused = Refused("held", (holding,), ask.ttl)
                return outcome
            refused = outcome
            return line.stand(claim, outcome)
        finally:
            line.ours = line.ours and line.holder == claim
            line.heard(refused)
            self.turns.tidy(key, line)

    async def give(
        self, key: Key, claim: str, token: int | None, until: float, **parting: Unpack[Parting]
    ) -> GiveOutcome:
        self.turns.leave(key, claim)
        try:
            return await self.run(self.dialect.give(key, claim, token, **parting), until)
        finally:
            self.turns.given(key, claim)

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        seen, turn, claim = seen.partition(_MARK)
        if not turn:
            await self.wait_any_change(key, seen, until)
            return
        listen = partial(self.wait_turn, key, seen, until)
        await self.turns.wait(key, claim, until, self.wakeup(), listen)
