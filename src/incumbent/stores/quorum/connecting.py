"""Network connections to the nodes: how both sides make them and ask all nodes over them.

Each connection is made on a thread or in a task of its own, so that no node delays another.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Generic, TypeVar
from weakref import WeakSet

from incumbent.clock import now as _now
from incumbent.errors import StoreUnavailable
from incumbent.interrupts import is_from_signal
from incumbent.net.pool import Broken, decoding, exchange_error
from incumbent.net.readers import ReaderSide, Wakeup
from incumbent.stores.quorum.ballots import UNFIT, Silent
from incumbent.stores.quorum.dialect import LOADS, MARKER
from incumbent.stores.quorum.nodes import NOT_ASKED, Enough, Panel, Quorum, QuorumNode, Reply
from incumbent.stores.redis.incarnation import (
    CHECK_EVERY,
    INFO_CHECK,
    InfoFacts,
    admit,
    check_node,
    read_facts,
    refuse_if_used_otherwise,
)
from incumbent.stores.redis.resp import RequestBatch, RespProgram, as_eval, is_forgotten, pack
from incumbent.stores.redis.site import MARKER_KEY, RedisSite, answered_error
from incumbent.stores.redis.wire import UNUSABLE, AnyWire, run_program

W = TypeVar("W", bound=AnyWire)


class VoteAndCheck(RequestBatch):
    """A step that asks for a vote, and for the settings that may have made the server unfit."""


# Seconds to wait for a node that is being connected once a majority is connected.
_GRACE: Final = 0.03
# The same for a node never connected in this process. Both: at most half of the time left.
_FIRST_GRACE: Final = 0.5
LONGEST: Final = 2.0
"""Seconds that making a connection may take, even if its caller has less time."""
# Seconds after which an unfinished connection no longer keeps another from being begun.
_AFRESH: Final = 0.5
# Seconds to wait for the remaining replies once the replies so far suffice.
_GLANCE: Final = 0.01


class Dialer(ABC, Generic[W]):
    """Makes connections for panels, and keeps connections that came too late for their panel.

    There is no lock: lists and dictionaries change in atomic steps.
    """

    shared: bool
    """Whether all callers share one connection to each node."""
    side: ReaderSide

    def __init__(self, quorum: Quorum, nodes: Sequence[QuorumNode]) -> None:
        self.quorum, self.nodes = quorum, nodes
        self.made: WeakSet[W] = WeakSet()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.spare: list[list[W]] = [[] for _ in self.nodes]
        self._dialing: list[list[float]] = [[] for _ in self.nodes]
        """For each node, the instants at which its unfinished connections were begun."""
        self._waiting: dict[Wakeup, set[int]] = {}
        """The nodes that each caller waits for; it is woken when a connection is made or fails."""
        self._raised: list[Exception] = []
        """What signal handlers raised where a connection is made: each is for one who waits."""

    @abstractmethod
    async def _dial(self, site: RedisSite, until: float) -> W:
        """A connection that is logged in. Raises StoreUnavailable."""

    @abstractmethod
    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` on a thread or in a task of its own."""

    async def fill(self, links: list[W | None], until: float) -> None:
        """Fill the empty places with connections, as far as they can be made by `until`.

        Raises only defects, and what a signal handler raised.
        """
        spare, need = self.spare, self.quorum.need
        _take_spare(links, spare)
        now, wakeup = _now(), self.side.wakeup()
        short = len(links) - links.count(None) < need
        wanted = {
            node
            for node, link in enumerate(links)
            if link is None and (short or self._is_due(node, now))
        }
        waiting, dialing, raised = self._waiting, self._dialing, self._raised
        if not waiting:
            # Who waited for these was cancelled.
            raised.clear()
        # Before they are begun: a connection that is there at once has to wake this caller.
        waiting[wakeup] = wanted
        try:
            for node in wanted:
                self._begin(node, until, spare[node])
            while wanted and not raised:
                present = len(links) - links.count(None)
                if present >= need and self.shared:
                    # A node that failed before is awaited only if it is needed for a majority.
                    wanted = {node for node in wanted if self.nodes[node].why is None}
                by = until if present < need else now + self._grace_of(wanted, until - now)
                if not wanted or _now() >= by or waiting is not self._waiting:
                    break
                await wakeup.wait(by)
                # A new connection is in `spare` before it leaves `dialing`: keep this order.
                going_on = {node for node in wanted if dialing[node]}
                _take_spare(links, spare)
                wanted = {node for node in going_on if links[node] is None}
        finally:
            del waiting[wakeup]
        _take_spare(links, spare)
        if raised:
            raise raised.pop()
        if len(links) - links.count(None) < need:
            for each, link in zip(self.nodes, links, strict=True):
                # An error of our own code that keeps a node from the panel is no outage.
                if link is None and each.defect is not None:
                    raise each.defect

    def _is_due(self, node: int, now: float) -> bool:
        """Whether a caller with a majority should wait a little for this node as well."""
        if self._dialing[node]:
            return self.shared and self.nodes[node].why is None
        return now >= self.nodes[node].retry_at

    def _grace_of(self, nodes: set[int], left: float) -> float:
        strange = any(not self.nodes[node].met and self.nodes[node].why is None for node in nodes)
        return min(_FIRST_GRACE if strange else _GRACE, left / 2)

    def _begin(self, node: int, until: float, spare: list[W]) -> None:
        """Begin a connection for one more caller, unless an unfinished one is left over for it."""
        # Otherwise callers with less time than a connection takes would begin ever more of them,
        # which slows down all. But a connection that hangs must not prevent a new one.
        now, begun, waiting, raised = _now(), self._dialing[node], self._waiting, self._raised
        recent = sum(now - at < _AFRESH for at in list(begun))
        awaited = sum(node in nodes for nodes in list(waiting.values()))
        if recent >= (min(awaited, 1) if self.shared else awaited):
            return
        begun.append(now)

        def arrive(link: W | Exception) -> None:
            # If the store was closed meanwhile, the list is garbage, and the link closes with it.
            if not isinstance(link, Exception):
                spare.append(link)
            # After it is in `spare`: whoever sees that nothing is begun any more
            # has to find it there.
            begun.remove(now)
            for wakeup in list(waiting):
                wakeup.wake()
            if isinstance(link, Exception) and is_from_signal(link):
                if not waiting:
                    raise link  # for the loop's log
                raised.append(link)

        self.connect_apart(node, max(until, now + LONGEST), arrive)

    def connect_apart(
        self, node: int, until: float, arrive: Callable[[W | Exception], None]
    ) -> None:
        """Connect on a thread or in a task of its own, and pass the link or error to `arrive`."""
        self._start(self._connect_apart(node, until, arrive))

    async def _connect_apart(
        self, node: int, until: float, arrive: Callable[[W | Exception], None]
    ) -> None:
        made: W | Exception
        try:
            made = await self.connect(node, until)
        except Exception as error:  # noqa: BLE001 - raised where it is awaited, if it is a defect
            made = error
            if not is_from_signal(error):
                self.nodes[node].failed(error)
                self.quorum.members.note_failed(self.quorum.names[node], error)
        except BaseException as error:
            # Its waiters must be woken also if this thread or task is interrupted.
            arrive(StoreUnavailable(str(error)))
            raise
        arrive(made)

    async def connect(self, node: int, until: float) -> W:
        """A connection to a node that was inspected and found fit. Raises StoreError."""
        site = self.nodes[node].site
        link = await self._dial(site, until)
        self.made.add(link)
        # Before the question: what is answered may be as old as that.
        asked = _now()
        try:
            facts, unix_us, marker = await run_program(link, _welcome(site), until)
        except UNUSABLE as error:
            link.close()
            raise StoreUnavailable(f"{site.where} cannot be reached: {error}") from error
        except BaseException:
            link.close()
            raise
        server = link.server
        server.born, server.check_sent, server.unchanged_at = facts.born(_now()), asked, asked
        server.replication = facts.promoted.encode()
        self.nodes[node].welcomed(self.quorum, unix_us, marker)
        self.quorum.members.note_answered(self.quorum.names[node])
        return link


def _take_spare(links: list[W | None], spare: list[list[W]]) -> None:
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


def _welcome(site: RedisSite) -> RespProgram[tuple[InfoFacts, int, bytes | None]]:
    """Inspect a node and load the scripts there. Raises StoreUnavailable if the node is unfit.

    Returns the node's facts, its time (unix us), and its marker.
    """
    facts = yield from check_node(
        site.where, allow_eviction=site.allow_eviction, served=site.served
    )
    asked = (*LOADS, pack("TIME"), pack("GET", MARKER), pack("GET", MARKER_KEY))
    *_, time, marker, alone = yield RequestBatch(b"".join(asked), len(asked))
    refuse_if_used_otherwise(alone, MARKER_KEY, site.where)
    for reply in (time, marker):
        if isinstance(reply, Exception):
            raise answered_error(str(reply), site.where, served=site.served)
    with decoding():
        return facts, int(time[0]) * 1_000_000 + int(time[1]), marker


class ConnectedPanel(Panel):
    """A Panel that asks all nodes over network connections, written once for both sides.

    A step is written to all nodes first. Then the replies are read as they come.
    """

    connections: Sequence[Any | None]
    used: float
    """When the last request was sent."""

    def __init__(self, quorum: Quorum, nodes: Sequence[QuorumNode]) -> None:
        self.quorum, self.nodes = quorum, nodes

    @property
    def born(self) -> list[float | None]:
        return [None if each is None else each.server.born for each in self.connections]

    @property
    def blank(self) -> bool:
        return None not in self.connections and all(node.blank for node in self.nodes)

    @abstractmethod
    def _write(self, node: int, step: RequestBatch, until: float) -> Silent | None:
        """Write a step to a connected node. Returns the reason if that failed, else None."""

    @abstractmethod
    async def _read_some(
        self,
        replies: list[Reply | None],
        missing: Sequence[int],
        steps: Sequence[RequestBatch | None],
        by: float,
        until: float,
    ) -> bool:
        """Wait for missing replies, and put them into `replies`; False if none came by `by`."""

    @abstractmethod
    def _is_slow(self, node: int) -> bool:
        """Whether the node's last reply has not come yet, and is no longer awaited."""

    @abstractmethod
    def _leave(self, node: int, step: RequestBatch | None) -> None:
        """Stop waiting for the node's reply to this step."""

    def vote_step(self, node: int, request: bytes) -> RequestBatch:
        link, now = self.connections[node], _now()
        if link is None or (
            # Of many tasks that share a connection only one checks.
            now - (server := link.server).check_sent <= CHECK_EVERY
            and now - server.unchanged_at <= 2 * CHECK_EVERY
        ):
            return RequestBatch(request, 1)
        server.check_sent = now
        return VoteAndCheck(request + b"".join(INFO_CHECK), 1 + len(INFO_CHECK))

    async def ask(
        self, steps: Sequence[RequestBatch | None], until: float, enough: Enough | None = None
    ) -> list[Reply]:
        self.used = _now()
        return await self._read_all(self._write_all(steps, until), steps, until, enough)

    def _write_all(self, steps: Sequence[RequestBatch | None], until: float) -> list[Reply | None]:
        replies: list[Reply | None] = []
        for node, step in enumerate(steps):
            if self.connections[node] is None:
                replies.append(self.nodes[node].silent())
            else:
                replies.append(NOT_ASKED if step is None else self._write(node, step, until))
        return replies

    async def _read_all(
        self,
        replies: list[Reply | None],
        steps: Sequence[RequestBatch | None],
        until: float,
        enough: Enough | None,
        late: int = -1,
    ) -> list[Reply]:
        """Read the missing replies. `late`: a node that was given its time (_GLANCE) already."""
        by = until
        while None in replies:
            missing = [node for node, reply in enumerate(replies) if reply is None]
            if enough is not None and len(missing) < len(replies) and enough(replies):
                if all(node == late or self._is_slow(node) for node in missing):
                    break
                by = min(until, _now() + _GLANCE) if by == until else by
            if not await self._read_some(replies, missing, steps, by, until):
                break
        return [
            self._late(node, steps[node]) if reply is None else reply
            for node, reply in enumerate(replies)
        ]

    def _late(self, node: int, step: RequestBatch | None) -> Silent:
        self._leave(node, step)
        return self._failed(node, Broken("no answer in time", sent=True))

    def _failed(self, node: int, error: Exception) -> Silent:
        """The answer for a connection that brought no reply."""
        sent = not isinstance(error, Broken) or error.sent
        return Silent(exchange_error(error, self.nodes[node].site.where), sent=sent)

    def _replied(
        self, node: int, step: RequestBatch, reply: list[Any], until: float
    ) -> Reply | None:
        """The reply; None after sending the step again with scripts that the node had forgotten."""
        if not any(map(is_forgotten, reply)):
            return self._check_vote(node, reply) if isinstance(step, VoteAndCheck) else reply
        return self._write(node, step._replace(payload=as_eval(step.payload)), until)

    def _check_vote(self, node: int, reply: list[Any]) -> list[Any]:
        """The node's vote, or instead of it why it does not count. See VoteAndCheck."""
        (vote, *look), link, site = reply, self.connections[node], self.nodes[node].site
        if link is None:
            return [vote]
        try:
            if any(type(each) is not bytes for each in look):
                raise StoreUnavailable(f"{site.where} does not show its settings (INFO)")
            facts = read_facts(b"".join(look))
            admit(facts, site.where, allow_eviction=site.allow_eviction, served=True)
            if facts.promoted.encode() != link.server.replication:
                raise StoreUnavailable(f"{site.where} was a replica in between")
        except StoreUnavailable as error:
            # The next operation makes another connection, and inspects the server again.
            link.server.problem = error
            return [[UNFIT.encode(), str(error).encode(), -1, 0, b""]]
        # From when it was sent: the settings may have changed right after the node looked at them.
        link.server.unchanged_at = self.used
        return [vote]
