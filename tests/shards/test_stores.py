"""What groups need of real stores: the same stories on each engine."""

from __future__ import annotations

import asyncio

import pytest

from incumbent import AsyncGroup, AsyncShard, AsyncShards, ConfigError, Group, Shard, Shards, clock
from incumbent.protocol.roster import shards_of
from tests import tiers
from tests.support.pace import took
from tests.support.waiting import eventually

pytestmark = pytest.mark.left(tiers.STORES, "sqlite", "redis", "etcd")


def holds(shard: Shard) -> None:
    shard.wait_stop()


async def holds_async(shard: AsyncShard) -> None:
    await asyncio.Event().wait()


def sizes(*members: Shards | AsyncShards) -> list[int]:
    return [len(member.owned()) for member in members]


def test_who_comes_and_goes_reaches_an_observer_before_a_renewal_interval_is_over(
    url: str,
) -> None:
    # So long that an observer that is not told would be too late.
    group = Group("workers", store=url, holder="a", ttl=60)
    seen = group.observe(timeout=20)
    assert next(seen) == ()
    started = clock.now()
    with group.join({"v": "1"}):
        assert [member.metadata for member in next(seen)] == [{"v": "1"}]
        assert took(started) < 5
        started = clock.now()
    assert next(seen) == ()
    assert took(started) < 5


def test_shards_are_handed_over_between_both_sides(url: str) -> None:
    async def main(first: Shards) -> None:
        second = AsyncShards("orders", 16, store=url, holder="b")
        async with second.running(holds_async):
            await asyncio.to_thread(eventually, lambda: sizes(first, second) == divided)
            members = await AsyncGroup("orders", store=url).members()
            assert [member.holder for member in members] == ["a", "b"]
            with pytest.raises(ConfigError, match=r"16 shards, .* and 17 here"):
                async with AsyncShards("orders", 17, store=url, holder="c").running(holds_async):
                    pass

    divided = [len(shards_of(name, "orders", 16, ["@a", "@b"])) for name in ("@a", "@b")]
    first = Shards("orders", 16, store=url, holder="a")
    with first.running(holds):
        eventually(lambda: sizes(first) == [16])
        asyncio.run(main(first))
        eventually(lambda: sizes(first) == [16])
    assert Group("orders", store=url).members() == ()
