"""Failovers: leases end where the newest writes may be missing, and go on elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from incumbent import clock
from incumbent.model import Ask, Key
from incumbent.stores.base import Engine
from incumbent.stores.etcd import open_etcd
from incumbent.stores.etcd.engine import EtcdEngine
from incumbent.stores.mysql import TABLES, open_mysql
from incumbent.stores.mysql.engine import MysqlEngine
from incumbent.stores.postgresql import open_postgresql
from incumbent.stores.postgresql.engine import PostgresEngine
from incumbent.stores.quorum import open_quorum
from incumbent.stores.quorum.engine import QuorumEngine
from incumbent.stores.redis import open_store
from incumbent.stores.redis.engine import RedisEngine
from incumbent.testing.contract import StoreContract, World
from tests import tiers
from tests.support.etcd_cluster import EtcdCluster
from tests.support.mariadb import MariaServer
from tests.support.postgresql import PostgresServer
from tests.support.redis_sentinels import Sentinels
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

pytestmark = [pytest.mark.server, pytest.mark.left(tiers.LONG)]


class FailoverWorld(World):
    """The server that serves is killed by `cause`, and another one serves when that returns."""

    def __init__(self, engine: Engine, cause: Callable[[], object]) -> None:
        super().__init__(engine)
        self._cause = cause

    def failover(self) -> None:
        self._cause()


class TestSentinelFailovers(StoreContract):
    capabilities = RedisEngine.capabilities
    hooks = frozenset({"failover", "restart_wait"})
    only = frozenset({"failover"})
    ttl = 0.4

    @pytest.fixture
    def world(self) -> Iterator[World]:
        with Sentinels(replicas=1) as sentinels:

            def kill() -> None:
                master = sentinels.master
                master.server.kill()
                sentinels.wait_for_failover(master)

            yield FailoverWorld(open_store(f"{sentinels.url}?restart_wait=1s"), kill)


class TestPostgresqlFailovers(StoreContract):
    capabilities = PostgresEngine.capabilities
    hooks = frozenset({"failover", "restart_wait"})
    only = frozenset({"failover"})
    ttl = 0.4

    @pytest.fixture
    def world(self, own_postgres: PostgresServer) -> Iterator[World]:
        with own_postgres.standby() as standby:
            url = own_postgres.url_of("postgres").replace(
                f"127.0.0.1:{own_postgres.port}",
                f"127.0.0.1:{own_postgres.port},127.0.0.1:{standby.port}",
            )
            engine = open_postgresql(f"{url}?restart_wait=1.5s")
            engine.fix(clock.now() + 20)

            def kill() -> None:
                own_postgres.kill()
                standby.promote()

            yield FailoverWorld(engine, kill)


class TestMysqlFailovers(StoreContract):
    capabilities = MysqlEngine.capabilities
    hooks = frozenset({"failover", "restart_wait"})
    only = frozenset({"failover"})
    ttl = 0.4

    @pytest.fixture
    def world(self, own_maria: MariaServer) -> Iterator[World]:
        database = own_maria.new_database()
        with own_maria.replica() as replica:
            url = own_maria.url_of(database).replace(
                f"127.0.0.1:{own_maria.port}",
                f"127.0.0.1:{own_maria.port},127.0.0.1:{replica.port}",
            )
            engine = open_mysql(f"{url}?restart_wait=1.5s")
            engine.fix(clock.now() + 20)
            # It may lose the newest writes, and not all of them.
            eventually(lambda: len(replica.sql("SHOW TABLES", database)) == len(TABLES))

            def kill() -> None:
                own_maria.kill()
                replica.promote()

            yield FailoverWorld(engine, kill)


class TestEtcdFailovers(StoreContract):
    capabilities = EtcdEngine.capabilities
    hooks = frozenset({"failover"})
    only = frozenset({"failover"})
    ttl = 1.0

    @pytest.fixture
    def world(self) -> Iterator[World]:
        with EtcdCluster() as cluster:

            def kill() -> None:
                leader = cluster.leader
                leader.kill()
                cluster.another_leader(leader)

            yield FailoverWorld(open_etcd(f"{cluster.url}?restart_wait=0"), kill)


class TestQuorumFailovers(StoreContract):
    capabilities = QuorumEngine.capabilities
    hooks = frozenset({"failover"})
    only = frozenset({"failover"})
    ttl = 0.4

    @pytest.fixture
    def world(self) -> Iterator[World]:
        with ExitStack() as stack:
            servers = [stack.enter_context(RedisServer([])) for _ in range(3)]
            hosts = ",".join(f"127.0.0.1:{it.port}" for it in servers)
            engine = open_quorum(f"redis+quorum://{hosts}?members=failover&restart_wait=0")
            engine.store().take(Key("begin", "x"), "0" * 32, Ask(1.0, "first"), clock.now() + 5)
            yield FailoverWorld(engine, servers[0].kill)
