"""A network that fails on request: a proxy on loopback between clients and a server.

    with FaultProxy(6379) as proxy:
        store = open_my_store(f"mine://127.0.0.1:{proxy.port}")
        proxy.blackhole()       # every fault lasts until heal()

It fails the way TCP does. What a black hole holds back arrives late, once healed, as a
retransmission would; a connection that lost bytes for good is closed when healed, because TCP never
skips any.

Each connection is a ProxiedLink with two threads, one for each way. A thread reads a chunk, lets it
travel (delays, black holes), then forwards it, loses it, or ends the connection, as the faults of
that instant say:

    client --> read --> travel --> keep back? --> forward --> server      REQUEST
    client <-- forward or cut <----- travel <----- read <---- server      REPLY
"""

from __future__ import annotations

import enum
import re
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

__all__ = ["FaultProxy", "ProxiedLink", "Way"]

CONNECT_WITHIN = 5.0
END_WITHIN = 5.0
LAG = 0.2


class Way(enum.Enum):
    """The two directions of a connection."""

    REQUEST = "request"
    REPLY = "reply"


@dataclass(frozen=True)
class _Faults:
    """What is wrong with the network now."""

    delay: tuple[tuple[Way, float], ...] = ()
    lost: frozenset[Way] = frozenset()
    held: frozenset[Way] = frozenset()

    def delay_of(self, way: Way) -> float:
        return dict(self.delay).get(way, 0.0)


@dataclass
class _Doom:
    """The next `times` requests with `match` in them lose their reply and their connection."""

    match: re.Pattern[bytes]
    times: int


class ProxiedLink:
    """One client's connection and its counterpart at the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.lossy = False
        self.doomed = False
        self.closed = False
        self.asking = False
        self.tail = b""
        self._pumps = 2

    def ends(self, way: Way) -> tuple[socket.socket, socket.socket]:
        ends = (self.client, self.server)
        return ends if way is Way.REQUEST else (ends[1], ends[0])

    def cut(self) -> None:
        self.closed = True
        for sock in (self.client, self.server):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def pump_ended(self) -> None:
        # Only the last pump gives the descriptors back: the other may still be in a call on one.
        self._pumps -= 1
        if self._pumps == 0:
            self.client.close()
            self.server.close()


class FaultProxy:
    """Forwards connections to `(host, port)`; its own `port` is on 127.0.0.1."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.target = (host, port)
        self.accepted = 0
        """How many connections were made so far."""
        self.round_trips = 0
        """How often a client asked and had to wait: what it sends before a reply counts once."""
        self._faults = _Faults()
        self._doom: _Doom | None = None
        self._hold = b""
        self._held: list[ProxiedLink] = []
        self._links: set[ProxiedLink] = set()
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()
        self._ended = False
        self._listener = _bound(0)
        self.port: int = self._listener.getsockname()[1]
        self._listen()

    @property
    def live(self) -> int:
        """How many connections go through it now."""
        with self._changed:
            return sum(not link.closed for link in self._links)

    # -- faults

    def delay(self, seconds: float = 0.0, *, reply: float | None = None) -> None:
        """Each request comes later by `seconds`, and each reply by `reply` (default: the same)."""
        back = seconds if reply is None else reply
        self._set(delay=((Way.REQUEST, seconds), (Way.REPLY, back)))

    def drop_replies(self) -> None:
        """Requests arrive and are carried out; nothing comes back."""
        self._set(lost=self._faults.lost | {Way.REPLY})

    def drop_requests(self) -> None:
        """What the client sends is lost; what the server sends arrives."""
        self._set(lost=self._faults.lost | {Way.REQUEST})

    def blackhole(self) -> None:
        """Nothing arrives either way, and nobody is told; connecting still works."""
        self._set(held=frozenset(Way))

    def hold_replies(self) -> None:
        """Requests arrive and are carried out; what the server sends arrives once healed."""
        self._set(held=frozenset({Way.REPLY}))

    def refuse(self) -> None:
        """Cut what is there and refuse new connections."""
        self._stop_listening()
        # Bound and not listening refuses, and keeps the port from anybody else.
        self._listener = _bound(self.port)
        self.cut()

    def cut(self) -> None:
        """Close every present connection; new ones work."""
        with self._changed:
            for link in self._links:
                link.cut()
            self._changed.notify_all()

    def close_after_request(self, match: bytes | re.Pattern[bytes], *, times: int = 1) -> None:
        """A request with `match` in it is carried out; the client gets a closed connection."""
        pattern = re.compile(re.escape(match)) if isinstance(match, bytes) else match
        with self._changed:
            self._doom = _Doom(pattern, times)

    def hold(self, match: bytes) -> None:
        """The next bytes with `match` in them are held back, and delivered by `heal`.

        That is so whatever their sender does meanwhile. All other bytes pass.
        """
        with self._changed:
            self._hold = match

    @property
    def holds(self) -> bool:
        """Whether `hold` or `hold_replies` holds something back now."""
        return bool(self._held)

    def heal(self) -> None:
        """End every fault."""
        with self._changed:
            self._hold, self._held = b"", []
            for link in self._links:
                if link.lossy:
                    link.cut()
            self._doom = None
        self._set(delay=(), lost=frozenset(), held=frozenset())
        self._listen()

    def close(self) -> None:
        """Close every connection and the port."""
        self._ended = True
        self._stop_listening()
        self.cut()
        for thread in self._threads:
            thread.join(END_WITHIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def sent(self, link: ProxiedLink, chunk: bytes) -> None:
        """What a client has sent through `link`. For subclasses that look at it."""

    # -- inside

    def _set(self, **changes: object) -> None:
        with self._changed:
            # One assignment: a thread that reads a chunk sees all faults of one instant.
            self._faults = replace(self._faults, **changes)  # type: ignore[arg-type]
            self._changed.notify_all()

    def _listen(self) -> None:
        if not self._ended and not self._listener.getsockopt(
            socket.SOL_SOCKET, socket.SO_ACCEPTCONN
        ):
            self._listener.listen(128)
            self._spawn(self._accept, self._listener)

    def _stop_listening(self) -> None:
        with suppress(OSError):
            # Closing alone does not wake a thread that waits in accept().
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                self.accepted += 1
                self._spawn(self._join, client)

    def _join(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self.target, timeout=CONNECT_WITHIN)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._start(ProxiedLink(client, server))

    def _start(self, link: ProxiedLink) -> None:
        with self._changed:
            self._links.add(link)
            # `close` may have cut all links before this one was there.
            if self._ended:
                link.cut()
        self._spawn(self._pump, link, Way.REQUEST)
        self._spawn(self._pump, link, Way.REPLY)

    def _spawn(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        # Before the start: `close` waits for all that are listed.
        self._threads.append(thread)
        thread.start()

    def _pump(self, link: ProxiedLink, way: Way) -> None:
        source, _ = link.ends(way)
        with suppress(OSError):
            while chunk := source.recv(65536):
                with self._changed:
                    asks = way is Way.REQUEST
                    self.round_trips += asks and not link.asking
                    link.asking = asks
                if way is Way.REQUEST:
                    self.sent(link, chunk)
                self._forward(link, way, chunk)
        self._end_of_stream(link, way)
        with self._changed:
            link.pump_ended()
            if link.closed:
                self._links.discard(link)

    def _forward(self, link: ProxiedLink, way: Way, chunk: bytes) -> None:
        self._travel(link, way)
        if way in self._faults.lost:
            link.lossy = True
        elif way is Way.REPLY and link.doomed:
            # The reply shows that the server was done; only now may the client lose it.
            link.cut()
        else:
            kept = False
            if way is Way.REQUEST:
                kept = self._hold_back(link, chunk)
                self._doom_if_matched(link, chunk)
            link.ends(way)[1].sendall(chunk)
            if kept:
                # The end of the connection comes later: a server that sees it too soon may not
                # carry out the request.
                with self._changed:
                    self._changed.wait_for(lambda: link.closed, timeout=LAG)

    def _travel(self, link: ProxiedLink, way: Way) -> None:
        with self._changed:
            slow = self._faults.delay_of(way)
            self._changed.wait_for(lambda: link.closed, timeout=slow)
            if way not in self._faults.held:
                return
            self._held.append(link)
            self._changed.wait_for(lambda: link.closed or way not in self._faults.held)
            if link in self._held:
                self._held.remove(link)

    def _hold_back(self, link: ProxiedLink, chunk: bytes) -> bool:
        with self._changed:
            if not self._hold or self._hold not in chunk:
                return False
            self._hold = b""
            self._held.append(link)
            self._changed.wait_for(lambda: link.closed or link not in self._held)
            return True

    def _doom_if_matched(self, link: ProxiedLink, chunk: bytes) -> None:
        with self._changed:
            doom, seen = self._doom, link.tail + chunk
            if doom is None or doom.times == 0 or not doom.match.search(seen):
                link.tail = seen[-64:]
                return
            doom.times -= 1
            link.doomed, link.tail = True, b""

    def _end_of_stream(self, link: ProxiedLink, way: Way) -> None:
        self._travel(link, way)
        if way in self._faults.lost and not link.closed:
            link.lossy = True
            return
        with self._changed:
            link.cut()
            self._changed.notify_all()


def _bound(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    return sock
