"""A member in a process of its own, that holds what it got until it is killed.

    python -m tests.tooz_driver.member URL MEMBER lock|leader NAME

It says "got it" once it has the lock, or leads the group, and goes on.
"""

from __future__ import annotations

import sys
import time

from tooz.coordination import CoordinationDriver, get_coordinator

from tests.support.waiting import eventually


def main(url: str, member: str, what: str, name: str) -> None:
    coordinator: CoordinationDriver = get_coordinator(url, member.encode())
    coordinator.start()
    if what == "lock":
        lock = coordinator.get_lock(name.encode())
        assert lock.acquire()
    else:
        coordinator.watch_elected_as_leader(name.encode(), _nothing)
        eventually(coordinator.run_watchers)
    sys.stdout.write("got it\n")
    sys.stdout.flush()
    time.sleep(600)


def _nothing(event: object) -> None:
    pass


if __name__ == "__main__":
    main(*sys.argv[1:])
