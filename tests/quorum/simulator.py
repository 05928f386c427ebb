"""Random histories of a quorum, judged by true time. One seed is one history.

python -m tests.quorum.simulator [PROFILE [A:B [BUG]]]
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.quorum.bugs import Bugs, planted
from tests.quorum.claimant import RHO, TTL, Claimant
from tests.quorum.node import LONGEST, MINUTE, SECOND, Node
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

COMBINED = "combined"
"""The profile that is drawn anew for each history: two or three dimensions of trouble at once."""
_LOSSES: tuple[dict[str, Any], ...] = ({"wipes": 0.3}, {"wipes": 0.3, "restarts": 0.1})
_CONNECTIVITY: tuple[dict[str, Any], ...] = (
    {"outages": 0.3},
    {"outages": 0.3, "slow": 0.05},
    {"lost": 0.05},
)
_CLOCKS: tuple[dict[str, Any], ...] = ({"skew": 25.0}, {"skew": 0.4}, {"skew": 25.0, "stale": 0.4})
_PROCESSES: tuple[dict[str, Any], ...] = (
    {"newcomers": 1.0, "naps": (3.0, 6.0), "contenders": 2, "length": 40.0, "calm": 40.0},
    {"newcomers": 1.0, "naps": (3.0, 6.0), "contenders": 2, "length": 40.0, "calm": 40.0},
    {"newcomers": 0.3, "pauses": 0.2},
    {"restarts": 0.2},
)
DIMENSIONS = (_LOSSES, _CONNECTIVITY, _CLOCKS, _PROCESSES)


def drawn(seed: object) -> Profile:
    """A combination: all but one or two of the dimensions."""
    dice = random.Random(repr((COMBINED, seed)))
    found: dict[str, Any] = {}
    for dimension in dice.sample(DIMENSIONS, dice.choice((2, 3, 4, 4))):
        found |= dice.choice(dimension)
    return Profile(**{"length": 8.0, "holds": (0.05, 0.3, 0.6), "masters": (3,), **found})


def profile_of(name: str, seed: object) -> Profile:
    """The profile of that name, for this history."""
    return drawn(seed) if name == COMBINED else PROFILES[name]


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
    slots: dict[str, str] = field(default_factory=dict)
    lines: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)

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

    def used(self, slot: str, claim: str) -> None:
        """See Judge."""
        if self.slots.setdefault(slot, claim) != claim:
            self.wrong.append(f"slot {slot} of both {self.slots[slot]} and {claim}")

    def begins(self) -> object:
        """See Judge: what is in the log for certain."""
        return frozenset(self.lines)

    def wrote(self, line: str, seen: str | None, begun: object) -> None:
        """See Judge."""
        found = (seen or " ").split(" ")[1].split(",")[:-1]
        if seen is not None and line in found:
            self.lines.add(line)
            return
        assert isinstance(begun, frozenset)
        for what, which in (
            ("lost from", begun - set(found)),
            ("denied and yet in", self.refused & set(found)),
            ("twice in", {it for it in found if found.count(it) > 1}),
        ):
            if which:
                self.wrong.append(f"{what} the log at {self.heap.time:.3f}: {sorted(which)[:3]}")
        self.lines.add(line)

    def denied(self, line: str) -> None:
        """See Judge."""
        self.refused.add(line)

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
        # A floor after a loss is a minute ahead of its node's clock.
        if profile.skew < 60:
            self.sight.inflation += int(profile.skew * SECOND)
        count = dice.choice(profile.masters)
        self.machines = [self._machine(at, bugs) for at in range(count)]
        self.network = Network(self.heap, profile)
        self._hurt: list[float] = []
        # What an older copy has forgotten, nothing shows.
        careful = profile.one_at_a_time and not profile.rollbacks
        self.beside = careful and dice.random() < profile.beside
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
            one.node.data.marker = ("m", 0, LONGEST)
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
        claimant.newcomers = self.profile.newcomers
        claimant.beside = self.beside
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
            self._repeatedly(profile.outages, lambda one=machine: self._cut_off(one))
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

    def _is_redundant(self, losing: Machine | None) -> bool:
        """Whether what a majority accepted is still told by each majority that forgot nothing."""
        if losing is None:
            return True
        newest = max(it.node.data.beside.states[:1] for it in self.machines)
        others = [it.node.data for it in self.machines if it is not losing]
        knowing = [it for it in others if it.beside.states or (it.marker and not it.marker[1])]
        same = sum(it.beside.states[:1] == newest for it in knowing)
        return same > 0 and same + len(self.machines) // 2 + 1 > len(knowing)

    def _may_lose(self, losing: Machine | None = None, lasts: float = 0.0) -> bool:
        """Whether only a minority is in trouble, or lost data while a belief may be alive."""
        if not self.profile.one_at_a_time:
            return True
        now = self.heap.time
        self._hurt = [end for end in self._hurt if end > now - 2.5 * TTL]
        # What nobody has asked since its loss does not count its quarantine yet.
        blank = sum(it.node.data.marker is None for it in self.machines)
        if self.beside and not self._is_redundant(losing):
            return False
        if not self.profile.new and max(len(self._hurt), blank) >= len(self.machines) // 2:
            return False
        self._hurt.append(now + lasts)
        return True

    def _wipe(self, machine: Machine) -> None:
        if not machine.down and self._may_lose(machine):
            if self.dice.random() < 0.5:
                machine.wipe()
            else:
                machine.restart(type(machine.node.data)(), self.dice.choice((0.01, 0.2, 1.0)))

    def _restart(self, machine: Machine) -> None:
        machine.restart(machine.node.data, self.dice.choice((0.01, 0.2, 1.0)))

    def _roll_back(self, machine: Machine) -> None:
        if self._may_lose():
            machine.restart(machine.snapshot.copy(), self.dice.choice((0.01, 0.2)))

    def _cut_off(self, machine: Machine) -> None:
        lasts = self.dice.choice((0.5, 1.0, 2.0))
        if self._may_lose(lasts=lasts - 2.5 * TTL):
            machine.cut_off_until = self.heap.time + lasts

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
            sight = History(profile_of(profile, seed), seed, bugs or Bugs()).run()
            if sight.wrong:
                raise Failure(profile, seed, sight.wrong)
            granted += len(sight.grants)
    return granted


def main() -> None:
    """Run histories from the command line."""
    name, seeds, bug = (*sys.argv[1:], *("", "0:1000", "")[len(sys.argv) - 1 :])
    first, _, end = seeds.partition(":")
    for profile in [name] if name else (*PROFILES, COMBINED):
        began = time.perf_counter()
        try:
            said = f"{run(profile, range(int(first), int(end)), Bugs.named(bug))} leases"
        except Failure as failure:
            said = str(failure)
        sys.stdout.write(f"{profile}: {said}, {time.perf_counter() - began:.1f} s\n")


if __name__ == "__main__":
    main()
