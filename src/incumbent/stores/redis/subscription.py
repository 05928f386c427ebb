"""Waiting on one server: the places in its line, and the messages to their waiters.

Theory of operation. A take that is refused gets a place in the server's line (line.lua). The server
notes the inbox of the waiter's process there, a channel of its own. It sends a message to that
inbox when it is the waiter's turn, or when the waiter has to recheck (ask the server again) at a
later time. Waiters without a place subscribe to the channel of the lease instead.

A message names a waiter by the beginning of its claim. `turn <id> 0`: the lease is free, and this
waiter is the first. `look <id> <ms>`: recheck after so long, unless a message comes before. `held
<id> <ms>`: another holds the lease for so long, and the first in line will recheck then. All of
these are hints: only the answer to a take grants a lease.

    a place is written         the inbox is subscribed        a message
    at `place.at`              `since` (server's clock)         |
         |                            |                         +-- its waiter waits here: it
         |   `at` before `since`:     |                         |   rechecks now, or at `recheck_at`
         +---- one may be lost -------+-- recheck once          +-- it has not come back yet: kept
         |   `at` after `since`:      |                         |   in `_early` until it does
         +---- none can be lost ------+-- wait                  +-- "held": it may rest, and its
                                                                    next take is answered here

A connection that is lost, or that leads to another incarnation of the server, ends the waits that
relied on it. So no wait relies on a message that cannot come; see net.subscriptions for who reads.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import hiredis

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Ask, Key, Queued, TakeOutcome
from incumbent.net.pool import Broken
from incumbent.net.readers import ReaderSide, Subscriber, Wakeup
from incumbent.net.subscriptions import ChannelWaiter, Role, Subscription, SubscriptionHub
from incumbent.stores.redis.records import FIELDS, LinePlace, digest_of, read_place, waiter_id
from incumbent.stores.redis.resp import RequestBatch, RespProgram, pack
from incumbent.stores.redis.site import Packer, answered_error

# What the hub remembers of a waiter between its waits, by the waiter's id:
#
#                  what                            written by                read by
#   last_refusals  the reply to its last take      `note_outcome`            `known_refusal`
#   resting        until when it need not recheck  a message "held"          `known_refusal`
#   _early         when it has to recheck          a message to it while     its next wait, which
#                                                  it does not wait here     removes it
#   _notified      at which place, and when it     a message to it while     its next wait, which
#                  has to recheck                  it waits here             removes it; it counts
#                                                                            at that place only
#   _when_left     the connection, and how many    the end of a wait         its next wait: if the
#                  messages about its lease had                              number is the same, it
#                  come there                                                has missed none
#
# Any other message ends a rest, and so does a wait that ends before its time. A grant removes the
# last refusal. A waiter that vanishes leaves its entries behind: a dict that is full is emptied.

_REMEMBERED: Final = 4096
_RECHECK_EVERY: Final = 20.0
"""Multiples of its ttl after which a waiter in line asks the server, whatever messages came."""
_RELEASED: Final = b"given"
"""Means nothing to waiters in line: they get messages of their own."""
_NODE: Final = 0
"""The only node that this hub listens to: that of a quorum has several."""
_HELD: Final = b"held"
_WORDS: Final = (b"turn", b"look", _HELD)

T = TypeVar("T")
_LineRole: TypeAlias = "Role[LineSubscription]"

_now = clock.now


class LineMessage(NamedTuple):
    """A message to a waiter in line: it is to ask the server again in `seconds`.

    `rest`: it need not, for another holds the lease for `seconds`, and the first in line will ask.
    """

    id: str
    seconds: float
    rest: bool = False


def read_message(payload: bytes) -> LineMessage | None:
    """A message in an inbox; None if it cannot be read."""
    what, *words = payload.split(b" ")
    if what not in _WORDS or len(words) != 2 or not words[1].isdigit():
        return None
    return LineMessage(words[0].decode("utf-8", "replace"), int(words[1]) / 1000, what == _HELD)


class LineWaiter(ChannelWaiter):
    """A waiter, perhaps with a place in line."""

    def __init__(self, wakeup: Wakeup, place: LinePlace | None, channels: list[str]) -> None:
        super().__init__(wakeup, channels)
        self.place = place
        self.relied_on: LineSubscription | None = None
        """The subscription that got all messages to it since its place was written."""


class LineSubscription(Subscription):
    """The channels of one connection, and the messages on them."""

    def __init__(self, inbox: str, epoch: str) -> None:
        super().__init__()
        self.inbox = inbox.encode()
        self.epoch = epoch
        """The incarnation of the server: see incarnation."""
        self.since = 0
        """The server's clock (microseconds) at or after the inbox was subscribed; 0 before."""
        self.outdated = False
        """Whether its server is another incarnation than that of the latest takes."""
        self.messages: dict[str, int] = {}

    def messages_for(self, waiter: LineWaiter) -> int:
        """The number of messages on the channel of the waiter's lease."""
        return self.messages.get(waiter.channels[-1], 0)


class HubStore(Protocol):
    """What a hub asks of its store (a RedisRunner), which is passed at each call."""

    async def open_subscriber(self, until: float) -> Any:
        """A fresh connection for a subscription. Raises StoreUnavailable."""

    async def server_time(self, until: float) -> int:
        """The server's clock in microseconds. Raises StoreError."""

    async def is_unchanged(self, key: Key, seen: str, until: float) -> bool:
        """Whether the state that `seen` describes is unchanged. Raises StoreError."""


class _Rest(NamedTuple):
    """By a message of `subscription`, a waiter in line need not recheck before `until`."""

    subscription: LineSubscription
    until: float


class _RefusedTake(NamedTuple):
    """A take of a waiter in line: when it was sent, and its outcome."""

    sent: float
    outcome: Queued


class LineHub(SubscriptionHub[HubStore, LineSubscription, LineWaiter]):
    """All waiters of one process or loop. `packer` has the inbox; a fork's child has another."""

    lost = (
        "%s: the subscription was lost (%s); until there is another, a waiter looks again only when"
        " the holder's ttl ends"
    )
    pack = staticmethod(pack)

    def __init__(self, packer: Packer, side: ReaderSide) -> None:
        super().__init__(packer.where, 1, side)
        self._packer = packer
        # See the table above.
        self.last_refusals: dict[str, _RefusedTake] = {}
        self.resting: dict[str, _Rest] = {}
        self._early: dict[str, float] = {}
        self._notified: dict[str, tuple[int, float]] = {}
        self._when_left: dict[str, tuple[LineSubscription, int]] = {}

    @property
    def _subscription(self) -> LineSubscription | None:
        """None also while it is being made: messages before that are not received."""
        subscription = self._role.subscriptions[_NODE]
        return subscription if subscription is not None and subscription.since else None

    async def wait(self, store: HubStore, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change. Raises StoreError if there can be no subscription."""
        place, inbox = read_place(seen), self._packer.inbox_channel
        channels = [self._packer.naming.of(key).channel]
        if place is not None:
            channels = [inbox, *channels] if place.follows else [inbox]
            self._drop_if_outdated(place)
        waiter = LineWaiter(self.side.wakeup(), place, channels)

        async def may_wait() -> bool:
            subscription = self._subscription
            if subscription is None or self._must_recheck(subscription, waiter):
                return False
            waiter.relied_on = subscription
            if place is not None:
                # Its place gets messages of its own. A candidate follows the lease as well, and
                # waits without asking only if nothing was published since it left.
                known = self._count_when_left(subscription, place)
                if not place.follows or known == subscription.messages_for(waiter):
                    return True
            state = seen if place is None else f"lease {place.digest}"
            return await store.is_unchanged(key, state, until)

        await self._wait(store, waiter, until, may_wait)

    def _drop_if_outdated(self, place: LinePlace) -> None:
        """Have the connection closed if its server is another incarnation than the place's."""
        subscription, subscriber = self._subscription, self._role.subscriber
        if subscription is not None and subscription.epoch != place.epoch:
            subscription.outdated = True
            if subscriber is not None:
                subscriber.wake()

    def _channels_in_use(self) -> dict[str, None]:
        return {self._packer.inbox_channel: None} | super()._channels_in_use()

    def _is_subscribed(self, role: _LineRole, waiter: LineWaiter) -> bool:
        subscription = role.subscriptions[_NODE]
        return (
            subscription is not None
            and subscription.since > 0
            and not subscription.outdated
            and subscription.confirmed.issuperset(waiter.channels)
        )

    # -- the connection -----------------------------------------------------------------------

    async def _connect(
        self, store: HubStore, role: _LineRole, subscriber: Subscriber[Any], until: float
    ) -> None:
        known = role.subscriptions[_NODE]
        if known is not None and known.outdated:
            why = "it led to another incarnation of the server"
            self._lose(role, _NODE, Broken(why, sent=True))
            # A waiter that relied on the connection rechecks before anybody connects again.
            subscriber.wake()
            return
        while role is self._role and role.subscriptions[_NODE] is None and (now := _now()) < until:
            if now < role.retry_at[_NODE]:
                raise StoreUnavailable(f"{self.where}: nobody can listen at present")
            failures = role.failures[_NODE]
            try:
                await self._open(store, role, subscriber, until)
            except StoreError as error:
                role.failures[_NODE] = failures
                if _now() >= until:
                    # Only this reader has run out of time: others may have more.
                    role.subscriptions[_NODE] = None
                    subscriber.drop(_NODE)
                    raise
                self._lose(role, _NODE, error)
            except BaseException:
                role.drop()
                raise

    async def _open(
        self, store: HubStore, role: _LineRole, subscriber: Subscriber[Any], until: float
    ) -> None:
        wire, inbox = await store.open_subscriber(until), self._packer.inbox_channel
        subscription = LineSubscription(inbox, wire.server.epoch)
        role.subscriptions[_NODE] = subscription
        # The inbox first: until it is confirmed, nobody may rely on this connection.
        self._to_subscribe.appendleft(inbox)
        subscriber.arrive(_NODE, wire)
        while inbox not in subscription.confirmed:
            message = await subscriber.next(until)
            if role is not self._role:
                return
            if message is not None:
                self._receive(role, *message)
                self._subscribe(role, subscriber)
            elif _now() >= until:
                role.subscriptions[_NODE] = None
                subscriber.drop(_NODE)
            if role is not self._role or role.subscriptions[_NODE] is not subscription:
                return
        # Asked after the inbox was confirmed, by the clock that also stamps places: a waiter whose
        # place is stored later than this misses no message.
        subscription.since = await store.server_time(until)
        self._wake_subscribed()

    def _explain(self, node: int, error: Exception) -> Exception:
        if isinstance(error, hiredis.ReplyError):
            return answered_error(str(error), self.where)
        return error

    def _lose(self, role: _LineRole, node: int, error: Exception) -> None:
        super()._lose(role, node, error)
        self._warn(error)
        if isinstance(error, StoreError):
            raise error

    def _must_recheck(self, subscription: LineSubscription, waiter: LineWaiter) -> bool:
        """Apply the messages that were kept for the waiter.

        True if others from the server of its place may have been lost: then it has to recheck.
        """
        place = waiter.place
        if place is None:
            return False
        if place.epoch != subscription.epoch:
            return True
        if place.at <= subscription.since and self._count_when_left(subscription, place) is None:
            return True
        # A message that the waiter received itself is newer.
        waiter.recheck_at = min(waiter.recheck_at, self._early.pop(place.id, inf))
        written, recheck_at = self._notified.pop(place.id, (place.at, inf))
        if written == place.at:
            waiter.recheck_at = min(waiter.recheck_at, recheck_at)
        return False

    def _count_when_left(self, subscription: LineSubscription, place: LinePlace) -> int | None:
        """The number of messages when the waiter last left to recheck; None if it never did."""
        before, messages = self._when_left.get(place.id, (None, None))
        return messages if before is subscription else None

    def _leave(self, waiter: LineWaiter, until: float) -> None:
        place = waiter.place
        if place is not None:
            if _now() < min(until, waiter.recheck_at):
                # A message ended the wait: the waiter will ask the server.
                self.resting.pop(place.id, None)
            subscription = self._subscription
            # A waiter that leaves before its time is over asks the server. One whose time is over
            # may wait on without asking (see `known_refusal`).
            knows = waiter.relied_on is subscription or _now() < until
            if subscription and knows and (place.follows or place.at <= subscription.since):
                # When it comes back, it will know of all messages that were received by now.
                received = subscription.messages_for(waiter)
                _remember(self._when_left, place.id, (subscription, received))
        super()._leave(waiter, until)

    # -- takes that need not be sent ----------------------------------------------------------

    def note_outcome(self, claim: str, sent: float, outcome: TakeOutcome) -> None:
        """Note the outcome of a take that was sent at `sent`."""
        if isinstance(outcome, Queued) and (place := read_place(outcome.seen)) is not None:
            _remember(self.last_refusals, place.id, _RefusedTake(sent, outcome))
        elif self.last_refusals:
            self.last_refusals.pop(waiter_id(claim), None)
            self.resting.pop(waiter_id(claim), None)

    def known_refusal(self, claim: str, ask: Ask) -> Queued | None:
        """The server's last refusal of the claim; None if the server must be asked."""
        now, id_ = _now(), waiter_id(claim)
        # Not items(): to copy them runs the garbage collector, and thereby other threads.
        for other in list(self.resting)[:1]:
            rest = self.resting.get(other)
            if rest is not None and rest.until < now:
                # Left behind by a waiter that gave up; nothing else would remove it.
                self.resting.pop(other, None)
        resting, refused = self.resting.get(id_), self.last_refusals.get(id_)
        if resting is None:
            return None
        subscription, until = resting
        if refused is None or ask.queue is None or subscription is not self._subscription:
            self.resting.pop(id_, None)
            return None
        if now >= until or now - refused.sent > _RECHECK_EVERY * ask.ttl:
            return None
        return replace(refused.outcome, retry_after=until - now)

    # -- messages -----------------------------------------------------------------------------

    def _on_message(
        self, node: int, subscription: LineSubscription, name: bytes, payload: bytes
    ) -> None:
        if subscription.outdated:
            return
        if name == subscription.inbox:
            self._on_inbox_message(subscription, payload)
            return
        # A release means nothing to a waiter with a place: the script has notified the first one.
        channel, payload_counts = name.decode(), payload != _RELEASED
        if payload_counts:
            subscription.messages[channel] = subscription.messages.get(channel, 0) + 1
        for waiter in list(self._waiters):
            if channel in waiter.channels and (payload_counts or waiter.place is None):
                self._note_recheck(waiter, -inf)
                waiter.notify()

    def _note_recheck(self, waiter: LineWaiter, recheck_at: float) -> None:
        if waiter.place is not None:
            self.resting.pop(waiter.place.id, None)
            _remember(self._notified, waiter.place.id, (waiter.place.at, recheck_at))

    def _on_inbox_message(self, subscription: LineSubscription, payload: bytes) -> None:
        message = read_message(payload)
        if message is None:
            return
        if message.rest:
            _remember(self.resting, message.id, _Rest(subscription, _now() + message.seconds))
            return
        at = _now() + message.seconds if message.seconds else -inf
        self.resting.pop(message.id, None)
        # Keep it first: the waiter may join, in another thread, while it is searched for.
        at = min(at, self._early.get(message.id, inf))
        _remember(self._early, message.id, at)
        for waiter in list(self._waiters):
            if waiter.place is not None and waiter.place.id == message.id:
                # Never later than before: this waiter may be the one that rechecks for the others.
                if at < waiter.recheck_at:
                    waiter.recheck_at = at
                    self._note_recheck(waiter, at)
                    waiter.wakeup.wake()
                self._early.pop(message.id, None)
                return

    def detach(self) -> None:
        super().detach()
        self._early, self._notified, self._when_left = {}, {}, {}
        self.last_refusals, self.resting = {}, {}


def _remember(memory: dict[str, T], id_: str, value: T) -> None:
    if len(memory) > _REMEMBERED:
        memory.clear()
    memory[id_] = value


# -- what a waiter asks the server besides takes -------------------------------------------------


def unchanged_program(packer: Packer, key: Key, seen: str) -> RespProgram[bool]:
    """Whether the state that `Refused.seen` describes is unchanged."""
    what, _, digest = seen.rpartition(" ")
    names = packer.naming.of(key)
    request = pack("GET", names.lease)
    if what == "pause":
        request = pack("HGET", names.record, FIELDS["put"] + b"pause")
    elif what.startswith("slot:"):
        request = pack("GET", names.slot(what.removeprefix("slot:")))
    replies = yield RequestBatch(request + pack("HGET", names.record, FIELDS["version"]), 2)
    for reply in replies:
        if reply is not None and not isinstance(reply, bytes):
            raise packer.unusable(reply, key)
    raw, version = replies
    is_same = digest_of(raw) == (digest or "-")
    if what and not what.startswith("fields:"):
        return is_same
    return is_same and int(version or 0) == int(what.removeprefix("fields:") or 0)


def time_program(packer: Packer) -> RespProgram[int]:
    """The server's clock in microseconds."""
    (reply,) = yield RequestBatch(pack("TIME"), 1)
    if type(reply) is not list:
        raise packer.unusable(reply)
    return int(reply[0]) * 1_000_000 + int(reply[1])
