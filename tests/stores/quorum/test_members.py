"""Who is a member: lists that cannot be one, that differ, and members that refuse us."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from incumbent import Client
from incumbent.errors import ConfigError, StoreError, StoreUnavailable
from incumbent.model import Ask, Granted, Key, Released
from incumbent.stores.url import open_engine
from tests.stores.quorum.world import Members, party, soon, take_everywhere
from tests.support.servers import RedisServer

pytestmark = pytest.mark.server

ASK = Ask(10.0, "host-1")
TRUSTED = "restart_wait=0"


@pytest.fixture
def four() -> Iterator[Members]:
    with Members(4) as members:
        yield members


@pytest.mark.parametrize(
    "hosts",
    ["a,b", "a,b,c,d", "a", "a,a,b", "a:1,b,a:1", "a,b,c,d,e,f", "a:6379,a,b", ""],
)
def test_a_list_that_is_no_quorum_is_refused(hosts: str) -> None:
    with pytest.raises(ConfigError):
        open_engine(f"redis+quorum://{hosts}")


def test_a_list_that_differs_is_refused_and_the_order_does_not_count(four: Members) -> None:
    with party(four.url(TRUSTED, (0, 1, 2))) as first:
        granted = take_everywhere(four.all[:3], first, ASK)
        with party(four.url(TRUSTED, (2, 0, 1))) as same:
            same.key = first.key
            same.claim = first.claim
            assert same.take(ASK).token == granted.token
        with (
            party(four.url(TRUSTED, (1, 2, 3))) as other,
            pytest.raises(StoreError, match="member"),
        ):
            other.try_take(ASK)
        first.give(granted)
        assert isinstance(first.take(ASK), Granted)


def test_two_lists_that_share_a_minority_never_both_lead(four: Members) -> None:
    """Of five and of three, with one member in common: who came first to it keeps the other out."""
    with Members(4) as more, party(four.url(TRUSTED, (0, 1, 2))) as small:
        take_everywhere(four.all[:3], small, ASK)
        hosts = [four.all[0].address, *(one.address for one in more.all)]
        with party(f"redis+quorum://{','.join(hosts)}?{TRUSTED}") as large:
            large.key = small.key
            with pytest.raises(StoreError, match="member"):
                large.try_take(ASK)


def test_a_wrong_password_at_one_of_three_is_survived() -> None:
    servers = [RedisServer(password=word) for word in ("secret", "secret", "other")]
    try:
        hosts = ",".join(f"127.0.0.1:{one.port}" for one in servers)
        with party(f"redis+quorum://:secret@{hosts}?{TRUSTED}") as one:
            assert isinstance(one.give(one.take(ASK)), Released)
    finally:
        for server in servers:
            server.stop()


def test_a_wrong_password_at_a_majority_is_final_and_does_not_show() -> None:
    servers = [RedisServer(password=word) for word in ("secret", "other", "other")]
    try:
        hosts = ",".join(f"127.0.0.1:{one.port}" for one in servers)
        with (
            party(f"redis+quorum://:secret@{hosts}?{TRUSTED}") as one,
            pytest.raises(StoreUnavailable) as caught,
        ):
            one.try_take(ASK)
        assert caught.value.permanent
        assert "secret" not in str(caught.value)
        assert "secret" not in one.engine.url
    finally:
        for server in servers:
            server.stop()


def test_a_member_of_a_quorum_is_refused_by_redis_alone_in_one_sentence(four: Members) -> None:
    with party(four.url(TRUSTED, (0, 1, 2))) as one:
        take_everywhere(four.all[:3], one, ASK)
    alone = open_engine(f"redis://{four.all[0].address}?restart_wait=0")
    for take in takes_of_both_sides(alone):
        with pytest.raises(StoreUnavailable, match="is used as a member of a quorum already") as e:
            take()
        assert e.value.permanent
    assert any(
        "a member of a quorum already" in what for _, what, _ in alone.diagnose(15.0, soon())
    )


def test_a_server_of_its_own_is_refused_as_a_member_in_one_sentence(four: Members) -> None:
    with Client(f"redis://{four.all[0].address}?restart_wait=0") as client:
        client.lock("job", ttl=5).acquire().release()
    with party(four.url(TRUSTED, (0, 1, 2))) as one:
        # The others are a majority.
        one.take(ASK)
        said = [what for level, what, _ in one.engine.diagnose(15.0, soon()) if level == "error"]
        assert any("is used as a server of its own already" in what for what in said)
        four.all[1].server.stop()
        for take in takes_of_both_sides(one.engine):
            with pytest.raises(StoreError, match="is used as a server of its own already"):
                take()


def takes_of_both_sides(engine: Any) -> list[Callable[[], object]]:
    """A blocking take, and one on asyncio."""
    wanted = (Key("default", "other"), secrets.token_hex(16), ASK)

    async def take() -> None:
        store = engine.async_store()
        try:
            await store.take(*wanted, soon())
        finally:
            await store.aclose()

    return [lambda: engine.store().take(*wanted, soon()), lambda: asyncio.run(take())]
