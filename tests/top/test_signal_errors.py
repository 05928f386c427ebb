"""What a signal handler raises reaches the caller at once, whatever the client is doing.

FAILURES 109. Celery raises its soft time limit in a handler, as an Exception; other time limits are
TimeoutErrors, which are OSErrors. Neither is an error of the store.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import signal
import socket
import sqlite3
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import redis

import incumbent
from tests import tiers
from tests.stores.mysql import world as mysql
from tests.stores.postgresql.world import new_database
from tests.support.mariadb import MariaServer
from tests.support.pace import now, took
from tests.support.postgresql import PostgresServer
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer

# These tests have the timer of a signal's limit for themselves.
pytestmark = pytest.mark.timeout(method="thread")

ASYNCIO = str(Path(asyncio.__file__).parent)
IMPORTS = "<frozen importlib"
IN = 0.15
"""Seconds until the signal; the call would wait much longer."""
PATIENCE = 25.0
AT_ONCE = 15.0
"""Seconds within which even a busy machine has raised what the handler raised."""


class SoftTimeLimit(Exception):
    """As Celery's: derived from Exception alone."""


class OutOfTime(TimeoutError):
    """As that of many who use setitimer: an OSError without a number."""


USUAL = [SoftTimeLimit("soft"), OutOfTime("out of time")]
ODD = [
    OSError(errno.ECONNRESET, "the handler's own"),
    BlockingIOError(errno.EAGAIN, "the handler's own"),
    RuntimeError("enough"),
    ValueError("no more"),
    KeyError("limit"),
    AssertionError("as that of timeout_decorator"),
]


def raising(*errors: Exception) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("raised", errors, ids=lambda it: type(it).__name__)


SIDES = pytest.mark.parametrize("side", ["blocking", "asyncio"])
SILENT = {
    "redis": "redis://127.0.0.1:{0}",
    "redis, TLS": "rediss://127.0.0.1:{0}",
    "quorum": "redis+quorum://127.0.0.1:{0},127.0.0.2:{0},127.0.0.3:{0}",
    "sentinels": "redis+sentinel://127.0.0.1:{0},127.0.0.2:{0},127.0.0.3:{0}/mymaster",
    "cluster": "redis+cluster://127.0.0.1:{0},127.0.0.2:{0}",
    "etcd": "etcd://127.0.0.1:{0}",
    "etcd, TLS": "etcds://127.0.0.1:{0}",
    "postgresql": "postgresql://u:p@127.0.0.1:{0}/d",
    "mysql": "mysql://u:p@127.0.0.1:{0}/d",
}


def acquire(store: Any, side: str, proxies: Sequence[FaultProxy] = ()) -> object:
    """Acquire a lease, and have the signal come meanwhile.

    With `proxies`, to connections that are there; then they let nothing through any more.
    """
    if side == "blocking":
        client = incumbent.Client(store)
        if proxies:
            client.lock("before").acquire(timeout=PATIENCE).release()
        begin(proxies)
        return client.lock("job", ttl=6).acquire(timeout=PATIENCE)

    async def main() -> object:
        callers.append(asyncio.current_task())
        asyncio.get_running_loop().set_exception_handler(begin_again)
        client = incumbent.AsyncClient(store)
        if proxies:
            await (await client.lock("before").acquire(timeout=PATIENCE)).release()
        begin(proxies)
        return await client.lock("job", ttl=6).acquire(timeout=PATIENCE)

    return asyncio.run(main())


def begin(proxies: Sequence[FaultProxy]) -> None:
    for proxy in proxies:
        proxy.blackhole()
    signal.setitimer(signal.ITIMER_REAL, IN)


def begin_again(*_: object) -> None:
    """asyncio keeps for itself what is raised while one of its own callbacks runs, and says so."""
    if expected:
        begin(())


expected: list[Exception] = []
"""What a handler is to raise now."""


callers: list[asyncio.Task[Any] | None] = []
"""The task that is to hear of it, on the asyncio side."""


def is_in_another_task() -> bool:
    try:
        return asyncio.current_task() not in (None, *callers)
    except RuntimeError:
        return False  # no loop runs


@pytest.fixture(autouse=True, scope="module")
def what_python_drops() -> Iterator[None]:
    """Python drops what is raised in a finalizer or in the callback of a weak reference.

    Between two steps of its own library a handler may also leave a socket to the collector, which
    closes it, or a coroutine that nobody awaits, or keep a new thread from being listed.
    """
    others = sys.unraisablehook

    def dropped(told: sys.UnraisableHookArgs) -> None:
        error = told.exc_value
        unlisted = isinstance(error, KeyError) and isinstance(error.args[0], threading.Thread)
        # A socket, or its transport, may be dropped by what held it.
        unclosed = isinstance(error, ResourceWarning) and "unclosed" in str(error)
        unawaited = isinstance(error, RuntimeWarning) and "never awaited" in str(error)
        if error in expected:
            begin(())
        elif not unlisted and not unclosed and not unawaited:
            others(told)

    sys.unraisablehook = dropped
    yield
    gc.collect()
    sys.unraisablehook = others


def reaches_the_caller(raised: Exception, call: Callable[[], object]) -> None:
    """`call`, which has the signal come, raises at once what the handler raises."""

    def handle(_: int, frame: FrameType | None) -> None:
        place = "" if frame is None else frame.f_code.co_filename
        if place.startswith((ASYNCIO, IMPORTS)) or is_in_another_task():
            # A step that the loop has in hand would be lost, and `asyncio.run` waits for its task;
            # who looks for a module takes an OSError for one that is not there; and a task beside
            # that of the caller keeps what is raised in it.
            begin(())
        else:
            raise raised.with_traceback(None)

    before = signal.signal(signal.SIGALRM, handle)
    expected.append(raised)
    began = now()
    try:
        with pytest.raises(type(raised)) as caught:
            call()
    finally:
        expected.clear()
        callers.clear()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert caught.value is raised
    assert took(began) < AT_ONCE
    # No other test gets what its frames hold.
    del caught
    raised.__traceback__ = None


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that takes connections, and says nothing."""
    with socket.socket() as sink:
        # On every address of this machine: each member of a quorum has its own.
        sink.bind(("127.0.0.1", 0))
        port: int = sink.getsockname()[1]
        others = [socket.create_server((f"127.0.0.{at}", port), backlog=50) for at in (2, 3)]
        sink.listen(50)
        yield port
        for other in others:
            other.close()


@pytest.mark.left(tiers.STORES, "redis-*", "*-blocking")
@SIDES
@raising(*USUAL)
@pytest.mark.parametrize("engine", SILENT)
def test_while_a_connection_is_made(silent: int, engine: str, raised: Exception, side: str) -> None:
    reaches_the_caller(raised, lambda: acquire(SILENT[engine].format(silent), side))


@SIDES
@raising(*ODD)
def test_whatever_class_it_has(silent: int, raised: Exception, side: str) -> None:
    reaches_the_caller(raised, lambda: acquire(SILENT["redis"].format(silent), side))


@SIDES
@raising(*USUAL)
@pytest.mark.parametrize("engine", ["redis", "etcd", "postgresql"])
def test_while_a_name_is_resolved(
    engine: str, raised: Exception, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()

    def look_up(*_: object) -> list[str]:
        over.wait(PATIENCE)
        return []

    monkeypatch.setattr("incumbent.net.dial.look_up", look_up)
    monkeypatch.setattr("incumbent.net.aiowire.look_up", look_up)
    url = SILENT[engine].format(1).replace("127.0.0.1", "db.example")
    try:
        reaches_the_caller(raised, lambda: acquire(url, side))
    finally:
        over.set()


@SIDES
@raising(*USUAL)
def test_while_a_provider_of_credentials_is_asked(
    redis_server: RedisServer, raised: Exception, side: str
) -> None:
    over = threading.Event()

    class Slow(redis.CredentialProvider):
        def get_credentials(self) -> tuple[str]:
            over.wait(PATIENCE)
            return ("secret",)

        async def get_credentials_async(self) -> tuple[str]:
            await asyncio.sleep(PATIENCE)
            return ("secret",)

    client = redis.Redis(port=redis_server.port, credential_provider=Slow())
    try:
        reaches_the_caller(raised, lambda: acquire(client, side))
    finally:
        over.set()
        client.close()


@pytest.fixture(params=["redis", "quorum", "etcd", "postgresql", "mysql"])
def muted(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[FaultProxy]]]:
    """A store behind proxies."""
    with ExitStack() as ends:
        if request.param == "etcd":
            ports = [request.getfixturevalue("etcd_server").port]
            url = "etcd://{}/signals?restart_wait=0"
        elif request.param == "postgresql":
            server: PostgresServer = request.getfixturevalue("postgres_server")
            ports = [server.port]
            url = server.url_of(new_database(server)).replace(f"127.0.0.1:{server.port}", "{}")
        elif request.param == "mysql":
            maria: MariaServer = request.getfixturevalue("maria_server")
            ports = [maria.port]
            url = maria.url_of(mysql.new_database(maria)).replace(f"127.0.0.1:{maria.port}", "{}")
            url += "?restart_wait=0"
        else:
            count = 3 if request.param == "quorum" else 1
            ports = [ends.enter_context(RedisServer()).port for _ in range(count)]
            scheme = "redis+quorum" if count == 3 else "redis"
            url = scheme + "://" + ",".join(["{}"] * count) + "?restart_wait=0"
        proxies = [ends.enter_context(FaultProxy(port)) for port in ports]
        yield url.format(*(f"127.0.0.1:{proxy.port}" for proxy in proxies)), proxies


@pytest.mark.left(tiers.MEET, "*-SoftTimeLimit-blocking", "*-OutOfTime-asyncio")
@SIDES
@raising(*USUAL)
def test_while_an_answer_does_not_come(
    muted: tuple[str, list[FaultProxy]], raised: Exception, side: str
) -> None:
    url, proxies = muted
    reaches_the_caller(raised, lambda: acquire(url, side, proxies))


@SIDES
@raising(*USUAL)
@pytest.mark.parametrize("engine", ["redis", "quorum", "etcd", "postgresql", "mysql"])
def test_between_two_tries(engine: str, raised: Exception, side: str) -> None:
    reaches_the_caller(raised, lambda: acquire(SILENT[engine].format(1), side))


@SIDES
@raising(*USUAL)
def test_while_another_process_writes_the_file(
    tmp_path: Path, raised: Exception, side: str
) -> None:
    url = f"sqlite://{tmp_path}/leases.db"
    incumbent.Client(url).lock("before").acquire().release()
    with closing(sqlite3.connect(tmp_path / "leases.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        reaches_the_caller(raised, lambda: acquire(url, side))


@pytest.mark.left(tiers.STORES, "memory-*", "sqlite-*-blocking", "redis-*-asyncio")
@SIDES
@raising(*USUAL)
def test_while_another_holds_the_lease(every_store: str, raised: Exception, side: str) -> None:
    with incumbent.Client(every_store) as other:
        held = other.lock("job", ttl=60).acquire(timeout=PATIENCE)
        store = other if every_store.startswith("memory:") else every_store
        reaches_the_caller(raised, lambda: acquire(store, side))
        assert held.release()


@pytest.mark.parametrize("raised", [SoftTimeLimit("soft"), KeyboardInterrupt()])
def test_while_the_callbacks_of_a_loss_are_called(
    monkeypatch: pytest.MonkeyPatch, raised: BaseException
) -> None:
    called = []
    lease = incumbent.Lock("a", store="memory:callbacks").acquire()
    keeper = lease._link.keeper

    def interrupted() -> None:
        signal.raise_signal(signal.SIGALRM)

    def handler(*_: object) -> None:
        raise raised

    keeper.watch(lease._claim, interrupted)
    keeper.watch(lease._claim, lambda: called.append("the next one"))
    before = signal.signal(signal.SIGALRM, handler)
    try:
        with pytest.raises(type(raised)):
            lease.release()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert called == ["the next one"]
    assert incumbent.Lock("a", store="memory:callbacks").held_by() is None


def test_the_interpreters_own_ctrl_c_is_not_taken_for_a_callbacks_error() -> None:
    lease = incumbent.Lock("a", store="memory:callbacks").acquire()
    lease._link.keeper.watch(lease._claim, lambda: signal.raise_signal(signal.SIGINT))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            lease.release()
    finally:
        signal.signal(signal.SIGINT, before)
