"""One reader for all viewers: it reads at most once a second, and never without a viewer."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from math import inf
from secrets import token_hex
from typing import Final, TypeVar, cast

from incumbent import clock
from incumbent.durations import say_seconds
from incumbent.page.markup import Html, joined, when
from incumbent.page.rows import Blocks, FleetReading, blocks_of
from incumbent.page.snapshot import FleetView, Snapshot, SnapshotReader, fleet_of
from incumbent.page.view import View, entries_of

T = TypeVar("T")
_log = logging.getLogger("incumbent")

# The least number of seconds between two readings.
_EVERY: Final = 1.0
# Records that are read a second at most: a Redis is asked two or three times for so many.
_RECORDS: Final = 125
# Share of a core for reading and rendering while somebody follows; sending comes on top.
_SHARE: Final = 0.008
_SLOWEST: Final = 60.0
# Editions that are kept: of the views that were asked for last. Searches make ever new ones.
_VIEWS_MOST: Final = 256


@dataclass(frozen=True, slots=True)
class Edition:
    """The blocks of one reading for one view, and the edition in which each row last changed."""

    number: int
    reading: FleetReading
    blocks: Blocks
    changed: dict[str, int]
    """The edition that last changed a row, by row id, or a block's list of rows, by block id."""
    every: float = _EVERY
    """Seconds until the next edition while somebody follows."""
    patches: dict[int, bytes] = field(default_factory=dict)

    @property
    def snapshot(self) -> Snapshot:
        """What was read."""
        return self.reading.snapshot

    @property
    def read(self) -> Html:
        """A line that says when the store answered, and how often it is read."""
        read_at = self.snapshot.read_at
        at = "never" if read_at == -inf else when(read_at, self.snapshot.now)
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
    before: Edition | None,
    reading: FleetReading,
    blocks: Blocks,
    number: int,
    every: float = _EVERY,
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
    made = Edition(number, reading, blocks, changed, every)
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
        self._editions: dict[View, Edition] = {}
        self._fleet: FleetView | None = None
        self._least = self._every = _EVERY
        self._followers: Counter[View] = Counter()
        self._asked: set[View] = set()
        self._newest: tuple[int, FleetReading] | None = None
        """The last reading, with its number."""
        self._one_at_a_time = asyncio.Lock()
        self._hurry = threading.Event()
        self._closed = threading.Event()
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def close(self) -> None:
        """End the thread, without waiting for a reading that is under way."""
        self._closed.set()
        self._hurry.set()

    # -- in the loop -------------------------------------------------------------------------------

    async def newest(self, view: View, *, anew: bool = False) -> Edition:
        """An edition that was at most a second old when it was asked for; a big fleet's is older.

        `anew`: it has to be newer than this call, because something was changed.
        """
        asked = clock.now()
        while True:
            age = 0.0 if anew else self._least
            found = self._editions.get(view)
            # By when it was asked, not answered: what changed in between may be missing in it.
            if found is not None and found.snapshot.asked >= asked - age:
                return found
            if self._newest is not None and self._newest[1].snapshot.asked >= asked - age:
                await self._make_of_newest(view)
                continue
            self._asked.add(view)
            await self._wait(hurry=True)

    async def _make_of_newest(self, view: View) -> None:
        """Make the edition of a view without reading again: views may be changed quickly."""
        # Many viewers may want one view at a time: the second finds what the first has made.
        async with self._one_at_a_time:
            number, reading = self._newest or (0, None)
            known = self._editions.get(view)
            if reading is None or (known is not None and known.number >= number):
                return
            made = await in_thread(lambda: self._edition(reading, view, number))
            # A later reading may have come meanwhile, and its edition must not be replaced by this
            # one.
            if self._newest is not None and self._newest[0] == number:
                self._keep({view: made})

    async def follow(self, view: View, number: int) -> AsyncGenerator[Edition, None]:
        """Each edition after this number; a slow follower misses some."""
        # Before the first look: the thread makes editions only of views that somebody follows or
        # asks for.
        self._followers[view] += 1
        came = True
        try:
            while True:
                found = self._editions.get(view)
                if found is not None and found.number > number:
                    number = found.number
                    yield found
                else:
                    if found is None:
                        self._asked.add(view)
                    at = -inf if self._newest is None else self._newest[1].snapshot.asked
                    is_old = clock.now() - at >= self._least
                    await self._wait(hurry=came and is_old)
                came = False
        finally:
            self._followers[view] -= 1
            # Removed at zero: each search makes another view, and counters would stay for ever.
            if not self._followers[view]:
                del self._followers[view]

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

    def _publish(self, newest: tuple[int, FleetReading], made: dict[View, Edition]) -> None:
        self._newest = newest
        self._keep(made)
        # Whoever waits for this edition is woken; the next waits for the next one.
        self._news.set()
        self._news = asyncio.Event()

    def _keep(self, made: dict[View, Edition]) -> None:
        # What was made last comes last, and what was not made for long is dropped.
        older = {view: one for view, one in self._editions.items() if view not in made}
        self._editions = dict(list(older.items())[-_VIEWS_MOST:]) | made

    # -- in the thread -----------------------------------------------------------------------------

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        number = 0
        while not self._closed.is_set():
            began, cpu = clock.now(), time.thread_time()
            # Before the reading: a viewer that asks from now on needs a later one.
            self._hurry.clear()
            number += 1
            try:
                reading, made = self._make(self._reader.read(), number)
                self._asked.difference_update(made)
                loop.call_soon_threadsafe(self._publish, (number, reading), made)
                # Those who came during the reading have what they hurried it for, unless they ask
                # anew: they ask first and hurry then, so that this misses none.
                self._hurry.clear()
            except Exception:  # noqa: BLE001 - the next reading may succeed; the page shows its age
                _log.debug("the page cannot be made", exc_info=True)
            # Somebody asked during the reading, too late for it: the pause must end at once.
            if self._asked:
                self._hurry.set()
            cost = time.thread_time() - cpu
            self._every = min(max(self._least, cost / _SHARE), _SLOWEST)
            self._pause(began)
        self._reader.close()

    def _make(self, snapshot: Snapshot, number: int) -> tuple[FleetReading, dict[View, Edition]]:
        fleet = self._fleet = fleet_of(snapshot, self._fleet)
        self._least = max(_EVERY, len(snapshot.records) / _RECORDS)
        reading = FleetReading(snapshot, fleet, entries_of(snapshot, fleet))
        # The loop changes the counter meanwhile.
        followed = {view for view, count in self._followers.copy().items() if count > 0}
        wanted = followed | set(self._asked)
        return reading, {view: self._edition(reading, view, number) for view in wanted}

    def _edition(self, reading: FleetReading, view: View, number: int) -> Edition:
        before, blocks = self._editions.get(view), blocks_of(reading, view)
        return next_edition(before, reading, blocks, number, self._every)

    def _pause(self, began: float) -> None:
        """Wait until the next reading is due, or requested; without followers, until requested."""
        if self._closed.wait(max(0.0, began + _EVERY - clock.now())):
            return
        followed = self._followers.total() > 0
        left = max(0.0, began + self._every - clock.now())
        self._hurry.wait(left if followed else None)


async def in_thread(call: Callable[[], T]) -> T:
    """Run `call` in a daemon thread, so that a silent store cannot delay the end of the process."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: BaseException | None) -> None:
        # Whoever waited may have been cancelled meanwhile.
        if not done.done():
            done.set_result(cast("T", result)) if error is None else done.set_exception(error)

    def run() -> None:
        error: BaseException | None = None
        result: T | None = None
        try:
            result = call()
        except BaseException as caught:  # noqa: BLE001 - it is raised where it is awaited
            error = caught
        try:
            loop.call_soon_threadsafe(tell, result, error)
        except RuntimeError:
            pass  # The listener is closed.

    threading.Thread(target=run, name="incumbent-page-act", daemon=True).start()
    return await done
