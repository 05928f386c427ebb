"""Random histories: whatever is done in any order, a store answers as the second model does.

A history is made of its seed alone, and its failure prints the seed and the last steps. A store's
test brings a store whose clock it moves. Tokens, versions and epochs may differ in value; tokens of
a name only grow, which is judged by itself. Everything else is compared after each step.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.model import (
    ABSENT,
    UNLIMITED,
    Ask,
    ByClaim,
    ByVersion,
    Granted,
    Guard,
    Holding,
    Key,
    Parting,
    Queue,
    Queued,
    Record,
    Refused,
    Renewal,
    Slot,
    Stored,
    TakeOutcome,
)
from incumbent.rules.notices import encode_notice
from incumbent.stores.base import Store
from tests.rules.model import Model

__all__ = ["KEYS", "History", "Subject", "play"]

KEYS = [Key("default", "a"), Key("default", "a/b")]
PERMITS: dict[str, int | None] = {
    **dict.fromkeys(["c1", "c2", "c3", "c4"]),
    **dict.fromkeys(["s1", "s2", "s3"], 2),
    **dict.fromkeys(["r1", "r2"], UNLIMITED),
}
"""The claims, and what each of them asks for."""
SLOTS = [None, Slot("s1", 4.0), Slot("s2", 20.0)]
QUEUES = [None, Queue(2.0, fair=True), Queue(8.0, fair=True), Queue(3.0), Queue(1.0)]
Shown: TypeAlias = "list[tuple[Any, ...]]"
WALL = 1_800_000_000.0
LONG = 1e6


@dataclass
class Subject:
    """The store, and what it is like. `move(now, wall)`: set its clocks.

    `queues`, `permits`: those that it knows; `late_kept`: seconds, 0 if it never needs them;
    `shows`: what it says of the holders in a refusal; `tick`: seconds between any two requests, if
    the store relies on it that its clock never stands still; `rests`: waiters that are told not to
    ask stay candidates meanwhile.
    """

    store: Store
    move: Callable[[float, float], None]
    queues: list[Queue | None] = field(default_factory=lambda: QUEUES)
    permits: dict[str, int | None] = field(default_factory=lambda: PERMITS)
    late_kept: float = 60.0
    shows: Callable[[str, Shown], Shown] = lambda reason, holdings: holdings
    tick: float = 0.0
    rests: bool = False


def play(seed: int, subject: Subject, steps: int = 60) -> None:
    """Play one history. Raises AssertionError, with the seed."""
    history = History(random.Random(seed), subject)
    try:
        for _ in range(steps):
            history.step()
            history.compare()
    except AssertionError as error:
        last = "\n  ".join(map(str, history.log[-6:]))
        raise AssertionError(f"seed {seed}: {error}\n  {last}") from error


class History:
    """One history of a store and of the model."""

    def __init__(self, rng: random.Random, subject: Subject) -> None:
        self.rng, self.subject, self.store = rng, subject, subject.store
        self.model = Model()
        self.model.late_kept = subject.late_kept
        # Each claim asks alike, as claims do; few names and few claims, so that they meet often.
        self.queue = {claim: rng.choice(subject.queues) for claim in subject.permits}
        self.slot = {claim: rng.choice(SLOTS) for claim in subject.permits}
        self.claims = rng.sample(sorted(subject.permits), rng.randint(2, 5))
        if rng.random() < 0.5:
            # Nearly all of them want the same, so that it is full.
            permits = subject.permits[self.claims[0]]
            alike = [claim for claim, those in subject.permits.items() if those == permits]
            self.claims = [*alike, self.claims[1]]
        self.now = 1_000.0
        self.granted: dict[tuple[Key, str], tuple[Granted, Granted]] = {}
        self.token_of: dict[tuple[Key, int], int] = {}
        self.version_of: dict[tuple[Key, int], int] = {}
        self.newest: dict[Key, int] = {}
        self.log: list[object] = []
        subject.move(self.now, self.wall)

    @property
    def wall(self) -> float:
        return self.now + WALL

    def until(self) -> float:
        return clock.now() + 60.0

    def step(self) -> None:
        """Do one thing."""
        rng = self.rng
        passed = self.subject.tick
        if rng.random() < 0.4:
            passed += rng.choice([0.25, 0.25, 0.5, 0.5, 1.0, 1.0, 3.0, 5.0, 30.0])
        if passed:
            self.now += passed
            self.subject.move(self.now, self.wall)
        key = KEYS[0] if rng.random() < 0.8 else KEYS[1]
        claim = rng.choice(self.claims)
        rng.choices([self.take, self.renew, self.give, self.put], [8, 2, 3, 2])[0](key, claim)

    def seen(self, key: Key) -> str:
        return self.store.read(key, self.until()).seen

    def say(self, what: str, ours: object, theirs: object) -> None:
        self.log.append((round(self.now, 2), what, ours, theirs))

    # -- operations ---------------------------------------------------------------------------

    def take(self, key: Key, claim: str) -> None:
        rng, permits = self.rng, self.subject.permits[claim]
        ask = Ask(
            rng.choice([0.5, 1.0, 3.0, 10.0, 10.0]),
            f"holder of {claim}",
            permits,
            self.queue[claim],
            claim.encode(),
            self.slot[claim] if permits is None else None,
            LONG,
            rng.choice([0.0, 0.0, 2.0, 9.0]),
        )
        late = self.model.has_given_up(key, claim, self.now)
        before = self.seen(key)
        ours: TakeOutcome | str
        try:
            ours = self.store.take(key, claim, ask, self.until())
        except StoreUnavailable as error:
            ours = str(error)
        theirs = self.model.take(key, claim, ask, self.now, self.wall)
        self.say(f"take {key} {claim} {ask}", ours, theirs)
        if late:
            # That it came too late may be an error, for nobody waits for an answer.
            assert not isinstance(ours, Granted | Queued), "a take that came too late"
            return
        assert type(ours) is type(theirs), "another answer"
        if isinstance(ours, Refused):
            assert self.seen(key) == before, "a refusal that is seen as a change"
        if isinstance(ours, Granted) and isinstance(theirs, Granted):
            self._granted(key, claim, ours, theirs)
        elif isinstance(ours, Refused) and isinstance(theirs, Refused):
            self._refused(key, ours, theirs)

    def _granted(self, key: Key, claim: str, ours: Granted, theirs: Granted) -> None:
        before = self.granted.get((key, claim))
        again = before is not None and before[1].token == theirs.token
        if again and before is not None:
            assert ours.token == before[0].token, "the same grant has another token"
        else:
            assert ours.token > self.newest.get(key, 0), "a token that does not grow"
        self.newest[key] = max(ours.token, self.newest.get(key, 0))
        self.token_of[key, theirs.token] = ours.token
        self.granted[key, claim] = (ours, theirs)
        assert (ours.claim, close(ours.ttl)) == (claim, close(theirs.ttl)), "claim or ttl"

    def _refused(self, key: Key, ours: Refused, theirs: Refused) -> None:
        assert (ours.reason, ours.permits) == (theirs.reason, theirs.permits), "another reason"
        if isinstance(ours, Queued) and isinstance(theirs, Queued):
            assert ours.place == theirs.place, "another place in line"
        assert close(ours.retry_after) == close(theirs.retry_after), "another retry_after"
        show = self.subject.shows
        holders = self.plain(key, ours.holders), self.plain(key, theirs.holders, theirs=True)
        assert show(ours.reason, holders[0]) == show(ours.reason, holders[1]), "other holders"

    def renew(self, key: Key, claim: str) -> None:
        if (key, claim) not in self.granted:
            return
        ours, theirs = self.granted[key, claim]
        shared = self.subject.permits[claim] is not None
        ttl, meta = self.rng.choice([0.5, 1.0, 3.0, 10.0]), self.rng.choice([None, b"new"])
        asked = Renewal(key, claim, ours.token, ttl, ours.epoch, meta, shared)
        expected = replace(asked, token=theirs.token, epoch=theirs.epoch)
        seen = (self.seen(key), self.model.seen(key))
        (got,) = self.store.renew([asked], self.until())
        wanted = self.model.renew(expected, self.now)
        self.say(f"renew {key} {claim} {ttl} {meta!r}", got, wanted)
        assert got == wanted, "another answer"
        after = (self.seen(key), self.model.seen(key))
        assert (after[0] == seen[0]) == (after[1] == seen[1]), "a change for one and not the other"

    def give(self, key: Key, claim: str) -> None:
        rng = self.rng
        closed, successor = rng.choice([0.0, 0.0, 0.0, 2.0]), rng.choice([None, "holder of c1"])
        slot = rng.choice([None, "s1", "s2"])
        shared = self.subject.permits[claim] is not None
        if shared:
            closed, successor, slot = 0.0, None, None
        tokens = self.tokens(key, claim)
        got = self.store.give(
            *(key, claim, tokens[0], self.until()),
            parting=Parting(closed_for=closed, reserve_for=successor, slot=slot, shared=shared),
        )
        wanted = self.model.give(
            *(key, claim, tokens[1], self.now, self.wall, closed, slot, successor)
        )
        self.say(f"give {key} {claim} {tokens[1]} {closed} {successor} {slot}", got, wanted)
        assert got == wanted, "another answer"

    def tokens(self, key: Key, claim: str) -> tuple[int | None, int | None]:
        """The token for a give: None in doubt, 0 for a claim that certainly holds nothing."""
        granted, holds = self.granted.get((key, claim)), self.model.holds(key, claim, self.now)
        if self.rng.random() < 0.05:
            return None, None
        if granted and (holds or self.rng.random() < 0.5):
            return granted[0].token, granted[1].token
        return 0, 0

    def put(self, key: Key, claim: str) -> None:
        rng = self.rng
        name, removes = rng.choice(["pause", *4 * ["resign", "state"]]), rng.random() < 0.6
        ours, theirs = self.granted.get((key, claim), (None, None))
        guards: list[tuple[Guard, Guard]] = [(None, None)]
        if name != "resign":
            # That is for operators, whose last word counts.
            guards.append((ABSENT, ABSENT))
            guards += [
                (ByVersion(self.version_of.get((key, version), version)), ByVersion(version))
                for version in (1, 2)
            ]
        if ours and theirs:
            guards.append((ByClaim(claim, ours.token), ByClaim(claim, theirs.token)))
        guard, expected = rng.choice(guards)
        values = [
            None if removes else encode_notice(who="op", token=it.token if it else 0)
            for it in (ours, theirs)
        ]
        got = self.store.put(key, name, values[0], guard, self.until())
        wanted = self.model.put(key, name, values[1], expected, self.now)
        self.say(f"put {key} {name} {removes} {guard}", got, wanted)
        assert type(got) is type(wanted), "another answer"
        if isinstance(got, Stored) and isinstance(wanted, Stored):
            assert (got.version == 0) == (wanted.version == 0), "a version of what was removed"
            self.version_of[key, wanted.version] = got.version

    # -- comparing ----------------------------------------------------------------------------

    def compare(self) -> None:
        """Compare all that the store and the model know."""
        for key in KEYS:
            ours = self.shown(self.store.read(key, self.until()))
            theirs = self.shown(self.model.read(key, self.now), theirs=True)
            if self.subject.rests:
                theirs["candidates"] = self.longer(ours["candidates"], theirs["candidates"])
            for part, of in ours.items():
                assert of == theirs[part], f"{part} of {key}: {of}, and not {theirs[part]}"
        found = self.store.scan("default", "a", self.until())
        assert [it.key for it in found if it.history or it.fields] == [
            it.key for it in self.model.scan("default", "a", self.now) if it.history or it.fields
        ], "another scan"

    def longer(self, ours: Any, theirs: Any) -> Any:
        """Ours, if each of theirs is there, and for at least as long; else theirs."""
        left = dict(ours)
        return ours if all(left.get(who, -1.0) >= it for who, it in theirs) else theirs

    def shown(self, record: Record, *, theirs: bool = False) -> dict[str, object]:
        key = record.key
        return {
            "holders": self.plain(key, record.holdings, theirs=theirs),
            "closing": (close(record.closed_for), record.reserved_for),
            "candidates": [(it.holder, close(it.remaining)) for it in record.candidates],
            "fields": {
                name: self.version_of[key, it.version] if theirs else it.version
                for name, it in record.fields.items()
            },
            "slots": {name: close(left) for name, left in record.slots.items()},
            "history": [
                (it.holder, self.token(key, it.token, theirs), close(it.started), close(it.ended))
                for it in record.history
            ],
        }

    def plain(self, key: Key, found: tuple[Holding, ...], *, theirs: bool = False) -> Shown:
        return [
            (
                *(it.holder, self.token(key, it.token, theirs), close(it.remaining)),
                *(close(it.ttl), close(it.held_for), it.meta, it.claim, it.permits),
            )
            for it in found
        ]

    def token(self, key: Key, token: int, theirs: bool) -> int:
        return self.token_of[key, token] if theirs and token else token


def close(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
