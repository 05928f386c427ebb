"""Two clients of one register, request by request: each rule of `stores.registers` is needed.

Each history is played twice: with all rules, where nobody is wronged; and with the one that it is
about left out, where two hold the name at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Ask, Gone, Granted, Key, Released, Renewal, Renewed
from incumbent.stores.deciding import Deciding
from incumbent.stores.plan import Plan
from incumbent.stores.registers import Incarnation, Load, Swaps
from tests.rules.registers import DictRegisters

KEY = Key("default", "job")
SECOND = 1_000_000


class Client:
    """One operation of one client, which goes on by one request at a time."""

    def __init__(self, registers: DictRegisters, plan: Plan[None, Any]) -> None:
        self._registers = registers
        self._program = plan.start(None, 0.0)
        self._request = next(self._program)
        self.outcome: Any = None

    def go(self) -> Any:
        """Carry out one request."""
        until = clock.now() + 5
        match self._request:
            case Load(wanted):
                reply: Any = self._registers.load(wanted, until)
            case Swaps(swaps):
                reply = self._registers.swap(swaps, until)
            case other:
                raise AssertionError(other)
        try:
            self._request = self._program.send(reply)
        except StopIteration as done:
            self.outcome = done.value
        except StoreError as error:
            self.outcome = error
        return self.outcome

    def finish(self) -> Any:
        """Carry out all that is left; returns the outcome or the error."""
        while self.outcome is None:
            self.go()
        return self.outcome


class Party:
    """A register, and what its clients ask for."""

    def __init__(self, left_out: str) -> None:
        self.registers = DictRegisters(left_out)
        self._deciding = Deciding("dict:")

    def take(self, claim: str) -> Client:
        return self._client(self._deciding.take(KEY, claim, Ask(10.0, claim)))

    def renew(self, grant: Granted) -> Client:
        asked = Renewal(KEY, grant.claim, grant.token, 10.0, grant.epoch)
        return self._client(self._deciding.renew([asked]))

    def give(self, grant: Granted) -> Client:
        return self._client(self._deciding.give(KEY, grant.claim, grant.token))

    def pass_time(self, seconds: float) -> None:
        self.registers.now += int(seconds * SECOND)

    def _client(self, plan: Plan[Any, Any]) -> Client:
        return Client(self.registers, plan)


def a_take_between_a_renewals_read_and_write(party: Party) -> bool:
    """A's view is of the instant at which B's lease is over; B had read it just before."""
    b = party.take("b").finish()
    party.pass_time(9.999)
    renewal = party.renew(b)
    renewal.go()
    party.pass_time(0.002)
    a = party.take("a")
    a.go()
    renewed = renewal.finish() == [Renewed()]
    return isinstance(a.finish(), Granted) and renewed


def a_take_by_a_version_from_before_the_name_was_forgotten(party: Party) -> bool:
    """A's view is of a free name at its third version; B's lease comes to its third one, too."""
    before = party.take("x").finish()
    assert party.renew(before).finish() == [Renewed()]
    assert party.give(before).finish() == Released()
    a = party.take("a")
    a.go()
    party.registers.rows.clear()
    b = party.take("b").finish()
    renewed = [party.renew(b).finish() == [Renewed()] for _ in range(2)]
    return isinstance(a.finish(), Granted) and all(renewed)


def a_take_by_what_the_primary_of_before_had(party: Party) -> bool:
    """B's grant was not replicated when the replica was promoted that A's swap reaches."""
    assert party.give(party.take("x").finish()).finish() == Released()
    replica = party.registers.copy()
    a = party.take("a")
    a.go()
    b = party.take("b").finish()
    party.registers.fail_over_to(replica, Incarnation("second", age=0.0))
    # B believes for its ttl from now on, for it cannot know.
    return isinstance(a.finish(), Granted) and isinstance(b, Granted)


HISTORIES: dict[str, Callable[[Party], bool]] = {
    "renewals": a_take_between_a_renewals_read_and_write,
    "versions": a_take_by_a_version_from_before_the_name_was_forgotten,
    "incarnation": a_take_by_what_the_primary_of_before_had,
}


@pytest.mark.parametrize("rule", HISTORIES)
def test_nobody_takes_what_another_holds(rule: str) -> None:
    assert not HISTORIES[rule](Party("nothing"))


@pytest.mark.parametrize("rule", HISTORIES)
def test_two_hold_the_name_where_the_rule_is_left_out(rule: str) -> None:
    assert HISTORIES[rule](Party(rule))


def test_a_swap_is_refused_once_the_clock_has_stepped_back() -> None:
    party = Party("nothing")
    a = party.take("a")
    a.go()
    party.pass_time(-60)
    refused = a.finish()
    assert isinstance(refused, StoreUnavailable)
    assert "stepped back" in str(refused)
    assert party.registers.rows == {}


def test_a_holder_from_before_a_failover_has_lost_its_lease() -> None:
    party = Party("nothing")
    b = party.take("b").finish()
    party.registers.fail_over_to({}, Incarnation("second"))
    assert party.renew(b).finish() == [Gone("store_restarted")]


def test_a_new_incarnation_grants_nothing_for_the_longest_ttl_that_it_knows_of() -> None:
    party = Party("nothing")
    party.registers.fail_over_to({}, Incarnation("second", age=59.0, longest=60.0))
    refused = party.take("a").finish()
    assert isinstance(refused, StoreUnavailable)
    assert refused.retry_after == pytest.approx(1.0)
    party.registers.fail_over_to({}, Incarnation("second", age=60.0, longest=60.0))
    assert isinstance(party.take("a").finish(), Granted)


def test_a_name_that_changes_all_the_time_is_given_up_for_now() -> None:
    party = Party("nothing")
    a = party.take("a")
    a.go()
    while a.outcome is None:
        other = party.take("x").finish()
        if isinstance(other, Granted):
            party.give(other).finish()
        a.go()
    assert isinstance(a.outcome, StoreUnavailable)
    assert a.outcome.retry_after
    assert "changed 8 times" in str(a.outcome)


def test_a_renewal_goes_on_where_a_take_gives_up() -> None:
    party = Party("nothing")
    b = party.take("b").finish()
    renewal = party.renew(b)
    renewal.go()
    for _ in range(20):
        assert party.renew(b).finish() == [Renewed()]
        renewal.go()
    assert renewal.finish() == [Renewed()]
