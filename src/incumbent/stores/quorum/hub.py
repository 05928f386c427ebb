"""One subscriber connection to each node for all who wait, in this process or event loop.

One of those who wait reads all nodes at once, for all of them (see `redis.readers`). Written
once, as coroutines. No lock: lists and dictionaries change in atomic steps, so a signal handler may
come at any time.

What counts is a change on a majority: a release is said by every node at about the same time, and
who asked after the first word alone would find the others still held. Whoever listens to a majority
hears of every change, for each has a node in common with it; where fewer are left, who waits looks.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from math import inf
from typing import Any, Final

import hiredis

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Key
from incumbent.net.readers import ReaderRole, count_loss
from incumbent.stores.quorum.nodes import Quorum
from incumbent.stores.quorum.seats import CONNECTED, Ears, Hearing, Host, Seat, Waiter
from incumbent.stores.redis.errors import Broken, answered_error
from incumbent.stores.redis.resp import pack

__all__ = ["LINGER", "Hub"]

_UNHEARD: Final = (Broken, hiredis.ProtocolError, StoreError)
LINGER: Final = 0.005
"""Seconds for which the other nodes' words are waited for after the first."""
_LONGEST: Final = 2.0
"""Seconds for which a connection to a node is tried."""
_GLANCE: Final = 0.05
_SEND_WITHIN: Final = 0.02
_AGAIN, _AGAIN_MOST = 0.02, 5.0
"""Seconds before a node that could not be listened to is tried again."""
_CHANNELS: Final = 100
"""Channels that nobody listens to any more, and that are kept for who comes next."""
_SAY_EVERY: Final = 60.0

_log = logging.getLogger("incumbent")
_now = clock.now


class Hub(ReaderRole[Seat, Waiter]):
    """Who waits in one process or loop."""

    def __init__(self, quorum: Quorum) -> None:
        super().__init__(partial(Seat, len(quorum.names)))
        self._quorum = quorum
        self._todo: deque[str] = deque()
        self._said = -inf

    async def wait(self, host: Host, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change. Raises StoreUnavailable if no node can be listened to."""
        channel = self._quorum.dialect.keys(key).floor
        await self._catch_up(host)
        waiter = Waiter(host.new_bell(), channel)
        self._waiters[waiter] = None
        try:
            self._todo.append(channel)
            self._poke()
            await self._until(host, waiter, until)
            waiter.listens = True
            if waiter.told:
                return
            if not self._seat.confirmed(channel):
                raise self._nobody()
            if await host.is_unchanged(key, seen, until):
                await self._until(host, waiter, until)
        finally:
            self._waiters.pop(waiter, None)
            self._wake_one()

    def _nobody(self) -> StoreUnavailable:
        why = self._seat.why or "no answer"
        return StoreUnavailable(f"nobody of {self._quorum.where} can be listened to: {why}")

    # -- waiting: one reads, the others sleep -------------------------------------------------

    async def _until(self, host: Host, waiter: Waiter, until: float) -> None:
        """Until it is told or has to look; before it listens: or until there is who speaks."""
        while not self._is_done(waiter):
            end = min(until, waiter.look_at)
            if _now() >= end:
                waiter.told = True
                return
            seat = self._sit_down(host.me())
            if seat is None:
                await waiter.bell.wait(end if waiter.listens else min(end, _now() + _GLANCE))
                continue
            try:
                await self._read(host, seat, waiter, until)
            finally:
                self._stand_up(seat)

    def _is_done(self, waiter: Waiter) -> bool:
        if waiter.told or waiter.listens:
            return waiter.told
        seat = self._seat
        enough = seat.confirmed(waiter.channel) >= self._quorum.need
        return enough or not (self._todo or seat.may_confirm(waiter.channel, _now()))

    async def _catch_up(self, host: Host) -> None:
        """Read what came while nobody waited, also that connections are gone."""
        seat = self._sit_down(host.me()) if self._free else None
        if seat is None:
            return
        try:
            while seat.ears and (word := await seat.ears.next(-inf)) is not None:
                self._hear(seat, *word)
        except BaseException:
            self._lose_all(seat)
            raise
        finally:
            self._stand_up(seat)

    def _poke(self) -> None:
        if (ears := self._seat.ears) is not None:
            ears.poke()

    async def _read(self, host: Host, seat: Seat, waiter: Waiter, until: float) -> None:
        try:
            if seat.ears is None:
                seat.ears = host.new_ears()
            ears = seat.ears
            while seat is self._seat and not self._is_done(waiter):
                self._connect(seat, ears)
                self._send(seat, ears)
                if _now() >= min(until, waiter.look_at) or self._is_done(waiter):
                    return
                word = await ears.next(self._wake_at(seat, waiter, until))
                if word is not None:
                    self._hear(seat, *word)
                self._tell_who_lingered()
        except BaseException:
            if seat.ears is not None and not seat.ears.interruptible:
                # A message may have been half read.
                self._lose_all(seat)
            raise

    def _wake_at(self, seat: Seat, waiter: Waiter, until: float) -> float:
        """When the reader has something to do, whatever is heard."""
        until = min(until, *(it.look_at for it in list(self._waiters)), waiter.look_at)
        if not waiter.listens:
            until = min(until, _now() + _GLANCE)
        missing = (
            at for at, it in enumerate(seat.heard) if it is None and at not in seat.connecting
        )
        return min(until, *(seat.retry_at[at] for at in missing), inf)

    def _connect(self, seat: Seat, ears: Ears) -> None:
        now = _now()
        for node, it in enumerate(seat.heard):
            if it is None and node not in seat.connecting and now >= seat.retry_at[node]:
                seat.connecting[node] = None
                ears.begin(node, now + _LONGEST)

    # -- subscribing --------------------------------------------------------------------------

    def _send(self, seat: Seat, ears: Ears) -> None:
        while self._todo:
            channel = self._todo.popleft()
            for node in range(len(seat.heard)):
                self._ask(seat, ears, node, channel)
        for node, it in enumerate(seat.heard):
            if it is not None and len(it.asked) > _CHANNELS:
                self._forget(seat, ears, node, it)

    def _ask(self, seat: Seat, ears: Ears, node: int, channel: str) -> None:
        hearing = seat.heard[node]
        if hearing is not None and channel not in hearing.asked:
            hearing.asked[channel] = _now()
            self._say(seat, ears, node, pack("SUBSCRIBE", channel))

    def _forget(self, seat: Seat, ears: Ears, node: int, hearing: Hearing) -> None:
        used = {it.channel for it in list(self._waiters)}
        for channel in [it for it in hearing.asked if it not in used][: _CHANNELS // 2]:
            del hearing.asked[channel]
            hearing.confirmed.discard(channel)
            self._say(seat, ears, node, pack("UNSUBSCRIBE", channel))

    def _say(self, seat: Seat, ears: Ears, node: int, request: bytes) -> None:
        try:
            ears.say(node, request, _now() + _SEND_WITHIN)
        except _UNHEARD as error:
            self._lose(seat, node, error)

    # -- what was heard -----------------------------------------------------------------------

    def _hear(self, seat: Seat, node: int, message: Any) -> None:
        if message is CONNECTED:
            seat.connecting.pop(node, None)
            seat.heard[node] = Hearing()
            self._todo.extend({it.channel for it in list(self._waiters)})
            return
        if isinstance(message, hiredis.ReplyError):
            message = answered_error(str(message), self._quorum.names[node])
        if isinstance(message, BaseException):
            self._lose(seat, node, message)
            return
        kind, name, _ = message
        channel, hearing = name.decode(), seat.heard[node]
        if kind == b"subscribe" and hearing is not None and channel in hearing.asked:
            hearing.confirmed.add(channel)
            seat.failures[node] = 0
        for waiter in list(self._waiters):
            if waiter.channel != channel:
                continue
            if kind == b"message":
                self._count(waiter, node)
            elif not waiter.listens and self._is_done(waiter):
                waiter.bell.ring()

    def _count(self, waiter: Waiter, node: int) -> None:
        waiter.words.add(node)
        if len(waiter.words) >= self._quorum.need:
            waiter.tell()
        else:
            waiter.look_at = min(waiter.look_at, _now() + LINGER)

    def _tell_who_lingered(self) -> None:
        now = _now()
        for waiter in list(self._waiters):
            if waiter.look_at <= now and not waiter.told:
                waiter.tell()

    # -- losing -------------------------------------------------------------------------------

    def _lose(self, seat: Seat, node: int, error: BaseException) -> None:
        """This node is not listened to any more. With too few left, all have to look."""
        seat.connecting.pop(node, None)
        seat.heard[node] = None
        # Once more at once: it may only have closed what was unused for long, or was restarted.
        again = 2.0 ** min(seat.failures[node], 10) if seat.failures[node] else 0.0
        seat.retry_at[node] = _now() + min(_AGAIN_MOST, _AGAIN * again)
        seat.failures[node] += 1
        seat.why = error
        if seat.ears is not None:
            seat.ears.drop(node)
        count_loss()
        for waiter in list(self._waiters):
            if seat.confirmed(waiter.channel) < self._quorum.need:
                self._say_so(error)
                waiter.told = waiter.told or waiter.listens
            waiter.bell.ring()

    def _lose_all(self, seat: Seat) -> None:
        seat.drop()
        self._tell_all()

    def _say_so(self, error: BaseException) -> None:
        now = _now()
        if now - self._said >= _SAY_EVERY:
            self._said = now
            _log.warning(
                "%s: subscriptions to a majority were lost (%s); until there are others, who waits"
                " looks when the holder's ttl runs out",
                self._quorum.where,
                error,
            )

    # -- the end ------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Close the connections; who has the seat does it, if anybody has."""
        ears, free = self._seat.ears, self._free
        self._seat_anew()
        if free:
            free.pop().drop()
        elif ears is not None:
            ears.poke()
        self._tell_all()

    def abandon(self) -> None:
        """In a fork's child: the others who waited are not here, and the connections are theirs."""
        self._seat.drop()
        self._seat_anew()
        self._waiters = {}
        self._todo.clear()
