"""One reader for all viewers: it reads at most once a second, and never without a viewer."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from math import inf
from secrets import token_hex
from typing import Final

from incumbent import clock
from incumbent.durations import say_seconds
from incumbent.page.documents import Blocks, lasting_blocks, timed_blocks
from incumbent.page.markup import Html, joined, when
from incumbent.page.snapshot import FleetView, Snapshot, SnapshotReader, fleet_of

_log = logging.getLogger("incumbent")

_EVERY: Final = 1.0
"""The least number of seconds between two readings."""
_SHARE: Final = 0.008
"""Share of a core for reading and rendering while somebody follows; sending comes on top."""
_SLOWEST: Final = 60.0


@dataclass(frozen=True, slots=True)
class Edition:
    """The blocks of one reading for one window, and the edition in which each row last changed."""

    number: int
    snapshot: Snapshot
    blocks: Blocks
    changed: dict[str, int]
    """The edition that last changed a row, by row id, or a block's list of rows, by block id."""
    every: float = _EVERY
    """Seconds until the next edition while somebody follows."""
    patches: dict[int, bytes] = field(default_factory=dict)

    @property
    def read(self) -> Html:
        """A line that says when the store answered, and how often it is read."""
        read_at = self.snapshot.read_at
        at = "never" if read_at == -inf else joined((when(read_at, self.snapshot.now), " UTC"))
        return joined((at, f", and every {say_seconds(round(self.every))}"))

    def patch(self, since: int) -> bytes:
        """The changes since edition `since`, as JSON; made once for all followers."""
        if since not in self.patches:
            rows = {
                row.id: row.html
                for block in self.blocks.values()
                for row in block
                if self.changed[row.id] > since
            }
            orders = {
                name: [row.id for row in block]
                for name, block in self.blocks.items()
                if self.changed[name] > since
            }
            patch = {"read": self.read, "rows": rows, "orders": orders}
            self.patches[since] = json.dumps(patch, separators=(",", ":")).encode()
        return self.patches[since]


def next_edition(
    before: Edition | None, snapshot: Snapshot, blocks: Blocks, number: int, every: float = _EVERY
) -> Edition:
    """Make an edition; rows and blocks that differ from `before` get its number."""
    known: dict[str, object] = {}
    since: dict[str, int] = {}
    if before is not None:
        since = before.changed
        for name, block in before.blocks.items():
            known[name] = [row.id for row in block]
            known.update((row.id, row.key) for row in block)
    changed = {}
    for name, block in blocks.items():
        now = ((name, [row.id for row in block]), *((row.id, row.key) for row in block))
        for id_, key in now:
            same = id_ in known and known[id_] == key
            changed[id_] = since[id_] if same else number
    made = Edition(number, snapshot, blocks, changed, every)
    if before is not None:
        # Most followers need this patch: make it here, not in the loop, where probes would wait.
        made.patch(before.number)
    return made


class EditionWatch:
    """Makes editions in a thread of its own, for coroutines of one loop."""

    def __init__(self, reader: SnapshotReader) -> None:
        self._reader = reader
        self.boot = token_hex(4)
        """Distinguishes our editions from the editions of an earlier process."""
        self._editions: dict[str, Edition] = {}
        self._fleet: FleetView | None = None
        self._every = _EVERY
        self._followers: Counter[str] = Counter()
        self._asked: set[str] = set()
        self._hurry = threading.Event()
        self._closed = threading.Event()
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def close(self) -> None:
        """End the thread, without waiting for a reading that is under way."""
        self._closed.set()
        self._hurry.set()

    # -- in the loop -------------------------------------------------------------------------------

    async def newest(self, window: str, age: float = _EVERY) -> Edition:
        """An edition that was at most `age` seconds old when it was asked for."""
        asked = clock.now()
        while True:
            found = self._editions.get(window)
            if found is not None and found.snapshot.asked >= asked - age:
                return found
            self._asked.add(window)
            await self._wait(hurry=True)

    async def follow(self, window: str, number: int) -> AsyncGenerator[Edition, None]:
        """Each edition after this number; a slow follower misses some."""
        self._followers[window] += 1
        came = True
        try:
            while True:
                found = self._editions.get(window)
                if found is not None and found.number > number:
                    number = found.number
                    yield found
                else:
                    await self._wait(hurry=came)
                came = False
        finally:
            self._followers[window] -= 1

    async def _wait(self, *, hurry: bool) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            thread = threading.Thread(
                target=self._run, args=(self._loop,), name="incumbent-page", daemon=True
            )
            thread.start()
        if hurry:
            self._hurry.set()
        await self._news.wait()

    def _publish(self, made: dict[str, Edition]) -> None:
        self._editions.update(made)
        self._asked.difference_update(made)
        self._news.set()
        self._news = asyncio.Event()

    # -- in the thread -----------------------------------------------------------------------------

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        number = 0
        while not self._closed.is_set():
            began, cpu = clock.now(), time.thread_time()
            self._hurry.clear()
            number += 1
            try:
                made = self._make(self._reader.read(), number)
                loop.call_soon_threadsafe(self._publish, made)
            except Exception:  # noqa: BLE001 - the next reading may succeed; the page shows its age
                _log.debug("the page cannot be made", exc_info=True)
            cost = time.thread_time() - cpu
            self._every = min(max(_EVERY, cost / _SHARE), _SLOWEST)
            self._pause(began)
        self._reader.close()

    def _make(self, snapshot: Snapshot, number: int) -> dict[str, Edition]:
        fleet = self._fleet = fleet_of(snapshot, self._fleet)
        same = lasting_blocks(snapshot, fleet)
        followed = {window for window, count in self._followers.copy().items() if count > 0}
        return {
            window: next_edition(
                self._editions.get(window),
                snapshot,
                same | timed_blocks(snapshot, fleet, window),
                number,
                self._every,
            )
            for window in followed | set(self._asked)
        }

    def _pause(self, began: float) -> None:
        """Wait until the next reading is due, or requested; without followers, until requested."""
        self._closed.wait(max(0.0, began + _EVERY - clock.now()))
        followed = self._followers.total() > 0
        left = max(0.0, began + self._every - clock.now())
        self._hurry.wait(left if followed else None)
