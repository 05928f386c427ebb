"""Looking at a record until it is as one waits for."""

from __future__ import annotations

import time
from collections.abc import Callable

from incumbent import clock
from incumbent.cli.exits import say
from incumbent.errors import StoreError
from incumbent.model import Record
from incumbent.sync import Client

__all__ = ["look_until"]

_FIRST, _LONGEST = 0.02, 0.25
_WITHIN = 1.0


def look_until(client: Client, name: str, until: float, done: Callable[[Record], bool]) -> Record:
    """The first record for which `done` holds, or the last one before `until`.

    An outage is waited out, and told once. Raises StoreError if it lasts until the end.
    """
    pause, told = _FIRST, False
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
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST)


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
