"""Many who want one lease on etcd, a holder that is killed, and ten thousand leases at rest."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

import tooz.coordination
from tests.support.etcd import EtcdServer

from benchmarks.etcd_gateway import Gateway, coded
from benchmarks.harness import Figure
from incumbent import Client

__all__ = ["etcd_leader_rows"]

_WAITERS = 10
_HOLD = 0.005
_TTL = 2
_MANY = 10_000

_Acquire = Callable[[], Callable[[], object]]
"""Blocks until the lock is held; what it returns lets go."""


def etcd_leader_rows(turns: int, idle: float) -> list[Figure]:
    """Everything; `idle` is for how many seconds CPU is watched."""
    with EtcdServer() as server:
        rows = [*_hand_overs(server, turns), _after_a_crash(server, max(3, turns // 8))]
    with EtcdServer() as server:
        return [*rows, *_at_rest(server, idle)]


# -- hand-over


@dataclass
class _Race:
    """Ten threads and one lock; instants of each taking and letting go."""

    name: str
    make: Callable[[EtcdServer, int, ExitStack], _Acquire]
    target: float | None = None
    gaps: list[float] = field(default_factory=list)
    requests: list[float] = field(default_factory=list)

    def run(self, server: EtcdServer, turn: int) -> None:
        """Everybody has the lock once; who was first had nobody to take it over from."""
        events: list[tuple[float, str]] = []
        with ExitStack() as close:
            each = [self.make(server, turn, close) for _ in range(_WAITERS + 1)]
            before = sum(server.requests().values())
            threads = [threading.Thread(target=_one, args=(it, events)) for it in each]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        asked = sum(server.requests().values()) - before
        self.requests.append(asked / (_WAITERS + 1))
        for (let_go, what), (taken, then) in pairwise(sorted(events)):
            if (what, then) == ("end", "begin"):
                self.gaps.append(taken - let_go)


def _one(acquire: _Acquire, events: list[tuple[float, str]]) -> None:
    release = acquire()
    events.append((time.perf_counter(), "begin"))
    # Long enough for all others to be waiting.
    time.sleep(_HOLD * random.uniform(1, 2))
    events.append((time.perf_counter(), "end"))
    release()


def _hand_overs(server: EtcdServer, turns: int) -> list[Figure]:
    races = [
        _Race("incumbent Lock", _ours, 1.9),
        _Race("etcd's lock service, bare", _service),
        _Race("tooz etcd3gw", _tooz),
    ]
    for turn in range(turns):
        for race in random.sample(races, len(races)):
            race.run(server, turn)
    rows = []
    for race in races:
        ms, asked = median(race.gaps) * 1000, median(race.requests)
        rows += [
            Figure(f"hand-over, {_WAITERS} waiters, {race.name}", ms, "ms", race.target),
            Figure("... requests of each for its turn", asked, "requests"),
        ]
    return rows


def _ours(server: EtcdServer, turn: int, close: ExitStack) -> _Acquire:
    client = close.enter_context(Client(server.store_url()))
    # Its etcd lease is made beforehand, as that of the lock service is.
    client.lock(f"warm-{id(client)}", ttl=15).acquire().release()
    lock = client.lock(f"turn-{turn}", ttl=15)
    return lambda: lock.acquire().release


def _service(server: EtcdServer, turn: int, close: ExitStack) -> _Acquire:
    bare = close.enter_context(Gateway(server.port))
    lease = bare.ask("lease/grant", {"TTL": 15})["ID"]

    def acquire() -> Callable[[], object]:
        key = bare.ask("lock/lock", {"name": coded(f"service-{turn}"), "lease": lease})["key"]
        return lambda: bare.ask("lock/unlock", {"key": key})

    return acquire


def _tooz(server: EtcdServer, turn: int, close: ExitStack) -> _Acquire:
    coordinator = tooz.coordination.get_coordinator(
        f"etcd3+http://127.0.0.1:{server.port}?api_version=v3", b"bench"
    )
    coordinator.start()
    close.callback(coordinator.stop)
    lock = coordinator.get_lock(f"turn-{turn}".encode())

    def acquire() -> Callable[[], object]:
        lock.acquire(blocking=True)
        return lock.release

    return acquire


# -- a holder that is killed

_HOLDER = """
import sys, time, incumbent
lease = incumbent.Lock("crash", store=sys.argv[1], ttl=float(sys.argv[2])).acquire()
print("held", flush=True)
time.sleep(60)
"""


def _after_a_crash(server: EtcdServer, turns: int) -> Figure:
    gaps = [_crash(server) for _ in range(turns)]
    what = "SIGKILL of the holder: next one after etcd deleted the key, median"
    return Figure(what, median(gaps) * 1000, "ms", 5)


def _crash(server: EtcdServer) -> float:
    """Of etcd its key outlives a holder by up to a ttl and half a second; then it is free."""
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, server.store_url(), str(_TTL)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    with Client(server.store_url()) as client, Gateway(server.port) as watch:
        taken: list[float] = []

        def take() -> None:
            with client.lock("crash", ttl=_TTL).acquire():
                taken.append(time.perf_counter())

        waiter = threading.Thread(target=take)
        waiter.start()
        time.sleep(0.3 + random.random() * _TTL / 5)
        deleted = _Deletion(watch)
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
        waiter.join(30)
        return taken[0] - deleted.instant()


class _Deletion:
    """The instant at which etcd tells anybody that a key is gone."""

    def __init__(self, gateway: Gateway) -> None:
        self._seen: list[float] = []
        self._gateway = gateway
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def instant(self) -> float:
        self._thread.join(30)
        return self._seen[0]

    def _watch(self) -> None:
        whole = {"key": coded("\0"), "range_end": coded("\0"), "filters": ["NOPUT"]}
        for line in self._gateway.stream("watch", {"create_request": whole}):
            if b'"DELETE"' in line:
                self._seen.append(time.perf_counter())
                return


# -- at rest


def _at_rest(server: EtcdServer, seconds: float) -> list[Figure]:
    with Client(server.store_url()) as client:
        leases = [client.lock(f"lease-{number}", ttl=15).acquire() for number in range(_MANY)]
        time.sleep(2)
        asked, used = sum(server.requests().values()), time.process_time()
        time.sleep(seconds)
        used = time.process_time() - used
        asked = sum(server.requests().values()) - asked
        valid = sum(lease.valid for lease in leases)
        if valid != _MANY:
            raise RuntimeError(f"{_MANY - valid} of {_MANY} leases were lost at rest")
        # Ten thousand releases are not what is measured; a closed client lets them run out.
        for lease in leases:
            lease.release()
    return [
        Figure(f"{_MANY:,} leases at ttl 15 s, of a core", 100 * used / seconds, "%", 0.1),
        Figure("... requests a second", asked / seconds, "requests"),
    ]
