"""Servers and networks for every test; see tests/support."""

from __future__ import annotations

import gc
import logging
import os
import secrets
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import hypothesis
import pytest

from incumbent.cron import instance
from incumbent.policy import TTL_MAX
from tests import loops, tiers
from tests.loops import on_uvloop
from tests.stores.mysql import world as mysql
from tests.stores.postgresql.world import make_template, new_database
from tests.support import leftovers
from tests.support.etcd import CALM, EtcdServer
from tests.support.kubernetes import ApiServer
from tests.support.mariadb import MariaServer
from tests.support.postgresql import PostgresServer
from tests.support.proxy import FaultProxy
from tests.support.redis_age import pretend_age
from tests.support.servers import RedisServer
from tests.support.unprivileged import RUN, run_folder

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

LEFT = pytest.StashKey[int]()
SERVER_FIXTURES = {
    *("redis_server", "own_redis", "proxy", "etcd_server", "own_etcd"),
    *("postgres_server", "own_postgres", "maria_server", "own_maria"),
    *("api_server", "own_api_server"),
}


def pytest_configure() -> None:
    """The first process of a run makes the folder that its workers share."""
    os.environ[RUN] = str(run_folder())


def pytest_addoption(parser: pytest.Parser) -> None:
    why = "names below tests, a comma between them; --ignore makes paths of all anew for each file"
    parser.addoption("--pass-over", default="", help=why)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return str(collection_path) in _passed_over(config.getoption("--pass-over")) or None


@cache
def _passed_over(names: str) -> frozenset[str]:
    return frozenset(str(tiers.TESTS / name) for name in names.split(",") if name)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Nothing of what is collected is garbage, and looking for it takes a sixth of that time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what needs a server, for `make quick`, and what tests/tiers.py says of each test."""
    items += loops.rows(items)
    for item in items:
        if SERVER_FIXTURES & set(getattr(item, "fixturenames", ())) or _starts(item):
            item.add_marker(pytest.mark.server)
    tiers.mark(items)
    stale = [] if any("::" in given for given in config.args) else tiers.stale(items)
    if stale:
        raise pytest.UsageError(f"tests/tiers.py names what there is not: {stale}")


def _starts(item: pytest.Item) -> bool:
    """Whether its file knows a server that it may start."""
    module = item.getparent(pytest.Module)
    return module is not None and _knows_a_server(module.obj)


@cache
def _knows_a_server(module: ModuleType) -> bool:
    here = {getattr(it, "__module__", "") for it in vars(module).values() if isinstance(it, type)}
    return any(name in tiers.SERVER_MODULES or name.endswith(".world") for name in here)


def pytest_deselected(items: list[pytest.Item]) -> None:
    """Count what is left to `make test-all`; each worker of a parallel run finds the same."""
    if items:
        config = items[0].config
        left = sum(item.get_closest_marker("full") is not None for item in items)
        config.stash[LEFT] = left
        getattr(config, "workeroutput", {})["left"] = left


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of pytest-xdist has ended."""
    node.config.stash[LEFT] = getattr(node, "workeroutput", {}).get("left", 0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    config = terminalreporter.config
    left = config.stash.get(LEFT, 0)
    if left and config.option.markexpr.startswith(tiers.THIN):
        terminalreporter.write_line(f"{left} tests of these files are left to `make test-all`")


def pytest_collection_finish() -> None:
    """Thousands of tests are a heap; to collect it stops all threads for as long as a short lease.

    What is there now is not looked at again.
    """
    gc.freeze()


@pytest.fixture(autouse=True)
def ends_with_what_it_began() -> Iterator[None]:
    """The first fixture of each test, and so the last to end."""
    threads = threading.enumerate()
    yield
    # In this order: what is given back is not collected with a warning.
    left = leftovers.end_leases()
    failed = leftovers.has_failed()
    left += leftovers.await_threads(threads)
    left += leftovers.put_settings_back() if failed else []
    # Of a test that failed there is no more to say.
    assert failed or not left, f"left behind: {left}"


@pytest.fixture(autouse=True)
def event_loop_of_the_row(request: pytest.FixtureRequest) -> Iterator[None]:
    """See tests/loops.py."""
    with on_uvloop() if request.node.get_closest_marker("uvloop") else nullcontext():
        yield


@pytest.fixture(autouse=True)
def log_as_it_was() -> Iterator[None]:
    """The command line, called in a test, says what the library logs where that test looks."""
    log = logging.getLogger("incumbent")
    handlers, level = list(log.handlers), log.level
    yield
    log.handlers[:] = handlers
    log.setLevel(level)


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """An instance of cron in this process notices sooner that it is closed."""
    monkeypatch.setattr(instance, "_CONTROL_READ_EVERY", 0.2)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One server for all tests of a worker: use a namespace of your own, never FLUSHALL.

    It is older than the longest ttl that any of them asks for, so that nobody waits.
    """
    with RedisServer() as server:
        pretend_age(server.url, server, seconds=2 * TTL_MAX)
        with leftovers.shared(server):
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
    with EtcdServer(CALM) as server:
        yield server


@pytest.fixture
def own_etcd() -> Iterator[EtcdServer]:
    """A fresh server to kill, freeze or wipe."""
    with EtcdServer() as server:
        yield server


@pytest.fixture(scope="session", name="_postgres")
def shared_postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        make_template(server)
        yield server


@pytest.fixture
def postgres_server(_postgres: PostgresServer) -> Iterator[PostgresServer]:
    """One server for all tests of a worker: use a database or a namespace of your own."""
    yield _postgres
    _postgres.drop_databases()


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A fresh server to kill, freeze or wipe."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session", name="_maria")
def shared_maria() -> Iterator[MariaServer]:
    with MariaServer() as server:
        yield server


@pytest.fixture
def maria_server(_maria: MariaServer) -> Iterator[MariaServer]:
    """One server for all tests of a worker: use a database of your own."""
    yield _maria
    _maria.drop_databases()


@pytest.fixture
def own_maria() -> Iterator[MariaServer]:
    """A fresh server to kill, freeze or wipe."""
    with MariaServer() as server:
        yield server


@pytest.fixture(scope="session")
def api_server() -> Iterator[ApiServer]:
    """One server for all tests of a worker: use a namespace of your own, change no settings."""
    with ApiServer() as server:
        yield server


@pytest.fixture
def own_api_server() -> Iterator[ApiServer]:
    """A fresh server to kill, freeze, deny or restore."""
    with ApiServer() as server:
        yield server


# -- each kind of store, for what is promised on all of them ---------------------------------------

_SERVERS = ("redis", "postgresql", "etcd", "quorum", "mysql", "kubernetes")


@pytest.fixture(
    params=["memory", "sqlite", *(pytest.param(of, marks=pytest.mark.server) for of in _SERVERS)]
)
def every_store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The URL of a store that is of this test alone, and that grants at once."""
    with ExitStack() as ends:
        match request.param:
            case "redis":
                server = request.getfixturevalue("own_redis")
                yield f"{server.url}?restart_wait=0"
            case "postgresql":
                postgres = request.getfixturevalue("postgres_server")
                yield postgres.url_of(new_database(postgres))
            case "mysql":
                maria = request.getfixturevalue("maria_server")
                yield f"{maria.url_of(mysql.new_database(maria))}?restart_wait=0"
            case "kubernetes":
                cluster = request.getfixturevalue("api_server")
                cluster.create_namespace(place := f"test-{secrets.token_hex(4)}")
                monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(tmp_path / "kubeconfig")))
                yield f"kubernetes://test/{place}?restart_wait=0"
            case "etcd":
                endpoint = request.getfixturevalue("etcd_server").endpoint
                yield f"etcd://{endpoint}/{secrets.token_hex(6)}?restart_wait=0"
            case "quorum":
                ports = [ends.enter_context(RedisServer()).port for _ in range(3)]
                hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
                yield f"redis+quorum://{hosts}?restart_wait=0"
            case "sqlite":
                yield f"sqlite:///{tmp_path}/leases.db"
            case _:
                yield f"memory:{tmp_path}"
