"""Histories of a master and its sentinels: random failovers, delays and clients, by a seed.

Clients decide by the product's own rules: whose word counts (`verdict`), for how long, and what a
connection makes of the server that it meets (`meet`, `too_early`). The world is as bad as it may
be: sentinels hear late, each may promote any server that it does not take for the master, a server
that was replaced goes on until somebody tells it, restarts lose the data or not, replicas lag, and
each step of a client may take seconds. Sentinels agree on who promotes (epochs are unique).

Whatever the clocks show, no two hold it at once. Tokens need clocks that are no worse than they can
bear: see TIMELY and RARE.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf
from random import Random
from typing import NamedTuple

from incumbent.errors import StoreError
from incumbent.stores.redis import sentinel
from incumbent.stores.redis.incarnation import TOKEN_JUMP, Handshake, ServerFacts
from incumbent.stores.redis.options import RedisTarget
from incumbent.stores.redis.sentinel import Opinion
from incumbent.stores.redis.site import RedisSite
from incumbent.stores.redis.take import too_early
from tests.stores.redis.meeting import NOW, Server

TTL = 1.0


class Clocks(NamedTuple):
    """How wrong the clocks of servers are, and how far apart what befalls them. In seconds.

    `wait`: the `restart_wait`; `skew`: the most by which a clock is wrong; `apart`: the least
    between two failovers: if any, no server restarts.
    """

    wait: float
    skew: float
    apart: float = 0.0


HARSH = Clocks(TTL, 20.0)
"""Clocks are further apart than failovers: tokens may shrink."""
TIMELY = Clocks(4 * TTL, 0.45)
"""Clocks differ by less than the time between two incarnations that both grant: the first waited
before it did, for longer than an answer of the sentinels counts."""
RARE = Clocks(TTL, 0.49 * TOKEN_JUMP, TOKEN_JUMP + 5)
"""Clocks differ by less than a jump, failovers are further apart, and nothing restarts."""
SERVERS = range(3)
SENTINELS = range(3)
MAJORITY = sentinel.majority_of(len(SENTINELS))

Steps = Generator[float]
"""Does something, and yields the seconds until it goes on."""
Verdict = Callable[[Sequence[Opinion], int, str], Opinion]


@dataclass(frozen=True)
class Rules:
    """Those of the product; a test leaves one out."""

    verdict: Verdict = sentinel.verdict
    proves: float = sentinel.PROVES
    old_master_for: float = sentinel.OLD_MASTER_FOR
    promotions: bool = True


class Belief(NamedTuple):
    """One lease, as its holder believes in it: from its grant on, until when, by which token."""

    start: float
    end: float
    client: str
    token: int


@dataclass
class Lease:
    client: str
    token: int
    ends: float


class Node(Server):
    """One Redis."""

    def __init__(self, number: int, skew: float) -> None:
        super().__init__(run_id=f"run{number}", master_replid="first", role="slave")
        self.skew = skew
        self.lease: Lease | None = None
        self.token = 0
        self.connections = 0
        """Of which generation; a restart ends them, and so do sentinels that reconfigure it."""

    def at(self, now: float) -> Node:
        self.clock = NOW + now + self.skew
        return self

    @property
    def leads(self) -> bool:
        return self.info["role"] == "master"

    def take(self, client: str, met: Handshake, now: float) -> Lease | None:
        """As take.lua and renew.lua."""
        found = self.lease
        if found is not None and found.ends > now:
            if found.client != client:
                return None
            found.ends = now + TTL
            return found
        self.token = max(self.token + 1, met.marker.floor, round(self.at(now).clock * 1e6))
        self.lease = Lease(client, self.token, now + TTL)
        return self.lease

    def copy(self, other: Node) -> None:
        self.data, self.token = dict(other.data), other.token
        self.lease = None if other.lease is None else replace(other.lease)


@dataclass
class World:
    """See the module. `beliefs` is what came of it."""

    seed: int
    rules: Rules = field(default_factory=Rules)
    clocks: Clocks = HARSH
    beliefs: list[Belief] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self._site = RedisSite(RedisTarget(), "here", restart_wait=self.clocks.wait)
        self._failed_over = 0.0
        skew = self.clocks.skew
        self.nodes = [Node(number, self.random.uniform(-skew, skew)) for number in SERVERS]
        self.nodes[0].info["role"] = "master"
        self.opinions = [Opinion(0, ("0", 1)) for _ in SENTINELS]
        self._names = count()
        self._events: list[tuple[float, int, Steps]] = []

    def run(self, seconds: float) -> World:
        for steps in (self._sentinels(), self._operator(), *map(self._client, "abcdefgh")):
            self._later(0.0, steps)
        while self._events[0][0] < seconds:
            self.now, _, steps = heapq.heappop(self._events)
            self._later(next(steps), steps)
        return self

    def _later(self, seconds: float, steps: Steps) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._names), steps))

    def _delay(self) -> float:
        """Mostly short, now and then as on a machine that is frozen or overloaded."""
        return self.random.choice([0.001, 0.01, 0.1, 0.3, 0.8, 1.9, 7.0])

    # -- servers and sentinels ----------------------------------------------------------------

    def _sentinels(self) -> Steps:
        random = self.random
        while True:
            yield random.uniform(0.0, 1.5)
            one, other = random.sample(SENTINELS, 2)
            if random.random() < 0.06 and self.now >= self._failed_over + self.clocks.apart:
                self._promote(one)
            elif random.random() < 0.5:
                self.opinions[other] = max(self.opinions[one], self.opinions[other])
            else:
                self._tell(one)

    def _promote(self, leader: int) -> None:
        self._failed_over = self.now
        own = self.opinions[leader]
        chosen = self.random.choice([it for it in SERVERS if it != _number(own)])
        node = self.nodes[chosen]
        node.connections += 1
        if not node.leads:
            # One that leads already notices nothing.
            fresh = f"history{next(self._names)}"
            node.info |= {"role": "master", "master_replid2": node.info["master_replid"]}
            node.info["master_replid"] = fresh
        epoch = max(opinion.epoch for opinion in self.opinions) + 1
        self.opinions[leader] = Opinion(epoch, (str(chosen), 1))

    def _tell(self, one: int) -> None:
        """A sentinel has a server follow the master that it knows: now it has the same data."""
        master = self.nodes[_number(self.opinions[one])]
        node = self.random.choice(self.nodes)
        if node is not master and master.leads:
            node.info |= {"role": "slave", "master_replid": master.info["master_replid"]}
            node.info["master_replid2"] = master.info["master_replid2"]
            node.connections += 1
            node.copy(master)

    def _operator(self) -> Steps:
        while True:
            yield self.random.uniform(2.0, 15.0)
            if self.clocks.apart:
                continue
            node = self.random.choice(self.nodes)
            node.info |= {"run_id": f"run{next(self._names)}"}
            node.connections += 1
            if self.random.random() < 0.5:
                node.data.clear()
                node.lease, node.token = None, 0
                node.info["master_replid2"] = "0000"

    # -- clients ------------------------------------------------------------------------------

    def _client(self, name: str) -> Steps:
        while True:
            yield self._delay()
            yield from self._try(name)

    def _try(self, name: str) -> Steps:
        asked = self.now
        opinion = yield from self._ask(asked)
        if opinion is None:
            return
        node = self.nodes[_number(opinion)]
        yield self._delay()
        if not node.leads:
            return
        connection, promotion = node.connections, opinion.epoch if self.rules.promotions else None
        met = node.at(self.now).met_by(f"{next(self._names)}", NOW + self.now, promotion=promotion)
        yield self._delay()
        known = ServerFacts()
        known.learn_from(met, self.now, self.rules.old_master_for)
        sent = self.now
        if sent >= asked + self.rules.proves or too_early(self._site, known, TTL, sent) is not None:
            return
        yield self._delay()
        if node.connections == connection and node.leads:
            lease = node.take(name, met, self.now)
            if lease is not None and self.now < sent + TTL:
                self.beliefs.append(Belief(self.now, sent + TTL, name, lease.token))

    def _ask(self, asked: float) -> Generator[float, None, Opinion | None]:
        answers: list[Opinion] = []
        for one in self.random.sample(SENTINELS, len(SENTINELS)):
            yield self._delay()
            answers.append(self.opinions[one])
            if self.now >= asked + self.rules.proves:
                return None
            try:
                return self.rules.verdict(answers, len(SENTINELS), "here")
            except StoreError:
                continue
        return None


def _number(opinion: Opinion) -> int:
    return int(opinion.address[0])


def broken(beliefs: Sequence[Belief], *, tokens: bool) -> str | None:
    """What is wrong: two at once, or (`tokens`) one that does not grow from holder to holder."""
    ends, holder, token = -inf, "", 0
    for belief in sorted(beliefs):
        if belief.client != holder and belief.start < ends:
            return f"{belief} while {holder} believed until {ends}"
        if tokens and belief.token < token:
            return f"{belief} after the token {token} of {holder}"
        ends = max(ends, belief.end) if belief.client == holder else belief.end
        holder, token = belief.client, belief.token
    return None
