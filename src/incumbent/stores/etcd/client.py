"""Programs carried out by whichever member answers, on the connections that are kept to each.

The asynchronous side awaits the coroutines. The blocking side runs each in one step
(`protocol.port.run`), with connections that block instead of suspending.

See `net.pool` for what becomes of a connection after its use.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.net.pool import Connection, Pool, close_all
from incumbent.stores.etcd.errors import (
    Answered,
    Broken,
    LeaseExists,
    LeaseMissing,
    Reborn,
    certificate_error,
    error_text,
    gateway_error,
)
from incumbent.stores.etcd.http import Garbled, Reading, encode, parse
from incumbent.stores.etcd.incarnation import Cluster
from incumbent.stores.etcd.requests import METRICS, REPEATED, Reply, Request, Steps
from incumbent.stores.etcd.site import Site, share
from incumbent.stores.url import Endpoint

__all__ = ["AnyWire", "Client", "W", "drive"]

_LOGINS: Final = 2
"""Log-ins for one request: a token may end right after it was given."""
_OFF: Final = "-"
"""The server says that authentication is off, so there is nothing to log in to."""
_GATEWAY_STATUS: Final = (200, 400, 401, 403, 404, 409, 412, 429, 499, 500, 501, 503, 504)

T = TypeVar("T")

_now = clock.now


class AnyWire(Connection, Protocol):
    """One connection, of either side. `used`: when the present (or last) exchange began."""

    used: float

    def send(self, request: bytes, until: float) -> None:
        """All of a request. Raises Broken."""

    async def receive(self, until: float) -> bytes:
        """Some bytes; none at the end of the connection. Raises Broken."""


W = TypeVar("W", bound=AnyWire)


@dataclass(slots=True)
class _Trail:
    """What has become of one request so far. `rest`: members that may still be asked."""

    rest: int
    repeatable: bool
    doubt: bool = False
    logins: int = 0
    failure: Exception | None = None


class Client(Generic[W]):
    """See the module. `dial` makes a connection; it raises StoreUnavailable, at the limit at most.

    `pools` has the connections to each member, `streams` the watches among them.
    """

    def __init__(
        self, cluster: Cluster, dial: Callable[[Site, Endpoint, float], Awaitable[W]]
    ) -> None:
        self.site = cluster.site
        self.cluster = cluster
        self.pools: dict[Endpoint, Pool[W]] = {each: Pool() for each in self.site.endpoints.all}
        self.streams: set[W] = set()
        self._dial = dial

    def let_go(self) -> None:
        """Close idle connections and end watches; the others are closed after their exchange."""
        for pool in self.pools.values():
            pool.let_go()
        streams, self.streams = self.streams, set()
        for wire in streams:
            wire.close()

    def detach(self) -> None:
        """In a fork's child: give the descriptors back. Other threads' exchanges are not ours."""
        self.streams = set()
        for pool in self.pools.values():
            pool.detach()

    # -- programs -----------------------------------------------------------------------------

    async def carry_out(self, program: Steps[T], until: float) -> T:
        """The outcome of a program. Raises StoreError, at `until` at the latest."""
        return await drive(program, lambda request: self.answer(request, until))

    async def answer(self, request: Request, until: float) -> Any:
        """The reply to one request, of the incarnation that it is for.

        What an earlier state of the cluster has answered proves nothing.
        """
        if request.endpoint is not None:
            return await self._answer_of(request.endpoint, request, until)
        ended, floor = self.cluster.ended, self.cluster.floor
        reply = await self.call(request, until)
        self.cluster.check(request, reply, ended, floor)
        return reply

    async def _answer_of(self, endpoint: Endpoint, request: Request, until: float) -> Any:
        """The reply of this member and no other."""
        try:
            if request.path == METRICS:
                return await self.get(endpoint, METRICS, until)
            return await self.post(endpoint, request.path, request.body, until)
        except (Broken, Garbled) as error:
            raise self.site.unreachable(error) from error

    # -- requests -----------------------------------------------------------------------------

    async def call(self, request: Request, until: float) -> Reply:
        """The reply of any one member.

        Raises StoreUnavailable, OutcomeUnknown, LeaseMissing, or LeaseExists.
        """
        endpoints = self.site.endpoints
        several = len(endpoints.all) > 1
        trail = _Trail(endpoints.tries, request.repeatable)
        while trail.rest > 0 and (now := _now()) < until:
            trail.rest -= 1
            endpoint = endpoints.best(now)
            limit = share(now, until, trail.rest) if several else until
            try:
                reply = await self._try(endpoint, request, limit, until)
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
            raise self.site.failed(failure, doubt=trail.doubt) from failure
        finally:
            # An error that its own frame holds would keep the connections until a collection.
            del trail, failure

    def _went_wrong(self, trail: _Trail, endpoint: Endpoint, error: Exception) -> None:
        """Note the failure, and decide whether another member is asked."""
        if isinstance(error, Answered):
            if error.lease_missing and not trail.doubt:
                raise LeaseMissing(error.text) from error
            if error.lease_exists:
                raise LeaseExists(error.text) from error
            trail.failure = error
            trail.doubt = trail.doubt or not error.sure
            if trail.logins < _LOGINS and self.site.wants_login(error):
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

    async def _try(self, endpoint: Endpoint, request: Request, limit: float, until: float) -> Reply:
        wire = await self._ready(endpoint, limit)
        # A request that must not be repeated has all the time; others leave some to more members.
        sent = self._request("POST", request.path, endpoint, request.body)
        reading = await self.exchange(endpoint, wire, sent, limit if request.repeatable else until)
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
            raise Answered(error_text(reply) or f"HTTP {reading.status}")
        return reply

    async def get(self, endpoint: Endpoint, path: str, until: float) -> Reading:
        """GET `path` from one member. Raises StoreUnavailable, Broken, Garbled."""
        wire = await self._ready(endpoint, until)
        return await self.exchange(endpoint, wire, self._request("GET", path, endpoint, b""), until)

    async def post(self, endpoint: Endpoint, path: str, body: bytes, until: float) -> Reply:
        """The reply of this member and no other. Raises as `get`, and Answered."""
        return await self._try(endpoint, Request(path, body), until, until)

    # -- connections --------------------------------------------------------------------------

    async def _ready(self, endpoint: Endpoint, until: float) -> W:
        """A connection, once there is a token if one is needed. Raises StoreUnavailable."""
        await self._log_in(endpoint, until)
        return self.pools[endpoint].trusted() or await self._join(endpoint, until)

    async def _join(self, endpoint: Endpoint, until: float) -> W:
        """A new connection for requests, to the incarnation that is known.

        Raises Reborn, StoreUnavailable, Broken.
        """
        wire = await self._connect(endpoint, until)
        self.cluster.dialled += 1
        known = self.cluster.incarnation
        if known is None:
            return wire
        try:
            look = self.cluster.is_other(known, endpoint)
            other = await drive(look, partial(self._on, endpoint, wire, until))
        except (Broken, Garbled) as error:
            wire.close()
            raise Broken(str(error), sent=False) from error
        except BaseException:
            wire.close()
            raise
        if other:
            wire.close()
            if self.cluster.knows(known.value):
                self.cluster.disown()
            raise Reborn(self.site.where)
        return wire

    async def _on(self, endpoint: Endpoint, wire: W, until: float, request: Request) -> Reply:
        """The reply to a look, by this connection, which stays the caller's."""
        await self._log_in(endpoint, until, wire)
        sent = self._request("POST", request.path, endpoint, request.body)
        return self._read(await self.ask(endpoint, wire, sent, until))

    async def _connect(self, endpoint: Endpoint, until: float) -> W:
        wire = await self._dial(self.site, endpoint, until)
        self.pools[endpoint].all.add(wire)
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
                wire = self.pools[endpoint].trusted() or await self._join(endpoint, until)
                reading = await self.exchange(endpoint, wire, request, until)
            self.site.token = str(self._read(reading).get("token", "")) or _OFF
        except Answered as error:
            if "not enabled" in error.text:
                self.site.token = _OFF
                return
            found = self.site.failed(error, doubt=False)
            if not isinstance(found, StoreUnavailable):
                found = StoreUnavailable(f"{self.site.where} does not log us in: {error.text}")
            raise found from error
        except (Broken, Garbled) as error:
            raise self.site.unreachable(error) from error

    async def exchange(self, endpoint: Endpoint, wire: W, request: bytes, until: float) -> Reading:
        """One request, one answer. Raises Broken, Garbled."""
        pool = self.pools[endpoint]
        idle = pool.idle
        reading = await self.ask(endpoint, wire, request, until)
        if reading.last:
            wire.close()
        else:
            pool.put_back(wire, idle)
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
                close_all(self.pools[endpoint].idle)
            raise
        return reading

    # -- streams ------------------------------------------------------------------------------

    async def stream(self, request: Request, until: float) -> tuple[Endpoint, W, Reading]:
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
            wire.send(self._request("POST", request.path, endpoint, request.body), until)
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


async def drive(program: Steps[T], ask: Callable[[Request], Awaitable[Any]]) -> T:
    """The outcome of a program whose requests are answered by `ask`."""
    try:
        request = next(program)
        while True:
            try:
                reply = await ask(request)
            except BaseException as error:  # noqa: BLE001 - it is raised where the program waits
                request = program.throw(error)
            else:
                request = program.send(reply)
    except StopIteration as done:
        outcome: T = done.value
        return outcome


def _feed(reading: Reading, data: bytes) -> None:
    try:
        reading.feed(data)
    except EOFError:
        raise Broken("the server closed the connection", sent=True) from None
