"""What the fault tests of the etcd store share."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from incumbent.stores.etcd.kv import EtcdProgram
from incumbent.stores.etcd.sessions import ClaimState
from incumbent.stores.etcd.taking import EtcdTake
from incumbent.stores.plan import run_blocking
from incumbent.stores.url import open_engine
from tests.stores.party import ASK, Party, new_claim, soon
from tests.support.etcd import ETCDCTL, EtcdServer

__all__ = [
    "ASK",
    "PREFIX",
    "Party",
    "acquired_by",
    "created_of",
    "etcdctl_lock",
    "lease_of",
    "new_claim",
    "operations",
    "party",
    "place",
    "put_foreign",
    "sent",
    "soon",
    "watchers",
]

PREFIX = "/locks"


@contextmanager
def party(url: str) -> Iterator[Party]:
    """An engine at `url`, closed at the end."""
    engine = open_engine(url)
    try:
        yield Party(engine)
    finally:
        engine.store().close()


@contextmanager
def etcdctl_lock(server: EtcdServer, name: str, ttl: int = 5) -> Iterator[subprocess.Popen[str]]:
    """The real tool waits for the lock, says its key on stdout and keeps it until it is ended."""
    process = subprocess.Popen(
        server.etcdctl_command("lock", "--ttl", str(ttl), name),
        env=ETCDCTL,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def acquired_by(process: subprocess.Popen[str]) -> str:
    """Blocks until the tool has its lock; its key."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def watchers(server: EtcdServer) -> int:
    """How many watches this member serves; etcdctl has none while it holds a lock."""
    for line in server.metrics().splitlines():
        if line.startswith("etcd_debugging_mvcc_watcher_total "):
            return int(float(line.split()[1]))
    return 0


# -- keys


def place(one: Party, key: str = "") -> str:
    return f"{PREFIX}/{one.key}/{key}"


def put_foreign(server: EtcdServer, one: Party, key: str = "7f") -> None:
    server.etcdctl("put", place(one, key), "")


def lease_of(server: EtcdServer, key: str) -> int:
    (found,) = json.loads(server.etcdctl("get", key, "-w", "json"))["kvs"]
    return int(found.get("lease", 0))


def created_of(server: EtcdServer, key: str) -> int:
    (found,) = json.loads(server.etcdctl("get", key, "-w", "json"))["kvs"]
    return int(found["create_revision"])


def sent(one: Party, take: EtcdTake) -> bool:
    """Whether its request was granted."""

    def program() -> EtcdProgram[bool]:
        session = yield from take.sessions.session(ASK.ttl)
        state = ClaimState(one.key, take.claim, session, soon(), "h", 0.0, ASK.ttl)
        state.history_key, state.ticket = take.sessions.history_key(one.key), take.ticket
        state.own_key, state.permits = take._seat(), take.ask.permits
        reply = yield take.request(state, "")
        return bool(reply.get("succeeded"))

    return bool(run_blocking(operations(one).run_program(program(), soon())))


def operations(one: Party) -> Any:
    store: Any = one.store
    return store.operations
