"""The engine of one database: it makes the blocking and the asynchronous side."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import TYPE_CHECKING

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.model import Capabilities
from incumbent.protocol.port import run
from incumbent.stores.findings import Finding, cannot_tell, wait_after_restart
from incumbent.stores.loops import ServerEngine
from incumbent.stores.postgresql.dialect import HELLO, Dialect
from incumbent.stores.postgresql.doctor import DIAGNOSE, findings
from incumbent.stores.postgresql.errors import Answered, answered_error, check_schema
from incumbent.stores.postgresql.libpq import Site
from incumbent.stores.postgresql.runner import PostgresStore
from incumbent.stores.postgresql.wire import Wire

if TYPE_CHECKING:
    from incumbent.stores.postgresql.aio import AsyncPostgresStore


def schema() -> str:
    """The SQL that makes the schema, or brings it up to this release."""
    return files("incumbent.stores.postgresql").joinpath("schema.sql").read_text("utf-8")


class PostgresEngine(ServerEngine[PostgresStore, "AsyncPostgresStore"]):
    """One database."""

    capabilities = Capabilities(
        waits="pubsub",
        ttl_unit=0.000_001,
        ttl_clock="wall",
        candidates=True,
        reservations=True,
        refuses_late=True,
        turns=True,
        shared=True,
    )

    def __init__(self, site: Site) -> None:
        self._site = site
        dialect = Dialect(site.where, site.restart_wait)

        def make() -> AsyncPostgresStore:
            # Imported only now: the blocking side has no use for asyncio.
            from incumbent.stores.postgresql.aio import AsyncPostgresStore

            return AsyncPostgresStore(site, dialect)

        super().__init__(site.where, PostgresStore(site, dialect), make)

    def fix(self, until: float) -> list[Finding]:
        """Make the schema, or bring it up to this release; findings as of `diagnose`.

        May be repeated, and changes nothing that is there. Needs a role that may create it.
        """

        async def apply(wire: Wire) -> list[Finding]:
            try:
                await wire.script(schema(), until)
            except Answered as error:
                advice = "run it as a role that may CREATE in this database, or who owns the schema"
                return [("error", f"{self.url}: {error} ({error.code})", advice)]
            return [("ok", "the schema incumbent is made and up to date", "")]

        return self._findings(apply, until)

    def diagnose(self, ttl: float, until: float) -> list[Finding]:
        async def examine(wire: Wire) -> list[Finding]:
            hello = json.loads(await wire.query(HELLO, until) or b"{}")
            check_schema(hello, self.url, proved=True)
            began = clock.now()
            reply = await wire.query(DIAGNOSE, until)
            return findings(
                reply,
                hello,
                ttl=ttl,
                named=self._site.restart_wait is not None,
                wait=wait_after_restart(self._site.restart_wait, ttl, hello["longest"] / 1e6),
                trip=clock.now() - began,
                wall=clock.wall,
                number=wire.version,
                backend=wire.backend,
                encrypted=wire.encrypted,
            )

        return self._findings(examine, until)

    def _findings(
        self, work: Callable[[Wire], Awaitable[list[Finding]]], until: float
    ) -> list[Finding]:
        """What `work` finds by a connection of its own."""

        async def find() -> list[Finding]:
            wire = await self._store.operations.dial(until)
            try:
                return await work(wire)
            except Answered as error:
                return [cannot_tell(str(answered_error(error, self.url)))]
            except Exception as error:  # noqa: BLE001 - whatever it is, a diagnosis reports it
                why = f"{self.url} gave no usable answer: {error}"
                return [cannot_tell(why, "try it again, or look at its log")]
            finally:
                wire.close()

        try:
            return run(find())
        except StoreError as error:
            return [cannot_tell(str(error), "check the address, the password and the network")]
