"""Which member has which shard. Pure: whoever sees the same members says the same.

Rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to increase hit rates",
1998): each member has a score for each shard, and the highest has it. So a member that comes takes
shards from the others alone, one that goes leaves its shards to them, and nothing else moves.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable
from functools import lru_cache
from hashlib import shake_128
from typing import Final

from incumbent.errors import ConfigError

SHARDS_MOST: Final = 10_000


def check_count(count: object) -> int:
    """Return `count`, or raise ConfigError if nothing can be divided into so many shards."""
    if not isinstance(count, int) or isinstance(count, bool):
        raise ConfigError(f"count: a number of shards, not {count!r:.60}", name="count")
    if not 1 <= count <= SHARDS_MOST:
        raise ConfigError(f"count={count}: 1 to {SHARDS_MOST} shards", name="count")
    return count


def shards_of(member: str, name: str, count: int, members: Collection[str]) -> frozenset[int]:
    """The shards, of 0 to count - 1, that `member` has while these are the members."""
    if member not in members:
        return frozenset()
    assigned = assign(name, count, tuple(sorted(members)))
    return frozenset(number for number, other in enumerate(assigned) if other == member)


@lru_cache(maxsize=16)
def assign(name: str, count: int, members: tuple[str, ...]) -> tuple[str, ...]:
    """The member of each shard; `members` in order, at least one."""
    best, chosen = _scores(name, count, members[0]), [members[0]] * count
    for member in members[1:]:
        for number, score in enumerate(_scores(name, count, member)):
            if score > best[number]:
                best[number], chosen[number] = score, member
    return tuple(chosen)


def _scores(name: str, count: int, member: str) -> list[int]:
    """64 bits for each shard; the same in every process, for all versions of Python."""
    stream = shake_128(f"{name}\0{member}".encode()).digest(8 * count)
    return list(struct.unpack(f">{count}Q", stream))


def circle(member: str, others: Iterable[str]) -> list[str]:
    """The others in the order in which `member` looks after them: those that follow it first."""
    ordered = sorted(other for other in others if other != member)
    return [other for other in ordered if other > member] + [
        other for other in ordered if other < member
    ]
