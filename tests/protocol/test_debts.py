"""What is owed to a store, and for how long: until nothing can be left of a claim."""

from __future__ import annotations

from contextlib import suppress
from math import inf
from typing import Any, cast

import pytest

from incumbent.cron.runs import adopt
from incumbent.errors import StoreUnavailable
from incumbent.lease import LeaseMachine, LeaseState
from incumbent.model import Ask, GiveOutcome, Gone, Granted, Key, Refused, Released
from incumbent.policy import make_policy
from incumbent.protocol.claim import Claim, LeaseRequest
from incumbent.protocol.port import BlockingPort, Debt, ManyPort, Port
from incumbent.protocol.release import release, release_all, release_blocking, settle
from incumbent.runtime import keeper
from incumbent.runtime.keeper import Debts, Keeper
from incumbent.runtime.link import Link
from incumbent.runtime.sync import SyncPort
from incumbent.stores.base import NO_LIMITS
from incumbent.stores.memory import MemoryEngine
from incumbent.stores.plan import run_blocking

KEY = Key("ns", "job")
ASK = Ask(15.0, "me")


class _Port:
    """A clock, and a store that answers gives as it is told to."""

    limits = NO_LIMITS

    def __init__(self, *answers: GiveOutcome | BaseException) -> None:
        self.instant = 100.0
        self.answers = list(answers)
        self.owed: list[Debt] = []
        self.store = self

    def now(self) -> float:
        return self.instant

    def draw_claim(self) -> str:
        return "claim"

    def owe(self, debt: Debt) -> None:
        self.owed.append(debt)

    def _answer(self) -> GiveOutcome:
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer


class _Blocking(_Port):
    def give(self, *_: Any, **__: Any) -> GiveOutcome:
        return self._answer()


class _Awaited(_Port):
    async def give(self, *_: Any, **__: Any) -> GiveOutcome:
        return self._answer()


def _settled(port: _Port, debt: Debt) -> bool:
    return run_blocking(settle(cast("Port", port), debt, 1.0))


def _debt(doubt: int) -> Debt:
    return Debt(KEY, "claim", None, 120.0, doubt, float("-inf"))


def test_a_claim_in_doubt_is_owed_until_the_store_has_answered() -> None:
    port = _Awaited(StoreUnavailable("away"), Gone())
    port.instant = 100_000.0
    assert not _settled(port, _debt(1))
    assert _settled(port, _debt(1))


def test_a_claim_in_doubt_is_told_again_while_its_take_may_arrive() -> None:
    port = _Awaited(Gone(), Gone(), Released())
    assert not _settled(port, _debt(1))
    assert not _settled(port, _debt(1))
    assert _settled(port, _debt(1))


def test_a_certain_claim_is_settled_by_its_ttl() -> None:
    port = _Awaited()
    port.instant = 121.0
    assert _settled(port, _debt(0))


def _claim(port: _Port) -> Claim:
    claim = Claim(cast("Port", port), LeaseRequest(KEY, ASK, ASK, make_policy(15.0)))
    claim.machine.note_sent(port.now())
    assert claim.machine.note_granted(Granted(claim.id, 7, 15.0), port.now())
    return claim


@pytest.mark.parametrize("in_doubt", [0, 1])
def test_a_release_leaves_a_debt_only_for_a_take_that_was_never_answered(in_doubt: int) -> None:
    port = _Blocking(Released())
    claim = _claim(port)
    claim.takes_in_doubt = in_doubt
    # An hour later: what held the take up may hold it up for as long as it likes.
    assert release_blocking(cast("BlockingPort", port), claim, port.now() + 3600)
    assert [debt.takes_in_doubt for debt in port.owed] == [2] * in_doubt


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("failure", [StoreUnavailable("away"), KeyboardInterrupt()])
def test_a_release_that_got_no_answer_stays_owed(failure: BaseException, blocking: bool) -> None:
    port = _Blocking(failure) if blocking else _Awaited(failure)
    claim = _claim(port)
    with suppress(KeyboardInterrupt):
        if blocking:
            assert not release_blocking(cast("BlockingPort", port), claim, port.now())
        else:
            assert not run_blocking(release(cast("Port", port), claim))
    assert [(debt.claim, debt.takes_in_doubt) for debt in port.owed] == [("claim", 0)]


@pytest.mark.parametrize("in_doubt", [0, 1])
def test_whoever_adopts_a_lease_gives_up_the_takes_in_doubt_along_with_it(in_doubt: int) -> None:
    """A run of cron goes on in another process, and the take that got no answer may still come."""
    engine = MemoryEngine()
    link = Link(engine)
    wanted = LeaseRequest(KEY, ASK, ASK, make_policy(15.0))
    granted = engine.store().take(KEY, "claim", wanted.unqueued, link.port.now() + 5)
    assert isinstance(granted, Granted)
    assert adopt(link, wanted, "claim", in_doubt).release()
    link.keeper.drain(5.0)
    late = engine.store().take(KEY, "claim", wanted.unqueued, link.port.now() + 5)
    assert isinstance(late, Refused if in_doubt else Granted)
    link.close()


def test_a_release_that_a_signal_interrupts_at_its_first_step_is_believed_or_owed() -> None:
    port = _Awaited()
    claim, now = _claim(port), port.now

    def interrupted() -> float:
        raise KeyboardInterrupt

    setattr(port, "now", interrupted)  # noqa: B010 - it is a method for mypy
    with pytest.raises(KeyboardInterrupt):
        run_blocking(release(cast("Port", port), claim))
    setattr(port, "now", now)  # noqa: B010 - likewise
    assert port.owed or claim.machine.state is LeaseState.HELD
    claim.machine.note_leaving()


def test_of_several_releases_that_a_signal_interrupts_each_is_owed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port, left, calls = _Awaited(), LeaseMachine.note_leaving, list[LeaseMachine]()
    helds = [_claim(port), _claim(port)]

    def interrupted(machine: LeaseMachine) -> None:
        left(machine)
        calls.append(machine)
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(LeaseMachine, "note_leaving", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_blocking(release_all(cast("ManyPort", port), helds))
    assert len(port.owed) == 2
    assert not any(claim.machine.state is LeaseState.HELD for claim in helds)


@pytest.mark.parametrize("failure", [OverflowError(), KeyboardInterrupt()])
def test_what_could_not_be_paid_at_the_end_for_an_error_stays_owed(failure: BaseException) -> None:
    port, debts = _Awaited(failure, Released(), Released()), Debts()
    for claim in ("first", "second"):
        debts.add(Debt(KEY, claim, None, inf, 0, -inf))
    with pytest.raises(type(failure)):
        debts.drain(cast("SyncPort", port), 1.0)
    # A defect of one debt does not cost the others; an interruption ends it all.
    at_once = isinstance(failure, Exception)
    assert len(port.answers) == (1 if at_once else 2)
    assert [owed.debt.claim for owed in debts._owed] == ["first", "second"][: 2 - at_once]


def test_at_exit_a_store_that_fails_does_not_cost_another_its_leases(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    links = [Link(MemoryEngine()) for _ in range(3)]
    keepers = [link.keeper for link in links]
    monkeypatch.setattr(keeper, "_keepers", keepers)
    drained: list[Keeper] = []

    def drain(self: Keeper, timeout: float) -> None:
        assert 0 <= timeout <= 1
        drained.append(self)
        if self is keepers[1]:
            raise OverflowError

    with monkeypatch.context() as patch:
        patch.setattr(Keeper, "drain", drain)
        with pytest.raises(OverflowError):
            keeper._end_at_exit()
    assert {*drained} == {*keepers}
    for link in links:
        link.close()
