"""An error of our own code is raised as what it is, at once: it is never an outage of the store.

FAILURES 105: an assert that failed was taken for a store that cannot be reached, for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import incumbent
from incumbent.net import aiowire, dial
from incumbent.net.aiowire import AsyncStream
from incumbent.stores.etcd.client import EtcdClient
from incumbent.stores.postgresql import wire
from incumbent.stores.postgresql.site import PostgresSite
from incumbent.stores.postgresql.subscriber import NotificationListener
from incumbent.stores.quorum.dialect import QuorumDialect
from incumbent.stores.quorum.links import QuorumLink
from incumbent.stores.quorum.nodes import QuorumNode
from incumbent.stores.quorum.waiting import MajorityHub
from incumbent.stores.redis import aio, sync, take
from incumbent.stores.redis.aio import AsyncRedisWire
from incumbent.stores.redis.subscription import LineHub
from tests.stores.postgresql.world import new_database
from tests.support.pace import now, took
from tests.support.servers import RedisServer

PATIENCE = 60.0
AT_ONCE = 10.0
SIDES = pytest.mark.parametrize("side", ["blocking", "asyncio"])


class Defect(TypeError):
    """As for a wrong argument, or an attribute or a key that does not exist."""


def defect(*_: Any, **__: Any) -> Any:
    raise Defect("a mistake of ours")


@pytest.fixture(params=["redis", "quorum", "etcd", "postgresql"])
def store(request: pytest.FixtureRequest) -> Iterator[str]:
    with ExitStack() as ends:
        match request.param:
            case "redis":
                yield f"{request.getfixturevalue('own_redis').url}?restart_wait=0"
            case "quorum":
                ports = [ends.enter_context(RedisServer()).port for _ in range(3)]
                hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
                yield f"redis+quorum://{hosts}?restart_wait=0"
            case "etcd":
                endpoint = request.getfixturevalue("etcd_server").endpoint
                yield f"etcd://{endpoint}/defects?restart_wait=0"
            case _:
                server = request.getfixturevalue("postgres_server")
                yield server.url_of(new_database(server))


def acquire(url: str, side: str) -> object:
    if side == "blocking":
        with incumbent.Client(url) as client:
            return client.lock("job").acquire(timeout=PATIENCE).release()

    async def main() -> object:
        async with incumbent.AsyncClient(url) as client:
            return await (await client.lock("job").acquire(timeout=PATIENCE)).release()

    return asyncio.run(main())


def surfaces(url: str, side: str) -> None:
    began = now()
    with pytest.raises(Defect, match="a mistake of ours"):
        acquire(url, side)
    assert took(began) < AT_ONCE


CONNECTING: dict[str, list[Any]] = {
    "redis": [(dial, "tune"), (aiowire, "tune")],
    "quorum": [(QuorumNode, "welcomed")],
    "etcd": [(dial, "tune"), (aiowire, "tune")],
    "postgresql": [(PostgresSite, "conninfo")],
}


def plant(monkeypatch: pytest.MonkeyPatch, url: str, places: dict[str, list[Any]]) -> None:
    scheme = url.partition("://")[0].replace("redis+", "")
    for owner, name in places[scheme]:
        monkeypatch.setattr(owner, name, defect)


@SIDES
def test_while_a_connection_is_made(store: str, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, store, CONNECTING)
    surfaces(store, side)


READING: dict[str, list[Any]] = {
    "redis": [(sync, "read_take"), (aio, "read_take"), (take, "read_take")],
    # Where all nodes answer alike, the blocking side compares bytes, and decodes no vote.
    "quorum": [(QuorumDialect, "read_vote"), (QuorumLink, "replies")],
    "etcd": [(EtcdClient, "_read")],
    "postgresql": [(wire, "_value_of")],
}


@SIDES
def test_while_an_answer_is_read(store: str, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, store, READING)
    surfaces(store, side)


ARRIVING: dict[str, list[Any]] = {
    "redis": [(AsyncRedisWire, "_deliver")],
    "quorum": [(AsyncRedisWire, "_deliver")],
    "etcd": [(AsyncStream, "data_received")],
}


@pytest.mark.parametrize("store", ["redis", "quorum", "etcd"], indirect=True)
def test_in_what_the_event_loop_calls(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop only logs what its callbacks raise: those who wait for the bytes raise it.

    PostgreSQL's bytes are read by libpq.
    """
    plant(monkeypatch, store, ARRIVING)
    surfaces(store, "asyncio")


WAITING: dict[str, list[Any]] = {
    "redis": [(LineHub, "_open")],
    "quorum": [(MajorityHub, "_connected")],
    "etcd": [(EtcdClient, "_next_results")],
    "postgresql": [(NotificationListener, "_start_listening")],
}


@SIDES
def test_while_another_holds_the_lease(
    store: str, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with incumbent.Client(store) as other:
        held = other.lock("job", ttl=60).acquire(timeout=PATIENCE)
        plant(monkeypatch, store, WAITING)
        surfaces(store, side)
        monkeypatch.undo()
        assert held.release()
