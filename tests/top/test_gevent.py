"""Under gevent, whose greenlets cannot renew while another keeps the hub."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiers
from tests.stores.mysql import world as mysql
from tests.stores.postgresql.world import new_database
from tests.support.etcd import EtcdServer
from tests.support.etcd_tls import EtcdTls
from tests.support.mariadb import MariaServer
from tests.support.postgresql import PostgresServer
from tests.support.servers import RedisServer

pytestmark = pytest.mark.timing(tiers.PROCESSES)

SCRIPT = """
from gevent import monkey; monkey.patch_all()
import gevent, sys
from incumbent import Lock

keep_the_hub = monkey.get_original("time", "sleep")

store, ttl = sys.argv[1], float(sys.argv[2])
with Lock("a", store=store, ttl=ttl) as lease:
    keep_the_hub(1.3 * ttl)
    lease.check()
    waiter = gevent.spawn(lambda: Lock("a", store=store, ttl=ttl).acquire(60))
    gevent.sleep(1.3 * ttl)
    lease.check()
waiter.get(timeout=60).release()
print("renewed, and handed over")
"""


def run(store: str, ttl: float = 5.0, script: str = SCRIPT) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, store, str(ttl)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.stdout.strip() or done.stderr


@pytest.mark.left(tiers.STORES)
@pytest.mark.parametrize("store", ["memory:", "sqlite://{}/leases.db"])
def test_a_hub_that_is_kept_does_not_cost_the_lease(store: str, tmp_path: Path) -> None:
    assert run(store.format(tmp_path)) == "renewed, and handed over"


@pytest.mark.left(tiers.LONG)
def test_greenlets_are_told_apart_also_where_gevent_comes_late(tmp_path: Path) -> None:
    """As in a server that loads the application before it forks, and gevent after that."""
    late = f"import incumbent.locks.lock, incumbent.stores.sqlite{SCRIPT}"
    assert run(f"sqlite://{tmp_path}/leases.db", script=late) == "renewed, and handed over"


def test_a_hub_that_is_kept_does_not_cost_a_lease_on_redis(redis_server: RedisServer) -> None:
    assert run(f"{redis_server.url}?restart_wait=0") == "renewed, and handed over"


@pytest.mark.left(tiers.STORES)
@pytest.mark.server
@pytest.mark.parametrize("scheme", ["etcd", "etcds"])
def test_a_hub_that_is_kept_does_not_cost_a_lease_on_etcd(scheme: str, tmp_path: Path) -> None:
    tls = EtcdTls(tmp_path) if scheme == "etcds" else None
    with EtcdServer(tls=tls) as server:
        assert run(server.store_url()) == "renewed, and handed over"


@pytest.mark.left(tiers.STORES)
def test_a_hub_that_is_kept_does_not_cost_a_lease_on_mysql(maria_server: MariaServer) -> None:
    url = maria_server.url_of(mysql.new_database(maria_server))
    assert run(f"{url}?restart_wait=0") == "renewed, and handed over"


@pytest.mark.left(tiers.STORES)
def test_a_hub_that_is_kept_does_not_cost_a_lease_on_postgresql(
    postgres_server: PostgresServer,
) -> None:
    url = postgres_server.url_of(new_database(postgres_server))
    assert run(f"{url}?restart_wait=0") == "renewed, and handed over"
