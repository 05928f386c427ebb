"""Connections to the servers of a quorum that take longer than an operation can wait."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from incumbent import AsyncClient, clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Ask, Granted
from incumbent.stores.quorum.connecting import Dialer
from incumbent.stores.quorum.links import QuorumLink
from incumbent.stores.redis.aio import AsyncRedisWire, dial
from incumbent.stores.redis.site import RedisSite
from tests.stores.quorum.world import Members, Party, party
from tests.support.pace import BUSY, took

pytestmark = pytest.mark.server

ASK = Ask(10.0, "host-1")
TRUSTED = "restart_wait=0"
A_WAY = 0.12
"""Seconds: a connection takes some eight ways, an operation two."""


@pytest.fixture(scope="module")
def three() -> Iterator[Members]:
    with Members(3) as members:
        yield members


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How many connections to each node were begun."""
    counts, connect = Counter[int](), Dialer.connect

    async def counted(dialer: Dialer[QuorumLink], node: int, until: float) -> QuorumLink:
        counts[node] += 1
        return await connect(dialer, node, until)

    monkeypatch.setattr(Dialer, "connect", counted)
    return counts


def try_for(one: Party, seconds: float, within: float) -> tuple[int, Granted | None]:
    """How many tries it took, and what the last one brought."""
    tries, give_up = 0, clock.now() + seconds
    while clock.now() < give_up:
        tries += 1
        try:
            outcome = one.try_take(ASK, within=within)
        except StoreError:
            continue
        assert isinstance(outcome, Granted)
        return tries, outcome
    return tries, None


def test_who_cannot_wait_for_a_connection_begins_no_heap_of_them(
    three: Members, begun: Counter[int]
) -> None:
    for member in three.all:
        member.proxy.delay(A_WAY)
    try:
        with party(three.url(TRUSTED)) as one:
            began = clock.now()
            tries, granted = try_for(one, 0.8, within=0.04)
            assert granted is None
            # One each half second, until one of them is there.
            assert max(begun.values()) <= 1 + (clock.now() - began) / 0.5, begun
            assert max(begun.values()) < tries
            assert try_for(one, 20.0, within=1.0)[1] is not None
    finally:
        for member in three.all:
            member.proxy.heal()


def test_a_connection_that_hangs_does_not_keep_new_ones_from_being_tried(
    three: Members, begun: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, healed = Dialer.connect, threading.Event()

    async def hanging(dialer: Dialer[QuorumLink], node: int, until: float) -> QuorumLink:
        if healed.is_set():
            return await counted(dialer, node, until)
        threading.Event().wait(max(0.0, until - clock.now()))
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(Dialer, "connect", hanging)
    with party(three.url(TRUSTED)) as one:
        assert try_for(one, 0.2, within=0.05)[1] is None
        healed.set()
        began = clock.now()
        assert try_for(one, 20.0, within=0.3)[1] is not None
        assert took(began) < BUSY


def test_what_a_signal_handler_raises_is_no_absence_of_the_server_that_is_being_connected(
    three: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    async def interrupted(site: RedisSite, until: float) -> AsyncRedisWire:
        tried.append(site.where)
        if len(tried) == 3:
            signal.raise_signal(signal.SIGUSR1)
        return await dial(site, until)

    def handle(*_: object) -> None:
        raise TimeoutError("the handler's own")

    async def main() -> None:
        async with AsyncClient(three.url(TRUSTED)) as client:
            with pytest.raises(TimeoutError, match="the handler's own"):
                await client.lock("job").acquire(timeout=BUSY)
            async with await client.lock("job").acquire(timeout=BUSY):
                pass
            # The one that was interrupted is asked again at once, as it has not failed.
            assert tried.count(tried[2]) == 2

    monkeypatch.setattr("incumbent.stores.quorum.aio.dial", interrupted)
    before = signal.signal(signal.SIGUSR1, handle)
    try:
        asyncio.run(main())
    finally:
        signal.signal(signal.SIGUSR1, before)
