"""The topology of a cluster: which node has which key, and how each node is reached."""

from __future__ import annotations

from binascii import crc_hqx
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from typing import Any, Final, TypeVar

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.net.pool import decoding
from incumbent.stores.redis.errors import answered_error
from incumbent.stores.redis.layers import Runtime, at_least
from incumbent.stores.redis.options import Address, Reach, say_address, the_same
from incumbent.stores.redis.resp import Program, RequestBatch, each_step, pack
from incumbent.stores.redis.server import RedisSite

T = TypeVar("T")

_now = clock.now

SLOTS: Final = 16_384
_AGAIN: Final = 0.1
"""Seconds after which the nodes are asked for the topology again."""
_FOR_ASKING: Final = 0.5
"""The largest share of the remaining time that asking for the topology may take."""
_COPIES: Final = 3
_LOOKED_THROUGH: Final = 2000
ASKING: Final = pack("ASKING")
"""Sent before a request for a key that is being moved to the node."""


def slot_of(name: str) -> int:
    """The slot of a key, computed from the text in its first braces if there is any."""
    _, opened, rest = name.partition("{")
    tag, closed, _ = rest.partition("}")
    return crc_hqx((tag if opened and closed and tag else name).encode(), 0) % SLOTS


@dataclass(slots=True)
class Topology:
    """The master of each slot: `masters[i]` has `starts[i]` to `ends[i]`, both included."""

    epoch: int = -1
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    masters: list[Address] = field(default_factory=list)
    moved: dict[int, Address] = field(default_factory=dict)
    """The new masters of slots that have moved since."""

    def master_of(self, slot: int) -> Address | None:
        """The node that has the slot; None if no node has it."""
        if slot in self.moved:
            return self.moved[slot]
        at = bisect_right(self.starts, slot) - 1
        return self.masters[at] if at >= 0 and slot <= self.ends[at] else None

    def unserved(self) -> int:
        """The number of slots that no node has."""
        return SLOTS - sum(
            end + 1 - start for start, end in zip(self.starts, self.ends, strict=True)
        )

    def nodes(self) -> list[Address]:
        """The nodes that have slots."""
        return list(dict.fromkeys((*self.masters, *self.moved.values())))


def markers_of(topology: Topology, node: Address) -> tuple[str, ...]:
    """Keys in slots of this node, for the copies of its marker; see server.Marker.

    A slot may move to another node with its keys: so there are copies, whose keys name the node.
    """
    whose = say_address(node)
    keys = (f"incumbent:{{{number}}}:server:{whose}" for number in range(_LOOKED_THROUGH))
    return tuple(islice((it for it in keys if topology.master_of(slot_of(it)) == node), _COPIES))


def question(asked: Address, where: str, *, proved: bool) -> Program[Topology]:
    """Ask one node for the topology. Raises StoreUnavailable if it is part of no cluster."""
    info, slots = yield RequestBatch(pack("CLUSTER", "INFO") + pack("CLUSTER", "SLOTS"), 2)
    for answer in (info, slots):
        if isinstance(answer, Exception):
            if "cluster support disabled" in str(answer):
                raise StoreUnavailable(
                    f"{where} is part of no cluster: write redis:// for a single server",
                    permanent=not proved,
                )
            raise answered_error(str(answer), where, proved=proved)
    with decoding():
        return _topology(info, slots, asked)


def _topology(info: bytes, slots: Sequence[Any], asked: Address) -> Topology:
    state = dict(line.split(":", 1) for line in info.decode().split() if ":" in line)
    # A node that has lost contact with the others knows less than any of them.
    epoch = int(state["cluster_current_epoch"]) if state.get("cluster_state") == "ok" else -1
    found = Topology(epoch)
    for start, end, master, *_ in sorted(slots, key=lambda each: int(each[0])):
        found.starts.append(start)
        found.ends.append(end)
        found.masters.append((host_of((master[0] or b"").decode(), asked), master[1]))
    return found


def host_of(named: str, asked: Address | None) -> str:
    """The host that the node `asked` named, or that node's own host if it named none.

    By cluster-preferred-endpoint-type: "" is unknown-endpoint, "?" is hostname without a hostname.
    """
    return named if named not in ("", "?") or asked is None else asked[0]


def asking(program: Program[T]) -> Program[T]:
    """Put ASKING before each step; its first request is for a key being moved to this node."""

    def ask(step: RequestBatch) -> Program[list[Any]]:
        _, *answers = yield RequestBatch(ASKING + step.payload, 1 + step.answers)
        return answers

    return each_step(program, ask)


@dataclass(slots=True)
class KnownCluster:
    """A cluster as both sides of an engine know it. `site`: the template for each node's site.

    `seeds`: configured addresses, reached as they are; all others are as nodes announce them.
    `marked`: the topology by which each site has its marker's keys.
    """

    site: RedisSite
    seeds: tuple[Address, ...]
    reach: Reach = the_same
    advice: str = "check the nodes, their password and the network"
    topology: Topology = field(default_factory=Topology)
    sites: dict[Address, RedisSite] = field(default_factory=dict)
    marked: dict[Address, Topology] = field(default_factory=dict)
    asked: float = -inf
    doubted: bool = True
    proved: bool = False

    def site_of(self, address: Address) -> RedisSite:
        """The site of one node, with its marker's keys by the topology."""
        topology, site = self.topology, self.sites.get(address)
        if site is None:
            where = f"{self.site.where} (node {say_address(address)})"
            reached = address if address in self.seeds else self.reach(address)
            target = self.site.target.at(reached)
            named = address in self.seeds
            made = replace(self.site, target=target, where=where, named=named)
            site = self.sites.setdefault(address, made)
        # Without masters nothing is known, and a slow thread would take away known keys.
        if topology.masters and self.marked.get(address) is not topology:
            self._mark(topology, address)
        return site

    def _mark(self, topology: Topology, *addresses: Address) -> None:
        for address in addresses:
            site = self.sites[address]
            site.marker = site.marker._replace(keys=markers_of(topology, address))
            self.marked[address] = topology

    @property
    def stale(self) -> bool:
        """Whether the nodes must be asked for the topology again."""
        return self.doubted and not 0 <= _now() - self.asked < _AGAIN

    async def ask(self, runtime: Runtime, until: float) -> None:
        """Ask for the topology. Raises StoreUnavailable if no node has ever told it."""
        now = _now()
        addresses = list(dict.fromkeys((*self.topology.nodes(), *self.seeds)))
        sites = {address: self.site_of(address) for address in addresses}

        def program(site: RedisSite) -> Program[Topology]:
            asked = next(address for address, each in sites.items() if each is site)
            return question(asked, site.where, proved=self.proved)

        # Any answer will do at first, and later, if none comes, the topology known before: a node
        # that does not have a key names the node that has it.
        patience, enough = 1.0, at_least(1)
        if self.topology.masters:
            patience, enough = _FOR_ASKING, at_least(len(addresses) // 2 + 1)
        answers = await runtime.survey(
            list(sites.values()), program, enough, now + max(0.0, until - now) * patience
        )
        self._learn([each for each in answers if isinstance(each, Topology)], answers)

    def _learn(self, known: Sequence[Topology], answers: Sequence[Topology | StoreError]) -> None:
        if not known and self.topology.masters:
            self.asked = _now()
            return
        if not known:
            raise self._nobody([each for each in answers if isinstance(each, StoreError)])
        self.asked, self.doubted, self.proved = _now(), False, True
        newest = max(known, key=lambda each: each.epoch)
        # The same object as long as nothing changed: packed renewals are kept for it.
        if newest != self.topology:
            # Before, for who reads it now; after, for sites that another thread has made meanwhile.
            # The copy of the addresses is one atomic step.
            self._mark(newest, *self.sites)
            self.topology = newest
            self._mark(newest, *self.sites)

    def _nobody(self, errors: Sequence[StoreError]) -> StoreUnavailable:
        words = "; ".join(str(each).removeprefix(f"{self.site.where} ") for each in errors[:3])
        words = words or "no answer in time"
        return StoreUnavailable(
            f"{self.site.where}: no node said who has which keys: {words}",
            permanent=bool(errors) and all(each.permanent for each in errors),
        )

    @property
    def summary(self) -> str:
        """The description for `doctor`."""
        nodes, missing = self.topology.nodes(), self.topology.unserved()
        what = f"a cluster of {len(nodes)} masters: {', '.join(map(say_address, nodes))}"
        return f"{what}; {missing} slots have none" if missing else what

    def masters(self) -> list[tuple[str, RedisSite]]:
        """See Discovery.masters."""
        nodes = self.topology.nodes()
        return [(say_address(address), self.site_of(address)) for address in nodes]

    def doubt(self) -> None:
        """After an error at a node: ask again, since another may have taken its place."""
        self.doubted = True
