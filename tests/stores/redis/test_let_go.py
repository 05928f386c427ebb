"""All connections are let go of while one is on its way: a Sentinel named another master.

It leads to the server before, which may go on as a master for some seconds.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from incumbent.errors import StoreUnavailable
from incumbent.stores.plan import run_blocking
from incumbent.stores.redis.aio import AsyncRedisWire
from incumbent.stores.redis.runner import DIALECT
from incumbent.stores.redis.site import MARKER_KEY
from incumbent.stores.redis.sync import RedisWire
from tests.stores.party import ASK
from tests.stores.redis.world import Party, new_claim, party, soon
from tests.support.servers import RedisServer

pytestmark = pytest.mark.server


def test_a_connection_that_was_being_made_when_all_were_let_go_of_is_not_kept(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with party(redis_server.url) as one:
        runner, made = one.engine.store().operations, list[RedisWire]()
        dial = runner.dial

        async def dial_meanwhile(until: float) -> RedisWire:
            made.append(await dial(until))
            runner.let_go()
            return made[-1]

        monkeypatch.setattr(runner, "dial", dial_meanwhile)
        one.take()
        assert [wire.fileno() for wire in made] == [-1]
        assert runner.idle == []


def test_a_connection_that_was_being_taken_when_all_were_let_go_of_is_not_kept(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with party(redis_server.url) as one:
        one.take()
        runner = one.engine.store().operations
        (kept,) = runner.idle
        trusted = runner.trusted

        def trusted_meanwhile(*, trust: bool = True) -> RedisWire | None:
            wire = trusted(trust=trust)
            runner.let_go()
            return wire

        monkeypatch.setattr(runner, "trusted", trusted_meanwhile)
        one.store.read(one.key, soon())
        assert kept.fileno() == -1
        assert runner.idle == []


def test_no_marker_tells_of_a_promotion_that_was_overtaken_while_a_connection_was_made(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with party(own_redis.url) as one:
        runner = one.engine.store().operations
        site, dial = runner.site, runner.dial

        async def dial_meanwhile(until: float) -> RedisWire:
            wire = await dial(until)
            site.target = replace(site.target, promotion=2)
            return wire

        monkeypatch.setattr(runner, "dial", dial_meanwhile)
        with pytest.raises(StoreUnavailable, match="another server has taken its place"):
            one.take()
        assert own_redis.cli("EXISTS", MARKER_KEY) == "0"


def test_a_script_that_was_forgotten_is_not_sent_again_to_a_master_that_is_not_meant(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with party(own_redis.url) as one:
        one.take()
        runner = one.engine.store().operations
        meant, again = [True, False], DIALECT.take(one.key, new_claim(), ASK)
        monkeypatch.setattr(type(runner.site), "means", lambda *_: meant.pop(0))
        own_redis.cli("SCRIPT", "FLUSH")
        with pytest.raises(StoreUnavailable, match="asked again"):
            run_blocking(runner.run(again, soon()))


def test_tasks_share_no_connection_that_was_being_made_when_all_were_let_go_of(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(one: Party) -> None:
        store, made = one.engine.async_store(), list[AsyncRedisWire]()
        dial = store.dial

        async def dial_meanwhile(until: float) -> AsyncRedisWire:
            made.append(await dial(until))
            if len(made) == 1:
                store.let_go()
            return made[-1]

        monkeypatch.setattr(store, "dial", dial_meanwhile)
        await one.take_async()
        assert [wire.closed for wire in made] == [True, False]
        assert store._shared is made[1]

    with party(redis_server.url) as one:
        asyncio.run(main(one))
