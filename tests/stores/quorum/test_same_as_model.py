"""A quorum answers as the second model of the contract does, whatever is done in any order.

The clocks of its servers, and with them the ballots, stand still but when the test moves them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import pytest
import redis

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.model import Key
from incumbent.stores.quorum.ballots import BallotClock
from incumbent.stores.quorum.engine import QuorumEngine, QuorumStore
from incumbent.stores.url import open_engine
from tests import tiers
from tests.quorum.walls import ShiftedServer
from tests.rules.histories import Shown, Subject, play
from tests.support.waiting import eventually

pytestmark = pytest.mark.server

_AT_ONCE = 25
_FOR_EVER = 1e9


@pytest.fixture(scope="module")
def servers() -> Iterator[list[ShiftedServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(ShiftedServer()) for _ in range(3)]


class Hands(BallotClock):
    """What a process knows of the servers' clocks, if they stand still."""

    def __init__(self, servers: list[ShiftedServer], clients: list[redis.Redis]) -> None:
        super().__init__(len(servers))
        self._servers, self._clients = servers, clients
        self.move(1_000.0, 1_800_000_000.0)

    def move(self, now: float, wall: float) -> None:
        # A slow server has done all that was sent to it before its clock is moved: what came with
        # the first of these is done before it hears the second.
        for client in 2 * self._clients:
            client.ping()
        self._at = round(wall * 1e6)
        for server in self._servers:
            server.stop_wall(self._at)

    def knows(self) -> bool:
        return True

    def unix_us(self, now: float) -> int:
        return self._at


def all_answer(store: QuorumStore) -> bool:
    """One that is connected later than the others would miss the first requests."""
    try:
        record = store.read(Key("other", "name"), clock.now() + 30.0)
    except StoreError:
        return False
    return all(node.endswith("free") for node in record.nodes)


def shows(reason: str, holdings: Shown) -> Shown:
    """Of a slot that is used a refusal says by whom, and for how long."""
    return [holding[:3] for holding in holdings] if reason == "used" else holdings


@pytest.fixture(scope="module")
def clients(servers: list[ShiftedServer]) -> Iterator[list[redis.Redis]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(redis.Redis(port=server.port, socket_timeout=None))
            for server in servers
        ]


@pytest.mark.left(tiers.SEEDS, "0")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(0, 12 * _AT_ONCE, _AT_ONCE))
def test_the_servers_together_answer_as_the_model_does(
    servers: list[ShiftedServer], clients: list[redis.Redis], first: int
) -> None:
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    for seed in range(first, first + _AT_ONCE):
        hands = Hands(servers, clients)
        for client in clients:
            client.flushall()
        engine = open_engine(f"redis+quorum://{hosts}?restart_wait=0")
        assert isinstance(engine, QuorumEngine)
        engine._quorum.clock = hands
        store = engine.store()
        eventually(partial(all_answer, store))
        permits = dict.fromkeys(["c1", "c2", "c3", "c4", "c5"])
        # A process asks never again for a claim that it has given up.
        subject = Subject(
            store,
            hands.move,
            queues=[None],
            permits=permits,
            late_kept=_FOR_EVER,
            shows=shows,
            tick=0.001,
        )
        play(seed, subject)
        store.close()
