"""One subscriber connection for all who wait, in this process or event loop. No thread of its own.

One of those who wait reads for all of them: see `turns`. Written once, as coroutines, as `exchange`
is. No lock: lists and dictionaries change in atomic steps, so that a signal handler may come at any
time.

Nothing is missed: messages to a waiter in line name its claim, and one for a claim that does not
wait here yet is kept for it. Whatever may have been said before the subscription, or while there
was none, is not waited for: the wait ends, and the waiter looks.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Hashable
from dataclasses import replace
from math import inf
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import hiredis

from incumbent import clock
from incumbent.durations import backoff_delay
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Ask, Key, Queued, TakeOutcome
from incumbent.net.pool import Broken
from incumbent.net.readers import ReaderRole, Wakeup, count_loss
from incumbent.protocol.chance import draw_jitter
from incumbent.stores.redis.commands import Commands
from incumbent.stores.redis.errors import answered_error
from incumbent.stores.redis.line import Place, id_of, inbox_channel, read_call, read_place
from incumbent.stores.redis.resp import pack

_REMEMBERED: Final = 4096
_LOOKS_EVERY: Final = 20.0
"""Times its ttl after which one in line asks the server for itself, whatever is said."""
_CHANNELS: Final = 100
"""Channels that nobody listens to any more, and that are kept for the next waiter."""
_LOOK_ON: Final = b"given"

_WARN_EVERY: Final = 60.0

T = TypeVar("T")

_log = logging.getLogger("incumbent")
_now = clock.now


class Subscriber(Protocol):
    """The subscriber connection, used by the waiter that has the role."""

    epoch: str
    """Of the server: see exchange.AnyWire."""
    interruptible: bool
    """Whether an exception in `next` loses nothing."""

    def send(self, request: bytes, until: float) -> None:
        """Send. Raises Broken."""

    async def next(self, until: float) -> Any:
        """The next message; None at `until`, or when woken. Raises Broken."""

    def wake(self) -> None:
        """Have `next` return; from any thread."""

    def close(self) -> None:
        """Let go at once."""


class Waiter:
    """One that waits. `look_at`: when it has to look, whatever happens.

    `listens`: it has relied on the connection, and has to look when that is lost.
    """

    __slots__ = ("channels", "listens", "look_at", "over", "place", "wakeup")

    def __init__(self, wakeup: Wakeup, place: Place | None, channels: list[str]) -> None:
        self.wakeup = wakeup
        self.place = place
        self.channels = channels
        self.look_at = inf
        self.listens = False
        self.over = False


class Subscription:
    """What one connection has been subscribed to, and has heard."""

    def __init__(self, connection: Subscriber, inbox: str) -> None:
        self.connection = connection
        self.inbox = inbox.encode()
        self.since = 0
        """When the inbox was listened to at the latest, on the server's clock (microseconds)."""
        self.outdated = False
        """Whether it leads to another incarnation of the server than the takes."""
        self.asked: dict[str, None] = {}
        self.confirmed: set[str] = set()
        self.messages: dict[str, int] = {}

    def ask(self, channel: str, until: float) -> None:
        """Subscribe to a channel. Raises Broken."""
        self.asked[channel] = None
        self.connection.send(pack("SUBSCRIBE", channel), until)

    async def next(self, until: float) -> Any:
        """The next message, unless it would be of another incarnation. Raises Broken."""
        if self.outdated:
            raise Broken("it led to another incarnation of the server", sent=True)
        return await self.connection.next(until)

    def messages_for(self, waiter: Waiter) -> int:
        """How many have come on the channel of its lease."""
        return self.messages.get(waiter.channels[-1], 0)


class Role:
    """The waiter that has it reads for all."""

    def __init__(self) -> None:
        self.subscription: Subscription | None = None
        self.failures = 0
        self.retry_at = -inf
        self.reader: Hashable = None

    def drop(self) -> None:
        """Close the connection."""
        subscription, self.subscription = self.subscription, None
        if subscription is not None:
            subscription.connection.close()


class Host(Protocol):
    """What a hub needs of the exchange that it belongs to, for the time of one call."""

    async def open_subscriber(self, until: float) -> Subscriber:
        """A fresh connection, to listen by. Raises StoreUnavailable."""

    async def server_time(self, until: float) -> int:
        """The server's clock in microseconds. Raises StoreError."""

    async def is_unchanged(self, key: Key, seen: str, until: float) -> bool:
        """Whether what was seen is as it was. Raises StoreError."""

    def new_wakeup(self) -> Wakeup:
        """One that has not been rung."""

    def me(self) -> Hashable:
        """What tells one thread from another; tasks don't interrupt each other."""


class _Rest(NamedTuple):
    """One in line need not look until then, as this connection said."""

    subscription: Subscription
    until: float


class _Asked(NamedTuple):
    """A take of one in line: when it was sent, and what came of it."""

    sent: float
    outcome: Queued


class SubscriptionHub(ReaderRole[Role, Waiter]):
    """All waiters of one process or loop. `commands` has the inbox; a fork's child has another."""

    def __init__(self, commands: Commands) -> None:
        super().__init__(Role)
        self._commands = commands
        self.asked: dict[str, _Asked] = {}
        """The last takes of those in line."""
        self.waits_on: dict[str, _Rest] = {}
        """Who may go on waiting."""
        self._todo: deque[str] = deque()
        self._missed: dict[str, float] = {}
        self._told: dict[str, tuple[int, float]] = {}
        """When the place of a waiter was written, and by when it has to look. Its wait may have
        ended just then, and go on in the same place without a look."""
        self._looked: dict[str, tuple[Subscription, int]] = {}
        self._warned = -inf
        self.losses = 0
        """How often there was nobody to listen: a connection that was lost, or could not be had."""

    async def wait(self, host: Host, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change. Raises StoreError if nobody can listen."""
        place, channels = read_place(seen), [self._commands.naming.of(key).channel]
        if place is not None:
            channels = [self._inbox, *channels] if place.looks_on else [self._inbox]
        waiter = Waiter(host.new_wakeup(), place, channels)
        self._waiters[waiter] = None
        self._leave_behind(place)
        try:
            await self._catch_up(host)
            self._subscribe(channels)
            await self._until(host, waiter, until, listened=True)
            waiter.listens = True
            subscription = self._role.subscription
            if subscription is None or waiter.over or self._may_have_missed(subscription, waiter):
                return
            if self._has_to_look(subscription, waiter):
                mark = seen if place is None else f"lease {place.mark}"
                if not await host.is_unchanged(key, mark, until):
                    return
            await self._until(host, waiter, until)
        finally:
            self._leave(waiter, until)

    def _leave_behind(self, place: Place | None) -> None:
        """A connection that led to another server than the one where the place is: close it."""
        subscription = self._role.subscription
        if (
            place is not None
            and subscription is not None
            and subscription.connection.epoch != place.epoch
        ):
            subscription.outdated = True
            subscription.connection.wake()

    @property
    def _inbox(self) -> str:
        return inbox_channel(self._commands.inbox)

    def _subscribe(self, channels: list[str]) -> None:
        subscription = self._role.subscription
        missing = [
            channel
            for channel in channels
            if subscription is None or channel not in subscription.asked
        ]
        self._todo.extend(missing)
        if missing and subscription is not None:
            subscription.connection.wake()

    def _is_listened_to(self, channels: list[str]) -> bool:
        subscription = self._role.subscription
        return (
            subscription is not None
            and not subscription.outdated
            and subscription.confirmed.issuperset(channels)
        )

    def _may_have_missed(self, subscription: Subscription, waiter: Waiter) -> bool:
        """Whether the server of its place may have said something that nobody listened to."""
        place = waiter.place
        if place is None:
            return False
        if place.epoch != subscription.connection.epoch:
            return True
        if place.at <= subscription.since and self._looked_at(subscription, place) is None:
            return True
        # Words that were kept for it; what it has heard by itself is newer.
        waiter.look_at = min(waiter.look_at, self._missed.pop(place.id, inf))
        written, look_at = self._told.pop(place.id, (place.at, inf))
        if written == place.at:
            waiter.look_at = min(waiter.look_at, look_at)
        return False

    def _has_to_look(self, subscription: Subscription, waiter: Waiter) -> bool:
        place = waiter.place
        if place is None:
            return True
        known = self._looked_at(subscription, place)
        return place.looks_on and known != subscription.messages_for(waiter)

    def _looked_at(self, subscription: Subscription, place: Place) -> int | None:
        """How much had been heard when it last went to look; None if it never did."""
        looked, messages = self._looked.get(place.id, (None, None))
        return messages if looked is subscription else None

    def _leave(self, waiter: Waiter, until: float) -> None:
        self._waiters.pop(waiter, None)
        if waiter.place is not None and _now() < min(until, waiter.look_at):
            # Something has happened: it asks the server.
            self.waits_on.pop(waiter.place.id, None)
        subscription, place = self._role.subscription, waiter.place
        if place and subscription and (place.looks_on or place.at <= subscription.since):
            # A waiter that leaves looks, and comes back knowing all that was heard by now.
            _keep(self._looked, place.id, (subscription, subscription.messages_for(waiter)))
        self._wake_one()

    # -- takes that need not be sent ----------------------------------------------------------

    def learn(self, claim: str, sent: float, outcome: TakeOutcome) -> None:
        """What came of a take that was sent at `sent`."""
        place = read_place(outcome.seen) if isinstance(outcome, Queued) else None
        if place is None or not isinstance(outcome, Queued):
            self.asked.pop(id_of(claim), None)
            self.waits_on.pop(id_of(claim), None)
        else:
            _keep(self.asked, place.id, _Asked(sent, outcome))

    def answer(self, claim: str, ask: Ask) -> Queued | None:
        """The refusal that the server has sent already, unless it has to be asked."""
        now, id_ = _now(), id_of(claim)
        for other, rest in list(self.waits_on.items())[:1]:
            if rest.until < now:
                # Who gives up leaves it behind; nobody else would look at it again.
                self.waits_on.pop(other, None)
        rest_of_claim, asked = self.waits_on.get(id_), self.asked.get(id_)
        if rest_of_claim is None:
            return None
        subscription, until = rest_of_claim
        if asked is None or ask.queue is None or subscription is not self._role.subscription:
            self.waits_on.pop(id_, None)
            return None
        if now >= until or now - asked.sent > _LOOKS_EVERY * ask.ttl:
            return None
        return replace(asked.outcome, retry_after=until - now)

    # -- waiting: one reads, the others sleep -------------------------------------------------

    async def _until(
        self, host: Host, waiter: Waiter, until: float, *, listened: bool = False
    ) -> None:
        """Until it is told or has to look; `listened`: or its channels are listened to."""
        while not self._is_done(waiter, listened=listened):
            end = min(until, waiter.look_at)
            if _now() >= end:
                waiter.over = True
                return
            role = self._take_role(host.me())
            if role is None:
                await waiter.wakeup.wait(end)
                continue
            try:
                await self._read(host, role, waiter, until, listened=listened)
            finally:
                # A waiter that leaves at once wakes the next one then.
                self._leave_role(role, leaves=not listened and waiter.over)

    async def _catch_up(self, host: Host) -> None:
        """Read what came while nobody waited, also that the connection is gone."""
        role = self._take_role(host.me()) if self._free else None
        if role is None:
            return
        try:
            subscription = role.subscription
            while subscription and (message := await subscription.next(-inf)) is not None:
                self._receive(subscription, message)
        except (Broken, hiredis.ProtocolError) as error:
            self._lose(role, error)
        except BaseException:
            role.drop()
            raise
        finally:
            self._leave_role(role)

    def _is_done(self, waiter: Waiter, *, listened: bool) -> bool:
        return waiter.over or (listened and self._is_listened_to(waiter.channels))

    async def _read(
        self, host: Host, role: Role, waiter: Waiter, until: float, *, listened: bool
    ) -> None:
        if role.subscription is None and _now() < role.retry_at:
            raise StoreUnavailable(f"{self._commands.where}: nobody can listen at present")
        try:
            subscription = role.subscription or await self._open(host, role, until)
            while role is self._role and not self._is_done(waiter, listened=listened):
                end = min(until, waiter.look_at)
                if _now() >= end:
                    return
                self._send(subscription, end)
                message = await subscription.next(end)
                if message is not None:
                    self._receive(subscription, message)
                    waiter.over = waiter.over or waiter.look_at == -inf
        except (Broken, hiredis.ProtocolError) as error:
            self._lose(role, error)
        except StoreError as error:
            self._lose(role, error)
            raise
        except BaseException as error:
            if role.subscription is not None and not role.subscription.connection.interruptible:
                self._lose(role, error)
            raise

    async def _open(self, host: Host, role: Role, until: float) -> Subscription:
        subscription = Subscription(await host.open_subscriber(until), self._inbox)
        try:
            subscription.ask(self._inbox, until)
            while self._inbox not in subscription.confirmed:
                message = await subscription.connection.next(until)
                if message is not None:
                    self._receive(subscription, message)
                elif _now() >= until:
                    raise Broken("no answer in time", sent=True, late=True)
            subscription.since = await host.server_time(until)
        except BaseException:
            subscription.connection.close()
            raise
        role.subscription = subscription
        role.failures = 0
        self._todo.extend(name for it in list(self._waiters) for name in it.channels)
        return subscription

    def _send(self, subscription: Subscription, until: float) -> None:
        while self._todo:
            channel = self._todo.popleft()
            if channel not in subscription.asked:
                subscription.ask(channel, until)
        if len(subscription.asked) <= _CHANNELS:
            return
        used = {self._inbox, *(name for it in list(self._waiters) for name in it.channels)}
        for channel in [name for name in subscription.asked if name not in used][: _CHANNELS // 2]:
            del subscription.asked[channel]
            subscription.confirmed.discard(channel)
            subscription.connection.send(pack("UNSUBSCRIBE", channel), until)

    def _lose(self, role: Role, error: BaseException) -> None:
        """Nobody listens now. What is said meanwhile is lost: all have to look."""
        role.drop()
        if isinstance(error, Exception) and not (isinstance(error, Broken) and error.late):
            self._count_loss(role, error)
        self._end_waits()

    def _count_loss(self, role: Role, error: Exception) -> None:
        now = _now()
        self.losses += 1
        count_loss()
        role.failures += 1
        if role.failures > 1:
            role.retry_at = now + backoff_delay(role.failures, draw_jitter())
        if now - self._warned >= _WARN_EVERY:
            self._warned = now
            _log.warning(
                "%s: the subscription was lost (%s); until there is another, a waiter looks again"
                " only when the holder's ttl ends",
                self._commands.where,
                error,
            )

    # -- what was said ------------------------------------------------------------------------

    def _receive(self, subscription: Subscription, message: Any) -> None:
        if isinstance(message, hiredis.ReplyError):
            raise answered_error(str(message), self._commands.where)
        kind, name, payload = message
        if name == subscription.inbox and kind == b"message":
            self._receive_call(subscription, payload)
            return
        channel, payload_counts = name.decode(), payload != _LOOK_ON
        if kind == b"subscribe" and channel in subscription.asked:
            subscription.confirmed.add(channel)
        if kind == b"message" and payload_counts:
            subscription.messages[channel] = subscription.messages.get(channel, 0) + 1
        for waiter in list(self._waiters):
            if channel not in waiter.channels:
                continue
            if kind == b"subscribe":
                waiter.wakeup.wake()
            elif kind == b"message" and (payload_counts or waiter.place is None):
                waiter.over = True
                self._note_told(waiter, -inf)
                waiter.wakeup.wake()

    def _note_told(self, waiter: Waiter, look_at: float) -> None:
        if waiter.place is not None:
            self.waits_on.pop(waiter.place.id, None)
            _keep(self._told, waiter.place.id, (waiter.place.at, look_at))

    def _receive_call(self, subscription: Subscription, payload: bytes) -> None:
        call = read_call(payload)
        if call is None:
            return
        if call.rest:
            rest = _Rest(subscription, _now() + call.seconds)
            _keep(self.waits_on, call.id, rest)
            return
        at = _now() + call.seconds if call.seconds else -inf
        self.waits_on.pop(call.id, None)
        for waiter in list(self._waiters):
            if waiter.place is not None and waiter.place.id == call.id:
                # The one that has to look earlier may be the one that looks for others.
                if at < waiter.look_at:
                    waiter.look_at = at
                    self._note_told(waiter, at)
                    waiter.wakeup.wake()
                return
        _keep(self._missed, call.id, min(at, self._missed.get(call.id, inf)))

    # -- the end ------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Close the connection; the waiter that has the role does it, if there is one."""
        subscription, old = self._role.subscription, self._free
        self._renew_role()
        if old:
            old.pop().drop()
        elif subscription is not None:
            subscription.connection.wake()
        self._end_waits()

    def abandon(self) -> None:
        """In a fork's child: the others who waited are not here, and the connection is theirs."""
        self._role.drop()
        self._renew_role()
        self._waiters, self._missed, self._told, self._looked = {}, {}, {}, {}
        self.asked, self.waits_on = {}, {}
        self._todo.clear()


def _keep(memory: dict[str, T], id_: str, value: T) -> None:
    if len(memory) > _REMEMBERED:
        memory.clear()
    memory[id_] = value
