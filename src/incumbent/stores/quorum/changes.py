"""Changes of the entries beside a lease (fields and used slots), decided by majorities.

All entries of a name are one state. A majority replaces each state by the next (as in CASPaxos):

1. Promise: each node promises to accept nothing below a new ballot, and reports its state, which is
   named by the ballot of its last change. The newest state that a majority reports is the present
   state: it contains every change that a majority accepted before.
2. Accept: a node makes the change if its promise still holds, and if it has the present state or is
   sent all of it. The change is done when a majority has accepted it.

A state is a number:

    the ballot of the last change
    NEVER       0   nothing was ever changed, or the last field and slot ended over 35 days ago
    FORGOTTEN  -1   the node was blank, and has accepted nothing since ("-" in node.lua)

A node that lost its data has forgotten the changes it accepted. So a majority that has forgotten
nothing must report, or else all nodes; the next change gives such a node all entries back. Its lost
promises were not above its (new) birth plus a minute, and its floor begins there (see node.lua).
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
from incumbent.rules.notices import PAUSE
from incumbent.stores.quorum.ballots import Answer, No, Silent
from incumbent.stores.quorum.dialect import FIELDS, MARKER, digest_of_value
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
from incumbent.stores.redis.resp import RequestBatch, pack

_BACK_OFF: Final = 0.001
_DOUBLINGS: Final = 3
_FOUNDED_WITHIN: Final = 1.0
NEVER: Final = 0
FORGOTTEN: Final = -1
_REMEMBERED: Final = 8
"""Number of ballots that a node keeps: those of the last changes that led to its state."""


class Edit(NamedTuple):
    """The new value of an entry; None removes the entry."""

    value: bytes | None


Decide = Callable[[bytes | None, int], "Edit | None"]
"""Maps an entry and the ballot of a change to the edit, or to None to leave the entry alone."""


class Changed(NamedTuple):
    """`edited`: whether an edit was made, at `ballot`; else the entry `seen` was left alone."""

    edited: bool
    ballot: int
    seen: bytes | None
    held: bool = True


class _Promised(NamedTuple):
    """One node's promise, with its state and the entry.

    `states`: the ballots of the changes that led to `state`, as far as kept, the newest first.
    """

    state: int
    entry: bytes | None
    holds: bool
    states: tuple[int, ...] = ()


_Promise: TypeAlias = "_Promised | No | Silent"


async def found(panel: Panel, until: float) -> None:
    """If all nodes are blank, mark them as founded together; tried once in each process.

    The nodes of a new quorum need not wait for earlier holders.
    """
    quorum = panel.quorum
    if quorum.dialect.founded or not panel.blank:
        return
    quorum.dialect.founded = True
    # The connections may be old, but all nodes must be blank now.
    markers = await panel.ask_all(pack("GET", MARKER), until)
    if any(isinstance(reply, Silent) or reply[0] is not None for reply in markers):
        return
    # An end by the nodes' clocks: a request that is delayed must found nothing later on.
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
    ends_earlier: bool = False,
) -> Changed:
    """Change one entry of `key` as `decide` says. `held`: only while that claim holds the lease.

    `ends_earlier`: even if nothing is edited, no change that began earlier takes effect later.
    Raises StoreUnavailable if nothing was changed, OutcomeUnknown if that is unknown.
    """
    await found(panel, until)
    attempt = _ChangeAttempt(panel, key, entry, held, until)
    for count in itertools.count():
        began = _now()
        changed = await attempt.turn(decide, ends_earlier=ends_earlier)
        if changed is not None:
            return changed
        took = _now() - began
        # Pause as long as a turn takes: a sooner retry would meet the same rivals again.
        pause = max(_BACK_OFF, took) * 2 ** min(count, _DOUBLINGS)
        pause = pause * (0.5 + random()) + attempt.early
        # A turn with no time for its replies would cost the connections.
        if _now() + pause + took >= until:
            break
        await panel.rest(pause)
        await panel.open(until)
    raise attempt.failure()


class _ChangeAttempt:
    """One change, in as many turns as rival changes make necessary."""

    def __init__(
        self, panel: Panel, key: Key, entry: str, held: ByClaim | None, until: float
    ) -> None:
        self.panel, self.quorum, self.key, self.entry = panel, panel.quorum, key, entry
        self.held, self.until = held, until
        self.above = 0
        self.below: int | None = None
        """The value of `above` before a larger ballot was tried for the sake of a blank node."""
        self.early = 0.0
        """Seconds until the others admit the ballots of nodes with a clock ahead or lost data."""
        self.sent: dict[int, Edit | None] = {}
        """Edits that some node may have accepted, by ballot."""
        self.promises: list[_Promise] = []

    async def turn(self, decide: Decide, *, ends_earlier: bool) -> Changed | None:
        """The outcome of one turn; None if another turn may succeed."""
        ballot = self.quorum.clock.propose(_now(), self.above)
        promised = await self._ask_for_promises(ballot)
        held = None if promised is None else self._is_held(promised)
        if promised is None or held is None:
            return None
        newest = max(promised.values(), key=lambda promise: promise.state)
        ours = self._ours_in(newest)
        edit = decide(newest.entry, ballot) if held and ours is None else None
        same = sum(promise.state == newest.state for promise in promised.values())
        # Only a state that a majority has is final; any other is completed before it is reported.
        if edit is None and not (ends_earlier or self.sent) and same >= self.quorum.need:
            return Changed(edited=False, ballot=newest.state, seen=newest.entry, held=held)
        # If the claim no longer holds the lease, the others' last change is still completed, but
        # an edit of ours must not spread.
        guard = self.held if edit is not None or newest.state == ours else None
        if not await self._accept(ballot, max(newest.state, NEVER), edit, promised, guard):
            return None
        if ours is not None:
            return Changed(edited=True, ballot=ours, seen=newest.entry)
        return Changed(edit is not None, ballot, newest.entry, held)

    def _ours_in(self, newest: _Promised) -> int | None:
        """The ballot of our earlier turn that led to this state, if there is one.

        No other turn of ours can take effect once there is a newer state. Raises OutcomeUnknown if
        the state's ballots do not go back far enough to tell.
        """
        for ballot, edit in self.sent.items():
            if edit is not None and ballot in newest.states:
                return ballot
            is_full = len(newest.states) >= _REMEMBERED
            if edit is not None and is_full and ballot < newest.states[-1]:
                raise self.failure()
        return None

    def _is_held(self, promised: Mapping[int, _Promised]) -> bool | None:
        """Whether the claim holds the lease at a majority; None if another turn may tell."""
        holding = sum(promise.holds for promise in promised.values())
        if self.held is None or holding >= self.quorum.need:
            return True
        if holding + len(self.quorum.names) - len(promised) < self.quorum.need:
            return False
        # A take, a renewal or a give may still be on its way to some nodes, and a node that did not
        # answer may still be connecting.
        self._go_above(_floors(self.promises), self.quorum.clock.highest_admitted(_now()))
        return None

    # -- promises -----------------------------------------------------------------------------

    async def _ask_for_promises(self, ballot: int) -> dict[int, _Promised] | None:
        """The promises by node; None to try another ballot. Raises StoreError if too few."""
        quorum = self.quorum
        request = quorum.dialect.promise(self.key, ballot, self.entry, self.held)

        def enough(replies: Sequence[Reply | None]) -> bool:
            found = [self._read(at, reply) for at, reply in enumerate(replies) if reply is not None]
            promised = [promise for promise in found if isinstance(promise, _Promised)]
            if floors := _floors(found):
                # A silent node may be frozen: rather retry with a larger ballot than wait.
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
            # The other nodes do not admit the larger ballot yet: go on without the blank node.
            self.above = self.below
            return None
        floors = _floors(self.promises)
        promised = sum(isinstance(promise, _Promised) for promise in self.promises)
        coming = sum(isinstance(promise, Silent) and promise.coming for promise in self.promises)
        if coming and not floors and promised + coming >= quorum.need:
            return None
        if promised + len(floors) < quorum.need or max(floors, default=0) <= self.above:
            raise self.failure()
        limit = quorum.clock.highest_admitted(_now())
        self.early = max(0.0, (min(floors) - limit) / 1e6)
        self._go_above(floors, limit)
        return None

    def _go_above(self, floors: Sequence[int], limit: int) -> None:
        """Let the next ballot be above these floors, except above those beyond the limit."""
        self.above = max((floor for floor in floors if floor <= limit), default=self.above)

    def _leaves_out_a_blank(self) -> bool:
        """Whether to try a larger ballot, so that a node that lost its data gets the state back."""
        limit = self.quorum.clock.highest_admitted(_now())
        floors = [no.floor for no in self.promises if isinstance(no, No) and no.raw == b"-"]
        above = min(floors, default=0)
        if self.sent or self.below is not None or not self.above < above <= limit:
            return False
        if not any(isinstance(it, _Promised) and it.state > NEVER for it in self.promises):
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
        self,
        ballot: int,
        state: int,
        edit: Edit | None,
        promised: Mapping[int, _Promised],
        held: ByClaim | None,
    ) -> bool:
        """Ask the nodes to accept the change; True if a majority did."""
        names, dialect = self.quorum.names, self.quorum.dialect
        behind = [at for at, promise in promised.items() if max(promise.state, NEVER) != state]
        entries = await self._entries(state, promised) if behind else None
        what = (self.entry, edit.value) if edit else None
        accept = partial(dialect.accept, self.key, ballot, what, held)
        to_change, to_all = accept(state), None if entries is None else accept(entries)
        steps: list[RequestBatch | None] = [None] * len(names)
        for node, promise in enumerate(self.promises):
            # A silent node may have promised.
            request = to_all if node in behind else None if isinstance(promise, No) else to_change
            steps[node] = None if request is None else RequestBatch(request, 1)
        # Before it is sent: if no reply comes, some node may have accepted it all the same.
        self.sent[ballot] = edit
        replies = await self.panel.ask(steps, self.until, _accepted_by_most)
        # If no node can have accepted the change, treat it as never sent.
        refused = (not it.sent if isinstance(it, Silent) else it[0] in (0, -1) for it in replies)
        if all(step is None or no for step, no in zip(steps, refused, strict=True)):
            del self.sent[ballot]
        return _accepted_by_most(replies)

    async def _entries(self, state: int, promised: Mapping[int, _Promised]) -> list[bytes] | None:
        """All entries of `state`, as names and values, from a node in it; None if that fails."""
        steps: list[RequestBatch | None] = [None] * len(self.quorum.names)
        node = next(at for at, promise in promised.items() if promise.state == state)
        steps[node] = self.quorum.dialect.entries(self.key)
        reply = (await self.panel.ask(steps, self.until))[node]
        if isinstance(reply, Silent) or not isinstance(reply[0], list):
            return None
        found = dict(zip(reply[0][::2], reply[0][1::2], strict=True))
        # The node may have accepted another change since.
        if found.get(FIELDS["states"], b"").split()[:1] != [b"%d" % state]:
            return None
        found.pop(FIELDS["promised"], None)
        return [part for pair in found.items() for part in pair]

    def failure(self) -> StoreError:
        """The exception that says why no majority accepted the change."""
        answers: list[Answer] = [
            No("forgot" if promise.state == FORGOTTEN else "promised")
            if isinstance(promise, _Promised)
            else promise
            for promise in self.promises
        ]
        perhaps = any(edit is not None for edit in self.sent.values())
        return no_majority(self.quorum, answers, perhaps=perhaps)


def _floors(promises: Sequence[_Promise]) -> list[int]:
    """The floors of the nodes that refused the ballot as too low."""
    return [no.floor for no in promises if isinstance(no, No) and no.kind == "low"]


def _accepted_by_most(replies: Sequence[Reply | None]) -> bool:
    return replied_by_most(replies, lambda reply: reply == 1)


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
    """These entries in the newest state; brings nodes that missed it up to date if possible."""
    replies = await panel.ask_all(panel.quorum.dialect.state(key, entries), until)
    states = [state_of(reply) for reply in replies]
    newest = max((state for state in states if state is not None), default=0)
    if any(state is not None and state < newest for state in states):
        # Only for the sake of those who missed it: the answer is known already.
        with suppress(StoreError):
            await end_earlier_changes(panel, key, until)
    for reply, state in zip(replies, states, strict=True):
        if state == newest and not isinstance(reply, Silent):
            return list(reply[0][1:])
    return [None] * len(entries)


def unchanged(entry: bytes | None, ballot: int) -> Edit | None:
    """A Decide that leaves the entry alone."""
    return None


def state_of(reply: Reply) -> int | None:
    """The state in a reply to `dialect.state`; None without a usable reply."""
    if isinstance(reply, Silent) or not isinstance(reply[0], list):
        return None
    return int((reply[0][0] or b"0").split()[0])


async def end_earlier_changes(panel: Panel, key: Key, until: float) -> None:
    """Complete or rule out all changes begun earlier, and update nodes that missed a change."""
    await change(panel, key, "f:", unchanged, until, ends_earlier=True)


async def is_paused(panel: Panel, key: Key, until: float) -> bool:
    """Whether the newest state says that the name is paused."""
    (pause,) = await last_entries(panel, key, [field_entry(PAUSE)], until)
    return pause is not None


# -- slots -------------------------------------------------------------------------------------
#
# A slot is work that is done once. A claim uses a slot while it holds the lease on a majority: each
# node where it does not hold the lease refuses the change. So a claim that gave up its lease never
# uses a slot.


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
        """Seconds for which the slot is refused to other claims."""
        return self.until / 1000 - unix_us / 1e6


def _used_of(raw: bytes | None) -> _Used | None:
    if raw is None:
        return None
    until, claim, token, holder = raw.decode().split(" ")
    return _Used(int(until), claim, int(token), unquote(holder), raw)


def slots_of(entries: Mapping[bytes, bytes], unix_us: int) -> dict[str, float]:
    """The slots among a node's entries, with the seconds for which each is kept."""
    found = {
        unquote(name[2:].decode()): used.left(unix_us)
        for name, raw in entries.items()
        if name.startswith(b"u:") and (used := _used_of(raw)) is not None
    }
    return {name: left for name, left in found.items() if left > 0}


async def refused_slot(
    panel: Panel, key: Key, claim: str, slot: Slot, until: float
) -> Refused | None:
    """The refusal if another claim certainly used the slot: a look before the lease is taken.

    None also while any claim holds the lease: that claim may still give the slot back.
    """
    quorum, entry = panel.quorum, _entry_of(slot.name)
    step = RequestBatch(quorum.dialect.state(key, [entry]) + quorum.dialect.value(key), 2)
    replies = await panel.ask([step] * len(quorum.names), until, answered_by_most)
    now = quorum.clock.unix_us(_now())
    found = [
        (_used_of(reply[0][1]), reply[1])
        for reply in replies
        if not isinstance(reply, Silent) and isinstance(reply[0], list)
    ]
    others = [(used, value) for used, value in found if used and _is_others(used, claim, now)]
    if not others or any(_is_held(value) for _, value in found):
        return None
    # The entry may be of a claim without a majority: complete it if nodes differ. If all agree,
    # write nothing: many instances that come late would abort each other's changes.
    differ = len({state_of(reply) for reply in replies} - {None}) > 1
    changed = await change(panel, key, entry, unchanged, until, ends_earlier=differ)
    return _refusal(slot, _used_of(changed.seen), claim, now)


async def use_slot(
    panel: Panel, key: Key, grant: Granted, ask: Ask, slot: Slot, until: float
) -> Refused | bool:
    """Use the slot: True if the claim has it now, False if the claim no longer holds the lease."""
    now = panel.quorum.clock.unix_us(_now())
    till = now // 1000 + int(slot.keep * 1000)
    value = f"{till} {grant.claim} {grant.token} {quoted(ask.holder)}".encode()

    def decide(entry: bytes | None, ballot: int) -> Edit | None:
        used = _used_of(entry)
        # A take that is repeated because its answer was lost uses it no longer than the first one.
        again = used is not None and (used.claim, used.token) == held
        return None if again or _is_others(used, grant.claim, now) else Edit(value)

    held = ByClaim(grant.claim, grant.token)
    changed = await change(panel, key, _entry_of(slot.name), decide, until, held=held)
    if changed.edited:
        return True
    return changed.held and (_refusal(slot, _used_of(changed.seen), grant.claim, now) or True)


async def give_slot_back(panel: Panel, key: Key, claim: str, slot: str, until: float) -> None:
    """Undo the claim's use of the slot, even if the request to use it is still on its way."""

    def decide(entry: bytes | None, ballot: int) -> Edit | None:
        used = _used_of(entry)
        return Edit(None) if used is not None and used.claim == claim else None

    await change(panel, key, _entry_of(slot), decide, until, ends_earlier=True)


def _is_held(value: object) -> bool:
    """Whether it is the value of a lease that somebody holds, or that another client wrote."""
    closed = (b"incumbent1 closed ", b"incumbent1 reserved ")
    return isinstance(value, bytes) and not value.startswith(closed)


def _is_others(used: _Used | None, claim: str, unix_us: int) -> bool:
    return used is not None and used.claim != claim and used.left(unix_us) > 0


def _refusal(slot: Slot, used: _Used | None, claim: str, unix_us: int) -> Refused | None:
    if used is None or not _is_others(used, claim, unix_us):
        return None
    left = used.left(unix_us)
    seen = f"slot:{quoted(slot.name)} {digest_of_value(used.raw)}"
    return Refused("used", (Holding(used.holder, used.token, left),), left, seen)
