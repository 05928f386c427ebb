"""Form 1: the fail-closed leader as a Python program on AsyncElection.

    LOCK_KEY=switch-7 REDIS_HOST=redis TELNET_HOST=switch-7 python examples/telnet_leader/leader.py

`work(term)` is cancelled, and its session closed, before the proof of leadership runs out. What no
program can do for itself is close a socket while it is frozen (SIGSTOP, a paused container): such a
leader sends nothing any more, not even after it wakes, but the host keeps its half-open session.
Where that counts as a second session, use form 2.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys

from client import Host, hold_session, host_from, say
from settings import Settings, settings_from

import incumbent

__all__ = ["main"]

PAUSE_AT_MOST = 5.0
NEEDED_TO_SEND = 0.1


async def lead(settings: Settings, host: Host) -> None:
    """Stand for election for ever; a session that fails makes room for another instance."""
    failures = 0

    async def work(term: incumbent.AsyncTerm) -> None:
        nonlocal failures
        say(f"leading, term {term.number}")
        started = asyncio.get_running_loop().time()
        try:
            await hold_session(host, term.number, lambda: term.check(need=NEEDED_TO_SEND))
        finally:
            if asyncio.get_running_loop().time() - started > PAUSE_AT_MOST:
                failures = 0

    def led_by(leader: incumbent.Leader | None) -> None:
        if leader is not None and leader.holder != election.holder:
            say(f"standing by: {leader.holder} leads, term {leader.term}")

    election = incumbent.AsyncElection(
        settings.name,
        store=settings.store,
        namespace=settings.namespace,
        policy=incumbent.Policy(settings.ttl, renew_every=settings.renew_every),
        holder=settings.holder,
        on_leader_change=led_by,
    )
    while True:
        try:
            await election.run(work)
        except OSError as error:
            failures += 1
            say(f"no session: {error}")
            # Full jitter: a host that is down is not called by all instances in step.
            await asyncio.sleep(random.uniform(0, min(PAUSE_AT_MOST, 0.1 * 2**failures)))


async def _until_told(settings: Settings, host: Host) -> None:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - always true in a coroutine that asyncio.run started
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await lead(settings, host)
    except asyncio.CancelledError:
        say("stopped in order")


def main() -> int:
    try:
        settings, host = settings_from(os.environ), host_from(os.environ)
        for remark in settings.remarks:
            print(f"leader: {remark}", file=sys.stderr)
        asyncio.run(_until_told(settings, host))
    except (KeyError, ValueError) as error:
        print(f"leader: bad settings: {error}", file=sys.stderr)
        return 64
    return 0


if __name__ == "__main__":
    sys.exit(main())
