"""What the etcd lesson leaves open: a client that carries on when its etcd server dies.

    INCUMBENT_STORE=etcd://e1:2379,e2:2379,e3:2379 python examples/etcd_failover.py

Name every member in the URL. While one holds the lease it does a step every STEP seconds (0.1),
and before each step it asks whether the lease is proved. Kill the server that it talks to: the
next one is asked, and the term goes on. Take the majority away: it stops inside the lease, and
goes on with a new term when a majority is back. It ends after SECONDS (30), or on Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import time

import incumbent

NAME = "etcd-failover"
TTL = "5s"


def say(text: str) -> None:
    print(f"{time.monotonic():.3f} {text}", flush=True)


def one_term(lock: incumbent.Lock, until: float, step: float) -> None:
    with lock as lease:
        say(f"begin {lease.fencing_token}")
        while time.monotonic() < until:
            lease.check(need=step)
            say(f"step {lease.fencing_token}")
            time.sleep(step)
        say(f"end {lease.fencing_token}")


def main() -> int:
    step = float(os.environ.get("STEP", "0.1"))
    until = time.monotonic() + float(os.environ.get("SECONDS", "30"))
    lock = incumbent.Lock(NAME, ttl=TTL, timeout=1)
    while time.monotonic() < until:
        try:
            one_term(lock, until, step)
        except incumbent.LeaseLost as lost:
            say(f"lost: {lost}")
        except incumbent.NotAcquired as busy:
            say(f"waits: {busy.held_by} holds it")
        except incumbent.StoreError as error:
            if error.permanent:
                # A wrong password or certificate: trying again cannot help.
                print(error, file=sys.stderr)
                return 69
            say(f"nobody answers: {error}")
            # A cluster that was just started says at once when it will grant again.
            time.sleep(max(0.0, min(error.retry_after or step, 1.0, until - time.monotonic())))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
