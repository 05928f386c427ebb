"""Leases that several hold, on a real server: what they cost, and what others do to their keys."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import redis

from incumbent.errors import ConfigError
from incumbent.locks.several import ReadWriteLock, Semaphore
from incumbent.model import UNLIMITED, Ask, Gone, Granted, Key, Parting, Released, Renewal, Renewed
from tests.stores.redis.world import Party, new_claim, party, soon
from tests.support.servers import RedisServer
from tests.support.waiting import eventually


@pytest.fixture
def here(redis_server: RedisServer) -> Iterator[Party]:
    with party(redis_server.url) as one:
        yield one


@pytest.fixture
def admin(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=redis_server.port) as client:
        yield client


def taken(here: Party, key: Key, permits: int | None, ttl: float = 60.0) -> Renewal:
    claim = new_claim()
    grant = here.store.take(key, claim, Ask(ttl, "somebody", permits), soon())
    assert isinstance(grant, Granted)
    return Renewal(key, claim, grant.token, ttl, grant.epoch, shared=permits is not None)


def calls(admin: redis.Redis) -> int:
    stats = admin.info("commandstats")
    assert isinstance(stats, dict)
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))


@pytest.mark.parametrize("permits", [UNLIMITED, 2, 100])
def test_a_take_and_a_give_are_one_request_each(
    here: Party, admin: redis.Redis, permits: int
) -> None:
    key = Key("shared", secrets.token_hex(6))
    # The first time the scripts are loaded.
    warm = taken(here, key, permits)
    here.store.give(key, warm.claim, warm.token, soon(), parting=Parting(shared=True))
    for _ in range(2):
        before = calls(admin)
        renewal = taken(here, key, permits)
        assert calls(admin) == before + 1
        given = here.store.give(
            key, renewal.claim, renewal.token, soon(), parting=Parting(shared=True)
        )
        assert given == Released()
        assert calls(admin) == before + 2


def test_a_hundred_renewals_are_one_request(here: Party, admin: redis.Redis) -> None:
    key = Key("shared", secrets.token_hex(6))
    renewals = [taken(here, key, 100) for _ in range(100)]
    before = calls(admin)
    assert here.store.renew(renewals, soon()) == [Renewed()] * 100
    assert calls(admin) == before + 1


def test_nothing_stays_but_the_record(here: Party, admin: redis.Redis) -> None:
    key = Key("shared", secrets.token_hex(6))
    for renewal in [taken(here, key, 3) for _ in range(3)]:
        here.store.give(key, renewal.claim, renewal.token, soon(), parting=Parting(shared=True))
    (left,) = admin.scan_iter(f"*{key}*")
    assert left == f"incumbent:{{{key}}}:r".encode()
    assert not list(admin.hscan_iter(left, "p:*"))


def parts(admin: redis.Redis, key: Key) -> set[str]:
    """The claims whose parts the record has."""
    found: Any = admin.hkeys(f"incumbent:{{{key}}}:r")
    return {name[2:].decode() for name in found if name.startswith(b"p:")}


@pytest.mark.parametrize("fields", [0, 1])
@pytest.mark.parametrize("permits", [UNLIMITED, 3])
def test_of_those_who_crashed_nothing_stays_in_the_record(
    here: Party, admin: redis.Redis, permits: int, fields: int
) -> None:
    key = Key("shared", secrets.token_hex(6))
    # With a field a take goes the long way.
    for number in range(fields):
        here.store.put(key, f"field-{number}", b"kept", None, soon())
    crashed = [taken(here, key, permits, 0.3) for _ in range(3)]
    eventually(lambda: not admin.exists(f"incumbent:{{{key}}}"))
    after = taken(here, key, permits)
    assert parts(admin, key) == {after.claim}
    assert after.token > max(each.token for each in crashed)
    record = here.store.read(key, soon())
    assert [each.token for each in record.holdings] == [after.token]
    assert [*record.fields] == [f"field-{number}" for number in range(fields)]
    assert len(record.history) == 4
    assert here.store.renew([*crashed, after], soon()) == [Gone()] * 3 + [Renewed()]


def test_a_give_leaves_nothing_of_those_who_crashed_meanwhile(
    here: Party, admin: redis.Redis
) -> None:
    key = Key("shared", secrets.token_hex(6))
    first, second = taken(here, key, 3), taken(here, key, 3)
    taken(here, key, 3, 0.3)
    eventually(lambda: len(here.store.read(key, soon()).holdings) == 2)
    here.store.give(key, first.claim, first.token, soon(), parting=Parting(shared=True))
    assert parts(admin, key) == {second.claim}


def test_a_name_of_which_only_a_list_of_those_who_crashed_is_left_is_not_shown(
    here: Party, admin: redis.Redis
) -> None:
    key = Key("shared", secrets.token_hex(6))
    taken(here, key, 3)
    assert [record.key for record in here.store.scan("shared", key.name, soon())] == [key]
    # As when it expires: the list outlives it a little.
    admin.delete(f"incumbent:{{{key}}}", f"incumbent:{{{key}}}:r")
    assert here.store.scan("shared", key.name, soon()) == ()


def test_those_who_crash_after_a_long_holding_are_found(here: Party, admin: redis.Redis) -> None:
    key = Key("shared", secrets.token_hex(6))
    renewal = taken(here, key, 2)
    admin.pexpire(f"incumbent:{{{key}}}:p", 1_000_000)
    here.store.renew([renewal], soon())
    admin.delete(f"incumbent:{{{key}}}")
    left = admin.pttl(f"incumbent:{{{key}}}:p")
    assert isinstance(left, int)
    assert left > 40_000_000
    after = taken(here, key, 2)
    assert parts(admin, key) == {after.claim}


@pytest.mark.parametrize("fields", [0, 1])
def test_those_whose_lease_was_deleted_hold_nothing_any_more(
    here: Party, admin: redis.Redis, fields: int
) -> None:
    key = Key("shared", secrets.token_hex(6))
    for number in range(fields):
        here.store.put(key, f"field-{number}", b"", None, soon())
    before = taken(here, key, 2)
    admin.delete(f"incumbent:{{{key}}}")
    assert here.store.renew([before], soon()) == [Gone()]
    after = taken(here, key, 2)
    assert here.store.renew([before, after], soon()) == [Gone(), Renewed()]
    assert len(here.store.read(key, soon()).holdings) == 1


def test_the_record_of_those_who_hold_it_for_long_does_not_end(
    here: Party, admin: redis.Redis
) -> None:
    key = Key("shared", secrets.token_hex(6))
    renewal = taken(here, key, 2)
    admin.pexpire(f"incumbent:{{{key}}}:r", 1_000_000)
    here.store.renew([renewal], soon())
    left = admin.pttl(f"incumbent:{{{key}}}:r")
    assert isinstance(left, int)
    assert left > 40_000_000
    (holding,) = here.store.read(key, soon()).holdings
    assert holding.token == renewal.token


@pytest.mark.parametrize("kind", ["text", "list"])
def test_what_somebody_else_wrote_there_costs_the_others_of_a_batch_nothing(
    here: Party, admin: redis.Redis, kind: str
) -> None:
    spoilt, fine = (Key("shared", secrets.token_hex(6)) for _ in range(2))
    renewals = [taken(here, key, 2) for key in (spoilt, fine)]
    name = f"incumbent:{{{spoilt}}}:p"
    admin.delete(name)
    if kind == "text":
        admin.set(name, "x")
    else:
        admin.lpush(name, "x")
    assert here.store.renew(renewals, soon()) == [Gone(), Renewed()]


def test_a_hand_over_of_a_permit_reaches_the_next_in_line(redis_server: RedisServer) -> None:
    store, name = redis_server.url, secrets.token_hex(6)
    held = [Semaphore(name, 2, store=store).acquire() for _ in range(2)]
    order, counted = list[int](), threading.Lock()

    def wait(number: int) -> None:
        with Semaphore(name, 2, store=store, timeout=30, fair=True), counted:
            order.append(number)

    with ThreadPoolExecutor(3) as pool:
        for number in range(3):
            pool.submit(wait, number)
            eventually(partial(stands, redis_server, name, number + 1))
        held[0].release()
        eventually(lambda: len(order) == 3)
    held[1].release()
    assert order == [0, 1, 2]


def test_all_readers_of_a_line_are_let_in_at_once(redis_server: RedisServer) -> None:
    store, name, together = redis_server.url, secrets.token_hex(6), threading.Barrier(4)

    def read() -> None:
        with ReadWriteLock(name, store=store, timeout=30).read:
            # Sooner than one of them may stay silent in its turn.
            together.wait(4)

    with ThreadPoolExecutor(4) as pool:
        with ReadWriteLock(name, store=store).write:
            readers = []
            for number in range(4):
                readers.append(pool.submit(read))
                eventually(partial(stands, redis_server, name, number + 1))
        for reader in readers:
            reader.result(30)


def stands(server: RedisServer, name: str, count: int) -> bool:
    """Whether so many wait in line."""
    with redis.Redis(port=server.port) as client:
        return bool(client.zcard(f"incumbent:{{default/{name}}}:q") == count)


def test_readers_who_keep_coming_do_not_starve_a_writer(redis_server: RedisServer) -> None:
    store, name = redis_server.url, secrets.token_hex(6)
    over, tokens = threading.Event(), list[int]()

    def read() -> None:
        lock = ReadWriteLock(name, store=store, timeout=30).read
        while not over.is_set():
            with lock as lease:
                tokens.append(lease.fencing_token)

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read) for _ in range(4)]
        try:
            eventually(lambda: len(tokens) > 20)
            for _ in range(5):
                with ReadWriteLock(name, store=store, timeout=30).write as lease:
                    # Those who read meanwhile would be seen here.
                    before = list(tokens)
                    assert lease.fencing_token > max(before)
                    assert tokens == before
        finally:
            over.set()
        for reader in readers:
            reader.result(30)


def test_another_number_of_permits_is_said_with_both_numbers(redis_server: RedisServer) -> None:
    name = secrets.token_hex(6)
    with (
        Semaphore(name, 4, store=redis_server.url, holder="alice"),
        pytest.raises(ConfigError, match=r"held by alice with 4 permits, and we ask with 6"),
    ):
        Semaphore(name, 6, store=redis_server.url).try_acquire()
