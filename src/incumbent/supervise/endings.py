"""Puts on record how a term ended.

It is written after the lease was given back, so that no hand-over waits for it, and only if the
field (see rules.endings) still has the version that was read: an instance that ends its term at the
same time must not lose its entry. What the store does not take now is written with the next ending.
"""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import Final

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.locks.leases import Lease
from incumbent.model import ABSENT, ByVersion, Stored
from incumbent.protocol.messages import lease_lost, request_in_words
from incumbent.rules.endings import ENDINGS, TermEnding, with_ending
from incumbent.supervise.child import CannotStart
from incumbent.supervise.run import Ending, outlives_kill

_WITHIN: Final = 1.0
"""Seconds that each of the two requests may take: a store that is away must not hold up an end."""
# Instances whose terms end together write to one field: who comes second reads and writes anew.
_TRIES: Final = 3
_KEPT_MOST: Final = 20


class EndingsWriter:
    """Writes the endings of one name's terms; one for each process that runs commands."""

    def __init__(self) -> None:
        self._unwritten: list[TermEnding] = []

    def write(self, lease: Lease, ending: TermEnding) -> None:
        """Put `ending` on record, with those that could not be written before. Never raises."""
        if not lease.belief.link.engine.capabilities.fields:
            return
        # Kept before it is sent: an entry whose write got no answer goes out again, and is
        # recognized.
        self._unwritten = [*self._unwritten, ending][-_KEPT_MOST:]
        with suppress(StoreError):
            for _ in range(_TRIES):
                if _put(lease, self._unwritten):
                    self._unwritten = []
                    return


def _put(lease: Lease, endings: list[TermEnding]) -> bool:
    store, key = lease.belief.link.store, lease.belief.key
    field = store.read(key, clock.now() + _WITHIN).fields.get(ENDINGS)
    value = None if field is None else field.value
    for ending in endings:
        value = with_ending(value, ending)
    guard = ABSENT if field is None else ByVersion(field.version)
    return isinstance(store.put(key, ENDINGS, value, guard, clock.now() + _WITHIN), Stored)


def term_ending(lease: Lease, ending: Ending) -> TermEnding:
    """The entry for a term that `supervise` has ended."""
    kind, _, signal_name = ending.cause.partition(":")
    if ending.survivors:
        how, why = "fault", outlives_kill(ending)
    elif not kind:
        how, why = "exit", _by_signal(ending.status)
    elif kind == "signal":
        how, why = "stopped", f"its instance was stopped by {signal_name}"
    elif kind == "guard":
        how, why = "fault", "its guard died"
    else:
        how = "lost" if lease.belief.notice is None else "asked"
        how, why = kind if kind == "at_most_for" else how, lost_in_words(lease, kind)
    return TermEnding(lease.fencing_token, how, clock.wall(), ending.status, why)


def not_started(lease: Lease, error: CannotStart) -> TermEnding:
    """The entry for a term whose command could not start."""
    return TermEnding(lease.fencing_token, "not_started", clock.wall(), error.code, str(error))


def lost_in_words(lease: Lease, reason: str) -> str:
    """Why a term ended that neither its command nor a signal ended."""
    notice = lease.belief.notice
    if notice is None and reason == "at_most_for":
        return "reached --at-most-for"
    if notice is None:
        line = str(lease_lost(lease.name, reason))
        return line.removeprefix(f"the lease on {lease.name!r} ")
    return request_in_words(notice)


def _by_signal(code: int | None) -> str:
    """The signal of a command whose shell reports 128 + N, in words; "" if that is no signal."""
    try:
        return f"its command was ended by {signal.Signals((code or 0) - 128).name}"
    except ValueError:
        return ""
