"""A member's part: it stays on the roster, gives up shards that are others', and takes its own.

No shard changes hands by agreement. Its present holder stops the body, awaits its end and releases
the lease; the next one takes the lease, and only then starts a body. So members that see different
rosters for a moment leave a shard vacant, and never give it to two.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from typing import Final, NoReturn, Protocol

from incumbent.division import shards_of
from incumbent.durations import backoff_delay
from incumbent.election import Standing
from incumbent.errors import NotAcquired, StoreError
from incumbent.model import Key
from incumbent.protocol.acquire import acquire
from incumbent.protocol.held import Held, Wanted
from incumbent.protocol.observe import WritingPort, outlast
from incumbent.protocol.roster import Roster

_AGAIN_FIRST: Final = 0.02
_AGAIN_MOST: Final = 1.0
"""Seconds between two tries for a shard that another still holds; half a renewal interval at most.

They double from the first: a hand-over takes as long as the body of the one before needs.
"""
_SPREAD: Final = 0.002


class Bodies(Protocol):
    """What runs the work of the shards: threads, tasks, or a simulator. No method waits."""

    def numbers(self) -> Collection[int]:
        """The shards whose lease is held here, also while their body ends."""
        ...

    def start(self, number: int, held: Held) -> None:
        """Run the work of a shard, renew its lease meanwhile, and release it afterwards."""
        ...

    def stop(self, number: int) -> None:
        """Ask the body of a shard to end; again does nothing."""
        ...


@dataclass(slots=True)
class _Try:
    """A shard that is ours, and vacant or another's: when to ask for it again."""

    due: float = -inf
    refused: int = 0


class Division:
    """The shards of one member. `wanted`: what their leases ask for; its key is the group's."""

    def __init__(self, count: int, wanted: Wanted, bodies: Bodies) -> None:
        self.name = wanted.key.name
        self.count = count
        # Nobody waits for a shard but who will have it: there is no line to keep.
        self._wanted = wanted._replace(waiting=wanted.ask)
        self._bodies = bodies
        self._mine: frozenset[int] = frozenset()
        self._tries: dict[int, _Try] = {}
        self._begun: dict[int, tuple[float, Standing]] = {}
        """When the body that was started last began, and what that means for the next one."""

    def assign(self, member: str, members: Collection[str]) -> None:
        """Note which shards are ours while these are the members; ask all other bodies to end."""
        self._mine = shards_of(member, self.name, self.count, members)
        for number in self._bodies.numbers():
            if number not in self._mine:
                self._bodies.stop(number)
        for kept in (self._tries, self._begun):
            for number in [number for number in kept if number not in self._mine]:
                del kept[number]

    async def take(self, port: WritingPort) -> float:
        """Ask for the shards that are ours and not held here; returns when to ask again.

        For a part of a renewal interval at most: others may have come, and wait for their shards.
        Raises only a StoreError that another try cannot mend.
        """
        wake, here = inf, frozenset(self._bodies.numbers())
        over = port.now() + self._wanted.policy.renew_every / 4
        turns = [
            (self._tries.get(number) or self._next_turn(port, number), number)
            for number in self._mine - here
        ]
        for turn, number in sorted(turns, key=lambda each: (each[0].due, each[1])):
            if port.now() >= over:
                return over
            if turn.due > port.now():
                return min(wake, turn.due)
            try:
                if not await self._try(port, number, turn):
                    wake = min(wake, turn.due)
            except StoreError as error:
                self._postpone(port, turn, error)
                return port.now() + _AGAIN_FIRST
        return wake

    def _next_turn(self, port: WritingPort, number: int) -> _Try:
        """The first try at once; if a body of ours ended by itself, after a pause."""
        turn = self._tries[number] = _Try()
        if number in self._begun:
            began, standing = self._begun[number]
            now = port.now()
            turn.due = now + standing.pause(now - began, port.jitter())
        return turn

    async def _try(self, port: WritingPort, number: int, turn: _Try) -> bool:
        wanted = self._wanted._replace(key=_key_of(self._wanted.key, number))
        try:
            held = await acquire(port, wanted, 0)
        except NotAcquired as refusal:
            turn.due = port.now() + self._delay(port, turn, refusal.retry_after)
            turn.refused += 1
            return False
        del self._tries[number]
        policy = wanted.policy
        _, standing = self._begun.get(number) or (0.0, Standing(policy.ttl, policy.renew_every))
        self._begun[number] = (held.began, standing)
        self._bodies.start(number, held)
        return True

    def _postpone(self, port: WritingPort, turn: _Try, error: StoreError) -> None:
        """Ask for the others first: a node of a cluster may be away, and those of others not."""
        if error.permanent:
            raise error
        port.tell_outage(self._wanted.key, error)
        turn.refused += 1
        delay = max(backoff_delay(turn.refused, port.jitter()), error.retry_after or 0.0)
        turn.due = port.now() + delay

    def _delay(self, port: WritingPort, turn: _Try, left: float | None) -> float:
        most = min(_AGAIN_MOST, self._wanted.policy.renew_every / 2)
        delay = min(most, _AGAIN_FIRST * 2.0 ** min(turn.refused, 30))
        return delay if left is None else min(delay, left + _SPREAD * port.jitter())


def _key_of(name: Key, number: int) -> Key:
    return Key(name.namespace, f"{name.name}/{number}")


async def attend(port: WritingPort, roster: Roster, division: Division | None = None) -> NoReturn:
    """Be a member until this is ended from outside. Goes on through outages.

    Raises what `Roster.join` does, and only those StoreErrors that another try cannot mend.
    """
    while True:
        try:
            await _attend_once(port, roster, division)
        except StoreError as error:
            await outlast(port, roster, error, inf)


async def _attend_once(port: WritingPort, roster: Roster, division: Division | None) -> None:
    if not roster.is_in(port.now()):
        if division is not None:
            # One that is no member has no shards: the others share them among themselves.
            division.assign(roster.me, ())
        try:
            await roster.join(port)
        except NotAcquired:
            # An operator paused it, or our own lease from before lives on: neither a member nor an
            # error.
            await port.sleep_until(port.now() + roster.policy.renew_every)
            return
    await roster.look(port)
    wake = inf
    if division is not None:
        same = [name for name, field in roster.members.items() if field.value == roster.note]
        division.assign(roster.me, same)
        wake = await division.take(port)
    await roster.wait(port, wake)


async def await_news(port: WritingPort, roster: Roster, until: float) -> bool:
    """Wait until the members are others than before; False if there was no such news by `until`.

    Raises only a StoreError that another try cannot mend.
    """
    while True:
        try:
            if await roster.look(port):
                return True
            if port.now() >= until:
                return False
            await roster.wait(port, until)
        except StoreError as error:
            if not await outlast(port, roster, error, until):
                return False
