"""Any history of a shared name in the specification's table, against a model of a few lines."""

from __future__ import annotations

from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from incumbent.model import (
    UNLIMITED,
    Ask,
    Gone,
    Granted,
    Key,
    Parting,
    Queue,
    Refused,
    Released,
    Renewal,
    Renewed,
)
from incumbent.stores.memory import MemoryTable

KEY = Key("default", "job")
TTL, HEARTBEAT = 10.0, 3.0
CLAIMS = st.sampled_from([f"{number:032x}" for number in range(7)])
Kind = int | None


class Sharing(RuleBasedStateMachine):
    """`held`: what was granted and stands; `waits`: those who asked for fairness, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.table = MemoryTable()
        self.table.late_kept = 0.0
        self.now = 100.0
        self.kinds: list[Kind] = []
        self.asked: dict[str, Kind] = {}
        self.held: dict[str, tuple[Kind, Granted, float]] = {}
        self.waits: list[str] = []
        self.heard: dict[str, float] = {}
        self.token = 0

    @initialize(kinds=st.sampled_from([[2], [3, None], [UNLIMITED, None], [2, 3, UNLIMITED, None]]))
    def begins(self, kinds: list[Kind]) -> None:
        self.kinds = kinds

    # -- the model ---------------------------------------------------------------------------

    def live(self) -> dict[str, Kind]:
        return {claim: kind for claim, (kind, _, ends) in self.held.items() if ends > self.now}

    def has_room(self, kind: Kind) -> bool:
        live = self.live().values()
        if not live:
            return True
        alike = kind is not None and all(one == kind for one in live)
        return alike and (not kind or len(live) < kind)

    # -- what may happen ---------------------------------------------------------------------

    @rule(claim=CLAIMS, which=st.integers(0, 3), fair=st.booleans(), waits=st.booleans())
    def takes(self, claim: str, which: int, *, fair: bool, waits: bool) -> None:
        # A claim asks for one thing, for as long as it stands or waits.
        kind = self.asked.setdefault(claim, self.kinds[which % len(self.kinds)])
        stood, room = claim in self.live(), self.has_room(kind)
        queue = Queue(HEARTBEAT, fair=True) if claim in self.waits or (waits and fair) else None
        passes = [one for one in self.waits[:1] if one != claim and self.is_awake(one)]
        ask = Ask(TTL, claim[-4:], kind, queue=queue)
        outcome = self.table.take(KEY, claim, ask, self.now, self.now)
        if isinstance(outcome, Granted):
            self.is_granted(claim, kind, outcome, stood=stood, room=room)
            assert stood or not passes, f"{passes} stood in line, and was passed over"
            return
        assert isinstance(outcome, Refused)
        assert not stood, "who holds it was refused its repeated take"
        alike = kind is None or all(one in (kind, None) for one in self.live().values())
        assert (outcome.reason == "permits") is not alike
        if outcome.reason == "permits":
            assert outcome.permits == next(iter(self.live().values()))
        elif queue is not None:
            # A waiter that was silent for too long may have lost its place to those behind it.
            lapsed = claim in self.waits and not self.is_awake(claim)
            self.heard[claim] = -inf if lapsed else self.now
            self.waits += [] if claim in self.waits else [claim]
        if claim not in self.waits:
            self.asked.pop(claim)
        assert not room or self.waits or outcome.reason == "turn"

    def is_awake(self, claim: str) -> bool:
        """Whether it has asked so often that its turn cannot have gone by."""
        return self.now - self.heard[claim] < HEARTBEAT

    def is_granted(
        self, claim: str, kind: Kind, outcome: Granted, *, stood: bool, room: bool
    ) -> None:
        if stood:
            assert outcome.token == self.held[claim][1].token
        else:
            assert room, f"granted beside {self.live()}"
            assert outcome.token > self.token, "a token did not grow"
            self.token = outcome.token
        self.held[claim] = (kind, outcome, self.now + TTL)
        self.waits = [one for one in self.waits if one != claim]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def renews(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(sorted(self.held)))
        kind, grant, ends = self.held[claim]
        renewal = Renewal(KEY, claim, grant.token, TTL, grant.epoch, shared=kind is not None)
        outcome = self.table.renew(renewal, self.now)
        assert outcome == (Renewed() if ends > self.now else Gone())
        if ends > self.now:
            self.held[claim] = (kind, grant, self.now + TTL)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def gives(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(sorted(self.held)))
        kind, grant, ends = self.held.pop(claim)
        shared = kind is not None
        outcome = self.table.give(
            KEY, claim, grant.token, self.now, self.now, Parting(shared=shared)
        )
        assert outcome == (Released() if ends > self.now else Gone())
        self.forget(claim)

    @precondition(lambda self: self.waits)
    @rule(data=st.data())
    def leaves_the_line(self, data: st.DataObject) -> None:
        claim = data.draw(st.sampled_from(self.waits))
        assert self.table.give(KEY, claim, 0, self.now, self.now) == Gone()
        self.forget(claim)

    @rule(seconds=st.floats(0.01, TTL * 1.5))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for claim in set(self.held) - set(self.live()):
            # Its record is over: whoever comes again by it asks anew.
            if claim not in self.waits:
                self.asked.pop(claim, None)

    def forget(self, claim: str) -> None:
        self.asked.pop(claim, None)
        self.waits = [one for one in self.waits if one != claim]

    # -- what never may be -------------------------------------------------------------------

    @invariant()
    def the_record_has_those_who_hold_it(self) -> None:
        record = self.table.read(KEY, self.now)
        assert {one.claim: one.permits for one in record.holdings} == self.live()

    @invariant()
    def at_most_so_many_hold_it_or_one_alone(self) -> None:
        live = list(self.live().values())
        if None in live:
            assert live == [None]
        elif live and live[0]:
            assert len(live) <= live[0]
        assert len(set(live)) <= 1, "two numbers of permits at once"


TestSharing = Sharing.TestCase
TestSharing.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
