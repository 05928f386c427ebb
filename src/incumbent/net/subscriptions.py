"""Waiting for messages of a store: one waiter reads for all waiters of a process or event loop.

Theory of operation. There is one role, the reader's, with the connections to the store. A waiter
that finds the role free takes it: it connects, subscribes to the channels that waiters need, and
passes on each message. So no thread is needed, and a waiter that waits alone is woken by its own
system call. All others sleep, each on a wakeup of its own.

    a waiter:   joins -----> may rely on messages ------> rechecks: asks the store --> leaves
                  |           (`listens`: its channels     ^                            |
                  |            are confirmed)              |                            |
                  |                     a message, its time (`recheck_at`), a lost      |
                  |                     connection: its wait is `over`                  |
                  v                                                                     v
    the role:   free ---> taken ---> the reader's wait is over ---> free ---> wakes another waiter
                            |
                            +-- a signal handler waits in the reader's own thread: it gets a new
                                role with other connections, and the old one no longer counts

No message is missed, by three rules:

1. A waiter is listed before it requests its channels, and relies on messages only after they are
   confirmed. One question to the store (`may_wait`) finds what changed before that.
2. A waiter that leaves wakes another one that can read. One that rechecks cannot, and is skipped.
3. When a connection is lost, or the role is a new one, each waiter that relied on it must recheck.

An engine defines the channels and the meaning of messages. Both sides share these coroutines. No
lock is needed: lists and dictionaries change in atomic steps, so a signal handler may run any time.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Hashable
from math import inf
from typing import Any, Final, Generic, TypeVar

from incumbent import clock
from incumbent.chance import draw_jitter
from incumbent.durations import backoff_delay
from incumbent.errors import StoreError
from incumbent.interrupts import raise_if_from_signal
from incumbent.net.pool import Broken
from incumbent.net.readers import CONNECTED, ReaderSide, Subscriber, Wakeup

# Channels of one subscription; above that, channels without a waiter are unsubscribed.
_CHANNELS: Final = 100
_WARN_EVERY: Final = 60.0

_log = logging.getLogger("incumbent")
_now = clock.now
_counts: Counter[str] = Counter()


def subscription_losses() -> int:
    """The number of subscriptions that this process has lost or could not get."""
    return _counts["lost"]


class ChannelWaiter:
    """A waiter. `recheck_at`: when it must ask the store again, whatever messages come.

    `listens`: it has begun to rely on the connections, and must recheck when they are lost.
    `is_asking`: it asks the store at present, and cannot read.
    """

    def __init__(self, wakeup: Wakeup, channels: list[str]) -> None:
        self.wakeup = wakeup
        self.channels = channels
        self.recheck_at = inf
        self.listens = self.is_asking = False
        self.over = False

    def notify(self) -> None:
        """End its wait, so that it rechecks."""
        self.over = True
        self.wakeup.wake()


class Subscription:
    """The channels requested from one node, with the time of each, and the confirmed ones."""

    def __init__(self) -> None:
        self.requested: dict[str, float] = {}
        self.confirmed: set[str] = set()


H = TypeVar("H")
S = TypeVar("S", bound=Subscription)
W = TypeVar("W", bound=ChannelWaiter)


class Role(Generic[S]):
    """The role of the reader, with its connections. `reader`: the thread or task that has it."""

    def __init__(self, nodes: int) -> None:
        self.subscriber: Subscriber[Any] | None = None
        self.subscriptions: list[S | None] = [None] * nodes
        self.connecting: set[int] = set()
        self.failures = [0] * nodes
        self.retry_at = [-inf] * nodes
        self.why: BaseException | None = None
        self.reader: Hashable = None

    def drop(self) -> None:
        """Close all connections."""
        subscriber, self.subscriber = self.subscriber, None
        self.subscriptions = [None] * len(self.subscriptions)
        self.connecting = set()
        if subscriber is not None:
            subscriber.close()


class SubscriptionHub(Generic[H, S, W]):
    """All waiters of one process or loop. `H`: what it asks of its store, passed at each call."""

    lost: str
    """The log message for a lost subscription."""
    pack: Callable[..., bytes]
    """Packs a SUBSCRIBE or UNSUBSCRIBE and the channel."""
    check_every = inf
    """Seconds after which a waiter that does not listen yet checks again whether it may."""
    send_within = 1.0

    def __init__(self, where: str, nodes: int, side: ReaderSide) -> None:
        self.where = where
        self.side = side
        self._nodes = nodes
        self._waiters: dict[W, None] = {}
        self._to_subscribe: deque[str] = deque()
        self._warned = -inf
        self._renew_role()

    # -- defined by an engine -----------------------------------------------------------------

    @abstractmethod
    async def _connect(
        self, store: H, role: Role[S], subscriber: Subscriber[Any], until: float
    ) -> None:
        """Ensure that the subscriber has its connections, or will get them."""

    @abstractmethod
    def _on_message(self, node: int, subscription: S, name: bytes, payload: bytes) -> None:
        """Process a message on a channel."""

    @abstractmethod
    def _is_subscribed(self, role: Role[S], waiter: W) -> bool:
        """Whether every message for the waiter would arrive."""

    def _may_begin(self, waiter: W) -> bool:
        """Whether a waiter need no longer wait for the subscription to its channels."""
        return self._is_subscribed(self._role, waiter)

    def _connected(self, role: Role[S], node: int) -> None:
        """Prepare a connection that has arrived."""
        self._to_subscribe.extend(self._channels_in_use())

    def _explain(self, node: int, error: Exception) -> Exception:
        """The exception for an error that came from a node."""
        return error

    def _channels_in_use(self) -> dict[str, None]:
        """The channels that waiters need."""
        return {channel: None for waiter in list(self._waiters) for channel in waiter.channels}

    # -- one wait -----------------------------------------------------------------------------

    async def _wait(
        self, store: H, waiter: W, until: float, may_wait: Callable[[], Awaitable[bool]]
    ) -> None:
        """Wait until the waiter must recheck; `may_wait` is asked once it is subscribed."""
        # A loss that nobody has read yet would let this waiter rely on a dead subscription.
        await self._catch_up()
        # Listed before its channels are requested: a reader in another thread that confirms them at
        # once finds it here.
        self._waiters[waiter] = None
        try:
            self._ask_for(waiter.channels)
            await self._until_done(store, waiter, until)
            # From here on the loss of a connection ends its wait. What was published before it
            # listened is found by `may_wait`.
            waiter.listens = waiter.is_asking = True
            if not waiter.over and await may_wait():
                waiter.is_asking = False
                await self._until_done(store, waiter, until)
        finally:
            self._waiters.pop(waiter, None)
            self._leave(waiter, until)

    def _leave(self, waiter: W, until: float) -> None:
        """Wake another waiter, which may read; `waiter` is no longer listed."""
        self._wake_reader()

    async def _until_done(self, store: H, waiter: W, until: float) -> None:
        """Wait until the waiter must recheck; before it listens, also until it may begin to."""
        while not self._is_done(waiter):
            end = min(until, waiter.recheck_at)
            if _now() >= end:
                waiter.over = True
                return
            role = self._take_role(self.side.me())
            if role is None:
                if not waiter.listens:
                    end = min(end, _now() + self.check_every)
                # If the reader leaves just now, it frees the role first and wakes then: the wake is
                # remembered, and this returns at once.
                await waiter.wakeup.wait(end)
                continue
            try:
                await self._read(store, role, waiter, until)
            finally:
                # A waiter that leaves right after this wakes the next one in `_leave`.
                self._leave_role(role, leaves=waiter.listens and waiter.over)

    def _is_done(self, waiter: W) -> bool:
        return waiter.over or (not waiter.listens and self._may_begin(waiter))

    async def _catch_up(self) -> None:
        """Read the messages, and losses of connections, that came while nobody waited."""
        role = self._take_role(self.side.me()) if self._free else None
        if role is None:
            return
        try:
            while role.subscriber and (message := await role.subscriber.next(-inf)) is not None:
                self._receive(role, *message)
        except BaseException:
            self._lose_all(role)
            raise
        finally:
            self._leave_role(role)

    async def _read(self, store: H, role: Role[S], waiter: W, until: float) -> None:
        """Read for all waiters, until `waiter` is done."""
        subscriber = role.subscriber = role.subscriber or self.side.subscriber()
        try:
            while role is self._role and not self._is_done(waiter):
                # Read each round: a message may have moved `recheck_at`.
                if _now() >= min(until, waiter.recheck_at):
                    return
                await self._connect(store, role, subscriber, until)
                # Connecting may have taken long, and another role may count by now.
                if role is not self._role:
                    return
                self._subscribe(role, subscriber)
                if self._is_done(waiter):
                    return
                message = await subscriber.next(self._read_until(role, waiter, until))
                if message is not None:
                    self._receive(role, *message)
                self._notify_due(waiter)
        except BaseException:
            if not subscriber.interruptible:
                # A message may have been half read.
                self._lose_all(role)
            raise

    def _read_until(self, role: Role[S], waiter: W, until: float) -> float:
        """The instant at which the reader must act even if no message comes."""
        return min(until, waiter.recheck_at)

    def _notify_due(self, waiter: W) -> None:
        """After a message: end the wait of the reader, `waiter`, if it must recheck."""
        waiter.over = waiter.over or waiter.recheck_at == -inf

    # -- the reader's role --------------------------------------------------------------------

    def _renew_role(self) -> None:
        self._role = Role[S](self._nodes)
        self._free = [self._role]

    def _take_role(self, me: Hashable) -> Role[S] | None:
        try:
            # Atomic: of several threads one gets the role.
            role = self._free.pop()
        except IndexError:
            if self._role.reader != me:
                return None
            # This call interrupts the reader itself, as a signal handler does.
            interrupted, self._role = self._role, Role(self._nodes)
            role, self._free = self._role, []
            if interrupted.subscriber is not None:
                # It must not go on sleeping: when it ends, it has no role to pass on.
                interrupted.subscriber.wake()
            self._end_waits()
        role.reader = me
        return role

    def _leave_role(self, role: Role[S], *, leaves: bool = False) -> None:
        role.reader = None
        if role is not self._role:
            # Another role counts by now, so nobody else will close these connections.
            role.drop()
            return
        # Freed before another is woken: that one would find no role, and sleep on.
        self._free.append(role)
        if not leaves:
            self._wake_reader()

    def _wake_reader(self) -> None:
        # A waiter that is asking cannot read; when it is done, it takes the role or wakes another.
        if self._free:
            for other in list(self._waiters):
                if not other.is_asking:
                    other.wakeup.wake()
                    return

    def _end_waits(self) -> None:
        """Messages may be lost: the waiters that relied on them must recheck."""
        for waiter in list(self._waiters):
            waiter.over = waiter.over or waiter.listens
            waiter.wakeup.wake()

    # -- channels -----------------------------------------------------------------------------

    def _ask_for(self, channels: list[str]) -> None:
        role = self._role
        missing = [
            channel
            for channel in channels
            if any(each is None or channel not in each.requested for each in role.subscriptions)
        ]
        self._to_subscribe.extend(missing)
        if missing and role.subscriber is not None:
            role.subscriber.wake()

    def _subscribe(self, role: Role[S], subscriber: Subscriber[Any]) -> None:
        while self._to_subscribe and role is self._role:
            channel = self._to_subscribe.popleft()
            for node, each in enumerate(role.subscriptions):
                if each is not None and channel not in each.requested:
                    # Noted before it is sent: a failed send drops the subscription with the note.
                    each.requested[channel] = _now()
                    self._send(role, subscriber, node, self.pack("SUBSCRIBE", channel))
        for node, each in enumerate(role.subscriptions):
            if each is not None and len(each.requested) > _CHANNELS:
                self._unsubscribe(role, subscriber, node, each)

    def _unsubscribe(
        self, role: Role[S], subscriber: Subscriber[Any], node: int, subscription: S
    ) -> None:
        used = self._channels_in_use()
        unused = [channel for channel in subscription.requested if channel not in used]
        del unused[_CHANNELS // 2 :]
        for channel in unused:
            del subscription.requested[channel]
            subscription.confirmed.discard(channel)
            self._send(role, subscriber, node, self.pack("UNSUBSCRIBE", channel))
            if role.subscriptions[node] is not subscription:
                break
        # Another thread may have joined a channel just before it was left: that waiter rechecks.
        for waiter in list(self._waiters):
            if not set(unused).isdisjoint(waiter.channels):
                waiter.notify()

    def _send(self, role: Role[S], subscriber: Subscriber[Any], node: int, request: bytes) -> None:
        try:
            subscriber.send(node, request, _now() + self.send_within)
        except Broken as error:
            self._lose(role, node, error)
            # This node sends nothing more: wake the reader to connect again.
            subscriber.wake()

    def _receive(self, role: Role[S], node: int, message: Any) -> None:
        if message is CONNECTED:
            role.connecting.discard(node)
            self._connected(role, node)
            return
        if isinstance(message, Exception):
            error = self._explain(node, message)
            if not isinstance(error, StoreError | Broken):
                raise error  # a defect of our own code, not of the node
            self._lose(role, node, error)
            return
        subscription = role.subscriptions[node]
        if subscription is None:
            return
        kind, name, payload = message
        if kind == b"message":
            self._on_message(node, subscription, name, payload)
        elif kind == b"subscribe" and (channel := name.decode()) in subscription.requested:
            # Only if it is still requested: a late confirmation must not outlive an UNSUBSCRIBE.
            subscription.confirmed.add(channel)
            # Not at the connection: a node that accepts and then refuses SUBSCRIBE must be asked
            # less often.
            role.failures[node] = 0
            self._wake_subscribed()

    def _wake_subscribed(self) -> None:
        """Wake the waiters that need no longer wait for the subscription to their channels."""
        for waiter in list(self._waiters):
            if not waiter.listens and self._is_done(waiter):
                waiter.wakeup.wake()

    # -- losing -------------------------------------------------------------------------------

    def _lose(self, role: Role[S], node: int, error: Exception) -> None:
        """Drop the subscription to a node. Waiters that would miss messages must recheck."""
        role.connecting.discard(node)
        # Before the waiters are looked at: `_is_subscribed` must find it missing.
        role.subscriptions[node] = None
        role.failures[node] += 1
        role.why = error
        if role.failures[node] > 1:
            # No delay after one failure: the node may only have closed an idle connection.
            role.retry_at[node] = _now() + backoff_delay(role.failures[node], draw_jitter())
        if role.subscriber is not None:
            role.subscriber.drop(node)
        # Two threads may be counted as one: that is rare, and no decision depends on it.
        _counts["lost"] += 1
        for waiter in list(self._waiters):
            if not self._is_subscribed(role, waiter):
                self._warn(error)
                waiter.over = waiter.over or waiter.listens
            waiter.wakeup.wake()

    def _lose_all(self, role: Role[S]) -> None:
        role.drop()
        self._end_waits()

    def _warn(self, error: Exception) -> None:
        now = _now()
        if now - self._warned >= _WARN_EVERY:
            self._warned = now
            _log.warning(self.lost, self.where, error)

    # -- the end ------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Close the connections; the reader does it, if there is one."""
        # The list of before: who takes the role off it, this call or a waiter, must close it.
        subscriber, free = self._role.subscriber, self._free
        self._renew_role()
        try:
            free.pop().drop()
        except IndexError as error:
            raise_if_from_signal(error)
            # A waiter has the role, or was just faster: it closes them when it leaves.
            if subscriber is not None:
                subscriber.wake()
        for waiter in list(self._waiters):
            waiter.notify()

    def detach(self) -> None:
        """In a fork's child: forget the waiters and connections, which are the parent's."""
        self._role.drop()
        self._renew_role()
        self._waiters = {}
        self._to_subscribe.clear()
