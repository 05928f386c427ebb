"""Many processes that wait for one lock on Redis: hand-over, fairness, standing by, failover.

All instants are CLOCK_BOOTTIME of one machine. A hand-over counts from the instant before the
holder's release to the instant after the next process's acquire; a process that takes the lock
twice in a row handed nothing over. Commands are what clients sent (MONITOR), not what scripts did.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby, pairwise
from multiprocessing.connection import Connection
from statistics import median
from typing import NamedTuple

import redis
import redis_lock
from redis.lock import Lock as RedisPyLock
from tests.support.arrivals import overtaken, watch_arrivals
from tests.support.servers import RedisServer

from benchmarks.harness import Figure
from incumbent import Election, Lock, clock
from incumbent.locks.several import Semaphore

__all__ = ["redis_waiter_rows"]

_HOLD = 0.003
_APART = 0.001
"""Who has released asks again after so long: one that never pauses would hand nothing over."""
_STANDBYS = 10
_TTL = 9.0
_SHORT = 1.0

Maker = Callable[[int], Callable[[], AbstractContextManager[object]]]


class Span(NamedTuple):
    """One holding: asked, got, and about to give back."""

    asked: float
    got: float
    ended: float
    who: int = 0


class Way(NamedTuple):
    """How a contender takes turns; `greedy`: one of them never pauses."""

    make: Maker
    port: int
    turns: int
    hold: float = _HOLD
    apart: float = _APART
    greedy: bool = False


def redis_waiter_rows(turns: int, idle: float) -> list[Figure]:
    """Everything; `idle` is for how many seconds standbys are watched."""
    with RedisServer() as server:
        rows = [row for count in (2, 10, 50) for row in _hand_overs(server, count, turns)]
        return [*rows, *_fairness(server), *_standing_by(server, idle), *_failover(server, turns)]


# -- contenders -----------------------------------------------------------------------------------


def _ours(port: int) -> Callable[[], AbstractContextManager[object]]:
    lock = Lock("bench", store=f"redis://127.0.0.1:{port}?restart_wait=0", ttl=15)
    return lambda: lock


def _ours_fair(port: int) -> Callable[[], AbstractContextManager[object]]:
    lock = Lock("fair", store=f"redis://127.0.0.1:{port}?restart_wait=0", ttl=15, fair=True)
    return lambda: lock


def _ours_shared(port: int) -> Callable[[], AbstractContextManager[object]]:
    lock = Semaphore("permit", 1, store=f"redis://127.0.0.1:{port}?restart_wait=0", ttl=15)
    return lambda: lock


def _python_redis_lock(port: int) -> Callable[[], AbstractContextManager[object]]:
    client = redis.Redis(port=port)
    return lambda: redis_lock.Lock(client, "python-redis-lock", expire=15)


def _redis_py(port: int) -> Callable[[], AbstractContextManager[object]]:
    client = redis.Redis(port=port)
    return lambda: RedisPyLock(client, "redis-py", timeout=15)


def _blpop(port: int) -> Callable[[], AbstractContextManager[object]]:
    """No lock: a token that is passed on by hand. It is lost with its first holder that dies."""
    client = redis.Redis(port=port)

    @contextmanager
    def token() -> Iterator[None]:
        client.blpop(["token"], timeout=0)
        yield
        client.rpush("token", b"")

    return token


# -- hand-over ------------------------------------------------------------------------------------


def _hand_overs(server: RedisServer, count: int, turns: int) -> list[Figure]:
    with redis.Redis(port=server.port) as raw:
        raw.delete("token")
        raw.rpush("token", b"")
    makers: dict[str, Maker] = {"BLPOP": _blpop, "python-redis-lock": _python_redis_lock}
    makers |= {"ours": _ours, "fair": _ours_fair, "shared": _ours_shared}
    each = max(3, min(turns, 120 // count))
    gaps: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(3):
        for name in random.sample(list(makers), len(makers)):
            spans = _play(Way(makers[name], server.port, each), count)
            gaps[name] += _gaps(spans, count)
    found = {name: 1000 * median(each) for name, each in gaps.items()}
    asked = {name: _commands(server, makers[name], count, each) for name in makers}
    what = f"hand-over with {count} waiters"
    return [
        Figure(f"{what}, median", found["ours"], "ms", round(found["python-redis-lock"], 2)),
        Figure("... by the bare BLPOP hop, ratio", found["ours"] / found["BLPOP"], "", 1.5),
        Figure("... fair", found["fair"], "ms", round(found["python-redis-lock"], 2)),
        Figure("... a permit, by the exclusive lock", found["shared"] / found["ours"], "", 1.3),
        Figure("... python-redis-lock", found["python-redis-lock"], "ms"),
        Figure("... BLPOP of a token", found["BLPOP"], "ms"),
        Figure("... client commands of each", asked["ours"], "", 3),
        Figure("... fair", asked["fair"], "", 3),
        Figure("... python-redis-lock", asked["python-redis-lock"], ""),
    ]


def _gaps(spans: Sequence[Span], count: int) -> list[float]:
    # The first turns meet processes that still come, the last ones too few that wait.
    middle = spans[count:-count]
    return [b.got - a.ended for a, b in pairwise(middle) if a.who != b.who]


def _commands(server: RedisServer, make: Maker, count: int, turns: int) -> float:
    """Client commands for each hand-over, while all take turns."""
    seen: list[float] = []
    over = threading.Event()
    with redis.Redis(port=server.port, socket_timeout=None) as raw, raw.monitor() as monitor:

        def listen() -> None:
            for command in monitor.listen():
                if over.is_set():
                    return
                if command["client_type"] != "lua":
                    seen.append(command["time"])

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        spans = _play(Way(make, server.port, turns), count)
        over.set()
        raw.ping()
        listener.join(5)
    # MONITOR's instants are those of the wall clock.
    behind = time.time() - clock.now()
    first, last = spans[count].ended + behind, spans[-count].ended + behind
    moves = sum(a.who != b.who for a, b in pairwise(spans[count : len(spans) - count + 1]))
    return sum(first < at <= last for at in seen) / moves


def _play(way: Way, count: int) -> list[Span]:
    """All holdings in order, of `count` processes that take `way.turns` turns each."""
    context = multiprocessing.get_context("fork")
    pipes, processes = [], []
    for who in range(count):
        here, there = context.Pipe()
        process = context.Process(target=_take_turns, args=(way, who, there), daemon=True)
        process.start()
        pipes.append(here)
        processes.append(process)
    for pipe in pipes:
        pipe.recv()
    for pipe in pipes:
        pipe.send("go")
    spans = [span._replace(who=who) for who, pipe in enumerate(pipes) for span in pipe.recv()]
    for process in processes:
        process.join()
    return sorted(spans, key=lambda span: span.got)


def _take_turns(way: Way, who: int, pipe: Connection) -> None:
    lock = way.make(way.port)
    with lock():
        pass  # connections are made, scripts loaded
    pipe.send("ready")
    pipe.recv()
    spans = []
    greedy = way.greedy and who == 0
    for _ in range(way.turns * (20 if greedy else 1)):
        asked = clock.now()
        with lock():
            got = clock.now()
            time.sleep(0 if greedy else way.hold)
            spans.append(Span(asked, got, clock.now()))
        time.sleep(0 if greedy else way.apart)
    pipe.send(spans)


# -- fairness -------------------------------------------------------------------------------------


def _fairness(server: RedisServer) -> list[Figure]:
    makers: dict[str, Maker] = {"ours": _ours, "fair": _ours_fair}
    makers |= {"python-redis-lock": _python_redis_lock, "redis-py Lock": _redis_py}
    runs = {name: _longest_run(server, make) for name, make in makers.items()}
    # By the order in which the server was asked: with 50 processes on a few cores, another one may
    # get its request out first though it began to ask later.
    with watch_arrivals(server.port, "{default/fair}") as arrivals:
        _play(Way(_ours_fair, server.port, 6, hold=0.001), 50)
    what = "longest run of one greedy process among 5"
    return [
        Figure(what, runs["ours"], "grants", 9),
        Figure("... fair", runs["fair"], "grants", 1),
        Figure("... python-redis-lock", runs["python-redis-lock"], "grants"),
        Figure("... redis-py Lock", runs["redis-py Lock"], "grants"),
        Figure(
            "fair, 50 waiters: who was overtaken most",
            max(overtaken(arrivals).values()),
            "times",
            2,
        ),
    ]


def _longest_run(server: RedisServer, make: Maker) -> int:
    spans = _play(Way(make, server.port, 30, hold=0.001, greedy=True), 5)
    longest = 0
    for one in spans:
        # While this one waited; who asked within a millisecond did not surely ask before.
        meanwhile = [it for it in spans if one.asked + 0.001 < it.got < one.got]
        runs = [len(list(run)) for who, run in groupby(meanwhile, lambda it: it.who) if who == 0]
        longest = max(longest, *runs, 0)
    return longest


# -- standing by ----------------------------------------------------------------------------------


def _standing_by(server: RedisServer, idle: float) -> list[Figure]:
    figures = []
    for what, target in (("leader", _campaign), ("lock", _wait)):
        asked, cpu = _watch(server, target, idle)
        name = f"a {what} and {_STANDBYS} standbys at ttl 9 s"
        figures += [
            Figure(f"{name}: client commands", asked, "/s", 1.6),
            Figure("... CPU of the standbys together", 100 * cpu, "% of a core", 0.1),
        ]
    return figures


def _campaign(url: str, pipe: Connection) -> None:
    _stand_by(pipe, lambda: Election("standby", store=url, ttl=_TTL).campaign())


def _wait(url: str, pipe: Connection) -> None:
    _stand_by(pipe, lambda: Lock("standby", store=url, ttl=_TTL).acquire())


def _stand_by(pipe: Connection, begin: Callable[[], object]) -> None:
    kept: list[object] = []
    threading.Thread(target=lambda: kept.append(begin()), daemon=True).start()
    for _ in range(2):
        pipe.recv()
        pipe.send(time.process_time())
    pipe.recv()
    os._exit(0)


def _watch(
    server: RedisServer, target: Callable[[str, Connection], None], idle: float
) -> tuple[float, float]:
    """Client commands a second, and the CPU of all but the holder in cores."""
    context = multiprocessing.get_context("fork")
    url = f"{server.url}?restart_wait=0"
    pipes = []
    with redis.Redis(port=server.port) as raw:
        raw.flushall()
        for _ in range(1 + _STANDBYS):
            here, there = context.Pipe()
            context.Process(target=target, args=(url, there), daemon=True).start()
            pipes.append(here)
            time.sleep(0.1)
        # Everybody has looked once or twice by then.
        time.sleep(2 * _TTL)
        before, cpus = _evals(raw), _cpus(pipes)
        time.sleep(idle)
        asked = (_evals(raw) - before) / idle
        used = sum(b - a for a, b in zip(cpus, _cpus(pipes), strict=True)) / idle
    for pipe in pipes:
        pipe.send("end")
    time.sleep(0.2)
    return asked, used


def _cpus(pipes: Sequence[Connection]) -> list[float]:
    for pipe in pipes:
        pipe.send("cpu")
    # The first one came first, and holds.
    return [pipe.recv() for pipe in pipes][1:]


def _evals(raw: redis.Redis) -> int:
    """What only clients call: scripts call the rest themselves."""
    stats = raw.info("commandstats")
    ours = ("evalsha", "eval", "subscribe", "unsubscribe")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ours)


# -- failover -------------------------------------------------------------------------------------


def _failover(server: RedisServer, turns: int) -> list[Figure]:
    gaps = [_gap_after_a_kill(server) for _ in range(max(5, min(turns, 21)))]
    return [
        Figure(
            "SIGKILL of the holder, 10 waiters: next one after the ttl ran out, median",
            1000 * median(gaps),
            "ms",
            5,
        ),
        Figure("... the longest", 1000 * max(gaps), "ms", 25),
    ]


def _gap_after_a_kill(server: RedisServer) -> float:
    context = multiprocessing.get_context("fork")
    url = f"{server.url}?restart_wait=0"
    pipes, processes = [], []
    for _ in range(1 + _STANDBYS):
        here, there = context.Pipe()
        process = context.Process(target=_hold_on, args=(url, there), daemon=True)
        process.start()
        pipes.append(here)
        processes.append(process)
        if len(pipes) == 1:
            here.recv()
    with redis.Redis(port=server.port) as raw:
        while raw.zcard("incumbent:{default/failover}:q") < _STANDBYS:
            time.sleep(0.01)
        time.sleep(random.random() / 2)
        os.kill(processes[0].pid or 0, signal.SIGKILL)
        left = int(raw.pttl("incumbent:{default/failover}")) / 1000
        over = clock.now() + left
    ready = multiprocessing.connection.wait(pipes[1:], _SHORT * 5)
    got = min(pipe.recv() for pipe in ready if isinstance(pipe, Connection))
    for process in processes:
        process.kill()
        process.join()
    with redis.Redis(port=server.port) as raw:
        raw.flushall()
    return float(got - over)


def _hold_on(url: str, pipe: Connection) -> None:
    lease = Lock("failover", store=url, ttl=_SHORT).acquire()
    pipe.send(clock.now())
    lease.wait_lost()
