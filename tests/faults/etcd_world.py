"""What the fault tests of the etcd store share."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from incumbent import clock
from incumbent.model import Ask, Granted, Key, Refused, Renewal
from incumbent.stores.base import Engine, Store
from incumbent.stores.registry import open_engine
from tests.support.etcd import ETCDCTL, EtcdServer

ASK = Ask(10.0, "host-1")


def soon(seconds: float = 5.0) -> float:
    return clock.now() + seconds


def new_claim() -> str:
    return secrets.token_hex(16)


@dataclass
class Party:
    """One engine and a lease of its own."""

    engine: Engine
    key: Key = field(default_factory=lambda: Key("faults", secrets.token_hex(6)))
    claim: str = field(default_factory=new_claim)

    @property
    def store(self) -> Store:
        return self.engine.store()

    def take(self, claim: str = "", within: float = 5.0, ask: Ask = ASK) -> Granted:
        outcome = self.store.take(self.key, claim or self.claim, ask, soon(within))
        assert isinstance(outcome, Granted), outcome
        return outcome

    def refused(self, claim: str = "", ask: Ask = ASK) -> Refused:
        outcome = self.store.take(self.key, claim or new_claim(), ask, soon())
        assert isinstance(outcome, Refused), outcome
        return outcome

    async def take_async(self, claim: str = "", within: float = 5.0, ask: Ask = ASK) -> Granted:
        store = self.engine.async_store()
        outcome = await store.take(self.key, claim or self.claim, ask, soon(within))
        assert isinstance(outcome, Granted), outcome
        return outcome

    def renewal(self, granted: Granted, ttl: float = 10.0) -> Renewal:
        return Renewal(self.key, self.claim, granted.token, ttl, granted.epoch)


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
