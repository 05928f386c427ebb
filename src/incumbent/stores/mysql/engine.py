"""The engine of one database, and its connections."""

from __future__ import annotations

import random
from typing import Any, Final

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.interrupts import raise_handlers
from incumbent.model import Capabilities
from incumbent.net.names import is_unknown
from incumbent.net.pool import Broken
from incumbent.policy import TTL_DEFAULT
from incumbent.protocol.port import run
from incumbent.rules.record import micros
from incumbent.stores.deciding import Deciding
from incumbent.stores.findings import Finding
from incumbent.stores.mysql import statements
from incumbent.stores.mysql.doctor import diagnose
from incumbent.stores.mysql.errors import ServerError, answered
from incumbent.stores.mysql.exchange import Exchange
from incumbent.stores.mysql.server import LOOK_EVERY, look
from incumbent.stores.mysql.site import Site
from incumbent.stores.mysql.wire import Wire
from incumbent.stores.plan import Plan, drive
from incumbent.stores.pooled_registers import PooledEngine, PooledOperations
from incumbent.stores.probing import probe
from incumbent.stores.register_store import replies
from incumbent.stores.registers import Quick

_SWEEPS: Final = 0.01
"""The share of looks at the server after which names are forgotten, at most so many:"""
_SWEPT: Final = 100


class Operations(PooledOperations[Wire]):
    """The operations of one database."""

    answers = ServerError

    def __init__(self, site: Site) -> None:
        quick = Quick(take=True, renew=True, give=True, join=True)
        super().__init__(site.where, Deciding(site.where, site.restart_wait, quick))
        self.site = site

    def exchange(self, wire: Wire) -> Exchange:
        return Exchange(wire, self.site)

    def failure(self, error: ServerError, about: str) -> StoreError:
        return answered(error, self.where, about, proved=self.site.proved)

    def prepare(self, wire: Wire, plan: Plan[None, Any], until: float) -> None:
        """Look at the server again if that is long ago; let the marker know the longest ttl."""
        if clock.now() > wire.looked + LOOK_EVERY:
            look(wire, self.where, until)
            if plan.kind != "renew" and random.random() < _SWEEPS:
                self.sweep(wire, until)
        ttl = max(plan.ttl, *(it.ttl for it in plan.renewals), 0.0)
        if ttl > TTL_DEFAULT and micros(ttl) > wire.facts.longest:
            wire.ask(statements.longest(wire.facts.id, micros(ttl)), until, writes=False)
            wire.facts = wire.facts._replace(longest=micros(ttl))

    def sweep(self, wire: Wire, until: float) -> None:
        """Forget some names of which nothing matters any more."""
        now = wire.facts.on_its_clock(clock.now())
        found = wire.ask(statements.forgettable(now, _SWEPT), until, writes=False)[0].rows
        if found:
            names = wire.quoted("%s", [name for (name,) in found])
            wire.ask(statements.forget(now, names), until, writes=False)

    async def connect(self, until: float) -> Wire:
        """See PooledOperations. The first host that is fit; each has its share of the time left."""
        failures = list[StoreUnavailable]()
        for at, host in enumerate(self.site.hosts):
            share = clock.now() + (until - clock.now()) / (len(self.site.hosts) - at)
            try:
                wire = await self.opened(self.dial(share, at))
                self._check(wire, share)
            except StoreUnavailable as error:
                failures.append(error)
            else:
                self.site.prefer(host)
                self.site.proved = True
                return wire
        raise min(failures, key=lambda it: it.permanent)

    async def dial(self, until: float, at: int = 0) -> Wire:
        try:
            return Wire(self.site, self.site.hosts[at], until)
        except (OSError, Broken) as error:
            raise_handlers(error)
            final = is_unknown(error) or "certificate verify failed" in str(error)
            raise StoreUnavailable(
                f"{self.where} cannot be reached: {error}",
                permanent=final and not self.site.proved,
            ) from error
        except ServerError as error:
            raise self.failure(error, "") from error

    def _check(self, wire: Wire, until: float) -> None:
        """Raise StoreUnavailable, and close the connection, if the server is not fit."""
        try:
            look(wire, self.where, until)
            if not self.site.proved:
                run(drive(probe(self.where), replies(self.exchange(wire), until)))
        except BaseException as error:
            wire.close()
            if isinstance(error, ServerError):
                raise self.failure(error, "") from error
            if isinstance(error, Broken):
                raise StoreUnavailable(f"{self.where} cannot be reached: {error}") from error
            raise


class MysqlEngine(PooledEngine[Operations]):
    """The engine of one database."""

    capabilities = Capabilities(
        waits="poll",
        ttl_unit=0.000_001,
        ttl_clock="wall",
        queue=True,
        candidates=True,
        reservations=True,
        refuses_late=True,
        shared=True,
        survives_restart=True,
    )

    def __init__(self, site: Site) -> None:
        super().__init__(Operations(site))
        self._site = site

    def fix(self, until: float) -> list[Finding]:
        """Create the tables; return findings like `diagnose`.

        It may be repeated, and changes nothing that exists. It needs a user who may CREATE.
        """

        def make(wire: Wire) -> list[Finding]:
            wire.ask(";".join(statements.TABLES), until, writes=False)
            return [("ok", "the tables incumbent_* are made", "")]

        return self.findings(make, until)

    def diagnosed(self, wire: Wire, ttl: float, until: float) -> list[Finding]:
        return diagnose(self._site, ttl, until, wire)
