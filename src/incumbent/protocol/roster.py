"""The members of a group: each has a lease of its own, and its name in the fields of one record.

That record, the roster, is read by one request whatever the number of members, and a wait for a
change of it is on one key. A lease that ran out leaves its name there: each member looks after the
leases of the few that follow it in the circle of names, and strikes the names of the dead.
What is read of leases is not proof, and need not be: shards have leases of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import Final, NamedTuple

from incumbent.division import circle
from incumbent.durations import backoff_delay, say_seconds
from incumbent.errors import ConfigError, Misuse, NotAcquired, StoreError
from incumbent.model import ByVersion, Field, Holding, Key, Record, Stored
from incumbent.policy import Policy
from incumbent.protocol.acquire import Renewing, acquire
from incumbent.protocol.held import Held, Wanted
from incumbent.protocol.observe import WritingPort
from incumbent.protocol.release import release

MEMBER: Final = "@"
"""What the name of a member begins with; those of shards are digits."""
WATCHED: Final = 3
"""How many others a member looks after: one that is frozen delays nobody's end."""
_LEAST: Final = 0.02
"""Seconds between two looks at a lease that is about to run out."""
_SPREAD: Final = 0.002
"""Seconds over which members spread their looks at a lease that runs out."""


class _Sight(NamedTuple):
    """What was seen of a member: until when its lease stands, if it does nothing more."""

    version: int
    until: float
    holding: Holding


class Roster:
    """One process's view of a group. `own`: the lease of its own membership; None: it only looks.

    `note`: what the member's field says, the number of shards that it reckons with.
    """

    def __init__(
        self,
        key: Key,
        policy: Policy,
        keeper: Renewing,
        own: Wanted | None = None,
        note: bytes = b"",
    ) -> None:
        self.key = key
        self.policy = policy
        self.own = own
        self.note = note
        self.failures = 0
        """Requests in a row without an answer."""
        self.members: dict[str, Field] = {}
        """As last seen, ourselves included, in the order of their names."""
        self.me = own.key.name.removeprefix(f"{key.name}/") if own else ""
        self._keeper = keeper
        self._held: Held | None = None
        self._former: int | None = None
        """The token of our membership before: the store may keep that for longer than we did."""
        self._version = 0
        self._seen = ""
        self._started = False
        self._again = 0
        """Looks in a row that showed nothing new."""
        self._next = -inf
        self._sights: dict[str, _Sight] = {}

    def is_in(self, now: float) -> bool:
        """Whether our membership is proved."""
        return self._held is not None and self._held.machine.valid(now)

    def holdings(self) -> Iterator[Holding]:
        """What was last seen of the members' leases."""
        return (self._sights[name].holding for name in self.members if name in self._sights)

    # -- coming and going ----------------------------------------------------------------------

    async def join(self, port: WritingPort, timeout: float | None = None) -> None:
        """Become a member, or raise and be none. For a ttl it waits for a predecessor of our name.

        Raises ConfigError if a member reckons with another number of shards, Misuse if one that
        lives has our name, NotAcquired, StoreError. After a cancellation call `leave`.
        """
        await self.leave(port)
        own = self.own
        if own is None:
            return
        self._held = await self._take_place(port, own, timeout)
        self._keeper.arm(self._held)
        try:
            await self._write(port)
            await self._refuse_others(port)
        except Exception:
            await self.leave(port)
            raise

    async def _take_place(self, port: WritingPort, own: Wanted, timeout: float | None) -> Held:
        patience = self.policy.ttl + 2 * self.policy.renew_every if timeout is None else timeout
        try:
            return await acquire(port, own, patience)
        except NotAcquired as error:
            if error.reason != "held" or timeout == 0:
                raise
        try:
            # That refusal may be old: of before this process was frozen.
            return await acquire(port, own, 0)
        except NotAcquired as error:
            if error.reason != "held" or await self._was_ours(port, own.key):
                raise
            raise Misuse(
                f"{self.key.name!r} has a member {own.ask.holder!r}, which still lives after"
                f" {say_seconds(patience)}: give each member a holder= of its own"
            ) from None

    async def _was_ours(self, port: WritingPort, place: Key) -> bool:
        """Whether all that stands there is left of our own membership."""
        record = await port.read(place, self._until(port))
        return all(holding.token == self._former for holding in record.holdings)

    async def _write(self, port: WritingPort) -> None:
        stored = await port.put(self.key, self.me, self.note, None, self._until(port))
        if isinstance(stored, Stored):
            self._version = stored.version

    async def _refuse_others(self, port: WritingPort) -> None:
        """Two that join at once each see the other: each writes before it reads."""
        record = await port.read(self.key, self._until(port))
        for name, field in _members(record).items():
            if not field.value or not self.note or field.value == self.note or name == self.me:
                continue
            if await self._lives(port, name, field):
                holder = self._sights[name].holding.holder
                raise ConfigError(
                    f"{self.key.name!r} has {field.value.decode(errors='replace')} shards, says its"
                    f" member {holder!r}, and {self.note.decode()} here: all members need the same"
                    " number, and to change it all of them have to end first",
                    name="count",
                )

    async def strike(self, port: WritingPort) -> None:
        """Remove our name from the roster, so that the others take over at once.

        Raises no StoreError: without it they take over when our lease has ended.
        """
        try:
            await self._remove(port, self.me, self._version)
        except StoreError:
            pass

    async def _remove(self, port: WritingPort, name: str, version: int) -> None:
        await port.put(self.key, name, None, ByVersion(version), self._until(port))

    async def leave(self, port: WritingPort) -> None:
        """Give our lease back, or leave that to the keeper, and `strike`."""
        held, self._held = self._held, None
        if held is None:
            return
        self._former = held.machine.token
        now = port.now()
        try:
            if held.machine.valid(now):
                await release(port, held)
            else:
                port.hand_over(held.debt(now, undo_slot=False))
        finally:
            self._keeper.disarm(held)
        await self.strike(port)

    # -- looking -------------------------------------------------------------------------------

    async def look(self, port: WritingPort) -> bool:
        """Read who the members are; whether that is news. Raises StoreError.

        That is one request, and one for each lease that we look after and that may have run out.
        """
        sent = port.now()
        record = await port.read(self.key, self._until(port))
        found = _members(record)
        self._next = sent + self.policy.renew_every
        self._sights = {name: seen for name, seen in self._sights.items() if name in found}
        if self.is_in(sent) and self.me not in found:
            # Struck by one that took us for dead, or before a wipe of the store.
            await self._write(port)
            found[self.me] = Field(self.note, self._version)
        await self._look_after(port, found)
        # The version of a field differs too where another of the same name has come.
        news = not self._started or self.members != found
        self.members, self._started = dict(sorted(found.items())), True
        self._seen, self.failures = record.seen, 0
        self._again = 0 if news else self._again + 1
        return news

    async def _look_after(self, port: WritingPort, found: dict[str, Field]) -> None:
        """Strike those whose lease has ended, of the next few in the circle of names.

        Without a membership of our own: leave them out, of all.
        """
        living = 0
        for name in circle(self.me, found):
            if self.own is not None and living >= WATCHED:
                return
            field = found[name]
            try:
                lives = await self._lives(port, name, field)
            except StoreError as error:
                if self.own is None or error.permanent:
                    raise
                # The node of a cluster that has its lease is away: nobody is struck for that.
                living += 1
                continue
            if lives:
                living += 1
                self._next = min(self._next, self._sights[name].until)
            else:
                del found[name]
                if self.own is not None:
                    await self._remove(port, name, field.version)

    async def _lives(self, port: WritingPort, name: str, field: Field) -> bool:
        now = port.now()
        sight = self._sights.get(name)
        if sight is not None and sight.version == field.version and sight.until > now:
            return True
        key = Key(self.key.namespace, f"{self.key.name}/{name}")
        record = await port.read(key, self._until(port))
        if not record.holdings and not record.undecided:
            self._sights.pop(name, None)
            return False
        holding = record.holdings[0] if record.holdings else Holding(name.removeprefix(MEMBER))
        left = self.policy.renew_every if holding.remaining is None else holding.remaining
        until = now + max(_LEAST, left + _SPREAD * port.jitter())
        self._sights[name] = _Sight(field.version, until, holding)
        return True

    async def wait(self, port: WritingPort, until: float) -> None:
        """Until the roster changes, a lease may have run out, or a renewal interval is over."""
        wake = min(until, self._next)
        if self._again > 1:
            # Hints may be spurious: many of them must not become a busy loop.
            pause = backoff_delay(self._again, port.jitter(), base=0.001, cap=0.05)
            await port.sleep_until(min(wake, port.now() + pause))
        if port.now() < wake:
            await port.wait_change(self.key, self._seen, wake)

    def _until(self, port: WritingPort) -> float:
        return port.now() + self.policy.request_timeout


def _members(record: Record) -> dict[str, Field]:
    return {name: field for name, field in record.fields.items() if name.startswith(MEMBER)}
