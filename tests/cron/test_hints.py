"""A field that is written just before somebody waits for it: the wait ends at once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from incumbent import clock
from incumbent.cron.fleet import CONTROL
from incumbent.model import Key
from incumbent.runtime.link import new_link
from tests.support.pace import took
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.server, pytest.mark.timeout(60)]

CONTROL_KEY = Key("n", CONTROL)


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.mark.parametrize("earlier", [0, 1])
def test_a_trigger_written_between_the_look_and_the_wait_is_seen_at_once(
    redis: RedisServer, earlier: int
) -> None:
    store = new_link(redis.url).store
    key = Key(f"n{earlier}", CONTROL)
    for number in range(earlier):
        store.put(key, f"trigger/{number}", b"{}", None, clock.now() + 30)
    seen = store.read(key, clock.now() + 30).seen
    store.put(key, "trigger/late", b"{}", None, clock.now() + 30)
    began = clock.now()
    store.wait_change(key, seen, began + 20)
    assert took(began) < 10
    # And once that was seen, there is something to wait for.
    began = clock.now()
    store.wait_change(key, store.read(key, began + 30).seen, began + 0.2)
    assert clock.now() - began >= 0.19
    store.close()
