"""The lock of the etcd lesson: by method, by `with`, and held for longer than its ttl.

    INCUMBENT_STORE=etcd://127.0.0.1:2379 python examples/etcd_lock.py

Any other store will do as well. SECONDS_OF_WORK (5) is how long the long holder works; its ttl is
2 s, so it is renewed meanwhile. Start it twice: the second one waits for up to SECONDS_TO_WAIT
(30), and is woken.
"""

from __future__ import annotations

import os
import sys
import time

import incumbent

NAME = "etcd-lesson"
TTL = 2.0


def say(text: str) -> None:
    print(f"{os.getpid()} {text}", flush=True)


def by_method(lock: incumbent.Lock) -> None:
    """For code that acquires in one place and releases in another."""
    lease = lock.acquire()
    try:
        say(f"by method: term {lease.fencing_token}, {lease.remaining:.1f} s are proved")
    finally:
        # False: the store did not confirm it, and the lease ends by itself within its ttl.
        lease.release()


def by_with(lock: incumbent.Lock) -> None:
    """The body never runs without the lease: `with` raises instead."""
    with lock as lease:
        say(f"by with: term {lease.fencing_token}")
        other = incumbent.Lock(NAME, timeout=0, holder="the-other")
        try:
            other.acquire()
        except incumbent.NotAcquired as busy:
            say(f"the other one is told who holds it: {busy.held_by}")


def for_long(lock: incumbent.Lock, seconds: float) -> None:
    """A lease renews itself; what the work must do is ask before each dangerous step."""
    with lock as lease:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            # Raises LeaseLost unless the next half second is proved to be ours.
            lease.check(need=0.5)
            time.sleep(0.25)
        say(f"for long: still term {lease.fencing_token} after {seconds:g} s, ttl {TTL:g} s")
        # By hand, for who is about to do something long: at once, and it says what is proved.
        say(f"renewed by hand: {lease.renew():.1f} s are proved")


def main() -> int:
    lock = incumbent.Lock(NAME, ttl=TTL, timeout=float(os.environ.get("SECONDS_TO_WAIT", "30")))
    try:
        by_method(lock)
        by_with(lock)
        for_long(lock, float(os.environ.get("SECONDS_OF_WORK", "5")))
    except incumbent.LockError as error:
        print(error, file=sys.stderr)
        return 69
    return 0


if __name__ == "__main__":
    sys.exit(main())
