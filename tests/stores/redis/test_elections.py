"""What elections leave on a Redis server: it has an end, or none, and never harms an answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import redis

from incumbent.model import Ask, Granted, Refused, Released
from incumbent.rules.notices import PAUSE, RESIGN, encode_notice
from tests.stores.redis.world import ASK, Party, party, soon
from tests.support.servers import RedisServer

pytestmark = pytest.mark.server


@pytest.fixture
def here(redis_server: RedisServer) -> Iterator[Party]:
    with party(redis_server.url) as one:
        yield one


@pytest.fixture
def raw(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=redis_server.port) as client:
        yield client


def line(one: Party) -> str:
    return f"incumbent:{{{one.key}}}:w"


def stand(one: Party, holder: str, candidacy: float) -> Refused:
    ask = replace(ASK, holder=holder, candidacy=candidacy)
    outcome = one.store.take(one.key, f"claim-of-{holder}", ask, soon())
    assert isinstance(outcome, Refused)
    return outcome


def test_the_companion_has_no_end_while_it_holds_a_pause(here: Party, raw: redis.Redis) -> None:
    granted = here.take()
    assert raw.pttl(here.companion) > 0
    here.store.put(here.key, PAUSE, encode_notice(who="op"), None, soon())
    here.store.put(here.key, RESIGN, encode_notice(token=granted.token), None, soon())
    assert raw.pttl(here.companion) == -1
    here.store.put(here.key, RESIGN, None, None, soon())
    here.store.give(here.key, here.claim, granted.token, soon())
    assert raw.pttl(here.companion) == -1
    here.store.put(here.key, PAUSE, None, None, soon())
    assert raw.pttl(here.companion) > 0


def test_the_companion_of_a_name_that_nobody_took_has_no_end_while_paused(
    here: Party, raw: redis.Redis
) -> None:
    here.store.put(here.key, PAUSE, encode_notice(), None, soon())
    stand(here, "bob", 60.0)
    assert raw.pttl(here.companion) == -1


def test_the_list_of_candidates_ends_with_the_last_candidacy(here: Party, raw: redis.Redis) -> None:
    here.take()
    stand(here, "bob", 60.0)
    stand(here, "carol", 5.0)
    assert 50_000 < raw.pttl(line(here)) <= 60_000


def test_another_type_at_the_list_of_candidates_changes_no_answer(
    here: Party, raw: redis.Redis
) -> None:
    granted = here.take()
    raw.set(line(here), "x")
    assert stand(here, "bob", 60.0).reason == "held"
    assert here.store.read(here.key, soon()).candidates == ()
    assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()
    ask = replace(ASK, holder="bob", candidacy=60.0)
    assert isinstance(here.store.take(here.key, "another", ask, soon()), Granted)


def test_a_take_without_a_candidacy_touches_no_list(here: Party, raw: redis.Redis) -> None:
    here.take()
    assert isinstance(here.store.take(here.key, "other", Ask(5.0, "bob"), soon()), Refused)
    assert raw.exists(line(here)) == 0


def test_a_server_without_memory_answers_a_standby_as_anybody_else(own_redis: RedisServer) -> None:
    with party(own_redis.url) as one, redis.Redis(port=own_redis.port) as raw:
        one.take()
        raw.config_set("maxmemory-policy", "noeviction")
        raw.config_set("maxmemory", "1")
        ask = replace(ASK, holder="bob")
        plain = _answer(one, ask)
        standing = _answer(one, replace(ask, candidacy=60.0))
        raw.config_set("maxmemory", "0")
    assert type(plain) is type(standing)


def _answer(one: Party, ask: Ask) -> object:
    try:
        return one.store.take(one.key, "another", ask, soon())
    except Exception as error:  # noqa: BLE001 - compared by its type
        return error
