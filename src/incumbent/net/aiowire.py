"""Asynchronous connections: asyncio protocols, each with one timer for all its waiters.

`connect` and `resolve` have no deadline of their own: the caller sets one with `asyncio.timeout`.
Names are resolved on a daemon thread: the event loop's own resolver runs on its executor, which
asyncio.run joins at the end, so that a hanging resolver would keep the program from exiting.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Coroutine
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, TypeVar, cast

from incumbent import clock
from incumbent.interrupts import is_from_signal, raise_if_from_signal
from incumbent.net.dial import PARTS, leave_to_parent, literal_address, look_up, shared, tune
from incumbent.net.limiter import DIAL_WITHIN
from incumbent.net.pool import Broken, Ended
from incumbent.unpatched import start_bare_thread

if TYPE_CHECKING:
    import ssl

_now = clock.now
_LONGEST = 3600.0
_READ_AT_ONCE = 65_536
_BLOCKED = 0.05
"""Seconds by which a timer is late if a step of the event loop took long."""
_READING = 0.001

P = TypeVar("P", bound=asyncio.BaseProtocol)
W = TypeVar("W")


class AsyncConnection(asyncio.BufferedProtocol):
    """A connection (see net.pool). `used`: when the present (or last) exchange began."""

    _transport: asyncio.Transport

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._failure: Exception | None = None
        self._timer_at = inf
        self._timer: asyncio.TimerHandle | None = None
        self._reads_first = False
        """Whether the loop was blocked, so that answers in the socket are read before the timer."""
        self._read = memoryview(bytearray(_READ_AT_ONCE))
        self.used = 0.0

    @property
    def closed(self) -> bool:
        """Whether the connection can no longer be used."""
        return self._failure is not None

    def close(self) -> None:
        """Close at once, without writing anything."""
        # First: what this wakes may set the timer once more.
        self._fail(Broken("closed", sent=True))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._transport.abort()

    def hang_up(self) -> None:
        """Close, which also wakes all waiters."""
        self.close()

    def detach(self) -> None:
        """In a fork's child: release the descriptor without touching the parent's event loop.

        The loop's epoll object is shared with the parent, so the transport must not be closed.
        """
        sock = self._transport.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            leave_to_parent(sock.fileno())

    def _admit(self, until: float) -> float:
        """Check that a request may be sent; set the timer for `until`; return the present instant.

        Raises Broken.
        """
        failure = self._failure
        if failure is not None:
            if not isinstance(failure, Broken):
                raise failure
            # Whatever ended the connection, it was before this request: no byte of it has left.
            raise Broken(str(failure), sent=False) from failure
        now = _now()
        if now >= until:
            raise Broken("no time is left", sent=False, late=True)
        self._wake_at(until)
        return now

    @abstractmethod
    def _fail(self, error: Exception) -> None:
        """Note the first failure, and wake all waiters.

        One that is not Broken is a defect, or a signal handler's: the waiters raise it as it is.
        """

    @abstractmethod
    def _tick(self) -> None:
        """Wake the waiters whose deadline has passed; set the timer for the others."""

    def _wake_at(self, until: float) -> None:
        """Have `_tick` called at `until` or earlier. Only an earlier timer replaces the timer."""
        if until >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = until
        self._timer = self._loop.call_later(
            max(0.0, min(_LONGEST, until - _now())), self._timer_ended
        )

    def _timer_ended(self) -> None:
        late = _now() - self._timer_at
        self._timer, self._timer_at = None, inf
        self._reads_first = late > _BLOCKED and not self._reads_first
        if self._reads_first:
            # The loop was blocked: answers that came in time may be unread. They are read first.
            self._wake_at(_now() + _READING)
            return
        try:
            self._tick()
        except Exception as error:
            self._break(error)
            raise

    def _break(self, error: Exception) -> None:
        """Close the connection, and give `error` to all waiters: the event loop only logs it."""
        self._fail(error)
        self.close()

    # -- called by the event loop -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol. The event loop calls this first."""
        # Not checked by its class: the transports of uvloop are not derived from asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio.BufferedProtocol. Other protocols cost a new buffer of 256 KiB for each read.

        That may cost twice as much as the rest of the read, depending on the allocator.
        """
        return self._read

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio.BufferedProtocol."""
        # A copy: the next read overwrites the buffer, and a waiter looks at its bytes only later.
        self.data_received(bytes(self._read[:nbytes]))

    @abstractmethod
    def data_received(self, data: bytes) -> None:
        """Process bytes that have arrived."""

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.Protocol."""
        if exc is None:
            self._fail(Ended())
        elif not isinstance(exc, OSError) or is_from_signal(exc):
            self._fail(exc)
        else:
            broken = Broken(str(exc), sent=True)
            broken.__cause__ = exc
            self._fail(broken)


class AsyncStream(AsyncConnection):
    """A connection whose bytes are read by one task at a time."""

    def __init__(self) -> None:
        super().__init__()
        self._inbox = bytearray()
        self._waiter: asyncio.Future[None] | None = None

    def is_stale(self, *, trust: bool) -> bool:
        """Whether it is closed (the event loop notices that), or has bytes that nobody asked for.

        Such bytes would be read as the next request's answer.
        """
        return self.closed or bool(self._inbox)

    def send(self, request: bytes, until: float) -> None:
        """Send the whole request. Raises Broken."""
        self._admit(until)
        self._transport.write(request)

    async def more(self, until: float) -> bytes:
        """The next bytes. Raises Broken, also at the end of the connection."""
        while not self._inbox:
            # Only once the inbox is empty: an answer that came before the end is an answer.
            if self._failure is not None:
                raise self._failure
            if _now() >= until:
                raise Broken("no answer in time", sent=True, late=True)
            # The waiter may be woken too early: the loop's clock is not `clock.now`.
            self._wake_at(until)
            waiter = self._waiter = self._loop.create_future()
            try:
                await waiter
            finally:
                self._waiter = None
        data = bytes(self._inbox)
        self._inbox.clear()
        return data

    def _fail(self, error: Exception) -> None:
        # The first failure is the cause; what follows comes from our own closing.
        self._failure = self._failure or error
        self._tick()

    def _tick(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # -- called by the event loop -------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        self._inbox += data
        self._tick()

    def eof_received(self) -> None:
        """See asyncio.Protocol. The transport closes itself after this."""
        self._fail(Ended())


# -- making a connection --------------------------------------------------------------------------

_dials: set[asyncio.Task[Any]] = set()
"""Dials that go on without a caller: the event loop itself has only weak references."""


async def outliving(
    dial: Callable[[float], Coroutine[Any, Any, W]],
    until: float,
    keep: Callable[[W], None],
    lasts: float = -inf,
) -> W:
    """The connection that `dial` makes. If it takes longer, `keep` gets it, for the next caller.

    The dial goes on until `lasts`, or for as long as a dial may take, whichever is longer. Raises
    TimeoutError at `until`.
    """

    async def begun() -> W:
        # The loop may have much to do before: the dial's time begins here.
        return await dial(max(lasts, _now() + DIAL_WITHIN))

    # A task of its own: a caller that is cancelled, or late, must not cut off a handshake that the
    # next caller would only begin again.
    task = asyncio.create_task(begun())
    _dials.add(task)
    task.add_done_callback(_dials.discard)
    mine = False
    try:
        mine = bool((await asyncio.wait((task,), timeout=max(0.0, until - _now())))[0])
    finally:
        if not mine:
            task.add_done_callback(partial(_keep, keep))
    if not mine:
        raise TimeoutError("no connection in time")
    return task.result()


def _keep(keep: Callable[[W], None], task: asyncio.Task[W]) -> None:
    # exception() also marks it as seen, else asyncio logs an error that nobody waits for.
    if not task.cancelled() and task.exception() is None:
        keep(task.result())


async def connect(
    make: Callable[[], P],
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    until: float = inf,
) -> P:
    """A protocol from `make`, connected to the first address of `host` that accepts.

    As `dial.connect`, but the caller ends it at `until`. Raises OSError.
    """
    loop = asyncio.get_running_loop()
    failure = OSError("the name has no address")
    for address, share in shared(await resolve(host, port), until, inf, PARTS):
        try:
            async with asyncio.timeout(min(_LONGEST, share - _now())):
                transport, protocol = await loop.create_connection(
                    make, address, port, ssl=tls, server_hostname=None if tls is None else host
                )
        except OSError as error:
            raise_if_from_signal(error)
            failure = error
            continue
        try:
            tune(transport.get_extra_info("socket"))
        except BaseException:
            transport.abort()
            raise
        return protocol
    raise failure


async def connect_unix(make: Callable[[], P], path: str) -> P:
    """A protocol from `make`, connected to a unix socket. Raises OSError."""
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
            loop.call_soon_threadsafe(_deliver, found, outcome)
        except RuntimeError:
            pass  # the loop is closed, so nobody waits

    try:
        start_bare_thread(work)
    except RuntimeError as error:
        raise_if_from_signal(error)
        # No thread is to be had. Nothing was sent, and the next try may get one.
        raise OSError(f"{host!r} cannot be looked up: {error}") from error
    return await found


async def wait_ready(fd: int, until: float, *, writing: bool = False) -> bool:
    """Wait for a descriptor of another library; return whether it was ready before `until`."""
    loop = asyncio.get_running_loop()
    add, remove = (
        (loop.add_writer, loop.remove_writer) if writing else (loop.add_reader, loop.remove_reader)
    )
    ready: asyncio.Future[bool] = loop.create_future()

    def end(outcome: bool) -> None:
        if not ready.done():
            ready.set_result(outcome)

    timer = loop.call_later(max(0.0, until - _now()), end, False)
    add(fd, end, True)
    try:
        return await ready
    finally:
        # Before the caller closes it: the loop would keep a number that is another file's soon.
        remove(fd)
        timer.cancel()


def _deliver(found: asyncio.Future[list[str]], outcome: list[str] | BaseException) -> None:
    # Its waiter was cancelled, or ran out of time, while the resolver went on.
    if found.done():
        return
    if isinstance(outcome, BaseException):
        found.set_exception(outcome)
    else:
        found.set_result(outcome)
