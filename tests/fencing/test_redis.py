"""`write_redis`: the token and the commands in one script."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from incumbent import AlreadyReleased, ConfigError, LeaseLost, Lock, Misuse, StoreError
from incumbent.fencing import Token, async_write_redis, write_redis
from tests.support.servers import RedisServer


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url) as client:
        client.delete("incumbent-fencing:orders", "n", "l")
        yield client


def test_replies_come_back_in_order_with_none_for_what_is_not_there(client: redis.Redis) -> None:
    replies = write_redis(
        Token("orders", 1), client, ("GET", "n"), ("INCRBY", "n", 7), ("RPUSH", "l", b"\xff", 1.5)
    )
    assert replies == [None, 7, 2]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(tokens=st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=8))
def test_a_token_passes_if_none_before_it_was_larger(
    client: redis.Redis, tokens: list[int]
) -> None:
    client.delete("incumbent-fencing:orders", "n")
    passed, highest = 0, -1
    for token in tokens:
        if token >= highest:
            passed, highest = passed + 1, token
            assert write_redis(Token("orders", token), client, ("INCR", "n")) == [passed]
        else:
            with pytest.raises(LeaseLost, match=f"token {highest} was here"):
                write_redis(Token("orders", token), client, ("INCR", "n"))
    assert client.get("n") == str(passed).encode()


def test_the_asynchronous_client_is_refused_likewise(
    client: redis.Redis, redis_server: RedisServer
) -> None:
    async def write(token: int) -> list[Any]:
        async with redis.asyncio.Redis.from_url(redis_server.url) as own:
            return await async_write_redis(Token("orders", token), own, ("INCR", "n"))

    assert asyncio.run(write(5)) == [1]
    with pytest.raises(LeaseLost):
        asyncio.run(write(4))
    assert client.get("n") == b"1"


def test_a_lease_that_is_over_writes_nothing(client: redis.Redis) -> None:
    lease = Lock("orders", store="memory:").acquire()
    lease.release()
    with pytest.raises(AlreadyReleased):
        write_redis(lease, client, ("INCR", "n"))
    assert client.get("n") is None


def test_a_command_that_redis_refuses_is_its_error(client: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError):
        write_redis(Token("orders", 1), client, ("INCR", "n"), ("LPUSH", "n", 1))
    assert client.get("n") == b"1"


@pytest.mark.parametrize("bad", [(), ((),), ("SET n 1",)])
def test_what_is_no_command_is_refused(client: redis.Redis, bad: Any) -> None:
    with pytest.raises(ConfigError, match="sequence of its words"):
        write_redis(Token("orders", 1), client, *bad)
    assert client.get("incumbent-fencing:orders") is None


def test_a_pipeline_is_refused_before_it_queues_anything(
    client: redis.Redis, redis_server: RedisServer
) -> None:
    with client.pipeline() as pipeline:
        with pytest.raises(Misuse, match="pipeline"):
            write_redis(Token("orders", 1), pipeline, ("INCR", "n"))
        assert pipeline.execute() == []

    async def write() -> None:
        async with redis.asyncio.Redis.from_url(redis_server.url) as own, own.pipeline() as queue:
            await async_write_redis(Token("orders", 1), queue, ("INCR", "n"))

    with pytest.raises(Misuse, match="pipeline"):
        asyncio.run(write())


@pytest.mark.parametrize("torn", ["x", "", "-5", "zzzzzzzzzzzzzzzzzzzzzz", "1.5"])
def test_a_key_without_a_token_stops_all_writes(client: redis.Redis, torn: str) -> None:
    client.set("incumbent-fencing:orders", torn)
    with pytest.raises(StoreError, match="instead of a token"):
        write_redis(Token("orders", 10), client, ("INCR", "n"))
    assert client.get("n") is None
