"""An error of ours is a few lines: the caller's, and what happened, once."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

import incumbent
from incumbent import AsyncLock, Client, Election, Lock
from tests.support.faulty import FaultyEngine
from tests.support.servers import RedisServer

AWAY = [
    "redis://127.0.0.1:1",
    "redis+sentinel://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/main",
    "redis+cluster://127.0.0.1:1",
    "redis+quorum://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3",
    "etcd://127.0.0.1:1",
    "postgresql://127.0.0.1:1/leases",
]
INSIDE = str(Path(incumbent.__file__).parent)


def told(call: Callable[[], Any]) -> str:
    """The traceback, as Python prints it."""
    try:
        call()
    except incumbent.LockError as error:
        return "".join(traceback.format_exception(error))
    raise AssertionError("nothing was raised")


def own_frames(text: str) -> int:
    return sum(INSIDE in line for line in text.splitlines())


CALLS: list[Callable[[str], Any]] = [
    lambda url: Lock("a", store=url, timeout=0).acquire(),
    lambda url: Lock("a", store=url, timeout=0.1).acquire(),
    lambda url: Lock("a", store=url, timeout=0).__enter__(),
    lambda url: Lock("a", store=url).held_by(),
    lambda url: asyncio.run(AsyncLock("a", store=url, timeout=0).acquire()),
    lambda url: asyncio.run(AsyncLock("a", store=url).held_by()),
    lambda url: Election("a", store=url).campaign(0),
    lambda url: Election("a", store=url).leader(),
    lambda url: Client(url).read("a"),
]


@pytest.mark.parametrize("url", AWAY)
def test_a_store_that_is_away_is_told_without_what_is_inside(url: str) -> None:
    for call in CALLS:
        text = told(partial(call, url))
        assert "The above exception" not in text
        assert "During handling" not in text
        # That is the line of the very method that was called.
        assert own_frames(text) <= 1, text
        assert text.count("incumbent.errors.StoreUnavailable: ") == 1


def test_a_lease_that_another_holds_is_told_without_what_is_inside() -> None:
    engine = FaultyEngine()
    lease = Lock("a", store=engine).acquire()
    for lock in (Lock("a", store=engine, timeout=timeout) for timeout in (0, 0.01)):
        assert own_frames(told(lock.acquire)) <= 1
    lease.release()


def test_the_log_has_it_all_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "incumbent"):
        told(lambda: Lock("a", store=AWAY[0], timeout=0).acquire())
    record = next(each for each in caplog.records if each.levelno == logging.DEBUG)
    assert own_frames(caplog.text) > 5
    assert "ConnectionRefusedError" in caplog.text
    assert record.exc_info is not None


def test_what_a_program_raised_within_our_call_stays_to_be_seen(redis_server: RedisServer) -> None:
    """A provider of credentials is the program's own: its author needs to see where it failed."""

    class Provider(redis.CredentialProvider):
        def get_credentials(self) -> tuple[str]:
            raise LookupError("no secret is mounted")

    client = redis.Redis(port=redis_server.port, credential_provider=Provider())
    text = told(lambda: Lock("a", store=client, timeout=0).acquire())
    assert "in get_credentials" in text
    assert "The above exception was the direct cause" in text


def test_a_body_that_looks_at_its_lost_lease_says_so_once() -> None:
    engine = FaultyEngine()

    def lose() -> None:
        with Lock("a", store=engine).acquire() as lease:
            lease._claim.machine.note_gone("taken")
            lease.check()

    async def lose_async() -> None:
        async with AsyncLock("a", store=engine) as lease:
            lease._claim.machine.note_gone("taken")
            lease.check()

    def lose_and_fail() -> None:
        with Lock("a", store=engine).acquire() as lease:
            lease._claim.machine.note_gone("taken")
            raise incumbent.LeaseLost("of something else")

    for call in (lose, lambda: asyncio.run(lose_async())):
        assert told(call).count("is gone from the store") == 1
    assert told(lose_and_fail).count("is gone from the store") == 1
