"""Renewals at one node of a cluster: one script call for each slot, all in one round trip. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, Protocol

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.model import Renewal, RenewOutcome
from incumbent.stores.redis.dialect import Dialect
from incumbent.stores.redis.layers.cluster import asking, together
from incumbent.stores.redis.resp import Program

__all__ = ["by_slot", "renew_spread"]

_CLOCKS: Final = 5.0
"""Seconds by which the clocks of two nodes may differ."""


class Incarnation(Protocol):
    """A connection knows which incarnation of the node it leads to, and since when that is one."""

    epoch: str
    born: float


def by_slot(slots: Sequence[int]) -> list[list[int]]:
    """The places of those that share a slot."""
    parts: dict[int, list[int]] = {}
    for at, slot in enumerate(slots):
        parts.setdefault(slot, []).append(at)
    return list(parts.values())


def renew_spread(
    dialect: Dialect,
    renewals: Sequence[Renewal],
    parts: Sequence[Sequence[int]],
    node: str,
    wire: Incarnation,
    by_asking: bool,
) -> Program[list[RenewOutcome | StoreError]]:
    """Renew each of `parts` by a call of its own; one that fails costs the others nothing."""
    since = clock.wall() - (clock.now() - wire.born)
    ours = [_adapted(each, node, wire.epoch, since) for each in renewals]
    programs = [dialect.renew([ours[at] for at in places], wire.epoch) for places in parts]
    answers = yield from together(list(map(asking, programs)) if by_asking else programs)
    outcomes: dict[int, RenewOutcome | StoreError] = {}
    for places, answer in zip(parts, answers, strict=True):
        each = [answer] * len(places) if isinstance(answer, StoreError) else answer
        outcomes |= zip(places, each, strict=True)
    return [outcomes[at] for at in range(len(renewals))]


def _adapted(renewal: Renewal, node: str, epoch: str, since: float) -> Renewal:
    """With the epoch as this node's connection has it, if it may be renewed here.

    A lease that another node granted came with its slot, record and all. Not so if this node was
    made a master after the grant: then it was a replica of the other, and may lack the newest.
    """
    granted_by, _, granted_in = renewal.epoch.rpartition(" ")
    if granted_by == node:
        return replace(renewal, epoch=granted_in)
    came_with_its_slot = ":" not in epoch or since + _CLOCKS < renewal.token / 1e6
    return replace(renewal, epoch=epoch if came_with_its_slot else "")
