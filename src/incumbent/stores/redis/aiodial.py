"""Making an asynchronous connection. Not in `dial`: blocking callers import no asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.net.aiodial import connect, connect_unix
from incumbent.stores.redis.aiowire import AsyncWire
from incumbent.stores.redis.dial import log_in
from incumbent.stores.redis.driver import Site, Target, connect_error

__all__ = ["dial"]

_LONGEST = 3600.0


async def dial(site: Site, until: float) -> AsyncWire:
    """A connection that is logged in.

    Raises StoreUnavailable, at `until` (an instant of clock.now) at the latest.
    """
    target = site.target
    try:
        async with asyncio.timeout(min(_LONGEST, until - clock.now())):
            wire = await _connected(target)
            try:
                await log_in(wire, target, await _login(target), until)
            except BaseException:
                wire.close()
                raise
    except TimeoutError as error:
        raise StoreUnavailable(f"{site.where} cannot be reached: no connection in time") from error
    except Exception as error:  # a provider of credentials may raise anything
        raise connect_error(error, site) from error
    return wire


async def _connected(target: Target) -> AsyncWire:
    if target.path:
        return await connect_unix(AsyncWire, target.path)
    tls = target.tls.context() if target.tls else None
    return await connect(AsyncWire, target.host, target.port, tls=tls)


async def _login(target: Target) -> Sequence[str]:
    if target.credentials is None:
        return target.login
    login: Sequence[str] = await target.credentials.get_credentials_async()
    return login
