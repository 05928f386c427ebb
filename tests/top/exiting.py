"""A holder that ends with its lease: it works, in a process of its own, under a file lock.

    python exiting.py URL TTL WITNESS KIND

It says "holding" once it has lease and file lock, and then works on without ever asking. KIND:
"waits" (blocking work), "busy" (threads that burn the interpreter).
"""

from __future__ import annotations

import fcntl
import sys
import threading
import time
from pathlib import Path

import incumbent

_BUSY_THREADS = 3


def burn() -> None:
    at = 0
    while True:
        at += 1


def main(url: str, ttl: str, witness: str, kind: str) -> None:
    lock = incumbent.Lock("job", store=url, ttl=float(ttl), if_lost="exit", timeout=10)
    with lock, Path(witness).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if kind == "busy":
            for _ in range(_BUSY_THREADS):
                threading.Thread(target=burn, daemon=True).start()
        sys.stdout.write("holding\n")
        sys.stdout.flush()
        time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
