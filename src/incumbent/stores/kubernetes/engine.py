"""The engine of one namespace of a cluster, with its blocking and its asyncio side."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final

from incumbent import clock
from incumbent.interrupts import raise_if_from_signal
from incumbent.model import Capabilities, Key
from incumbent.net.dial import connect
from incumbent.net.limiter import DIAL_WITHIN
from incumbent.net.readers import SharedWakeup, ThreadWakeup
from incumbent.net.wire import BlockingWire
from incumbent.stores.findings import Finding
from incumbent.stores.kubernetes.client import KubernetesClient, KubernetesDeciding
from incumbent.stores.kubernetes.doctor import diagnose
from incumbent.stores.kubernetes.known import Known
from incumbent.stores.kubernetes.site import KubernetesSite
from incumbent.stores.kubernetes.watching import Watches
from incumbent.stores.loops import LoopEnd, ServerEngine, detach_in_child
from incumbent.stores.plan import BlockingTogether, run_blocking
from incumbent.unpatched import start_thread, unpatched

if TYPE_CHECKING:
    from incumbent.net.aiowire import AsyncStream

_LONGEST: Final = 3600.0


class BlockingKubernetes(KubernetesClient[BlockingWire]):
    """The operations; they block. Both sides wait by its watches."""

    def __init__(self, site: KubernetesSite, dialect: KubernetesDeciding, known: Known) -> None:
        super().__init__(
            site, dialect, known, ThreadWakeup, lambda it: ThreadWakeup().wait(clock.now() + it)
        )
        self.watches = Watches(lambda: self)
        detach_in_child(self)

    async def connect(self, until: float) -> BlockingWire:
        site = self.site
        tls = site.login.context(site.tls) if site.tls else None
        return BlockingWire(connect(site.endpoint.host, site.endpoint.port, until, tls=tls))

    async def off_loop(self, work: Callable[[], None]) -> None:
        work()

    async def at_once(self, lane: Callable[[], Coroutine[Any, Any, None]], lanes: int) -> None:
        errors, running = list[BaseException](), list[Any]()

        def run(over: Any) -> None:
            try:
                run_blocking(lane())
            except BaseException as error:  # noqa: BLE001 - it is raised to the caller
                errors.append(error)
            finally:
                over.release()

        for _ in range(lanes - 1):
            over = unpatched("_thread", "allocate_lock")()
            over.acquire()
            try:
                start_thread(partial(run, over), "incumbent-batch")
            except RuntimeError as error:
                raise_if_from_signal(error)
                break  # no more threads can be started: those that are there do it
            running.append(over)
        await lane()
        for over in running:
            over.acquire()
        if errors:
            raise errors[0]

    async def dialled(self, until: float, lasts: float = -inf) -> BlockingWire:
        return await self.opened(self.dial(max(lasts, min(until, clock.now() + DIAL_WITHIN))))

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        await self.watches.wait(key, seen, until, ThreadWakeup())

    def let_go(self) -> None:
        self.watches.close()
        super().let_go()

    def detach(self) -> None:
        self.watches.forget()
        super().detach()


class AsyncKubernetes(KubernetesClient["AsyncStream"]):
    """The AsyncStore; it belongs to the event loop in which it was made."""

    def __init__(self, blocking: BlockingKubernetes) -> None:
        import asyncio

        super().__init__(
            *(blocking.site, blocking.dialect, blocking.known, SharedWakeup, asyncio.sleep)
        )
        self._watches = blocking.watches
        self._end = LoopEnd(self.let_go)

    async def connect(self, until: float) -> AsyncStream:
        # Imported only now: the blocking side has no use for asyncio.
        import asyncio

        from incumbent.net.aiowire import AsyncStream, connect

        await self._end.watch()
        site = self.site
        tls = site.login.context(site.tls) if site.tls else None
        try:
            async with asyncio.timeout(min(_LONGEST, until - clock.now())):
                return await connect(AsyncStream, *site.endpoint, tls=tls, until=until)
        except TimeoutError as error:
            raise_if_from_signal(error)
            raise TimeoutError("no connection in time") from error

    async def off_loop(self, work: Callable[[], None]) -> None:
        import asyncio

        await asyncio.to_thread(work)

    async def at_once(self, lane: Callable[[], Coroutine[Any, Any, None]], lanes: int) -> None:
        import asyncio

        await asyncio.gather(*(lane() for _ in range(lanes)))

    async def dialled(self, until: float, lasts: float = -inf) -> AsyncStream:
        """A connection; what comes too late for its caller is kept for the next one."""
        from incumbent.net.aiowire import outliving

        keep = partial(self.put_back, idle=self.idle)
        try:
            return await outliving(lambda by: self.opened(self.dial(by)), until, keep, lasts)
        except TimeoutError as error:
            raise_if_from_signal(error)
            raise self.unreachable(error) from error

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        await self._watches.wait(key, seen, until, SharedWakeup())

    async def aclose(self) -> None:
        """See AsyncStore.aclose."""
        self.let_go()
        await self._end.aclose()


class KubernetesEngine(ServerEngine[BlockingTogether[BlockingKubernetes], AsyncKubernetes]):
    """The engine of one namespace."""

    capabilities = Capabilities(
        waits="watch",
        ttl_unit=0.000_001,
        ttl_clock="observed",
        survives_restart=True,
        survives_failover=True,
        candidates=True,
        reservations=True,
        refuses_late=True,
        queue=True,
        shared=True,
    )

    def __init__(self, site: KubernetesSite) -> None:
        known = Known(site.where)
        blocking = BlockingKubernetes(site, KubernetesDeciding(site, known), known)
        super().__init__(site.where, BlockingTogether(blocking), partial(AsyncKubernetes, blocking))

    def diagnose(self, ttl: float, until: float) -> list[Finding]:
        """See Engine.diagnose."""
        return diagnose(self._store.operations, ttl, until)
