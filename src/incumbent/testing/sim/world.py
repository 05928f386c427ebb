"""A world is made from a seed and a profile, and every chance in it is drawn from that seed."""

from __future__ import annotations

from random import Random

from incumbent import policy
from incumbent._core.held import Wanted
from incumbent.model import Ask, Key, Slot
from incumbent.testing.sim.judge import Judge
from incumbent.testing.sim.network import Network
from incumbent.testing.sim.process import Process
from incumbent.testing.sim.profiles import Profile
from incumbent.testing.sim.server import Server
from incumbent.testing.sim.tasks import Schedule

__all__ = ["World"]

_KEY = Key("sim", "job")
_INF = float("inf")
_MOST_EVENTS = 5000


class World(Schedule):
    """One server, some processes, a network and an operator; run it once."""

    def __init__(self, profile: Profile, seed: int, *, history: list[str] | None = None) -> None:
        super().__init__()
        self.profile = profile
        self.rng = rng = Random(seed)
        self.history = history
        self._claims = 0
        self.ttl = rng.choice(profile.ttls)
        self.policy = policy.make_policy(self.ttl, margin=profile.margin)
        self._quick = self.policy.request_timeout * 0.1
        self.judge = Judge(self)
        self.server = Server(self, self._rate())
        self.network = Network(self)
        count = rng.randint(*profile.clients)
        self.processes = [Process(self, number, self._rate()) for number in range(1, count + 1)]

    def play(self) -> None:
        """Let everything happen, and leave nothing behind."""
        for process in self.processes:
            self.at(0.0, process.start)
        self._plan_misfortunes()
        try:
            if not super().run(_MOST_EVENTS):
                self.judge.fail("busy", f"more than {_MOST_EVENTS} events, and no end")
        finally:
            for process in self.processes:
                process.crash()

    def say(self, who: str, text: str) -> None:
        """A line of the history, if somebody reads it."""
        if self.history is not None:
            self.history.append(f"{self.now:10.4f}  {who:9} {text}")

    # -- chances -----------------------------------------------------------------------------

    def _rate(self) -> float:
        rho, rng = self.policy.rho, self.rng
        if self.profile.clocks_at_bounds:
            return 1.0 + rho * rng.choice((-1, 1))
        return 1.0 + rho * rng.uniform(-1, 1)

    def quick(self) -> float:
        """Seconds of one way through a good network."""
        return self._quick * self.rng.random()

    def draw_claim(self) -> str:
        """See Port.draw_claim: here they can be told apart by people."""
        self._claims += 1
        return f"{self._claims:032x}"

    def draw_timeout(self) -> float | None:
        """What is asked of an acquire: once, for a while, or until it is had."""
        chance = self.rng.random()
        if chance < self.profile.tries_once:
            return 0.0
        return None if chance > 0.6 else self.ttl * 2 * self.rng.random()

    def draw_hold(self) -> float:
        """Seconds of the work: most is shorter than a ttl, some needs many renewals."""
        rng = self.rng
        return self.ttl * (rng.uniform(0.5, 2.5) if rng.random() < 0.3 else 0.6 * rng.random())

    def draw_wanted(self) -> Wanted:
        """What one acquire asks for."""
        profile, rng, ttl = self.profile, self.rng, self.ttl
        slot = None
        if profile.slots and rng.random() < 0.8:
            slot = Slot("once", ttl * profile.slots)
        at_most = at_least = 0.0
        if profile.bounds and rng.random() < 0.5:
            at_least = ttl * rng.random()
        if profile.bounds and rng.random() < 0.4:
            at_most = max(at_least, ttl * (0.3 + rng.random()))
        ask = Ask(ttl, "sim", slot=slot)
        return Wanted(_KEY, ask, self.policy, at_most or _INF, at_least)

    # -- misfortunes -------------------------------------------------------------------------

    def _plan_misfortunes(self) -> None:
        profile, rng = self.profile, self.rng
        for process in self.processes:
            if rng.random() < profile.crashes:
                self.at(self._sometime(), process.crash)
            if rng.random() < profile.freezes:
                self.at(self._sometime(), process.stall)
            if rng.random() < profile.partitions:
                self.at(self._sometime(), process.cut_off, self.ttl * 2 * rng.random())
        if rng.random() < profile.restarts:
            self._plan_restart()
        if rng.random() < profile.server_freezes:
            self.at(self._sometime(), self.server.freeze, self.ttl * rng.random())
        if rng.random() < profile.operators:
            self._plan_operator()
        if profile.overlaps:
            self._plan_forgetting()

    def _sometime(self) -> float:
        return self.ttl * 3.0 * self.rng.random()

    def _plan_restart(self) -> None:
        rng, down = self.rng, self._sometime()
        up = down + self.ttl * 0.5 * rng.random()
        empty = rng.random() < self.profile.wipes
        self.at(down, self.server.crash)
        self.at(up, self._come_back, empty)

    def _come_back(self, empty: bool) -> None:
        self.say("server", "comes back " + ("empty" if empty else "with its data"))
        self.server.come_back(empty=empty)
        if not empty:
            self.server.wall_offset += self.rng.uniform(-100.0, 100.0)

    def _plan_operator(self) -> None:
        when = self._sometime()
        if self.rng.random() < 0.5:
            self.at(when, self.server.resign, _KEY)
            return
        self.at(when, lambda: self.server.pause(_KEY, on=True))
        again = when + self.ttl * self.rng.random()
        self.at(again, lambda: self.server.pause(_KEY, on=False))

    def _plan_forgetting(self) -> None:
        chance = self.rng.random()
        if chance < 0.3:
            self.at(self._sometime(), self.server.break_by_force, _KEY)
        elif chance < 0.6:
            self.at(self._sometime(), self.server.jump, self.ttl * 2 * self.rng.random())
        else:
            self._plan_restart()
