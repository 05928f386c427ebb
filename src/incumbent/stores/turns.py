"""Where waiters of one process take turns (etcd, PostgreSQL): the first of a name asks the store.

Theory of operation, for one name in one process:

    take (new) -- another has just been refused --> in line, with that refusal: no request
        |
        +-- asks the store -- granted ------------> holder -- gives --> wakes the first in line
                  |                                                     (`take_at_once`,
                  +-- refused --> in line                                while this turn lasts)
                                    |
              first in line: listens to the store, looks when something changes
              others: sleep until the first leaves, or is silent past its `lapses_at`

A process's turn is at most 50 ms. Meanwhile its waiters take one after the other, without a look
at the store's line. Then other processes come first. A waiter leaves the line when it is granted
the lease, gives up, or is silent for too long. No further order is promised.

Blocking and asynchronous sides share this. Each change is one operation of a dict or one
assignment, so there is no lock that a signal handler or a fork could find taken.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from functools import partial
from math import inf
from typing import Final, TypeVar

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import (
    PLAIN,
    Ask,
    GiveOutcome,
    Granted,
    Holding,
    Key,
    Parting,
    Queued,
    Refused,
    TakeOutcome,
)
from incumbent.net.readers import Wakeup
from incumbent.stores.plan import Planned

# Seconds for which new waiters share a refusal, or wait for an answer that is on its way.
_FRESH: Final = 0.5
# Seconds of silence after which a waiter loses its place in line.
_SILENT: Final = 15.0
_BRIEF: Final = 0.01
TURN: Final = 0.05
"""The most seconds for which a process lets its own waiters take one after the other."""
_MARK: Final = "@"

Facts = TypeVar("Facts")

_now = clock.now


class _TurnWaiter:
    """A waiter, whose place lapses at `lapses_at`; `holder`: for whom it asks; empty: unknown.

    `notified`: it has to look although it is not first.
    """

    __slots__ = ("holder", "lapses_at", "notified", "wakeup")

    def __init__(self, wakeup: Wakeup | None = None) -> None:
        self.lapses_at = inf
        self.holder = ""
        self.notified = False
        self.wakeup = wakeup

    def wake(self) -> None:
        if self.wakeup is not None:
            self.wakeup.wake()


class _TurnLine:
    """The waiters of one name in the order of arrival, and the `new` ones without a place yet.

    `holding_claim`: the one of this process that holds the lease; `asked_at`: when a new waiter
    last took; `refused`: the last refusal, of the instant `refused_at`; `turn_began`: when this
    process's turn did; `take_at_once`: our next waiter may take without a look at the store's
    line; `listens`: the first waits for a change; `order`: our waiters in the store's line, whose
    first is the first here.
    """

    def __init__(self) -> None:
        self.waiters: dict[str, _TurnWaiter] = {}
        self.new: dict[str, _TurnWaiter] = {}
        self.asked_at = -inf
        self.holding_claim: str | None = None
        self.refused: Refused | None = None
        self.refused_at = -inf
        self.turn_began = inf
        self.take_at_once = self.listens = False
        self.order: Sequence[str] = ()

    def has(self, claim: str) -> bool:
        """Whether the claim waits here, and is not silent."""
        waiter = self.waiters.get(claim)
        return waiter is not None and waiter.lapses_at >= _now()

    def may_pass_on(self, claim: str) -> bool:
        """Whether `claim` may pass the lease on to another waiter of this process."""
        others = len(self.waiters) > (claim in self.waiters)
        return others and not self.listens and _now() - self.turn_began < TURN

    def first(self) -> _TurnWaiter | None:
        """The first waiter that is not silent; it is its turn."""
        now = _now()
        # The store's order first: another of ours would be refused while this one is before it.
        for claim in self.order:
            waiter = self.waiters.get(claim)
            if waiter is not None and waiter.lapses_at >= now:
                return waiter
        while self.waiters:
            try:
                claim, waiter = next(iter(self.waiters.items()))
            except (StopIteration, RuntimeError):
                continue  # another thread has just changed it
            if waiter.lapses_at >= now:
                return waiter
            self.waiters.pop(claim, None)
        return None

    def stand(self, claim: str, holder: str, refused: Refused) -> Queued:
        """Put a refused claim in line, or keep its place; returns the refusal with the place."""
        waiter = self.waiters.setdefault(claim, _TurnWaiter())
        waiter.lapses_at, waiter.holder = _now() + _SILENT, holder
        claims = list(self.waiters)
        # Another thread may have dropped it as silent, or given it up.
        place = claims.index(claim) if claim in claims else 0
        seen = f"{refused.seen}{_MARK}{claim}"
        return Queued(refused.reason, refused.holders, refused.retry_after, seen, place)

    def leave(self, claim: str) -> None:
        if self.waiters.pop(claim, None) is not None:
            self.wake_first()

    def wake_first(self) -> None:
        first = self.first()
        if first is not None:
            first.wake()

    async def await_refusal(
        self, claim: str, until: float, wakeup: Callable[[], Wakeup]
    ) -> Refused | None:
        """The refusal that another waiter has just received; None: `claim` has to ask itself."""
        woken: Wakeup | None = None
        try:
            while (
                (now := _now()) < until
                and now >= self.refused_at + _FRESH
                and now < self.asked_at + _FRESH
            ):
                if woken is not None:
                    await woken.wait(min(until, self.asked_at + _FRESH))
                    continue
                # The answer may have come meanwhile, so the condition is checked again.
                woken = wakeup()
                self.new[claim] = _TurnWaiter(woken)
        finally:
            self.new.pop(claim, None)
        if now < self.refused_at + _FRESH:
            return self.refused
        # From now on new waiters wait for our answer.
        self.asked_at = now
        return None

    def share_refusal(self, refused: Refused | None) -> None:
        """Share the refusal of a waiter that asked; None: there is no refusal to share."""
        self.asked_at, before = -inf, self.refused
        if refused is not None and refused.reason == "held":
            self.refused, self.refused_at = refused, _now()
        elif refused is not None and refused.reason in ("reserved", "turn"):
            # It may be for one of the other waiters, which looks once then.
            self.refused, self.refused_at = refused, -inf
            if before is None or before.seen != refused.seen:
                self.notify({it.holder for it in refused.holders} or None)
        for new in list(self.new.values()):
            new.wake()

    def notify(self, holders: Container[str] | None = None) -> None:
        """Have the waiters of these holders look, or (None) all waiters in line."""
        for waiter in list(self.waiters.values()):
            if holders is None or not waiter.holder or waiter.holder in holders:
                waiter.notified = True
                waiter.wake()


class Turns:
    """The waiters of one engine, by key."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Drop all waiters; in the child of a fork they are the parent's."""
        self._lines: dict[Key, _TurnLine] = {}
        self.doubted: set[str] = set()
        """The claims whose last take has no answer, or not yet: they may hold the lease."""

    def line(self, key: Key) -> _TurnLine:
        return self._lines.get(key) or self._lines.setdefault(key, _TurnLine())

    def leave(self, key: Key, claim: str) -> None:
        """Remove a waiter from its line: the next one has its turn."""
        self.doubted.discard(claim)
        line = self._seen(key)
        line.leave(claim)
        self.tidy(key, line)

    def _seen(self, key: Key) -> _TurnLine:
        """The line of `key` for reading; an empty one that is not kept if nobody waits."""
        return self._lines.get(key) or _TurnLine()

    def has_claim(self, key: Key, claim: str) -> bool:
        """Whether a claim of this process holds the lease, asks for it, or waits for it."""
        line = self._seen(key)
        return claim == line.holding_claim or claim in self.doubted or line.has(claim)

    def note_order(self, key: Key, claims: Iterable[str]) -> None:
        """Note the claims in the store's line: the first of ours there has to listen."""
        line = self._seen(key)
        line.order = [it for it in claims if line.has(it) or it in self.doubted]
        line.wake_first()

    def let_next_take(self, key: Key) -> None:
        """Let the next waiter of this process take at once, because no other process waits."""
        self._seen(key).take_at_once = True

    def end_turn(self, key: Key) -> float:
        """Let other processes come first; returns the seconds of this process's turn, or 0."""
        line = self._seen(key)
        if line.turn_began == inf:
            return 0.0
        since, line.turn_began, line.take_at_once = line.turn_began, inf, False
        return _now() - since

    def note_given(self, key: Key, claim: str) -> None:
        """Note that `claim` has released the lease, and wake the first waiter."""
        line = self._seen(key)
        if line.holding_claim == claim:
            line.holding_claim = None
            line.wake_first()

    def tidy(self, key: Key, line: _TurnLine) -> None:
        """Forget a line if nobody waits in it; another line may have begun since."""
        if line.waiters or line.new or self._lines.get(key) is not line:
            return
        found = self._lines.pop(key, None)
        if found is not None and (found.waiters or found.new):
            # Another thread has just joined the line.
            self._lines.setdefault(key, found)

    def waits(self, key: Key | None = None) -> bool:
        """Whether there is a waiter, for `key` or (None) at all."""
        return bool(self._lines if key is None else self._seen(key).waiters)

    def notify_all(self, *keys: Key) -> None:
        """Have all waiters for these keys look; without one, all at all."""
        for key in keys or self._lines.copy():
            self._seen(key).notify()

    async def wait(
        self,
        key: Key,
        claim: str,
        until: float,
        wakeup: Wakeup,
        listen: Callable[[], Awaitable[None]],
    ) -> None:
        """Return at `until`, when notified, or (as first in line) when `listen` ends."""
        line = self.line(key)
        waiter = line.waiters.setdefault(claim, _TurnWaiter())
        # Not without end: a loop that was closed with its tasks in it never ends this wait.
        waiter.lapses_at, waiter.wakeup = until + _SILENT, wakeup
        listens = False
        try:
            while not waiter.notified and _now() < until:
                first = line.first()
                if first is waiter:
                    if line.holding_claim is not None:
                        # Most leases of our own are brief, and their release wakes us at once.
                        await wakeup.wait(min(until, _now() + _BRIEF))
                    # Used up: of two that take at once, one would be refused.
                    at_once, line.take_at_once = line.take_at_once, False
                    if not at_once or line.holding_claim is not None:
                        listens = line.listens = True
                        await listen()
                    return
                # The first waiter may have gone without leaving the line.
                await wakeup.wait(until if first is None else min(until, first.lapses_at))
        except StoreError:
            # Another waiter may have more luck.
            line.leave(claim)
            self.tidy(key, line)
            raise
        finally:
            # It keeps its place meanwhile: usually its caller takes, and comes back.
            line.listens = line.listens and not listens
            waiter.notified, waiter.wakeup, waiter.lapses_at = False, None, _now() + _SILENT


class TakesTurns(Planned[Facts]):
    """Operations of an engine whose waiters take turns (`Capabilities.turns`).

    Candidates do not, because they want to know the leader; nor do claims that share a lease, and
    those that asked to be fair: the store keeps their line.
    """

    turns: Turns

    @abstractmethod
    def wakeup(self) -> Wakeup:
        """Make a Wakeup for a waiter of this side; any thread can wake it."""

    async def sleep(self, until: float) -> None:
        """Wait until an instant, or less."""
        await self.wakeup().wait(until)

    @abstractmethod
    async def wait_at_store(self, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change."""

    async def wait_as_first(self, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change, for the first waiter of this process."""
        await self.wait_at_store(key, seen, until)

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        if ask.queue is None or ask.queue.fair or ask.candidacy > 0 or ask.permits is not None:
            return await self.run(self.dialect.take(key, claim, ask), until)
        line = self.turns.line(key)
        if claim not in line.waiters and claim not in self.turns.doubted:
            shared = await line.await_refusal(claim, until, self.wakeup)
            if shared is not None:
                return line.stand(claim, ask.holder, shared)
        refused: Refused | None = None
        doubted = claim in self.turns.doubted
        try:
            # Before it is sent: until the answer is there, the claim may hold the lease.
            self.turns.doubted.add(claim)
            passes_on = line.take_at_once = line.may_pass_on(claim)
            outcome = await self.run(self.dialect.take(key, claim, ask), until)
            self.turns.doubted.discard(claim)
            if isinstance(outcome, Granted):
                line.holding_claim = claim
                if passes_on:
                    line.turn_began = min(line.turn_began, _now())
                line.leave(claim)
                if line.new:
                    holding = Holding(ask.holder, outcome.token, ask.ttl, ask.ttl)
                    refused = Refused("held", (holding,), ask.ttl)
                return outcome
            refused = outcome
            if isinstance(outcome, Queued) and claim not in line.order:
                line.order = [*line.order, claim]
            return line.stand(claim, ask.holder, outcome)
        except StoreUnavailable:
            if not doubted:
                # This take was not sent, so nothing else would remove it.
                self.turns.doubted.discard(claim)
            raise
        finally:
            # A claim that was refused, or whose take is in doubt, has nothing to pass on.
            line.take_at_once = line.take_at_once and line.holding_claim == claim
            line.share_refusal(refused)
            self.turns.tidy(key, line)

    async def give(
        self, key: Key, claim: str, token: int | None, until: float, *, parting: Parting = PLAIN
    ) -> GiveOutcome:
        self.turns.leave(key, claim)
        try:
            return await self.run(self.dialect.give(key, claim, token, parting), until)
        finally:
            # Also after an error: the next waiter asks the store, which knows.
            self.turns.note_given(key, claim)

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        if _MARK not in seen:
            await self.wait_at_store(key, seen, until)
            return
        seen, _, claim = seen.rpartition(_MARK)
        listen = partial(self.wait_as_first, key, seen, until)
        await self.turns.wait(key, claim, until, self.wakeup(), listen)
