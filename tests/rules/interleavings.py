"""Clients of one register, request by request, and histories in which a rule keeps one from two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.model import Ask, Granted, Key, Released, Renewal, Renewed
from incumbent.stores.deciding import Deciding
from incumbent.stores.plan import Plan
from incumbent.stores.registers import Incarnation, Load, Registers, Swaps
from tests.rules.registers import DictRegisters

__all__ = ["HISTORIES", "KEY", "Client", "DictParty", "Party"]

KEY = Key("default", "job")
SECOND = 1_000_000
WITHIN = 30.0
"""Seconds for the answer to a request: a busy machine takes some of them."""


class Client:
    """One operation of one client, which goes on by one request at a time."""

    def __init__(self, registers: Registers, plan: Plan[None, Any]) -> None:
        self._registers = registers
        self._program = plan.start(None, 0.0)
        self._request = next(self._program)
        self.outcome: Any = None

    def go(self) -> Any:
        """Carry out one request."""
        try:
            self._request = self._program.send(self._reply())
        except StopIteration as done:
            self.outcome = done.value
        except StoreError as error:
            self.outcome = error
        return self.outcome

    def _reply(self) -> Any:
        until = clock.now() + WITHIN
        match self._request:
            case Load(wanted):
                return self._registers.load(wanted, until)
            case Swaps(swaps):
                return self._registers.swap(swaps, until)
        raise AssertionError(self._request)

    def finish(self) -> Any:
        """Carry out all that is left; returns the outcome or the error."""
        while self.outcome is None:
            self.go()
        return self.outcome


class Party:
    """A register, and what its clients ask for; and what befalls the store meanwhile."""

    def __init__(self, registers: Registers) -> None:
        self._registers = registers
        self._deciding = Deciding("x:")

    def take(self, claim: str) -> Client:
        return self._client(self._deciding.take(KEY, claim, Ask(10.0, claim)))

    def renew(self, grant: Granted) -> Client:
        asked = Renewal(KEY, grant.claim, grant.token, 10.0, grant.epoch)
        return self._client(self._deciding.renew([asked]))

    def give(self, grant: Granted) -> Client:
        return self._client(self._deciding.give(KEY, grant.claim, grant.token))

    def _client(self, plan: Plan[Any, Any]) -> Client:
        return Client(self._registers, plan)

    def pass_time(self, seconds: float) -> None:
        """Move the store's clock."""
        raise NotImplementedError

    def forget(self) -> None:
        """The store forgets all names, for which nobody has had any use for long."""
        raise NotImplementedError

    def copy(self) -> Any:
        """What a replica has that is up to date until now."""
        raise NotImplementedError

    def fail_over_to(self, copy: Any) -> None:
        """The replica is promoted: it begins a new incarnation with what it has."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the store."""


class DictParty(Party):
    """Of registers in a dict. `left_out`: a rule that they do not keep."""

    def __init__(self, left_out: str) -> None:
        self.registers = DictRegisters(left_out)
        super().__init__(self.registers)

    def pass_time(self, seconds: float) -> None:
        self.registers.now += int(seconds * SECOND)

    def forget(self) -> None:
        self.registers.rows.clear()

    def copy(self) -> Any:
        return self.registers.copy()

    def fail_over_to(self, copy: Any) -> None:
        self.registers.fail_over_to(copy, Incarnation("second", age=0.0))


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
    party.forget()
    b = party.take("b").finish()
    renewed = [party.renew(b).finish() == [Renewed()] for _ in range(2)]
    return isinstance(a.finish(), Granted) and all(renewed)


def a_take_by_what_the_primary_of_before_had(party: Party) -> bool:
    """B's grant was not replicated when the replica was promoted that A's swap reaches."""
    assert party.give(party.take("x").finish()).finish() == Released()
    replica = party.copy()
    a = party.take("a")
    a.go()
    b = party.take("b").finish()
    party.fail_over_to(replica)
    # B believes for its ttl from now on, for it cannot know.
    return isinstance(a.finish(), Granted) and isinstance(b, Granted)


HISTORIES: dict[str, Callable[[Party], bool]] = {
    "renewals": a_take_between_a_renewals_read_and_write,
    "versions": a_take_by_a_version_from_before_the_name_was_forgotten,
    "incarnation": a_take_by_what_the_primary_of_before_had,
}
