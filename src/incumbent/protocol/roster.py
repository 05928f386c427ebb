"""The members of a group: each has a lease of its own, and its name in the fields of one record.

That record is the roster. One request reads it whatever the number of members, and a wait for its
change is a wait on one key. A lease that runs out leaves its member's name there: so each member
checks the leases of the next few members in the circle of names, and strikes the names of the dead.
These readings of leases are no proof, and need not be: shards have leases of their own.

A member stays on the roster, gives up shards that belong to others, and takes its own. A shard does
not change hands by agreement: its present holder stops the body, awaits its end and releases the
lease; the next member takes the lease, and only then starts a body. So members that see different
rosters for a moment leave a shard vacant, and never both have it.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import shake_128
from math import inf
from typing import Final, NamedTuple, NoReturn, Protocol

from incumbent.durations import say_seconds
from incumbent.election import CandidatePauses
from incumbent.errors import ConfigError, Misuse, NotAcquired, StoreError
from incumbent.model import ByVersion, Field, Holding, Key, Record, Stored
from incumbent.policy import Policy
from incumbent.protocol.acquire import RenewingKeeper, acquire
from incumbent.protocol.claim import Claim, LeaseRequest
from incumbent.protocol.observe import WritingPort, outlast
from incumbent.protocol.port import pace, retry_delay
from incumbent.protocol.release import release

MEMBER: Final = "@"
"""The prefix of members' names; the names of shards are digits."""
WATCHED: Final = 3
"""The number of others that a member checks: several, so that a frozen member delays no strike."""
# The least seconds between two readings of a lease that is about to run out.
_LEAST: Final = 0.02
# Seconds over which members spread their readings of a lease that ends, and their takes.
_SPREAD: Final = 0.002


class _KnownMember(NamedTuple):
    """A member as last read; `until`: the instant when its lease runs out if it is not renewed."""

    version: int
    until: float
    holding: Holding


class Roster:
    """One process's view of a group. `own`: the lease of its membership; None: it only observes.

    `note`: the value of the member's field, which is the number of shards that it expects.
    """

    def __init__(
        self,
        key: Key,
        policy: Policy,
        keeper: RenewingKeeper,
        own: LeaseRequest | None = None,
        note: bytes = b"",
    ) -> None:
        self.key = key
        self.policy = policy
        self.own = own
        self.note = note
        self.failures = 0
        """Requests in a row without an answer."""
        self.members: dict[str, Field] = {}
        """The members as last read, including ourselves, in the order of their names."""
        self.me = own.key.name.removeprefix(f"{key.name}/") if own else ""
        self._keeper = keeper
        self._claim: Claim | None = None
        self._former: int | None = None
        """The token of our former membership: the store may keep it for longer than we did."""
        self._version = 0
        self._seen = ""
        self._started = False
        self._unchanged = 0
        """Readings in a row without news."""
        self._recheck_at = -inf
        self._known: dict[str, _KnownMember] = {}

    def is_in(self, now: float) -> bool:
        """Whether our membership is proved."""
        return self._claim is not None and self._claim.machine.valid(now)

    def holdings(self) -> Iterator[Holding]:
        """The holdings of the members' leases, as last read."""
        return (self._known[name].holding for name in self.members if name in self._known)

    # -- coming and going ----------------------------------------------------------------------

    async def join(self, port: WritingPort, timeout: float | None = None) -> None:
        """Become a member, or raise. Waits about a ttl for the end of a predecessor of our name.

        Raises ConfigError if a member expects another number of shards, Misuse if a living member
        has our name, NotAcquired, StoreError. After a cancellation call `leave`.
        """
        await self.leave(port)
        own = self.own
        if own is None:
            return
        self._claim = await self._acquire_membership(port, own, timeout)
        # Armed before the writes: they may take as long as an outage, and the lease has to last.
        self._keeper.arm(self._claim)
        try:
            await self._write(port)
            await self._refuse_other_counts(port)
        except Exception:
            await self.leave(port)
            raise

    async def _acquire_membership(
        self, port: WritingPort, own: LeaseRequest, timeout: float | None
    ) -> Claim:
        most = self.policy.ttl + 2 * self.policy.renew_every if timeout is None else timeout
        try:
            return await acquire(port, own, most)
        except NotAcquired as error:
            if error.reason != "held" or timeout == 0:
                raise
        try:
            # That refusal may date from before this process was frozen.
            return await acquire(port, own, 0)
        except NotAcquired as error:
            if error.reason != "held" or await self._was_ours(port, own.key):
                raise
            raise Misuse(
                f"{self.key.name!r} has a member {own.holder!r}, which still lives after"
                f" {say_seconds(most)}: give each member a holder= of its own"
            ) from None

    async def _was_ours(self, port: WritingPort, key: Key) -> bool:
        """Whether every holding at `key` is left over from our former membership."""
        record = await port.read(key, self._until(port))
        return all(holding.token == self._former for holding in record.holdings)

    async def _write(self, port: WritingPort) -> None:
        stored = await port.put(self.key, self.me, self.note, None, self._until(port))
        if isinstance(stored, Stored):
            self._version = stored.version

    async def _refuse_other_counts(self, port: WritingPort) -> None:
        """Raise ConfigError for a living member with another note. Members write before they read,
        so two that join at once see each other."""
        record = await port.read(self.key, self._until(port))
        for name, field in _members(record).items():
            if not field.value or not self.note or field.value == self.note or name == self.me:
                continue
            if await self._is_alive(port, name, field):
                holder = self._known[name].holding.holder
                raise ConfigError(
                    f"{self.key.name!r} has {field.value.decode(errors='replace')} shards, says its"
                    f" member {holder!r}, and {self.note.decode()} here: all members need the same"
                    " number, and to change it all of them have to end first",
                    name="count",
                )

    async def strike_off(self, port: WritingPort) -> None:
        """Remove our name from the roster, so that the others take over at once.

        Raises no StoreError: if this fails, they take over when our lease has ended.
        """
        if _is_of_the_parent(self._claim):
            return
        try:
            await self._remove(port, self.me, self._version)
        except StoreError:
            pass

    async def _remove(self, port: WritingPort, name: str, version: int) -> None:
        # By version: a member that came back meanwhile has written its name anew, and it stays.
        await port.put(self.key, name, None, ByVersion(version), self._until(port))

    async def leave(self, port: WritingPort) -> None:
        """Give our lease back (or let the keeper do it), and `strike_off` our name."""
        # First: whatever interrupts the release, nobody counts us as a member any more.
        claim, self._claim = self._claim, None
        if claim is None or _is_of_the_parent(claim):
            return
        self._former = claim.machine.token
        now = port.now()
        try:
            if claim.machine.valid(now):
                await release(port, claim)
            else:
                port.owe(claim.debt(now, undo_slot=False))
        finally:
            self._keeper.disarm(claim)
        # Struck first, we would be missing from the roster while our lease still keeps others out.
        await self.strike_off(port)

    # -- reading -------------------------------------------------------------------------------

    async def recheck(self, port: WritingPort) -> bool:
        """Read the members; returns whether they have changed. Raises StoreError.

        This sends one request, and one for each checked lease that may have run out.
        """
        # Before the request: the answer may be as old as that.
        sent = port.now()
        record = await port.read(self.key, self._until(port))
        found = _members(record)
        self._recheck_at = sent + self.policy.renew_every
        self._known = {name: known for name, known in self._known.items() if name in found}
        if self.is_in(sent) and self.me not in found:
            # A member that took us for dead struck our name, or the store was wiped.
            await self._write(port)
            found[self.me] = Field(self.note, self._version)
        # Last, because it asks once more for each lease that may have run out.
        await self._strike_the_dead(port, found)
        # Fields have versions, so a new member of the same name is news too.
        news = not self._started or self.members != found
        self.members, self._started = dict(sorted(found.items())), True
        self._seen, self.failures = record.seen, 0
        self._unchanged = 0 if news else self._unchanged + 1
        return news

    async def _strike_the_dead(self, port: WritingPort, found: dict[str, Field]) -> None:
        """Strike those of the next few members in the circle of names whose lease has ended.

        If we only observe, check all members, and leave the dead out of `found`.
        """
        living = 0
        for name in circle(self.me, found):
            if self.own is not None and living >= WATCHED:
                return
            field = found[name]
            try:
                lives = await self._is_alive(port, name, field)
            except StoreError as error:
                if self.own is None or error.permanent:
                    raise
                # The cluster node that has this lease is away: that is no reason to strike a name.
                living += 1
                continue
            if lives:
                living += 1
                self._recheck_at = min(self._recheck_at, self._known[name].until)
            else:
                del found[name]
                if self.own is not None:
                    await self._remove(port, name, field.version)

    async def _is_alive(self, port: WritingPort, name: str, field: Field) -> bool:
        # Before the request: counted from later, a lease would be taken for alive beyond its ttl.
        now = port.now()
        known = self._known.get(name)
        if known is not None and known.version == field.version and known.until > now:
            return True
        key = Key(self.key.namespace, f"{self.key.name}/{name}")
        record = await port.read(key, self._until(port))
        # An undecided reading (a quorum without its majority) is no proof that nobody holds it.
        if not record.holdings and not record.undecided:
            self._known.pop(name, None)
            return False
        holding = record.holdings[0] if record.holdings else Holding(name.removeprefix(MEMBER))
        left = self.policy.renew_every if holding.remaining is None else holding.remaining
        until = now + max(_LEAST, left + _SPREAD * port.jitter())
        self._known[name] = _KnownMember(field.version, until, holding)
        return True

    async def wait(self, port: WritingPort, until: float) -> None:
        """Wait until the roster changes, a lease may have run out, or a renewal interval passes."""
        wake = min(until, self._recheck_at)
        await pace(port, self._unchanged, wake)
        if port.now() < wake:
            await port.wait_change(self.key, self._seen, wake)

    def _until(self, port: WritingPort) -> float:
        return port.now() + self.policy.request_timeout


def _is_of_the_parent(claim: Claim | None) -> bool:
    """Whether this is a child that was forked in the body: the membership goes on without it."""
    return claim is not None and claim.machine.reason == "forked"


def _members(record: Record) -> dict[str, Field]:
    return {name: field for name, field in record.fields.items() if name.startswith(MEMBER)}


# -- shards ----------------------------------------------------------------------------------------

_RETRY_FIRST: Final = 0.02
# Seconds between two takes of a shard that another member still holds; at most half a renewal
# interval. They double from the first: a hand-over takes as long as the former body needs to end.
_RETRY_MOST: Final = 1.0


class Bodies(Protocol):
    """The runner of the shards' work: threads, tasks, or a simulator. No method waits."""

    def numbers(self) -> Collection[int]:
        """The shards whose lease this process holds, including those whose body is ending."""
        ...

    def start(self, number: int, claim: Claim) -> None:
        """Run the work of a shard, renew its lease meanwhile, and release it afterwards."""
        ...

    def stop(self, number: int) -> None:
        """Ask the body of a shard to end; a second call does nothing."""
        ...


@dataclass(slots=True)
class _ShardAttempt:
    """A shard that is ours but not held here: the instant of the next take, and the refusals."""

    due: float = -inf
    refused: int = 0


class Division:
    """The shards of one member. `wanted`: the request for their leases, with the group's key."""

    def __init__(self, count: int, wanted: LeaseRequest, bodies: Bodies) -> None:
        self.name = wanted.key.name
        self.count = count
        # Only the member that will have a shard asks for it, so no line is needed.
        self._wanted = wanted._replace(queued=wanted.unqueued)
        self._bodies = bodies
        self._mine: frozenset[int] = frozenset()
        self._attempts: dict[int, _ShardAttempt] = {}
        self._begun: dict[int, tuple[float, CandidatePauses]] = {}
        """For each shard, the start of its last body here, and the pauses between its bodies."""

    def divide(self, member: str, members: Collection[str]) -> None:
        """Compute our shards among these members, and ask the bodies of all other shards to end."""
        self._mine = shards_of(member, self.name, self.count, members)
        for number in self._bodies.numbers():
            if number not in self._mine:
                self._bodies.stop(number)
        for kept in (self._attempts, self._begun):
            for number in [number for number in kept if number not in self._mine]:
                del kept[number]

    async def take(self, port: WritingPort) -> float:
        """Ask for our shards that are not held here; returns the instant to ask again.

        It takes at most a part of a renewal interval: new members may be waiting for their shards.
        Raises only permanent StoreErrors.
        """
        wake, held_here = inf, frozenset(self._bodies.numbers())
        over = port.now() + self._wanted.policy.renew_every / 4
        attempts = [
            (self._attempts.get(number) or self._plan_attempt(port, number), number)
            for number in self._mine - held_here
        ]
        for attempt, number in sorted(attempts, key=lambda each: (each[0].due, each[1])):
            if port.now() >= over:
                return over
            # They are in order: none behind this one is due either.
            if attempt.due > port.now():
                return min(wake, attempt.due)
            try:
                if not await self._take_shard(port, number, attempt):
                    wake = min(wake, attempt.due)
            except StoreError as error:
                self._postpone(port, attempt, error)
                return port.now() + _RETRY_FIRST
        return wake

    def _plan_attempt(self, port: WritingPort, number: int) -> _ShardAttempt:
        """Plan the first take of a shard: at once, or after a pause if its body here has ended."""
        attempt = self._attempts[number] = _ShardAttempt()
        if number in self._begun:
            began, pauses = self._begun[number]
            now = port.now()
            attempt.due = now + pauses.pause(now - began, port.jitter())
        return attempt

    async def _take_shard(self, port: WritingPort, number: int, attempt: _ShardAttempt) -> bool:
        group = self._wanted.key
        key = Key(group.namespace, f"{group.name}/{number}")
        wanted = self._wanted._replace(key=key)
        try:
            claim = await acquire(port, wanted, 0)
        except NotAcquired as refusal:
            left = refusal.retry_after
            most = min(_RETRY_MOST, self._wanted.policy.renew_every / 2)
            delay = min(most, _RETRY_FIRST * 2.0 ** min(attempt.refused, 30))
            if left is not None:
                delay = min(delay, left + _SPREAD * port.jitter())
            attempt.due = port.now() + delay
            attempt.refused += 1
            return False
        del self._attempts[number]
        policy = wanted.policy
        _, pauses = self._begun.get(number) or (
            0.0,
            CandidatePauses(policy.ttl, policy.renew_every),
        )
        self._begun[number] = (claim.began, pauses)
        # Last: from here on the body has the claim, and may end it at once.
        self._bodies.start(number, claim)
        return True

    def _postpone(self, port: WritingPort, attempt: _ShardAttempt, error: StoreError) -> None:
        """Ask for the other shards first: they may be on cluster nodes that do answer."""
        if error.permanent:
            raise error
        port.log_outage(self._wanted.key, error)
        attempt.refused += 1
        attempt.due = port.now() + retry_delay(port, error, attempt.refused)


async def attend(port: WritingPort, roster: Roster, division: Division | None = None) -> NoReturn:
    """Be a member until the caller ends this coroutine. Goes on through outages.

    Raises as `Roster.join`, but of the StoreErrors only permanent ones.
    """
    while True:
        try:
            await _attend_once(port, roster, division)
        except StoreError as error:
            await outlast(port, roster, error, inf)


async def _attend_once(port: WritingPort, roster: Roster, division: Division | None) -> None:
    if not roster.is_in(port.now()):
        if division is not None:
            # Without a membership we have no shards: the members divide them.
            division.divide(roster.me, ())
        try:
            await roster.join(port)
        except NotAcquired:
            # An operator paused the name, or our former lease still stands: not an error, but we
            # are no member.
            await port.sleep_until(port.now() + roster.policy.renew_every)
            return
    await roster.recheck(port)
    wake = inf
    if division is not None:
        same = [name for name, field in roster.members.items() if field.value == roster.note]
        division.divide(roster.me, same)
        wake = await division.take(port)
    await roster.wait(port, wake)


# -- which member has which shard: the same members always yield the same answer -------------------
# Rendezvous hashing (Thaler and Ravishankar, "Using name-based mappings to increase hit rates",
# 1998): each member has a score for each shard, and the member with the highest score has it. So a
# new member takes shards from the others, a leaving member's shards go to the others, and no other
# shard moves.

SHARDS_MOST: Final = 10_000


def check_count(count: object) -> int:
    """Return `count`, or raise ConfigError if it is no valid number of shards."""
    if not isinstance(count, int) or isinstance(count, bool):
        raise ConfigError(f"count: a number of shards, not {count!r:.60}", name="count")
    if not 1 <= count <= SHARDS_MOST:
        raise ConfigError(f"count={count}: 1 to {SHARDS_MOST} shards", name="count")
    return count


def shards_of(member: str, name: str, count: int, members: Collection[str]) -> frozenset[int]:
    """The shards, of 0 to count - 1, that `member` has if these are the members."""
    if member not in members:
        return frozenset()
    assigned = members_by_shard(name, count, tuple(sorted(members)))
    return frozenset(number for number, other in enumerate(assigned) if other == member)


@lru_cache(maxsize=16)
def members_by_shard(name: str, count: int, members: tuple[str, ...]) -> tuple[str, ...]:
    """The member of each shard; `members` in order, at least one."""
    best, chosen = _scores(name, count, members[0]), [members[0]] * count
    for member in members[1:]:
        for number, score in enumerate(_scores(name, count, member)):
            if score > best[number]:
                best[number], chosen[number] = score, member
    return tuple(chosen)


def _scores(name: str, count: int, member: str) -> list[int]:
    """A score of 64 bits for each shard; the same in every process and version of Python."""
    stream = shake_128(f"{name}\0{member}".encode()).digest(8 * count)
    return list(struct.unpack(f">{count}Q", stream))


def circle(member: str, others: Iterable[str]) -> list[str]:
    """The others in the order in which `member` checks them, beginning with the next name."""
    ordered = sorted(other for other in others if other != member)
    return [other for other in ordered if other > member] + [
        other for other in ordered if other < member
    ]
