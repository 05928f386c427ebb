"""Waiting: one watch for each of our namespaces and process, read by a thread of its own.

    waiter    wait_change ---------------------------> may have changed: asks for the name
                  |                                       ^
    thread    list ---> watch from there on --- event ----+---- event ---- bookmark ---- ended
                ^                                 (the object: no request is needed)       |
                +--------------- 410: what came between was compacted ---------------------+

What the thread reads is known to both sides, so a waiter is woken only if its turn may have come
(`polling.may_have_changed`), which also depends on time: it is judged again each TICK. No change is
missed: a waiter is listed before the thread says that it has listed or goes on to watch, and what
is known then is newer than what the waiter has seen. If the API server cannot be watched, all
waiters are woken, and ask for themselves. The thread ends when nobody has waited for LINGER.

Each change is one step of a dict or one assignment, so no lock is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from incumbent import clock
from incumbent.chance import draw_jitter
from incumbent.durations import backoff_delay
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Key
from incumbent.net.http import Garbled, Reading, begin, feed
from incumbent.net.pool import Broken
from incumbent.net.readers import ThreadWakeup, Wakeup
from incumbent.stores.kubernetes.client import labelled
from incumbent.stores.kubernetes.objects import KEY, LeaseSight
from incumbent.stores.names import unflat
from incumbent.stores.plan import run_blocking
from incumbent.stores.polling import may_have_changed
from incumbent.unpatched import start_thread

if TYPE_CHECKING:
    from incumbent.net.wire import BlockingWire
    from incumbent.stores.kubernetes.client import KubernetesClient

TICK: Final = 0.25
LINGER: Final = 2.0
_LASTS: Final = 240
"""Seconds after which the server ends a watch; then another one goes on from there."""
_WITHIN: Final = 10.0
_SILENT: Final = 90.0
"""Seconds without a word, bookmarks included, after which a watch is dead, and nobody said so."""
_OK: Final = 200
_GONE: Final = 410
"""What came after the revision was compacted."""
_LONGEST_PAUSE: Final = 2.0


class WatchWaiter:
    """A waiter for a name. `error`: why it cannot wait."""

    def __init__(self, key: Key, seen: str, wakeup: Wakeup) -> None:
        self.key, self.seen, self.wakeup = key, seen, wakeup
        self.over = False
        self.error: StoreError | None = None

    def tell(self, error: StoreError | None = None) -> None:
        self.error, self.over = error, True
        self.wakeup.wake()


class NamespaceWatch:
    """The watch of one of our namespaces, and its waiters."""

    def __init__(self, namespace: str, client: KubernetesClient[BlockingWire]) -> None:
        self.namespace, self._client, self._known = namespace, client, client.known
        self.waiters: dict[int, WatchWaiter] = {}
        self.closed = False
        self._free = [self._run]
        """The thread's work, while no thread does it."""
        self._failures = 0
        self._wire: BlockingWire | None = None
        self._rest = ThreadWakeup()
        self._listed = False
        self._left = clock.now()

    def add(self, waiter: WatchWaiter) -> None:
        """List a waiter, and have the thread run."""
        # Listed first: a thread that is about to end looks once more, or tells it.
        self.waiters[id(waiter)] = waiter
        try:
            run = self._free.pop()
        except IndexError:
            if self._listed:
                self._judge(waiter)
            return
        try:
            start_thread(run, "incumbent-watch")
        except BaseException:
            self._free.append(run)
            raise

    def leave(self, waiter: WatchWaiter) -> None:
        self.waiters.pop(id(waiter), None)
        self._left = clock.now()

    def close(self) -> None:
        """End the thread; its waiters ask for themselves."""
        self.closed = True
        wire = self._wire
        if wire is not None:
            wire.hang_up()
        self._rest.wake()
        self._tell_all(None)

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._is_needed():
                try:
                    self._follow()
                except (StoreError, Broken, Garbled) as error:
                    self._tell_all(error)
                self._failures += 1
                pause = backoff_delay(self._failures, draw_jitter(), cap=_LONGEST_PAUSE)
                run_blocking(self._rest.wait(clock.now() + pause))
        finally:
            # Free before the waiters are told: one that comes again must find the work to start it.
            self._free.append(self._run)
            self._tell_all(None)  # whoever came meanwhile waits anew

    def _is_needed(self) -> bool:
        return not self.closed and (bool(self.waiters) or clock.now() < self._left + LINGER)

    def _tell_all(self, error: Exception | None) -> None:
        self._listed = False
        told = error if isinstance(error, StoreUnavailable) and error.permanent else None
        for waiter in list(self.waiters.values()):
            waiter.tell(told)

    def _follow(self) -> None:
        """List, and watch until that ends. Raises StoreError, Broken, Garbled."""
        wire = self._wire = run_blocking(self._client.dial(clock.now() + _WITHIN))
        try:
            revision = run_blocking(self._list(wire))
            self._listed, self._failures = True, 0
            for waiter in list(self.waiters.values()):
                self._judge(waiter)
            while revision and self._is_needed():
                revision = run_blocking(self._watch(wire, revision))
        finally:
            self._listed = False
            self._wire = None
            wire.close()

    async def _list(self, wire: BlockingWire) -> str:
        """Note all objects, and those that are gone; returns the revision of the list."""
        known, there, revision = self._known, set[Key](), ""
        # From before the question: another thread may see a later revision meanwhile.
        before = known.newest
        async for page in self._client.pages(wire, self.namespace, clock.now() + _WITHIN):
            revision = revision or str(page["metadata"]["resourceVersion"])
            for lease in page["items"]:
                there.add(key := _key_of(lease))
                known.see(key, lease)
        known.note(int(revision) if revision.isdecimal() else before, before)
        waited = {waiter.key for waiter in list(self.waiters.values())}
        for key in waited - there:
            sight = known.sights.get(key)
            # What only another elector has written has no label of ours, and is not listed.
            if sight and KEY in sight.annotations and sight.revision <= int(revision or 0):
                known.see(key, None)
        return revision

    async def _watch(self, wire: BlockingWire, revision: str) -> str:
        """Watch from this revision on; returns from where to go on, or "": list again."""
        query = (
            f"{self._client.leases}?watch=1&allowWatchBookmarks=true&timeoutSeconds={_LASTS}"
            f"&resourceVersion={revision}&{labelled(self.namespace)}"
        )
        request, _ = await self._client.encoded("watch", query, clock.now() + _WITHIN)
        reading, heard = Reading(), clock.now()
        begin(wire, request, heard + _WITHIN)
        while self._is_needed() and not reading.done:
            try:
                await feed(reading, wire, clock.now() + TICK)
                heard = clock.now()
            except Broken as error:
                if not error.late or clock.now() > heard + (_SILENT if reading.status else _WITHIN):
                    raise
            if reading.status != _OK:
                continue
            for event in reading.lines():
                revision = self._hear(event)
                if not revision:
                    return ""
            for waiter in list(self.waiters.values()):
                self._judge(waiter)
        if reading.status not in (0, _OK, _GONE):
            raise self._client.failed(self._client.answer_of("watch", reading))
        return "" if reading.last or reading.status == _GONE else revision

    def _hear(self, event: dict[str, Any]) -> str:
        """Note what an event says; returns its revision, or "" if what follows is lost."""
        kind, lease = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            return ""
        revision = str((lease.get("metadata") or {}).get("resourceVersion", ""))
        if kind != "BOOKMARK":
            key = _key_of(lease)
            gone = kind == "DELETED"
            known = self._known.sights.get(key)
            # The end of an object says nothing of one that was made since under the same name.
            if not gone:
                self._known.see(key, lease)
            elif known is not None and known.id[0] == LeaseSight(lease, 0.0).id[0]:
                self._known.see(key, None)
        return revision

    def _judge(self, waiter: WatchWaiter) -> None:
        sight = self._known.sights.get(waiter.key)
        if sight is None:
            return
        if may_have_changed(
            waiter.seen, self._known.seen_or_error(waiter.key, sight, self._known.marker)
        ):
            waiter.tell()


def _key_of(lease: dict[str, Any]) -> Key:
    meta = lease["metadata"]
    return unflat((meta.get("annotations") or {}).get(KEY) or f"default/{meta['name']}")


class Watches:
    """The watches of one store, and the waits by them."""

    def __init__(self, client: Callable[[], KubernetesClient[BlockingWire]]) -> None:
        self._client = client
        self.forget()

    def forget(self) -> None:
        """Drop all; in the child of a fork they are the parent's."""
        self._watches: dict[str, NamespaceWatch] = {}

    def close(self) -> None:
        watches, self._watches = self._watches, {}
        # A copy: a waiter that has just looked this up may still add to it.
        for watch in list(watches.values()):
            watch.close()

    async def wait(self, key: Key, seen: str, until: float, wakeup: Wakeup) -> None:
        """See Store.wait_change. Raises StoreUnavailable if we may not watch."""
        waiter = WatchWaiter(key, seen, wakeup)
        watch = self._watches.get(key.namespace)
        if watch is None:
            made = NamespaceWatch(key.namespace, self._client())
            watch = self._watches.setdefault(key.namespace, made)
        try:
            watch.add(waiter)
            while not waiter.over and clock.now() < until:
                await wakeup.wait(until)
        finally:
            watch.leave(waiter)
        if waiter.error is not None:
            raise waiter.error
