"""How an operation goes about it with all nodes: written once, as coroutines over a Panel.

Every take is settled before it returns: it is a majority's grant, or a majority's no, or nothing of
it is left at any node that answers, or the caller is told that the outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import random
from typing import Final

from incumbent.clock import now as _now
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import (
    Ask,
    GiveOutcome,
    Gone,
    Granted,
    Key,
    Refused,
    Released,
    TakeOutcome,
)
from incumbent.stores.quorum import ballots
from incumbent.stores.quorum.ballots import Answer, No, Silent, Vote, decide
from incumbent.stores.quorum.fields import is_paused
from incumbent.stores.quorum.founding import found
from incumbent.stores.quorum.group import (
    Quorum,
    agreed_by_most,
    no_majority,
    silent_of,
    strangers,
)
from incumbent.stores.quorum.panel import Heard, Panel
from incumbent.stores.quorum.slots import TAKE_BACK_WITHIN, Parting, give_slot_back, take_with_slot
from incumbent.stores.redis.resp import Step

__all__ = ["Parting", "Rounds"]

_TURNS: Final = 10
"""Rounds of one take before those who split the vote are called the holders."""
_BACK_OFF: Final = 0.001
_BACK_OFF_MOST: Final = 0.03
_REMEMBERED: Final = 4096


@dataclass(slots=True)
class _Take:
    """What one take wants, and what it has learnt."""

    panel: Panel
    key: Key
    claim: str
    ask: Ask
    until: float
    ballot: int = 0
    above: int = 0
    raising: bool = False
    answers: list[Answer] = field(default_factory=list)
    took: float = 0.0
    """Seconds of the last round."""
    last: bool = False
    """No other round follows."""


class Rounds:
    """Takes and gives. See `slots` for what is taken and given with a slot."""

    def __init__(self, quorum: Quorum) -> None:
        self.quorum = quorum
        self.taken_back: dict[tuple[Key, str], int] = {}
        """Of claims that may be asked again: the largest ballot that was asked to be taken back.

        That request may still be on its way, so what is stored at such a ballot is no vote.
        """
        self.given_up: dict[tuple[Key, str], int] = {}
        """Claims that were given up in doubt, which may not be asked again."""

    def is_doubtful(self, key: Key, claim: str) -> bool:
        """Whether votes of the claim that count for nothing may be there, or on their way."""
        return (key, claim) in self.taken_back or (key, claim) in self.given_up

    # -- take ---------------------------------------------------------------------------------

    async def take(
        self,
        panel: Panel,
        key: Key,
        claim: str,
        ask: Ask,
        until: float,
        first: tuple[int, list[Heard]] | None = None,
    ) -> TakeOutcome:
        """See Store.take. `first`: the ballot and the answers of a round that was made already."""
        if ask.slot is None:
            return await self.take_lease(panel, key, claim, ask, until, first)
        return await take_with_slot(self, panel, key, claim, ask, ask.slot, until)

    async def take_lease(
        self,
        panel: Panel,
        key: Key,
        claim: str,
        ask: Ask,
        until: float,
        first: tuple[int, list[Heard]] | None = None,
    ) -> TakeOutcome:
        """See Store.take, without regard to a slot."""
        if (key, claim) in self.given_up:
            raise StoreUnavailable(f"this claim of {key.name} was given up and is not asked again")
        await found(self.quorum, panel, until)
        if first is None and not self.quorum.clock.knows():
            mute = [silent_of(it, "") for it in await panel.ask([None] * len(panel.born), until)]
            raise no_majority(self.quorum, mute, perhaps=False)
        above = self.taken_back.get((key, claim), 0)
        take = _Take(panel, key, claim, ask, until, first[0] if first else 0, above, above > 0)
        for count in range(_TURNS):
            if count or first is None:
                await self._ask_for_votes(take)
            elif first is not None:
                take.answers = self._read_votes(first[1], claim, take.ballot)
            outcome = await self._settle(take, count)
            if outcome is not None:
                return outcome
        raise AssertionError("the last turn settles it")

    def is_decided(self, heard: Sequence[Heard | None], claim: str) -> bool:
        """Whether the answers that are there suffice, in a first round."""
        return ballots.is_decided([
            None if it is None else self._read_vote(node, it, claim, 0)
            for node, it in enumerate(heard)
        ])  # fmt: skip

    async def _ask_for_votes(self, take: _Take) -> None:
        quorum, panel, claim, ask, now = self.quorum, take.panel, take.claim, take.ask, _now()
        take.ballot = ballot = quorum.clock.propose(now, take.above)
        request = quorum.dialect.take(take.key, claim, ask, ballot, raising=take.raising)
        wait, step = quorum.dialect.wait_of(ask.ttl), Step(request, 1)
        young = {
            node: No("young", left=born + wait - now)
            for node, born in enumerate(panel.born)
            if born is not None and born + wait > now
        }
        steps = [None if node in young else step for node in range(len(quorum.names))]

        def enough(heard: Sequence[Heard | None]) -> bool:
            return ballots.is_decided([
                young.get(node, None if it is None else self._read_vote(node, it, claim, ballot))
                for node, it in enumerate(heard)
            ])  # fmt: skip

        heard = await panel.ask(steps, take.until, enough)
        take.took = _now() - now
        take.answers = self._read_votes(heard, claim, ballot)
        for node, no in young.items():
            take.answers[node] = no

    def _read_votes(self, heard: Sequence[Heard], claim: str, ballot: int) -> list[Answer]:
        return [self._read_vote(node, it, claim, ballot) for node, it in enumerate(heard)]

    def _read_vote(self, node: int, heard: Heard, claim: str, ballot: int) -> Answer:
        if isinstance(heard, Silent):
            return heard
        quorum = self.quorum
        answer = quorum.dialect.read_vote(heard[0], claim, quorum.names[node])
        if isinstance(answer, No) and answer.now:
            quorum.clock.heard(node, answer.now, _now())
            return self._in_time(answer, ballot)
        return answer

    def _in_time(self, no: No, ballot: int) -> No:
        """The refusal with when the node would vote, where that is a matter of the clocks."""
        if no.kind == "high":
            return no._replace(left=(ballot - ballots.AHEAD_MOST_US - no.now) / 1e6)
        early = no.floor - self.quorum.clock.highest_admitted(_now())
        if no.kind == "low" and early > 0:
            return no._replace(kind="ahead", left=early / 1e6)
        return no

    async def _settle(self, take: _Take, count: int) -> TakeOutcome | None:
        """The outcome, or None after which another turn is worth it."""
        verdict = decide(take.answers)
        gone = self.taken_back.get((take.key, take.claim), 0)
        if isinstance(verdict, ballots.Won) and verdict.token <= gone:
            verdict = ballots.Raise(gone)
        take.last = count == _TURNS - 1 or _now() >= take.until
        match verdict:
            case ballots.Won(token, left, paused):
                if paused and await self._is_paused(take):
                    await self._take_back(take)
                    return Refused("paused", seen=_pause_seen(self.quorum, take.answers))
                self.taken_back.pop((take.key, take.claim), None)
                left = take.ask.ttl if left is None else left
                return Granted(take.claim, token, left, self.quorum.epoch)
            case ballots.Raise(above) if not take.last:
                take.above, take.raising = max(self._above(take.answers), min(above, gone)), True
                return None
            case ballots.Lost(no):
                await self._take_back(take)
                if no.kind == "paused" and any(isinstance(it, Vote) for it in take.answers):
                    # One that missed it is told, before those that know it fail.
                    with suppress(StoreError):
                        await self._is_paused(take)
                return self.quorum.dialect.refusal(no)
            case ballots.Split():
                return await self._split(take, count, verdict)
            case ballots.Strangers(node, marker):
                await self._take_back(take)
                raise strangers(self.quorum, node, marker)
            case ballots.Undecided(perhaps=False, clocks_in=float(wait)) if not take.last:
                await self._outwait(take, verdict, wait)
            case _:
                await self._give_up(take, verdict)
        return None

    async def _is_paused(self, take: _Take) -> bool:
        """Whether that is the last word; those that missed it know it from now on."""
        return await is_paused(self.quorum, take.panel, take.key, take.until)

    async def _outwait(self, take: _Take, verdict: ballots.Verdict, wait: float) -> None:
        """What the clocks forbid is allowed soon: nobody has to be told of a moment."""
        pause = wait + _BACK_OFF
        fits = _now() + pause + take.took < take.until
        if not fits or not await self._take_back(take):
            await self._give_up(take, verdict)
        await take.panel.rest(pause)
        await take.panel.open(take.until)
        take.above, take.raising = self._above(take.answers), True

    async def _split(self, take: _Take, count: int, split: ballots.Split) -> TakeOutcome | None:
        """One of those who split the vote goes on; the others take theirs back and wait."""
        take.above, take.raising = self._above(take.answers), True
        # As long as a round takes: who comes back sooner meets the same others again.
        pause = max(min(_BACK_OFF_MOST, _BACK_OFF * 2.0**count), take.took) * (0.5 + random())
        # A round that nobody could wait for would leave votes behind, and a doubt.
        last = take.last or _now() + pause + take.took >= take.until
        if split.no.kind == "paused" and not last:
            # If that is the last word, all who missed it say so from now on.
            await self._is_paused(take)
        if last or not split.first or count >= _TURNS // 2:
            confirmed = await self._take_back(take)
            if last and not (confirmed and split.refused):
                # A minority that has it for another is no word of the quorum.
                raise no_majority(self.quorum, take.answers, perhaps=not confirmed)
            if last:
                return self.quorum.dialect.refusal(split.no)
        await take.panel.rest(pause)
        # Perhaps one that was still being connected knows who has it.
        await take.panel.open(take.until)
        return None

    async def _give_up(self, take: _Take, verdict: ballots.Verdict) -> None:
        """Too few nodes say anything."""
        perhaps = isinstance(verdict, ballots.Undecided) and verdict.perhaps
        if not perhaps:
            perhaps = not await self._take_back(take)
        after = verdict.votes_in if isinstance(verdict, ballots.Undecided) else None
        raise no_majority(self.quorum, take.answers, perhaps=perhaps, retry_after=after)

    async def _take_back(self, take: _Take) -> bool:
        """Take back all votes, also those whose answer was lost; True if all of them are gone."""
        concerned = [_may_hold(it) for it in take.answers]
        if not any(concerned):
            return True
        key, claim, panel = take.key, take.claim, take.panel
        ballot = max(take.ballot, *map(_seen_vote, take.answers))
        remember(self.taken_back, (key, claim), ballot)
        step = Step(self.quorum.dialect.revoke(key, claim, ballot), 1)
        steps = [step if it else None for it in concerned]
        voted = [isinstance(it, Vote) for it in take.answers]

        def enough(heard: Sequence[Heard | None]) -> bool:
            return all(it is not None for it, had in zip(heard, voted, strict=True) if had)

        by = max(take.until, _now() + TAKE_BACK_WITHIN)
        heard = await panel.ask(steps, by, enough)
        confirmed = True
        for node, it in enumerate(heard):
            if concerned[node] and (isinstance(it, Silent) or type(it[0]) is not int):
                panel.owe(node, key, claim, ballot)
                confirmed = False
        return confirmed

    def _above(self, answers: Sequence[Answer]) -> int:
        """The largest ballot that was seen; but what a majority would refuse is not followed."""
        limit = self.quorum.clock.highest_admitted(_now())
        return max((seen for seen in map(_seen, answers) if seen <= limit), default=0)

    # -- give ---------------------------------------------------------------------------------

    async def give(
        self, panel: Panel, parting: Parting, until: float, first: list[Heard] | None = None
    ) -> GiveOutcome:
        """See Store.give. A majority's word is enough; the others are told when they answer.

        `first`: the answers of a round that was made already.
        """
        slot = parting.slot
        if slot is None:
            return await self._give(panel, parting, until, first)
        doubt: StoreError | None = None
        # While nobody else can have the lease, which needs its own time to be given back.
        half = (_now() + until) / 2
        try:
            await give_slot_back(self.quorum, panel, parting.key, parting.claim, slot, half)
        except StoreError as error:
            doubt = error
        try:
            outcome = await self._give(panel, parting, until)
        except StoreError as error:
            if isinstance(doubt, OutcomeUnknown):
                raise doubt from error
            if doubt is None:
                raise _half_done(f"slot {slot} is given back, its lease is not", error) from error
            raise
        if doubt is None:
            return outcome
        if isinstance(outcome, Released):
            raise _half_done(f"the lease is given back, slot {slot} is not", doubt) from doubt
        raise doubt

    async def _give(
        self, panel: Panel, parting: Parting, until: float, first: list[Heard] | None = None
    ) -> GiveOutcome:
        quorum, now = self.quorum, self.quorum.clock.unix_us(_now())
        key, claim, token = parting.key, parting.claim, parting.token
        ballot = max(quorum.clock.highest, now) if token is None else token
        if first is None:
            if token is None and parting.closed_for <= 0:
                # Nobody knows whether it was granted: its votes may still be on their way.
                remember(self.given_up, (key, claim), ballot)
                request = quorum.dialect.revoke(key, claim, ballot)
            else:
                request = quorum.dialect.give(
                    key, claim, token, parting.closed_for, parting.reserve_for, now
                )
            heard = await panel.ask([Step(request, 1)] * len(quorum.names), until, agreed_by_most)
        else:
            heard = first
        released = missing = 0
        silent: list[Answer] = []
        for node, it in enumerate(heard):
            if not isinstance(it, Silent) and type(it[0]) is int:
                released += it[0]
                missing += 1 - it[0]
                continue
            silent.append(silent_of(it, quorum.names[node]))
            panel.owe(node, key, claim, ballot)
        # A vote that was left with a minority was no lease: a majority may have been another's.
        any_will_do = token is None and released + missing >= quorum.need
        if released >= (1 if any_will_do else quorum.need):
            return Released()
        if missing >= quorum.need:
            return Gone()
        sent = any(isinstance(it, Silent) and it.sent for it in silent)
        raise no_majority(quorum, silent, perhaps=sent or released > 0)


def _half_done(what: str, error: StoreError) -> OutcomeUnknown:
    after = error.retry_after
    return OutcomeUnknown(f"{what}: {error}", permanent=error.permanent, retry_after=after)


def remember(kept: dict[tuple[Key, str], int], which: tuple[Key, str], ballot: int) -> None:
    """The largest ballot of a claim, among the last few thousand."""
    kept[which] = max(ballot, kept.get(which, 0))
    while len(kept) > _REMEMBERED:
        kept.pop(next(iter(kept)), None)


def _may_hold(answer: Answer) -> bool:
    if isinstance(answer, No):
        # It did not raise an earlier vote of this claim, and has that still.
        return answer.kind in ("low", "high", "ahead") and bool(answer.raw)
    return isinstance(answer, Vote) or answer.sent


def _seen(answer: Answer) -> int:
    return answer.floor if isinstance(answer, No) else _seen_vote(answer)


def _seen_vote(answer: Answer) -> int:
    return answer.ballot if isinstance(answer, Vote) else 0


def _pause_seen(quorum: Quorum, answers: Sequence[Answer]) -> str:
    paused = next(it for it in answers if isinstance(it, No) and it.kind == "paused")
    return quorum.dialect.refusal(paused).seen
