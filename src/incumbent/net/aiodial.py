"""Making an asynchronous connection: TCP or a unix socket, with TLS or without.

Names are resolved on a daemon thread. The event loop's own resolver runs on its executor, which
asyncio.run joins at the end, so that a hanging resolver would hang the whole program's exit.

Nothing here has a deadline of its own: the caller sets one with `asyncio.timeout`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from incumbent import clock
from incumbent.net.dial import tune
from incumbent.net.names import literal_address, look_up
from incumbent.unpatched import start_bare_thread

if TYPE_CHECKING:
    import ssl

P = TypeVar("P", bound=asyncio.Protocol)


async def connect(
    make: Callable[[], P], host: str, port: int, *, tls: ssl.SSLContext | None = None
) -> P:
    """The protocol that `make` makes, on the first address of `host` that accepts a connection.

    With `tls` its certificate is checked against `host`. Raises OSError.
    """
    loop = asyncio.get_running_loop()
    failure = OSError("the name has no address")
    for address in await resolve(host, port):
        try:
            transport, protocol = await loop.create_connection(
                make, address, port, ssl=tls, server_hostname=None if tls is None else host
            )
        except OSError as error:
            failure = error
            continue
        tune(transport.get_extra_info("socket"))
        return protocol
    raise failure


async def connect_unix(make: Callable[[], P], path: str) -> P:
    """The same on a unix socket. Raises OSError."""
    _, protocol = await asyncio.get_running_loop().create_unix_connection(make, path)
    return protocol


async def resolve(host: str, port: int | str) -> list[str]:
    """The addresses of `host`. Raises OSError."""
    address = literal_address(host)
    if address is not None:
        return [address]
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def work() -> None:
        try:
            outcome: list[str] | BaseException = look_up(host, port)
        except BaseException as error:  # noqa: BLE001 - raised to the caller
            outcome = error
        try:
            loop.call_soon_threadsafe(_settle, found, outcome)
        except RuntimeError:
            pass  # the loop is closed, so nobody waits

    start_bare_thread(work)
    return await found


async def wait_ready(fd: int, until: float, *, writing: bool = False) -> bool:
    """Wait for a descriptor that another library opened; whether it was ready before `until`."""
    loop = asyncio.get_running_loop()
    add, remove = (
        (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    )
    ready: asyncio.Future[bool] = loop.create_future()

    def settle(outcome: bool) -> None:
        if not ready.done():
            ready.set_result(outcome)

    timer = loop.call_later(max(0.0, until - clock.now()), settle, False)
    add(fd, settle, True)
    try:
        return await ready
    finally:
        remove(fd)
        timer.cancel()


def _settle(found: asyncio.Future[list[str]], outcome: list[str] | BaseException) -> None:
    if found.done():
        return
    if isinstance(outcome, BaseException):
        found.set_exception(outcome)
    else:
        found.set_result(outcome)
