"""Who is a member: lists that cannot be one, that differ, and members that refuse us."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from incumbent.errors import ConfigError, StoreError, StoreUnavailable
from incumbent.model import Ask, Granted, Released
from incumbent.stores.url import open_engine
from tests.stores.quorum.world import Members, party
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
        granted = first.take(ASK)
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
        small.take(ASK)
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
