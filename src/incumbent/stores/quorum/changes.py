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
    FORGOTTEN  -1   the node was blank, and has accepted nothing since ("-" in promise.lua)

A node that lost its data has forgotten what it accepted. So of those who tell a majority must have
forgotten nothing, or all must tell; the next change gives it all entries back. What it promised was
not above its birth and a minute, where it begins again (see promise.lua).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import random
from typing import Any, Final, NamedTuple

from incumbent.clock import now as _now
from incumbent.errors import StoreError
from incumbent.model import ByClaim, Key
from incumbent.stores.quorum.ballots import No, Silent
from incumbent.stores.quorum.founding import found
from incumbent.stores.quorum.group import (
    Quorum,
    no_majority,
    said_by_most,
    silent_of,
    strangers,
)
from incumbent.stores.quorum.panel import Heard, Panel
from incumbent.stores.redis.resp import Step

__all__ = ["FORGOTTEN", "NEVER", "Changed", "Decide", "Edit", "change"]

_BACK_OFF: Final = 0.001
_DOUBLINGS: Final = 3
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


async def change(
    quorum: Quorum,
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
    await found(quorum, panel, until)
    attempt = _Attempt(quorum, panel, key, entry, held, until)
    for count in itertools.count():
        began = _now()
        changed = await attempt.turn(decide, settles=settles)
        if changed is not None:
            return changed
        # As long as a turn takes: who comes back sooner meets the same others again.
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
        self,
        quorum: Quorum,
        panel: Panel,
        key: Key,
        entry: str,
        held: ByClaim | None,
        until: float,
    ) -> None:
        self.quorum, self.panel, self.key, self.entry = quorum, panel, key, entry
        self.held, self.until = held, until
        self.above = 0
        self.below: int | None = None
        """What `above` was before a larger ballot was tried for a node that was blank."""
        self.early = 0.0
        """Seconds until nodes whose clock is ahead, or that lost their data, can be followed."""
        self.sent: dict[int, Edit | None] = {}
        """Ballots of changes that some node may have accepted."""
        self.answers: list[Any] = []

    async def turn(self, decide: Decide, *, settles: bool) -> Changed | None:
        """What came of it, or None where another turn is worth it."""
        ballot = self.quorum.clock.propose(_now(), self.above)
        promised = await self._promises(ballot)
        held = None if promised is None else self._is_held(promised)
        if promised is None or held is None:
            return None
        newest = max(promised.values(), key=lambda it: it.state)
        ours = self._ours_in(newest)
        edit = decide(newest.entry, ballot) if held and ours is None else None
        same = sum(it.state == newest.state for it in promised.values())
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
        holding = sum(it.holds for it in promised.values())
        if self.held is None or holding >= self.quorum.need:
            return True
        if holding + len(self.quorum.names) - len(promised) < self.quorum.need:
            return False
        low = [it.floor for it in self.answers if isinstance(it, No) and it.kind == "low"]
        if max(low, default=0) <= self.above:
            raise self.failure()
        self.above = max(low)
        return None

    # -- promises -----------------------------------------------------------------------------

    async def _promises(self, ballot: int) -> dict[int, _Promised] | None:
        """By node; None if a larger ballot is worth a try. Raises StoreError without a majority."""
        quorum = self.quorum
        request = quorum.dialect.promise(self.key, ballot, self.entry, self.held)

        def enough(heard: Sequence[Heard | None]) -> bool:
            found = [self._read(node, it) for node, it in enumerate(heard) if it is not None]
            told = [it for it in found if isinstance(it, _Promised)]
            low = sum(isinstance(it, No) and it.kind == "low" for it in found)
            if low:
                # Who is silent may be frozen: a larger ballot is worth more than its answer.
                return len(told) + low >= quorum.need
            holding = self.held is None or sum(it.holds for it in told) >= quorum.need
            return holding and self._suffice(told)

        steps = [Step(request, 1)] * len(quorum.names)
        heard = await self.panel.ask(steps, self.until, enough)
        self.answers = [self._read(node, it) for node, it in enumerate(heard)]
        for node, it in enumerate(self.answers):
            if isinstance(it, No) and it.kind == "members":
                raise strangers(quorum, node, it.raw)
        if self._suffice(self.answers) and not self._leaves_out_a_blank():
            found = enumerate(self.answers)
            return {node: it for node, it in found if isinstance(it, _Promised)}
        if self._suffice(self.answers):
            return None
        if self.below is not None and self.above > self.below:
            # The others do not admit it yet: without that node, then.
            self.above = self.below
            return None
        low = [it.floor for it in self.answers if isinstance(it, No) and it.kind == "low"]
        told = sum(isinstance(it, _Promised) for it in self.answers)
        if told + len(low) < quorum.need or max(low, default=0) <= self.above:
            raise self.failure()
        limit = quorum.clock.highest_admitted(_now())
        self.early = max(0.0, (min(low) - limit) / 1e6)
        self.above = max((it for it in low if it <= limit), default=self.above)
        return None

    def _leaves_out_a_blank(self) -> bool:
        """Whether a larger ballot, which others would admit, gives a node back what it forgot."""
        limit = self.quorum.clock.highest_admitted(_now())
        floors = [it.floor for it in self.answers if isinstance(it, No) and it.raw == b"-"]
        above = min(floors, default=0)
        if self.sent or self.below is not None or not self.above < above <= limit:
            return False
        if not any(it.state > NEVER for it in self.answers if isinstance(it, _Promised)):
            return False
        self.below, self.above = self.above, above
        return True

    def _suffice(self, answers: Sequence[Any]) -> bool:
        told = [it for it in answers if isinstance(it, _Promised)]
        knowing = sum(it.state != FORGOTTEN for it in told)
        return knowing >= self.quorum.need or len(told) == len(self.quorum.names)

    def _read(self, node: int, heard: Heard) -> Any:
        if isinstance(heard, Silent) or not isinstance(heard[0], list):
            return silent_of(heard, self.quorum.names[node])
        said = heard[0]
        if said[0] == b"members":
            return No("members", raw=said[1])
        if said[0] == b"low":
            return No("low", said[2], floor=int(said[1]))
        if said[0] == b"high":
            return No("high", now=int(said[1]))
        states, entry, holds = said
        if states == b"-":
            return _Promised(FORGOTTEN, None, bool(holds))
        ballots = tuple(map(int, states.split()))
        return _Promised(ballots[0], entry or None, bool(holds), ballots)

    # -- accepting ----------------------------------------------------------------------------

    async def _accept(
        self, ballot: int, state: int, edit: Edit | None, promised: Mapping[int, _Promised]
    ) -> bool:
        """Whether a majority has accepted it."""
        quorum = self.quorum
        behind = [node for node, it in promised.items() if max(it.state, NEVER) != state]
        entries = await self._entries(state, promised) if behind else None
        what = (self.entry, edit.value) if edit else None
        accept = partial(quorum.dialect.accept, self.key, ballot, what, self.held)
        to_change, to_all = accept(state), None if entries is None else accept(entries)
        steps: list[Step | None] = [None] * len(quorum.names)
        for node, it in enumerate(self.answers):
            # Who has not answered yet may have promised.
            request = to_all if node in behind else None if isinstance(it, No) else to_change
            steps[node] = None if request is None else Step(request, 1)
        self.sent[ballot] = edit
        heard = await self.panel.ask(steps, self.until, _accepted_by_most)
        # Where none can have accepted it, it is as if it had not been asked.
        if all(it is None or _is_refused(heard[at]) for at, it in enumerate(steps)):
            del self.sent[ballot]
        return _accepted_by_most(heard)

    async def _entries(self, state: int, promised: Mapping[int, _Promised]) -> list[bytes] | None:
        """All entries of `state`, as names and values, from a node that has it."""
        steps: list[Step | None] = [None] * len(self.quorum.names)
        node = next(at for at, it in promised.items() if it.state == state)
        steps[node] = self.quorum.dialect.entries(self.key)
        heard = (await self.panel.ask(steps, self.until))[node]
        if isinstance(heard, Silent) or not isinstance(heard[0], list):
            return None
        found = dict(zip(heard[0][::2], heard[0][1::2], strict=True))
        # It may have accepted another change since.
        if found.get(b"s", b"").split()[:1] != [b"%d" % state]:
            return None
        found.pop(b"p", None)
        return [part for pair in found.items() for part in pair]

    def failure(self) -> StoreError:
        """Why there is no majority for it."""
        answers = [
            it
            if isinstance(it, Silent | No)
            else No("forgot" if it.state == FORGOTTEN else "promised")
            for it in self.answers
        ]
        perhaps = any(edit is not None for edit in self.sent.values())
        return no_majority(self.quorum, answers, perhaps=perhaps)


def _accepted_by_most(heard: Sequence[Heard | None]) -> bool:
    return said_by_most(heard, lambda word: word == 1)


def _is_refused(heard: Heard) -> bool:
    if isinstance(heard, Silent):
        return not heard.sent
    return heard[0] in (0, -1)
