"""What a test leaves behind is ended with that test and reported as its own, not as the next one's.

A test that fails in the middle gives nothing back. pytest keeps its error for a debugger, and with
that all that its frames hold, until the next test begins: there its leases are collected, each with
a warning, which is an error.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import redis

from incumbent.lease import LeaseState
from incumbent.runtime.keeper import renewed_claims
from tests.support.servers import RedisServer

ENDS_WITHIN = 10.0
_STAY = ("incumbent-notifier",)
"""A thread of the whole process."""
_KEPT = ("last_exc", "last_type", "last_value", "last_traceback")


def has_failed() -> bool:
    """Whether the test that ends has; then all that its frames held is collected."""
    kept = [name for name in _KEPT if hasattr(sys, name)]
    for name in kept:
        delattr(sys, name)
    if kept:
        gc.collect()
    return bool(kept)


def end_leases() -> list[str]:
    """Give back all leases that this process still holds; returns what they are on."""
    left = [claim for claim in renewed_claims() if claim.machine.state is LeaseState.HELD]
    for claim in left:
        # As if it was collected, without the warning.
        claim.machine.note_leaving()
        claim.port.owe(claim.debt(claim.port.now(), undo_slot=False))
    return sorted(claim.wanted.key.name for claim in left)


def await_threads(before: Iterable[threading.Thread]) -> list[str]:
    """The names of threads that do not end by themselves: ours, and those that keep the process."""
    until = time.monotonic() + ENDS_WITHIN
    # Not to be joined: one of them may be about to start.
    while names := _going_on(before):
        if time.monotonic() > until:
            break
        time.sleep(0.005)
    return names


def _going_on(before: Iterable[threading.Thread]) -> list[str]:
    new = [one for one in threading.enumerate() if one not in before and _has_to_end(one)]
    return sorted(thread.name for thread in new)


def _has_to_end(thread: threading.Thread) -> bool:
    ours = thread.name.startswith("incumbent") and thread.name not in _STAY
    return ours or not thread.daemon


_shared: dict[RedisServer, dict[str, str]] = {}
"""The servers of many tests, with their settings."""


@contextmanager
def shared(server: RedisServer) -> Iterator[RedisServer]:
    """A server that no test may change: a test that has to starts its own."""
    _shared[server] = _settings(server)
    try:
        yield server
        assert not (changed := put_settings_back()), f"left by a test of this worker: {changed}"
    finally:
        del _shared[server]


def put_settings_back() -> list[str]:
    """The settings of shared servers are as they were; returns what was changed."""
    changed = []
    for server, before in _shared.items():
        for name, value in _settings(server).items():
            if value != before[name]:
                server.cli("CONFIG", "SET", name, before[name])
                changed.append(f"{name} {value}")
    return changed


def _settings(server: RedisServer) -> dict[str, str]:
    with redis.Redis(port=server.port, decode_responses=True) as client:
        return dict(client.config_get())
