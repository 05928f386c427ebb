"""Which node of a cluster has which key, how each node is reached, and what the nodes say."""

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
from incumbent.stores.redis.errors import answered_error
from incumbent.stores.redis.layers import Side, at_least
from incumbent.stores.redis.options import Address, Reach, say_address, the_same
from incumbent.stores.redis.resp import Program, Step, each_step, pack
from incumbent.stores.redis.server import Site

T = TypeVar("T")

_now = clock.now

SLOTS: Final = 16_384
_AGAIN: Final = 0.1
"""Seconds after which the nodes are asked again who has what."""
_FOR_ASKING: Final = 0.5
"""Of the time that is left, at most this goes to asking."""
_COPIES: Final = 3
_LOOKED_THROUGH: Final = 2000
ASKING: Final = pack("ASKING")
"""Goes before a request for a key that is on its way to the node."""


def slot_of(name: str) -> int:
    """The slot of a key: that of what stands in its first braces, if anything does."""
    _, opened, rest = name.partition("{")
    tag, closed, _ = rest.partition("}")
    return crc_hqx((tag if opened and closed and tag else name).encode(), 0) % SLOTS


@dataclass(slots=True)
class Topology:
    """Who has which slots: from `starts[i]` to `ends[i]`, both included, `masters[i]`."""

    epoch: int = -1
    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    masters: list[Address] = field(default_factory=list)
    moved: dict[int, Address] = field(default_factory=dict)
    """Slots that went elsewhere since."""

    def master_of(self, slot: int) -> Address | None:
        """Where a slot is; None if nobody has it."""
        if slot in self.moved:
            return self.moved[slot]
        at = bisect_right(self.starts, slot) - 1
        return self.masters[at] if at >= 0 and slot <= self.ends[at] else None

    def unserved(self) -> int:
        """How many slots nobody has."""
        return SLOTS - sum(
            end + 1 - start for start, end in zip(self.starts, self.ends, strict=True)
        )

    def nodes(self) -> list[Address]:
        """All that have slots."""
        return list(dict.fromkeys((*self.masters, *self.moved.values())))


def markers_of(topology: Topology, node: Address) -> tuple[str, ...]:
    """Keys in slots of this node for its marker and copies of it; see incarnation.Marker.

    A slot may go to another node, with what is there: so there are copies, and they name the node.
    """
    whose = say_address(node)
    keys = (f"incumbent:{{{number}}}:server:{whose}" for number in range(_LOOKED_THROUGH))
    return tuple(islice((it for it in keys if topology.master_of(slot_of(it)) == node), _COPIES))


def question(asked: Address, where: str, *, proved: bool) -> Program[Topology]:
    """Ask one node. Raises StoreUnavailable where it is part of no cluster."""
    info, slots = yield Step(pack("CLUSTER", "INFO") + pack("CLUSTER", "SLOTS"), 2)
    for answer in (info, slots):
        if isinstance(answer, Exception):
            if "cluster support disabled" in str(answer):
                raise StoreUnavailable(
                    f"{where} is part of no cluster: write redis:// for a single server",
                    permanent=not proved,
                )
            raise answered_error(str(answer), where, proved=proved)
    return _topology(info, slots, asked)


def _topology(info: bytes, slots: Sequence[Any], asked: Address) -> Topology:
    state = dict(line.split(":", 1) for line in info.decode().split() if ":" in line)
    # One that has lost the others knows less than any of them.
    epoch = int(state["cluster_current_epoch"]) if state.get("cluster_state") == "ok" else -1
    found = Topology(epoch)
    for start, end, master, *_ in sorted(slots, key=lambda each: int(each[0])):
        found.starts.append(start)
        found.ends.append(end)
        found.masters.append((host_of((master[0] or b"").decode(), asked), master[1]))
    return found


def host_of(named: str, asked: Address | None) -> str:
    """The host that the node `asked` names; its own where it does not say one.

    cluster-preferred-endpoint-type: "" with unknown-endpoint, "?" with hostname and without one.
    """
    return named if named not in ("", "?") or asked is None else asked[0]


def asking(program: Program[T]) -> Program[T]:
    """The same for a key that is on its way to this node, where each step begins with that key."""

    def ask(step: Step) -> Program[list[Any]]:
        _, *answers = yield Step(ASKING + step.payload, 1 + step.answers)
        return answers

    return each_step(program, ask)


@dataclass(slots=True)
class Cluster:
    """What is known of a cluster, by both sides of an engine. `site` is the pattern of a node's.

    `seeds`: addresses to begin with, as they are reached; all others are as nodes announce them.
    """

    site: Site
    seeds: tuple[Address, ...]
    reach: Reach = the_same
    advice: str = "check the nodes, their password and the network"
    topology: Topology = field(default_factory=Topology)
    sites: dict[Address, Site] = field(default_factory=dict)
    asked: float = -inf
    doubted: bool = True
    proved: bool = False

    def site_of(self, address: Address) -> Site:
        """One node."""
        site = self.sites.get(address)
        if site is None:
            where = f"{self.site.where} (node {say_address(address)})"
            reached = address if address in self.seeds else self.reach(address)
            target = self.site.target.at(reached)
            named = address in self.seeds
            site = replace(self.site, target=target, where=where, named=named)
            self.sites[address] = site
            self._mark(site, address)
        return site

    def _mark(self, site: Site, address: Address) -> None:
        site.marker = site.marker._replace(keys=markers_of(self.topology, address))

    @property
    def stale(self) -> bool:
        """Whether the nodes have to be asked again who has what."""
        return self.doubted and not 0 <= _now() - self.asked < _AGAIN

    async def ask(self, side: Side, until: float) -> None:
        """Ask who has what. Raises StoreUnavailable if nobody ever said."""
        now = _now()
        addresses = list(dict.fromkeys((*self.topology.nodes(), *self.seeds)))
        sites = {address: self.site_of(address) for address in addresses}

        def program(site: Site) -> Program[Topology]:
            asked = next(address for address, each in sites.items() if each is site)
            return question(asked, site.where, proved=self.proved)

        # To begin with, any answer will do, and later what was known, if nobody answers: a node
        # that does not have the key names the one that has it.
        patience, enough = 1.0, at_least(1)
        if self.topology.masters:
            patience, enough = _FOR_ASKING, at_least(len(addresses) // 2 + 1)
        answers = await side.survey(
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
        # The same object as long as nothing changed: plans are laid for it.
        if newest != self.topology:
            self.topology = newest
            # A copy in one step: another thread may make the first request to a node meanwhile.
            for address, site in list(self.sites.items()):
                self._mark(site, address)

    def _nobody(self, errors: Sequence[StoreError]) -> StoreUnavailable:
        words = "; ".join(str(each).removeprefix(f"{self.site.where} ") for each in errors[:3])
        words = words or "no answer in time"
        return StoreUnavailable(
            f"{self.site.where}: no node said who has which keys: {words}",
            permanent=bool(errors) and all(each.permanent for each in errors),
        )

    @property
    def summary(self) -> str:
        """For the doctor."""
        nodes, missing = self.topology.nodes(), self.topology.unserved()
        what = f"a cluster of {len(nodes)} masters: {', '.join(map(say_address, nodes))}"
        return f"{what}; {missing} slots have none" if missing else what

    def masters(self) -> list[tuple[str, Site]]:
        """See View.masters."""
        nodes = self.topology.nodes()
        return [(say_address(address), self.site_of(address)) for address in nodes]

    def doubt(self) -> None:
        """Something went wrong at a node: others may have taken its place."""
        self.doubted = True
