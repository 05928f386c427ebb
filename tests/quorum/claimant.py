"""A contender in the simulated world: the real rounds of the quorum's store, on a panel of ours."""

from __future__ import annotations

import random
import types
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Ask, ByClaim, Gone, Granted, Key, Parting, Renewal, Renewed, Slot
from incumbent.stores.quorum.ballots import BallotClock, Silent
from incumbent.stores.quorum.changes import Edit, change
from incumbent.stores.quorum.dialect import QuorumDialect
from incumbent.stores.quorum.nodes import NOT_ASKED, Enough, Panel, Quorum, Reply
from incumbent.stores.quorum.renew import renew
from incumbent.stores.quorum.take import give, take
from incumbent.stores.redis.records import Naming
from incumbent.stores.redis.resp import RequestBatch
from tests.quorum.world import LOOK, Machine, Nap, Process, Round

TTL = 1.0
RHO, MARGIN = 0.01, 0.05
SPAN = TTL * (1 - 2 * RHO) - MARGIN
REQUEST = TTL / 6
KEY = Key("sim", "one")

_UNKNOWN = OutcomeUnknown("no answer in time")
_ABSENT = StoreUnavailable("no connection")


class Judge(Protocol):
    """Hears of every belief."""

    def believes(self, who: str, token: int, until: float) -> None:
        """From now to `until` (true time), unless it says otherwise."""

    def stops(self, who: str) -> None:
        """It believes no longer."""

    def used(self, slot: str, claim: str) -> None:
        """The claim was told that the slot is its own."""

    def begins(self) -> object:
        """Somebody is about to write to the log."""

    def wrote(self, line: str, seen: str | None, begun: object) -> None:
        """The line was added to what was `seen`."""

    def denied(self, line: str) -> None:
        """The line was certainly not added."""


@types.coroutine
def _suspend(wanted: Round | Nap) -> Generator[Round | Nap, Any, Any]:
    return (yield wanted)


@dataclass
class Session:
    """A connection to one node: to which of its processes, since when that is up."""

    epoch: int
    born: float
    blank: bool


@dataclass
class SimPanel(Panel):
    """See nodes.Panel. A connection that gave no answer in time is not used again."""

    process: Process
    machines: Sequence[Machine]
    quorum: Quorum
    sessions: dict[int, Session] = field(default_factory=dict)
    owed: dict[int, list[bytes]] = field(default_factory=dict)
    trusts_uptime: bool = True

    @property
    def born(self) -> list[float | None]:
        """See Panel."""
        return [it.born if it else None for it in map(self.sessions.get, self._places)]

    @property
    def blank(self) -> bool:
        """See Panel."""
        return all(it is not None and it.blank for it in map(self.sessions.get, self._places))

    @property
    def _places(self) -> range:
        return range(len(self.machines))

    async def open(self, until: float) -> None:
        """See Panel; what is owed to a node leaves with its connection."""
        missing: dict[int, Any] = {at: LOOK for at in self._places if at not in self.sessions}
        if missing:
            answers = await self._round(missing, until)
            for at, (epoch, uptime, (unix, blank)) in answers.items():
                now = self.process.now()
                # As redis.server.Facts.born: whole seconds, so perhaps one too many.
                born = now - max(0.0, uptime - 1) if self.trusts_uptime else now - 1e6
                self.sessions[at] = Session(epoch, born, blank)
                self.quorum.clock.learn(at, unix, now)
        for at in list(self.owed):
            if at in self.sessions:
                payload = b"".join(self.owed.pop(at))
                envelope = (self.sessions[at].epoch, payload)
                self.process.network.send(self.machines[at], envelope, lambda reply: None)

    async def ask(
        self, steps: Sequence[RequestBatch | None], until: float, enough: Enough | None = None
    ) -> list[Reply]:
        """See Panel."""
        replies: list[Reply | None] = [
            None if step and at in self.sessions else self._silent(at)
            for at, step in enumerate(steps)
        ]
        wanted = {at: step.payload for at, step in enumerate(steps) if step and replies[at] is None}

        def suffices(answers: dict[int, Any]) -> bool:
            so_far = [answers[at][2] if at in answers else it for at, it in enumerate(replies)]
            return enough is not None and enough(so_far)

        if wanted:
            answers = await self._round(wanted, until, suffices if enough else None)
            for at in wanted:
                if at in answers:
                    replies[at] = answers[at][2]
                else:
                    replies[at] = Silent(_UNKNOWN, sent=True)
                    if self.process.now() >= until:
                        self.sessions.pop(at, None)
        return [reply if reply is not None else NOT_ASKED for reply in replies]

    def _silent(self, at: int) -> Silent:
        return NOT_ASKED if at in self.sessions else Silent(_ABSENT, sent=False)

    async def _round(
        self, requests: dict[int, Any], until: float, enough: Callable[..., bool] | None = None
    ) -> dict[int, Any]:
        sessions = self.sessions
        enveloped = {
            at: (self.machines[at], sessions[at].epoch if at in sessions else None, request)
            for at, request in requests.items()
        }
        within = max(0.0, until - self.process.now())
        answers: dict[int, Any] = await _suspend(Round(enveloped, within, enough))
        return answers

    async def rest(self, seconds: float) -> None:
        """See Panel."""
        await _suspend(Nap(seconds))

    def owe(self, node: int, key: Key, claim: str, ballot: int) -> None:
        """See Panel."""
        self.owed.setdefault(node, []).append(self.quorum.dialect.revoke(key, claim, ballot))


class StaleClock(BallotClock):
    """Reply the nodes' clocks before they were all stepped by so many microseconds."""

    def __init__(self, nodes: int, wrong_by: int) -> None:
        super().__init__(nodes)
        self._wrong_by = wrong_by

    def learn(self, node: int, unix_us: int, at: float) -> None:
        """See BallotClock."""
        super().learn(node, unix_us + self._wrong_by, at)


class Claimant:
    """Takes, holds, gives, again and again."""

    def __init__(
        self,
        process: Process,
        machines: Sequence[Machine],
        members: str,
        judge: Judge,
        dice: random.Random,
        stale: float = 0.0,
    ) -> None:
        self.process, self.judge, self.dice = process, judge, dice
        self.lives: Callable[[], bool] = lambda: True
        self.calm: Callable[[], bool] = lambda: False
        self.newcomers = 0.0
        self.holds: tuple[float, ...] = (0.05, 0.3, 1.0, 3.0)
        self.naps: tuple[float, ...] = (0.02, 0.1, 0.3)
        names = tuple(f"node {at}" for at in range(len(machines)))
        dialect = QuorumDialect(Naming(None), members, TTL, "the quorum")
        self.wrong_by = int(dice.uniform(-stale, stale) * 1e6)
        clock = StaleClock(len(machines), self.wrong_by)
        self.quorum = Quorum(dialect, clock, names, "the quorum")
        self.panel = SimPanel(process, machines, self.quorum)
        self.ttl = TTL
        self.beside = False
        """Whether it also uses slots, and writes to the log beside the lease."""
        self._claims = 0

    def forget_clocks(self) -> None:
        """As a process that has just started: it knows the clocks of those it can reach now."""
        self.quorum.clock.__init__(len(self.panel.machines), self.wrong_by)  # type: ignore[misc]
        self.panel.sessions.clear()

    async def life(self) -> None:
        """All of it."""
        while self.lives():
            if self.dice.random() < self.newcomers:
                self.forget_clocks()
            grant, sent = await self._take()
            if grant is not None:
                await self._hold(grant, sent)
            elif self.beside and self.dice.random() < 0.5:
                await self._log(None)
            await self.panel.rest(self.dice.choice(self.naps) * self.dice.uniform(0.5, 1.5))

    async def _take(self) -> tuple[Granted | None, float]:
        """At most a few tries of one claim, as `protocol.acquire` makes them."""
        self._claims += 1
        claim = f"{self.process.name}-{self._claims}"
        sent = self.process.now()
        ask = Ask(self.ttl, self.process.name)
        if self.beside and not self.calm() and self.dice.random() < 0.4:
            ask = Ask(TTL, self.process.name, slot=Slot(f"slot-{int(sent / 0.7)}", 3600.0))
        for _ in range(self.dice.choice((1, 3))):
            sent = self.process.now()
            until = sent + REQUEST
            try:
                await self.panel.open(until)
                took = await take(self.panel, KEY, claim, ask, until)
            except OutcomeUnknown:
                continue
            except StoreError:
                break
            if ask.slot is not None and isinstance(took, Granted):
                self.judge.used(ask.slot.name, claim)
            return (took, sent) if isinstance(took, Granted) else (None, sent)
        await self._give(claim, None, ask.slot)
        return None, sent

    async def _log(self, held: ByClaim | None) -> None:
        """Add a line to a field that all write to."""
        self._claims += 1
        line = f"{self.process.name}-{self._claims}"
        begun, until = self.judge.begins(), self.process.now() + REQUEST

        def decide(entry: bytes | None, ballot: int) -> Edit | None:
            return Edit(b"%d %b%b," % (ballot, (entry or b" ").split(b" ")[1], line.encode()))

        await self.panel.open(until)
        try:
            changed = await change(self.panel, KEY, "f:log", decide, until, held=held)
        except OutcomeUnknown:
            return
        except StoreError:
            self.judge.denied(line)
            return
        if changed.edited:
            seen = None if changed.seen is None else changed.seen.decode()
            self.judge.wrote(line, seen, begun)
        else:
            self.judge.denied(line)

    async def _hold(self, grant: Granted, sent: float) -> None:
        deadline = self._believe(grant, sent)
        if self.beside and self.dice.random() < 0.7:
            await self._log(ByClaim(grant.claim, grant.token))
        end = self.process.now() + self.dice.choice(self.holds) * self.ttl
        while self.process.now() < min(end, deadline) and not self.calm():
            await self.panel.rest(self.ttl / 5)
            sent = self.process.now()
            if sent >= deadline:
                break
            renewed = await self._renew(grant)
            if renewed is None and self.process.now() < deadline:
                continue
            if not renewed or self.process.now() >= deadline:
                break
            deadline = self._believe(grant, sent)
        self.judge.stops(self.process.name)
        if self.calm() or self.dice.random() < 0.9:
            await self._give(grant.claim, grant.token)

    def _believe(self, grant: Granted, sent: float) -> float:
        deadline = sent + self.ttl * (1 - 2 * RHO) - MARGIN
        if deadline > self.process.now():
            self._tell_judge(grant, sent / self.process.rate, deadline / self.process.rate)
        return deadline

    def _tell_judge(self, grant: Granted, sent: float, until: float) -> None:
        self.judge.believes(self.process.name, grant.token, until)

    async def _renew(self, grant: Granted) -> bool | None:
        """True, False (gone), or None where nobody knows."""
        until = self.process.now() + self.ttl / 6
        renewal = Renewal(KEY, grant.claim, grant.token, self.ttl, grant.epoch)
        await self.panel.open(until)
        try:
            (outcome,) = await renew(self.panel, [renewal], until)
        except StoreError:
            return None
        if isinstance(outcome, Renewed):
            return True
        return False if isinstance(outcome, Gone) else None

    async def _give(self, claim: str, token: int | None, slot: Slot | None = None) -> None:
        until = self.process.now() + REQUEST
        try:
            await self.panel.open(until)
            name = None if slot is None else slot.name
            await give(self.panel, KEY, claim, token, until, Parting(slot=name))
        except StoreError:
            pass
