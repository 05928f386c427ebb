"""The waiters of one loop, and what single nodes tell them. No server."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from incumbent import clock
from incumbent.model import Key
from incumbent.net.readers import SUSPENDING
from incumbent.stores.quorum.waiting import MajorityHub
from tests.stores.redis.test_hub import FakeWire
from tests.support.pace import BUSY, took


class FakeStore:
    """Connects at once; nothing changes."""

    def __init__(self) -> None:
        self.wires: dict[int, FakeWire] = {}

    def begin(self, subscriber: Any, node: int, until: float) -> None:
        self.wires[node] = FakeWire("", confirms=True)
        subscriber.arrive(node, self.wires[node])

    async def is_unchanged(self, key: Key, seen: str, until: float) -> bool:
        return True


def test_a_waiter_that_was_told_does_not_keep_the_loop_of_the_reader_busy() -> None:
    names = SimpleNamespace(keys=lambda key: SimpleNamespace(floor=f"c:{key.name}"))
    quorum: Any = SimpleNamespace(where="q", names=("a", "b", "c"), need=2, dialect=names)

    async def main() -> None:
        hub, store = MajorityHub(quorum, SUSPENDING), FakeStore()
        until = clock.now() + 5.0
        reader = asyncio.create_task(hub.wait(store, Key("default", "a"), "lease 1", until))
        await asyncio.sleep(0.05)
        other = asyncio.create_task(hub.wait(store, Key("default", "b"), "lease 1", until))
        await asyncio.sleep(0.05)
        began = clock.now()
        store.wires[0].tell([b"message", b"c:b", b""])
        await other
        assert took(began) < BUSY
        reader.cancel()

    asyncio.run(main())
