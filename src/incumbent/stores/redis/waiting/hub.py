"""One subscriber connection for all who wait, in this process or event loop. No thread of its own.

One of those who wait reads for all of them: see `turns`. Written once, as coroutines, as `exchange`
is. No lock: lists and dictionaries change in atomic steps, so that a signal handler may come at any
time.

Nothing is missed: who is in line is spoken to by its claim, and what nobody here waited for yet is
kept for it. Whatever may have been said before the subscription, or while there was none, is not
waited for: the wait ends, and whoever waited looks.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from math import inf
from typing import Any, Final

import hiredis

from incumbent import clock
from incumbent.durations import backoff_delay
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Key
from incumbent.stores.redis.dialect import Dialect
from incumbent.stores.redis.errors import Broken, answered_error
from incumbent.stores.redis.resp import pack
from incumbent.stores.redis.waiting.places import Place, inbox_channel, read_call, read_place
from incumbent.stores.redis.waiting.refusals import Refusals
from incumbent.stores.redis.waiting.seats import Bell, Ear, Hearing, Host, Seat, Waiter
from incumbent.stores.redis.waiting.turns import Turns
from incumbent.stores.waiting import count_loss

__all__ = ["Bell", "Ear", "Host", "Hub"]

_REMEMBERED: Final = 4096
_CHANNELS: Final = 100
"""Channels that nobody listens to any more, and that are kept for who comes next."""
_LOOK_ON: Final = b"given"

_SAY_EVERY: Final = 60.0

_log = logging.getLogger("incumbent")
_now = clock.now
# Chance of our own: an application that seeds `random` alike everywhere must not align a fleet.
_jitter = random.SystemRandom().random


class Hub(Refusals, Turns[Seat, Waiter]):
    """Who waits in one process or loop. `dialect` knows the inbox, which a fork's child changes."""

    def __init__(self, dialect: Dialect) -> None:
        Refusals.__init__(self)
        Turns.__init__(self, Seat)
        self._dialect = dialect
        self._todo: deque[str] = deque()
        self._missed: dict[str, float] = {}
        self._looked: dict[str, tuple[Hearing, int]] = {}
        self._said = -inf
        self.losses = 0
        """How often there was nobody to listen: a connection that was lost, or could not be had."""

    async def wait(self, host: Host, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change. Raises StoreError if nobody can listen."""
        place, channels = read_place(seen), [self._dialect.naming.of(key).channel]
        if place is not None:
            channels = [self._inbox, *channels] if place.looks_on else [self._inbox]
        waiter = Waiter(host.new_bell(), place, channels)
        self._waiters[waiter] = None
        self._leave_behind(place)
        try:
            await self._catch_up(host)
            self._subscribe(channels)
            await self._until(host, waiter, until, listened=True)
            waiter.listens = True
            hearing = self._seat.hearing
            if hearing is None or waiter.told or self._may_have_missed(hearing, waiter):
                return
            if self._has_to_look(hearing, waiter):
                mark = seen if place is None else f"lease {place.mark}"
                if not await host.is_unchanged(key, mark, until):
                    return
            await self._until(host, waiter, until)
        finally:
            self._leave(waiter, until)

    def is_current(self, hearing: Hearing) -> bool:
        """See Refusals.is_current."""
        return hearing is self._seat.hearing

    def _leave_behind(self, place: Place | None) -> None:
        """A connection that led to another server than the one where the place is: close it."""
        hearing = self._seat.hearing
        if place is not None and hearing is not None and hearing.ear.epoch != place.epoch:
            hearing.outdated = True
            hearing.ear.poke()

    @property
    def _inbox(self) -> str:
        return inbox_channel(self._dialect.inbox)

    def _subscribe(self, channels: list[str]) -> None:
        hearing = self._seat.hearing
        missing = [it for it in channels if hearing is None or it not in hearing.asked]
        self._todo.extend(missing)
        if missing and hearing is not None:
            hearing.ear.poke()

    def _is_listened_to(self, channels: list[str]) -> bool:
        hearing = self._seat.hearing
        return (
            hearing is not None and not hearing.outdated and hearing.confirmed.issuperset(channels)
        )

    def _may_have_missed(self, hearing: Hearing, waiter: Waiter) -> bool:
        """Whether the server of its place may have said something that nobody listened to."""
        place = waiter.place
        if place is None:
            return False
        if place.epoch != hearing.ear.epoch:
            return True
        if place.at <= hearing.since and self._known(hearing, place) is None:
            return True
        # Words that were kept for it; what it has heard by itself is newer.
        waiter.look_at = min(waiter.look_at, self._missed.pop(place.id, inf))
        return False

    def _has_to_look(self, hearing: Hearing, waiter: Waiter) -> bool:
        place = waiter.place
        if place is None:
            return True
        return place.looks_on and self._known(hearing, place) != _heard(hearing, waiter)

    def _known(self, hearing: Hearing, place: Place) -> int | None:
        """How much had been heard when it last went to look; None if it never did."""
        looked, heard = self._looked.get(place.id, (None, None))
        return heard if looked is hearing else None

    def _leave(self, waiter: Waiter, until: float) -> None:
        self._waiters.pop(waiter, None)
        if waiter.place is not None and _now() < min(until, waiter.look_at):
            # Something has happened: it asks the server.
            self.has_to_look(waiter.place.id)
        hearing, place = self._seat.hearing, waiter.place
        if place and hearing and (place.looks_on or place.at <= hearing.since):
            if len(self._looked) > _REMEMBERED:
                self._looked.clear()
            # Who leaves looks, and comes back knowing all that was heard by now.
            self._looked[place.id] = (hearing, _heard(hearing, waiter))
        self._wake_one()

    # -- waiting: one reads, the others sleep -------------------------------------------------

    async def _until(
        self, host: Host, waiter: Waiter, until: float, *, listened: bool = False
    ) -> None:
        """Until it is told or has to look; `listened`: or its channels are listened to."""
        while not self._is_done(waiter, listened=listened):
            end = min(until, waiter.look_at)
            if _now() >= end:
                waiter.told = True
                return
            seat = self._sit_down(host.me())
            if seat is None:
                await waiter.bell.wait(end)
                continue
            try:
                await self._read(host, seat, waiter, until, listened=listened)
            finally:
                # Who leaves at once wakes the next one then.
                self._stand_up(seat, leaves=not listened and waiter.told)

    async def _catch_up(self, host: Host) -> None:
        """Read what came while nobody waited, also that the connection is gone."""
        seat = self._sit_down(host.me()) if self._free else None
        if seat is None:
            return
        try:
            hearing = seat.hearing
            while hearing and (message := await _next(hearing, -inf)) is not None:
                self._hear(hearing, message)
        except (Broken, hiredis.ProtocolError) as error:
            self._lose(seat, error)
        except BaseException:
            seat.drop()
            raise
        finally:
            self._stand_up(seat)

    def _is_done(self, waiter: Waiter, *, listened: bool) -> bool:
        return waiter.told or (listened and self._is_listened_to(waiter.channels))

    async def _read(
        self, host: Host, seat: Seat, waiter: Waiter, until: float, *, listened: bool
    ) -> None:
        if seat.hearing is None and _now() < seat.retry_at:
            raise StoreUnavailable(f"{self._dialect.where}: nobody can listen at present")
        try:
            hearing = seat.hearing or await self._open(host, seat, until)
            while seat is self._seat and not self._is_done(waiter, listened=listened):
                end = min(until, waiter.look_at)
                if _now() >= end:
                    return
                self._send(hearing, end)
                message = await _next(hearing, end)
                if message is not None:
                    self._hear(hearing, message)
                    waiter.told = waiter.told or waiter.look_at == -inf
        except (Broken, hiredis.ProtocolError) as error:
            self._lose(seat, error)
        except StoreError as error:
            self._lose(seat, error)
            raise
        except BaseException as error:
            if seat.hearing is not None and not seat.hearing.ear.interruptible:
                self._lose(seat, error)
            raise

    async def _open(self, host: Host, seat: Seat, until: float) -> Hearing:
        hearing = Hearing(await host.open_ear(until), self._inbox)
        try:
            await self._begin(host, hearing, until)
        except BaseException:
            hearing.ear.close()
            raise
        seat.hearing = hearing
        seat.failures = 0
        self._todo.extend(it for waiter in list(self._waiters) for it in waiter.channels)
        return hearing

    async def _begin(self, host: Host, hearing: Hearing, until: float) -> None:
        inbox = self._inbox
        self._ask(hearing, inbox, until)
        while inbox not in hearing.confirmed:
            message = await hearing.ear.next(until)
            if message is not None:
                self._hear(hearing, message)
            elif _now() >= until:
                raise Broken("no answer in time", sent=True, late=True)
        hearing.since = await host.server_time(until)

    def _send(self, hearing: Hearing, until: float) -> None:
        while self._todo:
            channel = self._todo.popleft()
            if channel not in hearing.asked:
                self._ask(hearing, channel, until)
        if len(hearing.asked) > _CHANNELS:
            self._forget(hearing, until)

    def _ask(self, hearing: Hearing, channel: str, until: float) -> None:
        hearing.asked[channel] = None
        hearing.ear.say(pack("SUBSCRIBE", channel), until)

    def _forget(self, hearing: Hearing, until: float) -> None:
        used = {it for waiter in list(self._waiters) for it in waiter.channels}
        used.add(self._inbox)
        for channel in [it for it in hearing.asked if it not in used][: _CHANNELS // 2]:
            del hearing.asked[channel]
            hearing.confirmed.discard(channel)
            hearing.ear.say(pack("UNSUBSCRIBE", channel), until)

    def _lose(self, seat: Seat, error: BaseException) -> None:
        """Nobody listens now. What is said meanwhile is lost: all have to look."""
        seat.drop()
        if isinstance(error, Exception) and not (isinstance(error, Broken) and error.late):
            self._count_loss(seat, error)
        self._tell_all()

    def _count_loss(self, seat: Seat, error: Exception) -> None:
        now = _now()
        self.losses += 1
        count_loss()
        seat.failures += 1
        if seat.failures > 1:
            seat.retry_at = now + backoff_delay(seat.failures, _jitter())
        if now - self._said >= _SAY_EVERY:
            self._said = now
            _log.warning(
                "%s: the subscription was lost (%s); until there is another, who waits looks when"
                " the holder's ttl runs out",
                self._dialect.where,
                error,
            )

    # -- what was said ------------------------------------------------------------------------

    def _hear(self, hearing: Hearing, message: Any) -> None:
        if isinstance(message, hiredis.ReplyError):
            raise answered_error(str(message), self._dialect.where)
        kind, name, payload = message
        if name == hearing.inbox and kind == b"message":
            self._hear_call(hearing, payload)
            return
        channel = name.decode()
        if kind == b"subscribe":
            if channel in hearing.asked:
                hearing.confirmed.add(channel)
            self._ring(channel)
        elif kind == b"message":
            looked_for = payload != _LOOK_ON
            if looked_for:
                hearing.heard[channel] = hearing.heard.get(channel, 0) + 1
            for waiter in list(self._waiters):
                if channel in waiter.channels and (looked_for or waiter.place is None):
                    waiter.told = True
                    waiter.bell.ring()

    def _hear_call(self, hearing: Hearing, payload: bytes) -> None:
        call = read_call(payload)
        if call is None:
            return
        if call.rest:
            self.remember(call, hearing)
            return
        at = _now() + call.seconds if call.seconds else -inf
        self.has_to_look(call.id)
        for waiter in list(self._waiters):
            if waiter.place is not None and waiter.place.id == call.id:
                self._call(waiter, at)
                return
        if len(self._missed) > _REMEMBERED:
            self._missed.clear()
        self._missed[call.id] = min(at, self._missed.get(call.id, inf))

    def _call(self, waiter: Waiter, at: float) -> None:
        # Who was told to look earlier may be the one who looks for others.
        if at < waiter.look_at:
            waiter.look_at = at
            waiter.bell.ring()

    def _ring(self, channel: str) -> None:
        for waiter in list(self._waiters):
            if channel in waiter.channels:
                waiter.bell.ring()

    # -- the end ------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Close the connection; who has the seat does it, if anybody has."""
        hearing, old = self._seat.hearing, self._free
        self._seat_anew()
        if old:
            old.pop().drop()
        elif hearing is not None:
            hearing.ear.poke()
        self._tell_all()

    def abandon(self) -> None:
        """In a fork's child: the others who waited are not here, and the connection is theirs."""
        self._seat.drop()
        self._seat_anew()
        self._waiters, self._missed, self._looked = {}, {}, {}
        self.forget()
        self._todo.clear()


async def _next(hearing: Hearing, until: float) -> Any:
    """The next message, unless what it would say is of another incarnation. Raises Broken."""
    if hearing.outdated:
        raise Broken("it led to another incarnation of the server", sent=True)
    return await hearing.ear.next(until)


def _heard(hearing: Hearing, waiter: Waiter) -> int:
    return hearing.heard.get(waiter.channels[-1], 0)
