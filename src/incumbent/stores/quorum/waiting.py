"""Waiting for a change on a quorum: one subscriber connection to each node.

A change counts once a majority has published it: all nodes publish a release at about the same
time, and a waiter that asked after the first message would still find the lease held on the other
nodes. A waiter that subscribes to a majority gets every change, because any two majorities share a
node. With fewer subscriptions, the waiter rechecks when the holder's ttl ends.
"""

from __future__ import annotations

from math import inf
from typing import Any, Final, Protocol

import hiredis

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.model import Key
from incumbent.net.readers import ReaderSide, Subscriber, Wakeup
from incumbent.net.subscriptions import ChannelWaiter, Role, Subscription, SubscriptionHub
from incumbent.stores.quorum.nodes import Quorum
from incumbent.stores.redis.resp import pack
from incumbent.stores.redis.site import answered_error

LINGER: Final = 0.005
"""Seconds to wait for the other nodes' messages after the first one."""
_LONGEST: Final = 2.0
"""Seconds that connecting to a node may take."""
_CONFIRM_WITHIN: Final = 0.1
"""Seconds for the other nodes to confirm a channel once one node has. The first has _LONGEST."""

_now = clock.now


class QuorumHubStore(Protocol):
    """What a hub asks of its store, which is passed at each call."""

    def begin(self, subscriber: Subscriber[Any], node: int, until: float) -> None:
        """Begin to connect to a node. The subscriber gets the connection or the error."""

    async def is_unchanged(self, key: Key, seen: str, until: float) -> bool:
        """Whether the state that `seen` describes is unchanged. Raises StoreError."""


class _QuorumWaiter(ChannelWaiter):
    def __init__(self, wakeup: Wakeup, channel: str) -> None:
        super().__init__(wakeup, [channel])
        self.nodes: set[int] = set()
        """The nodes that have published a change."""


class MajorityHub(SubscriptionHub[QuorumHubStore, Subscription, _QuorumWaiter]):
    """The waiters of one process or event loop."""

    lost = (
        "%s: subscriptions to a majority were lost (%s); until there are others, a waiter looks"
        " again only when the holder's ttl ends"
    )
    pack = staticmethod(pack)
    check_every = 0.05
    send_within = 0.02

    def __init__(self, quorum: Quorum, side: ReaderSide) -> None:
        super().__init__(quorum.where, len(quorum.names), side)
        self._quorum = quorum

    async def wait(self, store: QuorumHubStore, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change. Raises StoreUnavailable if it can subscribe to no node."""
        channel = self._quorum.dialect.keys(key).floor

        async def may_wait() -> bool:
            if not _confirmed(self._role, channel):
                why = self._role.why or "no answer"
                raise StoreUnavailable(f"nobody of {self.where} can be listened to: {why}")
            return await store.is_unchanged(key, seen, until)

        await self._wait(store, _QuorumWaiter(self.side.wakeup(), channel), until, may_wait)

    # -- connections --------------------------------------------------------------------------

    async def _connect(
        self,
        store: QuorumHubStore,
        role: Role[Subscription],
        subscriber: Subscriber[Any],
        until: float,
    ) -> None:
        now = _now()
        for node in _missing(role):
            if now >= role.retry_at[node]:
                role.connecting.add(node)
                store.begin(subscriber, node, now + _LONGEST)

    def _connected(self, role: Role[Subscription], node: int) -> None:
        role.subscriptions[node] = Subscription()
        super()._connected(role, node)

    def _explain(self, node: int, error: Exception) -> Exception:
        if isinstance(error, hiredis.ReplyError):
            return answered_error(str(error), self._quorum.names[node])
        return error

    def _is_subscribed(self, role: Role[Subscription], waiter: _QuorumWaiter) -> bool:
        return _confirmed(role, waiter.channels[0]) >= self._quorum.need

    def _may_begin(self, waiter: _QuorumWaiter) -> bool:
        """Whether a majority has confirmed the channel, or no other node will do so in time."""
        if self._is_subscribed(self._role, waiter):
            return True
        return not (self._to_subscribe or _may_confirm(self._role, waiter.channels[0]))

    # -- messages -----------------------------------------------------------------------------

    def _on_message(
        self, node: int, subscription: Subscription, name: bytes, payload: bytes
    ) -> None:
        channel = name.decode()
        for waiter in list(self._waiters):
            if channel in waiter.channels:
                waiter.nodes.add(node)
                if len(waiter.nodes) >= self._quorum.need:
                    waiter.notify()
                else:
                    waiter.recheck_at = min(waiter.recheck_at, _now() + LINGER)

    def _read_until(self, role: Role[Subscription], waiter: _QuorumWaiter, until: float) -> float:
        # A waiter that was notified leaves as soon as it runs. Its instant, which has passed, would
        # keep this reader from ever sleeping, and the loop from running that waiter.
        instants = [until, *(other.recheck_at for other in list(self._waiters) if not other.over)]
        if not waiter.listens:
            instants.append(_now() + self.check_every)
        return min(*instants, *(role.retry_at[node] for node in _missing(role)), inf)

    def _notify_due(self, waiter: _QuorumWaiter) -> None:
        """Notify all waiters that are due: so the others need not wake up for a first message."""
        now = _now()
        for each in list(self._waiters):
            if each.recheck_at <= now and not each.over:
                each.notify()


def _confirmed(role: Role[Subscription], channel: str) -> int:
    """The number of nodes that have confirmed the channel."""
    return sum(each is not None and channel in each.confirmed for each in role.subscriptions)


def _may_confirm(role: Role[Subscription], channel: str) -> bool:
    """Whether one more node may confirm the channel soon enough."""
    if role.subscriber is None or role.connecting:
        return True
    # The first node gets more time: it may be far away or busy, and a waiter needs one at least.
    now, within = _now(), _CONFIRM_WITHIN if _confirmed(role, channel) else _LONGEST
    return any(
        now < each.requested.get(channel, now) + within and channel not in each.confirmed
        for each in role.subscriptions
        if each is not None
    )


def _missing(role: Role[Subscription]) -> list[int]:
    """The nodes that are neither connected nor being connected."""
    return [
        node
        for node, each in enumerate(role.subscriptions)
        if each is None and node not in role.connecting
    ]
