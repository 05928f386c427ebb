"""The engine of a URL, with its blocking and its asyncio side."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.interrupts import raise_if_from_signal
from incumbent.model import Capabilities
from incumbent.net.dial import connect
from incumbent.net.readers import SharedWakeup, ThreadWakeup, Wakeup
from incumbent.net.wire import BlockingWire
from incumbent.stores.etcd.client import EtcdClient
from incumbent.stores.etcd.dialect import EtcdDialect
from incumbent.stores.etcd.doctor import diagnose
from incumbent.stores.etcd.incarnation import Cluster
from incumbent.stores.etcd.site import EtcdOptions, EtcdSite, parse_etcd_url
from incumbent.stores.loops import LoopEnd, ServerEngine, detach_in_child
from incumbent.stores.plan import BlockingStore, run_blocking
from incumbent.stores.url import Endpoint

if TYPE_CHECKING:
    from incumbent.net.aiowire import AsyncStream

_LONGEST: Final = 3600.0


def open_etcd(url: str) -> EtcdEngine:
    """The engine of a URL. Does not connect.

    Raises ConfigError for a malformed URL, an unknown option, or an unusable certificate.
    """
    return EtcdEngine(parse_etcd_url(url))


class BlockingClient(EtcdClient[BlockingWire]):
    """An EtcdClient whose coroutines never suspend. Closing it ends the waits of all threads."""

    def __init__(self, dialect: EtcdDialect) -> None:
        super().__init__(dialect)
        detach_in_child(self)

    def wakeup(self) -> Wakeup:
        return ThreadWakeup()

    async def dial(self, endpoint: Endpoint, until: float) -> BlockingWire:
        if clock.now() >= until:
            raise StoreUnavailable(f"{endpoint}: no time is left to connect")
        return BlockingWire(connect(endpoint.host, endpoint.port, until, tls=self.site.tls))

    def detach(self) -> None:
        self.cluster.sessions.forget()
        self.cluster.turns.forget()
        super().detach()


class AsyncEtcdStore(EtcdClient["AsyncStream"]):
    """An EtcdClient for asyncio. Belongs to the event loop in which it was made."""

    def __init__(self, dialect: EtcdDialect) -> None:
        super().__init__(dialect)
        self._end = LoopEnd(self.let_go)

    def wakeup(self) -> Wakeup:
        return SharedWakeup()

    async def dial(self, endpoint: Endpoint, until: float) -> AsyncStream:
        # Imported only now: the blocking side has no use for asyncio.
        import asyncio

        from incumbent.net.aiowire import AsyncStream, connect

        await self._end.watch()
        try:
            async with asyncio.timeout(min(_LONGEST, until - clock.now())):
                return await connect(AsyncStream, *endpoint, tls=self.site.tls, until=until)
        except TimeoutError as error:
            raise_if_from_signal(error)
            raise TimeoutError("no connection in time") from error

    async def _connect_checked_within_dial(self, endpoint: Endpoint, until: float) -> AsyncStream:
        return await self._outliving(endpoint, until, -inf)

    async def _connect_checked(self, endpoint: Endpoint, until: float) -> AsyncStream:
        return await self._outliving(endpoint, until, until)

    async def _outliving(self, endpoint: Endpoint, until: float, lasts: float) -> AsyncStream:
        """As EtcdClient, but continues for the next request if this one has no more time."""
        from incumbent.net.aiowire import outliving

        pool = self.pools[endpoint]
        make = partial(super()._connect_checked, endpoint)
        keep = partial(pool.put_back, idle=pool.idle)
        try:
            return await outliving(make, until, keep, lasts)
        except TimeoutError as error:
            raise_if_from_signal(error)
            raise self.site.cannot_connect(error, str(endpoint)) from error

    async def aclose(self) -> None:
        self.let_go()
        await self._end.aclose()


class EtcdEngine(ServerEngine[BlockingStore[BlockingClient], AsyncEtcdStore]):
    """The engine of one etcd cluster."""

    capabilities = Capabilities(
        waits="watch",
        ttl_min=1.0,
        ttl_unit=1.0,
        ttl_clock="consensus",
        survives_restart=True,
        survives_failover=True,
        # A renewal is a keep-alive of the session and a read of the notices.
        round_trips=2,
        candidates=True,
        reservations=True,
        refuses_late=True,
        turns=True,
        queue=True,
        shared=True,
    )

    def __init__(self, options: EtcdOptions) -> None:
        self._site = EtcdSite(options)
        dialect = EtcdDialect(Cluster(self._site))
        store = BlockingStore(BlockingClient(dialect))
        super().__init__(options.shown, store, lambda: AsyncEtcdStore(dialect))

    def diagnose(self, ttl: float, until: float) -> list[tuple[str, str, str]]:
        """See Engine.diagnose. Examines even a cluster that would be refused."""
        return run_blocking(diagnose(self._store.operations, ttl, until))
