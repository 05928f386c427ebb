"""What the fault tests of the etcd store share."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from incumbent.stores.url import open_engine
from tests.stores.party import ASK, Party, new_claim, soon
from tests.support.etcd import ETCDCTL, EtcdServer

__all__ = [
    "ASK",
    "Party",
    "acquired_by",
    "etcdctl_lock",
    "new_claim",
    "party",
    "soon",
    "watchers",
]


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
        process.communicate(timeout=20)


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
