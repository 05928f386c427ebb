"""A process that asks for several names at once, through the product's own lease on several."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

from incumbent.errors import LeaseLost, LockError
from incumbent.lease import LeaseState
from incumbent.locks.several import MultiLeaseHandle
from incumbent.model import Released
from incumbent.protocol.acquire import acquire_all
from incumbent.protocol.claim import Claim, LeaseRequest
from tests.sim.process import Process
from tests.sim.tasks import SIGNALS

__all__ = ["Several"]


class SimLease(MultiLeaseHandle):
    """By the clock of its process."""

    __slots__ = ()

    def _now(self) -> float:  # type: ignore[override]  # an instance knows its clock
        return self._claims[0].port.now()


class Several(Process):
    """A Host whose user takes some names of several, all or none."""

    async def _take_turn(self) -> None:
        wanted = self.world.draw_several()
        claims = await self._acquire_all(wanted)
        if claims:
            await self._use_all(claims)

    async def _acquire_all(self, wanted: list[LeaseRequest]) -> Sequence[Claim]:
        world, port, judge = self.world, self.port, self.judge
        timeout = world.draw_timeout()
        port.asked = []
        if world.history is not None:
            names = ", ".join(each.key.name for each in wanted)
            world.say(self.name, f"acquire({names}, timeout={timeout})")
        judge.asks(self)
        try:
            return await acquire_all(port, self.keeper, wanted, timeout)
        except (LockError, *SIGNALS) as error:
            for each in wanted:
                judge.ended_without(self, each, port.asked, error)
            if not isinstance(error, LockError):
                raise
            return []
        finally:
            judge.answered(self)

    async def _use_all(self, claims: Sequence[Claim]) -> None:
        keeper = SimpleNamespace(
            owe=self.port.owe,
            disarm=self.keeper.disarm,
            seconds_unscheduled=lambda _: 0.0,
        )
        link = SimpleNamespace(keeper=keeper, port=self.port)
        multi = SimLease(link, claims)  # type: ignore[arg-type]
        self.judge.began_all(self, multi, self.port.asked)
        try:
            await self._work_on(multi)
        finally:
            if not self.dead:
                await self._leave_all(multi)

    async def _work_on(self, multi: MultiLeaseHandle) -> None:
        world, rng = self.world, self.world.rng
        end = self.now() + world.draw_hold()
        while self.now() < end and multi.valid:
            self.judge.acts_on_all(self, multi)
            await self.port.sleep_until(min(end, self.now() + world.ttl * (0.2 + rng.random())))
            if rng.random() < world.profile.asks_renewal:
                self.keeper.renew_now(rng.choice(multi._claims))

    async def _leave_all(self, multi: MultiLeaseHandle) -> None:
        judge, now = self.judge, self.now()
        alive = [claim for claim in multi._claims if claim.machine.valid(now)]
        for claim in alive:
            judge.leaves(self, claim, undone=False)
        try:
            lost, confirmed = await multi._release(self.port)
            self._compare(multi, alive, lost, confirmed)
        finally:
            if not self.dead:
                judge.left_all(self, multi)

    def _compare(
        self,
        multi: MultiLeaseHandle,
        alive: Sequence[Claim],
        lost: LeaseLost | None,
        confirmed: bool,
    ) -> None:
        """What the caller is told, and what the store has answered for each."""
        outcomes = [self.port.released.get(claim.id) for claim in alive]
        for claim, outcome in zip(alive, outcomes, strict=True):
            given = claim.machine.state is LeaseState.RELEASED
            self.judge.released(self, claim, outcome, confirmed=given)
        ended = [claim for claim in multi._claims if claim.machine.state is LeaseState.LOST]
        if (lost is None) is not (not ended):
            self.judge.fail("success", f"{self.name} is told {lost!r}, and has lost {len(ended)}")
        if confirmed is not all(isinstance(outcome, Released) for outcome in outcomes):
            self.judge.fail("release", f"{self.name} says {confirmed}, and heard {outcomes}")
