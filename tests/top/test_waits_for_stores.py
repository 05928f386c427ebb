"""A store that does not answer: what cannot heal is raised at once, the rest is waited for."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incumbent import (
    AsyncElection,
    AsyncLock,
    Election,
    Lock,
    StoreError,
    StoreUnavailable,
    clock,
)
from incumbent.net.dial import is_unknown
from incumbent.protocol.messages import waiting_so_far
from incumbent.runtime.keeper import _Outage
from incumbent.stores.etcd.site import EtcdSite, parse_etcd_url
from incumbent.stores.redis.options import RedisTarget
from incumbent.stores.redis.site import RedisSite, connect_error
from tests import tiers
from tests.support.faulty import FaultyEngine
from tests.support.pace import BUSY, lasted, now
from tests.support.postgresql import PostgresServer
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

NOWHERE = "no-such-host.example"
HOPELESS = [
    f"redis://{NOWHERE}",
    f"redis+sentinel://{NOWHERE},{NOWHERE}:2,{NOWHERE}:3/main",
    f"redis+cluster://{NOWHERE},{NOWHERE}:2",
    f"redis+quorum://{NOWHERE},{NOWHERE}:2,{NOWHERE}:3",
    f"etcd://{NOWHERE}",
    f"etcd://{NOWHERE},{NOWHERE}:2,{NOWHERE}:3",
    f"postgresql://{NOWHERE}/leases",
    f"postgresql://{NOWHERE},{NOWHERE}:2/leases",
    f"mysql://{NOWHERE}/leases",
    f"mysql://{NOWHERE},{NOWHERE}:2/leases",
]
PATIENCE = 60.0
AT_ONCE = 10.0

Wait = Callable[[Any, float], None]


def blocking(store: Any, timeout: float) -> None:
    Lock("a", store=store, timeout=timeout).acquire().release()


def campaigns(store: Any, timeout: float) -> None:
    Election("a", store=store).campaign(timeout).release()


def awaited(store: Any, timeout: float) -> None:
    async def wait() -> None:
        await (await AsyncLock("a", store=store, timeout=timeout).acquire()).release()

    asyncio.run(wait())


def awaited_campaign(store: Any, timeout: float) -> None:
    async def wait() -> None:
        await (await AsyncElection("a", store=store).campaign(timeout)).release()

    asyncio.run(wait())


SIDES = pytest.mark.parametrize("wait", [blocking, awaited, campaigns, awaited_campaign])
BOTH = pytest.mark.parametrize("wait", [blocking, awaited])


def refused(
    wait: Wait, store: Any, timeout: float, *, least: float = 0.0, most: float = AT_ONCE
) -> StoreError:
    began = now()
    with pytest.raises(StoreError) as caught:
        wait(store, timeout)
    assert lasted(began, least - 0.01, most)
    return caught.value


# -- what cannot heal -----------------------------------------------------------------------------


@pytest.fixture
def no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", partial(fail, socket.EAI_NONAME))


def fail(code: int, *_: object, **__: object) -> Any:
    raise socket.gaierror(code, "planned")


@BOTH
@pytest.mark.usefixtures("no_host")
@pytest.mark.parametrize("url", HOPELESS)
def test_a_host_that_does_not_exist_is_told_at_once(wait: Wait, url: str) -> None:
    error = refused(wait, url, PATIENCE)
    assert error.permanent
    assert NOWHERE in str(error)


@BOTH
@pytest.mark.usefixtures("no_host")
@pytest.mark.parametrize(
    "url",
    [
        "etcd://127.0.0.1:1,no-such-host.example",
        "postgresql://127.0.0.1:1,no-such-host.example/leases",
        "redis+cluster://127.0.0.1:1,no-such-host.example",
        "redis+quorum://127.0.0.1:1,127.0.0.1:2,no-such-host.example",
        "redis+sentinel://127.0.0.1:1,127.0.0.1:2,no-such-host.example/main",
    ],
)
def test_of_several_hosts_one_that_exists_is_waited_for(wait: Wait, url: str) -> None:
    assert not refused(wait, url, 0.3, least=0.3).permanent


@SIDES
def test_a_database_that_redis_has_not_is_told_at_once(
    wait: Wait, redis_server: RedisServer
) -> None:
    error = refused(wait, f"redis://127.0.0.1:{redis_server.port}/99", PATIENCE)
    assert error.permanent
    assert "has no database 99" in str(error)


@SIDES
def test_a_login_that_redis_refuses_is_told_at_once(wait: Wait, redis_server: RedisServer) -> None:
    url = f"redis://nobody:s3cret@127.0.0.1:{redis_server.port}/0"
    error = refused(wait, url, PATIENCE)
    assert error.permanent
    assert "refuses the login" in str(error)
    assert "s3cret" not in str(error)


@SIDES
def test_a_role_that_postgresql_has_not_is_told_at_once(
    wait: Wait, postgres_server: PostgresServer
) -> None:
    url = f"postgresql://nobody:s3cret@127.0.0.1:{postgres_server.port}/postgres"
    error = refused(wait, url, PATIENCE)
    assert error.permanent
    assert "s3cret" not in str(error)


def test_a_name_that_vanishes_later_may_come_back() -> None:
    unknown = socket.gaierror(socket.EAI_NONAME, "planned")
    assert is_unknown(unknown)
    assert connect_error(unknown, RedisSite(RedisTarget(), "here")).permanent
    assert not connect_error(unknown, RedisSite(RedisTarget(), "here", served=True)).permanent
    # Another server named it: that one may name a better one next time.
    assert not connect_error(unknown, RedisSite(RedisTarget(), "here", named=False)).permanent
    site = EtcdSite(parse_etcd_url("etcd://a"))
    site.served = True
    assert not site.cannot_connect(unknown, "a:2379").permanent


def test_a_resolver_that_cannot_be_asked_has_not_said_no() -> None:
    for code in (socket.EAI_AGAIN, socket.EAI_FAIL):
        error = socket.gaierror(code, "planned")
        assert not is_unknown(error)
        assert not connect_error(error, RedisSite(RedisTarget(), "here")).permanent


# -- what can -------------------------------------------------------------------------------------


@BOTH
def test_a_resolver_that_comes_back_is_waited_for(
    wait: Wait,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    really, failures = socket.getaddrinfo, iter(range(2))

    def resolve(host: str, *more: Any, **options: Any) -> Any:
        if host != "redis.example":
            return really(host, *more, **options)
        if next(failures, None) is not None:
            fail(socket.EAI_AGAIN)
        return really("127.0.0.1", *more, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    url = f"redis://redis.example:{redis_server.port}/0?key={wait.__name__}:{{name}}"
    with caplog.at_level(logging.WARNING, "incumbent"):
        wait(url, PATIENCE)
    (line,) = [r.getMessage() for r in caplog.records if "redis.example" in r.getMessage()]
    assert line.startswith("a: waiting for the store (timeout 1m): redis://redis.example:")


@pytest.mark.left(tiers.SIDES, "blocking", "awaited_campaign")
@SIDES
def test_a_server_that_started_just_now_costs_the_timeout_and_no_loop(
    wait: Wait, own_redis: RedisServer
) -> None:
    timeout = 3.0
    error = refused(wait, own_redis.url, timeout, least=timeout)
    assert isinstance(error, StoreUnavailable)
    assert "may still be working" in str(error)
    assert "the timeout is over" in str(error)
    assert error.retry_after is not None
    # Fifteen seconds after it was first looked at it grants, and some of them are over.
    assert 1 < error.retry_after < 15 - timeout + BUSY
    # A single try is answered at once, and told how long the store waits; unless a busy machine
    # leaves it no time.
    eventually(lambda: refused(wait, own_redis.url, 0).retry_after is not None)


@SIDES
def test_what_ends_after_the_timeout_is_asked_once(
    wait: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, asked = FaultyEngine(), []

    def take(*_: object) -> Any:
        asked.append(clock.now())
        raise StoreUnavailable("planned", retry_after=30.0)

    monkeypatch.setattr(engine.faulty, "take", take)
    error = refused(wait, engine, 0.2, least=0.2)
    assert len(asked) == 1
    assert error.retry_after is not None
    # Counted from the answer, which may come late where the machine is busy.
    assert 15 < error.retry_after < 29.95


@SIDES
def test_what_ends_within_the_timeout_is_outlasted(
    wait: Wait, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FaultyEngine()
    take, ready = engine.faulty.take, clock.now() + 0.2

    def later(*asked: Any) -> Any:
        if clock.now() < ready:
            raise StoreUnavailable("planned", retry_after=ready - clock.now())
        return take(*asked)

    monkeypatch.setattr(engine.faulty, "take", later)
    wait(engine, PATIENCE)


# -- what is said of it ---------------------------------------------------------------------------


@given(st.lists(st.floats(0.0, 20.0), min_size=1, max_size=2000))
def test_the_longer_an_outage_the_rarer_the_lines(gaps: list[float]) -> None:
    outage, instant, told = _Outage(), 1000.0, []
    for gap in gaps:
        instant += gap
        if outage.is_worth_a_line(instant):
            told.append(instant)
    pauses = [after - before for before, after in pairwise(told)]
    assert told[0] == 1000.0 + gaps[0]
    assert all(pause >= min(600.0, 5.0 * 2**at) for at, pause in enumerate(pauses))
    # And no rarer than that: the next try after the pause says it.
    assert all(pause <= min(600.0, 5.0 * 2**at) + 20.0 for at, pause in enumerate(pauses))


def test_the_next_outage_is_told_at_once() -> None:
    outage = _Outage()
    lines = [outage.is_worth_a_line(instant) for instant in (0.0, 1.0, 6.0, 7.0)]
    assert lines == [True, False, True, False]
    assert outage.is_worth_a_line(100.0)
    assert outage.since == 100.0
    assert not outage.is_worth_a_line(104.0)
    assert outage.is_worth_a_line(105.0)


def test_a_line_says_how_long_and_for_how_long_at_most() -> None:
    inf = float("inf")
    assert waiting_so_far(0.3, inf) == " (no timeout)"
    assert waiting_so_far(61.7, inf) == " for 1m1s (no timeout)"
    assert waiting_so_far(5.0, 300.0) == " for 5s (timeout 5m)"
    assert waiting_so_far(5.0, None) == " for 5s"
