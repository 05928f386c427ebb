"""Making an asynchronous connection without ever waiting longer than was allowed.

Names are resolved on a daemon thread: the event loop's own resolver runs on its executor, which
asyncio.run joins at the end, so that a hanging resolver would hang the whole program's exit.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.stores.redis.aiowire import AsyncWire
from incumbent.stores.redis.driver import (
    Site,
    Target,
    async_arguments,
    async_connection_class,
    connect_error,
)

__all__ = ["dial"]

_LONGEST = 3600.0


async def dial(site: Site, until: float) -> AsyncWire:
    """A connection that is logged in.

    Raises StoreUnavailable, at `until` (an instant of clock.now) at the latest.
    """
    left = min(_LONGEST, until - clock.now())
    try:
        async with asyncio.timeout(left):
            return await _connect(site.target, left)
    except TimeoutError as error:
        raise StoreUnavailable(f"{site.where} cannot be reached: no connection in time") from error
    except Exception as error:  # redis-py and ssl have many classes for it
        raise connect_error(error, site) from error


async def _connect(target: Target, timeout: float) -> AsyncWire:
    made_by = async_connection_class(target)
    if target.transport == "unix":
        return await _log_in(made_by(**async_arguments(target, made_by, timeout)))
    host = str(target.arguments.get("host", "localhost"))
    failure: Exception = OSError("the name has no address")
    for address in await _addresses(host, int(target.arguments.get("port", 6379))):
        pinned = _pinned(made_by, address, host)
        try:
            return await _log_in(pinned(**async_arguments(target, made_by, timeout)))
        except Exception as error:  # noqa: BLE001 - the next address may do
            failure = error
    raise failure


async def _log_in(connection: Any) -> AsyncWire:
    try:
        await connection.connect()
        return AsyncWire(connection._writer)
    except BaseException:
        if connection._writer is not None:
            connection._writer.transport.abort()
        raise
    finally:
        # Its connection is ours now; left to itself it would close it when it is collected.
        connection._reader = connection._writer = None


def _pinned(made_by: Any, address: str, host: str) -> Any:
    """The class for one address; the certificate is still checked against the name."""

    class Pinned(made_by):  # type: ignore[misc]  # the base is the user's own or redis-py's
        def _connection_arguments(self) -> dict[str, Any]:
            arguments = {**super()._connection_arguments(), "host": address}
            return arguments | ({"server_hostname": host} if "ssl" in arguments else {})

    return Pinned


async def _addresses(host: str, port: int) -> Sequence[str]:
    try:
        return [str(ip_address(host))]
    except ValueError:
        pass
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def resolve() -> None:
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            answer: Any = list(dict.fromkeys(str(entry[4][0]) for entry in entries))
        except OSError as error:
            answer = error
        try:
            loop.call_soon_threadsafe(_tell, found, answer)
        except RuntimeError:
            pass  # the loop is gone, and with it whoever asked

    threading.Thread(target=resolve, name="incumbent-resolve", daemon=True).start()
    return await found


def _tell(found: asyncio.Future[list[str]], answer: Any) -> None:
    if found.done():
        return
    if isinstance(answer, OSError):
        found.set_exception(answer)
    else:
        found.set_result(answer)
