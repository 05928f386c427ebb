"""A world is made from a seed and a profile, and every chance in it is drawn from that seed."""

from __future__ import annotations

from tests.sim.judge import Judge
from tests.sim.network import Network
from tests.sim.process import Process
from tests.sim.profiles import Profile
from tests.sim.server import Server
from tests.sim.setting import KEY, Setting
from tests.sim.several import Several

__all__ = ["World"]

_MOST_EVENTS = 5000


class World(Setting):
    """One server, some processes, a network and an operator; run it once."""

    def __init__(self, profile: Profile, seed: int, *, history: list[str] | None = None) -> None:
        super().__init__(profile, seed, history=history)
        self.judge = Judge(self)
        self.server = Server(self, self.judge)
        self.network = Network(self, self.server)
        kind = Several if profile.names else Process
        self.processes = [
            kind(self, self.network, self.judge, number)
            for number in range(1, self.rng.randint(*profile.clients) + 1)
        ]

    def play(self) -> None:
        """Let everything happen, and leave nothing behind."""
        for process in self.processes:
            self.at(0.0, process.start)
        self._plan_misfortunes()
        try:
            if not self.run(_MOST_EVENTS):
                self.judge.fail("busy", f"more than {_MOST_EVENTS} events, and no end")
        finally:
            for process in self.processes:
                process.crash()

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
            self.at(when, self.server.resign, KEY)
            return
        self.at(when, lambda: self.server.pause(KEY, on=True))
        again = when + self.ttl * self.rng.random()
        self.at(again, lambda: self.server.pause(KEY, on=False))

    def _plan_forgetting(self) -> None:
        chance = self.rng.random()
        if chance < 0.3:
            self.at(self._sometime(), self.server.break_by_force, KEY)
        elif chance < 0.6:
            self.at(self._sometime(), self.server.jump, self.ttl * 2 * self.rng.random())
        else:
            self._plan_restart()
