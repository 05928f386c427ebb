"""A store that becomes unfit while clients are connected to it grants nothing more.

Each store is made unfit, and fit again, behind the backs of clients that have used it; both sides
of the engine notice by themselves, with the next grant or within the time that guarantees.md names.
"""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Released
from incumbent.stores.redis.incarnation import CHECK_EVERY
from incumbent.stores.url import open_engine
from tests.stores.party import Party, new_claim, soon
from tests.stores.postgresql.world import schema
from tests.stores.quorum.world import Members
from tests.support.etcd import EtcdServer
from tests.support.postgresql import PostgresServer
from tests.support.redis_cluster import RedisCluster
from tests.support.redis_sentinels import Sentinels
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.server

SIDES = ("blocking", "asyncio")


@dataclass
class Place:
    """A store that can be made unfit and fit again; `says`: what its clients are told then.

    `lasts`: they may be told that waiting does not help.
    """

    url: str
    says: str
    unfit: Callable[[], object]
    fit: Callable[[], object]
    lasts: bool = False


def evicting(servers: Sequence[RedisServer], url: str, policy: str = "volatile-lru") -> Place:
    def unfit() -> None:
        for server in servers:
            server.cli("CONFIG", "SET", "maxmemory", "100mb")
            server.cli("CONFIG", "SET", "maxmemory-policy", policy)

    def fit() -> None:
        for server in servers:
            server.cli("CONFIG", "SET", "maxmemory-policy", "noeviction")

    return Place(f"{url}?restart_wait=0", f"may evict leases .*{policy}", unfit, fit)


@contextmanager
def redis_that_evicts(_: Path) -> Iterator[Place]:
    with RedisServer() as server:
        yield evicting([server], server.url)


@contextmanager
def redis_with_a_limit(_: Path) -> Iterator[Place]:
    """Its policy always was what it is; without a limit it evicts nothing."""
    with RedisServer(("--maxmemory-policy", "allkeys-random")) as server:
        yield Place(
            f"{server.url}?restart_wait=0",
            "may evict leases .*allkeys-random",
            lambda: server.cli("CONFIG", "SET", "maxmemory", "100mb"),
            lambda: server.cli("CONFIG", "SET", "maxmemory", "0"),
        )


@contextmanager
def cluster_that_evicts(_: Path) -> Iterator[Place]:
    with RedisCluster() as cluster:
        # To a node that has not served this process yet it may seem to last.
        yield replace(evicting(cluster.nodes, cluster.url), lasts=True)


@contextmanager
def sentinels_that_name_one_that_evicts(_: Path) -> Iterator[Place]:
    with Sentinels(replicas=1) as sentinels:
        yield evicting([node.server for node in sentinels.nodes], sentinels.url)


@contextmanager
def quorum_that_evicts(_: Path) -> Iterator[Place]:
    with Members(3) as members:
        url = members.url("restart_wait=0").partition("?")[0]
        yield evicting([one.server for one in members.all], url)


@contextmanager
def quorum_of_replicas(_: Path) -> Iterator[Place]:
    """Two of its members follow the third, in turn, and are masters again, with its data."""
    with Members(3) as members:
        first, *others = [one.server for one in members.all]

        def unfit() -> None:
            for server in others:
                server.cli("REPLICAOF", "127.0.0.1", str(first.port))

        def fit() -> None:
            for server in others:
                server.cli("REPLICAOF", "NO", "ONE")

        yield Place(members.url("restart_wait=0"), "replica", unfit, fit)


@contextmanager
def postgresql_of_another_format(_: Path) -> Iterator[Place]:
    """Another version has put its own schema there, whose functions have the same names."""
    ours = schema()
    theirs = ours.replace("(format) VALUES (1)", "(format) VALUES (2)")
    theirs = theirs.replace("'1.' ||", "'2.' ||").replace("format <> 1", "format <> 2")
    assert theirs.count("2") >= ours.count("2") + 3
    with PostgresServer() as server:
        database = server.new_database()
        server.psql(ours, database)
        drop = "drop schema incumbent cascade;"
        yield Place(
            f"{server.url_of(database)}?restart_wait=0",
            "has format 2",
            lambda: server.psql(drop + theirs, database),
            lambda: server.psql(drop + ours, database),
        )


@contextmanager
def postgresql_that_is_read_only(_: Path) -> Iterator[Place]:
    with PostgresServer() as server:
        database = server.new_database()
        server.psql(schema(), database)

        def set_to(how: str) -> None:
            server.psql(f"alter system set default_transaction_read_only = {how}")
            server.psql("set transaction_read_only = off; select pg_reload_conf()")
            # A session that begins after the others were told shows it.
            eventually(lambda: server.psql("show default_transaction_read_only") == [(how,)])

        url = f"{server.url_of(database)}?restart_wait=0"
        yield Place(url, "read-only", lambda: set_to("on"), lambda: set_to("off"))


@contextmanager
def sqlite_of_another_format(folder: Path) -> Iterator[Place]:
    path = folder / "leases.db"

    def set_to(number: int) -> None:
        with closing(sqlite3.connect(path)) as other:
            other.execute(f"PRAGMA user_version = {number}")

    yield Place(f"sqlite://{path}", "has format 2", lambda: set_to(2), lambda: set_to(1), True)


def _etcd(server: EtcdServer, alarm: str, says: str) -> Place:
    def ask(action: str) -> None:
        body = json.dumps({"action": action, "alarm": alarm}).encode()
        url = f"http://127.0.0.1:{server.place.client_port}/v3/maintenance/alarm"
        urllib.request.urlopen(urllib.request.Request(url, body), timeout=10).close()

    url = f"{server.url}?restart_wait=0"
    return Place(url, says, lambda: ask("ACTIVATE"), lambda: ask("DEACTIVATE"))


@contextmanager
def etcd_without_space(_: Path) -> Iterator[Place]:
    with EtcdServer() as server:
        yield _etcd(server, "NOSPACE", "alarm NOSPACE")


@contextmanager
def etcd_with_corrupt_data(_: Path) -> Iterator[Place]:
    with EtcdServer() as server:
        yield _etcd(server, "CORRUPT", "alarm CORRUPT")


PLACES = (
    redis_that_evicts,
    redis_with_a_limit,
    cluster_that_evicts,
    sentinels_that_name_one_that_evicts,
    quorum_that_evicts,
    quorum_of_replicas,
    postgresql_of_another_format,
    postgresql_that_is_read_only,
    sqlite_of_another_format,
    etcd_without_space,
    etcd_with_corrupt_data,
)


async def use(one: Party, side: str) -> None:
    """A take and a give, of a name that nobody had: what was left in doubt is not in its way."""
    claim, one.key = new_claim(), one.key._replace(name=new_claim())
    if side == "blocking":
        granted = one.take(claim)
        outcome = one.store.give(one.key, claim, granted.token, soon())
    else:
        granted = await one.take_async(claim)
        store = one.engine.async_store()
        outcome = await store.give(one.key, claim, granted.token, soon())
    assert outcome == Released()


async def refusal(one: Party, side: str) -> StoreUnavailable:
    """What the next use says. Before, it may say that the outcome is not known, but never grant."""
    for _ in range(10):
        try:
            await use(one, side)
        except StoreUnavailable as error:
            return error
        except OutcomeUnknown:
            continue
        break
    raise AssertionError("it goes on granting")


async def granted_again(one: Party, side: str) -> None:
    until = soon(20)
    while True:
        try:
            return await use(one, side)
        except StoreError:
            if clock.now() > until:
                raise
            await asyncio.sleep(0.05)


@pytest.fixture
def looks_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for which a look counts is over at once."""
    redis, quorum = ("take", "sync", "aio"), ("connecting", "engine")
    for module in (*(f"redis.{it}" for it in redis), *(f"quorum.{it}" for it in quorum)):
        monkeypatch.setattr(f"incumbent.stores.{module}.CHECK_EVERY", 0.0)
    monkeypatch.setattr("incumbent.stores.sqlite.connection._CHECK_EVERY", 0.0)


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("looks_always")
@pytest.mark.parametrize("make", PLACES, ids=lambda make: make.__name__)
def test_clients_that_are_connected_notice_that_a_store_became_unfit(
    make: Callable[[Path], Iterator[Place]], tmp_path: Path
) -> None:
    with make(tmp_path) as place:  # type: ignore[attr-defined]
        engine = open_engine(place.url)
        one = Party(engine)

        async def play() -> None:
            for side in SIDES:
                await granted_again(one, side)
            place.unfit()
            try:
                for side in SIDES:
                    error = await refusal(one, side)
                    assert place.lasts or not error.permanent, error
                    # All connections know it by then.
                    error = await refusal(one, side)
                    assert re.search(place.says, str(error)), error
            finally:
                place.fit()
            for side in SIDES:
                await granted_again(one, side)
            await engine.async_store().aclose()

        try:
            asyncio.run(play())
        finally:
            engine.store().close()


def test_a_look_counts_for_half_a_second_and_no_longer(tmp_path: Path) -> None:
    with redis_that_evicts(tmp_path) as place:
        engine = open_engine(place.url)
        one = Party(engine)
        try:
            asyncio.run(use(one, "blocking"))
            place.unfit()
            began = asked = granted = clock.now()
            with pytest.raises(StoreUnavailable):
                while asked < began + 20:
                    asked = clock.now()
                    asyncio.run(use(one, "blocking"))
                    granted = asked
            assert granted - began <= CHECK_EVERY
        finally:
            engine.store().close()


@pytest.mark.usefixtures("looks_always")
def test_one_member_of_a_quorum_that_evicts_has_no_vote_and_is_named() -> None:
    with Members(3) as members:
        place = evicting([members.all[0].server], members.url("restart_wait=0").partition("?")[0])
        engine = open_engine(place.url)
        one = Party(engine)
        try:
            asyncio.run(use(one, "blocking"))
            place.unfit()
            for _ in range(3):
                asyncio.run(use(one, "blocking"))
            members.all[1].server.stop()
            error = asyncio.run(refusal(one, "blocking"))
            assert re.search(place.says, str(error)), error
        finally:
            engine.store().close()


@pytest.mark.usefixtures("looks_always")
def test_members_that_answered_are_waited_for_when_their_votes_are_taken_back() -> None:
    """Or a slow one among them would make a clear refusal an outcome that nobody knows."""
    with Members(3) as members:
        unfit = members.all[:2]
        url = members.url("restart_wait=0").partition("?")[0]
        place = evicting([member.server for member in unfit], url)
        engine = open_engine(place.url)
        one = Party(engine)
        try:
            asyncio.run(use(one, "blocking"))
            place.unfit()
            for member in unfit:
                member.proxy.delay(reply=0.3)
            with pytest.raises(StoreUnavailable, match=place.says):
                asyncio.run(use(one, "blocking"))
        finally:
            engine.store().close()


def test_a_client_that_accepts_eviction_goes_on(tmp_path: Path) -> None:
    with redis_that_evicts(tmp_path) as place:
        engine = open_engine(f"{place.url}&allow_eviction=yes")
        one = Party(engine)
        place.unfit()
        try:
            for _ in range(3):
                asyncio.run(use(one, "blocking"))
        finally:
            engine.store().close()


@pytest.mark.usefixtures("looks_always")
def test_a_member_of_a_quorum_that_was_a_replica_in_between_has_no_vote() -> None:
    """Its data are another's, though it never said that it cannot write."""
    with quorum_of_replicas(Path()) as place:
        engine = open_engine(place.url)
        one = Party(engine)

        async def play() -> None:
            for side in SIDES:
                await granted_again(one, side)
                place.unfit()
                place.fit()
                with pytest.raises(StoreUnavailable, match="was a replica in between"):
                    await use(one, side)
                await granted_again(one, side)
            await engine.async_store().aclose()

        try:
            asyncio.run(play())
        finally:
            engine.store().close()


@pytest.mark.usefixtures("looks_always")
def test_the_vote_of_a_member_that_is_unfit_is_taken_back(tmp_path: Path) -> None:
    """A take that most members refuse leaves nothing at any of them."""
    with Members(3) as members:
        servers = [one.server for one in members.all]
        place = evicting(servers[:2], members.url("restart_wait=0").partition("?")[0])
        engine = open_engine(place.url)
        one = Party(engine)
        try:
            asyncio.run(use(one, "blocking"))
            place.unfit()
            asyncio.run(refusal(one, "blocking"))
            kept = [server.cli("GET", f"incumbent:{{{one.key}}}") for server in servers]
            assert set(kept) == {"-1"}, kept
        finally:
            engine.store().close()
