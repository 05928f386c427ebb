"""What an acquire, a refusal, a wait and a release pass through, store by store: `make profile`.

    python -m tests.architecture.roads [--list] [URL...]

Counted by a profiler's hook, so exact: the calls, functions, files and classes of `incumbent` in
each operation, and all of them together. Without a URL each store is measured, on servers that are
started for it. What the keeper's thread does beside is not counted: the thread is there before.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self

import incumbent
from tests.architecture.source import PACKAGE
from tests.stores.mysql import world as mysql_world
from tests.stores.postgresql import world as postgresql_world
from tests.support.etcd import EtcdServer
from tests.support.kubernetes import ApiServer
from tests.support.mariadb import MariaServer
from tests.support.postgresql import PostgresServer
from tests.support.servers import RedisServer

__all__ = ["AIMS", "Road", "main", "roads"]

AIMS = {"sqlite": (18, 100, 20), "memory": (18, 100, 20)}
"""Files, functions and classes of a store's road that we want to come down to."""
AIM = (24, 160, 36)
"""The same for stores that are servers."""
WARM = 20
"""Pairs before the first one that is looked at."""
TTL = 30.0


@dataclass
class Road:
    """What was called between `with` and its end; roads can be added up."""

    calls: int = 0
    functions: set[tuple[str, str]] = field(default_factory=set)
    files: set[str] = field(default_factory=set)
    classes: set[tuple[str, str]] = field(default_factory=set)

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event != "call" or not path.is_relative_to(PACKAGE):
            return
        file, name = path.relative_to(PACKAGE).as_posix(), frame.f_code.co_qualname
        self.calls += 1
        self.files.add(file)
        self.functions.add((file, name))
        if "." in name:
            self.classes.add((file, name.partition(".")[0]))

    def __enter__(self) -> Self:
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def __or__(self, other: Road) -> Road:
        return Road(
            self.calls + other.calls,
            self.functions | other.functions,
            self.files | other.files,
            self.classes | other.classes,
        )

    @property
    def size(self) -> tuple[int, int, int]:
        """Files, functions and classes."""
        return len(self.files), len(self.functions), len(self.classes)


def roads(url: str) -> dict[str, Road]:
    """The road of each operation on this store."""
    lock, other = (incumbent.Lock("road", store=url, ttl=TTL) for _ in range(2))
    for _ in range(WARM):
        lock.acquire(timeout=TTL).release()
    found = {name: Road() for name in ("acquire", "refusal", "wait", "release")}
    with found["acquire"]:
        lease = lock.acquire(timeout=TTL)
    with found["refusal"]:
        refused = other.try_acquire()
    assert refused is None
    threading.Timer(0.3, lease.release).start()
    with found["wait"]:
        second = other.acquire(timeout=TTL)
    with found["release"]:
        second.release()
    return found


def stores(stack: ExitStack) -> Iterator[tuple[str, Callable[[], str]]]:
    """Each store by its name, and what starts it."""
    folder = stack.enter_context(tempfile.TemporaryDirectory())

    def redis() -> str:
        return stack.enter_context(RedisServer()).url

    def quorum() -> str:
        ports = [stack.enter_context(RedisServer()).port for _ in range(3)]
        return "redis+quorum://" + ",".join(f"127.0.0.1:{port}" for port in ports)

    def postgresql() -> str:
        server = stack.enter_context(PostgresServer())
        return server.url_of(postgresql_world.new_database(server))

    def mysql() -> str:
        server = stack.enter_context(MariaServer())
        return server.url_of(mysql_world.new_database(server))

    def kubernetes() -> str:
        server = stack.enter_context(ApiServer())
        os.environ["KUBECONFIG"] = str(server.kubeconfig(Path(folder, "kubeconfig")))
        return "kubernetes://test/default?restart_wait=0"

    yield "memory", lambda: "memory:"
    yield "sqlite", lambda: f"sqlite:///{folder}/leases.db"
    yield "redis", lambda: f"{redis()}?restart_wait=0"
    yield "quorum", lambda: f"{quorum()}?restart_wait=0"
    yield "etcd", lambda: f"{stack.enter_context(EtcdServer()).url}?restart_wait=0"
    yield "postgresql", lambda: f"{postgresql()}?restart_wait=0"
    yield "mysql", lambda: f"{mysql()}?restart_wait=0"
    yield "kubernetes", kubernetes


def lines(store: str, url: str, listed: bool) -> Iterator[str]:
    """The table of one store's road."""
    found = roads(url)
    everything = Road()
    yield f"{store:16}{'calls':>8}{'files':>8}{'functions':>12}{'classes':>10}"
    for name, road in found.items():
        yield _row(f"  {name}", road.calls, road.size)
        everything |= road
    yield _row("  all of them", everything.calls, everything.size)
    yield _row("  aim", "", AIMS.get(store.partition(":")[0], AIM))
    yield from (f"    {file}" for file in sorted(everything.files) if listed)
    yield ""


def _row(name: str, calls: object, size: tuple[int, int, int]) -> str:
    files, functions, classes = size
    return f"{name:16}{calls:>8}{files:>8}{functions:>12}{classes:>10}"


def main(args: list[str]) -> int:
    """Measure the stores of the arguments, or all of them."""
    listed = "--list" in args
    urls = [arg for arg in args if arg != "--list"]
    with ExitStack() as stack:
        given: Any = [(url.partition("?")[0], lambda url=url: url) for url in urls]
        for name, start in given or stores(stack):
            for line in lines(name, start(), listed):
                sys.stdout.write(f"{line}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
