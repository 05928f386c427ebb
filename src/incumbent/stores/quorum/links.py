"""Blocking connections to the nodes of a quorum, made on helper threads so that no node delays
another.
"""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from functools import partial
from math import ceil
from queue import Empty, SimpleQueue
from typing import Any, Final
from weakref import WeakSet

import hiredis

from incumbent.clock import now as _now
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Key
from incumbent.net.dial import close_with
from incumbent.net.pool import Broken
from incumbent.net.readers import SLICE
from incumbent.protocol.port import run
from incumbent.stores.quorum.nodes import Node, Quorum, Welcome, welcome
from incumbent.stores.quorum.waiting import CONNECTED, Message
from incumbent.stores.redis.dial import dial_as
from incumbent.stores.redis.exchange import UNUSABLE, carry_out
from incumbent.stores.redis.wire import Wire

LAG_MOST: Final = 1.5
"""Seconds for which a node may owe a reply before its connection is given up."""
NOT_YET: Final = (BlockingIOError, TimeoutError)
FAILURES: Final = (Broken, hiredis.ProtocolError)
_AT_ONCE: Final = 0.0
_TO_THE_SLOW: Final = 0.005
_GRACE: Final = 0.03
"""Seconds for which a majority waits for a node that is being connected."""
_FIRST_GRACE: Final = 0.5
"""The same for a node that this process has not met yet; at most half of the time there is."""
_LONGEST: Final = 2.0
_AFRESH: Final = 0.5
"""Seconds after which another connection is begun beside one that nobody waits for."""


class Link(Wire):
    """See redis.wire. A node that replies late is not waited for: its replies are skipped later."""

    __slots__ = ("blank", "lag", "lag_since", "owed_undo", "parts", "pull", "push", "took")

    def __init__(self, sock: Any) -> None:
        super().__init__(sock)
        self.push, self.pull, self.took = self._send, self._recv, self._feed
        """The socket's own `send` and `recv`, and where to put what was received by it."""
        self.blank = False
        """Whether the node had no marker when the connection was made."""
        self.lag = 0
        """Replies that will come first and are for nobody."""
        self.lag_since = 0.0
        self.parts: list[Any] = []
        """Of the replies that are waited for, those that are there."""
        self.owed_undo: list[tuple[Key, str, int]] = []
        """Votes whose taking back is among the skipped replies; told again if they never come."""

    def post(self, request: bytes, until: float) -> None:
        """Send. Raises Broken; after that it can no longer be used."""
        if self.lag:
            until = min(until, _now() + _TO_THE_SLOW)
        self.send(request, until)

    def push_on(self, request: bytes, sent: int, error: OSError | None, until: float) -> None:
        """Go on after a `push` that took only so much, or raised. Raises Broken."""
        if error is not None and not isinstance(error, NOT_YET):
            raise Broken(str(error), sent=False) from error
        self._send_rest(request, sent, until)

    def replies(self, count: int) -> list[Any] | None:
        """The replies, if they are there within a glance; None: not yet. Raises Broken."""
        try:
            self.skip()
            while len(self.parts) < count:
                self.parts.append(self.read(_AT_ONCE))
        except Broken as error:
            if error.late:
                return None
            raise
        found, self.parts = self.parts, []
        return found

    def skip(self) -> None:
        """Read what is for nobody. Raises Broken; late if it is not there yet."""
        while self.lag:
            self.read(_AT_ONCE)
            self.lag -= 1
        self.owed_undo.clear()

    def fall_behind(self, replies: int) -> None:
        """Nobody waits for these replies any more."""
        if not self.lag:
            self.lag_since = _now()
        self.lag += replies - len(self.parts)
        self.parts.clear()


class Dialer:
    """Makes connections for panels, and keeps those that came too late for the panel.

    No lock: lists and dictionaries change in atomic steps.
    """

    def __init__(self, quorum: Quorum, nodes: list[Node]) -> None:
        self.quorum, self.nodes = quorum, nodes
        self.links: WeakSet[Link] = WeakSet()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.spare: list[list[Link]] = [[] for _ in self.nodes]
        self._dialing: list[list[float]] = [[] for _ in self.nodes]
        """Of each node, when the connections were begun that are being made."""
        self._waiting: dict[SimpleQueue[None], set[int]] = {}
        """The waiting callers and their nodes; each is told when a connection is made or failed."""

    def fill(self, links: list[Link | None], until: float) -> None:
        """Put connections in the empty places, as far as that goes by `until`."""
        spare, need = self.spare, self.quorum.need
        _take_spare(links, spare)
        now, arrived = _now(), SimpleQueue[None]()
        short = len(links) - links.count(None) < need
        wanted = {
            node
            for node, link in enumerate(links)
            if link is None and (short or self._is_due(node, now))
        }
        waiting, dialing = self._waiting, self._dialing
        waiting[arrived] = wanted
        try:
            for node in wanted:
                self._dial(node, until, spare[node])
            while wanted:
                present = len(links) - links.count(None)
                by = until if present < need else now + self._grace_of(wanted, until - now)
                try:
                    arrived.get(timeout=max(0.0, by - _now()))
                except Empty:
                    break
                # A connection is put with the spare ones before it is no more being made.
                going_on = {node for node in wanted if dialing[node]}
                _take_spare(links, spare)
                wanted = {node for node in going_on if links[node] is None}
        finally:
            del waiting[arrived]
        _take_spare(links, spare)

    def _is_due(self, node: int, now: float) -> bool:
        return not self._dialing[node] and now >= self.nodes[node].retry_at

    def _grace_of(self, nodes: set[int], left: float) -> float:
        strange = any(not self.nodes[node].met and self.nodes[node].why is None for node in nodes)
        return min(_FIRST_GRACE if strange else _GRACE, left / 2)

    def _dial(self, node: int, until: float, spare: list[Link]) -> None:
        """Begin a connection for one more caller, unless one is on its way that nobody awaits.

        Else those who cannot wait for as long as a connection takes would begin ever more of them,
        which slows down all. But one that hangs must not keep a new one from being tried.
        """
        now, begun = _now(), self._dialing[node]
        recent = sum(now - at < _AFRESH for at in list(begun))
        if recent < sum(node in nodes for nodes in list(self._waiting.values())):
            begun.append(now)
            waiting = self._waiting

            def arrive(link: Link | StoreError) -> None:
                # If the store was closed meanwhile, nobody has this list any more: that closes it.
                if isinstance(link, Link):
                    spare.append(link)
                begun.remove(now)
                for arrived in list(waiting):
                    arrived.put(None)

            self.connect_apart(node, max(until, now + _LONGEST), arrive)

    def connect_apart(
        self, node: int, until: float, arrive: Callable[[Link | StoreError], None]
    ) -> None:
        """Make a connection on a helper thread, which hands it over."""
        work = partial(self._connect_apart, node, until, arrive)
        try:
            threading.Thread(target=work, name="incumbent-dial", daemon=True).start()
        except RuntimeError:
            # The interpreter is ending and starts no threads any more.
            work()

    def _connect_apart(
        self, node: int, until: float, arrive: Callable[[Link | StoreError], None]
    ) -> None:
        made: Link | StoreError
        try:
            made = self.connect(node, until)
        except StoreError as error:
            made = error
        except BaseException as error:  # noqa: BLE001 - nobody else would hear of it
            made = StoreUnavailable(str(error))
        if isinstance(made, StoreError):
            self.nodes[node].failed(made)
        arrive(made)

    def connect(self, node: int, until: float) -> Link:
        """A connection on which the node has told its facts. Raises StoreError."""
        site = self.nodes[node].site
        link = dial_as(Link, site, until)
        self.links.add(link)
        try:
            reply: Welcome = run(carry_out(link, welcome(site), until))
        except UNUSABLE as error:
            link.close()
            raise StoreUnavailable(f"{site.where} cannot be reached: {error}") from error
        except BaseException:
            link.close()
            raise
        now = _now()
        link.epoch, link.born = reply.facts.epoch, reply.facts.born(now)
        link.blank = reply.marker is None
        self.nodes[node].welcomed(self.quorum, reply, now)
        return link

    def forget(self) -> None:
        """In a fork's child: give the descriptors back; the threads were the parent's."""
        self._begin_anew()
        for link in list(self.links):
            link.close()

    def let_go(self) -> None:
        """Close what is spare."""
        spare, self.spare = self.spare, [[] for _ in self.nodes]
        for links in spare:
            for link in links:
                link.close()


def _take_spare(links: list[Link | None], spare: list[list[Link]]) -> None:
    for node, those in enumerate(spare):
        while links[node] is None and those:
            try:
                link = those.pop()
            except IndexError:
                break
            if link.is_stale(trust=False):
                link.close()
            else:
                links[node] = link


class SyncSubscribers:
    """See Subscribers. A pair of sockets wakes the reader: pipes can't be polled everywhere."""

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
            ready = self._ready(max(0.0, min(left, SLICE)))
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
        except FAILURES as error:
            return error
        return None

    def _ready(self, seconds: float) -> set[int]:
        """The nodes that can be read; -1: woken."""
        places = {self._mine.fileno(): -1}
        places |= {link.fileno(): node for node, link in enumerate(self._links) if link}
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
