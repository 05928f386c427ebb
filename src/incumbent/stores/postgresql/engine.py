"""The engine of one database, and its blocking and asynchronous stores."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from importlib.resources import files
from math import inf

from incumbent.errors import StoreError
from incumbent.model import Capabilities
from incumbent.net.pool import Broken, Mismatch
from incumbent.stores.findings import Finding, cannot_tell
from incumbent.stores.loops import LoopEnd, ServerEngine, detach_in_child
from incumbent.stores.plan import BlockingTogether, run_blocking
from incumbent.stores.postgresql.dialect import PostgresDialect
from incumbent.stores.postgresql.doctor import diagnose
from incumbent.stores.postgresql.errors import PostgresErrorReply, answered_error
from incumbent.stores.postgresql.runner import Runner
from incumbent.stores.postgresql.site import PostgresSite
from incumbent.stores.postgresql.wire import PostgresSide, PostgresWire, SuspendingSide


class PostgresStore(BlockingTogether[Runner]):
    """The blocking store."""

    def __init__(self, site: PostgresSite, dialect: PostgresDialect) -> None:
        super().__init__(Runner(site, dialect, PostgresSide()))
        detach_in_child(self.operations)


class AsyncPostgresStore(Runner):
    """The asynchronous store; it belongs to the event loop in which it was made."""

    def __init__(self, site: PostgresSite, dialect: PostgresDialect) -> None:
        super().__init__(site, dialect, SuspendingSide())
        self._end = LoopEnd(self.let_go)

    async def dial(self, until: float, lasts: float = -inf) -> PostgresWire:
        await self._end.watch()
        return await super().dial(until, lasts)

    async def aclose(self) -> None:
        self.let_go()
        await self._end.aclose()


def schema() -> str:
    """The SQL that creates the schema."""
    return files("incumbent.stores.postgresql").joinpath("schema.sql").read_text("utf-8")


class PostgresEngine(ServerEngine[PostgresStore, AsyncPostgresStore]):
    """The engine of one database."""

    capabilities = Capabilities(
        waits="pubsub",
        ttl_unit=0.000_001,
        ttl_clock="wall",
        queue=True,
        candidates=True,
        reservations=True,
        refuses_late=True,
        shared=True,
    )

    def __init__(self, site: PostgresSite) -> None:
        self._site = site
        dialect = PostgresDialect(site.where, site.restart_wait)
        store = PostgresStore(site, dialect)
        super().__init__(site.where, store, partial(AsyncPostgresStore, site, dialect))

    def fix(self, until: float) -> list[Finding]:
        """Create the schema; return findings like `diagnose`.

        It may be repeated, and changes no data. It needs a role that may create the schema.
        """

        async def apply(wire: PostgresWire) -> list[Finding]:
            try:
                await wire.script(schema(), until)
            except PostgresErrorReply as error:
                advice = "run it as a role that may CREATE in this database, or who owns the schema"
                return [("error", f"{self.url}: {error} ({error.code})", advice)]
            return [("ok", "the schema incumbent is made", "")]

        return self._findings(apply, until)

    def diagnose(self, ttl: float, until: float) -> list[Finding]:
        return self._findings(partial(diagnose, self._site, ttl, until), until)

    def _findings(
        self, work: Callable[[PostgresWire], Awaitable[list[Finding]]], until: float
    ) -> list[Finding]:
        """The findings of `work`, over a connection of its own."""

        async def find() -> list[Finding]:
            wire = await self._store.operations.dial(until)
            try:
                return await work(wire)
            except PostgresErrorReply as error:
                return [cannot_tell(str(answered_error(error, self.url)))]
            except (Broken, Mismatch) as error:
                why = f"{self.url} gave no usable answer: {error}"
                return [cannot_tell(why, "try it again, or look at its log")]
            finally:
                wire.close()

        try:
            return run_blocking(find())
        except StoreError as error:
            return [cannot_tell(str(error), "check the address, the password and the network")]
