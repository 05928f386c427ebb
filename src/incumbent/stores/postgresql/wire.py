"""One connection, by libpq's protocol; how to wait for its socket is its side's matter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar
from zlib import crc32

from incumbent import clock
from incumbent.net.dial import is_ready, leave_to_parent
from incumbent.net.pool import Broken
from incumbent.stores.plan import Plan
from incumbent.stores.postgresql.dialect import Request
from incumbent.stores.postgresql.errors import Answered
from incumbent.stores.postgresql.libpq import DriverError, Side, pq

T = TypeVar("T")

_BAD: Final = pq.ConnStatus.BAD
_FATAL_ERROR: Final = pq.ExecStatus.FATAL_ERROR
_SEVERITY: Final = pq.DiagnosticField.SEVERITY_NONLOCALIZED
_ENDS: Final = (b"FATAL", b"PANIC")
_SQLSTATE: Final = pq.DiagnosticField.SQLSTATE
_MESSAGE: Final = pq.DiagnosticField.MESSAGE_PRIMARY
_STALE_AFTER: Final = 0.05
"""A connection unused for longer is looked at before it is trusted: one system call."""

_IDLED: Final = "57P05"
"""The server ended a session that idled too long (idle_session_timeout). It says so only between
requests, before it begins another: one that this answers was not carried out."""
_NOT_PREPARED: Final = ("26000", "42P05")
"""No such prepared statement; there is one already."""

_now = clock.now


class Wire:
    """`used`: when the present (or last) request began; `direct`: no pooler stands between.

    `ahead`: by how many seconds at most the server's clock (since 1970) is ahead of ours.
    `backend`: the server process that the login named. `version`: 150004 for 15.4.
    """

    def __init__(self, connection: Any, side: Side) -> None:
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
        # It must not refer to this object: nobody but its holder keeps a connection open.
        connection.notice_handler = partial(_note, self._last_words)

    def is_stale(self, *, trust: bool = True) -> bool:
        """Whether the server closed it. `trust`: do not look at one that was just used."""
        if self.closed or self._last_words:
            return True
        if trust and _now() - self.used < _STALE_AFTER:
            return False
        if self._preparing is not None:
            # What is there to read may be the answer that comes: whoever uses it will see.
            return False
        # Something that nobody asked for: an end, in most cases.
        return is_ready(self._fd, writing=False)

    def close(self) -> None:
        """Let go at once."""
        if not self.closed:
            self.closed = True
            self._connection.finish()

    def detach(self) -> None:
        """In a fork's child: nothing is written, and nothing of ours is at the descriptor."""
        if not self.closed:
            self.closed = True
            leave_to_parent(self._fd)

    async def carry_out(self, plan: Plan[float, T], until: float) -> T:
        """The outcome of a plan. Raises Broken, Answered, and whatever its program raises."""
        program = plan.start(self.ahead, until)
        try:
            request = next(program)
            while True:
                self.used = _now()
                request = program.send(await self.query(request, until))
        except StopIteration as done:
            outcome: T = done.value
            return outcome

    async def query(self, request: Request, until: float) -> bytes | None:
        """The one value that the statement answers. Raises Broken, Answered."""
        if until <= _now():
            raise Broken("no time is left", sent=False, late=True)
        if self._preparing is not None:
            await self._prepared(*self._preparing, until)
        if self._last_words:
            raise Broken(self._last_words[-1], sent=False)
        # psycopg before 3.3 takes nothing but a list.
        connection, parameters = self._connection, [*request.parameters]
        name = self._known.get(request.sql)
        if name is not None:
            try:
                return await self._ask(until, connection.send_query_prepared, name, parameters)
            except Answered as error:
                if error.code not in _NOT_PREPARED:
                    raise
                # Somebody tidied up our session, or a pooler hides well: nothing was executed.
                self._forget()
        answer = await self._ask(until, connection.send_query_params, request.sql, parameters)
        if self.direct and parameters:
            self._prepare(request.sql)
        return answer

    async def script(self, text: str, until: float) -> None:
        """Several statements, in one transaction. Raises Broken, Answered."""
        await self._ask(until, self._connection.send_query, text.encode())

    def _prepare(self, sql: bytes) -> None:
        """Have it prepared for the next time; nobody waits for that."""
        # Such as "incumbent.give($1) 8c736521". Told apart by content: another release may share
        # the session through a pooler.
        call = sql.removeprefix(b"SELECT ").partition(b",")[0].rstrip(b")")
        name = b"%b) %08x" % (call, crc32(sql))
        try:
            self._connection.send_prepare(name, sql)
            self._connection.flush()
        except DriverError:
            return  # whoever uses it next will see
        self._preparing = (sql, name)

    async def _prepared(self, sql: bytes, name: bytes, until: float) -> None:
        """Read the reply to that."""
        self._preparing = None
        try:
            await self._reply(until)
        except Answered:
            self._forget()
        except Broken as error:
            # Of the request itself nothing has left.
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
        """The value of what was sent."""
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
        """What it means that a request failed by `error` after `results`.

        Raises Broken, Answered: the server's own words, if it had some.
        """
        connection = self._connection
        # What was read before the end of the connection was noticed may not have been looked at.
        # Without a connection this does not block.
        if not results and connection.status == _BAD:
            results = [connection.get_result()]
        for result in results:
            # Libpq's own words have no severity.
            if result is not None and result.error_field(_SEVERITY):
                _value_of(result)
        return _broken(error)

    async def notified(self, until: float) -> list[str]:
        """What was notified; nothing at `until`. Raises Broken."""
        connection = self._connection
        try:
            while not (found := _drained(connection)):
                if not await self._side.ready(self._fd, until):
                    return []
                connection.consume_input()
        except DriverError as error:
            raise _broken(error) from error
        return found


def _drained(connection: Any) -> list[str]:
    found = []
    while (each := connection.notifies()) is not None:
        found.append(each.extra.decode("utf-8", "replace"))
    return found


def _note(last_words: list[str], result: Any) -> None:
    """Keep the end of a session, if it is one.

    libpq takes what comes between requests, as together with the answer before, for a notice; the
    next request would hear only that nobody is there.
    """
    if (result.error_field(_SEVERITY) or b"") in _ENDS:
        text = result.error_field(_MESSAGE) or b""
        last_words.append(text.decode("utf-8", "replace") or "the connection ended")


def _value_of(result: Any) -> bytes | None:
    """The one value that was answered. Raises Answered, or Broken for a session's last words."""
    if result.status == _FATAL_ERROR:
        severity, code, text = (
            (result.error_field(each) or b"").decode("utf-8", "replace")
            for each in (_SEVERITY, _SQLSTATE, _MESSAGE)
        )
        if severity != "ERROR":
            raise Broken(text or "the connection ended", sent=code != _IDLED)
        raise Answered(code, text)
    if result.ntuples == 0:
        return None
    value: bytes | None = result.get_value(0, 0)
    return value


def _broken(error: Exception) -> Broken:
    """What libpq's error means: once something was sent, all is open."""
    return Broken(" ".join(str(error).split()) or "the server closed the connection", sent=True)
