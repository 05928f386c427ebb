"""One of many processes that share a name: `python -m tests.e2e.sharer URL NAME KIND`.

Until it is killed, it says when it was at work, on the host's CLOCK_BOOTTIME.
"""

from __future__ import annotations

import sys
import time
from random import Random

from incumbent import Lease, Lock, ReadWriteLock, Semaphore, clock

TTL = 2.0


def side(url: str, name: str, kind: str) -> Lock:
    """`kind`: "read", "write", or a number of permits."""
    if kind.isdecimal():
        return Semaphore(name, int(kind), store=url, ttl=TTL)
    return getattr(ReadWriteLock(name, store=url, ttl=TTL), kind)  # type: ignore[no-any-return]


def say(what: str, lease: Lease) -> None:
    sys.stdout.write(f"{what} {lease.fencing_token} {clock.now()}\n")
    sys.stdout.flush()


def main(url: str, name: str, kind: str) -> None:
    lock, rng = side(url, name, kind), Random()
    while True:
        with lock as lease:
            say("in", lease)
            time.sleep(rng.random() * 0.05)
            # What was at work until now is said before the lease may pass on.
            say("out", lease)
        time.sleep(rng.random() * 0.02)


if __name__ == "__main__":
    main(*sys.argv[1:])
