"""Combined faults in the quorum simulator: the store's own rounds on three or five masters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from incumbent.model import Granted
from incumbent.stores.quorum.ballots import majority_of
from incumbent.stores.quorum.dialect import QuorumDialect
from incumbent.stores.quorum.nodes import Quorum
from incumbent.stores.redis.records import Naming
from tests.combined.plan import Fault, Plan
from tests.history.checker import Broken, check
from tests.history.events import Grant, History
from tests.quorum.bugs import Bugs, planted
from tests.quorum.claimant import KEY, RHO, TTL, Claimant, SimPanel
from tests.quorum.node import Data, Node
from tests.quorum.stage import BORN_LONG_AGO
from tests.quorum.world import Heap, Machine, Network, Process, Profile

TIMES: Final = (1, 2, 4, 8)
"""How often one kind befalls a world."""
PLAYS: Final = frozenset(
    {
        *("skew", "step", "drift", "wipe", "restart empty", "restore"),
        *("cut one way", "held bytes", "slow", "frozen", "killed"),
        *("store frozen", "store down", "ttls differ", "rolling change"),
    }
)
_AFTER: Final = 4.0
"""Seconds that a history goes on after its last fault."""
_LIVES: Final = (0.5, 2.0, 20.0)
"""Seconds after which a process makes room for another one."""
_SKEW: Final = 30.0
"""Seconds: the most by which one master's clock is wrong."""
_DOWN: Final = 2.0
"""By how much longer a master is down than others are in trouble."""
_NAPS: Final = ((0.02, 0.1, 0.3), (0.5, 2.0, 4.0))
"""Seconds between two takes: a busy name, or one that is idle now and then."""
_DIALS: Final = 0.05
_RETRY: Final = 0.3
"""Seconds to wait for a master that others can do without, and between tries."""
_APART: Final = 2.5
"""In the longest ttl of a plan: masters lose their data one at a time, so far apart."""


class Teller:
    """The judge that a claimant tells; see tests.quorum.claimant.Judge."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self.told = History()
        self._open: dict[str, Grant] = {}

    def asked(self, who: str, claim: str, token: int, sent: float, until: float) -> None:
        """A proof: the first one of a claim, or one more."""
        known = self._open.get(who)
        if known is not None and known.claim == claim:
            sent, heard = known.sent, known.heard
        else:
            self.stops(who)
            heard = self._heap.time
        self._open[who] = Grant(who, KEY.name, claim, token, sent, heard, until)

    def believes(self, who: str, token: int, until: float) -> None:
        """See Judge: told by `asked`."""

    def stops(self, who: str) -> None:
        """It believes no longer."""
        grant = self._open.pop(who, None)
        if grant is not None:
            until = min(grant.until, self._heap.time)
            self.told.tell(Grant(*grant_parts(grant), until))

    def end(self) -> History:
        """All of it."""
        for who in list(self._open):
            self.stops(who)
        return self.told


def grant_parts(grant: Grant) -> tuple[str, str, str, int, float, float]:
    """All but its end."""
    return grant.who, grant.key, grant.claim, grant.token, grant.sent, grant.heard


class DialingPanel(SimPanel):
    """Waits for a majority alone; one that others can do without is tried now and then."""

    retry_at = 0.0

    async def open(self, until: float) -> None:
        """See SimPanel.open."""
        now, need = self.process.now(), majority_of(len(self.machines))
        if len(self.sessions) < len(self.machines) and now >= self.retry_at:
            await super().open(min(until, now + _DIALS))
            self.retry_at = self.process.now() + _RETRY
        if len(self.sessions) < need:
            await super().open(until)


class Contender(Claimant):
    """A claimant whose ttl may be another at each take."""

    ttl_now: Callable[[], float]

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        clock, names = self.quorum.clock, self.quorum.names
        # The wait after a restart is the default one: which ttls there are, nobody says.
        dialect = QuorumDialect(Naming(None), "m", None, "the quorum")
        self.quorum = Quorum(dialect, clock, names, "the quorum")
        panel = self.panel
        self.panel = DialingPanel(panel.process, panel.machines, self.quorum)

    async def _take(self) -> tuple[Granted | None, float]:
        self.ttl = self.ttl_now()
        return await super()._take()

    def _tell_judge(self, grant: Granted, sent: float, until: float) -> None:
        assert isinstance(self.judge, Teller)
        self.judge.asked(self.process.name, grant.claim, grant.token, sent, until)


class Wires(Network):
    """Between each process and each master something may be wrong for a while."""

    def __init__(self, heap: Heap, profile: Profile) -> None:
        super().__init__(heap, profile)
        self.wrong: dict[int, tuple[str, float]] = {}

    def befall(self, at: int, what: str, until: float) -> None:
        """What goes to or comes from this master meets that until then."""
        self.wrong[at] = (what, until)

    def send(self, machine: Machine, request: Any, answer: Callable[[Any], None]) -> None:
        """See Network.send."""
        what, until = self.wrong.get(machine.at, ("", 0.0))
        left = until - self.heap.time
        if left <= 0:
            super().send(machine, request, answer)
        elif what == "replies":
            super().send(machine, request, lambda reply: None)
        elif what == "held":
            self.heap.after(left, lambda: super(Wires, self).send(machine, request, answer))
        elif what == "slow":
            way = self.heap.dice.uniform(0.05, 0.3)
            self.heap.after(way, lambda: super(Wires, self).send(machine, request, answer))


class World:
    """One plan."""

    def __init__(self, plan: Plan, bugs: Bugs) -> None:
        self.plan, self.bugs = plan, bugs
        self.ends = plan.ends * TTL + _AFTER
        self.heap = heap = Heap(("combined", plan.seed))
        self.dice = heap.dice
        self.judge = Teller(heap)
        self.network = Wires(heap, Profile(lost=0.01, slow=0.02))
        self.machines = [self._machine(at) for at in range(self.dice.choice((3, 3, 3, 5)))]
        self.born = 0
        self.naps = self.dice.choice(_NAPS)
        self.processes = [self._process(at) for at in range(self.dice.choice((1, 2, 3)))]
        self._hurt = -1e9
        self._far = max(map(_factor, plan.faults), default=1.0)
        for fault in plan.faults:
            play: Callable[[Fault], None] | None
            play = getattr(self, "_" + fault.kind.replace(" ", "_"), None)
            if play is not None:
                heap.after(fault.at * TTL, partial(play, fault))

    def _machine(self, at: int) -> Machine:
        one = Machine(self.heap, at, Node(self.bugs.of_node))
        if "drift" in self.plan.kinds:
            one.rate = 1 + self.dice.choice((-1, 1)) * RHO / 2
        for fault in self.plan.faults:
            # A wrong clock is one master's.
            if fault.kind == "skew" and at == 0:
                one.skew = _SKEW * fault.size
        one.started = one.now() - 1000.0
        one.node.data.marker = BORN_LONG_AGO
        return one

    def _process(self, at: int) -> Process:
        rate = 1 + self.dice.choice((-1, 1)) * RHO / 2 if "drift" in self.plan.kinds else 1.0
        process = Process(self.heap, self.network, f"p{at}.{self.born}", rate)
        claimant = Contender(process, self.machines, "m", self.judge, self.dice)
        claimant.ttl_now, claimant.naps = self._ttl, self.naps
        ends = self.heap.time + self.dice.choice(_LIVES)
        claimant.lives = lambda: self.heap.time < ends

        async def life() -> None:
            await claimant.life()
            self._follow(at)

        self.heap.after(self.dice.uniform(0, 0.3), lambda: process.start(life()))
        return process

    def _follow(self, at: int) -> None:
        """Another process, which knows nothing of what the one before has heard."""
        if self.heap.time < self.ends:
            self.born += 1
            self.processes[at] = self._process(at)

    def _ttl(self) -> float:
        for fault in self.plan.faults:
            if fault.kind == "ttls differ" and self.dice.random() < 0.5:
                return TTL * _factor(fault)
            if fault.kind == "rolling change" and self.heap.time < fault.at * TTL:
                return TTL * _factor(fault)
        return TTL

    def _one(self, fault: Fault) -> Machine:
        return self.machines[fault.who % len(self.machines)]

    def _whom(self, fault: Fault) -> Process:
        return self.processes[fault.who % len(self.processes)]

    def _until(self, fault: Fault) -> float:
        return self.heap.time + fault.lasts * TTL

    def _may_lose(self) -> bool:
        if self.heap.time < self._hurt + _APART * TTL * self._far:
            return False
        self._hurt = self.heap.time
        return True

    # -- each kind ---------------------------------------------------------------------------

    def _step(self, fault: Fault) -> None:
        # Forward it ends what it stores too early: one more way to lose it.
        if self._may_lose():
            self.machines[0].skew += _SKEW * fault.size / 10

    def _wipe(self, fault: Fault) -> None:
        if self._may_lose():
            self._one(fault).wipe()

    def _restart_empty(self, fault: Fault) -> None:
        if not self._one(fault).down and self._may_lose():
            self._one(fault).restart(Data(), fault.lasts * TTL)

    def _restore(self, fault: Fault) -> None:
        one = self._one(fault)
        kept = one.node.data.copy()

        def put_back() -> None:
            if not one.down and self._may_lose():
                one.restart(kept, 0.01)

        self.heap.after(fault.lasts * TTL, put_back)

    def _cut_one_way(self, fault: Fault) -> None:
        what = "requests" if fault.size < 0 else "replies"
        self.network.befall(self._one(fault).at, what, self._until(fault))

    def _held_bytes(self, fault: Fault) -> None:
        self.network.befall(self._one(fault).at, "held", self._until(fault))

    def _slow(self, fault: Fault) -> None:
        self.network.befall(self._one(fault).at, "slow", self._until(fault))

    def _frozen(self, fault: Fault) -> None:
        self._whom(fault).paused_until = self._until(fault)

    def _killed(self, fault: Fault) -> None:
        process = self._whom(fault)
        process.script = None
        self.judge.stops(process.name)
        self._follow(fault.who % len(self.processes))

    def _store_frozen(self, fault: Fault) -> None:
        self._one(fault).frozen_until = self._until(fault)

    def _store_down(self, fault: Fault) -> None:
        one = self._one(fault)
        if not one.down:
            one.restart(one.node.data, fault.lasts * _DOWN * TTL)

    def run(self) -> History:
        """Let it all happen."""
        self.heap.run(self.ends)
        return self.judge.end()


def _factor(fault: Fault) -> float:
    if fault.kind in ("ttls differ", "rolling change"):
        return 2.0 + 8.0 * abs(fault.size)
    return 1.0


def play(plan: Plan, bugs: Sequence[str] = ()) -> list[Broken]:
    """What the plan breaks. A clock that jumps is not survived: docs/quorum.md says so."""
    of = Bugs.named(*bugs)
    with planted(of):
        history = World(plan, of).run()
    return check(history, but=frozenset({"belief"} if "step" in plan.kinds else ()))
