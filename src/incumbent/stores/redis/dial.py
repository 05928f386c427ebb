"""Making a blocking connection, and logging in on one of either side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from socket import socket
from typing import Any, Protocol, TypeVar

import hiredis

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.net.dial import connect, connect_unix
from incumbent.net.names import run_bounded
from incumbent.protocol.port import run
from incumbent.stores.redis.driver import LoginRefused, Site, Target, connect_error
from incumbent.stores.redis.resp import pack
from incumbent.stores.redis.wire import Wire

__all__ = ["dial", "dial_as", "log_in"]

W = TypeVar("W", bound=Wire)


class Fresh(Protocol):
    """A connection on which nobody else has a request yet."""

    def send(self, request: bytes, until: float) -> None:
        """Requests whose replies are read by `next`. Raises Broken."""

    async def next(self, until: float) -> Any:
        """The next reply. Raises Broken."""


def dial(site: Site, until: float) -> Wire:
    """A connection that is logged in.

    Raises StoreUnavailable, at `until` (an instant of clock.now) at the latest.
    """
    return dial_as(Wire, site, until)


def dial_as(make: Callable[[socket], W], site: Site, until: float) -> W:
    """The same, as a Wire of another kind."""
    if clock.now() >= until:
        raise StoreUnavailable(f"{site.where}: no time is left to connect")
    target = site.target
    try:
        wire = make(_connected(target, until))
        try:
            run(log_in(wire, target, _login(target, until), until))
        except BaseException:
            wire.close()
            raise
    except Exception as error:  # a provider of credentials may raise anything
        raise connect_error(error, site) from error
    return wire


def _connected(target: Target, until: float) -> socket:
    if target.path:
        return connect_unix(target.path, until)
    tls = target.tls.context() if target.tls else None
    return connect(target.host, target.port, until, tls=tls)


def _login(target: Target, until: float) -> Sequence[str]:
    if target.credentials is None:
        return target.login
    late = "the credential provider gave no login in time"
    login: Sequence[str] = run_bounded(target.credentials.get_credentials, until, late)
    return login


async def log_in(wire: Fresh, target: Target, login: Sequence[str], until: float) -> None:
    """Say who connects, and to which database: one round trip.

    `login`: the arguments of AUTH. Raises LoginRefused, and Broken.
    """
    requests = [pack("AUTH", *login)] if login else []
    requests.append(pack("CLIENT", "SETNAME", "incumbent"))
    if target.db:
        requests.append(pack("SELECT", target.db))
    wire.send(b"".join(requests), until)
    for _ in requests:
        # One by one: a server that refuses a client may close the connection after one reply.
        reply = await wire.next(until)
        if isinstance(reply, hiredis.ReplyError):
            raise LoginRefused(str(reply))
