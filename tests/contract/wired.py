"""A store behind a network, as small as one can be: a memory store, served over TCP.

Its clients keep the rules of docs/own-store.md that are about connections and clocks; each rule is
one attribute or method, so that `mutants_of_clients` can break it.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from copy import deepcopy
from functools import partial
from types import TracebackType
from typing import Any, ClassVar, Self

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.net.dial import connect
from incumbent.stores.base import AsyncStore
from incumbent.stores.loops import Loops
from incumbent.stores.memory import MemoryEngine, MemoryStore
from incumbent.stores.threaded import ThreadedAsyncStore
from incumbent.testing.contract import NetworkWorld
from incumbent.testing.proxy import FaultProxy

_SIZE = struct.Struct(">I")
_CHANGES = frozenset({"take", "renew", "give", "put"})
CHANGE, READ = b"change:", b"read:"


def framed(operation: str, *rest: Any) -> bytes:
    """A request as it is sent: whoever looks at the network sees whether it changes something."""
    head = CHANGE if operation in _CHANGES else READ
    body = head + pickle.dumps((operation, *rest))
    return _SIZE.pack(len(body)) + body


class WireServer:
    """Serves one memory store; its clock goes on by itself and can be moved."""

    def __init__(self) -> None:
        self.shift = 0.0
        self._client_now: float | None = None
        self._one_by_one = threading.RLock()
        self.store = MemoryStore(self._now, lambda: clock.wall() + self.shift)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _now(self) -> float:
        return clock.now() + self.shift if self._client_now is None else self._client_now

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._connections.append(sock)
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with suppress(OSError), sock, sock.makefile("rb") as stream:
            while head := stream.read(_SIZE.size):
                body = stream.read(size := _SIZE.unpack(head)[0])
                if len(body) < size:
                    return  # the client has ended in the middle of a request
                answer = pickle.dumps(self._answer(*pickle.loads(body[body.index(b":") + 1 :])))
                sock.sendall(_SIZE.pack(len(answer)) + answer)

    def _answer(self, operation: str, arguments: Any, settings: Any, client_now: Any) -> Any:
        if operation == "wait_change":
            key, seen, left = arguments
            self.store.wait_change(key, seen, clock.now() + left)
            return None, None
        with self._one_by_one:
            self._client_now = client_now
            try:
                act = getattr(self, f"_{operation}", None) or getattr(self.store, operation)
                return act(*arguments, **settings), None
            except StoreError as error:
                return None, error
            finally:
                self._client_now = None

    def _take_all(self, takes: Any, until: float) -> Any:
        return [self.store.take(it.key, it.claim, it.ask, until) for it in takes]

    def _give_all(self, gives: Any, until: float) -> Any:
        return [self.store.give(it.key, it.claim, it.token, until) for it in gives]

    def _load(self, key: Any, _: float) -> Any:
        """For a planted bug: the record itself, and which incarnation this is."""
        table = self.store._table
        return deepcopy(table._kept.get(key)), table.epoch

    def _save(self, key: Any, entry: Any, _: float) -> None:
        self.store._table._kept[key] = entry

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in self._connections:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class WireClient:
    """What both sides know: where the server is, and what an answer means."""

    client_now: ClassVar[Callable[[], float] | None] = None
    """No client sends what its own clock says."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.host, self.port = host, port
        self._idle: list[Any] = []
        self._process = os.getpid()

    def request(self, operation: str, arguments: Any, settings: Any) -> tuple[bytes, float]:
        *rest, until = arguments
        now = type(self).client_now
        passed_on = until - clock.now() if operation == "wait_change" else until
        return framed(operation, (*rest, passed_on), settings, now and now()), until

    @staticmethod
    def outcome(answer: bytes) -> Any:
        found, error = pickle.loads(answer)
        if error is not None:
            raise error
        return found

    @staticmethod
    def unanswered(operation: str, error: Exception) -> None:
        """A wait is over when its time is; of anything else nobody knows whether it was done."""
        if operation != "wait_change":
            raise OutcomeUnknown(f"no answer: {error}") from error

    def idle(self) -> Any:
        """A connection that is not in use, or None."""
        self.forget_parents()
        with suppress(IndexError):  # another thread has the last one
            return self._idle.pop()
        return None

    def forget_parents(self) -> None:
        """In a fork's child: the connections are the parent's."""
        if self._process != os.getpid():
            self._process, self._idle = os.getpid(), []

    def after(self, connection: Any, *, answered: bool) -> None:
        """Keep a connection only if its answer was read."""
        if answered:
            self._idle.append(connection)
        else:
            connection.close()

    def let_go(self) -> None:
        while (connection := self.idle()) is not None:
            connection.close()


class WireStore(WireClient):
    """The blocking Store."""

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        return partial(self._ask, operation)

    def _ask(self, operation: str, /, *arguments: Any, **settings: Any) -> Any:
        request, until = self.request(operation, arguments, settings)
        sock, answered = self.idle() or self._connect(until), False
        try:
            answer = _exchange(sock, request, until)
            answered = True
        except OSError as error:
            return self.unanswered(operation, error)
        finally:
            self.after(sock, answered=answered)
        return self.outcome(answer)

    def _connect(self, until: float) -> socket.socket:
        try:
            return connect(self.host, self.port, until)
        except OSError as error:
            raise StoreUnavailable(f"no connection: {error}") from error

    def close(self) -> None:
        self.let_go()


def _exchange(sock: socket.socket, request: bytes, until: float) -> bytes:
    sock.settimeout(max(0.001, until - clock.now()))
    sock.sendall(request)
    answer = b""
    while len(answer) < _SIZE.size or len(answer) < _SIZE.size + _SIZE.unpack_from(answer)[0]:
        sock.settimeout(max(0.001, until - clock.now()))
        chunk = sock.recv(65_536)
        if not chunk:
            raise ConnectionError("the server closed the connection")
        answer += chunk
    return answer[_SIZE.size :]


class AsyncWireStore(WireClient):
    """The AsyncStore of one loop."""

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        return partial(self._ask, operation)

    async def _ask(self, operation: str, /, *arguments: Any, **settings: Any) -> Any:
        request, until = self.request(operation, arguments, settings)
        streams, answered = self.idle() or await self._connect(until), False
        try:
            async with asyncio.timeout(max(0.0, until - clock.now())):
                answer = await streams.exchange(request)
            answered = True
        except (OSError, EOFError) as error:
            return self.unanswered(operation, error)
        finally:
            self.after(streams, answered=answered)
        return self.outcome(answer)

    async def _connect(self, until: float) -> _Streams:
        try:
            sock = await asyncio.to_thread(connect, self.host, self.port, until)
            return _Streams(*await asyncio.open_connection(sock=sock))
        except OSError as error:
            raise StoreUnavailable(f"no connection: {error}") from error

    async def aclose(self) -> None:
        self.let_go()

    def detach(self) -> None:
        """In a fork's child: forget, and close nothing that belongs to the parent's loop."""


class _Streams:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def exchange(self, request: bytes) -> bytes:
        self._writer.write(request)
        return await self._reader.readexactly(
            *_SIZE.unpack(await self._reader.readexactly(_SIZE.size))
        )

    def close(self) -> None:
        self._writer.transport.abort()


class WireEngine:
    """The engine. `threaded`: its asynchronous side is the blocking one, in threads."""

    capabilities = MemoryEngine.capabilities
    Blocking: ClassVar[type[WireStore]] = WireStore
    Async: ClassVar[type[AsyncWireStore]] = AsyncWireStore

    def __init__(self, port: int, host: str = "127.0.0.1", *, threaded: bool = False) -> None:
        self.url = f"wire://{host}:{port}"
        self._store = self.Blocking(port, host)
        self._loops: Loops[Any] = Loops(
            partial(ThreadedAsyncStore, self._store)
            if threaded
            else partial(self.Async, port, host)
        )

    def store(self) -> Any:
        return self._store

    def async_store(self) -> AsyncStore:
        store: AsyncStore = self._loops.store()
        return store

    def diagnose(self, ttl: float, until: float) -> list[tuple[str, str, str]]:
        return []


def open_wire(url: str, kind: type[WireEngine], *, threaded: bool) -> WireEngine:
    """The engine of `wire://host:port`."""
    host, _, port = url.removeprefix("wire://").partition(":")
    return kind(int(port), host, threaded=threaded)


class WireWorld(NetworkWorld):
    """Every hook there is but a failover: the server is here, and so is the network before it."""

    def __init__(
        self, server: WireServer, proxy: FaultProxy, kind: type[WireEngine], *, threaded: bool
    ) -> None:
        make = partial(open_wire, kind=kind, threaded=threaded)
        super().__init__(make, f"wire://127.0.0.1:{proxy.port}", [proxy], CHANGE)
        self._server = server

    def pass_time(self, seconds: float) -> None:
        self._server.shift += seconds

    def restart(self, *, empty: bool) -> None:
        self._server.store.restart(empty=empty)


@contextmanager
def wire_world(
    kind: type[WireEngine] = WireEngine, *, threaded: bool = False
) -> Iterator[WireWorld]:
    """A world with a server of its own."""
    with WireServer() as server, FaultProxy(server.port) as proxy:
        world = WireWorld(server, proxy, kind, threaded=threaded)
        with closing(world.engine.store()):
            yield world
