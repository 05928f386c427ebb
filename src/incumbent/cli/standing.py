"""The one place where the command line looks into a lock: standing as a candidate, and metadata."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from incumbent import clock
from incumbent._core.acquire import Told, acquire
from incumbent._core.onestep import run
from incumbent._drive.sync import draw_jitter
from incumbent.model import Notice
from incumbent.sync import Lease, Lock

__all__ = [
    "candidate",
    "draw_jitter",
    "follow",
    "holder_of",
    "meta_of",
    "notice_of",
    "proclaim",
    "stand",
    "tell_outage",
    "ttl_of",
]

_STANDS_FOR = 1.5
"""Times the ttl: a candidate asks again at least once a ttl."""


def meta_of(isolation: str, **more: str) -> bytes:
    """What the record says of a holder's process, for `status`."""
    facts: dict[str, Any] = {"isolation": isolation, "host": os.uname().nodename}
    return json.dumps({**facts, "pid": os.getpid(), **more}).encode()


def candidate(lock: Lock, isolation: str) -> Lock:
    """`lock`, which from now on is listed among the candidates while it waits."""
    wanted = lock._wanted
    stands = wanted.policy.ttl * _STANDS_FOR + wanted.policy.request_timeout
    ask = replace(wanted.ask, meta=meta_of(isolation), candidacy=stands)
    lock._wanted = replace(wanted, ask=ask)
    return lock


def stand(lock: Lock, told: Told) -> Lease:
    """Wait for the lease for ever; `told` hears every answer that is no grant.

    Raises a permanent StoreError, and whatever a signal handler raises.
    """
    return Lease(*lock._armed(run(acquire(lock._link.port, lock._wanted, None, told))))


def proclaim(lease: Lease, meta: bytes, *, after: float = 0.0) -> None:
    """Change the record's metadata, with a renewal of its own `after` seconds at the latest."""
    lease._held.meta = meta
    if lease._held.machine.valid(clock.now()):
        lease._link.keeper.renew_now(lease._held, _nothing, after=after)


def _nothing() -> None:
    pass


def follow(lease: Lease, follower: Callable[[], None]) -> None:
    """Call `follower` in the keeper's thread after each proved renewal."""
    lease._link.keeper.follow(lease._held, follower)


def notice_of(lease: Lease) -> Notice | None:
    """The operator's word that ended it."""
    return lease._held.notice


def holder_of(lock: Lock) -> str:
    """Who we are, as others see it."""
    return lock._wanted.ask.holder


def ttl_of(lock: Lock) -> float:
    """Seconds."""
    return lock._wanted.policy.ttl


def tell_outage(lock: Lock, error: Any) -> None:
    """Say that the store is away, once a minute at most."""
    lock._link.keeper.tell_outage(lock._wanted.key, error)
