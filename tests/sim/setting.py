"""What a world is made from: a profile, a seed, and every chance that is drawn from it."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Protocol

from incumbent import policy
from incumbent.model import Ask, Key, Queue, Slot
from incumbent.protocol.claim import LeaseRequest
from tests.sim.profiles import Fate, Profile
from tests.sim.tasks import Clock, Schedule

__all__ = ["KEY", "Client", "Setting"]

KEY = Key("sim", "job")
_INF = float("inf")


class Client(Protocol):
    """What the network and the judge need of a process."""

    name: str
    clock: Clock
    dead: bool
    cut: Fate | None
    """What every exchange meets while the network is partitioned."""

    def now(self) -> float:
        """What its clock shows."""
        ...

    def when(self, shown: float) -> float:
        """The instant of true time at which `now` shows that."""
        ...

    def stall(self) -> float:
        """Freeze now, for a while that matters; say for how long."""
        ...


class Setting(Schedule):
    """The chances of one world, and the clock of its store."""

    def __init__(self, profile: Profile, seed: int, *, history: list[str] | None = None) -> None:
        super().__init__()
        self.profile = profile
        self.rng = rng = Random(seed)
        self.history = history
        self._claims = 0
        self.ttl = rng.choice(profile.ttls)
        delay = self.ttl * profile.lock_delay
        self.policy = policy.Policy(self.ttl, margin=profile.margin, lock_delay=delay)
        self._quick = self.policy.request_timeout * 0.1
        self.store_clock = self.draw_clock()
        self._shares = rng.choice(profile.shares) if profile.shares else ()
        self.together = bool(profile.names) and rng.random() < 0.5
        """Whether the store is asked for several leases in one request."""

    def say(self, who: str, text: str) -> None:
        """A line of the history, if somebody reads it."""
        if self.history is not None:
            self.history.append(f"{self.now:10.4f}  {who:9} {text}")

    def draw_clock(self) -> Clock:
        """A clock that keeps rho, with an origin of its own."""
        return Clock(self._rate(), self.rng.random() * 1000.0)

    def _rate(self) -> float:
        rho, rng = self.policy.rho, self.rng
        if self.profile.clocks_at_bounds:
            return 1.0 + rho * rng.choice((-1, 1))
        return 1.0 + rho * rng.uniform(-1, 1)

    def quick(self) -> float:
        """Seconds of one way through a good network."""
        return self._quick * self.rng.random()

    def draw_claim(self) -> str:
        """A claim that people can tell from others: they are numbered."""
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

    def draw_wanted(self) -> LeaseRequest:
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
        ask = Ask(self.policy.kept_for, "sim", slot=slot)
        if not self._shares:
            return LeaseRequest(KEY, ask, ask, self.policy, at_most or _INF, at_least)
        ask = replace(ask, permits=rng.choice(self._shares))
        waiting = replace(ask, queue=Queue(ttl / 3, fair=rng.random() < 0.7))
        return LeaseRequest(KEY, ask, waiting, self.policy)

    def draw_several(self) -> list[LeaseRequest]:
        """What one acquire of several names asks for, in their order."""
        names, rng, ttl = self.profile.names, self.rng, self.ttl
        ask = Ask(self.policy.kept_for, "sim")
        fair = rng.choice((None, True, False))
        waiting = ask if fair is None else replace(ask, queue=Queue(ttl / 3, fair=fair))
        drawn = rng.sample(names, rng.choice((1, 2, 2, 3)))
        return [
            LeaseRequest(Key("sim", name), ask, waiting, self.policy) for name in in_order(drawn)
        ]


def in_order(names: list[str]) -> list[str]:
    """As MultiLock does it."""
    return sorted(names)
