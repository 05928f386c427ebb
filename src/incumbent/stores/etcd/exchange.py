"""What both sides do with connections, written once, as coroutines.

The asynchronous side awaits them. The blocking side runs each in one step (`protocol.port.run`),
with connections that block instead of suspending.

Connections are taken off a list and put back: `list.pop` and `list.append` are atomic, so there is
no lock that a signal handler or `__del__` could meet; re-entry takes or opens another connection.
Whatever interrupts an exchange (any BaseException) closes its connection.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar
from weakref import WeakSet

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.stores.etcd.endpoints import Endpoints, share
from incumbent.stores.etcd.errors import (
    Answered,
    Broken,
    LeaseExists,
    LeaseMissing,
    Reborn,
    certificate_error,
    exchange_error,
    gateway_error,
    said,
)
from incumbent.stores.etcd.http import Garbled, Reading, encode, parse
from incumbent.stores.etcd.options import Endpoint, EtcdOptions

__all__ = ["REPEATED", "Exchange", "Reply", "Site"]

Reply = dict[str, Any]
REPEATED: Final = " repeated"
"""Of a reply: whether an earlier try of its request was perhaps carried out."""

_IDLE_MAX: Final = 64
_LOGINS: Final = 2
"""Log-ins for one request: a token may end right after it was given."""
_OFF: Final = "-"
"""The server says that authentication is off, so there is nothing to log in to."""
_GATEWAY_STATUS: Final = (200, 400, 401, 403, 404, 409, 412, 429, 499, 500, 501, 503, 504)

_now = clock.now


class AnyWire(Protocol):
    """One connection, of either side. `used`: when the present (or last) exchange began."""

    used: float

    @property
    def closed(self) -> bool:
        """Whether it is known, without a look, that it can no longer be used."""

    def is_stale(self) -> bool:
        """Whether the server closed it, as far as is known of one that was just used."""

    def send(self, request: bytes, until: float) -> None:
        """All of a request. Raises Broken."""

    async def receive(self, until: float) -> bytes:
        """Some bytes; none at the end of the connection. Raises Broken."""

    def close(self) -> None:
        """Let go at once; nothing is written."""


W = TypeVar("W", bound=AnyWire)


@dataclass(slots=True)
class Site:
    """One configured cluster, shared by all sides. `proved`: it has served this process before."""

    options: EtcdOptions
    where: str
    endpoints: Endpoints
    tls: Any = None
    token: str = ""
    proved: bool = False
    restart_wait: float | None = field(default=None)


class _Trail:
    """What has become of one request so far. `rest`: members that may still be asked."""

    __slots__ = ("doubt", "failure", "logins", "repeatable", "rest")

    def __init__(self, rest: int, *, repeatable: bool) -> None:
        self.rest = rest
        self.repeatable = repeatable
        self.doubt = False
        self.logins = 0
        self.failure: Exception | None = None


class Exchange(ABC, Generic[W]):
    """Requests to whichever member answers, by the connections that are kept to each."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.idle: dict[Endpoint, list[W]] = {}
        self.all: WeakSet[W] = WeakSet()
        self.streams: set[W] = set()

    @abstractmethod
    async def dial(self, endpoint: Endpoint, until: float) -> W:
        """A connection. Raises StoreUnavailable, at `until` at the latest."""

    def let_go(self) -> None:
        """Close what is not in use, and end what waits; the rest is closed when it comes back."""
        idle, self.idle = self.idle, {}
        for wires in idle.values():
            _close_all(wires)
        streams, self.streams = self.streams, set()
        for wire in streams:
            wire.close()

    # -- requests -----------------------------------------------------------------------------

    async def call(self, path: str, body: bytes, until: float, *, repeatable: bool = True) -> Reply:
        """The answer of one member. `repeatable`: another may be asked after a doubt.

        Raises StoreUnavailable, OutcomeUnknown, or LeaseMissing.
        """
        endpoints = self.site.endpoints
        several = len(endpoints.all) > 1
        trail = _Trail(endpoints.tries, repeatable=repeatable)
        while trail.rest > 0 and (now := _now()) < until:
            trail.rest -= 1
            endpoint = endpoints.best(now)
            limit = share(now, until, trail.rest) if several else until
            try:
                reply = await self._try(endpoint, path, body, (limit, until), repeatable)
                if "header" not in reply and "header" not in reply.get("result", {}):
                    raise Garbled("it does not answer as etcd does")
            except (Answered, Broken, Garbled, StoreUnavailable) as error:
                self._went_wrong(trail, endpoint, error)
            else:
                endpoints.answered(endpoint)
                self.site.proved = True
                reply[REPEATED] = trail.doubt
                return reply
        try:
            failure = trail.failure or Broken("no time is left", sent=False)
            raise self._failed(failure, doubt=trail.doubt) from failure
        finally:
            # An error that its own frame holds would keep the connections until a collection.
            del trail, failure

    def _went_wrong(self, trail: _Trail, endpoint: Endpoint, error: Exception) -> None:
        """Whether, and whom, to ask again."""
        if isinstance(error, Answered):
            if error.lease_missing and not trail.doubt:
                raise LeaseMissing(error.text) from error
            if error.lease_exists:
                raise LeaseExists(error.text) from error
            trail.failure = error
            trail.doubt = trail.doubt or not error.sure
            if trail.logins < _LOGINS and self._wants_login(error):
                trail.logins += 1
                trail.rest += 1
                return
            if not error.elsewhere:
                trail.rest = 0
                return
        trail.failure = error
        if isinstance(error, Reborn):
            # It says nothing of an earlier try, and another one would ask the next incarnation.
            trail.rest = 0
            return
        if isinstance(error, StoreUnavailable):
            trail.rest = 0 if error.permanent else trail.rest
        elif not isinstance(error, Answered):
            trail.doubt = trail.doubt or not isinstance(error, Broken) or error.sent
        if trail.doubt and not trail.repeatable:
            trail.rest = 0
        self.site.endpoints.failed(endpoint, _now())

    def _wants_login(self, error: Answered) -> bool:
        """Whether the log-in is what has to be repeated: nothing was carried out."""
        if error.stale_token or (error.no_user and self.site.options.username is not None):
            self.site.token = ""
            return True
        return False

    def _failed(self, failure: Exception, *, doubt: bool) -> StoreError:
        site = self.site
        return exchange_error(
            failure,
            site.where,
            doubt=doubt,
            proved=site.proved,
            with_certificate=site.options.cert is not None,
        )

    async def _try(
        self,
        endpoint: Endpoint,
        path: str,
        body: bytes,
        limits: tuple[float, float],
        repeatable: bool,
    ) -> Reply:
        limit, until = limits
        wire = await self._ready(endpoint, limit)
        # What must not be repeated has all the time there is; the rest leaves some to others.
        reading = await self.exchange(
            endpoint,
            wire,
            self._request("POST", path, endpoint, body),
            limit if repeatable else until,
        )
        return self._read(reading)

    def _request(self, method: str, path: str, endpoint: Endpoint, body: bytes) -> bytes:
        token = self.site.token
        return encode(method, path, endpoint, "" if token == _OFF else token, body)

    def _read(self, reading: Reading) -> Reply:
        body = reading.body
        if b"CommonName" in body and not body.startswith(b"{"):
            raise certificate_error(self.site.where, proved=self.site.proved)
        if reading.status not in _GATEWAY_STATUS or (
            reading.status != 200 and not body.startswith(b"{")
        ):
            raise gateway_error(reading.status, self.site.where, proved=self.site.proved)
        reply = parse(body)
        if reading.status != 200 or "error" in reply:
            raise Answered(said(reply) or f"HTTP {reading.status}")
        return reply

    async def get(self, endpoint: Endpoint, path: str, until: float) -> Reading:
        """What is at `path` of one member. Raises StoreUnavailable, Broken, Garbled."""
        wire = await self._ready(endpoint, until)
        return await self.exchange(endpoint, wire, self._request("GET", path, endpoint, b""), until)

    async def post(self, endpoint: Endpoint, path: str, body: Reply, until: float) -> Reply:
        """The answer of one member, whoever else there is. Raises as `get`, and Answered."""
        wire = await self._ready(endpoint, until)
        request = self._request("POST", path, endpoint, json.dumps(body).encode())
        return self._read(await self.exchange(endpoint, wire, request, until))

    # -- connections --------------------------------------------------------------------------

    def _trusted(self, endpoint: Endpoint) -> W | None:
        """A connection at hand that the server has not closed."""
        wires = self.idle.get(endpoint)
        while wires:
            try:
                wire = wires.pop()
            except IndexError:
                break
            if not wire.is_stale():
                return wire
            wire.close()
        return None

    async def _ready(self, endpoint: Endpoint, until: float) -> W:
        """A connection, once there is a token if one is needed. Raises StoreUnavailable."""
        await self._log_in(endpoint, until)
        return self._trusted(endpoint) or await self._join(endpoint, until)

    async def _join(self, endpoint: Endpoint, until: float) -> W:
        """A new connection for requests. Raises StoreUnavailable, Broken."""
        return await self._connect(endpoint, until)

    async def _connect(self, endpoint: Endpoint, until: float) -> W:
        wire = await self.dial(endpoint, until)
        self.all.add(wire)
        return wire

    async def _log_in(self, endpoint: Endpoint, until: float, on: W | None = None) -> None:
        """A token if one is needed, which every member takes. `on`: by this connection.

        Nothing else was sent yet. Raises StoreUnavailable.
        """
        options = self.site.options
        if self.site.token or not options.username:
            return
        body = json.dumps({"name": options.username, "password": options.password or ""}).encode()
        request = encode("POST", "/v3/auth/authenticate", endpoint, "", body)
        try:
            if on is not None:
                reading = await self.ask(endpoint, on, request, until)
            else:
                wire = self._trusted(endpoint) or await self._join(endpoint, until)
                reading = await self.exchange(endpoint, wire, request, until)
            self.site.token = str(self._read(reading).get("token", "")) or _OFF
        except Answered as error:
            if "not enabled" in error.text:
                self.site.token = _OFF
                return
            raise self._not_sent(error) from error
        except (Broken, Garbled) as error:
            raise StoreUnavailable(f"{self.site.where} cannot be reached: {error}") from error

    def _not_sent(self, error: Answered) -> StoreUnavailable:
        found = self._failed(error, doubt=False)
        if isinstance(found, StoreUnavailable):
            return found
        return StoreUnavailable(f"{self.site.where} does not log us in: {error.text}")

    async def exchange(self, endpoint: Endpoint, wire: W, request: bytes, until: float) -> Reading:
        """One request, one answer. Raises Broken, Garbled."""
        idle = self.idle
        reading = await self.ask(endpoint, wire, request, until)
        wires = idle.setdefault(endpoint, [])
        # Another dict by now: the store was closed, or this is a fork's child.
        if idle is self.idle and len(wires) < _IDLE_MAX and not (reading.last or wire.closed):
            wires.append(wire)
        else:
            wire.close()
        return reading

    async def ask(self, endpoint: Endpoint, wire: W, request: bytes, until: float) -> Reading:
        """The same, and the connection stays the caller's."""
        wire.used = _now()
        reading = Reading()
        try:
            wire.send(request, until)
            while not reading.done:
                _feed(reading, await wire.receive(until))
        except BaseException as error:
            wire.close()
            if isinstance(error, Broken) and not error.late:
                # What killed one (a restart, a cut network) killed its neighbours.
                _close_all(self.idle.get(endpoint, []))
            raise
        return reading

    # -- streams ------------------------------------------------------------------------------

    async def stream(self, path: str, body: bytes, until: float) -> tuple[Endpoint, W, Reading]:
        """A request whose answers are read by `more`, on a connection of its own.

        Raises StoreUnavailable, Broken, Garbled.
        """
        endpoint = self.site.endpoints.best(_now())
        try:
            await self._log_in(endpoint, until)
            wire = await self._connect(endpoint, until)
        except StoreUnavailable:
            self.site.endpoints.failed(endpoint, _now())
            raise
        reading = Reading()
        try:
            wire.used = _now()
            wire.send(self._request("POST", path, endpoint, body), until)
        except BaseException:
            wire.close()
            raise
        self.streams.add(wire)
        return endpoint, wire, reading

    async def more(self, wire: W, reading: Reading, until: float) -> list[Reply]:
        """The next messages of a stream. Raises Broken, Garbled, Answered."""
        while True:
            _feed(reading, await wire.receive(until))
            if reading.status and reading.status != 200 and reading.done:
                self._read(reading)
            found = reading.lines()
            if found or reading.done:
                return found

    def end(self, wire: W) -> None:
        """Of a stream: the server learns it by the end of the connection."""
        self.streams.discard(wire)
        with suppress(OSError):
            wire.close()


def _feed(reading: Reading, data: bytes) -> None:
    try:
        reading.feed(data)
    except EOFError:
        raise Broken("the server closed the connection", sent=True) from None


def _close_all(wires: list[Any]) -> None:
    while wires:
        try:
            wire = wires.pop()
        except IndexError:
            break
        wire.close()
