"""One asynchronous connection: an asyncio protocol that parses with hiredis.

Many tasks share it. Redis answers in order, so each answer belongs to the oldest pending request,
whether its task still waits or not: the request of a task that was cancelled, or ran out of time,
stays pending, and its answer is read and dropped.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, TypeAlias

import hiredis

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.interrupts import raise_handlers
from incumbent.net.aiowire import AsyncConnection, connect, connect_unix
from incumbent.net.pool import Broken
from incumbent.stores.redis.exchange import AnyWire
from incumbent.stores.redis.options import RedisTarget
from incumbent.stores.redis.server import ProviderFailed, RedisSite
from incumbent.stores.redis.wire import open_wire

if TYPE_CHECKING:
    from ssl import SSLContext

_now = clock.now
_LONGEST = 3600.0
_APART = 0.005
"""Seconds between two checks of all deadlines: with thousands of them, a check takes 1 ms."""
_GATHERS = 0.02
"""Seconds for which requests are gathered: a step of the loop may take a second of their time."""

_Asked: TypeAlias = "tuple[asyncio.Future[Any], float, int, int]"
"""A request's future, its deadline, `_received` when it was made, and its number of answers."""


class AsyncRedisWire(AsyncConnection, AnyWire):
    """An asynchronous AnyWire. Many tasks may call `ask`, but only one `send` and `next`."""

    def __init__(self) -> None:
        AnyWire.__init__(self)
        AsyncConnection.__init__(self)
        reader = hiredis.Reader()
        self._feed, self._gets = reader.feed, reader.gets
        self._asked: deque[_Asked] = deque()
        self._unsent: list[tuple[bytes, _Asked]] = []
        self._gathers_since = 0.0
        self._parts: list[Any] = []
        self._received = 0
        self._inbox: deque[Any] = deque()
        self.on_message: Callable[[Any], None] | None = None
        """Called with each message at once, in place of `next`; with None when no more can come."""
        self.retired = False
        """No further request is to be sent; it closes when no task waits for an answer any more."""

    def is_stale(self, *, trust: bool) -> bool:
        """Whether it is closed (the event loop notices that) or retired.

        Also if the server sent a message that nobody had asked for.
        """
        return self._failure is not None or self.retired or bool(self._inbox)

    def retire(self) -> None:
        """Close as soon as no task waits for an answer."""
        self.retired = True
        if not self._is_awaited():
            self.close()

    # -- shared by many tasks -----------------------------------------------------------------

    def ask(self, request: bytes, until: float, answers: int = 1) -> asyncio.Future[Any]:
        """A future of the answer, or of the list of several; it fails with Broken. Raises Broken.

        The request is sent at once if no other is pending. Else it is sent together with those of
        all other tasks that are ready now.
        """
        now = self._admit(until)
        future = self._loop.create_future()
        asked = (future, until, self._received, answers)
        if self._asked or self._unsent:
            if not self._unsent:
                self._loop.call_soon(self._flush)
                self._gathers_since = now
            self._unsent.append((request, asked))
            if now - self._gathers_since > _GATHERS:
                self._flush()
        else:
            try:
                self._write(request, [asked])
            except BaseException:
                # A signal handler's exception may have come between its two steps.
                self.close()
                raise
        return future

    async def ask_all(self, payload: bytes, answers: int, until: float) -> list[Any]:
        """Send requests together; return their answers. Raises Broken."""
        answer = await self.ask(payload, until, answers)
        return [answer] if answers == 1 else list(answer)

    def _flush(self) -> None:
        try:
            self._fail_late(_now())
            # Requests that no task waits for are not sent: a take would only have to be undone.
            ready = [each for each in self._unsent if not each[1][0].done()]
            self._unsent.clear()
            if ready and self._failure is None:
                payload = b"".join([request for request, _ in ready])
                self._write(payload, [asked for _, asked in ready])
        except Exception as error:
            self._break(error)
            raise

    def _write(self, payload: bytes, asked: list[_Asked]) -> None:
        self._asked.extend(asked)
        self._transport.write(payload)

    # -- used by one task: subscriptions ------------------------------------------------------

    def send(self, request: bytes, until: float) -> None:
        """Send a request whose answer is read by `next`. Raises Broken."""
        self._admit(until)
        self._transport.write(request)

    async def next(self, until: float) -> Any:
        """The next message, or the next answer to a request of `send`. Raises Broken."""
        if self._inbox:
            return self._inbox.popleft()
        self._admit(until)
        future = self._loop.create_future()
        self._asked.append((future, until, self._received, 1))
        return await future

    # -- deadlines ----------------------------------------------------------------------------

    def _tick(self) -> None:
        """Fail the requests whose deadline has passed; set the timer for the next deadline."""
        now, earliest = _now(), inf
        for future, until, received, _ in self._asked:
            if until > now:
                earliest = min(earliest, until)
                continue
            _end(future, Broken("no answer in time", sent=True, late=True))
            if received == self._received:
                # No byte came in all that time. A half-open socket would lose later requests too.
                self.retired = True
        earliest = min(earliest, self._fail_late(now))
        if self.retired and not self._is_awaited():
            self.close()
        elif earliest < inf:
            self._wake_at(max(earliest, now + _APART))

    def _fail_late(self, now: float) -> float:
        """Fail the unsent requests without time; return the next deadline of the others."""
        earliest = inf
        for _, (future, until, *_) in self._unsent:
            if until > now:
                earliest = min(earliest, until)
            else:
                _end(future, Broken("no time is left", sent=False, late=True))
        return earliest

    def _waiting(self) -> list[_Asked]:
        return [*self._asked, *(asked for _, asked in self._unsent)]

    def _is_awaited(self) -> bool:
        return any(not asked[0].done() for asked in self._waiting())

    def _fail(self, error: Exception) -> None:
        if self._failure is not None:
            return
        self._failure = error
        unsent = [asked for _, asked in self._unsent]
        self._unsent.clear()
        for sent, each in ((True, self._waiting()), (False, unsent)):
            for future, *_ in each:
                _end(future, _failure_for(error, sent=sent))
        self._asked.clear()
        if self.on_message is not None:
            self.on_message(None)

    # -- called by the event loop -------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._received += 1
        try:
            self._feed(data)
            while (answer := self._gets()) is not False:
                self._deliver(answer)
        except hiredis.ProtocolError as error:
            self._fail(error)
            self._transport.abort()
        except Exception as error:
            self._break(error)
            raise
        except BaseException:
            self.close()
            raise
        if self.retired and not self._is_awaited():
            self.close()

    def _deliver(self, answer: Any) -> None:
        if not self._asked:
            (self.on_message or self._inbox.append)(answer)
            return
        future, _, _, answers = self._asked[0]
        if answers > 1:
            self._parts.append(answer)
            if len(self._parts) < answers:
                return
            answer, self._parts = self._parts, []
        self._asked.popleft()
        if not future.done():
            future.set_result(answer)


def _end(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # asyncio would complain where a cancelled task does not ask


def _failure_for(error: Exception, *, sent: bool) -> Exception:
    """The exception for one of the requests on a connection that failed by `error`."""
    if not isinstance(error, Broken | hiredis.ProtocolError):
        return error
    broken = Broken(str(error), sent=sent)
    broken.__cause__ = error.__cause__
    return broken


# -- making a connection --------------------------------------------------------------------------


async def dial(site: RedisSite, until: float) -> AsyncRedisWire:
    """A connection that is logged in.

    Raises StoreUnavailable, at `until` (an instant of clock.now) at the latest.
    """
    try:
        async with asyncio.timeout(min(_LONGEST, until - _now())):
            return await open_wire(site, until, _connected, _login)
    except TimeoutError as error:
        raise_handlers(error)
        raise StoreUnavailable(f"{site.where} cannot be reached: no connection in time") from error


async def _connected(target: RedisTarget, tls: SSLContext | None) -> AsyncRedisWire:
    if target.path:
        return await connect_unix(AsyncRedisWire, target.path)
    return await connect(AsyncRedisWire, target.host, target.port, tls=tls)


async def _login(credentials: Any) -> Sequence[str]:
    try:
        login: Sequence[str] = await credentials.get_credentials_async()
    except Exception as error:
        raise ProviderFailed(error) from error
    return login
