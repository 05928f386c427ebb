"""The wakeups of waiters, and the connections on which one of them reads for all.

`subscriptions` uses them. Each has a class for threads, and one for the tasks of an event loop.
"""

from __future__ import annotations

import socket
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from incumbent import clock
from incumbent.interrupts import raise_if_from_signal
from incumbent.net.dial import close_with, make_poller
from incumbent.net.pool import Broken

if TYPE_CHECKING:
    from asyncio import Future

SLICE: Final = 5.0
"""Seconds of one wait; then `clock.now` is read again, which also counts suspended time."""
CONNECTED: Final = object()
"""The first message of a connection."""
Message: TypeAlias = "tuple[int, Any]"
"""A node, with CONNECTED, a message from it, or the error that ended its connection."""

# The node number that means: the reader was woken.
_WOKEN: Final = -1

_now = clock.now


# -- waking ---------------------------------------------------------------------------------------


class Wakeup(Protocol):
    """The wakeup of one waiter."""

    def wake(self) -> None:
        """Wake the waiter, now or at its next wait; from any thread, but see LoopWakeup."""

    async def wait(self, until: float) -> None:
        """Return when woken, or at `until`, or earlier."""


class ThreadWakeup:
    """The wakeup of a thread."""

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._gate.acquire()

    def wake(self) -> None:
        try:
            self._gate.release()
        except RuntimeError as error:
            raise_if_from_signal(error)  # else it is woken already

    async def wait(self, until: float) -> None:
        # A lock as a flag that remembers one wake: one that comes before the wait ends it at once.
        self._gate.acquire(timeout=max(0.0, min(until - _now(), SLICE)))


class LoopWakeup:
    """The wakeup of a task, called only in the task's own loop."""

    def __init__(self) -> None:
        self._woken = False
        self._sleeper: Future[None] | None = None

    def wake(self) -> None:
        self._woken = True
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def wait(self, until: float) -> None:
        if not self._woken:
            from asyncio import get_running_loop

            loop = get_running_loop()
            sleeper = self._sleeper = loop.create_future()
            timer = loop.call_later(max(0.0, until - _now()), self.wake)
            try:
                await sleeper
            finally:
                timer.cancel()
                self._sleeper = None
        # Only after a wait that ended: if it was cancelled, a wake that came at the same time is
        # kept.
        self._woken = False


class SharedWakeup(LoopWakeup):
    """The wakeup of a task, called from any thread."""

    def __init__(self) -> None:
        super().__init__()
        from asyncio import get_running_loop

        self._loop, self._thread = get_running_loop(), threading.get_ident()

    def wake(self) -> None:
        try:
            if threading.get_ident() == self._thread:
                super().wake()
            else:
                # All steps on `_woken` and the future belong to the loop's thread; asyncio's are
                # not atomic.
                self._loop.call_soon_threadsafe(super().wake)
        except RuntimeError as error:
            raise_if_from_signal(error)  # else the task's loop has ended, and no task waits there


# -- reading --------------------------------------------------------------------------------------


class _SubscriberWire(Protocol):
    used: float

    def send(self, request: bytes, until: float) -> None: ...

    def close(self) -> None: ...


class _BlockingSubscriberWire(_SubscriberWire, Protocol):
    def fileno(self) -> int: ...

    def fill(self) -> None:
        """Read the available bytes, without waiting for a whole message. Raises Broken."""

    def buffered(self) -> Any:
        """A message that has been read already, or False. Raises Broken."""


class _AsyncSubscriberWire(_SubscriberWire, Protocol):
    on_message: Callable[[Any], None] | None

    @property
    def closed(self) -> bool: ...


W = TypeVar("W", bound=_SubscriberWire)


class Subscriber(Generic[W]):
    """The reader's connections, at most one to each node.

    Only the reader may call the methods, except `arrive` and `wake`.
    """

    interruptible = False
    """Whether an exception in `next` loses no message."""

    def __init__(self) -> None:
        self._wires: dict[int, W] = {}
        self._closed = False

    def arrive(self, node: int, wire: W | Exception) -> None:
        """Add a connection to a node, or the error instead of one, for `next` to return."""
        # If the reader closes it right after this, the connection lies in a queue that nobody
        # reads, and closes when that is collected.
        if not self._closed:
            self._put(node, wire)
        elif not isinstance(wire, Exception):
            wire.close()

    @abstractmethod
    def _put(self, node: int, wire: W | Exception) -> None:
        """Keep the connection or error for `next`."""

    def send(self, node: int, request: bytes, until: float) -> None:
        """Send to a node. Raises Broken."""
        wire = self._wires.get(node)
        if wire is None:
            raise Broken("it is not connected", sent=False)
        wire.used = _now()
        wire.send(request, until)

    @abstractmethod
    async def next(self, until: float) -> Message | None:
        """The next message; None at `until`, or when woken."""

    @abstractmethod
    def wake(self) -> None:
        """Make `next` return."""

    def drop(self, node: int) -> None:
        """Close the connection to a node, if there is one."""
        wire = self._wires.pop(node, None)
        if wire is not None:
            wire.close()

    def close(self) -> None:
        """Close all connections at once, without writing anything."""
        self._closed = True
        for node in list(self._wires):
            self.drop(node)


class BlockingSubscriber(Subscriber[_BlockingSubscriberWire]):
    """A Subscriber for threads. A socket pair wakes the reader: not every system polls pipes."""

    def __init__(self) -> None:
        super().__init__()
        self._arrived: SimpleQueue[tuple[int, _BlockingSubscriberWire | Exception]] = SimpleQueue()
        self._mine, self._others = self._ends = socket.socketpair()
        for end in self._ends:
            end.setblocking(False)
        close_with(self, partial(_close_all, self._ends))
        self._watch_all()

    def _watch_all(self) -> None:
        self._nodes = {self._mine.fileno(): _WOKEN}
        self._nodes |= {wire.fileno(): node for node, wire in self._wires.items()}
        self._ready = make_poller(*self._nodes)

    def _put(self, node: int, wire: _BlockingSubscriberWire | Exception) -> None:
        self._arrived.put((node, wire))
        self.wake()

    async def next(self, until: float) -> Message | None:
        # What has been read already comes first: poll does not report it again.
        while (message := self._at_hand()) is None:
            left = until - _now()
            ready = {self._nodes[fd] for fd in self._ready(max(0.0, min(left, SLICE)))}
            for node in ready - {_WOKEN}:
                try:
                    self._wires[node].fill()
                except Broken as error:
                    return (node, error)
            if _WOKEN in ready:
                # Many wakeups are one: what each of them announced is in the queue before its byte.
                self._mine.recv(1024)
                return self._at_hand()
            if not ready and left <= 0:
                return None
        return message

    def _at_hand(self) -> Message | None:
        """A message that has come already, or None."""
        try:
            node, wire = self._arrived.get_nowait()
        except Empty:
            return self._buffered()
        if isinstance(wire, Exception):
            return (node, wire)
        self._wires[node] = wire
        self._watch_all()
        return (node, CONNECTED)

    def _buffered(self) -> Message | None:
        for node, wire in self._wires.items():
            try:
                if (message := wire.buffered()) is not False:
                    return (node, message)
            except Broken as error:
                # The other ready sockets, and a wake, stay readable: the next poll reports them.
                return (node, error)
        return None

    def wake(self) -> None:
        try:
            self._others.send(b"!")
        except OSError as error:
            raise_if_from_signal(error)  # else unread wakeups fill the socket, or it is closed

    def drop(self, node: int) -> None:
        super().drop(node)
        if not self._closed:
            # The number of a closed descriptor may soon be that of another file.
            self._watch_all()

    def close(self) -> None:
        super().close()
        _close_all(self._ends)

    def __del__(self) -> None:
        if hasattr(self, "_ends"):  # making it may have failed
            _close_all(self._ends)


def _close_all(ends: tuple[socket.socket, ...]) -> None:
    for end in ends:
        end.close()


class AsyncSubscriber(Subscriber[_AsyncSubscriberWire]):
    """A Subscriber for the tasks of one loop."""

    interruptible = True

    def __init__(self) -> None:
        super().__init__()
        self._inbox: deque[Message] = deque()
        self._wakeup = LoopWakeup()

    def _put(self, node: int, wire: _AsyncSubscriberWire | Exception) -> None:
        if isinstance(wire, Exception):
            self._receive(node, wire)
            return
        self._wires[node] = wire
        # Before `closed` is read: an end after this calls it, and one before this shows in
        # `closed`.
        wire.on_message = partial(self._receive, node)
        self._receive(node, CONNECTED)
        if wire.closed:
            self._receive(node, None)

    def _receive(self, node: int, message: Any) -> None:
        if message is None:
            message = Broken("the subscription was closed", sent=True)
        self._inbox.append((node, message))
        self._wakeup.wake()

    async def next(self, until: float) -> Message | None:
        if not self._inbox and until > _now():
            await self._wakeup.wait(until)
        return self._inbox.popleft() if self._inbox else None

    def wake(self) -> None:
        self._wakeup.wake()

    def drop(self, node: int) -> None:
        wire = self._wires.get(node)
        if wire is not None:
            wire.on_message = None
        super().drop(node)
        # Its messages must not be taken for those of a later connection.
        self._inbox = deque(each for each in self._inbox if each[0] != node)


class ReaderSide(NamedTuple):
    """The classes that waiters use on one side, blocking or asynchronous.

    `me` identifies the thread. For tasks it is new at each call: they do not interrupt each other.
    """

    wakeup: Callable[[], Wakeup]
    subscriber: Callable[[], Subscriber[Any]]
    me: Callable[[], Hashable]


def _this_thread() -> Hashable:
    return threading.get_ident()  # looked up now: gevent replaces it


BLOCKING: Final = ReaderSide(ThreadWakeup, BlockingSubscriber, _this_thread)
SUSPENDING: Final = ReaderSide(LoopWakeup, AsyncSubscriber, object)
