"""What lives at the keys of a lease: other clients' values, and records that stay bounded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
from redis.lock import Lock as RedisPyLock

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.model import (
    Ask,
    ByClaim,
    Gone,
    Granted,
    Key,
    Parting,
    Refused,
    Released,
    Renewal,
    Renewed,
    Slot,
    Stale,
)
from incumbent.stores.plan import Plan, run_blocking
from incumbent.stores.redis.give import give_back
from incumbent.stores.redis.incarnation import TOKEN_JUMP, ServerContext
from tests.stores.redis.world import ASK, Party, new_claim, party, soon
from tests.support.redis_age import pretend_age
from tests.support.servers import RedisServer
from tests.support.waiting import eventually


@pytest.fixture
def here(redis_server: RedisServer) -> Iterator[Party]:
    with party(redis_server.url) as one:
        yield one


@pytest.fixture
def raw(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=redis_server.port) as client:
        yield client


def renewal(one: Party, granted: Granted) -> Renewal:
    return Renewal(one.key, one.claim, granted.token, 10.0, granted.epoch)


# -- values of others


@pytest.mark.parametrize("which", ["main", "companion"])
def test_another_type_at_the_key_is_final_named_and_left_alone(
    here: Party, raw: redis.Redis, which: str
) -> None:
    key = here.main if which == "main" else here.companion
    raw.lpush(key, "x") if which == "main" else raw.set(key, "x")
    with pytest.raises(StoreUnavailable, match="WRONGTYPE") as caught:
        here.take()
    assert caught.value.permanent
    assert here.main in str(caught.value)
    assert raw.exists(key) == 1
    assert raw.exists(here.main) == (which == "main")
    raw.delete(key)
    here.take()


def test_another_type_beside_a_held_lease_does_not_stop_renewal_and_release(
    here: Party, raw: redis.Redis
) -> None:
    granted = here.take()
    raw.set(here.companion, "x")
    assert here.store.renew([renewal(here, granted)], soon()) == [Renewed()]
    assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()
    assert raw.get(here.companion) == b"x"


def test_one_broken_key_does_not_fail_the_renewal_of_others(here: Party, raw: redis.Redis) -> None:
    granted = here.take()
    other = Key("faults", "broken-" + here.key.name)
    raw.lpush(f"incumbent:{{{other}}}", "x")
    batch = [Renewal(other, "c", 1, 10.0, granted.epoch), renewal(here, granted)]
    assert here.store.renew(batch, soon()) == [Gone(), Renewed()]


@pytest.mark.parametrize("value", ["something", "incumbent 2 c 1 0 1 1 h ", ""])
def test_a_foreign_value_is_held_and_left_alone(here: Party, raw: redis.Redis, value: str) -> None:
    raw.set(here.main, value, px=60_000)
    refused = here.refused()
    assert refused.holders[0].foreign
    assert refused.retry_after is not None
    assert 50 < refused.retry_after <= 60
    assert here.store.give(here.key, here.claim, None, soon()) == Gone()
    assert raw.get(here.main) == value.encode()


@pytest.mark.parametrize("number", [0, 2])
def test_a_record_of_another_format_is_read_by_nobody_and_left_alone(
    here: Party, raw: redis.Redis, number: int
) -> None:
    granted = here.take()
    value: Any = raw.get(here.main)
    others = value.replace(b"incumbent1 ", b"incumbent%d " % number)
    raw.set(here.main, others, px=60_000)
    said = f"format {number} .* format 1: stop"
    for read in (
        lambda: here.store.read(here.key, soon()),
        lambda: here.store.scan(here.key.namespace, here.key.name, soon()),
        lambda: here.take(new_claim()),
    ):
        with pytest.raises(StoreUnavailable, match=said) as caught:
            read()
        assert caught.value.permanent
        assert here.main in str(caught.value)
    # The same claim and token in another format are not ours.
    assert here.store.renew([renewal(here, granted)], soon()) == [Gone()]
    for token in (granted.token, None):
        assert here.store.give(here.key, here.claim, token, soon()) == Gone()
    assert (
        here.store.put(here.key, "x", b"1", ByClaim(here.claim, granted.token), soon()) == Stale()
    )
    assert raw.get(here.main) == others
    assert raw.pttl(here.main) > 50_000


def test_a_foreign_value_without_an_end_has_none_to_wait_for(here: Party, raw: redis.Redis) -> None:
    raw.set(here.main, "something")
    assert here.refused().retry_after is None


@contextmanager
def sharing(server: RedisServer) -> Iterator[Party]:
    with party(server.url, "restart_wait=0&key=lock:{name}") as one:
        yield one


def test_a_lease_and_a_lock_of_redis_py_exclude_each_other(
    redis_server: RedisServer, raw: redis.Redis
) -> None:
    with sharing(redis_server) as one:
        name = f"lock:{one.key.name}"
        theirs = RedisPyLock(raw, name, timeout=5, blocking=False)
        granted = one.take()
        assert not theirs.acquire()
        assert one.store.give(one.key, one.claim, granted.token, soon()) == Released()
        assert theirs.acquire()
        refused = one.refused()
        assert refused.holders[0].foreign
        assert refused.reason == "held"
        assert one.store.read(one.key, soon()).holdings[0].foreign
        theirs.release()
        assert one.take().token > granted.token
        assert [record.key for record in one.store.scan("faults", one.key.name, soon())] == [
            one.key
        ]


# -- records


def test_nothing_stays_for_ever(here: Party, raw: redis.Redis) -> None:
    ask = Ask(0.2, "h", keep_record=0.4, slot=Slot("s", 0.3))
    token = here.take(ask=ask).token
    here.store.put(here.key, "pause", b"{}", None, soon())
    assert raw.ttl(here.companion) == -1
    here.store.put(here.key, "pause", None, None, soon())
    assert 0 < raw.pttl(here.companion) <= 86_400_000
    here.store.give(here.key, here.claim, token, soon())
    here.take(ask=ask)
    assert raw.pttl(here.companion) <= 400
    eventually(lambda: not list(raw.scan_iter(f"{here.main}*")))


def test_a_record_stays_as_long_as_was_asked_though_it_is_not_told_at_every_take(
    here: Party, raw: redis.Redis
) -> None:
    for keep in (1.6, 1.6, 4.0, 1.6, 1.6):
        until = clock.now() + 0.25
        while (began := clock.now()) < until:
            granted = here.take(ask=Ask(0.2, "h", keep_record=keep))
            left = raw.pttl(here.companion)
            assert left >= 1000 * (keep - (clock.now() - began)) - 2
            here.store.give(here.key, here.claim, granted.token, soon())


def test_a_pause_between_two_takes_refuses_the_second(here: Party, raw: redis.Redis) -> None:
    def pair() -> None:
        here.store.give(here.key, here.claim, here.take().token, soon())

    for _ in range(3):
        pair()
        pair()
        assert raw.hget(here.companion, "x") != b"0", "a take looks at everything"
        here.store.put(here.key, "pause", b"{}", None, soon())
        assert here.refused().reason == "paused"
        here.store.put(here.key, "pause", None, None, soon())


def test_a_record_that_expired_during_a_long_holding_comes_back_bounded(
    here: Party, raw: redis.Redis
) -> None:
    granted = here.take()
    raw.delete(here.companion)
    here.store.renew([renewal(here, granted)], soon())
    assert raw.hget(here.companion, "t") == str(granted.token).encode()
    assert raw.pttl(here.companion) > 0
    raw.delete(here.companion)
    here.store.give(here.key, here.claim, granted.token, soon())
    assert raw.pttl(here.companion) > 0
    assert here.take().token > granted.token


@pytest.mark.parametrize("paused", [False, True])
def test_a_record_that_came_back_for_a_claim_in_doubt_has_the_last_token(
    here: Party, raw: redis.Redis, paused: bool
) -> None:
    granted = here.take()
    raw.delete(here.companion)
    here.store.give(here.key, new_claim(), None, soon())
    if paused:
        here.store.put(here.key, "pause", b"{}", None, soon())
    assert here.store.give(here.key, here.claim, granted.token, soon()) == Released()
    assert raw.hget(here.companion, "t") == str(granted.token).encode()
    # What has been written stays until it is removed.
    assert (raw.ttl(here.companion) == -1) == paused


def test_who_looks_on_hears_of_a_grant_that_is_given_back(here: Party, raw: redis.Redis) -> None:
    granted = here.take()
    channel = f"{here.main}:c"
    with raw.pubsub() as heard:  # type: ignore[no-untyped-call]
        heard.subscribe(channel)
        assert heard.get_message(timeout=2)["type"] == "subscribe"
        undo: Plan[ServerContext, None] = Plan(
            "give", lambda server, _: give_back(server.packer, here.key, granted, ASK)
        )
        run_blocking(here.store.operations.run(undo, soon()))
        # As after a release: an empty message tells of a reservation or a field.
        assert heard.get_message(timeout=2)["data"] == b"given"


def test_tokens_grow_even_when_the_clock_of_the_server_does_not(
    here: Party, raw: redis.Redis
) -> None:
    ahead = 1_000_000 * (int(time.time()) + 3600)
    raw.hset(here.companion, "t", str(ahead))
    assert here.take().token == ahead + 1


def test_the_history_keeps_the_last_twenty(here: Party) -> None:
    for turn in range(25):
        granted = here.take(ask=Ask(10.0, f"host {turn}"))
        here.store.give(here.key, here.claim, granted.token, soon())
    held = here.take(ask=Ask(10.0, "host last"))
    past = here.store.read(here.key, soon()).history
    assert [each.holder for each in past] == [
        *[f"host {turn}" for turn in range(6, 25)],
        "host last",
    ]
    assert all(each.ended is not None and each.ended >= each.started for each in past[:-1])
    assert (past[-1].token, past[-1].ended) == (held.token, None)


def test_a_refusal_says_who_holds_and_for_how_long(here: Party) -> None:
    here.take(ask=Ask(10.0, "host 1", meta=b"m m"))
    refused = here.refused()
    (holding,) = refused.holders
    assert (holding.holder, holding.meta, holding.ttl) == ("host 1", b"m m", 10.0)
    assert holding.held_for is not None
    assert 0 <= holding.held_for < 8
    assert refused.retry_after is not None
    assert 2 < refused.retry_after <= 10
    assert isinstance(refused, Refused)
    assert ASK.ttl == 10.0


@pytest.mark.parametrize("permits", [None, 2])
def test_while_tokens_are_ahead_of_the_clock_they_grow_on_the_same_short_way(
    permits: int | None,
) -> None:
    """In the first minute of a server: each takes one more, and no call more than later."""
    ask, calls = Ask(10.0, "host-1", permits=permits), list[dict[str, int]]()
    with RedisServer() as young, RedisServer() as older:
        pretend_age(older.url, older)
        for server in (young, older):
            with party(server.url) as one, redis.Redis(port=server.port) as raw:
                tokens = []
                for at in range(6):
                    granted = one.take(new_claim(), ask=ask)
                    shared = permits is not None
                    one.store.give(
                        one.key,
                        granted.claim,
                        granted.token,
                        soon(),
                        parting=Parting(shared=shared),
                    )
                    tokens.append(granted.token)
                    if not at:
                        # The first take of a name is longer.
                        raw.config_resetstat()
                ahead = tokens[0] / 1e6 - clock.wall()
                if server is young:
                    assert 50 < ahead <= TOKEN_JUMP
                    assert tokens == list(range(tokens[0], tokens[0] + 6))
                else:
                    assert ahead < 0
                    assert tokens == sorted(set(tokens))
                stats: Any = raw.info("commandstats")
                # Not of a look at the server, which time decides.
                kept = ("hmget", "hget", "hset", "set", "zadd", "zcard", "pexpire", "del")
                found = {name: stats.get(f"cmdstat_{name}", {}).get("calls") for name in kept}
                calls.append(found)
    assert calls[0] == calls[1]
    assert calls[0]["hmget"] == 5
