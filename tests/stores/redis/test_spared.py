"""Requests that are spared, whatever stands before the connections.

While the first in line looks, the others ask nobody. A look at the server goes with a take.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import pytest
import redis

from incumbent.model import Ask, Queue, Queued, Slot, TakeOutcome
from tests import tiers
from tests.stores.redis.world import Party, new_claim, party, soon
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_sentinels import Sentinels
from tests.support.servers import RedisServer, free_port
from tests.support.waiting import eventually

pytestmark = pytest.mark.server

WAITS = Ask(9.0, "waiter", queue=Queue(3.0))
WITHIN = 0.7


class Fleet(NamedTuple):
    """Servers as a URL names them, and those of them that may grant."""

    url: str
    options: str
    masters: Sequence[RedisServer]

    def takes(self) -> int:
        """How many scripts clients have called."""
        return sum(self._each(_scripts))

    def listeners(self) -> int:
        """How many processes and loops are subscribed."""
        return sum(self._each(lambda raw: len(raw.pubsub_channels("incumbent:to:*"))))

    def age(self, one: Party) -> None:
        """Have the lease look two seconds older: after a fresh one the others look themselves."""
        master = next(it for it in self.masters if "incumbent1" in it.cli("GET", one.main))
        with redis.Redis(port=master.port) as raw:
            value: Any = raw.get(one.main)
            words = value.split(b" ")
            words[4] = b"%d" % (int(words[4]) - 2_000_000)
            raw.set(one.main, b" ".join(words), keepttl=True)

    def _each(self, ask: Callable[[Any], int]) -> list[int]:
        found = []
        for server in self.masters:
            with redis.Redis(port=server.port) as raw:
                found.append(ask(raw))
        return found


def _scripts(raw: Any) -> int:
    return int(raw.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


@pytest.fixture(params=["one", "confirmed", "sentinel", "cluster"])
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    options = "restart_wait=0"
    if request.param == "one":
        with RedisServer() as server:
            yield Fleet(server.url, options, [server])
    elif request.param == "cluster":
        with RedisCluster() as cluster:
            yield Fleet(cluster.url, options, cluster.nodes)
    else:
        options += "&wait_replicas=1:5s" if request.param == "confirmed" else ""
        with Sentinels(replicas=1) as sentinels:
            yield Fleet(sentinels.url, options, [sentinels.master.server])


def blocking(one: Party, meanwhile: Callable[[], None], fleet: Fleet) -> tuple[TakeOutcome, int]:
    """What one in line is told after it has waited, and how many requests that took."""
    store = one.store
    # Who was in line before it listened looks once more.
    for _ in range(2):
        place = store.take(one.key, one.claim, WAITS, soon())
        assert isinstance(place, Queued)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store.wait_change, one.key, place.seen, soon(WITHIN))
            meanwhile()
            waiting.result(5)
    before = fleet.takes()
    return store.take(one.key, one.claim, WAITS, soon()), fleet.takes() - before


def awaited(one: Party, meanwhile: Callable[[], None], fleet: Fleet) -> tuple[TakeOutcome, int]:
    """The same in an event loop."""

    async def main() -> tuple[TakeOutcome, int]:
        store = one.engine.async_store()
        for _ in range(2):
            place = await store.take(one.key, one.claim, WAITS, soon())
            assert isinstance(place, Queued)
            waiting = asyncio.create_task(store.wait_change(one.key, place.seen, soon(WITHIN)))
            await asyncio.to_thread(meanwhile)
            await waiting
        before = fleet.takes()
        outcome = await store.take(one.key, one.claim, WAITS, soon())
        took = fleet.takes() - before
        await store.aclose()
        return outcome, took

    return asyncio.run(main())


@pytest.mark.left(tiers.STORES, "one-async", "cluster-async")
@pytest.mark.parametrize("side", [blocking, awaited], ids=["sync", "async"])
def test_who_has_heard_that_the_first_in_line_looked_asks_nobody(
    fleet: Fleet, side: Callable[[Party, Callable[[], None], Fleet], tuple[TakeOutcome, int]]
) -> None:
    with ExitStack() as stack:
        holder, first, one = (
            stack.enter_context(party(fleet.url, fleet.options)) for _ in range(3)
        )
        first.key = one.key = holder.key
        holder.take()
        fleet.age(holder)
        assert isinstance(first.refused(ask=WAITS, claim=first.claim), Queued)

        def first_looks() -> None:
            eventually(lambda: fleet.listeners() == 1)
            first.refused(ask=WAITS, claim=first.claim)

        outcome, requests = side(one, first_looks, fleet)
        assert isinstance(outcome, Queued)
        assert requests == 0


def clients_commands(raw: redis.Redis, do: Callable[[], object]) -> list[str]:
    """What clients sent meanwhile."""
    watch: Any = raw.monitor  # redis-py does not say what it returns
    with watch() as monitor:
        raw.echo("begin")
        do()
        raw.echo("end")
        said = [it for it in _until_end(monitor) if it["client_type"] != "lua"]
    words = [it["command"].partition(" ")[0] for it in said]
    return words[words.index("ECHO") + 1 :]


def _until_end(monitor: Any) -> Iterator[dict[str, str]]:
    for command in monitor.listen():
        if command["command"] == "ECHO end":
            return
        yield command


def test_a_look_at_the_server_is_no_request_of_its_own(redis_server: RedisServer) -> None:
    ask = Ask(9.0, "me", slot=Slot("today", 60.0), queue=Queue(3.0), candidacy=5.0)
    with redis.Redis(port=redis_server.port) as raw, party(redis_server.url) as one:
        for each in (WAITS, ask, Ask(9.0, "me")):
            # A connection that has not looked yet, for it has not taken anything.
            one.store.close()
            one.store.read(one.key, soon())
            sent = clients_commands(raw, partial(one.take, ask=each))
            assert sent == ["EVALSHA"]
            # A claim that is given up without its token is refused from then on.
            one.store.give(one.key, one.claim, None, soon())
            one.claim = new_claim()


def test_where_one_address_is_a_whole_cluster_the_look_goes_beside_the_take() -> None:
    with RedisServer(["--cluster-enabled", "yes", "--cluster-port", str(free_port())]) as server:
        server.cli("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        eventually(lambda: "cluster_state:ok" in server.cli("CLUSTER", "INFO"))
        with redis.Redis(port=server.port) as raw, party(server.url) as one:
            one.store.read(one.key, soon())
            sent = clients_commands(raw, one.take)
    # The server does not run, or show, what keys of two slots would be.
    assert sent == ["EVALSHA", "GET", "INFO", "TIME", "INFO"]
