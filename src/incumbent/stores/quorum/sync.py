"""The blocking side: `operations` in one step, and a shorter way for what has to be fast."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Coroutine, Hashable, Sequence
from math import ceil
from typing import Any, Final, TypeVar, Unpack

import hiredis

from incumbent.clock import now as _now
from incumbent.errors import StoreError
from incumbent.model import Ask, GiveOutcome, Granted, Key, Released, TakeOutcome
from incumbent.net.pool import Broken, Mismatch, exchange_error
from incumbent.net.readers import LockWakeup, Wakeup
from incumbent.protocol.port import run
from incumbent.stores import base
from incumbent.stores.loops import detach_in_child
from incumbent.stores.plan import BlockingStore, Plan
from incumbent.stores.quorum.ballots import Silent
from incumbent.stores.quorum.give import Parting, give
from incumbent.stores.quorum.links import (
    FAILURES,
    LAG_MOST,
    NOT_YET,
    Dialer,
    Link,
    SyncSubscribers,
)
from incumbent.stores.quorum.nodes import (
    NOT_ASKED,
    ConnectedPanel,
    Enough,
    Node,
    Panel,
    Quorum,
    Reply,
    agreed_by_most,
)
from incumbent.stores.quorum.operations import Operations, carry_out
from incumbent.stores.quorum.take import is_decided, take
from incumbent.stores.quorum.waiting import Subscribers
from incumbent.stores.redis.resp import Step, as_eval

T = TypeVar("T")
U = TypeVar("U")

_TRUSTED: Final = 0.1
"""Seconds for which connections are used again without a look."""
_POLL_AT_MOST: Final = 0.25
_LITTLE: Final = 448
"""Bytes that are received at once where a short reply is expected: a small object of Python's."""
_IDLE_MAX: Final = 64
_GIVEN: Final = b":1\r\n"
_RELEASED: Final = Released()


class SyncPanel(ConnectedPanel):
    """See Panel. One connection to each node, for one operation at a time."""

    connections: list[Link | None]

    def __init__(self, dialer: Dialer) -> None:
        super().__init__(dialer.quorum, dialer.nodes)
        self._dialer = dialer
        self.connections = [None] * len(dialer.nodes)
        self.used = 0.0
        self.whole = False
        """All nodes are connected, and none owes a reply."""
        self.oldest = 0.0
        """The instant since which all their servers run."""

    @property
    def blank(self) -> bool:
        return all(link is not None and link.blank for link in self.connections)

    async def open(self, until: float) -> None:
        self.prepare(until)

    def prepare(self, until: float) -> None:
        """As `open`, at once."""
        now = _now()
        self.whole = False
        for node, link in enumerate(self.connections):
            if link is not None and not self._is_usable(link, now):
                self._drop(node)
        if None in self.connections:
            self._dialer.fill(self.connections, until)
        self.used = _now()
        for node, link in enumerate(self.connections):
            if link is not None:
                link.used = self.used
                self._pay(node, link)

    def _is_usable(self, link: Link, now: float) -> bool:
        if not link.lag:
            return now - self.used < _TRUSTED or not link.is_stale(trust=False)
        if not link.is_stale(trust=False):
            return now - link.lag_since < LAG_MOST
        try:
            link.skip()
        except FAILURES as error:
            return isinstance(error, Broken) and error.late and now - link.lag_since < LAG_MOST
        # The server may have closed it after its last reply.
        return not link.is_stale(trust=False)

    def _pay(self, node: int, link: Link) -> None:
        """Tell it which votes were taken back while it could not be told."""
        owed = self.nodes[node].take_owed()
        if not owed:
            return
        # With the script, for nobody reads the replies: it may be one that was forgotten.
        payload = b"".join(as_eval(self.quorum.dialect.revoke(*vote)) for vote in owed)
        link.owed_undo += owed
        try:
            link.post(payload, _now() + 0.05)
        except Broken:
            self._drop(node)
            return
        link.fall_behind(len(owed))

    async def rest(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - the blocking side blocks

    def owe(self, node: int, key: Key, claim: str, ballot: int) -> None:
        link = self.connections[node]
        if link is not None and link.lag:
            link.owed_undo.append((key, claim, ballot))
        else:
            self.nodes[node].owes(key, claim, ballot)

    async def ask(
        self, steps: Sequence[Step | None], until: float, enough: Enough | None = None
    ) -> list[Reply]:
        self.used = _now()
        return await super().ask(steps, until, enough)

    # -- one round ----------------------------------------------------------------------------

    def ask_identical(
        self, request: bytes, wanted: bytes, until: float, enough: Enough
    ) -> list[Reply] | None:
        """One request to all nodes of a whole panel: None if all replied nothing but `wanted`.

        Otherwise what `ask` would return.
        """
        # Written out, for a lease costs little more than these calls.
        links: Any = self.connections
        size, at = len(request), 0
        try:
            for link in links:
                if (sent := link.push(request)) != size:
                    return self._finish_slow(request, until, enough, at, sent, None)
                at += 1
        except OSError as error:
            return self._finish_slow(request, until, enough, at, 0, error)
        # From the last one on: where all share a core, the others have replied by then.
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
        """Go on with `ask` where one node did not take all of the request at once."""
        self.whole = False
        step = Step(request, 1)
        replies: list[Reply | None] = [None] * len(self.connections)
        link: Any = self.connections[at]
        try:
            link.push_on(request, sent, error, until)
        except Broken as broken:
            replies[at] = self._broken(at, broken)
        for node in range(at + 1, len(replies)):
            replies[node] = self._write(node, step, until)
        return run(self._read_all(replies, [step] * len(replies), until, enough))

    def _fall_back(
        self,
        request: bytes,
        wanted: bytes,
        until: float,
        enough: Enough,
        at: int,
        data: bytes | OSError,
    ) -> list[Reply]:
        """Go on with `ask` after the first node (from the last) that sent something else."""
        self.whole = False
        step = Step(request, 1)
        steps: list[Step | None] = [step] * len(self.connections)
        replies: list[Reply | None] = [None] * len(steps)
        for node in range(at + 1, len(steps)):
            replies[node] = [_parsed(wanted)]
        late = -1
        if isinstance(data, NOT_YET):
            late = at
        elif isinstance(data, OSError) or not data:
            why = str(data) if data else "the server closed the connection"
            replies[at] = self._broken(at, Broken(why, sent=True))
        else:
            link: Any = self.connections[at]
            link.took(data)
            replies[at] = self._read(at, step, until)
        return run(self._read_all(replies, steps, until, enough, late))

    def _write(self, node: int, step: Step, until: float) -> Silent | None:
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
        steps: Sequence[Step | None],
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

    def _read(self, node: int, step: Step | None, until: float) -> Reply | None:
        link: Any = self.connections[node]
        if step is None:
            return NOT_ASKED
        try:
            reply: list[Any] | None = link.replies(step.answers)
        except FAILURES as error:
            return self._broken(node, error)
        return None if reply is None else self._replied(node, step, reply, until)

    def _ready(self, nodes: Sequence[int], left: float) -> list[int]:
        """Those of the nodes whose connection can be read."""
        poll, by_fd = select.poll(), dict[int, int]()
        for node in nodes:
            link = self.connections[node]
            if link is not None:
                by_fd[link.fileno()] = node
                poll.register(link.fileno(), select.POLLIN)
        found = poll.poll(ceil(max(0.0, min(left, _POLL_AT_MOST)) * 1000))
        if not found and left > _POLL_AT_MOST:
            # TLS may have read more than it gave: after a while all are read anyway.
            return list(nodes)
        return [by_fd[fd] for fd, _ in found]

    def _is_slow(self, node: int) -> bool:
        link = self.connections[node]
        return link is not None and link.lag > 0

    def _leave(self, node: int, step: Step | None) -> None:
        link = self.connections[node]
        if link is not None and step is not None:
            link.fall_behind(step.answers)

    # -- after it -----------------------------------------------------------------------------

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
        """The operation is over: look whether the next one can take the short way."""
        self.whole = not any(link is None or link.lag for link in self.connections)
        if self.whole:
            self.oldest = max(link.born for link in self.connections if link is not None)

    def close(self) -> None:
        """Give the descriptors back; nothing is written."""
        self.whole = False
        for node in range(len(self.connections)):
            self._drop(node)


def _parsed(reply: bytes) -> Any:
    reader = hiredis.Reader()
    reader.feed(reply)
    return reader.gets()


class _Blocking(Operations):
    """Its coroutines never suspend.

    Panels are taken off a list and put back: `list.pop` and `list.append` are atomic, so there is
    no lock that a signal handler or `__del__` could meet; re-entry takes or makes another panel.
    """

    def __init__(self, quorum: Quorum, nodes: list[Node]) -> None:
        super().__init__(quorum)
        self.dialer = Dialer(quorum, nodes)
        self.idle: list[SyncPanel] = []

    async def run(self, plan: Plan[Panel, T], until: float) -> T:
        idle = self.idle
        try:
            panel = idle.pop()
        except IndexError:
            panel = SyncPanel(self.dialer)
        try:
            panel.prepare(until)
            outcome = await carry_out(plan.start(panel, until))
        except BaseException as error:
            self.interrupted(panel, idle, error)
            raise
        panel.rested()
        self.put_back(panel, idle)
        return outcome

    def interrupted(self, panel: SyncPanel, idle: list[SyncPanel], error: BaseException) -> None:
        """After an error: keep the panel if it can serve again."""
        if isinstance(error, StoreError):
            # The nodes' answers were heard, or are known to be missing.
            panel.rested()
            self.put_back(panel, idle)
            return
        # Interrupted, perhaps between a request and its answer.
        panel.close()
        if isinstance(error, Mismatch):
            raise exchange_error(error, self.quorum.where) from error

    def put_back(self, panel: SyncPanel, idle: list[SyncPanel]) -> None:
        """Keep the panel for the next operation."""
        # Another list by now: the store was closed, or this is a fork's child.
        if idle is self.idle and len(idle) < _IDLE_MAX:
            idle.append(panel)
        else:
            panel.close()

    def let_go(self) -> None:
        idle, self.idle = self.idle, []
        for panel in idle:
            panel.close()
        self.dialer.let_go()
        self.hub.let_go()

    def detach(self) -> None:
        """In a fork's child: give the descriptors back. What is in use was other threads'."""
        self.idle = []
        self.dialer.forget()
        self.hub.abandon()

    def new_subscribers(self) -> Subscribers:
        return SyncSubscribers(self.dialer)

    def new_wakeup(self) -> Wakeup:
        return LockWakeup()

    def me(self) -> Hashable:
        return threading.get_ident()


class QuorumStore(BlockingStore[_Blocking]):
    """See stores.base.Store. Take and give need no coroutine where all nodes just replied."""

    def __init__(self, quorum: Quorum, nodes: list[Node]) -> None:
        super().__init__(_Blocking(quorum, nodes))
        self._quorum = quorum
        self._epoch = quorum.epoch
        detach_in_child(self.operations)

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        quorum = self._quorum
        # A claim whose votes are being taken back needs a ballot above those.
        is_simple = ask.slot is None and not quorum.is_doubtful(key, claim)
        idle = self.operations.idle
        panel = self._whole(quorum.dialect.wait_of(ask.ttl), until) if is_simple else None
        if panel is None:
            return super().take(key, claim, ask, until)
        ballot = quorum.clock.propose(panel.used)
        request = quorum.dialect.take(key, claim, ask, ballot)
        vote = b"incumbent1 %b %d" % (claim.encode(), ballot)
        return self._ask_identical(
            *(panel, idle, request, b"$%d\r\n%b\r\n" % (len(vote), vote), until),
            lambda replies: is_decided(quorum, replies, claim),
            Granted(claim, ballot, ask.ttl, self._epoch),
            lambda replies: take(panel, key, claim, ask, until, (ballot, replies)),
        )

    def give(
        self, key: Key, claim: str, token: int | None, until: float, **parting: Unpack[base.Parting]
    ) -> GiveOutcome:
        quorum, idle = self._quorum, self.operations.idle
        is_simple = token is not None and parting.get("slot") is None
        panel = self._whole(0.0, until) if is_simple else None
        if panel is None:
            return super().give(key, claim, token, until, **parting)
        given = Parting(key, claim, token, **parting)
        ended = quorum.clock.unix_us(panel.used)
        request = quorum.dialect.give(key, claim, token, given.closed_for, given.reserve_for, ended)
        return self._ask_identical(
            *(panel, idle, request, _GIVEN, until, agreed_by_most, _RELEASED),
            lambda replies: give(panel, given, until, replies),
        )

    def _ask_identical(
        self,
        panel: SyncPanel,
        idle: list[SyncPanel],
        request: bytes,
        wanted: bytes,
        until: float,
        enough: Enough,
        agreed: T,
        settle: Callable[[list[Reply]], Coroutine[Any, Any, U]],
    ) -> T | U:
        """`agreed` if all nodes reply nothing but `wanted`; else what `settle` makes of it."""
        try:
            replies = panel.ask_identical(request, wanted, until, enough)
            outcome: T | U = agreed
            if replies is not None:
                outcome = run(settle(replies))
                panel.rested()
        except BaseException as error:
            self.operations.interrupted(panel, idle, error)
            raise
        self.operations.put_back(panel, idle)
        return outcome

    def _whole(self, wait: float, until: float) -> SyncPanel | None:
        """A panel that was whole a moment ago, of servers that are old enough."""
        idle = self.operations.idle
        try:
            panel = idle.pop()
        except IndexError:
            return None
        now = _now()
        if panel.whole and now - panel.used < _TRUSTED and panel.oldest + wait <= now < until:
            panel.used = now
            return panel
        idle.append(panel)
        return None
