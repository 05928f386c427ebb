"""Blocking connections to the nodes of a quorum, and the panel that asks all nodes over them."""

from __future__ import annotations

import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Any, Final

import hiredis

from incumbent.clock import now as _now
from incumbent.interrupts import raise_if_from_signal
from incumbent.model import Key
from incumbent.net.dial import make_poller
from incumbent.net.pool import Broken
from incumbent.net.readers import BLOCKING
from incumbent.stores.plan import run_blocking
from incumbent.stores.quorum.ballots import Silent
from incumbent.stores.quorum.connecting import ConnectedPanel, Dialer
from incumbent.stores.quorum.nodes import NOT_ASKED, Enough, Reply
from incumbent.stores.redis.resp import RequestBatch, as_eval
from incumbent.stores.redis.site import RedisSite
from incumbent.stores.redis.sync import RedisWire, dial

_LAG_MOST: Final = 1.5
"""Seconds for which a node may owe a reply before its connection is given up."""
_NOT_YET: Final = (BlockingIOError, TimeoutError)
_FAILURES: Final = (Broken, hiredis.ProtocolError)
_AT_ONCE: Final = 0.0
_TO_THE_SLOW: Final = 0.005
TRUSTED: Final = 0.1
"""Seconds after their last use for which connections are used again without a check."""
_POLL_AT_MOST: Final = 0.25
_LITTLE: Final = 448
"""Bytes to receive at once for a short reply: CPython allocates so small a buffer fast."""


class QuorumLink(RedisWire):
    """A connection (redis.sync) that does not wait for late replies, but skips them later."""

    __slots__ = ("lag", "lag_since", "owed_undo", "parts", "pull", "push", "took")

    def __init__(self, sock: Any) -> None:
        super().__init__(sock)
        self.push, self.pull, self.took = self._send, self._recv, self._feed
        """The socket's own `send` and `recv`, and the parser's function for the received bytes."""
        self.lag = 0
        """Number of late replies. They come before all others, and are skipped."""
        self.lag_since = 0.0
        self.parts: list[Any] = []
        """The awaited replies that have come so far."""
        self.owed_undo: list[tuple[Key, str, int]] = []
        """Votes whose revocations got no reply yet. If none comes, they are revoked again."""

    def post(self, request: bytes, until: float) -> None:
        """Send a request. Raises Broken; after that the link can no longer be used."""
        if self.lag:
            until = min(until, _now() + _TO_THE_SLOW)
        self.send(request, until)

    def push_on(self, request: bytes, sent: int, error: OSError | None, until: float) -> None:
        """Send the rest after a `push` that sent only `sent` bytes, or raised. Raises Broken."""
        if error is not None:
            raise_if_from_signal(error)
            if not isinstance(error, _NOT_YET):
                raise Broken(str(error), sent=False) from error
        self._send_rest(request, sent, until)

    def replies(self, count: int) -> list[Any] | None:
        """The replies if they have come already, else None. Raises Broken."""
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
        """Read and skip the late replies. Raises Broken (`late` if a reply has not come yet)."""
        while self.lag:
            self.read(_AT_ONCE)
            # Counted after the read: a reply that has not come yet is still to be skipped.
            self.lag -= 1
        self.owed_undo.clear()

    def fall_behind(self, replies: int) -> None:
        """Wait no longer for this many replies: they are skipped later."""
        if not self.lag:
            self.lag_since = _now()
        self.lag += replies - len(self.parts)
        self.parts.clear()


class LinkDialer(Dialer[QuorumLink]):
    """A Dialer on helper threads. Each panel has connections of its own."""

    shared = False
    side = BLOCKING

    async def _dial(self, site: RedisSite, until: float) -> QuorumLink:
        return dial(site, until, QuorumLink)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            threading.Thread(
                target=run_blocking, args=(work,), name="incumbent-dial", daemon=True
            ).start()
        except RuntimeError as error:
            raise_if_from_signal(error)
            # The interpreter is shutting down, and starts no more threads.
            run_blocking(work)

    def forget(self) -> None:
        """In a forked child: close the descriptors; the helper threads are the parent's."""
        self._begin_anew()
        for link in list(self.made):
            link.close()

    def let_go(self) -> None:
        """Close the spare connections."""
        spare, self.spare = self.spare, [[] for _ in self.nodes]
        for links in spare:
            for link in links:
                link.close()


class SyncPanel(ConnectedPanel):
    """A Panel with one connection to each node, for one operation at a time."""

    connections: list[QuorumLink | None]

    def __init__(self, dialer: LinkDialer) -> None:
        super().__init__(dialer.quorum, dialer.nodes)
        self._dialer = dialer
        self.connections = [None] * len(dialer.nodes)
        self.used = 0.0
        # Only `rested` sets it: after an interruption the fast path would read replies left over.
        self.whole = False
        """Whether all nodes are connected, and none owes a reply."""
        self.oldest = 0.0
        """The instant at which the youngest server started."""
        self.unchanged_at = 0.0
        """The earliest of the instants at which each server was last found fit."""

    async def open(self, until: float) -> None:
        now = _now()
        self.whole = False
        for node, link in enumerate(self.connections):
            if link is not None and not self._is_usable(link, now):
                self._drop(node)
        if None in self.connections:
            await self._dialer.fill(self.connections, until)
        self.used = _now()
        for node, link in enumerate(self.connections):
            if link is not None:
                link.used = self.used
                self._pay(node, link)

    def _is_usable(self, link: QuorumLink, now: float) -> bool:
        if link.server.problem:
            return False
        if not link.lag:
            return now - self.used < TRUSTED or not link.is_stale(trust=False)
        if not link.is_stale(trust=False):
            return now - link.lag_since < _LAG_MOST
        try:
            link.skip()
        except _FAILURES as error:
            return isinstance(error, Broken) and error.late and now - link.lag_since < _LAG_MOST
        # The server may have closed the connection after its last reply.
        return not link.is_stale(trust=False)

    def _pay(self, node: int, link: QuorumLink) -> None:
        """Send the revocations of votes that the node has not confirmed yet."""
        owed = self.nodes[node].take_owed()
        if not owed:
            return
        # Send the scripts in full: replies are skipped, so a forgotten script would go unnoticed.
        payload = b"".join(as_eval(self.quorum.dialect.revoke(*vote)) for vote in owed)
        # Before they are sent: whatever happens to the link from here on, `_drop` owes them again.
        link.owed_undo += owed
        try:
            link.post(payload, _now() + 0.05)
        except Broken:
            self._drop(node)
            return
        # Nobody waits for these replies. The next request skips them.
        link.fall_behind(len(owed))

    async def rest(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - the blocking side blocks

    def owe(self, node: int, key: Key, claim: str, ballot: int) -> None:
        link = self.connections[node]
        # A late reply may still confirm it. It is owed only if the link breaks before that.
        if link is not None and link.lag:
            link.owed_undo.append((key, claim, ballot))
        else:
            self.nodes[node].owes(key, claim, ballot)

    # -- one round ----------------------------------------------------------------------------

    def ask_identical(
        self, request: bytes, wanted: bytes, until: float, enough: Enough
    ) -> list[Reply] | None:
        """Send one request to all nodes of a whole panel: None if all replied exactly `wanted`.

        Otherwise returns the replies as `ask` does.
        """
        # Written without helpers: these calls are most of the cost of a lease.
        links: Any = self.connections
        size, at = len(request), 0
        try:
            for link in links:
                if (sent := link.push(request)) != size:
                    return self._finish_slow(request, until, enough, at, sent, None)
                at += 1
        except OSError as error:
            raise_if_from_signal(error)
            return self._finish_slow(request, until, enough, at, 0, error)
        # Read from the last node on: if all nodes share a core, the others have replied by then.
        try:
            for link in reversed(links):
                at -= 1
                if (data := link.pull(_LITTLE)) != wanted:
                    return self._fall_back(request, wanted, until, enough, at, data)
        except OSError as error:
            return self._fall_back(request, wanted, until, enough, at, error)
        return None

    def _finish_slow(
        self,
        request: bytes,
        until: float,
        enough: Enough,
        at: int,
        sent: int,
        error: OSError | None,
    ) -> list[Reply]:
        """Continue as `ask` does, after one node did not take the whole request at once."""
        self.whole = False
        step = RequestBatch(request, 1)
        replies: list[Reply | None] = [None] * len(self.connections)
        link: Any = self.connections[at]
        try:
            link.push_on(request, sent, error, until)
        except Broken as broken:
            replies[at] = self._broken(at, broken)
        for node in range(at + 1, len(replies)):
            replies[node] = self._write(node, step, until)
        return run_blocking(self._read_all(replies, [step] * len(replies), until, enough))

    def _fall_back(
        self,
        request: bytes,
        wanted: bytes,
        until: float,
        enough: Enough,
        at: int,
        data: bytes | OSError,
    ) -> list[Reply]:
        """Continue as `ask` does, after the first node that replied otherwise, from the last on."""
        if isinstance(data, OSError):
            raise_if_from_signal(data)
        self.whole = False
        step = RequestBatch(request, 1)
        steps: list[RequestBatch | None] = [step] * len(self.connections)
        replies: list[Reply | None] = [None] * len(steps)
        reader = hiredis.Reader()
        reader.feed(wanted)
        agreed = reader.gets()
        for node in range(at + 1, len(steps)):
            replies[node] = [agreed]
        late = -1
        if isinstance(data, _NOT_YET):
            late = at
        elif isinstance(data, OSError) or not data:
            why = str(data) if data else "the server closed the connection"
            replies[at] = self._broken(at, Broken(why, sent=True))
        else:
            link: Any = self.connections[at]
            link.took(data)
            replies[at] = self._read(at, step, until)
        return run_blocking(self._read_all(replies, steps, until, enough, late))

    def _write(self, node: int, step: RequestBatch, until: float) -> Silent | None:
        link: Any = self.connections[node]
        if until <= link.used:
            return NOT_ASKED
        try:
            link.post(step.payload, until)
        except Broken as error:
            return self._broken(node, error)
        return None

    async def _read_some(
        self,
        replies: list[Reply | None],
        missing: Sequence[int],
        steps: Sequence[RequestBatch | None],
        by: float,
        until: float,
    ) -> bool:
        while True:
            left = by - _now()
            for node in self._ready(missing, left):
                replies[node] = self._read(node, steps[node], until)
            if any(replies[node] is not None for node in missing):
                return True
            if left <= 0:
                return False

    def _read(self, node: int, step: RequestBatch | None, until: float) -> Reply | None:
        link: Any = self.connections[node]
        if step is None:
            return NOT_ASKED
        try:
            reply: list[Any] | None = link.replies(step.answers)
        except _FAILURES as error:
            return self._broken(node, error)
        return None if reply is None else self._replied(node, step, reply, until)

    def _ready(self, nodes: Sequence[int], left: float) -> list[int]:
        """The nodes whose connections are ready to be read."""
        by_fd = {
            link.fileno(): node for node in nodes if (link := self.connections[node]) is not None
        }
        found = make_poller(*by_fd)(max(0.0, min(left, _POLL_AT_MOST)))
        if not found and left > _POLL_AT_MOST:
            # TLS may hold bytes that the socket does not show. While there is time, read all links.
            return list(nodes)
        return [by_fd[fd] for fd in found]

    def _is_slow(self, node: int) -> bool:
        link = self.connections[node]
        return link is not None and link.lag > 0

    def _leave(self, node: int, step: RequestBatch | None) -> None:
        link = self.connections[node]
        if link is not None and step is not None:
            link.fall_behind(step.answers)

    # -- after an operation -------------------------------------------------------------------

    def _broken(self, node: int, error: Exception) -> Silent:
        self._drop(node)
        return self._failed(node, error)

    def _drop(self, node: int) -> None:
        link, self.connections[node] = self.connections[node], None
        if link is not None:
            link.close()
            for vote in link.owed_undo:
                self.nodes[node].owes(*vote)

    def rested(self) -> None:
        """Find out, after an operation, whether the next one can use the fast path."""
        links = [it for it in self.connections if it and not it.lag and not it.server.problem]
        self.whole = len(links) == len(self.connections)
        if self.whole:
            # The youngest server and the oldest check are what the fast path has to trust.
            self.oldest = max(link.server.born for link in links)
            self.unchanged_at = min(link.server.unchanged_at for link in links)

    def close(self) -> None:
        """Close the descriptors; nothing is written."""
        self.whole = False
        for node in range(len(self.connections)):
            self._drop(node)
