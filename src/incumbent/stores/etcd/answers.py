"""What an answer of etcd says: why a take was refused, and of which state of the cluster. Pure."""

from __future__ import annotations

from math import ceil
from typing import Any, NamedTuple

from incumbent.stores.etcd.keys import part
from incumbent.stores.etcd.records import Entry

__all__ = ["AsOf", "Present", "as_of", "revision_of", "seconds", "term_of"]


class Present(NamedTuple):
    """Why a take was refused: what stands there now."""

    lease: Entry | None
    pause: Entry | None
    closing: Entry | None
    resign: Entry | None
    slots: list[Entry]
    seen: str
    candidates: int
    given_up: bool = False
    marker: str = ""

    def slots_of_others(self, claim: str) -> list[Entry]:
        """By whom the slot was taken."""
        return [entry for entry in self.slots if not entry.key.endswith(f"/{part(claim)}")]

    @property
    def stands(self) -> bool:
        """Whether anything is in the way."""
        return any((self.lease, self.pause, self.closing, self.slots, self.given_up))

    def own_slot(self, claim: str) -> bool:
        """Whether this very claim has taken the slot before."""
        return bool(self.slots) and not self.slots_of_others(claim)


def seconds(ttl: float) -> int:
    """The etcd lease for a ttl: whole seconds, never fewer."""
    return max(1, ceil(ttl))


def revision_of(reply: dict[str, Any]) -> int:
    """At which revision the cluster answered."""
    return int(reply["header"].get("revision", 0))


def term_of(reply: dict[str, Any]) -> str:
    """In which term the cluster answered."""
    return str(reply["header"].get("raft_term", ""))


class AsOf(NamedTuple):
    """Which state of the cluster an answer is of: as long as it is the same, so is every key."""

    cluster: str
    term: str
    revision: int
    dialled: int


def as_of(reply: dict[str, Any], dialled: int = 0) -> AsOf | None:
    """Of which state the cluster answered; None: it does not say.

    `dialled`: how many connections were made until then; a new one may lead to another state.
    """
    revision = revision_of(reply)
    cluster = str(reply["header"].get("cluster_id", ""))
    return AsOf(cluster, term_of(reply), revision, dialled) if revision else None
