"""The engine of one database, and its operations."""

from __future__ import annotations

from typing import Any, Final

from incumbent import clock
from incumbent.errors import ConfigError, StoreError
from incumbent.interrupts import raise_if_from_signal
from incumbent.model import Capabilities
from incumbent.stores.deciding import Deciding
from incumbent.stores.findings import Finding
from incumbent.stores.mysql import statements
from incumbent.stores.mysql.doctor import diagnose
from incumbent.stores.mysql.errors import ServerError, answered
from incumbent.stores.mysql.exchange import MysqlExchange
from incumbent.stores.mysql.server import handshake
from incumbent.stores.mysql.site import MysqlSite
from incumbent.stores.mysql.wire import MysqlWire
from incumbent.stores.pooled_registers import PooledEngine, PooledOperations
from incumbent.stores.registers import Quick

_SWEPT: Final = 100
"""The most names that are forgotten at once."""


class Operations(PooledOperations[MysqlWire]):
    """The operations of one database."""

    error_class = ServerError

    def __init__(self, site: MysqlSite) -> None:
        if site.tls:
            try:
                # Tried now: a file that is missing is a mistake of who wrote the
                # URL, and no outage.
                site.tls.context()
            except OSError as error:
                raise_if_from_signal(error)
                text = f"ssl_ca, ssl_cert or ssl_key cannot be used: {error}"
                raise ConfigError(text, name="ssl_ca") from error
        quick = Quick(take=True, renew=True, give=True, join=True)
        dialect = Deciding(site.where, site.restart_wait, quick)
        super().__init__(site.where, site.hosts, dialect)
        self.site = site

    def let_go(self) -> None:
        super().let_go()
        self.looks.end_waits()

    def open(self, place: Any, until: float) -> MysqlWire:
        return MysqlWire(self.site, place, until)

    def examine(self, wire: MysqlWire, until: float) -> None:
        handshake(wire, self.where, until)

    def note(self, wire: MysqlWire, longest: int, until: float) -> None:
        wire.ask(statements.longest(wire.facts.id, longest), until, in_doubt=False)

    def sweep(self, wire: MysqlWire, until: float) -> None:
        now = wire.facts.on_its_clock(clock.now())
        found = wire.ask(statements.forgettable(now, _SWEPT), until, in_doubt=False)[0].rows
        if found:
            names = wire.quoted("%s", [name for (name,) in found])
            wire.ask(statements.forget(now, names), until, in_doubt=False)

    def exchange(self, wire: MysqlWire) -> MysqlExchange:
        return MysqlExchange(wire, self.site)

    def failure(self, error: ServerError, about: str) -> StoreError:
        return answered(error, self.where, about, served=self.served)


class MysqlEngine(PooledEngine[Operations]):
    """The engine of one database."""

    advice = "see docs/mysql.md"
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

    def __init__(self, site: MysqlSite) -> None:
        super().__init__(Operations(site), site.restart_wait)

    def fix(self, until: float) -> list[Finding]:
        """Create the tables; return findings like `diagnose`.

        It may be repeated, and changes nothing that exists. It needs a user who may CREATE.
        """

        def make(wire: MysqlWire) -> list[Finding]:
            wire.ask(";".join(statements.TABLES), until, in_doubt=False)
            return [("ok", "the tables incumbent_* are made", "")]

        return self.findings(make, until)

    def diagnosed(self, wire: MysqlWire, until: float) -> list[Finding]:
        return diagnose(wire, until)
