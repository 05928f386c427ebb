"""The URL of a quorum, checked before anything is sent."""

from __future__ import annotations

import pytest

from incumbent.errors import ConfigError
from incumbent.stores.quorum.options import parse_quorum_url
from incumbent.stores.url import open_engine

THREE = "redis+quorum://a,b:7000,[::1]:7001"


def test_the_nodes_are_those_of_the_url_in_its_order() -> None:
    options = parse_quorum_url("redis+quorum://me:secret@a,b:7000,[::1]:7001/3?restart_wait=0")
    targets = [it.target for it in options.nodes]
    assert [(it.host, it.port) for it in targets] == [("a", 6379), ("b", 7000), ("::1", 7001)]
    assert {(it.username, it.password, it.db) for it in targets} == {("me", "secret", 3)}
    assert {it.restart_wait for it in options.nodes} == {0.0}
    assert options.shown == "redis+quorum://me:***@a:6379,b:7000,[::1]:7001/3"
    assert "secret" not in repr(options)


def test_a_password_of_its_own_replaces_that_of_the_url() -> None:
    assert {it.target.password for it in parse_quorum_url(THREE, "x").nodes} == {"x"}


@pytest.mark.parametrize("hosts", ["a", "a,b", "a,b,c,d", ",".join("abcdefghijk")])
def test_an_even_number_of_servers_and_too_few_or_many_are_refused(hosts: str) -> None:
    with pytest.raises(ConfigError, match="odd number of servers from 3 to 9"):
        parse_quorum_url(f"redis+quorum://{hosts}")


@pytest.mark.parametrize("hosts", ["a,b,a", "a,b,A:6379", "a:6379,b,a"])
def test_the_same_server_twice_is_refused(hosts: str) -> None:
    with pytest.raises(ConfigError, match="named twice"):
        parse_quorum_url(f"redis+quorum://{hosts}")


@pytest.mark.parametrize("url", ["redis+quorum://", "redis+quorum:a,b,c", "redis+quorum://a,,b"])
def test_a_malformed_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        parse_quorum_url(url)


def test_an_option_that_nobody_knows_is_refused_without_showing_a_password() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_quorum_url("redis+quorum://me:hunter2@a,b,c?restart_wiat=0")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("option", ["wait_replicas=1", "wait_timeout=1s", "functions=yes"])
def test_options_of_a_single_server_are_refused(option: str) -> None:
    with pytest.raises(ConfigError, match="not one of a quorum"):
        parse_quorum_url(f"redis+quorum://a,b,c?{option}")


def test_the_order_of_the_list_does_not_matter_and_everything_else_does() -> None:
    members = parse_quorum_url("redis+quorum://a,b,c").members
    assert members.startswith("3:")
    assert parse_quorum_url("redis+quorum://c:6379,A,b").members == members
    for other in ("a,b,d", "a,b,c:7000", "a,b,c,d,e", "a,b,c/1"):
        assert parse_quorum_url(f"redis+quorum://{other}").members != members


def test_a_name_stands_for_the_list_where_addresses_differ() -> None:
    near = parse_quorum_url("redis+quorum://a,b,c?members=billing").members
    assert parse_quorum_url("redis+quorum://x,y,z?members=billing").members == near
    assert parse_quorum_url("redis+quorum://x,y,z,v,w?members=billing").members != near
    assert parse_quorum_url("redis+quorum://a,b,c?members=other").members != near


@pytest.mark.parametrize("named", ["members=", "members=a b", "members=x&members=y"])
def test_a_wrong_name_is_refused(named: str) -> None:
    with pytest.raises(ConfigError, match="members"):
        parse_quorum_url(f"redis+quorum://a,b,c?{named}")


def test_the_engine_connects_to_nothing_and_shows_no_password() -> None:
    engine = open_engine("redis+quorum://:secret@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3")
    assert engine.url == "redis+quorum://:***@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/0"
    assert "secret" not in repr(engine)
    assert engine.capabilities.fields
    assert engine.capabilities.slots
    assert not engine.capabilities.queue
