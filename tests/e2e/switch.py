"""A Telnet server that remembers every session and every line, with their times."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
import time
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Any, Self

import telnetlib3

START_WITHIN = 10.0
TCP_ESTABLISHED = 1  # in tcp_info, see tcp(7)


@dataclass(frozen=True)
class Said:
    """A line of a client: "heartbeat INSTANCE TERM"."""

    session: int
    instance: str
    term: int


class Switch:
    """Listens on a free port of loopback, in a thread of its own; a context manager."""

    def __init__(self) -> None:
        self.port = 0
        self.lines: list[Said] = []
        self.opened = 0
        self.together: list[frozenset[int]] = []
        """The sessions that were open when one was opened beside them."""
        self.transports: dict[int, asyncio.WriteTransport] = {}
        self._open: set[int] = set()
        self._numbers = count(1)
        self._listening = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = asyncio.Event()

    # -- what it knows

    @property
    def open_sessions(self) -> frozenset[int]:
        return frozenset(self._open)

    def speaker(self, after: int = 0) -> str | None:
        """The instance of the last line, if it came after the first `after` lines."""
        return self.lines[-1].instance if len(self.lines) > after else None

    def sessions_of(self, instance: str) -> set[int]:
        return {said.session for said in list(self.lines) if said.instance == instance}

    # -- what happens

    def session_opened(self) -> int:
        number = next(self._numbers)
        # Of two events at once the loop may tell of the new session first.
        there = frozenset(other for other in self._open if self._is_connected(other))
        if there:
            self.together.append(there)
        self._open.add(number)
        self.opened += 1
        return number

    def _is_connected(self, number: int) -> bool:
        """Whether its client has not ended it yet, as the system knows."""
        transport = self.transports.get(number)
        sock = transport.get_extra_info("socket") if transport else None
        if sock is None or sys.platform != "linux":
            return True
        state: bytes = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
        return state[0] == TCP_ESTABLISHED

    def session_closed(self, number: int) -> None:
        self._open.discard(number)

    def heard(self, number: int, line: str) -> None:
        _, instance, term = line.split()
        self.lines.append(Said(number, instance, int(term)))

    # -- running

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._listening.wait(START_WITHIN)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(START_WITHIN)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ending = asyncio.Event()
        server = await telnetlib3.create_server(
            "127.0.0.1",
            0,
            # It asks for a class, so the class is what knows the switch.
            protocol_factory=type("Session", (_Session,), {"switch": self}),
            shell=_shell,
            connect_maxwait=0.1,
        )
        assert server.sockets
        self.port = server.sockets[0].getsockname()[1]
        self._listening.set()
        await self._ending.wait()
        server.close()
        for transport in list(self.transports.values()):
            transport.abort()
        while self._open:
            await asyncio.sleep(0.01)


class _Session(telnetlib3.TelnetServer):
    """A session counts from the first instant to the last of its connection."""

    switch: Switch
    number = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.number = self.switch.session_opened()
        assert isinstance(transport, asyncio.WriteTransport)
        self.switch.transports[self.number] = transport
        super().connection_made(transport)

    def eof_received(self) -> None:
        self.switch.session_closed(self.number)
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self.switch.session_closed(self.number)
        self.switch.transports.pop(self.number, None)
        super().connection_lost(exc)


async def _shell(reader: Any, writer: Any) -> None:
    session: _Session = writer.protocol
    writer.write("welcome\r\n")
    while line := await reader.readline():
        session.switch.heard(session.number, line)
        writer.write(f"ok {time.monotonic():.3f}\r\n")
    writer.close()
