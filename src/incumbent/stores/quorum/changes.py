"""Changes of what is kept beside a lease, decided by majorities: fields, and slots that were used.

All entries of a name are one state, which a majority changes from one to the next (as in CASPaxos):

1. Promise: each node promises to accept nothing below a new ballot, and tells its state, which is
   named by the ballot of its last change. The newest one that a majority told of is the present
   one: whatever a majority accepted before is in it.
2. Accept: the change is made where that promise still holds, to a node that has this state, or that
   is given all of it. It is done when a majority has accepted it.

A state is a number:

    the ballot of the last change
    NEVER       0   nothing was ever changed, or the last field and slot are gone for 35 days
    FORGOTTEN  -1   the node was blank, and has accepted nothing since ("-" in node.lua)

A node that lost its data has forgotten what it accepted. So of those who tell a majority must have
forgotten nothing, or all must tell; the next change gives it all entries back. What it promised was
not above its birth and a minute, where it begins again (see node.lua).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import random
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import unquote

from incumbent.clock import now as _now
from incumbent.errors import StoreError
from incumbent.model import (
    Absent,
    Ask,
    ByClaim,
    ByVersion,
    Granted,
    Guard,
    Holding,
    Key,
    PutOutcome,
    Refused,
    Slot,
    Stale,
    Stored,
)
from incumbent.stores.notices import PAUSE
from incumbent.stores.quorum.ballots import Answer, No, Silent
from incumbent.stores.quorum.dialect import FIELDS, MARKER, mark_of_value
from incumbent.stores.quorum.nodes import (
    Panel,
    Reply,
    answered_by_most,
    no_majority,
    replied_by_most,
    silent_of,
    strangers,
)
from incumbent.stores.redis.records import quoted
from incumbent.stores.redis.resp import Step, pack

_BACK_OFF: Final = 0.001
_DOUBLINGS: Final = 3
_FOUNDED_WITHIN: Final = 1.0
NEVER: Final = 0
FORGOTTEN: Final = -1
_REMEMBERED: Final = 8
"""So many ballots a node keeps of the way to its state."""


class Edit(NamedTuple):
    """What an entry becomes; None removes it."""

    value: bytes | None


Decide = Callable[[bytes | None, int], "Edit | None"]
"""Given the entry and the ballot of a change: what it becomes, or None to leave it as it is."""


class Changed(NamedTuple):
    """`edited`: an edit was made, with this ballot; else the entry was `seen` and left alone."""

    edited: bool
    ballot: int
    seen: bytes | None
    held: bool = True


class _Promised(NamedTuple):
    """One node's state and the entry.

    `states`: the ballots of the changes that led to it, as far as it knows, the newest first.
    """

    state: int
    entry: bytes | None
    holds: bool
    states: tuple[int, ...] = ()


_Promise: TypeAlias = "_Promised | No | Silent"


async def found(panel: Panel, until: float) -> None:
    """Once for each process: if all nodes are blank, mark them as founded together.

    The nodes of a new quorum need not wait for holders from before.
    """
    quorum = panel.quorum
    if quorum.dialect.founded or not panel.blank:
        return
    quorum.dialect.founded = True
    # The connections may be old: what counts is that all are blank now.
    markers = await panel.ask_all(pack("GET", MARKER), until)
    if any(isinstance(reply, Silent) or reply[0] is not None for reply in markers):
        return
    last = quorum.clock.unix_us(min(until, _now() + _FOUNDED_WITHIN))
    await panel.ask_all(quorum.dialect.found(last), until)


async def change(
    panel: Panel,
    key: Key,
    entry: str,
    decide: Decide,
    until: float,
    *,
    held: ByClaim | None = None,
    settles: bool = False,
) -> Changed:
    """Change one entry of `key` as `decide` says; `held`: only while that claim holds the lease.

    `settles`: no change that was begun earlier is made any more, also if nothing is edited. Raises
    StoreUnavailable if nothing was changed, OutcomeUnknown if nobody knows.
    """
    await found(panel, until)
    attempt = _Attempt(panel, key, entry, held, until)
    for count in itertools.count():
        began = _now()
        changed = await attempt.turn(decide, settles=settles)
        if changed is not None:
            return changed
        # As long as a turn takes: one that comes back sooner meets the same others again.
        pause = max(_BACK_OFF, _now() - began) * 2 ** min(count, _DOUBLINGS)
        pause = pause * (0.5 + random()) + attempt.early
        if _now() + pause >= until:
            break
        await panel.rest(pause)
        await panel.open(until)
    raise attempt.failure()


class _Attempt:
    """One change, in as many turns as others make necessary."""

    def __init__(
        self, panel: Panel, key: Key, entry: str, held: ByClaim | None, until: float
    ) -> None:
        self.panel, self.quorum, self.key, self.entry = panel, panel.quorum, key, entry
        self.held, self.until = held, until
        self.above = 0
        self.below: int | None = None
        """What `above` was before a larger ballot was tried for a node that was blank."""
        self.early = 0.0
        """Seconds until nodes whose clock is ahead, or that lost their data, can be followed."""
        self.sent: dict[int, Edit | None] = {}
        """Ballots of changes that some node may have accepted."""
        self.promises: list[_Promise] = []

    async def turn(self, decide: Decide, *, settles: bool) -> Changed | None:
        """What came of it, or None where another turn is worth it."""
        ballot = self.quorum.clock.propose(_now(), self.above)
        promised = await self._ask_for_promises(ballot)
        held = None if promised is None else self._is_held(promised)
        if promised is None or held is None:
            return None
        newest = max(promised.values(), key=lambda promise: promise.state)
        ours = self._ours_in(newest)
        edit = decide(newest.entry, ballot) if held and ours is None else None
        same = sum(promise.state == newest.state for promise in promised.values())
        if edit is None and not (settles or self.sent) and same >= self.quorum.need:
            return Changed(edited=False, ballot=newest.state, seen=newest.entry, held=held)
        if not await self._accept(ballot, max(newest.state, NEVER), edit, promised):
            return None
        if ours is not None:
            return Changed(edited=True, ballot=ours, seen=newest.entry)
        return Changed(edit is not None, ballot, newest.entry, held)

    def _ours_in(self, newest: _Promised) -> int | None:
        """The ballot of an earlier turn of ours that led to this state, if one did.

        Of any other nothing is left once there is a newer state. Raises OutcomeUnknown where that
        can't be told any more.
        """
        for ballot, edit in self.sent.items():
            if edit is not None and ballot in newest.states:
                return ballot
            is_full = len(newest.states) >= _REMEMBERED
            if edit is not None and is_full and ballot < newest.states[-1]:
                raise self.failure()
        return None

    def _is_held(self, promised: Mapping[int, _Promised]) -> bool | None:
        """Whether a majority says that the claim holds the lease; None if another turn may tell.

        Raises StoreError where nobody knows.
        """
        holding = sum(promise.holds for promise in promised.values())
        if self.held is None or holding >= self.quorum.need:
            return True
        if holding + len(self.quorum.names) - len(promised) < self.quorum.need:
            return False
        floors = _floors(self.promises)
        if max(floors, default=0) <= self.above:
            raise self.failure()
        self.above = max(floors)
        return None

    # -- promises -----------------------------------------------------------------------------

    async def _ask_for_promises(self, ballot: int) -> dict[int, _Promised] | None:
        """By node; None if a larger ballot is worth a try. Raises StoreError without a majority."""
        quorum = self.quorum
        request = quorum.dialect.promise(self.key, ballot, self.entry, self.held)

        def enough(replies: Sequence[Reply | None]) -> bool:
            found = [self._read(at, reply) for at, reply in enumerate(replies) if reply is not None]
            promised = [promise for promise in found if isinstance(promise, _Promised)]
            if floors := _floors(found):
                # A silent node may be frozen: a larger ballot is worth more than its reply.
                return len(promised) + len(floors) >= quorum.need
            holding = sum(promise.holds for promise in promised)
            return (self.held is None or holding >= quorum.need) and self._suffice(promised)

        replies = await self.panel.ask_all(request, self.until, enough)
        self.promises = [self._read(node, reply) for node, reply in enumerate(replies)]
        for node, no in enumerate(self.promises):
            if isinstance(no, No) and no.kind == "members":
                raise strangers(quorum, node, no.raw)
        if self._suffice(self.promises):
            if self._leaves_out_a_blank():
                return None
            found = enumerate(self.promises)
            return {node: promise for node, promise in found if isinstance(promise, _Promised)}
        if self.below is not None and self.above > self.below:
            # The others do not admit it yet: without that node, then.
            self.above = self.below
            return None
        floors = _floors(self.promises)
        promised = sum(isinstance(promise, _Promised) for promise in self.promises)
        if promised + len(floors) < quorum.need or max(floors, default=0) <= self.above:
            raise self.failure()
        limit = quorum.clock.highest_admitted(_now())
        self.early = max(0.0, (min(floors) - limit) / 1e6)
        self.above = max((floor for floor in floors if floor <= limit), default=self.above)
        return None

    def _leaves_out_a_blank(self) -> bool:
        """Whether a larger ballot, which others would admit, gives a node back what it forgot."""
        limit = self.quorum.clock.highest_admitted(_now())
        floors = [no.floor for no in self.promises if isinstance(no, No) and no.raw == b"-"]
        above = min(floors, default=0)
        if self.sent or self.below is not None or not self.above < above <= limit:
            return False
        if not any(_state_of(promise) > NEVER for promise in self.promises):
            return False
        self.below, self.above = self.above, above
        return True

    def _suffice(self, promises: Sequence[_Promise]) -> bool:
        promised = [promise for promise in promises if isinstance(promise, _Promised)]
        knowing = sum(promise.state != FORGOTTEN for promise in promised)
        return knowing >= self.quorum.need or len(promised) == len(self.quorum.names)

    def _read(self, node: int, reply: Reply) -> _Promise:
        if isinstance(reply, Silent) or not isinstance(reply[0], list):
            return silent_of(reply, self.quorum.names[node])
        match reply[0]:
            case [b"members", marker]:
                return No("members", raw=marker)
            case [b"low", floor, states]:
                return No("low", states, floor=int(floor))
            case [b"high", now]:
                return No("high", now=int(now))
            case [b"-", _, holds]:
                return _Promised(FORGOTTEN, None, bool(holds))
        states, entry, holds = reply[0]
        ballots = tuple(map(int, states.split()))
        return _Promised(ballots[0], entry or None, bool(holds), ballots)

    # -- accepting ----------------------------------------------------------------------------

    async def _accept(
        self, ballot: int, state: int, edit: Edit | None, promised: Mapping[int, _Promised]
    ) -> bool:
        """Whether a majority has accepted it."""
        names, dialect = self.quorum.names, self.quorum.dialect
        behind = [at for at, promise in promised.items() if max(promise.state, NEVER) != state]
        entries = await self._entries(state, promised) if behind else None
        what = (self.entry, edit.value) if edit else None
        accept = partial(dialect.accept, self.key, ballot, what, self.held)
        to_change, to_all = accept(state), None if entries is None else accept(entries)
        steps: list[Step | None] = [None] * len(names)
        for node, promise in enumerate(self.promises):
            # A node that has not replied yet may have promised.
            request = to_all if node in behind else None if isinstance(promise, No) else to_change
            steps[node] = None if request is None else Step(request, 1)
        self.sent[ballot] = edit
        replies = await self.panel.ask(steps, self.until, _accepted_by_most)
        # Where none can have accepted it, it is as if it had not been asked.
        if all(step is None or _is_refused(replies[at]) for at, step in enumerate(steps)):
            del self.sent[ballot]
        return _accepted_by_most(replies)

    async def _entries(self, state: int, promised: Mapping[int, _Promised]) -> list[bytes] | None:
        """All entries of `state`, as names and values, from a node that has it."""
        steps: list[Step | None] = [None] * len(self.quorum.names)
        node = next(at for at, promise in promised.items() if promise.state == state)
        steps[node] = self.quorum.dialect.entries(self.key)
        reply = (await self.panel.ask(steps, self.until))[node]
        if isinstance(reply, Silent) or not isinstance(reply[0], list):
            return None
        found = dict(zip(reply[0][::2], reply[0][1::2], strict=True))
        # It may have accepted another change since.
        if found.get(FIELDS["states"], b"").split()[:1] != [b"%d" % state]:
            return None
        found.pop(FIELDS["promised"], None)
        return [part for pair in found.items() for part in pair]

    def failure(self) -> StoreError:
        """Why there is no majority for it."""
        answers: list[Answer] = [
            No("forgot" if promise.state == FORGOTTEN else "promised")
            if isinstance(promise, _Promised)
            else promise
            for promise in self.promises
        ]
        perhaps = any(edit is not None for edit in self.sent.values())
        return no_majority(self.quorum, answers, perhaps=perhaps)


def _floors(promises: Sequence[_Promise]) -> list[int]:
    """Of the nodes that have promised a larger ballot, which."""
    return [no.floor for no in promises if isinstance(no, No) and no.kind == "low"]


def _state_of(promise: _Promise) -> int:
    return promise.state if isinstance(promise, _Promised) else FORGOTTEN


def _accepted_by_most(replies: Sequence[Reply | None]) -> bool:
    return replied_by_most(replies, lambda reply: reply == 1)


def _is_refused(reply: Reply) -> bool:
    return not reply.sent if isinstance(reply, Silent) else reply[0] in (0, -1)


# -- fields ------------------------------------------------------------------------------------


def field_entry(field: str) -> str:
    """The name of a field's entry."""
    return f"f:{field}"


async def put_field(
    panel: Panel, key: Key, field: str, value: bytes | None, guard: Guard, until: float
) -> PutOutcome:
    """See Store.put. The version is the ballot of the change, the same on every node."""

    def decide(entry: bytes | None, ballot: int) -> Edit | None:
        if not _holds(guard, entry):
            return None
        return Edit(None if value is None else b"%d %b" % (ballot, value))

    held = guard if isinstance(guard, ByClaim) else None
    changed = await change(panel, key, field_entry(field), decide, until, held=held)
    if not changed.edited:
        return Stale()
    return Stored(0 if value is None else changed.ballot)


def _holds(guard: Guard, entry: bytes | None) -> bool:
    match guard:
        case Absent():
            return entry is None
        case ByVersion(version):
            return entry is not None and int(entry.partition(b" ")[0]) == version
    return True


async def last_entries(
    panel: Panel, key: Key, entries: Sequence[str], until: float
) -> list[bytes | None]:
    """These entries in the newest state; a node that missed it is told, as far as possible."""
    replies = await panel.ask_all(panel.quorum.dialect.state(key, entries), until)
    states = [state_of(reply) for reply in replies]
    newest = max((state for state in states if state is not None), default=0)
    if any(state is not None and state < newest for state in states):
        with suppress(StoreError):
            await settle(panel, key, until)
    for reply, state in zip(replies, states, strict=True):
        if state == newest and not isinstance(reply, Silent):
            return list(reply[0][1:])
    return [None] * len(entries)


def unchanged(entry: bytes | None, ballot: int) -> Edit | None:
    """See Decide: leave it as it is."""
    return None


def state_of(reply: Reply) -> int | None:
    """The state in a reply to `dialect.state`; None if there is none."""
    if isinstance(reply, Silent) or not isinstance(reply[0], list):
        return None
    return int((reply[0][0] or b"0").split()[0])


async def settle(panel: Panel, key: Key, until: float) -> None:
    """What was begun is done or never will be, and nodes that missed a change are told."""
    await change(panel, key, "f:", unchanged, until, settles=True)


async def is_paused(panel: Panel, key: Key, until: float) -> bool:
    """Whether the newest state says that the name is paused."""
    (pause,) = await last_entries(panel, key, [field_entry(PAUSE)], until)
    return pause is not None


# -- slots -------------------------------------------------------------------------------------
#
# A slot is work that is done once. It is used while the claim holds the lease on a majority: the
# change is refused wherever it does not, so that a slot is never used by a claim whose lease was
# given up.


def _entry_of(slot: str) -> str:
    return f"u:{quoted(slot)}"


@dataclass(frozen=True, slots=True)
class _Used:
    """A slot that a claim used. `until`: unix ms by the nodes' clocks."""

    until: int
    claim: str
    token: int
    holder: str
    raw: bytes

    def left(self, unix_us: int) -> float:
        """Seconds for which it is refused to others."""
        return self.until / 1000 - unix_us / 1e6


def _used_of(raw: bytes | None) -> _Used | None:
    if raw is None:
        return None
    until, claim, token, holder = raw.decode().split(" ")
    return _Used(int(until), claim, int(token), unquote(holder), raw)


def slots_of(entries: Mapping[bytes, bytes], unix_us: int) -> dict[str, float]:
    """Of a node's entries, the slots, with the seconds for which each is kept."""
    found = {
        unquote(name[2:].decode()): used.left(unix_us)
        for name, raw in entries.items()
        if name.startswith(b"u:") and (used := _used_of(raw)) is not None
    }
    return {name: left for name, left in found.items() if left > 0}


async def refused_slot(
    panel: Panel, key: Key, claim: str, slot: Slot, until: float
) -> Refused | None:
    """The refusal, if another claim certainly used the slot; a look before the lease is taken."""
    quorum, entry = panel.quorum, _entry_of(slot.name)
    request = quorum.dialect.state(key, [entry])
    replies = await panel.ask_all(request, until, answered_by_most)
    now = quorum.clock.unix_us(_now())
    entries = [
        reply[0][1]
        for reply in replies
        if not isinstance(reply, Silent) and isinstance(reply[0], list)
    ]
    if not any(_is_others(_used_of(raw), claim, now) for raw in entries):
        return None
    # Perhaps it is of a claim that got no majority, and nodes that missed it are told. Where all
    # agree nothing is written: a fleet that comes late would knock out each other's changes.
    differ = len({state_of(reply) for reply in replies} - {None}) > 1
    changed = await change(panel, key, entry, unchanged, until, settles=differ)
    return _refusal(slot, _used_of(changed.seen), claim, now)


async def use_slot(
    panel: Panel, key: Key, grant: Granted, ask: Ask, slot: Slot, until: float
) -> Refused | bool:
    """True if the slot is the claim's now; False if the claim does not hold the lease any more."""
    now = panel.quorum.clock.unix_us(_now())
    till = now // 1000 + int(slot.keep * 1000)
    value = f"{till} {grant.claim} {grant.token} {quoted(ask.holder)}".encode()

    def decide(entry: bytes | None, ballot: int) -> Edit | None:
        used = _used_of(entry)
        return Edit(value) if used is None or used.left(now) <= 0 else None

    held = ByClaim(grant.claim, grant.token)
    changed = await change(panel, key, _entry_of(slot.name), decide, until, held=held)
    if changed.edited:
        return True
    return changed.held and (_refusal(slot, _used_of(changed.seen), grant.claim, now) or True)


async def give_slot_back(panel: Panel, key: Key, claim: str, slot: str, until: float) -> None:
    """The slot is as if the claim had never used it, also if that is still on its way."""

    def decide(entry: bytes | None, ballot: int) -> Edit | None:
        used = _used_of(entry)
        return Edit(None) if used is not None and used.claim == claim else None

    await change(panel, key, _entry_of(slot), decide, until, settles=True)


def _is_others(used: _Used | None, claim: str, unix_us: int) -> bool:
    return used is not None and used.claim != claim and used.left(unix_us) > 0


def _refusal(slot: Slot, used: _Used | None, claim: str, unix_us: int) -> Refused | None:
    if used is None or not _is_others(used, claim, unix_us):
        return None
    left = used.left(unix_us)
    seen = f"slot:{quoted(slot.name)} {mark_of_value(used.raw)}"
    return Refused("closed", (Holding(used.holder, used.token, left),), left, seen)
