"""Random histories of a quorum, judged by true time. One seed is one history.

python -m tests.quorum.simulator [PROFILE [A:B [BUG]]]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.quorum.bugs import Bugs, planted
from tests.quorum.claimant import RHO, TTL, Claimant
from tests.quorum.node import MINUTE, Node
from tests.quorum.world import UNIX, Heap, Machine, Network, Process, Profile

PROFILES = {
    "network": Profile(lost=0.08, slow=0.08),
    "pauses": Profile(lost=0.03, slow=0.05, pauses=0.5),
    "wipes": Profile(lost=0.03, slow=0.05, wipes=0.5, skew=0.2),
    "restarts": Profile(lost=0.03, slow=0.03, restarts=0.4, rollbacks=0.4, skew=0.2),
    "everything": Profile(
        lost=0.05, slow=0.05, pauses=0.3, wipes=0.3, restarts=0.3, rollbacks=0.3, freezes=0.3
    ),
    "clocks": Profile(lost=0.02, slow=0.03, skew=3600.0, freezes=0.2),
    "lists": Profile(lost=0.02, slow=0.02, masters=(5,), lists=2, calm=0.0),
    "crowded": Profile(
        lost=0.05,
        slow=0.2,
        slowness=(0.03, 0.1),
        holds=(0.0, 0.05),
        naps=(0.01, 0.1),
        contenders=6,
        skew=0.4,
        stale=0.4,
        length=1.5,
        calm=2.5,
    ),
    "wild": Profile(
        lost=0.1,
        slow=0.1,
        wipes=0.12,
        rollbacks=0.05,
        length=6.0,
        one_at_a_time=False,
        tokens_grow=False,
        calm=0.0,
    ),
    "new": Profile(lost=0.1, slow=0.1, new=True),
}


class Failure(AssertionError):
    """A rule was broken; `seed` shows it again."""

    def __init__(self, profile: str, seed: int, said: list[str]) -> None:
        super().__init__(f"profile {profile!r}, seed {seed}: " + "; ".join(said[:3]))
        self.seed = seed
        self.said = said


@dataclass
class Sight:
    """The judge: who believes, until when, and with which token."""

    heap: Heap
    beliefs: dict[str, tuple[int, float]] = field(default_factory=dict)
    tokens: list[int] = field(default_factory=list)
    grants: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    inflation: int = MINUTE
    tokens_grow: bool = True

    def believes(self, who: str, token: int, until: float) -> None:
        """See Judge: a belief that goes on, or a new one."""
        now = self.heap.time
        for other, (theirs, end) in self.beliefs.items():
            if other != who and end > now:
                self.wrong.append(
                    f"overlap at {now:.3f}: {who} ({token}) and {other} ({theirs}, to {end:.3f})"
                )
        mine = self.beliefs.get(who)
        self.beliefs[who] = (token, until)
        if mine is None or mine[0] != token:
            self._granted(who, token)

    def _granted(self, who: str, token: int) -> None:
        self.grants.append(self.heap.time)
        if self.tokens_grow and self.tokens and token <= self.tokens[-1]:
            self.wrong.append(f"token of {who}: {token} after {self.tokens[-1]}")
        ahead = token - int((UNIX + self.heap.time) * 1_000_000)
        if ahead > self.inflation:
            self.wrong.append(f"inflated: {who} got {token}, {ahead / 1e6:.1f} s ahead")
        self.tokens.append(token)

    def stops(self, who: str) -> None:
        """See Judge."""
        if who in self.beliefs:
            token, _ = self.beliefs[who]
            self.beliefs[who] = (token, self.heap.time)


class History:
    """One world with its faults."""

    def __init__(self, profile: Profile, seed: object, bugs: Bugs) -> None:
        self.profile = profile
        self.heap = Heap((profile, seed))
        self.dice = dice = self.heap.dice
        self.sight = Sight(self.heap, tokens_grow=profile.tokens_grow)
        count = dice.choice(profile.masters)
        self.machines = [self._machine(at, bugs) for at in range(count)]
        self.network = Network(self.heap, profile)
        self._hurt: list[float] = []
        for at in range(profile.contenders):
            self._contend(at, bugs)
        self._faults()

    def _machine(self, at: int, bugs: Bugs) -> Machine:
        dice, profile = self.dice, self.profile
        one = Machine(self.heap, at, Node(bugs.of_node))
        one.rate = dice.uniform(1 - RHO / 2, 1 + RHO / 2)
        # A wrong clock is one master's; small differences are everybody's.
        if profile.skew > 1:
            one.skew = dice.choice((-1, 1)) * profile.skew if at == 0 else 0.0
        else:
            one.skew = dice.uniform(-profile.skew, profile.skew)
        one.started = one.now() - 1000.0
        if not profile.new:
            one.node.data.marker = ("m", 0)
        return one

    def _contend(self, at: int, bugs: Bugs) -> None:
        dice = self.dice
        rate = dice.uniform(1 - RHO / 2, 1 + RHO / 2)
        process = Process(self.heap, self.network, f"p{at}", rate)
        machines: list[Machine] = self.machines
        members = "m"
        if self.profile.lists == 2:
            machines = self.machines[:3] if at < 2 else self.machines[2:]
            members = "m" if at < 2 else "other"
        claimant = Claimant(process, machines, members, self.sight, dice, self.profile.stale)
        claimant.panel.trusts_uptime = "no uptime quarantine" not in bugs.of_claimant
        end = self.profile.length + self.profile.calm
        claimant.lives = lambda: self.heap.time < end
        claimant.holds, claimant.naps = self.profile.holds, self.profile.naps
        claimant.calm = lambda: self.network.calm
        self.heap.after(dice.uniform(0, 0.3), lambda: process.start(claimant.life()))
        self._repeatedly(self.profile.pauses, lambda: self._pause(process))

    # -- faults

    def _faults(self) -> None:
        profile = self.profile
        for machine in self.machines:
            self._repeatedly(profile.wipes, lambda one=machine: self._wipe(one))
            self._repeatedly(profile.restarts, lambda one=machine: self._restart(one))
            self._repeatedly(profile.rollbacks, lambda one=machine: self._roll_back(one))
            self._repeatedly(profile.freezes, lambda one=machine: self._freeze(one))
            if profile.rollbacks:
                self._repeatedly(2.0, lambda one=machine: self._keep(one))

    def _repeatedly(self, rate: float, do: object) -> None:
        if not rate:
            return

        def again() -> None:
            if self.heap.time < self.profile.length:
                do()  # type: ignore[operator]
                self.heap.after(self.dice.expovariate(rate), again)

        self.heap.after(self.dice.expovariate(rate), again)

    def _may_lose(self) -> bool:
        """Whether only a minority lost data within the time in which a belief may be alive."""
        if not self.profile.one_at_a_time:
            return True
        now = self.heap.time
        self._hurt = [at for at in self._hurt if at > now - 2.5 * TTL]
        if len(self._hurt) >= len(self.machines) // 2:
            return False
        self._hurt.append(now)
        return True

    def _wipe(self, machine: Machine) -> None:
        if self._may_lose():
            if self.dice.random() < 0.5:
                machine.wipe()
            else:
                machine.restart(type(machine.node.data)(), self.dice.choice((0.01, 0.2, 1.0)))

    def _restart(self, machine: Machine) -> None:
        machine.restart(machine.node.data, self.dice.choice((0.01, 0.2, 1.0)))

    def _roll_back(self, machine: Machine) -> None:
        if self._may_lose():
            machine.restart(machine.snapshot.copy(), self.dice.choice((0.01, 0.2)))

    @staticmethod
    def _keep(machine: Machine) -> None:
        machine.snapshot = machine.node.data.copy()

    def _freeze(self, machine: Machine) -> None:
        machine.frozen_until = self.heap.time + self.dice.choice((0.05, 0.5, 1.5))

    def _pause(self, process: Process) -> None:
        process.paused_until = self.heap.time + self.dice.choice((0.1, 0.5, 1.5))

    # -- the run

    def run(self) -> Sight:
        """Faults, then calm: somebody must be granted in the second half of that."""
        profile = self.profile
        self.heap.run(profile.length)
        self.network.calm = True
        self.heap.run(profile.length + profile.calm)
        if profile.calm and not any(
            at > profile.length + profile.calm / 2 for at in self.sight.grants
        ):
            self.sight.wrong.append("stuck: no grant although all is well")
        return self.sight


def run(profile: str, seeds: Iterable[int], bugs: Bugs | None = None) -> int:
    """How many leases were granted. Raises Failure at the first history that breaks a rule."""
    granted = 0
    with planted(bugs or Bugs()):
        for seed in seeds:
            sight = History(PROFILES[profile], seed, bugs or Bugs()).run()
            if sight.wrong:
                raise Failure(profile, seed, sight.wrong)
            granted += len(sight.grants)
    return granted


def main() -> None:
    """Run histories from the command line."""
    name, seeds, bug = (*sys.argv[1:], *("", "0:1000", "")[len(sys.argv) - 1 :])
    first, _, end = seeds.partition(":")
    for profile in [name] if name else PROFILES:
        began = time.perf_counter()
        try:
            said = f"{run(profile, range(int(first), int(end)), Bugs.named(bug))} leases"
        except Failure as failure:
            said = str(failure)
        sys.stdout.write(f"{profile}: {said}, {time.perf_counter() - began:.1f} s\n")


if __name__ == "__main__":
    main()
