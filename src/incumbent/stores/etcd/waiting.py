"""Waiting: a watch from the revision that was seen on, over all that makes a change. No polling."""

from __future__ import annotations

from typing import Final

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Key
from incumbent.stores.etcd.answers import revision_of
from incumbent.stores.etcd.cluster import TXN, Cluster
from incumbent.stores.etcd.errors import Answered, Broken
from incumbent.stores.etcd.exchange import Reply, W
from incumbent.stores.etcd.http import Garbled
from incumbent.stores.etcd.records import entries_in, seen_in

__all__ = ["Waiting"]

_WATCH: Final = "/v3/watch"

_now = clock.now


class Waiting(Cluster[W]):
    """See the module."""

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change. Raises StoreError if nobody can listen."""
        try:
            await self._wait(key, seen, until)
        except StoreError:
            # Once the time is over the caller looks for itself, whatever went wrong meanwhile.
            if _now() < until:
                raise

    async def _wait(self, key: Key, seen: str, until: float) -> None:
        looked = self.memory.looked.get(key)
        start = looked[1] + 1 if looked is not None and looked[0] == seen else 0
        failures = 0
        while _now() < until:
            if not start:
                start = await self._unchanged_since(key, seen, until)
                if not start:
                    return
            try:
                if await self._watch(key, start, until):
                    return
                # What it would have to tell was compacted away: look, and watch from there.
                start = 0
            except (Broken, Garbled, StoreUnavailable) as error:
                failures += 1
                if _now() < until and failures > self.site.endpoints.tries:
                    raise StoreUnavailable(f"{self.site.where}: no watch: {error}") from error

    async def _unchanged_since(self, key: Key, seen: str, until: float) -> int:
        """From which revision to watch; 0 if it is not as it was seen."""
        reply = await self.call(TXN, self.dialect.newest(key), until)
        leases, *others = map(entries_in, reply["responses"])
        newest = seen_in(leases or [entry for entries in others for entry in entries])
        return revision_of(reply) + 1 if newest == seen else 0

    async def _watch(self, key: Key, start: int, until: float) -> bool:
        """True: something changed, or the time is over. False: compacted."""
        endpoint, wire, reading = await self.stream(_WATCH, self.dialect.watch(key, start), until)
        try:
            while True:
                for message in await self.more(wire, reading, until):
                    verdict = self._heard(message)
                    if verdict is not None:
                        return verdict
                if reading.done:
                    raise Broken("the server ended the watch", sent=True)
        except Broken as error:
            if error.late or wire not in self.streams:
                # The time is over, or the store was closed.
                return True
            self.site.endpoints.failed(endpoint, _now())
            raise
        except Answered as error:
            self.site.endpoints.failed(endpoint, _now())
            self._wants_login(error)
            raise self._failed(error, doubt=False) from error
        finally:
            self.end(wire)

    def _heard(self, message: Reply) -> bool | None:
        if "error" in message:
            error = message["error"]
            raise Answered(str(error.get("message", error) if isinstance(error, dict) else error))
        result = message.get("result", {})
        if int(result.get("compact_revision", 0)):
            return False
        if result.get("canceled"):
            raise Answered(str(result.get("cancel_reason", "the watch was cancelled")))
        return True if result.get("events") else None
