"""Waiting for a change: one subscriber connection to each node for all waiters of a process or
loop.

One of the waiters reads all nodes, for all of them (see `redis.readers`). Written once, as
coroutines. No lock: lists and dictionaries change in atomic steps, so a signal handler may come at
any time.

What counts is a change on a majority: every node tells a release at about the same time, and a
waiter that asked after the first message alone would find the other nodes still held. A waiter that
listens to a majority hears of every change, for each has a node in common with it; where fewer
are left, it looks.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Hashable
from functools import partial
from math import inf
from typing import Any, Final, Protocol, TypeAlias

import hiredis

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Key
from incumbent.net.pool import Broken
from incumbent.net.readers import ReaderRole, Wakeup, count_loss
from incumbent.stores.quorum.nodes import Quorum
from incumbent.stores.redis.errors import answered_error
from incumbent.stores.redis.resp import pack

CONNECTED: Final = object()
"""The first message of a node."""
Message: TypeAlias = "tuple[int, Any]"
"""A node, and what came from it: CONNECTED, a reply, or the exception that ended the connection."""

_BROKEN: Final = (Broken, hiredis.ProtocolError, StoreError)
LINGER: Final = 0.005
"""Seconds for which the other nodes' messages are waited for after the first."""
_LONGEST: Final = 2.0
"""Seconds for which a connection to a node is tried."""
_CONFIRM_WITHIN: Final = 0.1
"""Seconds that the others have to confirm a channel once one node has. The first has _LONGEST."""
_GLANCE: Final = 0.05
_SEND_WITHIN: Final = 0.02
_AGAIN, _AGAIN_MOST = 0.02, 5.0
"""Seconds before a node that could not be listened to is tried again."""
_CHANNELS: Final = 100
"""Channels that nobody listens to any more, and that are kept for the next waiter."""
_WARN_EVERY: Final = 60.0

_log = logging.getLogger("incumbent")
_now = clock.now


class Subscribers(Protocol):
    """The connections of the reader, one to each node."""

    interruptible: bool
    """Whether an exception in `next` loses nothing."""

    def begin(self, node: int, until: float) -> None:
        """Connect to it; `next` returns what came of that."""

    def send(self, node: int, request: bytes, until: float) -> None:
        """Send. Raises Broken."""

    async def next(self, until: float) -> Message | None:
        """The next message; None at `until`, or when woken."""

    def wake(self) -> None:
        """Have `next` return; from any thread."""

    def drop(self, node: int) -> None:
        """Close that connection, if there is one."""

    def close(self) -> None:
        """Let go at once; nothing is written."""


class Host(Protocol):
    """What a hub needs of the store, for the time of one call."""

    async def is_unchanged(self, key: Key, seen: str, until: float) -> bool:
        """Whether what was seen is as it was. Raises StoreError."""

    def new_subscribers(self) -> Subscribers:
        """None of them connected."""

    def new_wakeup(self) -> Wakeup:
        """One that nobody has woken yet."""

    def me(self) -> Hashable:
        """What tells one thread from another; tasks don't interrupt each other."""


class _Waiter:
    """`listens`: it has relied on the nodes that speak of its channel. `look_at`: when it looks."""

    __slots__ = ("channel", "listens", "look_at", "nodes", "over", "wakeup")

    def __init__(self, wakeup: Wakeup, channel: str) -> None:
        self.wakeup = wakeup
        self.channel = channel
        self.listens = self.over = False
        self.look_at = inf
        self.nodes: set[int] = set()
        """The nodes that have told of a change."""

    def tell(self) -> None:
        """It has to look."""
        self.over = True
        self.wakeup.wake()


class _Subscription:
    """The channels that one node has been asked for, since when, and has confirmed."""

    def __init__(self) -> None:
        self.asked: dict[str, float] = {}
        self.confirmed: set[str] = set()

    def may_confirm(self, channel: str, within: float) -> bool:
        """Whether it may still do so, `within` so many seconds after it was asked."""
        now = _now()
        return now < self.asked.get(channel, now) + within and channel not in self.confirmed


class _Role:
    """What the reader uses."""

    def __init__(self, nodes: int) -> None:
        self.subscribers: Subscribers | None = None
        self.subscriptions: list[_Subscription | None] = [None] * nodes
        self.connecting: dict[int, None] = {}
        self.retry_at = [-inf] * nodes
        self.failures = [0] * nodes
        self.why: BaseException | None = None
        self.reader: Hashable = None

    def confirmed(self, channel: str) -> int:
        """How many nodes speak of it."""
        return sum(each is not None and channel in each.confirmed for each in self.subscriptions)

    def may_confirm(self, channel: str) -> bool:
        """Whether one more may do so soon enough."""
        if self.subscribers is None or self.connecting:
            return True
        # Nodes may be far away, or busy: without any a waiter would hear of nothing.
        within = _CONFIRM_WITHIN if self.confirmed(channel) else _LONGEST
        return any(
            each is not None and each.may_confirm(channel, within) for each in self.subscriptions
        )

    def missing(self) -> list[int]:
        """The nodes that are neither connected nor being connected."""
        return [
            node
            for node, each in enumerate(self.subscriptions)
            if each is None and node not in self.connecting
        ]

    def drop(self) -> None:
        """Close all."""
        subscribers, self.subscribers = self.subscribers, None
        self.subscriptions = [None] * len(self.subscriptions)
        self.connecting = {}
        if subscribers is not None:
            subscribers.close()


class SubscriptionHub(ReaderRole[_Role, _Waiter]):
    """The waiters of one process or loop."""

    def __init__(self, quorum: Quorum) -> None:
        super().__init__(partial(_Role, len(quorum.names)))
        self._quorum = quorum
        self._todo: deque[str] = deque()
        """Channels to subscribe to."""
        self._warned = -inf

    async def wait(self, host: Host, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change. Raises StoreUnavailable if no node can be listened to."""
        channel = self._quorum.dialect.keys(key).floor
        await self._catch_up(host)
        waiter = _Waiter(host.new_wakeup(), channel)
        self._waiters[waiter] = None
        try:
            self._todo.append(channel)
            if (subscribers := self._role.subscribers) is not None:
                subscribers.wake()
            await self._until(host, waiter, until)
            waiter.listens = True
            if waiter.over:
                return
            if not self._role.confirmed(channel):
                why = self._role.why or "no answer"
                where = self._quorum.where
                raise StoreUnavailable(f"nobody of {where} can be listened to: {why}")
            if await host.is_unchanged(key, seen, until):
                await self._until(host, waiter, until)
        finally:
            self._waiters.pop(waiter, None)
            self._wake_one()

    # -- waiting: one reads, the others sleep -------------------------------------------------

    async def _until(self, host: Host, waiter: _Waiter, until: float) -> None:
        """Until it is told or has to look. Before it listens: or until most nodes confirmed."""
        while not self._is_done(waiter):
            end = min(until, waiter.look_at)
            if _now() >= end:
                waiter.over = True
                return
            role = self._take_role(host.me())
            if role is None:
                await waiter.wakeup.wait(end if waiter.listens else min(end, _now() + _GLANCE))
                continue
            try:
                await self._read(host, role, waiter, until)
            finally:
                self._leave_role(role)

    def _is_done(self, waiter: _Waiter) -> bool:
        if waiter.over or waiter.listens:
            return waiter.over
        role = self._role
        enough = role.confirmed(waiter.channel) >= self._quorum.need
        return enough or not (self._todo or role.may_confirm(waiter.channel))

    async def _catch_up(self, host: Host) -> None:
        """Read what came while nobody waited, also that connections are gone."""
        role = self._take_role(host.me()) if self._free else None
        if role is None:
            return
        try:
            while role.subscribers and (message := await role.subscribers.next(-inf)) is not None:
                self._receive(role, *message)
        except BaseException:
            self._lose_all(role)
            raise
        finally:
            self._leave_role(role)

    async def _read(self, host: Host, role: _Role, waiter: _Waiter, until: float) -> None:
        try:
            if role.subscribers is None:
                role.subscribers = host.new_subscribers()
            subscribers = role.subscribers
            while role is self._role and not self._is_done(waiter):
                self._connect(role, subscribers)
                self._subscribe(role, subscribers)
                if _now() >= min(until, waiter.look_at) or self._is_done(waiter):
                    return
                message = await subscribers.next(self._wake_at(role, waiter, until))
                if message is not None:
                    self._receive(role, *message)
                self._tell_who_lingered()
        except BaseException:
            if role.subscribers is not None and not role.subscribers.interruptible:
                # A message may have been half read.
                self._lose_all(role)
            raise

    def _wake_at(self, role: _Role, waiter: _Waiter, until: float) -> float:
        """When the reader has something to do, whatever comes."""
        instants = [until, waiter.look_at, *(other.look_at for other in list(self._waiters))]
        if not waiter.listens:
            instants.append(_now() + _GLANCE)
        return min(*instants, *(role.retry_at[node] for node in role.missing()), inf)

    def _connect(self, role: _Role, subscribers: Subscribers) -> None:
        now = _now()
        for node in role.missing():
            if now >= role.retry_at[node]:
                role.connecting[node] = None
                subscribers.begin(node, now + _LONGEST)

    def _subscribe(self, role: _Role, subscribers: Subscribers) -> None:
        while self._todo:
            channel = self._todo.popleft()
            for node, each in enumerate(role.subscriptions):
                if each is not None and channel not in each.asked:
                    each.asked[channel] = _now()
                    self._send(role, subscribers, node, pack("SUBSCRIBE", channel))
        for node, each in enumerate(role.subscriptions):
            if each is not None and len(each.asked) > _CHANNELS:
                used = {waiter.channel for waiter in list(self._waiters)}
                unused = [channel for channel in each.asked if channel not in used]
                for channel in unused[: _CHANNELS // 2]:
                    del each.asked[channel]
                    each.confirmed.discard(channel)
                    self._send(role, subscribers, node, pack("UNSUBSCRIBE", channel))

    def _send(self, role: _Role, subscribers: Subscribers, node: int, request: bytes) -> None:
        try:
            subscribers.send(node, request, _now() + _SEND_WITHIN)
        except _BROKEN as error:
            self._lose(role, node, error)

    # -- messages -----------------------------------------------------------------------------

    def _receive(self, role: _Role, node: int, message: Any) -> None:
        if message is CONNECTED:
            role.connecting.pop(node, None)
            role.subscriptions[node] = _Subscription()
            self._todo.extend({waiter.channel for waiter in list(self._waiters)})
            return
        if isinstance(message, hiredis.ReplyError):
            message = answered_error(str(message), self._quorum.names[node])
        if isinstance(message, BaseException):
            self._lose(role, node, message)
            return
        kind, name, _ = message
        channel, subscription = name.decode(), role.subscriptions[node]
        if kind == b"subscribe" and subscription is not None and channel in subscription.asked:
            subscription.confirmed.add(channel)
            role.failures[node] = 0
        for waiter in [each for each in list(self._waiters) if each.channel == channel]:
            if kind != b"message":
                if not waiter.listens and self._is_done(waiter):
                    waiter.wakeup.wake()
                continue
            waiter.nodes.add(node)
            if len(waiter.nodes) >= self._quorum.need:
                waiter.tell()
            else:
                waiter.look_at = min(waiter.look_at, _now() + LINGER)

    def _tell_who_lingered(self) -> None:
        now = _now()
        for waiter in list(self._waiters):
            if waiter.look_at <= now and not waiter.over:
                waiter.tell()

    # -- losing -------------------------------------------------------------------------------

    def _lose(self, role: _Role, node: int, error: BaseException) -> None:
        """This node is not listened to any more. With too few left, all have to look."""
        role.connecting.pop(node, None)
        role.subscriptions[node] = None
        # Once more at once: it may only have closed what was unused for long, or was restarted.
        again = 2.0 ** min(role.failures[node], 10) if role.failures[node] else 0.0
        role.retry_at[node] = _now() + min(_AGAIN_MOST, _AGAIN * again)
        role.failures[node] += 1
        role.why = error
        if role.subscribers is not None:
            role.subscribers.drop(node)
        count_loss()
        for waiter in list(self._waiters):
            if role.confirmed(waiter.channel) < self._quorum.need:
                self._warn(error)
                waiter.over = waiter.over or waiter.listens
            waiter.wakeup.wake()

    def _lose_all(self, role: _Role) -> None:
        role.drop()
        self._end_waits()

    def _warn(self, error: BaseException) -> None:
        now = _now()
        if now - self._warned >= _WARN_EVERY:
            self._warned = now
            _log.warning(
                "%s: subscriptions to a majority were lost (%s); until there are others, a waiter"
                " looks again only when the holder's ttl ends",
                self._quorum.where,
                error,
            )

    # -- the end ------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Close the connections; the reader does it, if there is one."""
        subscribers, free = self._role.subscribers, self._free
        self._renew_role()
        if free:
            free.pop().drop()
        elif subscribers is not None:
            subscribers.wake()
        self._end_waits()

    def abandon(self) -> None:
        """In a fork's child: the others who waited are not here, and the connections are theirs."""
        self._role.drop()
        self._renew_role()
        self._waiters = {}
        self._todo.clear()
