"""The subscriber connections of the blocking side: see `waiting`."""

from __future__ import annotations

import select
import socket
from functools import partial
from math import ceil
from queue import Empty, SimpleQueue
from typing import Final

import hiredis

from incumbent.clock import now as _now
from incumbent.errors import StoreError
from incumbent.net.dial import close_with
from incumbent.stores.quorum.links import Dialer, Link
from incumbent.stores.quorum.waiting import CONNECTED, Message
from incumbent.stores.redis.errors import Broken

__all__ = ["SyncSubscribers"]

_SLICE: Final = 5.0
"""Seconds of one wait; then our clock is asked again, which also counts suspend."""
_FAILURES: Final = (Broken, hiredis.ProtocolError)


class SyncSubscribers:
    """See Subscribers. A pair of sockets wakes who reads: pipes can't be polled everywhere."""

    interruptible = False

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._links: list[Link | None] = [None] * len(dialer.nodes)
        self._arrived: SimpleQueue[tuple[int, Link | StoreError]] = SimpleQueue()
        self._closed = False
        self._mine, self._others = socket.socketpair()
        for end in (self._mine, self._others):
            end.setblocking(False)
        close_with(self, partial(_close_all, (self._mine, self._others)))

    def begin(self, node: int, until: float) -> None:
        self._dialer.connect_apart(node, until, partial(self._arrive, node))

    def _arrive(self, node: int, link: Link | StoreError) -> None:
        if self._closed and isinstance(link, Link):
            link.close()
            return
        self._arrived.put((node, link))
        self.wake()

    def send(self, node: int, request: bytes, until: float) -> None:
        link = self._links[node]
        if link is None:
            raise Broken("it is not connected", sent=False)
        link.used = _now()
        link.send(request, until)

    async def next(self, until: float) -> Message | None:
        while (message := self._at_hand()) is None:
            left = until - _now()
            ready = self._ready(max(0.0, min(left, _SLICE)))
            for node in ready - {-1}:
                if (error := self._fill(node)) is not None:
                    return (node, error)
            if not ready and left <= 0:
                return None
            if -1 in ready:
                self._mine.recv(1024)
                return self._at_hand()
        return message

    def _at_hand(self) -> Message | None:
        """What has come already."""
        try:
            node, link = self._arrived.get_nowait()
        except Empty:
            return self._buffered()
        if isinstance(link, Link):
            self._links[node] = link
            return (node, CONNECTED)
        return (node, link)

    def _buffered(self) -> Message | None:
        for node, link in enumerate(self._links):
            try:
                if link is not None and (message := link.buffered()) is not False:
                    return (node, message)
            except hiredis.ProtocolError as error:
                return (node, error)
        return None

    def _fill(self, node: int) -> Exception | None:
        link = self._links[node]
        try:
            if link is not None:
                link.fill()
        except _FAILURES as error:
            return error
        return None

    def _ready(self, seconds: float) -> set[int]:
        """The nodes that can be read; -1: woken."""
        places = {self._mine.fileno(): -1}
        places |= {it.fileno(): at for at, it in enumerate(self._links) if it is not None}
        if not hasattr(select, "poll"):
            found, _, _ = select.select(list(places), [], [], seconds)
            return {places[fd] for fd in found}
        poll = select.poll()
        for fd in places:
            poll.register(fd, select.POLLIN)
        # Up to the next millisecond: down would spin.
        return {places[fd] for fd, _ in poll.poll(ceil(seconds * 1000))}

    def wake(self) -> None:
        try:
            self._others.send(b"!")
        except OSError:
            return  # it has been woken often enough, or is closed

    def drop(self, node: int) -> None:
        link, self._links[node] = self._links[node], None
        if link is not None:
            link.close()

    def close(self) -> None:
        self._closed = True
        for node in range(len(self._links)):
            self.drop(node)
        _close_all((self._mine, self._others))

    def __del__(self) -> None:
        _close_all((self._mine, self._others))


def _close_all(ends: tuple[socket.socket, ...]) -> None:
    for end in ends:
        end.close()
