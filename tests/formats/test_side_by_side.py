"""An instance of the release before and one of this release in one store, on every engine.

Neither misreads the other, and never do both hold. The release before runs from the history of the
repository: the test needs a full clone. Its code is used as it stands, which is what its wheel has.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as RawRedis

from incumbent import Client, Lease, LockError, StoreUnavailable
from incumbent.stores.quorum.dialect import MARKER
from incumbent.stores.url import open_engine
from tests.combined.against import has_history, tree_of
from tests.stores.quorum.world import Members
from tests.support.etcd import EtcdServer
from tests.support.needs import needs
from tests.support.postgresql import PostgresServer
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

BEFORE = "0195505"
"""The last commit whose records had no format number."""
ASKER = Path(__file__).with_name("asker.py")
TTL = 3.0
pytestmark = [
    pytest.mark.slow,
    pytest.mark.server,
    needs(has_history(BEFORE), f"a full clone, with commit {BEFORE}"),
]


class Older:
    """A process of the release before; each question is answered."""

    def __init__(self, sources: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(ASKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(sources)},
        )

    def ask(self, do: str, url: str, **details: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, "url": url, **details}) + "\n")
        self._process.stdin.flush()
        said: dict[str, Any] = json.loads(self._process.stdout.readline())
        return said

    def take(self, url: str, timeout: float = 0) -> dict[str, Any]:
        return self.ask("take", url, name="job", ttl=TTL, timeout=timeout)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(20)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def older() -> Iterator[Older]:
    with tree_of(BEFORE) as tree:
        process = Older(tree / "src")
        yield process
        process.close()


@contextmanager
def sqlite(tmp_path: Path) -> Iterator[str]:
    yield f"sqlite:///{tmp_path}/leases.db"


@contextmanager
def redis(tmp_path: Path) -> Iterator[str]:
    with RedisServer() as server:
        yield f"{server.url}?restart_wait=0"


@contextmanager
def quorum(tmp_path: Path) -> Iterator[str]:
    with Members(3) as members:
        yield members.url("restart_wait=0")


@contextmanager
def etcd(tmp_path: Path) -> Iterator[str]:
    with EtcdServer() as server:
        yield f"{server.url}?restart_wait=0"


@contextmanager
def postgresql(tmp_path: Path) -> Iterator[str]:
    with PostgresServer() as server:
        yield server.url_of(server.new_database()) + "?restart_wait=0"


STORES = (sqlite, redis, quorum, etcd, postgresql)


@pytest.fixture(params=STORES, ids=lambda store: store.__name__)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with request.param(tmp_path) as made:
        yield made


def prepare(url: str) -> None:
    if url.startswith("postgresql"):
        engine: Any = open_engine(url)
        engine.fix(float("inf"))
    if "+quorum" in url:
        eventually(lambda: is_marked_everywhere(url))


def is_marked_everywhere(url: str) -> bool:
    """Whether every server of a quorum knows this release, also one that was connected late."""
    with Client(url) as client, client.lock("first", ttl=TTL):
        pass
    ports = [int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", url)]
    found = []
    for port in ports:
        with RawRedis(port=port) as raw:
            found.append(raw.exists(MARKER))
    return all(found)


def hold(client: Client) -> Lease:
    """Not at the first try, which on a busy machine may get no answer in time."""
    return client.lock("job", ttl=TTL).acquire(timeout=20)


@pytest.mark.timeout(120)
def test_this_release_refuses_the_records_of_the_one_before_and_says_what_to_do(
    url: str, older: Older
) -> None:
    if url.startswith("postgresql"):
        older.ask("fix", url)
    # Not at the first try, as `hold`.
    assert "token" in (held := older.take(url, timeout=20)), held

    with Client(url) as client:
        with pytest.raises(StoreUnavailable) as caught:
            hold(client)
        refused = caught.value
        assert refused.permanent
        assert "format" in str(refused)
        # What to do.
        assert re.search("stop", str(refused), re.IGNORECASE)

        # Nothing was taken from the older one.
        assert "proved" in older.ask("renew", url)
        assert older.ask("valid", url) == {"valid": True}
        assert older.ask("release", url) == {"released": True}


@pytest.mark.timeout(120)
def test_the_release_before_gets_nothing_that_this_one_holds(url: str, older: Older) -> None:
    prepare(url)
    with Client(url) as client:
        held = hold(client)
        refused = older.take(url)
        assert "token" not in refused, refused
        assert held.renew() > 0
        assert held.release()


@pytest.mark.timeout(120)
def test_of_the_two_never_both_hold_whoever_comes_first(url: str, older: Older) -> None:
    """Also one after the other, when the name is free again."""
    prepare(url)
    with Client(url) as client:
        held = hold(client)
        assert held.release()
        if "token" in older.take(url):
            with pytest.raises(LockError):
                client.lock("job", ttl=TTL).acquire(timeout=0)
            assert older.ask("valid", url) == {"valid": True}
            older.ask("release", url)
        else:
            hold(client).release()
