"""Making a connection that is logged in: a blocking one, and what asyncio has in common."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import hiredis

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.net.dial import connect, connect_unix
from incumbent.net.names import run_bounded
from incumbent.protocol.port import run
from incumbent.stores.redis.options import Target
from incumbent.stores.redis.resp import pack
from incumbent.stores.redis.server import LoginRefused, Site, connect_error
from incumbent.stores.redis.wire import Wire

if TYPE_CHECKING:
    from socket import socket
    from ssl import SSLContext


class Fresh(Protocol):
    """A connection on which nobody else has a request yet."""

    def send(self, request: bytes, until: float) -> None:
        """Requests whose replies are read by `next`. Raises Broken."""

    async def next(self, until: float) -> Any:
        """The next reply. Raises Broken."""

    def close(self) -> None:
        """Let go at once."""


F = TypeVar("F", bound=Fresh)
W = TypeVar("W", bound=Wire)


def dial(site: Site, until: float) -> Wire:
    """A connection that is logged in.

    Raises StoreUnavailable, at `until` (an instant of clock.now) at the latest.
    """
    return dial_as(Wire, site, until)


def dial_as(make: Callable[[socket], W], site: Site, until: float) -> W:
    """The same, as a Wire of another kind."""

    async def connected(target: Target, tls: SSLContext | None) -> W:
        if target.path:
            return make(connect_unix(target.path, until))
        return make(connect(target.host, target.port, until, tls=tls))

    async def login(credentials: Any) -> Sequence[str]:
        late = "the credential provider gave no login in time"
        found: Sequence[str] = run_bounded(credentials.get_credentials, until, late)
        return found

    if clock.now() >= until:
        raise StoreUnavailable(f"{site.where}: no time is left to connect")
    return run(open_wire(site, until, connected, login))


async def open_wire(
    site: Site,
    until: float,
    connected: Callable[[Target, SSLContext | None], Awaitable[F]],
    login: Callable[[Any], Awaitable[Sequence[str]]],
) -> F:
    """A connection that is logged in; `login` asks a credential provider. Raises StoreUnavailable.

    Who connects, and to which database, is said in one round trip.
    """
    target = site.target
    try:
        wire = await connected(target, target.tls.context() if target.tls else None)
        try:
            own = target.credentials
            words = target.login if own is None else await login(own)
            requests = [pack("AUTH", *words)] if words else []
            requests.append(pack("CLIENT", "SETNAME", "incumbent"))
            if target.db:
                requests.append(pack("SELECT", target.db))
            wire.send(b"".join(requests), until)
            for _ in requests:
                # One by one: a server that refuses a client may close after one reply.
                reply = await wire.next(until)
                if isinstance(reply, hiredis.ReplyError):
                    raise LoginRefused(str(reply))
        except BaseException:
            wire.close()
            raise
    except Exception as error:  # a provider of credentials may raise anything
        raise connect_error(error, site) from error
    return wire
