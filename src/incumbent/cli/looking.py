"""Looking at a record until it is as one waits for."""

from __future__ import annotations

import time
from collections.abc import Callable

from incumbent import clock
from incumbent.cli.exits import say
from incumbent.clients import Client
from incumbent.errors import StoreError
from incumbent.model import Record
from incumbent.protocol.link import link_for

__all__ = ["look_until", "wait_for_change"]

_FIRST, _LONGEST = 0.02, 0.25
_WITHIN = 1.0
_HINT_WITHIN = 5.0
"""Seconds after which one looks again without a hint: hints may be lost."""


def look_until(
    client: Client,
    name: str,
    until: float,
    done: Callable[[Record], bool],
    hint_within: float = _HINT_WITHIN,
) -> Record:
    """The first record for which `done` holds, or the last one before `until`.

    `hint_within`: what looks for a field looks often, for `Record.seen` of a name that is held does
    not tell of fields: one that is written before the listener listens gives no hint.
    An outage is waited out, and told once. Raises StoreError if it lasts until the end.
    """
    pause, told, seen = _FIRST, False, None
    while True:
        left = until - clock.now()
        record, error = _read(client, name, min(_WITHIN, max(left, _FIRST)))
        if record is not None and done(record):
            return record
        left = until - clock.now()
        if left <= 0 or (error is not None and error.permanent):
            return _last(record, error)
        if error is not None and not told:
            told = True
            say(f"{name}: trying on: {error}")
        if record is not None and record.seen and record.seen != seen:
            pause, seen = _FIRST, record.seen
            wait_for_change(client, record, min(until, clock.now() + hint_within))
        else:
            # Nothing to compare, or a hint without a change: many must not become a busy loop.
            seen = None
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST)


def wait_for_change(client: Client, record: Record, until: float) -> None:
    """Return when the record may have changed, something of it ran out, or at `until`."""
    now = clock.now()
    ends = [it.remaining for it in record.holdings if it.remaining is not None]
    if record.closed_for > 0:
        ends.append(record.closed_for)
    until = min(until, now + _HINT_WITHIN, *(now + end for end in ends))
    try:
        if record.seen:
            link_for(client).store.wait_change(record.key, record.seen, until)
            return
    except StoreError:
        # It gives no hints now; the next look says more.
        until = min(until, now + _LONGEST)
    time.sleep(max(0.0, until - clock.now()))


def _read(client: Client, name: str, within: float) -> tuple[Record | None, StoreError | None]:
    try:
        return client.read(name, within), None
    except StoreError as error:
        return None, error


def _last(record: Record | None, error: StoreError | None) -> Record:
    if record is None:
        assert error is not None  # noqa: S101 - one of the two is there
        raise error
    return record
