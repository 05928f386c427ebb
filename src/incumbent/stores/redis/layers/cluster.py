"""Which node of a cluster has which key, and what its nodes say of that. Pure."""

from __future__ import annotations

from binascii import crc_hqx
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, TypeVar

from incumbent.errors import StoreUnavailable
from incumbent.stores.redis.errors import answered_error
from incumbent.stores.redis.exchange import is_forgotten
from incumbent.stores.redis.hosts import Address, say_address
from incumbent.stores.redis.resp import Program, Step, as_eval, pack

__all__ = [
    "ASKING",
    "SLOTS",
    "Topology",
    "asking",
    "host_of",
    "markers_of",
    "question",
    "slot_of",
]

T = TypeVar("T")

SLOTS: Final = 16_384
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
    said = dict(line.split(":", 1) for line in info.decode().split() if ":" in line)
    # One that has lost the others knows less than any of them.
    epoch = int(said["cluster_current_epoch"]) if said.get("cluster_state") == "ok" else -1
    found = Topology(epoch)
    for start, end, master, *_ in sorted(slots, key=lambda each: int(each[0])):
        found.starts.append(start)
        found.ends.append(end)
        found.masters.append((host_of((master[0] or b"").decode(), asked), master[1]))
    return found


def host_of(said: str, asked: Address | None) -> str:
    """The host that the node `asked` names; its own where it does not say one.

    cluster-preferred-endpoint-type: "" with unknown-endpoint, "?" with hostname and without one.
    """
    return said if said not in ("", "?") or asked is None else asked[0]


def asking(program: Program[T]) -> Program[T]:
    """The same for a key that is on its way to this node, where each step begins with that key."""
    answers: Any = None
    try:
        while True:
            step = program.send(answers)
            _, *answers = yield Step(ASKING + step.payload, 1 + step.answers)
            if step.answers == 1 and is_forgotten(answers[0]):
                _, *answers = yield Step(ASKING + as_eval(step.payload), 2)
    except StopIteration as end:
        result: T = end.value
        return result
