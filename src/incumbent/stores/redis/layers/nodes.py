"""What is known of a cluster: who has which keys, and how each node is reached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.stores.redis.driver import Site, target_at
from incumbent.stores.redis.hosts import Address, Reach, say_address, the_same
from incumbent.stores.redis.layers.base import Side
from incumbent.stores.redis.layers.cluster import Topology, markers_of, question
from incumbent.stores.redis.resp import Program

__all__ = ["Cluster"]

_now = clock.now

_AGAIN: Final = 0.1
"""Seconds after which the nodes are asked again who has what."""
_FOR_ASKING: Final = 0.5
"""Of the time that is left, at most this goes to asking."""


@dataclass(slots=True)
class Cluster:
    """What is known of a cluster, by both sides of an engine. `site` is the pattern of a node's.

    `seeds`: addresses to begin with, as they are reached; all others are as nodes announce them.
    """

    site: Site
    seeds: tuple[Address, ...]
    reach: Reach = the_same
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
            target = target_at(self.site.target, reached)
            site = self.sites[address] = replace(self.site, target=target, where=where)
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
        # that has not the key says who has it.
        patience, enough = 1.0, 1
        if self.topology.masters:
            patience, enough = _FOR_ASKING, len(addresses) // 2 + 1
        answers = await side.survey(
            list(sites.values()), program, enough, now + max(0.0, until - now) * patience
        )
        self._learn([each for each in answers if isinstance(each, Topology)], answers)

    def _learn(self, said: Sequence[Topology], answers: Sequence[Topology | StoreError]) -> None:
        if not said and self.topology.masters:
            self.asked = _now()
            return
        if not said:
            raise self._nobody([each for each in answers if isinstance(each, StoreError)])
        self.asked, self.doubted, self.proved = _now(), False, True
        newest = max(said, key=lambda each: each.epoch)
        # The same object as long as nothing changed: plans are laid for it.
        if newest != self.topology:
            self.topology = newest
            for address, site in self.sites.items():
                self._mark(site, address)

    def _nobody(self, errors: Sequence[StoreError]) -> StoreUnavailable:
        words = "; ".join(map(str, errors[:3])) or "no answer in time"
        return StoreUnavailable(
            f"{self.site.where}: no node said who has which keys: {words}",
            permanent=bool(errors) and all(each.permanent for each in errors),
        )

    @property
    def said(self) -> str:
        """For the doctor."""
        nodes, missing = self.topology.nodes(), self.topology.unserved()
        what = f"a cluster of {len(nodes)} masters: {', '.join(map(say_address, nodes))}"
        return f"{what}; {missing} slots have none" if missing else what

    def doubt(self) -> None:
        """Something went wrong at a node: others may have taken its place."""
        self.doubted = True
