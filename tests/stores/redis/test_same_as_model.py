"""Redis' scripts answer as the second model of the contract does, whatever is done in any order.

The server's clock stands still but when the test moves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest
import redis

from incumbent.stores.redis.sync import RedisStore
from incumbent.stores.url import open_engine
from tests import tiers
from tests.quorum.walls import ShiftedServer
from tests.rules.histories import QUEUES, Shown, Subject, play

pytestmark = pytest.mark.server

_AT_ONCE = 40


@pytest.fixture(scope="module")
def server() -> Iterator[ShiftedServer]:
    with ShiftedServer() as server:
        yield server


def move(server: ShiftedServer, wall: float) -> None:
    server.stop_wall(round(wall * 1e6))


def shows(reason: str, holdings: Shown) -> Shown:
    """Of those who share a lease a refusal names one, with their number of permits."""
    shares = holdings and holdings[0][-1] is not None
    if shares or reason == "used":
        return [(holdings[0][-1],) if shares else holdings[0][:5]]
    return holdings


@pytest.mark.left(tiers.SEEDS, "0")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(0, 15 * _AT_ONCE, _AT_ONCE))
def test_the_scripts_answer_as_the_model_does(server: ShiftedServer, first: int) -> None:
    with redis.Redis(port=server.port, socket_timeout=None) as client:
        for seed in range(first, first + _AT_ONCE):
            move(server, 1_800_000_000.0)
            client.flushall()
            # Those who do not wait cannot change the line in which others do: see test_words.
            queues = [queue for queue in QUEUES if bool(queue) == (seed % 4 > 0)]
            store = cast("RedisStore", open_engine(f"{server.url}?restart_wait=0").store())
            # As waiters do: who does not listen to its inbox is taken for dead.
            with client.pubsub() as inbox:
                inbox.subscribe(store.operations.packer.inbox_channel)
                assert inbox.get_message(timeout=60.0)
                play(
                    seed,
                    Subject(
                        store,
                        lambda now, wall: move(server, wall),
                        queues=queues,
                        shows=shows,
                        tick=0.001,
                        rests=True,
                    ),
                )
            store.close()
