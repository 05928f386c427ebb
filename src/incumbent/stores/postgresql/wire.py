"""Connections to a database by libpq (psycopg.pq); a `PostgresSide` waits for their sockets.

libpq's own waiting is not used: it resolves names without a timeout and counts whole seconds. Each
host gets its share of the time that is left, so that a dead host does not use up all of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from math import inf
from typing import Any, Final, TypeVar
from zlib import crc32

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.interrupts import raise_if_from_signal
from incumbent.net.dial import is_ready, is_unknown, leave_to_parent, resolve, shared, wait_ready
from incumbent.net.limiter import DIAL_WITHIN
from incumbent.net.pool import Broken
from incumbent.net.readers import SharedWakeup, ThreadWakeup, Wakeup
from incumbent.stores.plan import Program, drive
from incumbent.stores.postgresql.errors import PostgresErrorReply, connect_error
from incumbent.stores.postgresql.exchange import StatementRequest
from incumbent.stores.postgresql.site import DriverError, PostgresSite, Target, pq

T = TypeVar("T")

_LONGEST: Final = 3600.0
_BAD: Final = pq.ConnStatus.BAD
_READING: Final = pq.PollingStatus.READING
_OK: Final = pq.PollingStatus.OK
_FAILED: Final = pq.PollingStatus.FAILED
_FATAL_ERROR: Final = pq.ExecStatus.FATAL_ERROR
_SEVERITY: Final = pq.DiagnosticField.SEVERITY_NONLOCALIZED
_ENDS: Final = (b"FATAL", b"PANIC")
_SQLSTATE: Final = pq.DiagnosticField.SQLSTATE
_MESSAGE: Final = pq.DiagnosticField.MESSAGE_PRIMARY
# Seconds: a connection unused for longer is checked before use, by one system call.
_STALE_AFTER: Final = 0.05

# The server ended a session that idled too long (idle_session_timeout). It does so only between
# requests, so that a request with this reply was not carried out.
_IDLED: Final = "57P05"
# No such prepared statement; there is one of that name already.
_NOT_PREPARED: Final = ("26000", "42P05")

_now = clock.now


class PostgresSide:
    """The ways to wait, until an instant of clock.now. These methods block."""

    wakeup: Callable[[], Wakeup] = ThreadWakeup

    async def ready(self, fd: int, until: float, *, writing: bool = False) -> bool:
        """Wait for a descriptor; return whether it became ready before `until`."""
        return wait_ready(fd, until, writing=writing)

    async def resolve(self, host: str, port: str, until: float) -> Sequence[str]:
        """The host's addresses. Raises OSError, and TimeoutError at `until`."""
        return resolve(host, port, until)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - blocking is what this side is for

    async def dialled(
        self,
        dial: Callable[[float], Coroutine[Any, Any, T]],
        until: float,
        keep: Callable[[T], None],
        lasts: float,
    ) -> T:
        """The connection that `dial` makes by `lasts`, or within the time that any dial may take.

        A task with less time gets TimeoutError at `until`, and `keep` gets the connection.
        """
        return await dial(max(lasts, min(until, _now() + DIAL_WITHIN)))


class SuspendingSide(PostgresSide):
    """The ways to wait in an asyncio task. Only these import asyncio: blocking code needs none."""

    wakeup = SharedWakeup

    async def ready(self, fd: int, until: float, *, writing: bool = False) -> bool:
        from incumbent.net.aiowire import wait_ready

        return await wait_ready(fd, until, writing=writing)

    async def resolve(self, host: str, port: str, until: float) -> Sequence[str]:
        import asyncio

        from incumbent.net.aiowire import resolve

        async with asyncio.timeout(max(0.0, until - _now())):
            return await resolve(host, port)

    async def sleep(self, seconds: float) -> None:
        import asyncio

        await asyncio.sleep(seconds)

    async def dialled(
        self,
        dial: Callable[[float], Coroutine[Any, Any, T]],
        until: float,
        keep: Callable[[T], None],
        lasts: float,
    ) -> T:
        from incumbent.net.aiowire import outliving

        return await outliving(dial, until, keep, lasts)


# -- connecting -----------------------------------------------------------------------------------


class _Failed(Exception):
    """A host, or one of its addresses, gave no connection. `final`: trying again cannot help."""

    def __init__(self, why: str, *, final: bool = False) -> None:
        super().__init__(why)
        self.final = final


async def connect(site: PostgresSite, side: PostgresSide, until: float, lasts: float = -inf) -> Any:
    """A connection of libpq that is logged in to a writable server.

    The hosts share the time until `until`, when the caller may give up. Raises StoreUnavailable, at
    `lasts` (an instant of clock.now) at the latest, if that is later.
    """
    until = min(until, _now() + _LONGEST)
    lasts = max(until, lasts)
    failures: list[_Failed] = []
    for target, share in shared(site.targets, until, lasts):
        if _now() >= share:
            continue
        try:
            connection = await _connect_host(site, side, target, min(share, until), share)
        except _Failed as failure:
            failures.append(failure)
        else:
            site.prefer(target)
            return connection
    raise _unavailable(site, failures)


async def _connect_host(
    site: PostgresSite, side: PostgresSide, target: Target, until: float, lasts: float
) -> Any:
    host, addresses = target.host, [target.hostaddr]
    try:
        if host and not (target.hostaddr or host.startswith(("/", "@"))):
            addresses = [*await side.resolve(host, target.port or "5432", lasts)]
    except OSError as error:
        raise_if_from_signal(error)
        why = "no answer in time" if isinstance(error, TimeoutError) else str(error)
        text = f"the host name {host} cannot be resolved: {why}"
        raise _Failed(text, final=is_unknown(error)) from error
    failure = _Failed(f"the host name {host} has no address")
    for address, share in shared(addresses, until, lasts):
        try:
            return await _attempt(site, side, site.conninfo(target, address), share)
        except _Failed as error:
            failure = error
    raise failure


async def _attempt(site: PostgresSite, side: PostgresSide, conninfo: bytes, until: float) -> Any:
    try:
        connection = pq.PGconn.connect_start(conninfo)
    except DriverError as error:
        raise _Failed(site.clean(str(error))) from error
    try:
        while True:
            status = _FAILED if connection.status == _BAD else connection.connect_poll()
            if status == _OK:
                return connection
            if status == _FAILED:
                raise _Failed(site.clean(connection.get_error_message()))
            if not await side.ready(connection.socket, until, writing=status != _READING):
                raise _Failed("no connection in time")
    except BaseException:
        connection.finish()
        raise


def _unavailable(site: PostgresSite, failures: list[_Failed]) -> StoreUnavailable:
    errors = [
        connect_error(str(each), site.where, final=each.final, served=site.served)
        for each in failures
    ]
    if len(errors) == 1:
        return errors[0]
    both = connect_error(" | ".join(map(str, failures)), site.where, served=site.served)
    # One of several hosts may come back: the error is final only if it is for all of them.
    both.permanent = bool(errors) and all(error.permanent for error in errors)
    return both


# -- one connection -------------------------------------------------------------------------------


class PostgresWire:
    """One connection. `used`: the start of the last request; `direct`: no pooler is in between.

    `ahead`: the most seconds that the server's clock (since 1970) is ahead of clock.now.
    `backend`: the server process that the login named. `version`: 150004 for 15.4.
    """

    def __init__(self, connection: Any, side: PostgresSide) -> None:
        # Else libpq itself waits while the socket is full, and knows no deadline.
        connection.nonblocking = 1
        self._connection = connection
        self._side = side
        self._fd: int = connection.socket
        self.backend: int = connection.backend_pid
        self.encrypted = bool(connection.ssl_in_use)
        self.version: int = connection.server_version
        self.closed = False
        self.direct = False
        self.used = _now()
        self.ahead = 0.0
        self._known: dict[bytes, bytes] = {}
        self._preparing: tuple[bytes, bytes] | None = None
        self._last_words: list[str] = []
        # The handler must not refer to this object, or a dropped connection would stay open.
        connection.notice_handler = partial(_note, self._last_words)

    def is_stale(self, *, trust: bool = True) -> bool:
        """Whether the server closed it. `trust`: do not check a connection that was just used."""
        if self.closed or self._last_words:
            return True
        if trust and _now() - self.used < _STALE_AFTER:
            return False
        if self._preparing is not None:
            # The reply to the prepare may have come: the next request reads it.
            return False
        # Data without a request: in most cases the end of the session.
        return is_ready(self._fd, writing=False)

    def close(self) -> None:
        """Close the connection at once."""
        if not self.closed:
            self.closed = True
            self._connection.finish()

    def detach(self) -> None:
        """In a forked child: write nothing, and let the descriptor lead nowhere."""
        if not self.closed:
            self.closed = True
            leave_to_parent(self._fd)

    async def run_program(self, program: Program[T], until: float) -> T:
        """The outcome of a program of Requests. Raises Broken, PostgresErrorReply, its errors."""
        return await drive(program, lambda request: self.query(request, until))

    async def query(self, request: StatementRequest, until: float) -> bytes | None:
        """The one value of the statement's reply. Raises Broken, PostgresErrorReply."""
        if until <= _now():
            raise Broken("no time is left", sent=False, late=True)
        self.used = _now()
        if self._preparing is not None:
            await self._prepared(*self._preparing, until)
        if self._last_words:
            raise Broken(self._last_words[-1], sent=False)
        # psycopg before 3.3 takes only a list.
        connection, parameters = self._connection, [*request.parameters]
        name = self._known.get(request.sql)
        if name is not None:
            try:
                return await self._ask(until, connection.send_query_prepared, name, parameters)
            except PostgresErrorReply as error:
                if error.code not in _NOT_PREPARED:
                    raise
                # Another client discarded our statements, or a pooler hides: nothing was executed.
                self._forget()
        answer = await self._ask(until, connection.send_query_params, request.sql, parameters)
        if self.direct and parameters:
            self._prepare(request.sql)
        return answer

    async def script(self, text: str, until: float) -> None:
        """Execute several statements, in one transaction. Raises Broken, PostgresErrorReply."""
        await self._ask(until, self._connection.send_query, text.encode())

    def _prepare(self, sql: bytes) -> None:
        """Prepare the statement for its next use; no request waits for the reply."""
        # Such as "incumbent.give($1) 8c736521". The name depends on the content, as another release
        # may share the session through a pooler.
        call = sql.removeprefix(b"SELECT ").partition(b",")[0].rstrip(b")")
        name = b"%b) %08x" % (call, crc32(sql))
        try:
            self._connection.send_prepare(name, sql)
            self._connection.flush()
        except DriverError:
            return  # the next request will see the error
        self._preparing = (sql, name)

    async def _prepared(self, sql: bytes, name: bytes, until: float) -> None:
        """Read the reply to the prepare."""
        # First: after an error here nobody may wait for this reply again.
        self._preparing = None
        try:
            await self._reply(until)
        except PostgresErrorReply:
            self._forget()
        except Broken as error:
            # Nothing of the request itself was sent.
            raise Broken(str(error), sent=False, late=error.late) from error
        else:
            self._known[sql] = name
        if is_ready(self._fd, writing=False):
            raise Broken("the server closed the connection", sent=False)

    def _forget(self) -> None:
        self.direct = False
        self._known.clear()

    async def _ask(self, until: float, send: Callable[..., None], *what: Any) -> bytes | None:
        try:
            send(*what)
        except DriverError as error:
            raise self._lost(error, []) from error
        return await self._reply(until)

    async def _reply(self, until: float) -> bytes | None:
        """The value in the reply to the last request. Raises Broken, PostgresErrorReply."""
        connection = self._connection
        results: list[Any] = []
        try:
            while True:
                while (unsent := connection.flush()) or connection.is_busy():
                    if not await self._side.ready(self._fd, until, writing=bool(unsent)):
                        raise Broken("no answer in time", sent=True, late=True)
                    connection.consume_input()
                result = connection.get_result()
                if result is None:
                    break
                results.append(result)
        except DriverError as error:
            raise self._lost(error, results) from error
        values = [_value_of(result) for result in results]
        return values[-1] if values else None

    def _lost(self, error: Exception, results: list[Any]) -> Broken:
        """The exception for a request that failed by `error` after `results`.

        Raises Broken or PostgresErrorReply instead, if the server sent an error of its own.
        """
        connection = self._connection
        # A reply that was received before the connection ended may not have been parsed.
        # Without a connection this call does not block.
        if not results and connection.status == _BAD:
            results = [connection.get_result()]
        for result in results:
            # Errors of libpq itself have no severity.
            if result is not None and result.error_field(_SEVERITY):
                _value_of(result)
        return _broken(error)

    async def notified(self, until: float) -> list[str]:
        """Wait for notifications, and return them; none at `until`. Raises Broken."""
        connection = self._connection
        try:
            found: list[str] = []
            while not found:
                while (each := connection.notifies()) is not None:
                    found.append(each.extra.decode("utf-8", "replace"))
                if not found:
                    if not await self._side.ready(self._fd, until):
                        return []
                    connection.consume_input()
        except DriverError as error:
            raise _broken(error) from error
        return found


def _note(last_words: list[str], result: Any) -> None:
    """Keep the text of a notice that ends the session."""
    # libpq takes an error between requests, or one that comes with the reply before, for a notice;
    # the next request would only report that the connection is closed.
    if (result.error_field(_SEVERITY) or b"") in _ENDS:
        text = result.error_field(_MESSAGE) or b""
        last_words.append(text.decode("utf-8", "replace") or "the connection ended")


def _value_of(result: Any) -> bytes | None:
    """The one value of a result. Raises PostgresErrorReply; Broken if it ends the session."""
    if result.status == _FATAL_ERROR:
        severity, code, text = (
            (result.error_field(each) or b"").decode("utf-8", "replace")
            for each in (_SEVERITY, _SQLSTATE, _MESSAGE)
        )
        if severity != "ERROR":
            raise Broken(text or "the connection ended", sent=code != _IDLED)
        raise PostgresErrorReply(code, text)
    if result.ntuples == 0:
        return None
    value: bytes | None = result.get_value(0, 0)
    return value


def _broken(error: Exception) -> Broken:
    """The exception for an error of libpq; the outcome is unknown, as bytes may have been sent."""
    return Broken(" ".join(str(error).split()) or "the server closed the connection", sent=True)
