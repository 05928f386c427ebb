"""Runs programs on any member that answers. Connections to each member are kept.

`take`, `give` and `wait_change` come from stores.turns.TakesTurns, the others from
stores.plan.Planned. The asyncio side awaits the coroutines. The blocking side runs each in one step
(`stores.plan.run_blocking`), with connections that block instead of suspending.

See `net.pool` for the reuse of connections.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Final, Generic, TypeAlias, TypeVar

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.interrupts import raise_if_from_signal
from incumbent.model import Key
from incumbent.net.http import Garbled, Reading, Stream, begin, encode, exchange, feed, parse
from incumbent.net.limiter import DIAL_WITHIN, PLACES, limits
from incumbent.net.pool import Broken, Pool, close_all, until_served
from incumbent.stores.etcd import kv
from incumbent.stores.etcd.dialect import EtcdDialect
from incumbent.stores.etcd.kv import REPEATED, EtcdProgram, GatewayRequest, Reply
from incumbent.stores.etcd.line import IN_LINE
from incumbent.stores.etcd.obstacles import read_for_wait
from incumbent.stores.etcd.site import (
    GatewayError,
    LeaseExists,
    LeaseMissing,
    OtherIncarnation,
    answer_by,
    error_text,
    is_refusal_of_certificate,
)
from incumbent.stores.etcd.waiting import LinePosition, position_in
from incumbent.stores.plan import Plan, drive
from incumbent.stores.turns import TakesTurns
from incumbent.stores.url import Endpoint

_RECHECK_EVERY: Final = 5.0
_SOON: Final = 2.0
# After this fraction of a heartbeat a waiter renews its process's places in line.
_BEAT: Final = 0.3
# Seconds after which a watch that has not begun is considered lost.
_BEGUN_WITHIN: Final = 0.5
# Most log-ins for one request: a token may expire right after it was issued.
_LOGINS: Final = 2
# In place of a token: the server has authentication off, and no log-in is needed.
_OFF: Final = "-"
_GATEWAY_STATUS: Final = (200, 400, 401, 403, 404, 409, 412, 429, 499, 500, 501, 503, 504)

T = TypeVar("T")
W = TypeVar("W", bound=Stream)

_now = clock.now


class WatchStream(Reading):
    """One stream for several watches. `not_begun`: the number of those that have not begun.

    Once etcd's gateway answers the first watch, it may be unable to read the rest of the request
    (pkg.go.dev/net/http, ResponseWriter.Write). So all watches have to begin by `begun_by`.
    """

    __slots__ = ("begun_by", "not_begun")

    def __init__(self, request: GatewayRequest) -> None:
        super().__init__()
        self.not_begun = request.body.count(b'"create_request"')
        self.begun_by = _now() + _BEGUN_WITHIN


ReadStream: TypeAlias = Callable[[WatchStream, Any, float], Awaitable[bool]]
"""Reads a stream: True if something changed, False if the caller has to read again."""
WatchPlan: TypeAlias = tuple[GatewayRequest, ReadStream]
"""The request of a stream, and the function that reads it."""
ReadPosition: TypeAlias = Callable[[float], Awaitable[LinePosition | None]]
"""Reads where this waiter stands in line; None: it is not there any more."""


@dataclass(slots=True)
class _Tries:
    """The tries of one request so far."""

    tries_left: int
    repeatable: bool
    doubt: bool = False
    logins: int = 0
    failure: Exception | None = None


class EtcdClient(TakesTurns[None], Generic[W]):
    """Runs programs. `pools`: the connections to each member; `streams`: those of watches."""

    def __init__(self, dialect: EtcdDialect) -> None:
        self.dialect: EtcdDialect = dialect
        self.cluster = dialect.cluster
        self.turns = dialect.cluster.turns
        self.site = dialect.cluster.site
        self.pools: dict[Endpoint, Pool[W]] = {each: Pool() for each in self.site.members}
        self.streams: set[W] = set()
        self.limits = limits(
            self.site.where,
            PLACES,
            self.wakeup,
            lambda: self.pools[self.site.members[0]].idle,
            self._keep_another,
        )

    @abstractmethod
    async def dial(self, endpoint: Endpoint, until: float) -> W:
        """A connection. Raises OSError or StoreUnavailable, at `until` at the latest."""

    def let_go(self) -> None:
        """Close idle connections and end watches; connections in use close after their exchange."""
        for pool in self.pools.values():
            pool.let_go()
        streams, self.streams = self.streams, set()
        # A copy: a thread that ends its watch at this moment may still have this set in hand.
        for wire in list(streams):
            wire.hang_up()
        self.turns.notify_all()

    def detach(self) -> None:
        """In a forked child: close the descriptors. Exchanges under way are the parent's."""
        self.streams = set()
        for pool in self.pools.values():
            pool.detach()

    # -- programs -----------------------------------------------------------------------------

    async def run(self, plan: Plan[None, T], until: float) -> T:
        return await until_served(
            lambda: self.run_program(plan.start(None, until), until), until, self.sleep
        )

    async def run_program(self, program: EtcdProgram[T], until: float) -> T:
        """The outcome of a program. Raises StoreError, at `until` at the latest."""
        return await drive(program, lambda request: self.send_checked(request, until))

    async def send_checked(self, request: GatewayRequest, until: float) -> Any:
        """Send one request and return its reply. Raises as `send_to_any_member`.

        It also raises OutcomeUnknown if the reply is from another incarnation than the one known
        when the request was sent, or from an earlier state of the cluster: it proves nothing.
        """
        if request.endpoint is not None:
            try:
                return await self._send_to(request.endpoint, request, until, until)
            except (Broken, Garbled) as error:
                raise self.site.unreachable(error) from error
        # Noted before it is sent: the reply must be of the incarnation that was known then.
        ended, floor = self.cluster.ended, self.cluster.floor
        reply = await self.send_to_any_member(request, until)
        self.cluster.check(request, reply, ended, floor)
        return reply

    async def send_to_any_member(self, request: GatewayRequest, until: float) -> Reply:
        """The reply of any member.

        Raises StoreUnavailable, OutcomeUnknown, LeaseMissing, or LeaseExists.
        """
        site, several = self.site, len(self.site.members) > 1
        tries = _Tries(site.tries, request.repeatable)
        while tries.tries_left > 0 and (now := _now()) < until:
            tries.tries_left -= 1
            endpoint = site.members[0]
            limit = answer_by(now, until, tries.tries_left) if several else until
            try:
                reply: Reply = await self._send_to(endpoint, request, limit, until)
                if "header" not in reply and "header" not in reply.get("result", {}):
                    raise Garbled("it does not answer as etcd does")
            except (GatewayError, Broken, Garbled, StoreUnavailable) as error:
                self._judge_failure(tries, endpoint, error)
            else:
                site.prefer(endpoint)
                site.served = True
                reply[REPEATED] = tries.doubt
                return reply
        try:
            failure = tries.failure or Broken("no time is left", sent=False)
            raise site.error_for(failure, doubt=tries.doubt) from failure
        finally:
            # The cycle of the error and this frame would keep connections until a collection.
            del tries, failure

    def _judge_failure(self, tries: _Tries, endpoint: Endpoint, error: Exception) -> None:
        """Remember the failure, and decide whether to ask another member."""
        if isinstance(error, GatewayError):
            if error.lease_missing and not tries.doubt:
                # After a try in doubt it says nothing: that one may have been carried out while the
                # lease was there.
                raise LeaseMissing(error.text) from error
            if error.lease_exists:
                raise LeaseExists(error.text) from error
            tries.failure = error
            tries.doubt = tries.doubt or not error.not_done
            if tries.logins < _LOGINS and self.site.drop_stale_token(error):
                tries.logins += 1
                tries.tries_left += 1
                return
            if not error.try_another:
                tries.tries_left = 0
                return
        tries.failure = error
        if isinstance(error, OtherIncarnation):
            # It says nothing of earlier tries, and another try would ask the next incarnation.
            tries.tries_left = 0
            return
        if isinstance(error, StoreUnavailable):
            tries.tries_left = 0 if error.permanent else tries.tries_left
        elif not isinstance(error, GatewayError):
            tries.doubt = tries.doubt or not isinstance(error, Broken) or error.sent
        if tries.doubt and not tries.repeatable:
            tries.tries_left = 0
        self.site.avoid(endpoint, error)

    # -- one exchange -------------------------------------------------------------------------

    async def _send_to(
        self, endpoint: Endpoint, request: GatewayRequest, limit: float, until: float
    ) -> Any:
        """The reply of this member. Raises StoreUnavailable, Broken, Garbled, GatewayError."""
        pool = self.pools[endpoint]
        # Read first: if `let_go` replaces the list meanwhile, `put_back` closes the connection.
        idle = pool.idle
        wire = pool.trusted() or await self._connect_checked(endpoint, limit)
        try:
            await self._log_in(endpoint, wire, limit)
        except BaseException:
            wire.close()
            raise
        # A request that can be repeated leaves time to ask other members. The others use it all.
        limit = limit if request.repeatable else until
        reading = await self._exchange_on(endpoint, wire, self._encode(endpoint, request), limit)
        if reading.last:
            wire.close()
        else:
            pool.put_back(wire, idle)
        return self._read(reading) if request.body else reading

    async def _connect_checked_within_dial(self, endpoint: Endpoint, until: float) -> W:
        """As `_connect_checked`, for as long as a dial may take."""
        return await self._connect_checked(endpoint, min(until, _now() + DIAL_WITHIN))

    async def _connect_checked(self, endpoint: Endpoint, until: float) -> W:
        """A new connection for requests, to the known incarnation.

        Raises OtherIncarnation, StoreUnavailable, Broken.
        """
        wire = await self._connect(endpoint, until)
        self.cluster.dialled += 1
        known = self.cluster.incarnation
        if known is None:
            return wire
        try:
            check = self.cluster.is_other(known, endpoint)
            other = await drive(check, partial(self._send_before_others, endpoint, wire, until))
        except BaseException as error:
            wire.close()
            if isinstance(error, Broken | Garbled):
                raise Broken(str(error), sent=False) from error
            raise
        if other:
            wire.close()
            # Another thread may have learnt of the next incarnation. That one is not over.
            if self.cluster.knows(known.value):
                self.cluster.end_incarnation()
            raise OtherIncarnation(self.site.where)
        return wire

    async def _keep_another(self, until: float) -> None:
        """Make a connection for the next request.

        If that fails, it avoids this member. Raises StoreUnavailable if there is no other.
        """
        endpoint, several, now = self.site.members[0], len(self.site.members) > 1, _now()
        pool = self.pools[endpoint]
        idle = pool.idle
        if several:
            until = answer_by(now, min(until, now + DIAL_WITHIN), self.site.tries - 1)
        try:
            pool.put_back(await self._connect_checked_within_dial(endpoint, until), idle)
        except (Broken, StoreUnavailable) as error:
            if not several:
                raise self.site.error_for(error, doubt=False) from error
            self.site.avoid(endpoint, error)

    async def _send_before_others(
        self, endpoint: Endpoint, wire: W, until: float, request: GatewayRequest
    ) -> Reply:
        """The reply to a check on this connection, before any other request is sent."""
        await self._log_in(endpoint, wire, until)
        sent = self._encode(endpoint, request)
        return self._read(await self._exchange_on(endpoint, wire, sent, until))

    async def _connect(self, endpoint: Endpoint, until: float) -> W:
        try:
            wire = await self.dial(endpoint, until)
        except OSError as error:
            raise_if_from_signal(error)
            raise self.site.cannot_connect(error, str(endpoint)) from error
        self.pools[endpoint].all.add(wire)
        return wire

    async def _log_in(self, endpoint: Endpoint, wire: W, until: float) -> None:
        """Get a token over this connection if one is needed; every member accepts the token.

        No other request was sent yet. Raises StoreUnavailable.
        """
        options, site = self.site.options, self.site
        if site.login_token or not options.username:
            return
        body = json.dumps({"name": options.username, "password": options.password or ""}).encode()
        sent = encode("POST", "/v3/auth/authenticate", endpoint, "", body)
        try:
            reading = await self._exchange_on(endpoint, wire, sent, until)
            site.login_token = str(self._read(reading).get("token", "")) or _OFF
            if reading.last:
                raise Broken("the server closed the connection after the log-in", sent=False)
        except GatewayError as error:
            if "not enabled" in error.text:
                site.login_token = _OFF
                return
            found = site.error_for(error, doubt=False)
            if not isinstance(found, StoreUnavailable):
                found = StoreUnavailable(f"{site.where} does not log us in: {error.text}")
            raise found from error
        except (Broken, Garbled) as error:
            raise site.unreachable(error) from error

    def _encode(self, endpoint: Endpoint, request: GatewayRequest) -> bytes:
        token = "" if self.site.login_token == _OFF else self.site.login_token
        method = "POST" if request.body else "GET"
        return encode(method, request.path, endpoint, token, request.body)

    async def _exchange_on(self, endpoint: Endpoint, wire: W, sent: bytes, until: float) -> Reading:
        """One reply over this connection, which the caller keeps. Raises Broken, Garbled."""
        try:
            return await exchange(wire, sent, until)
        except Broken as error:
            if is_refusal_of_certificate(str(error)):
                error.sent = False
            if not error.late:
                # A restart or network failure that broke this connection broke the idle ones too.
                close_all(self.pools[endpoint].idle)
            raise

    def _read(self, reading: Reading) -> Reply:
        body, status = reading.body, reading.status
        other = status != 200 or b"CommonName" in body
        if status not in _GATEWAY_STATUS or (other and not body.startswith(b"{")):
            raise self.site.no_gateway(status, body)
        reply = parse(body)
        if status != 200 or "error" in reply:
            raise GatewayError(error_text(reply) or f"HTTP {status}")
        return reply

    # -- waiting ------------------------------------------------------------------------------

    async def wait_at_store(self, key: Key, seen: str, until: float) -> None:
        """Wait for our turn in line. Without a place there, watch for changes since `seen`."""
        seen, in_line, claim = seen.partition(IN_LINE)
        if in_line:
            await self._wait_in_line(key, seen, claim, until)
            return
        last = self.cluster.sessions.seen_revision.get(key)
        start = last[1] + 1 if last is not None and last[0] == seen else 0

        async def next_watch() -> WatchPlan | None:
            nonlocal start
            begin, start = start, 0
            if not begin:
                begin = await self.run_program(self.dialect.unchanged_since(key, seen), until)
            return (self.dialect.watch(key, begin), self._until_change) if begin else None

        await self._run_watches(next_watch, until)

    async def wait_as_first(self, key: Key, seen: str, until: float) -> None:
        # Before the wait: other processes come before the next waiter of ours.
        self.turns.end_turn(key)
        if IN_LINE in seen or self.cluster.sessions.places.of(key):
            await self.wait_at_store(key, seen, until)
        # Else no waiter of ours is in the store's line. Return at once: another take joins it.

    async def _wait_in_line(self, key: Key, seen: str, claim: str, until: float) -> None:
        """Wait for our turn: watch a waiter ahead or, if we are among the first two, the lease."""
        # A lost wake-up then costs seconds, and not a whole ttl.
        until = min(until, _now() + _RECHECK_EVERY)
        place = self.cluster.sessions.places.place_of(key, claim)
        if place is None:
            # It has to join the line anew.
            return
        names = kv.names_of(self.cluster.prefix, key)
        position = position_in(names, key, place, seen, place.found)
        if position is None:
            return
        fresh = True

        async def read_position(until: float) -> LinePosition | None:
            found = await self._run_read(read_for_wait(self.cluster, key), until)
            return position_in(names, key, place, seen, found)

        async def next_watch() -> WatchPlan | None:
            nonlocal fresh
            if not (fresh or position.rewatch):
                # With little time for each try: this process's other waiters depend on us.
                newer = await read_position(min(until, _now() + _SOON))
                if newer is None:
                    return None
                position.update(newer)
            fresh = False
            if position.rechecks_at > _now():
                return position.watch_request(), partial(self._await_turn, position, read_position)
            if position.reserved:
                self.turns.notify_all(key)
            return None

        await self._run_watches(next_watch, until)

    async def _run_read(self, program: EtcdProgram[T], until: float) -> T:
        """The outcome of a program that changes nothing. Raises StoreUnavailable."""
        try:
            return await self.run_program(program, until)
        except OutcomeUnknown as error:
            raise StoreUnavailable(str(error)) from error

    async def _run_watches(
        self, next_watch: Callable[[], Awaitable[WatchPlan | None]], until: float
    ) -> None:
        """Run the watches of `next_watch`, until a change, no watch (None), or `until`."""
        try:
            failures = 0
            while _now() < until:
                try:
                    watch = await next_watch()
                    if watch is None:
                        return
                    if await self._run_watch(*watch, until):
                        return
                    # The changes are gone (compacted), or other keys have to be watched.
                except (Broken, Garbled, StoreUnavailable) as error:
                    if isinstance(error, StoreUnavailable) and error.permanent:
                        raise
                    failures += 1
                    # Each member had its chance, and one more: a single dead
                    # connection is no failure of all.
                    if _now() < until and failures > self.site.tries:
                        where = self.site.where
                        raise StoreUnavailable(f"{where}: no watch: {error}") from error
        except StoreError:
            # After `until` the caller asks the store in any case, so the error is not needed.
            if _now() < until:
                raise

    async def _run_watch(self, watch: GatewayRequest, read: ReadStream, until: float) -> bool:
        """The result of `read`, or True if the time is over."""
        site, endpoint = self.site, self.site.members[0]
        wire: W | None = None
        try:
            wire = await self._connect(endpoint, until)
            await self._log_in(endpoint, wire, until)
            request = self._encode(endpoint, watch)
            self.streams.add(wire)
            stream = WatchStream(watch)
            begin(wire, request, until)
            return await read(stream, wire, until)
        except (GatewayError, Broken, StoreUnavailable) as error:
            if isinstance(error, Broken) and (error.late or wire not in self.streams):
                # The time is over, or the store was closed.
                return True
            site.avoid(endpoint, error)
            if isinstance(error, GatewayError):
                site.drop_stale_token(error)
                raise site.error_for(error, doubt=False) from error
            raise
        finally:
            if wire is not None:
                # Closing the connection ends the watch at the server.
                self.streams.discard(wire)
                wire.close()

    async def _until_change(self, stream: WatchStream, wire: W, until: float) -> bool:
        """True: something changed. False: read again. Raises the errors of `_next_results`."""
        while True:
            results = await self._results_keeping_places(stream, wire, until)
            if results is None:
                return False
            if any(result.get("events") for result in results):
                return True

    async def _await_turn(
        self, position: LinePosition, read: ReadPosition, stream: WatchStream, wire: W, until: float
    ) -> bool:
        """True: it is our turn to ask. False: read the line again. Raises as `_next_results`."""
        while not position.rewatch:
            recheck = position.rechecks_at
            if recheck <= _now():
                if position.reserved:
                    self.turns.notify_all(position.key)
                return True
            results = await self._results_keeping_places(stream, wire, until, recheck)
            if results is None:
                return False
            for result in results:
                position.apply(result, _now())
            if not self.cluster.sessions.places.is_kept_alive(position.place):
                return True
            if position.missed and not (stream.not_begun or position.rewatch):
                newer = await read(until)
                if newer is None:
                    return True
                position.update(newer)
        return False

    async def _results_keeping_places(
        self, stream: WatchStream, wire: W, until: float, recheck: float = inf
    ) -> list[dict[str, Any]] | None:
        """As `_next_results`, or nothing at `recheck`; meanwhile keeps our places alive."""
        sessions = self.cluster.sessions
        while True:
            heartbeats = sessions.places.heartbeats()
            # In parts: the places of all our waiters have to be kept alive while this one waits.
            part = min(until, recheck, _now() + min(heartbeats, default=inf) * _BEAT)
            try:
                return await self._next_results(stream, wire, part)
            except Broken as error:
                if not error.late or _now() >= until:
                    raise
            for heartbeat in heartbeats:
                await self._run_read(sessions.places.keep_alive(heartbeat), until)
            if heartbeats or _now() >= recheck:
                return []

    async def _next_results(
        self, stream: WatchStream, wire: W, until: float
    ) -> list[dict[str, Any]] | None:
        """The new messages of the watches; None if a watch or its changes (compacted) are lost.

        Raises Broken, Garbled, GatewayError, StoreUnavailable.
        """
        by = min(until, stream.begun_by) if stream.not_begun else until
        try:
            await feed(stream, wire, by)
        except Broken as error:
            if not error.late or by == until:
                raise
            return None
        if stream.done and stream.status != 200:
            self._read(stream)
        results: list[dict[str, Any]] = []
        for message in stream.lines():
            if "error" in message:
                raise GatewayError(error_text(message) or str(message["error"]))
            result = message.get("result", {})
            if int(result.get("compact_revision", 0)):
                return None
            if result.get("canceled"):
                raise GatewayError(str(result.get("cancel_reason", "the watch was cancelled")))
            stream.not_begun -= bool(result.get("created"))
            results.append(result)
        if stream.done and not results:
            raise Broken("the server ended the watch", sent=True)
        return results
