"""The third driver of the protocols: a Port whose waits are wishes to a virtual world."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, cast

from incumbent._core.port import Debt
from incumbent.errors import StoreError
from incumbent.model import Ask, GiveOutcome, Key, Renewal, Renewed, RenewOutcome, TakeOutcome
from incumbent.testing.sim.tasks import Exchange, Nap, wish

if TYPE_CHECKING:
    from incumbent.testing.sim.process import Process

__all__ = ["SimPort"]


class SimPort:
    """See incumbent._core.port.Port."""

    __slots__ = (
        "_process",
        "_server",
        "asked",
        "draw_claim",
        "jitter",
        "now",
        "released",
        "told_to_go",
    )

    def __init__(self, process: Process) -> None:
        self._process = process
        self._server = process.world.server
        self.now = process.now
        self.jitter = process.world.rng.random
        self.draw_claim = process.world.draw_claim
        self.asked: list[str] = []
        """The claims that were sent, since somebody emptied the list."""
        self.released: dict[str, GiveOutcome] = {}
        """What was heard of the releases by the holder itself, by claim."""
        self.told_to_go: set[str] = set()
        """The claims with a notice in the last answer to a renewal."""

    def hand_over(self, debt: Debt) -> None:
        """See Port.hand_over."""
        self._process.keeper.owe(debt)

    def tell_outage(self, key: Key, error: StoreError) -> None:
        """See Port.tell_outage."""

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """See Port.take."""
        if claim not in self.asked:
            self.asked.append(claim)
        wished = Exchange(self._server.take, (key, claim, ask), until)
        return cast(TakeOutcome, await wish(wished))

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        """See Port.renew."""
        wished = Exchange(self._server.renew, (renewals,), until)
        outcomes = cast("list[RenewOutcome]", await wish(wished))
        self.told_to_go = {
            renewal.claim
            for renewal, outcome in zip(renewals, outcomes, strict=True)
            if isinstance(outcome, Renewed) and outcome.notices
        }
        return outcomes

    async def give(
        self,
        key: Key,
        claim: str,
        token: int | None,
        until: float,
        *,
        closed_for: float = 0.0,
        reserve_for: str | None = None,
        slot: str | None = None,
    ) -> GiveOutcome:
        """See Port.give."""
        wished = Exchange(self._server.give, (key, claim, token, closed_for, slot), until)
        outcome = cast(GiveOutcome, await wish(wished))
        if token is not None:
            self.released[claim] = outcome
        return outcome

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        """See Port.wait_change; a lost hint is not an error."""
        self._server.listen(self._process.user, key, seen)
        await wish(Nap(until))

    async def sleep_until(self, instant: float) -> None:
        """See Port.sleep_until."""
        await wish(Nap(instant))

    async def rest(self, instant: float = inf) -> None:
        """Sleep until then, or until somebody wakes the task."""
        await wish(Nap(instant))
