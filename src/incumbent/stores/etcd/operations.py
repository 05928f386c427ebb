"""The operations of a store (see stores.base.AsyncStore), written once for both sides."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Key
from incumbent.stores.etcd.client import Client, W
from incumbent.stores.etcd.dialect import Dialect
from incumbent.stores.etcd.errors import Answered, Broken, error_text
from incumbent.stores.etcd.http import Garbled
from incumbent.stores.etcd.requests import Reply
from incumbent.stores.etcd.site import Site
from incumbent.stores.plan import Plan, Planned
from incumbent.stores.url import Endpoint

__all__ = ["Operations"]

T = TypeVar("T")

_now = clock.now


class Operations(Planned[None], Generic[W]):
    """See the module. Waiting is a watch from the revision that was seen on; nothing polls."""

    def __init__(
        self,
        dialect: Dialect,
        dial: Callable[[Site, Endpoint, float], Awaitable[W]],
    ) -> None:
        self.dialect: Dialect = dialect
        self.client = Client(dialect.cluster, dial)

    async def run(self, plan: Plan[None, T], until: float) -> T:
        return await self.client.carry_out(plan.start(None, until), until)

    def let_go(self) -> None:
        """Close idle connections and end watches; the others are closed after their exchange."""
        self.client.let_go()

    # -- waiting ------------------------------------------------------------------------------

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change. Raises StoreError if nobody can listen."""
        try:
            await self._wait(key, seen, until)
        except StoreError:
            # Once the time is over the caller looks for itself, whatever went wrong meanwhile.
            if _now() < until:
                raise

    async def _wait(self, key: Key, seen: str, until: float) -> None:
        site, looked = self.client.site, self.dialect.cluster.sessions.looked.get(key)
        start = looked[1] + 1 if looked is not None and looked[0] == seen else 0
        failures = 0
        while _now() < until:
            if not start:
                look = self.dialect.unchanged_since(key, seen)
                start = await self.client.carry_out(look, until)
                if not start:
                    return
            try:
                if await self._watch(key, start, until):
                    return
                # What it would have to tell was compacted away: look, and watch from there.
                start = 0
            except (Broken, Garbled, StoreUnavailable) as error:
                failures += 1
                if _now() < until and failures > site.endpoints.tries:
                    raise StoreUnavailable(f"{site.where}: no watch: {error}") from error

    async def _watch(self, key: Key, start: int, until: float) -> bool:
        """True: something changed, or the time is over. False: compacted."""
        client, site = self.client, self.client.site
        request = self.dialect.watch(key, start)
        endpoint, wire, reading = await client.stream(request, until)
        try:
            while True:
                for message in await client.more(wire, reading, until):
                    verdict = _verdict(message)
                    if verdict is not None:
                        return verdict
                if reading.done:
                    raise Broken("the server ended the watch", sent=True)
        except Broken as error:
            if error.late or wire not in client.streams:
                # The time is over, or the store was closed.
                return True
            site.endpoints.failed(endpoint, _now())
            raise
        except Answered as error:
            site.endpoints.failed(endpoint, _now())
            site.wants_login(error)
            raise site.failed(error, doubt=False) from error
        finally:
            client.end(wire)


def _verdict(message: Reply) -> bool | None:
    """Of a message of a watch: as `_watch`; None if it says nothing."""
    if "error" in message:
        raise Answered(error_text(message) or str(message["error"]))
    result = message.get("result", {})
    if int(result.get("compact_revision", 0)):
        return False
    if result.get("canceled"):
        raise Answered(str(result.get("cancel_reason", "the watch was cancelled")))
    return True if result.get("events") else None
