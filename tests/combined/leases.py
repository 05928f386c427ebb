"""Combined faults in the lease simulator: the real protocols, one store, virtual time."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Final
from unittest.mock import patch

from incumbent import policy
from incumbent.lease import LeaseState
from incumbent.model import Ask, Granted, Key, Slot
from incumbent.protocol.claim import Claim, LeaseRequest
from incumbent.protocol.port import Debt, Port
from incumbent.protocol.release import settle
from tests.combined.plan import Fault, Plan
from tests.history.checker import Broken, check
from tests.history.events import GivenUp, Grant, History, Left, Removed, Run, Stands
from tests.sim import world as simulated
from tests.sim.judge import Judge
from tests.sim.network import Network
from tests.sim.process import Process
from tests.sim.profiles import Fate, Profile
from tests.sim.server import Server
from tests.sim.setting import KEY, Client
from tests.sim.tasks import Exchange

TIMES: Final = (1, 1, 2, 3)
"""How often one kind befalls a world."""
PLAYS: Final = frozenset(
    {
        *("step", "drift", "restart empty", "restore", "record deleted"),
        *("cut one way", "held bytes", "slow", "frozen", "killed", "cancelled"),
        *("store frozen", "store down", "ttls differ", "rolling change"),
    }
)
_PROFILE: Final = Profile(
    "combined", "what the plan says", clients=(3, 3), rounds=(3, 5), ttls=(1.0, 1.5)
)


class Teller(Judge):
    """Tells the history instead of judging it; the verdicts of the simulator go elsewhere."""

    def __init__(self, world: Any) -> None:
        super().__init__(world)
        self.told = History()
        self.verdicts: list[str] = []
        self._open: dict[str, tuple[Client, Claim, float, float]] = {}
        self._left_at: dict[str, float] = {}
        self._first: dict[str, float] = {}

    def fail(self, rule: str, text: str) -> Any:
        """See Judge.fail: this history goes on."""
        self.verdicts.append(f"{rule}: {text}")

    def granted(self, key: Key, claim: str, ask: Ask, grant: Granted, now: float) -> None:
        """See Judge.granted."""
        super().granted(key, claim, ask, grant, now)
        true = self._world.now
        self._first.setdefault(claim, true)
        self.told.tell(Stands(key.name, claim, true))
        if ask.slot is not None:
            self.told.tell(Stands(key.name, claim, true, ask.slot.name))

    def began(self, process: Client, held: Claim, asked: list[str]) -> None:
        """See Judge.began."""
        super().began(process, held, asked)
        sent = process.when(held.machine.sent_at)
        self._open[held.id] = (process, held, sent, self._world.now)
        slot = held.wanted.unqueued.slot
        if slot is not None:
            key, begin = held.wanted.key.name, self._first.get(held.id, self._world.now)
            keep = slot.keep * (1 - 3 * held.wanted.policy.rho)
            self.told.tell(Run(process.name, key, slot.name, held.id, begin, keep))

    def leaves(self, process: Client, held: Claim, *, undone: bool) -> None:
        """See Judge.leaves."""
        super().leaves(process, held, undone=undone)
        self._ends(held.id)
        self._left_at[held.id] = self._world.now
        if undone:
            self.told.events = [
                replace(one, undone=True) if isinstance(one, Run) and one.claim == held.id else one
                for one in self.told.events
            ]

    def left(self, process: Client, held: Claim) -> None:
        """See Judge.left."""
        super().left(process, held)
        said = {LeaseState.RELEASED: "released", LeaseState.LOST: "lost"}
        word = said.get(held.machine.state, "unknown")
        at = self._left_at.pop(held.id)
        self.told.tell(Left(process.name, held.wanted.key.name, held.id, at, word))

    def lost(self, process: Client, held: Claim) -> None:
        """See Judge.lost."""
        super().lost(process, held)
        self._ends(held.id)
        key = held.wanted.key.name
        self.told.tell(Left(process.name, key, held.id, self._world.now, "lost"))

    def died(self, process: Client) -> None:
        """See Judge.died."""
        for claim, (owner, *_) in list(self._open.items()):
            if owner is process:
                self._ends(claim)
        super().died(process)

    def forced(self, key: Key, claim: str) -> None:
        """See Judge.forced."""
        self._removed(key, claim)
        super().forced(key, claim)

    def restarted(self, *, empty: bool) -> None:
        """See Judge.restarted."""
        if empty:
            for key, claim in self._records():
                self._removed(key, claim)
        super().restarted(empty=empty)

    def restored(self, claims: set[str]) -> None:
        """The store has the data of earlier, and in them the records of these claims again."""
        self.told.events = [
            one
            for one in self.told.events
            if not (isinstance(one, Removed) and one.claim in claims)
        ]
        for key, claim in self._records():
            if claim not in claims:
                self._removed(key, claim)
                del self._live[key][claim]

    def settled(self, debt: Debt) -> None:
        """Nobody remembers the claim any more."""
        self.told.tell(GivenUp("", debt.key.name, debt.claim, self._world.now))

    def _records(self) -> list[tuple[Key, str]]:
        return [(key, claim) for key, claims in self._live.items() for claim in claims]

    def _removed(self, key: Key, claim: str) -> None:
        if claim in self._live.get(key, {}):
            self.told.tell(Removed(key.name, claim, self._world.now))

    def _ends(self, claim: str) -> None:
        if claim not in self._open:
            return
        process, held, sent, heard = self._open.pop(claim)
        until = min(self._world.now, process.when(held.machine.deadline))
        key, token = held.wanted.key.name, held.machine.token
        self.told.tell(Grant(process.name, key, claim, token, sent, heard, until))


class HoldingNetwork(Network):
    """Bytes may be held on their way, and arrive when the network is whole again."""

    def __init__(self, world: Any, server: Server) -> None:
        super().__init__(world, server)
        self.held_until: dict[Client, float] = {}
        self.slow_until: dict[Client, float] = {}

    def carry(self, process: Client, task: Any, exchange: Exchange) -> None:
        """See Network.carry."""
        held = self.held_until.get(process, 0.0)
        world = self._world
        if world.now < held:
            overdue = max(world.now, process.when(exchange.until))
            self._time_out(task, overdue)
            world.at(held, self._arrive, task, -1, exchange, Fate.LOST_REPLY, overdue)
            return
        super().carry(process, task, exchange)

    def _fate(self, exchange: Exchange) -> Fate:
        slow = any(self._world.now < until for until in self.slow_until.values())
        return Fate.SLOW_REPLY if slow else super()._fate(exchange)


class CombinedWorld(simulated.World):
    """One plan on the simulator's processes and its server."""

    def __init__(self, plan: Plan, history: list[str] | None = None) -> None:
        self.plan = plan
        slots = 4.0 if plan.seed % 3 == 0 else 0.0
        profile = replace(
            _PROFILE,
            slots=slots,
            clocks_at_bounds="drift" in plan.kinds,
            interrupts=0.1 if "cancelled" in plan.kinds else 0.0,
        )
        self._ttls: dict[str, policy.Policy] = {}
        super().__init__(profile, plan.seed, history=history)
        # The store of the contract: what was given up in doubt it refuses.
        vars(self.server.table).pop("late_kept", None)
        # Which ttls there are, nobody says.
        self.server.restart_wait = None  # type: ignore[assignment]

    def draw_wanted(self) -> LeaseRequest:
        """See World.draw_wanted: the ttl may be another one."""
        wanted = super().draw_wanted()
        factor = self._factor()
        if factor == 1.0:
            return wanted
        ttl = self.ttl * factor
        slot = wanted.unqueued.slot
        slot = slot and Slot(slot.name, slot.keep * factor)
        ask = replace(wanted.unqueued, ttl=ttl, slot=slot)
        return LeaseRequest(wanted.key, ask, ask, policy.make_policy(ttl))

    def _factor(self) -> float:
        for fault in self.plan.faults:
            far = 2.0 + 8.0 * abs(fault.size)
            if fault.kind == "ttls differ" and self.rng.random() < 0.5:
                return far
            if fault.kind == "rolling change" and self.now < self._when(fault):
                return far
        return 1.0

    def _when(self, fault: Fault) -> float:
        return fault.at * self.ttl

    def _plan_misfortunes(self) -> None:
        for fault in self.plan.faults:
            play = getattr(self, "_" + fault.kind.replace(" ", "_"), None)
            if play is not None:
                self.at(self._when(fault), play, fault)

    def _of(self, fault: Fault) -> Process:
        return self.processes[fault.who % len(self.processes)]

    # -- each kind ---------------------------------------------------------------------------

    def _step(self, fault: Fault) -> None:
        self.server.wall_offset += 100.0 * fault.size

    def _restart_empty(self, fault: Fault) -> None:
        self.server.crash()
        self.at(self.now + 0.1 * fault.lasts * self.ttl, self._come_back, True)

    def _store_down(self, fault: Fault) -> None:
        self.server.crash()
        self.at(self.now + fault.lasts * self.ttl, self._come_back, False)

    def _come_back(self, empty: bool) -> None:
        self.say("server", "comes back " + ("empty" if empty else "with its data"))
        self.server.come_back(empty=empty)

    def _restore(self, fault: Fault) -> None:
        kept = copy.deepcopy(self.server.table)
        self.at(self.now + fault.lasts * self.ttl, self._put_back, kept)

    def _put_back(self, kept: Any) -> None:
        self.say("server", "is restored")
        holdings = kept.read(KEY, self.server.now()).holdings
        self.judge.restored({holding.claim for holding in holdings})  # type: ignore[attr-defined]
        self.server.table = kept
        self.server.come_back(empty=False)

    def _record_deleted(self, _: Fault) -> None:
        self.server.break_by_force(KEY)

    def _cut_one_way(self, fault: Fault) -> None:
        self._of(fault).cut_off(fault.lasts * self.ttl)

    def _held_bytes(self, fault: Fault) -> None:
        process = self._of(fault)
        until = self.now + fault.lasts * self.ttl
        self.say(process.name, f"  what it sends is held until {until:.3f}")
        self.network.held_until[process] = until  # type: ignore[attr-defined]

    def _slow(self, fault: Fault) -> None:
        self.network.slow_until[self._of(fault)] = self.now + fault.lasts * self.ttl  # type: ignore[attr-defined]

    def _frozen(self, fault: Fault) -> None:
        self._of(fault).freeze(fault.lasts * self.ttl)

    def _killed(self, fault: Fault) -> None:
        self._of(fault).crash()

    def _store_frozen(self, fault: Fault) -> None:
        self.server.freeze(fault.lasts * self.ttl)


def excused(plan: Plan) -> frozenset[str]:
    """Rules that no store can keep under these faults; docs/failures.md has each of them."""
    forgets = {"restart empty", "restore"} & plan.kinds
    return frozenset(
        name
        for name, known in (
            ("belief", "record deleted" in plan.kinds),
            # A slot that the store has forgotten is a new one.
            ("slot", forgets),
            # Who hears late that it was granted may work after a later holder: a fence refuses it.
            # Tokens begin at the wall clock again: set back meanwhile, they may shrink.
            ("tokens", "record deleted" in plan.kinds or (forgets and "step" in plan.kinds)),
        )
        if known
    )


def play(plan: Plan, history: list[str] | None = None) -> list[Broken]:
    """What the plan's history breaks."""
    judges: list[Teller] = []

    async def settling(port: Port, debt: Debt, timeout: float) -> bool:
        paid = await settle(port, debt, timeout)
        if paid:
            judges[0].settled(debt)
        return paid

    def judged(world: Any) -> Teller:
        judges.append(Teller(world))
        return judges[-1]

    with (
        patch.object(simulated, "Judge", judged),
        patch.object(simulated, "Network", HoldingNetwork),
        patch("tests.sim.process.settle", settling),
    ):
        CombinedWorld(plan, history).play()
    told = judges[0].told
    return check(told, but=excused(plan))
