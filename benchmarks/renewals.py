"""Ten thousand leases at rest on Redis, each contender in a process of its own.

What CPU they take, ours and the server's, what memory, how many threads, and how many are lost
while a thread burns CPU beside them.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
import redis_lock
import tooz.coordination
from tests.support.servers import RedisServer

from benchmarks.harness import Figure
from incumbent import Client
from incumbent.stores.redis.resp import SCRIPTS

__all__ = ["renewal_rows"]

_MANY = 10_000
_TTL = 9
_EVERY = _TTL / 3
"""Seconds between two renewals of a peer's lease; ours are renewed five times a ttl."""
_BURNT = 5.0


@dataclass
class _Fleet:
    """Leases that are being renewed. `held`: how many still stand; `close` ends it."""

    held: Callable[[], int]
    close: Callable[[], object]


_Make = Callable[[str, int], _Fleet]
"""Takes so many leases on the server of that URL, and has them renewed from then on."""


def renewal_rows(seconds: float) -> list[Figure]:
    """Each contender in turn, watched for so many seconds."""
    rows = []
    with RedisServer() as server:
        for name, (_, many) in _CONTENDERS.items():
            line = [sys.executable, "-m", "benchmarks.renewals", name, server.url, str(seconds)]
            done = subprocess.run(
                line, stdout=subprocess.PIPE, check=True, timeout=20 * seconds + 300
            )
            server.cli("FLUSHALL")
            rows += _figures(name, many, json.loads(done.stdout))
    return rows


def _figures(name: str, many: int, said: dict[str, float]) -> list[Figure]:
    ours = name == "incumbent"
    rows = [
        Figure(f"{many:,} leases at ttl {_TTL} s, {name}", said["cpu"], "%", 2 if ours else None),
        Figure("... of the server's core", said["server"], "%"),
        Figure("... memory of each", said["memory"] / 1024, "KiB", 1.5 if ours else None),
        Figure("... threads", said["threads"], "", 1 if ours else None),
        Figure("... lost", said["lost"], "", 0 if ours else None),
    ]
    if ours:
        rows.append(Figure("... lost while a thread burns CPU", said["burnt"], "", 0))
    return rows


# -- in the process of one contender


def measure(name: str, url: str, seconds: float) -> dict[str, float]:
    """What one contender costs."""
    make, many = _CONTENDERS[name]
    server = redis.Redis.from_url(url)
    make(url, 1).close()
    gc.collect()
    memory, threads = _memory(), _threads()
    fleet = make(url, many)
    time.sleep(_EVERY)
    gc.collect()
    found = {
        "memory": (_memory() - memory) / many,
        "threads": float(_threads() - threads),
    }
    began, used, theirs = time.monotonic(), time.process_time(), _server_cpu(server)
    time.sleep(seconds)
    took = time.monotonic() - began
    found["cpu"] = 100 * (time.process_time() - used) / took
    found["server"] = 100 * (_server_cpu(server) - theirs) / took
    found["lost"] = many - fleet.held()
    if name == "incumbent":
        found["burnt"] = many - _burnt(fleet)
    fleet.close()
    return found


def _burnt(fleet: _Fleet) -> int:
    over = threading.Event()

    def burn() -> None:
        while not over.is_set():
            sum(range(100))

    thread = threading.Thread(target=burn)
    thread.start()
    time.sleep(_TTL + _BURNT)
    over.set()
    thread.join()
    return fleet.held()


def _memory() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096.0


def _threads() -> int:
    # Those of `_thread` too, which `threading` does not count.
    return len(list(Path("/proc/self/task").iterdir()))


def _server_cpu(server: Any) -> float:
    said = server.info("cpu")
    return float(said["used_cpu_user"] + said["used_cpu_sys"])


def _ours(url: str, many: int) -> _Fleet:
    client = Client(f"{url}?restart_wait=0")
    leases = [client.lock(f"lease-{at}", ttl=_TTL).acquire() for at in range(many)]

    def close() -> None:
        for lease in leases:
            lease.release()
        client.close()

    return _Fleet(lambda: sum(lease.valid for lease in leases), close)


class _InTurn:
    """A thread that renews one after the other, spread over the interval."""

    def __init__(self, turns: list[Callable[[], object]], pieces: int) -> None:
        self._turns, self._pieces = turns, pieces
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        size = max(1, len(self._turns) // self._pieces)
        due = time.monotonic()
        while True:
            for start in range(0, len(self._turns), size):
                due += _EVERY * size / len(self._turns)
                if self._over.wait(max(0.0, due - time.monotonic())):
                    return
                for turn in self._turns[start : start + size]:
                    turn()

    def close(self) -> None:
        self._over.set()
        self._thread.join()


def _redis_py(url: str, many: int) -> _Fleet:
    server: Any = redis.Redis.from_url(url)
    locks = [server.lock(f"lease-{at}", timeout=_TTL, thread_local=False) for at in range(many)]
    for lock in locks:
        lock.acquire()
    keeper = _InTurn([lock.reacquire for lock in locks], 32)
    return _Fleet(lambda: sum(lock.owned() for lock in locks), keeper.close)


def _tooz(url: str, many: int) -> _Fleet:
    coordinator: Any = tooz.coordination.get_coordinator(f"{url}?lock_timeout={_TTL}", b"bench")
    coordinator.start()
    locks = [coordinator.get_lock(f"lease-{at}".encode()) for at in range(many)]
    for lock in locks:
        lock.acquire()
    keeper = _InTurn([coordinator.heartbeat], 1)

    def close() -> None:
        keeper.close()
        coordinator.stop()

    return _Fleet(lambda: sum(lock.is_still_owner() for lock in locks), close)


def _python_redis_lock(url: str, many: int) -> _Fleet:
    # It wants a connection for each of its threads, and redis-py has 100.
    server: Any = redis.Redis.from_url(url, max_connections=2 * many)
    # Each that loses its lock says so at length; they are counted below.
    threading.excepthook = lambda _: None
    locks = [
        redis_lock.Lock(server, f"lease-{at}", expire=_TTL, auto_renewal=True) for at in range(many)
    ]
    for lock in locks:
        lock.acquire()

    def close() -> None:
        for lock in locks:
            with suppress(redis_lock.NotAcquired):
                lock.release()

    return _Fleet(lambda: sum(lock.get_owner_id() == lock.id for lock in locks), close)


def _bare(url: str, many: int) -> _Fleet:
    """Nothing but prepared script calls for a 32nd of the leases each, as often as ours."""
    server: Any = redis.Redis.from_url(url)
    claim, size = "0" * 32, max(1, many // 32)
    calls = []
    for start in range(0, many, size):
        places = range(start, min(many, start + size))
        names = [f"incumbent:{{default/lease-{at}}}" for at in places]
        for name in names:
            server.set(name, f"incumbent1 {claim} 1 0 0 {_TTL * 1000} bench ", px=_TTL * 1000)
            server.hset(f"{name}:r", mapping={"t": 1, "n": 0})
        keys: list[str] = [part for name in names for part in (name, f"{name}:r")]
        said: list[str | int] = ["echo", _TTL * 1000, *[f"incumbent1 {claim} 1 "] * len(names)]
        calls.append(SCRIPTS["renew"].call(len(keys), *keys, *said))
    server.script_load(SCRIPTS["renew"].text)
    connection = server.connection_pool.get_connection()
    sent = iter(range(1 << 60))

    def turn() -> None:
        connection.send_packed_command([calls[next(sent) % len(calls)]])
        connection.read_response()

    # At the pace of ours: five times a ttl.
    keeper = _InTurn([turn] * round(len(calls) * 5 / 3), round(len(calls) * 5 / 3))
    return _Fleet(
        lambda: sum(server.exists(f"incumbent:{{default/lease-{at}}}") for at in range(many)),
        keeper.close,
    )


_CONTENDERS: dict[str, tuple[_Make, int]] = {
    "incumbent": (_ours, _MANY),
    "bare prepared script calls": (_bare, _MANY),
    "redis-py reacquire in turn": (_redis_py, _MANY),
    "tooz heartbeat": (_tooz, _MANY),
    # A thread each: ten thousand are more than it can start while the first still live.
    "python-redis-lock auto_renewal": (_python_redis_lock, _MANY // 10),
}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(sys.argv[1], sys.argv[2], float(sys.argv[3]))))
