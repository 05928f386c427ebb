"""Servers and networks for every test; see tests/support."""

from __future__ import annotations

import gc
import logging
import signal
from collections.abc import Iterator

import hypothesis
import pytest

from incumbent.policy import TTL_MAX
from tests.support.etcd import EtcdServer
from tests.support.postgresql import PostgresServer
from tests.support.proxy import FaultProxy
from tests.support.redis_age import pretend_age
from tests.support.servers import RedisServer

# A shell ignores the first two for what it starts in the background, nohup(1) the third, and
# children inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# A busy machine may take any time for an example; where CI is set that is the default already.
hypothesis.settings.register_profile(
    "patient",
    hypothesis.settings.get_profile(hypothesis.settings.get_current_profile_name()),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("patient")

SERVER_FIXTURES = {
    *("redis_server", "own_redis", "proxy", "etcd_server", "own_etcd"),
    *("postgres_server", "own_postgres"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever asks for a server is marked so, that `make quick` can leave it out."""
    for item in items:
        if SERVER_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.server)


def pytest_collection_finish() -> None:
    """Thousands of tests are a heap; to collect it stops all threads for as long as a short lease.

    What is there now is not looked at again.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def log_as_it_was() -> Iterator[None]:
    """The command line, called in a test, says what the library logs where that test looks."""
    log = logging.getLogger("incumbent")
    handlers, level = list(log.handlers), log.level
    yield
    log.handlers[:] = handlers
    log.setLevel(level)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One server for all tests of a worker: use a namespace of your own, never FLUSHALL.

    It is older than the longest ttl that any of them asks for, so that nobody waits.
    """
    with RedisServer() as server:
        pretend_age(server.url, server, seconds=2 * TTL_MAX)
        yield server


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A fresh server to kill, freeze or wipe."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def proxy(own_redis: RedisServer) -> Iterator[FaultProxy]:
    """A faulty network in front of `own_redis`."""
    with FaultProxy(own_redis.port) as faulty:
        yield faulty


@pytest.fixture(scope="session")
def etcd_server() -> Iterator[EtcdServer]:
    """One server for all tests of a worker: use a prefix or namespace of your own."""
    with EtcdServer() as server:
        yield server


@pytest.fixture
def own_etcd() -> Iterator[EtcdServer]:
    """A fresh server to kill, freeze or wipe."""
    with EtcdServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """One server for all tests of a worker: use a database or a namespace of your own."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A fresh server to kill, freeze or wipe."""
    with PostgresServer() as server:
        yield server
