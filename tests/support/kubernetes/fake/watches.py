"""A watch: one JSON object a line, in chunks, from a revision on.

What programs trip over:

- A revision that was compacted away is status 200 and one event of type ERROR, with a Status 410.
- A revision that lies ahead (of an etcd from before a restore) is silence, not an error.
- An object that no longer fits the selector is DELETED, one that begins to fit is ADDED.
- A stream ends at any time without a word, and at its `timeoutSeconds`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from tests.support.kubernetes.fake.registry import Change, Compacted, Registry
from tests.support.kubernetes.fake.selectors import Selector
from tests.support.kubernetes.fake.statuses import Json, Kind, expired
from tests.support.kubernetes.fake.verbs import prefix_of

__all__ = ["Watch", "events"]

EVERYTHING = "/registry/"
INITIAL_END = "k8s.io/initial-events-end"


@dataclass(frozen=True)
class Watch:
    """`start`: only what came after this revision; 0 for all that is there, and then the rest."""

    kind: Kind
    namespace: str
    selector: Selector
    start: int
    bookmark_every: float | None = None
    """Seconds; None for a client that wants none."""
    says_when_initial_ends: bool = False

    def bookmark(self, revision: int, *, initial: bool = False) -> Json:
        metadata: Json = {"resourceVersion": str(revision), "creationTimestamp": None}
        metadata |= {"annotations": {INITIAL_END: "true"}} if initial else {}
        made = {"kind": self.kind.name, "apiVersion": self.kind.api_version, "metadata": metadata}
        return {"type": "BOOKMARK", "object": made | {"spec": {}}}


async def events(registry: Registry, watch: Watch) -> AsyncGenerator[Json]:
    """Ends with an ERROR where its revision is gone. Raises aiohttp.ClientError without etcd."""
    start = watch.start
    if not start:
        listed = await registry.all_below(prefix_of(watch.kind, watch.namespace))
        for it in listed.found:
            if watch.selector.fits(it.object):
                yield {"type": "ADDED", "object": it.object}
        start = listed.revision
        if watch.says_when_initial_ends:
            yield watch.bookmark(start, initial=True)
    try:
        async for event in _from(registry, watch, start):
            yield event
    except Compacted:
        said = f"too old resource version: {watch.start}"
        yield {"type": "ERROR", "object": expired(said).body}


async def _from(registry: Registry, watch: Watch, start: int) -> AsyncGenerator[Json]:
    """All that is written is read, so that a bookmark never passes what was not sent."""
    stream = registry.watch(EVERYTHING, start + 1)
    loop = asyncio.get_running_loop()
    reached, next_one = start, asyncio.ensure_future(anext(stream))
    due = loop.time() + (watch.bookmark_every or 0.0)
    try:
        while True:
            left = max(0.0, due - loop.time()) if watch.bookmark_every else None
            if not (await asyncio.wait({next_one}, timeout=left))[0]:
                yield watch.bookmark(reached)
                due = loop.time() + (watch.bookmark_every or 0.0)
                continue
            try:
                came = next_one.result()
            except StopAsyncIteration:
                return
            next_one = asyncio.ensure_future(anext(stream))
            if isinstance(came, int):
                # A header names the newest revision, which the stream may not have reached.
                continue
            for change in came:
                reached = change.revision
                if event := _event(watch, change):
                    yield event
    finally:
        next_one.cancel()
        await asyncio.gather(next_one, return_exceptions=True)
        await stream.aclose()


def _event(watch: Watch, change: Change) -> Json | None:
    """What this watch hears of a write, if anything."""
    if not change.key.startswith(prefix_of(watch.kind, watch.namespace)):
        return None
    now = change.now.object if change.now else None
    before = change.before.object if change.before else None
    fits = now is not None and watch.selector.fits(now)
    fitted = before is not None and watch.selector.fits(before)
    if fits:
        return {"type": "MODIFIED" if fitted else "ADDED", "object": now}
    if fitted and before is not None:
        before["metadata"]["resourceVersion"] = str(change.revision)
        return {"type": "DELETED", "object": before}
    return None
