"""Making an asynchronous connection. Not in `dial`: blocking callers import no asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.net.aiodial import connect, connect_unix
from incumbent.stores.redis.aiowire import AsyncWire
from incumbent.stores.redis.dial import open_wire
from incumbent.stores.redis.options import Target
from incumbent.stores.redis.server import Site

if TYPE_CHECKING:
    from ssl import SSLContext

_LONGEST = 3600.0


async def dial(site: Site, until: float) -> AsyncWire:
    """A connection that is logged in.

    Raises StoreUnavailable, at `until` (an instant of clock.now) at the latest.
    """
    try:
        async with asyncio.timeout(min(_LONGEST, until - clock.now())):
            return await open_wire(site, until, _connected, _login)
    except TimeoutError as error:
        raise StoreUnavailable(f"{site.where} cannot be reached: no connection in time") from error


async def _connected(target: Target, tls: SSLContext | None) -> AsyncWire:
    if target.path:
        return await connect_unix(AsyncWire, target.path)
    return await connect(AsyncWire, target.host, target.port, tls=tls)


async def _login(credentials: Any) -> Sequence[str]:
    login: Sequence[str] = await credentials.get_credentials_async()
    return login
