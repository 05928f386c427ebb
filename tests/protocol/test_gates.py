"""What a lease may believe, and the time of its requests, begin behind the gate of its store."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any, cast

import pytest

from incumbent.errors import AcquireTimeout, NotAcquired, StoreUnavailable
from incumbent.lease import LeaseState
from incumbent.model import Ask, Granted, Key, Refused, Released
from incumbent.policy import Policy
from incumbent.protocol.acquire import acquire, acquire_all
from incumbent.protocol.claim import Claim, LeaseRequest
from incumbent.protocol.port import BlockingPort, Debt
from incumbent.protocol.release import release, release_all, release_blocking
from incumbent.stores.base import Limits, Place
from incumbent.stores.plan import run_blocking

POLICY = Policy(15.0)
KEY = Key("ns", "job")
WANTED = LeaseRequest(KEY, Ask(15.0, "me"), Ask(15.0, "me"), POLICY)
AT_THE_GATE = 7.0
"""Seconds that everybody waits there, on the clock of these tests."""


class Gate:
    """A gate that is passed after a while; `refuses` the next so many."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.refuses = 0
        self.entered: list[tuple[float, float]] = []
        self.left: list[bool] = []

    def enter_now(self) -> None:
        return None

    async def enter(self, until: float, patience: float = inf) -> Place:
        self.entered.append((until, patience))
        self.world.instant += AT_THE_GATE
        if self.refuses:
            self.refuses -= 1
            raise StoreUnavailable("no turn came")
        return self

    def leave(self, *, answered: bool) -> None:
        self.left.append(answered)


class World:
    """A port to a store that answers at once; its clock moves only at the gates."""

    def __init__(self, *outcomes: Any) -> None:
        self.instant = 100.0
        self.outcomes = list(outcomes)
        self.untils: list[float] = []
        self.owed: list[Debt] = []
        self.limits = Limits(Gate(self), Gate(self))
        self.store = _Blocking(self)

    def now(self) -> float:
        return self.instant

    def draw_claim(self) -> str:
        return "claim"

    def jitter(self) -> float:
        return 0.0

    def owe(self, debt: Debt) -> None:
        self.owed.append(debt)

    def log_outage(self, *_: object) -> None:
        pass

    async def sleep_until(self, instant: float) -> None:
        self.instant = max(self.instant, instant)

    async def wait_change(self, _: Key, __: str, until: float) -> None:
        self.instant = max(self.instant, until)

    def answer(self, until: float) -> Any:
        self.untils.append(until)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> Any:
        return self.answer(until)

    async def give(self, key: Key, claim: str, token: int | None, until: float, **_: Any) -> Any:
        return self.answer(until)

    async def take_all(self, takes: Any, until: float) -> Any:
        return [self.answer(until) for _ in takes]

    async def give_all(self, gives: Any, until: float) -> Any:
        return [self.answer(until) for _ in gives]


class _Blocking:
    def __init__(self, world: World) -> None:
        self.give = lambda *given, **how: run_blocking(world.give(*given, **how))


class Keeper:
    def arm(self, claim: Claim) -> None: ...

    def disarm(self, claim: Claim) -> None: ...


Acquire = Callable[[World, float | None], Claim]
ACQUIRES: dict[str, Acquire] = {
    "one": lambda world, timeout: run_blocking(acquire(cast("Any", world), WANTED, timeout)),
    "several": lambda world, timeout: run_blocking(
        acquire_all(cast("Any", world), Keeper(), [WANTED], timeout)
    )[0],
}
EACH = pytest.mark.parametrize("acquiring", ACQUIRES.values(), ids=ACQUIRES)
GRANT = Granted("claim", 1, 15.0)
REFUSAL = Refused("held", (), 1.0)


@EACH
@pytest.mark.parametrize("timeout", [None, 30.0, 0])
def test_belief_and_the_time_for_the_answer_count_from_behind_the_gate(
    acquiring: Acquire, timeout: float | None
) -> None:
    world = World(GRANT)
    claim = acquiring(world, timeout)
    sent = 100.0 + AT_THE_GATE
    assert world.untils == [sent + POLICY.request_timeout]
    assert claim.machine.deadline == pytest.approx(sent + POLICY.span)
    assert cast("Gate", world.limits.takes).left == [True]
    claim.machine.note_leaving()


@EACH
def test_a_wait_ends_at_its_timeout_at_the_gate_too(acquiring: Acquire) -> None:
    world = World(*[REFUSAL] * 9)
    with pytest.raises(AcquireTimeout):
        acquiring(world, 30.0)
    assert set(cast("Gate", world.limits.takes).entered) == {(130.0, inf)}
    assert max(world.untils) <= 130.0


@EACH
def test_a_single_try_waits_for_its_turn_while_the_store_answers(acquiring: Acquire) -> None:
    world = World(REFUSAL)
    with pytest.raises(NotAcquired):
        acquiring(world, 0)
    gate = cast("Gate", world.limits.takes)
    assert gate.entered == [(inf, POLICY.request_timeout)]
    assert gate.left == [True]


@EACH
def test_who_gets_no_turn_owes_nothing(acquiring: Acquire) -> None:
    world = World()
    cast("Gate", world.limits.takes).refuses = 1
    with pytest.raises(StoreUnavailable, match="no turn"):
        acquiring(world, 0)
    assert (world.untils, world.owed) == ([], [])


@EACH
def test_without_a_turn_a_wait_goes_on(acquiring: Acquire) -> None:
    world = World(GRANT)
    cast("Gate", world.limits.takes).refuses = 2
    claim = acquiring(world, 60.0)
    assert claim.machine.state is LeaseState.HELD
    assert world.owed == []
    claim.machine.note_leaving()


RELEASES: dict[str, Callable[[World, Claim], object]] = {
    "one": lambda world, claim: run_blocking(release(cast("Any", world), claim)),
    "blocking": lambda world, claim: release_blocking(
        cast("BlockingPort", world), claim, world.instant
    ),
    "several": lambda world, claim: run_blocking(release_all(cast("Any", world), [claim])),
}
Release = Callable[[World, Claim], object]
GIVING = pytest.mark.parametrize("giving", RELEASES.values(), ids=RELEASES)


def holding(world: World) -> Claim:
    return run_blocking(acquire(cast("Any", world), WANTED, None))


@GIVING
def test_a_release_has_its_time_from_behind_its_own_gate(giving: Release) -> None:
    world = World(GRANT, Released())
    claim = holding(world)
    at = world.instant + AT_THE_GATE
    assert giving(world, claim)
    assert world.untils[1:] == [at + POLICY.request_timeout]
    gives = cast("Gate", world.limits.gives)
    assert (gives.entered, gives.left) == ([(inf, POLICY.request_timeout)], [True])
    assert world.owed == []


@GIVING
def test_a_release_without_a_turn_is_owed(giving: Release) -> None:
    world = World(GRANT)
    claim = holding(world)
    cast("Gate", world.limits.gives).refuses = 1
    assert not giving(world, claim)
    assert [debt.claim for debt in world.owed] == ["claim"]


@GIVING
def test_a_release_without_an_answer_leaves_its_place_to_the_next(giving: Release) -> None:
    world = World(GRANT, StoreUnavailable("away"))
    claim = holding(world)
    giving(world, claim)
    assert cast("Gate", world.limits.gives).left == [False]
