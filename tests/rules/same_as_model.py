"""Any store answers as the second model of the contract does, whatever is done in any order.

A store's test brings a store whose clock it moves. Tokens, versions and epochs may differ in value
(each name's only grow, which is checked); everything else is compared. Beside the comparison, what
the store itself says is judged: of two exclusive grants one has ended before the other begins.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from incumbent import clock
from incumbent.model import (
    ABSENT,
    UNLIMITED,
    Ask,
    ByClaim,
    ByVersion,
    Granted,
    Guard,
    Key,
    Queue,
    Queued,
    Record,
    Refused,
    Renewal,
    Slot,
    Stored,
)
from incumbent.stores.base import Store
from incumbent.stores.notices import encode_notice
from tests.rules.model import Model

__all__ = ["FIELDS", "KEYS", "SameAsModel", "claims", "close", "keys"]

KEYS = [Key("default", "a"), Key("default", "a/b"), Key("other", "a")]
PERMITS: dict[str, int | None] = {
    **dict.fromkeys(["c1", "c2", "c3"]),
    **dict.fromkeys(["s1", "s2", "s3"], 2),
    **dict.fromkeys(["r1", "r2"], UNLIMITED),
}
"""The claims, and what each of them asks for."""
CLAIMS = list(PERMITS)
FIELDS = ["pause", "resign", "state"]
LONG = 1e6
WALL = 1.8e9

keys = st.sampled_from(KEYS)
claims = st.sampled_from(CLAIMS)
seconds = st.sampled_from([0.5, 1.0, 3.0, 10.0])
slots = st.sampled_from([None, Slot("s1", 4.0), Slot("s2", 20.0)])


class SameAsModel(RuleBasedStateMachine):
    """Subclasses make `store`, and move its clock to `now`."""

    queues: ClassVar[list[Queue | None]] = [
        None,
        Queue(2.0, fair=True),
        Queue(8.0, fair=True),
        Queue(3.0),
    ]
    permits: ClassVar[dict[str, int | None]] = PERMITS
    late_kept: ClassVar[float] = 60.0
    store: Store

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.model = Model()
        self.model.late_kept = self.late_kept
        # For a claim on a key: its last grant from the store, and the model's.
        self.granted: dict[tuple[Key, str], tuple[Granted, Granted]] = {}
        self.token_of: dict[tuple[Key, int], int] = {}
        self.version_of: dict[tuple[Key, int], int] = {}
        self.newest: dict[Key, int] = {}
        self.begin()

    def begin(self) -> None:
        """Make the store, empty, at the instant `now`."""
        raise NotImplementedError

    def move(self) -> None:
        """Set the store's clock to `now`, and its wall clock to `wall`."""

    @property
    def wall(self) -> float:
        return self.now + WALL

    def until(self) -> float:
        return clock.now() + 5.0

    @rule(by=st.sampled_from([0.3, 1.0, 5.0, 30.0]))
    def time_passes(self, by: float) -> None:
        self.now += by
        self.move()

    @rule(
        key=keys,
        claim=claims,
        ttl=seconds,
        slot=slots,
        stands=st.sampled_from([0.0, 2.0, 9.0]),
        data=st.data(),
    )
    def take(
        self, key: Key, claim: str, ttl: float, slot: Slot | None, stands: float, data: Any
    ) -> None:
        if self.permits[claim] is not None:
            slot = None
        ask = Ask(
            ttl, f"holder of {claim}", meta=claim.encode(), slot=slot, keep_record=LONG,
            candidacy=stands, queue=data.draw(st.sampled_from(self.queues)),
            permits=self.permits[claim],
        )  # fmt: skip
        ours = self.store.take(key, claim, ask, self.until())
        theirs = self.model.take(key, claim, ask, self.now, self.wall)
        assert type(ours) is type(theirs)
        if isinstance(ours, Granted) and isinstance(theirs, Granted):
            before = self.granted.get((key, claim))
            if before is None or before[0].token != ours.token:
                assert ours.token > self.newest.get(key, 0), "tokens grow"
                self.newest[key] = ours.token
            self.token_of[key, theirs.token] = ours.token
            self.granted[key, claim] = (ours, theirs)
            assert (ours.claim, close(ours.ttl)) == (claim, close(theirs.ttl))
        elif isinstance(ours, Refused) and isinstance(theirs, Refused):
            assert (ours.reason, ours.permits) == (theirs.reason, theirs.permits)
            if isinstance(ours, Queued) and isinstance(theirs, Queued):
                assert ours.place == theirs.place
            assert close(ours.retry_after) == close(theirs.retry_after)
            assert self.in_refusals(self.holdings(key, ours.holders)) == self.in_refusals(
                self.holdings(key, theirs.holders, theirs=True)
            )

    @rule(key=keys, claim=claims, ttl=seconds, meta=st.sampled_from([None, b"new"]))
    def renew(self, key: Key, claim: str, ttl: float, meta: bytes | None) -> None:
        if (key, claim) not in self.granted:
            return
        ours, theirs = self.granted[key, claim]
        shared = self.permits[claim] is not None
        asked = Renewal(key, claim, ours.token, ttl, ours.epoch, meta, shared)
        theirs_asked = replace(asked, token=theirs.token, epoch=theirs.epoch)
        seen = (self.store.read(key, self.until()).seen, self.model.seen(key))
        assert self.store.renew([asked], self.until()) == [self.model.renew(theirs_asked, self.now)]
        after = (self.store.read(key, self.until()).seen, self.model.seen(key))
        assert (after[0] == seen[0]) == (after[1] == seen[1])

    @rule(
        key=keys,
        claim=claims,
        closed=st.sampled_from([0.0, 2.0]),
        successor=st.sampled_from([None, "holder of c1", "holder of c2"]),
        slot=slots,
        any_=st.booleans(),
    )
    def give(
        self,
        key: Key,
        claim: str,
        closed: float,
        successor: str | None,
        slot: Slot | None,
        any_: bool,
    ) -> None:
        ours, theirs = self.granted.get((key, claim), (None, None))
        shared = self.permits[claim] is not None
        if shared:
            closed, successor, slot = 0.0, None, None
        name = slot.name if slot else None
        token = ours.token if ours and not any_ else None
        assert self.store.give(
            key,
            claim,
            token,
            self.until(),
            closed_for=closed,
            reserve_for=successor,
            slot=name,
            shared=shared,
        ) == self.model.give(
            key,
            claim,
            theirs.token if theirs and not any_ else None,
            self.now,
            self.wall,
            closed,
            name,
            successor,
        )

    @rule(key=keys, field=st.sampled_from(FIELDS), remove=st.booleans(), data=st.data())
    def put(self, key: Key, field: str, remove: bool, data: Any) -> None:
        claim = data.draw(claims)
        ours, theirs = self.granted.get((key, claim), (None, None))
        guards: list[tuple[Guard, Guard]] = [(None, None), (ABSENT, ABSENT)]
        guards += [
            (ByVersion(self.version_of.get((key, version), version)), ByVersion(version))
            for version in (1, 2)
        ]
        if ours and theirs:
            guards.append((ByClaim(claim, ours.token), ByClaim(claim, theirs.token)))
        guard, model_guard = data.draw(st.sampled_from(guards))
        values = [
            None if remove else encode_notice(who="op", token=it.token if it else 0)
            for it in (ours, theirs)
        ]
        stored = self.store.put(key, field, values[0], guard, self.until())
        expected = self.model.put(key, field, values[1], model_guard, self.now)
        assert type(stored) is type(expected)
        if isinstance(stored, Stored) and isinstance(expected, Stored):
            assert (stored.version == 0) == (expected.version == 0)
            self.version_of[key, expected.version] = stored.version

    @invariant()
    def all_records_are_the_same(self) -> None:
        for key in KEYS:
            ours = self.store.read(key, self.until())
            theirs = self.model.read(key, self.now)
            assert self.plain(ours) == self.plain(theirs, theirs=True)
        both = self.store.scan("default", "a", self.until())
        assert [record.key for record in both if record.history or record.fields] == [
            record.key
            for record in self.model.scan("default", "a", self.now)
            if record.history or record.fields
        ]

    def plain(self, record: Record, *, theirs: bool = False) -> list[object]:
        return [
            self.holdings(record.key, record.holdings, theirs=theirs),
            close(record.closed_for),
            record.reserved_for,
            [(it.holder, close(it.remaining)) for it in record.candidates],
            {
                name: self.version_of[record.key, field.version] if theirs else field.version
                for name, field in record.fields.items()
            },
            {name: close(left) for name, left in record.slots.items()},
            [
                (
                    past.holder,
                    self.token(record.key, past.token, theirs),
                    close(past.started),
                    close(past.ended),
                )
                for past in record.history
            ],
        ]

    def in_refusals(self, holdings: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
        """What the store says of holders in a refusal: it may leave out much of it."""
        return holdings

    def holdings(self, key: Key, found: Any, *, theirs: bool = False) -> list[tuple[object, ...]]:
        return [
            (
                held.holder,
                self.token(key, held.token, theirs),
                close(held.remaining),
                close(held.ttl),
                close(held.held_for),
                held.meta,
                held.claim,
                held.permits,
            )
            for held in found
        ]

    def token(self, key: Key, token: int, theirs: bool) -> int:
        return self.token_of[key, token] if theirs and token else token


def close(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
