"""A blocking connection to a Redis server; making connections, and logging in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import hiredis

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.interrupts import raise_handlers
from incumbent.net.dial import connect, connect_unix
from incumbent.net.names import run_bounded
from incumbent.net.pool import Broken
from incumbent.net.wire import BlockingWire
from incumbent.protocol.port import run_blocking
from incumbent.stores.redis.exchange import UNUSABLE, AnyWire
from incumbent.stores.redis.options import RedisTarget
from incumbent.stores.redis.resp import as_eval, pack
from incumbent.stores.redis.server import LoginRefused, ProviderFailed, RedisSite, connect_error

if TYPE_CHECKING:
    from socket import socket
    from ssl import SSLContext


class RedisWire(BlockingWire, AnyWire):
    """A blocking AnyWire. `ask` and `read` are no coroutines, and `next` blocks."""

    def __init__(self, sock: socket) -> None:
        AnyWire.__init__(self)
        BlockingWire.__init__(self, sock)
        reader = hiredis.Reader()
        self._feed, self._gets = reader.feed, reader.gets

    def ask(self, request: bytes, until: float) -> Any:
        """Send one request; return its answer. Raises Broken."""
        self.send(request, until)
        # As `read`, without a first look at the parser, which is empty before an answer comes.
        self._feed(self.receive(until))
        answer = self._gets()
        if answer is False:
            answer = self.read(until)
        if type(answer) is hiredis.ReplyError and str(answer).startswith("NOSCRIPT"):
            return self.ask(as_eval(request), until)
        return answer

    async def ask_all(self, payload: bytes, answers: int, until: float) -> list[Any]:
        """Send requests together; return their answers. Raises Broken."""
        self.send(payload, until)
        return [self.read(until) for _ in range(answers)]

    async def next(self, until: float) -> Any:
        """The next answer or message. Raises Broken."""
        return self.read(until)

    def read(self, until: float) -> Any:
        """As `next`, but no coroutine."""
        # hiredis returns False while an answer is incomplete; no answer in RESP 2 is a bool.
        while (answer := self._gets()) is False:
            self._feed(self.receive(until))
        return answer

    def buffered(self) -> Any:
        """A message that has been read already, or False. Raises Broken."""
        try:
            return self._gets()
        except hiredis.ProtocolError as error:
            raise Broken(str(error), sent=True) from error

    def fill(self) -> None:
        """Read the available bytes, without waiting for a whole message. Raises Broken."""
        if data := self.glance():
            self._feed(data)


# -- making a connection --------------------------------------------------------------------------


class Fresh(Protocol):
    """A new connection, which has no other requests yet."""

    def send(self, request: bytes, until: float) -> None:
        """Send requests whose replies are read by `next`. Raises Broken."""

    async def next(self, until: float) -> Any:
        """The next reply. Raises Broken."""

    def close(self) -> None:
        """Close at once."""


F = TypeVar("F", bound=Fresh)
W = TypeVar("W", bound=RedisWire)


def dial(site: RedisSite, until: float) -> RedisWire:
    """A connection that is logged in.

    Raises StoreUnavailable, at `until` (an instant of clock.now) at the latest.
    """
    return dial_as(RedisWire, site, until)


def dial_as(make: Callable[[socket], W], site: RedisSite, until: float) -> W:
    """As `dial`, for another kind of connection."""

    async def connected(target: RedisTarget, tls: SSLContext | None) -> W:
        if target.path:
            return make(connect_unix(target.path, until))
        return make(connect(target.host, target.port, until, tls=tls))

    async def login(credentials: Any) -> Sequence[str]:
        late = "the credential provider gave no login in time"
        found: Sequence[str] = run_bounded(partial(_asked, credentials), until, late)
        return found

    if clock.now() >= until:
        raise StoreUnavailable(f"{site.where}: no time is left to connect")
    return run_blocking(open_wire(site, until, connected, login))


def _asked(credentials: Any) -> Sequence[str]:
    try:
        login: Sequence[str] = credentials.get_credentials()
    except Exception as error:
        raise ProviderFailed(error) from error
    return login


async def open_wire(
    site: RedisSite,
    until: float,
    connected: Callable[[RedisTarget, SSLContext | None], Awaitable[F]],
    login: Callable[[Any], Awaitable[Sequence[str]]],
) -> F:
    """A connection that is logged in; `login` asks a credential provider. Raises StoreUnavailable.

    Login, client name and database take one round trip.
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
                # Read one by one: a server that refuses a client may close after one reply.
                reply = await wire.next(until)
                if isinstance(reply, hiredis.ReplyError):
                    raise LoginRefused(str(reply))
        except BaseException:
            wire.close()
            raise
    except (OSError, LoginRefused, ProviderFailed, *UNUSABLE) as error:
        raise_handlers(error)
        raise connect_error(error, site) from error.__cause__ or error
    return wire
