"""From a URL to an engine, which makes its blocking and its asynchronous side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.model import Capabilities
from incumbent.net.dial import connect
from incumbent.net.readers import LockWakeup, Wakeup
from incumbent.net.wire import BlockingWire
from incumbent.protocol.port import run
from incumbent.stores.etcd.client import Client
from incumbent.stores.etcd.dialect import Dialect
from incumbent.stores.etcd.doctor import diagnose
from incumbent.stores.etcd.incarnation import Cluster
from incumbent.stores.etcd.site import Site
from incumbent.stores.etcd.url import EtcdOptions, parse_etcd_url
from incumbent.stores.loops import ServerEngine, detach_in_child
from incumbent.stores.plan import BlockingStore
from incumbent.stores.url import Endpoint

if TYPE_CHECKING:
    from incumbent.stores.etcd.aio import AsyncEtcdStore


def open_etcd(url: str) -> EtcdEngine:
    """The engine of a URL. Connects to nothing.

    Raises ConfigError for a malformed URL, an unknown option, or a certificate that is no such.
    """
    return EtcdEngine(parse_etcd_url(url))


class BlockingClient(Client[BlockingWire]):
    """See Client. Its coroutines never suspend; closing it ends the waits of all threads."""

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        detach_in_child(self)

    def wakeup(self) -> Wakeup:
        return LockWakeup()

    async def dial(self, endpoint: Endpoint, until: float) -> BlockingWire:
        if clock.now() >= until:
            raise StoreUnavailable(f"{endpoint}: no time is left to connect")
        try:
            return BlockingWire(connect(endpoint.host, endpoint.port, until, tls=self.site.tls))
        except OSError as error:
            raise self.site.cannot_connect(error, str(endpoint)) from error

    def detach(self) -> None:
        self.cluster.sessions.forget()
        self.cluster.turns.forget()
        super().detach()


class EtcdEngine(ServerEngine[BlockingStore[BlockingClient], "AsyncEtcdStore"]):
    """One cluster."""

    capabilities = Capabilities(
        waits="watch",
        ttl_min=1.0,
        ttl_unit=1.0,
        ttl_clock="consensus",
        survives_failover=True,
        candidates=True,
        reservations=True,
        refuses_late=True,
        turns=True,
    )

    def __init__(self, options: EtcdOptions) -> None:
        site = Site(options)
        self._site = site
        dialect = Dialect(Cluster(site))

        def make() -> AsyncEtcdStore:
            # Imported only now: the blocking side has no use for asyncio.
            from incumbent.stores.etcd.aio import AsyncEtcdStore

            return AsyncEtcdStore(dialect)

        super().__init__(options.shown, BlockingStore(BlockingClient(dialect)), make)

    def diagnose(self, ttl: float, until: float) -> list[tuple[str, str, str]]:
        """See Engine.diagnose. Looks also at a cluster that would be refused."""
        return run(diagnose(self._store.operations, ttl, until))
