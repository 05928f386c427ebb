"""What a process has of one engine: its keeper, a port for blocking callers, one for each loop."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from incumbent._drive.keeper import Keeper
from incumbent.stores.base import Engine

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable

    from incumbent._drive.aio import AsyncPort

    _Latest = tuple[Callable[[], AbstractEventLoop], weakref.ref[AbstractEventLoop], AsyncPort]

__all__ = ["Link"]


class Link:
    """The drivers of one engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.store = engine.store()
        self.keeper = Keeper(self.store)
        self.port = self.keeper.port
        self._loops: weakref.WeakKeyDictionary[AbstractEventLoop, AsyncPort] = (
            weakref.WeakKeyDictionary()
        )
        self._latest: _Latest | None = None
        self.closed = False
        """Whether leases are renewed no longer: none may be taken."""

    def async_port(self) -> AsyncPort:
        """The port of the running loop."""
        latest = self._latest
        if latest is not None:
            running, loop, port = latest
            if loop() is running():
                return port
        return self._find_port()

    def _find_port(self) -> AsyncPort:
        # Imported only now: blocking code has no use for asyncio.
        from asyncio import get_running_loop

        from incumbent._drive.aio import AsyncPort

        loop = get_running_loop()
        port = self._loops.get(loop)
        if port is None:
            port = self._loops[loop] = AsyncPort(self.engine.async_store(), self.keeper)
        self._latest = (get_running_loop, weakref.ref(loop), port)
        return port

    def close(self) -> None:
        """End the keeper and let go of the blocking connections; leases are not given back."""
        self.closed = True
        self.keeper.close()
        self.store.close()

    async def aclose(self) -> None:
        """`close`, and the running loop's connections too."""
        await self.engine.async_store().aclose()
        self.close()
