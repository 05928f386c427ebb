"""Clients of Sentinel and of Cluster in place of a URL: whom they ask, how they log in."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel

from incumbent import AsyncLock, Lock
from incumbent.errors import StoreUnavailable
from incumbent.model import Renewal, Renewed
from tests.stores.redis.world import Party, own_party, party, soon
from tests.support.redis_age import pretend_age
from tests.support.redis_cluster import ClusterNode, RedisCluster
from tests.support.redis_sentinels import SERVICE, Sentinels, SentinelServer
from tests.support.servers import RedisServer, TlsFiles
from tests.support.waiting import eventually

pytestmark = pytest.mark.server

# Its types are only half there: as in a user's own code, it is not for a checker to find.
BLOCKING: Any = redis
ASYNC: Any = redis.asyncio
MASTERS, SENTINELS, NODES = "m-sesame", "s-sesame", "c-sesame"


@pytest.fixture(scope="module")
def sentinels() -> Iterator[Sentinels]:
    with Sentinels(password=MASTERS, sentinel_password=SENTINELS, replicas=1) as running:
        yield running


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster(password=NODES) as running:
        yield running


class Login(redis.CredentialProvider):
    """A login that is asked for at each connection."""

    def __init__(self, password: str) -> None:
        self.password = password
        self.asked = 0

    def get_credentials(self) -> tuple[str]:
        self.asked += 1
        return (self.password,)


def sentinel(module: Any, running: Sentinels, **more: Any) -> Any:
    asked = [("127.0.0.1", each.port) for each in running.sentinels]
    given = {"sentinel_kwargs": {"password": SENTINELS}, "password": MASTERS} | more
    return module.sentinel.Sentinel(asked, **given)


def nodes(module: Any, running: RedisCluster) -> list[Any]:
    return [module.cluster.ClusterNode("127.0.0.1", each.port) for each in running.nodes[:2]]


OF_SENTINEL: dict[str, Callable[[Sentinels], Any]] = {
    "a client": lambda s: sentinel(BLOCKING, s).master_for(SERVICE),
    "an asynchronous one": lambda s: sentinel(ASYNC, s).master_for(SERVICE),
    "many options": lambda s: sentinel(BLOCKING, s, protocol=3, socket_timeout=0.001).master_for(
        SERVICE, decode_responses=True, max_connections=1
    ),
    "a pool": lambda s: sentinel(ASYNC, s).master_for(SERVICE).connection_pool,
    "a provider of credentials": lambda s: sentinel(BLOCKING, s, password=None).master_for(
        SERVICE, credential_provider=Login(MASTERS)
    ),
    "providers on both": lambda s: sentinel(
        ASYNC,
        s,
        password=None,
        sentinel_kwargs={"credential_provider": Login(SENTINELS)},
        credential_provider=Login(MASTERS),
    ).master_for(SERVICE),
}
OF_CLUSTER: dict[str, Callable[[RedisCluster], Any]] = {
    "a client": lambda c: BLOCKING.RedisCluster(
        startup_nodes=nodes(BLOCKING, c), password=NODES, decode_responses=True
    ),
    "an asynchronous one": lambda c: ASYNC.RedisCluster(
        startup_nodes=nodes(ASYNC, c), password=NODES, socket_timeout=0.001
    ),
    "one from a URL": lambda c: BLOCKING.RedisCluster.from_url(single(c.url)),
    "an asynchronous one from a URL": lambda c: ASYNC.RedisCluster.from_url(single(c.url)),
    "a host": lambda c: ASYNC.RedisCluster(
        host="localhost", port=str(c.nodes[1].port), password=NODES, protocol=3
    ),
    "a provider of credentials": lambda c: BLOCKING.RedisCluster(
        startup_nodes=nodes(BLOCKING, c), credential_provider=Login(NODES)
    ),
    "an asynchronous provider": lambda c: ASYNC.RedisCluster(
        startup_nodes=nodes(ASYNC, c), credential_provider=Login(NODES)
    ),
}


def single(url: str) -> str:
    return url.replace("+cluster", "").partition(",")[0]


def serves_both_sides(client: Any) -> Party:
    one = own_party(client, restart_wait=0)
    granted = one.take()
    assert asyncio.run(one.take_async()) == granted
    renewal = Renewal(one.key, one.claim, granted.token, 10.0, granted.epoch)
    assert one.store.renew([renewal], soon()) == [Renewed()]
    shown = f"{one.engine!r}{one.engine.url}"
    assert not [secret for secret in (MASTERS, SENTINELS, NODES) if secret in shown]
    return one


def of(client: Any) -> Any:
    return getattr(client, "nodes_manager", None) or getattr(client, "connection_pool", client)


def is_used(client: Any) -> bool:
    """Whether anything of it has a connection."""
    found = getattr(of(client), "_available_connections", None)
    return bool(found)


@pytest.mark.parametrize("make", OF_SENTINEL.values(), ids=OF_SENTINEL)
def test_a_client_of_sentinel_is_followed_on_both_sides_and_left_alone(
    sentinels: Sentinels, make: Callable[[Sentinels], Any]
) -> None:
    client = make(sentinels)
    before = dict(of(client).connection_kwargs)
    one = serves_both_sides(client)
    assert one.engine.url.startswith("redis+sentinel://")
    assert str(sentinels.sentinels[2].port) in one.engine.url
    with party(sentinels.url, f"restart_wait=0&sentinel_password={SENTINELS}") as other:
        other.key = one.key
        assert other.refused().reason == "held"
    one.store.close()
    assert of(client).connection_kwargs == before
    assert not is_used(client)


@pytest.mark.parametrize("make", OF_CLUSTER.values(), ids=OF_CLUSTER)
def test_a_client_of_a_cluster_finds_all_nodes_on_both_sides_and_is_left_alone(
    cluster: RedisCluster, make: Callable[[RedisCluster], Any]
) -> None:
    client = make(cluster)
    before = dict(client.nodes_manager.connection_kwargs)
    one = serves_both_sides(client)
    assert one.engine.url.startswith("redis+cluster://")
    with party(cluster.url) as other:
        for number in range(10):
            other.key = one.key = one.key._replace(name=f"{one.key.name}-{number}")
            one.take()
            assert other.refused().reason == "held"
    one.store.close()
    assert client.nodes_manager.connection_kwargs == before
    if isinstance(client, BLOCKING.RedisCluster):
        assert client.get("nothing") is None
        client.close()


def test_a_database_of_a_sentinels_client_is_its_own(sentinels: Sentinels) -> None:
    one = own_party(sentinel(BLOCKING, sentinels, db=3).master_for(SERVICE), restart_wait=0)
    other = own_party(sentinel(ASYNC, sentinels).master_for(SERVICE), restart_wait=0)
    other.key = one.key
    one.take()
    other.take()
    assert one.engine.url.endswith(f"/{SERVICE}/3")
    assert other.claim in sentinels.master.server.cli("GET", other.main)
    for each in (one, other):
        each.store.close()


def test_a_provider_is_asked_for_each_connection(
    sentinels: Sentinels, cluster: RedisCluster
) -> None:
    masters, nodes_ = Login(MASTERS), Login(NODES)
    made = [
        sentinel(ASYNC, sentinels, password=None).master_for(SERVICE, credential_provider=masters),
        ASYNC.RedisCluster(startup_nodes=nodes(ASYNC, cluster), credential_provider=nodes_),
    ]
    for client, login in zip(made, (masters, nodes_), strict=True):
        one = own_party(client, restart_wait=0)
        one.take()
        asked = login.asked
        one.store.close()
        one.take()
        assert 0 < asked < login.asked
        one.store.close()


@pytest.mark.parametrize("where", ["master", "sentinels", "cluster"])
def test_a_wrong_password_is_refused_for_good_and_not_shown(
    sentinels: Sentinels, cluster: RedisCluster, where: str
) -> None:
    clients: dict[str, Callable[[], Any]] = {
        "master": lambda: sentinel(BLOCKING, sentinels, password="guess-1").master_for(SERVICE),
        "sentinels": lambda: sentinel(
            ASYNC, sentinels, sentinel_kwargs={"password": "guess-1"}
        ).master_for(SERVICE),
        "cluster": lambda: ASYNC.RedisCluster(
            startup_nodes=nodes(ASYNC, cluster), password="guess-1"
        ),
    }
    one = own_party(clients[where](), restart_wait=0)
    takes: list[Callable[[], object]] = [one.take, lambda: asyncio.run(one.take_async())]
    for take in takes:
        with pytest.raises(StoreUnavailable) as caught:
            take()
        assert caught.value.permanent
        assert "guess-1" not in f"{caught.value}{one.engine!r}"
    one.store.close()


def test_a_sentinels_client_gives_no_leases_without_a_majority(sentinels: Sentinels) -> None:
    one = own_party(sentinel(BLOCKING, sentinels).master_for(SERVICE), restart_wait=0)
    for each in sentinels.sentinels[:2]:
        each.freeze()
    try:
        with pytest.raises(StoreUnavailable, match="1 of 3 sentinels"):
            one.take(within=1.5)
    finally:
        for each in sentinels.sentinels[:2]:
            each.thaw()
    one.take()
    one.store.close()


def test_layers_are_options_of_a_client_as_of_a_url(sentinels: Sentinels) -> None:
    client = sentinel(BLOCKING, sentinels).master_for(SERVICE)
    one = own_party(client, restart_wait=0, wait_replicas="1:1s")
    one.take()
    one.store.close()
    one = own_party(client, restart_wait=0, wait_replicas="2:1s")
    with pytest.raises(StoreUnavailable, match="1 of 2 replicas"):
        one.take()
    one.store.close()


def test_a_lock_takes_such_a_client_in_place_of_a_url(
    sentinels: Sentinels, cluster: RedisCluster
) -> None:
    master = sentinel(BLOCKING, sentinels).master_for(SERVICE)
    many = ASYNC.RedisCluster(startup_nodes=nodes(ASYNC, cluster), password=NODES)
    # Clients have no restart_wait of their own.
    pretend_age(f"{sentinels.url}?sentinel_password={SENTINELS}", sentinels.master.server)
    pretend_age(cluster.url, *cluster.nodes)

    async def main() -> None:
        async with AsyncLock("own", store=many, namespace="faults", timeout=20) as lease:
            lease.check()

    with Lock("own", store=master, namespace="faults", timeout=20) as lease:
        lease.check()
    asyncio.run(main())


def all_know_all(cluster: RedisCluster) -> bool:
    """Whether each node knows where each other one is: they tell each other in a while."""
    known = [node.cli("CLUSTER", "NODES") for node in cluster.nodes]
    return all(f":{node.port}@" in each for node in cluster.nodes for each in known)


def test_nodes_and_masters_are_reached_where_the_client_reaches_them(
    sentinels: Sentinels, cluster: RedisCluster
) -> None:
    """As from outside a network whose addresses are not ours."""
    real = {10 + at: node.port for at, node in enumerate(cluster.nodes)}
    for announced, node in zip(real, cluster.nodes, strict=True):
        node.cli("CONFIG", "SET", "cluster-announce-port", str(announced))
    try:
        for module in (BLOCKING, ASYNC):
            client = module.RedisCluster(
                startup_nodes=nodes(module, cluster),
                password=NODES,
                address_remap=lambda address: (address[0], real.get(address[1], address[1])),
            )
            one = serves_both_sides(client)
            for number in range(10):
                one.key = one.key._replace(name=f"{one.key.name}-{number}")
                one.take()
            one.store.close()
    finally:
        for node in cluster.nodes:
            node.cli("CONFIG", "SET", "cluster-announce-port", "0")
        eventually(lambda: all_know_all(cluster))
    forced = sentinel(ASYNC, sentinels, force_master_ip="127.0.0.2").master_for(SERVICE)
    one = own_party(forced, restart_wait=0)
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.2"):
        one.take(within=0.5)


def test_an_engine_keeps_no_client_alive(sentinels: Sentinels, cluster: RedisCluster) -> None:
    clients = [
        sentinel(BLOCKING, sentinels).master_for(SERVICE),
        # What it runs at each of its connections is a method of its own.
        BLOCKING.RedisCluster(startup_nodes=nodes(BLOCKING, cluster), password=NODES),
    ]
    engines = [own_party(client).engine for client in clients]
    gone = [weakref.ref(client) for client in clients]
    del clients
    gc.collect()
    assert [each() for each in gone] == [None, None]
    assert len(engines) == 2


# -- TLS


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@contextmanager
def guarded_sentinel(files: TlsFiles) -> Iterator[SentinelServer]:
    with RedisServer(tls=files) as master:
        lines = [f"sentinel monitor {SERVICE} 127.0.0.1 {master.port} 1"]
        with SentinelServer(lines, tls=files) as running:
            eventually(lambda: "status=ok" in running.cli("INFO", "sentinel"))
            yield running


def test_clients_of_sentinel_over_tls_keep_their_checks(files: TlsFiles) -> None:
    good = {"ssl": True, "ssl_ca_certs": str(files.ca)}
    with guarded_sentinel(files) as running:
        asked = [("127.0.0.1", running.port)]
        for module in (BLOCKING, ASYNC):
            made = module.sentinel.Sentinel(asked, sentinel_kwargs=good, **good)
            one = serves_both_sides(made.master_for(SERVICE))
            assert one.engine.url.startswith("rediss+sentinel://")
            one.store.close()
        for there, here in (({"ssl": True}, good), (good, {"ssl": True})):
            strict = BLOCKING.sentinel.Sentinel(asked, sentinel_kwargs=there, **here)
            one = own_party(strict.master_for(SERVICE), restart_wait=0)
            with pytest.raises(StoreUnavailable, match="certificate") as caught:
                one.take()
            assert caught.value.permanent


def test_clients_of_a_cluster_over_tls_keep_their_checks(files: TlsFiles) -> None:
    good = {"ssl": True, "ssl_ca_certs": str(files.ca)}
    with ClusterNode(["--tls-cluster", "yes"], tls=files) as node:
        node.cli("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
        eventually(lambda: node.state("cluster_state") == "ok")
        url = f"rediss://127.0.0.1:{node.port}?ssl_ca_certs={files.ca}"
        for client in (
            BLOCKING.RedisCluster(host="127.0.0.1", port=node.port, **good),
            ASYNC.RedisCluster(host="127.0.0.1", port=node.port, **good),
            BLOCKING.RedisCluster.from_url(url),
            ASYNC.RedisCluster.from_url(url),
        ):
            one = serves_both_sides(client)
            assert one.engine.url.startswith("rediss+cluster://")
            one.store.close()
        one = own_party(ASYNC.RedisCluster(host="127.0.0.1", port=node.port, ssl=True))
        with pytest.raises(StoreUnavailable, match="certificate") as caught:
            one.take()
        assert caught.value.permanent
