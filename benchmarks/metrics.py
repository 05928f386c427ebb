"""What metrics cost: a pair on Redis while nobody looks and while somebody does, and a look.

    python -m benchmarks.metrics

Turns change about, in one process, and the best of each counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.support.servers import RedisServer

import incumbent
from incumbent import meters, metrics

_TURNS = 30
_PAIRS = 1_000
_LEASES = 10_000


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    """Print the figures."""
    with RedisServer() as server:
        lock = incumbent.Lock("pair", store=f"{server.url}?restart_wait=0")

        def pairs() -> None:
            for _ in range(_PAIRS):
                lock.acquire().release()

        best = {False: float("inf"), True: float("inf")}
        for turn in range(2 * _TURNS):
            meters.on = bool(turn % 2)
            best[meters.on] = min(best[meters.on], _seconds(pairs))
    print(
        f"a pair: {best[False] / _PAIRS * 1e6:.1f} us unseen, {best[True] / best[False]:.3f} seen"
    )
    leases = [incumbent.Lock(f"x{at}", store="memory:").acquire() for at in range(_LEASES)]
    looks = sorted(_seconds(metrics.text) for _ in range(_TURNS))
    print(f"a look at {_LEASES} leases: {looks[len(looks) // 2] * 1e3:.1f} ms")
    for lease in leases:
        lease.release()


if __name__ == "__main__":
    main()
