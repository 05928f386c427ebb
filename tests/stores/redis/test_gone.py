"""A record that an operator deletes on a real server: whoever held it reports no success."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from incumbent import AsyncLock, Client, Lease, LeaseLost, Lock
from tests.support.servers import RedisServer

pytestmark = pytest.mark.server


def deletes(server: RedisServer, name: str) -> None:
    assert server.cli("DEL", f"incumbent:{{default/{name}}}") in ("1", ":1")


@pytest.fixture
def url(redis_server: RedisServer) -> str:
    return f"{redis_server.url}?restart_wait=0"


@pytest.fixture
def rival(url: str) -> Iterator[Lock]:
    with Client(url) as client:
        yield client.lock("gone-a", ttl=60, timeout=0)


def test_a_body_whose_key_was_deleted_and_taken_by_another_ends_in_a_loss(
    redis_server: RedisServer, url: str, rival: Lock
) -> None:
    lock = Lock("gone-a", store=url, ttl=60)
    with pytest.raises(LeaseLost, match="gone from the store"), lock:
        deletes(redis_server, "gone-a")
        theirs = rival.acquire()
    assert theirs.renew() > 0
    theirs.release()


def test_a_task_whose_key_was_deleted_and_taken_by_another_ends_in_a_loss(
    redis_server: RedisServer, url: str, rival: Lock
) -> None:
    async def work() -> None:
        async with AsyncLock("gone-a", store=url, ttl=60):
            deletes(redis_server, "gone-a")
            theirs.append(rival.acquire())

    theirs: list[Lease] = []
    with pytest.raises(LeaseLost, match="gone from the store"):
        asyncio.run(work())
    assert theirs[0].renew() > 0
    theirs[0].release()
