"""How fast a Redis master can be a replica in between, and whether a connection notices.

    python -m benchmarks.redis_switchovers [TIMES]

Two servers with little data, and commands that follow each other as fast as answers come. The
master grants a lease that the replica does not get any more, becomes its replica, loses the lease
with a full resync, and is made the master again. Another process, whose connection had looked at
the server just before, then asks for the lease.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median
from typing import NamedTuple

import redis
from tests.stores.redis.world import ASK, new_claim, party, soon
from tests.support.redis_age import pretend_age
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.model import Granted

__all__ = ["switchovers"]

SETTINGS = {
    "diskless, no delay": ("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"),
    "by disk": ("--repl-diskless-sync", "no"),
    "diskless, delay 2 s": ("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "2"),
    "Redis's default": (),
}


class Switch(NamedTuple):
    """Seconds as a replica, and whether two held the lease then."""

    away: float
    missed: bool


def switchovers(options: Sequence[str], times: int) -> list[Switch]:
    """So many, there and back, each of a full resync."""
    with ExitStack() as stack:
        first, second = (stack.enter_context(RedisServer(list(options))) for _ in range(2))
        a, b = (stack.enter_context(redis.Redis(port=it.port)) for it in (first, second))
        found = []
        for _ in range(times):
            _follow(b, first.port)
            pretend_age(first.url, first)
            found.append(_there_and_back(a, b, first, second))
        return found


def _there_and_back(
    a: redis.Redis, b: redis.Redis, first: RedisServer, second: RedisServer
) -> Switch:
    with party(first.url, "") as holder, party(first.url, "") as other:
        other.take()
        b.replicaof("NO", "ONE")
        held = holder.take()
        began = clock.now()
        a.replicaof("127.0.0.1", second.port)
        while a.info("replication").get("master_link_status") != "up":
            pass
        a.replicaof("NO", "ONE")
        away = clock.now() - began
        assert not a.exists(holder.main), "no full resync"
        try:
            outcome = other.store.take(holder.key, new_claim(), ASK, soon())
        except StoreUnavailable:
            return Switch(away, missed=False)
        return Switch(away, missed=isinstance(outcome, Granted) and bool(held))


def _follow(replica: redis.Redis, port: int) -> None:
    replica.replicaof("127.0.0.1", port)
    eventually(lambda: replica.info("replication").get("master_link_status") == "up", within=30)


def main() -> None:
    """Print a line for each of the settings."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    for name, options in SETTINGS.items():
        found = switchovers(options, times if options else min(times, 3))
        away = [1000 * it.away for it in found]
        print(
            f"{name}: {len(found)} switchovers of {min(away):.1f} to {max(away):.1f} ms, median"
            f" {median(away):.1f} ms; two held the lease after {sum(it.missed for it in found)}"
        )


if __name__ == "__main__":
    main()
