"""What the fault tests of the Redis store share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from incumbent.model import Granted, Key, Released, Renewal, RenewOutcome
from incumbent.stores.redis import engine_from_client, open_store
from incumbent.stores.redis.aio import AsyncRedisStore
from incumbent.stores.redis.engine import RedisEngine
from incumbent.stores.redis.records import slot_of
from incumbent.stores.redis.sync import RedisStore
from tests.stores import party as parties
from tests.stores.party import ASK, new_claim, soon
from tests.support.redis_cluster import SLOTS, ClusterNode, RedisCluster

__all__ = [
    "ASK",
    "Party",
    "another",
    "give_back",
    "names",
    "new_claim",
    "own_party",
    "party",
    "renewal",
    "renewed",
    "renewed_async",
    "slot",
    "soon",
    "take_everywhere",
    "third",
]


class Plain(RedisEngine):
    """The types of an engine of one server; one with layers has the same operations."""

    if TYPE_CHECKING:

        def store(self) -> RedisStore: ...

        def async_store(self) -> AsyncRedisStore: ...


@dataclass
class Party(parties.Party):
    engine: Plain

    @property
    def store(self) -> RedisStore:
        return self.engine.store()

    @property
    def main(self) -> str:
        return f"incumbent:{{{self.key}}}"

    @property
    def companion(self) -> str:
        return f"{self.main}:r"


@contextmanager
def party(url: str, options: str = "restart_wait=0") -> Iterator[Party]:
    """An engine at `url`, closed at the end; by default fresh servers grant at once."""
    engine = cast("Plain", open_store(f"{url}?{options}"))
    try:
        yield Party(engine)
    finally:
        engine.store().close()


def own_party(client: Any, **options: Any) -> Party:
    """The same for a client of the user's own; who asks closes it."""
    return Party(cast("Plain", engine_from_client(client, **options)))


# -- clusters: names whose slots are wanted, and renewals of them


def slot(one: Party) -> int:
    return slot_of(one.main)


def names(wanted: Callable[[int], bool], namespace: str = "faults") -> Iterator[Key]:
    """Keys whose slots are wanted."""
    for number in count():
        key = Key(namespace, f"n{number}")
        if wanted(slot_of(f"incumbent:{{{key}}}")):
            yield key


def third(at: int) -> Callable[[int], bool]:
    """The slots of the node at that place, as the cluster is made."""
    return lambda slot: SLOTS * at // 3 <= slot < SLOTS * (at + 1) // 3


def renewal(one: Party, granted: Granted, key: Key | None = None) -> Renewal:
    return Renewal(key or one.key, granted.claim, granted.token, 10.0, granted.epoch)


def renewed(one: Party, granted: Granted) -> RenewOutcome:
    return one.store.renew([renewal(one, granted)], soon())[0]


async def renewed_async(one: Party, granted: Granted) -> RenewOutcome:
    (outcome,) = await one.engine.async_store().renew([renewal(one, granted)], soon())
    return outcome


def take_everywhere(one: Party, each: int) -> list[Renewal]:
    """Leases on every node."""
    taken = []
    for at in range(3):
        keys = names(third(at))
        for _ in range(each):
            one.key = next(keys)
            taken.append(renewal(one, one.take(new_claim()), one.key))
    return taken


def give_back(one: Party, taken: Sequence[Renewal]) -> None:
    for each in taken:
        assert one.store.give(each.key, each.claim, each.token, soon()) == Released()


def another(cluster: RedisCluster, node: ClusterNode) -> ClusterNode:
    return next(one for one in cluster.nodes if one is not node)
