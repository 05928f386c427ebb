"""How an operation goes about it with all nodes: written once, as coroutines over a Panel.

Every take is settled before it returns: it is a majority's grant, or a majority's no, or nothing of
it is left at any node that answers, or the caller is told that the outcome is unknown.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import random
from typing import Final

from incumbent.clock import now as _now
from incumbent.model import Ask, GiveOutcome, Gone, Granted, Key, Refused, Released, TakeOutcome
from incumbent.stores.quorum import ballots
from incumbent.stores.quorum.ballots import Answer, No, Silent, Vote, decide
from incumbent.stores.quorum.group import (
    Quorum,
    answered_by_most,
    no_majority,
    silent_of,
    strangers,
)
from incumbent.stores.quorum.panel import Heard, Panel
from incumbent.stores.quorum.switches import is_paused
from incumbent.stores.redis.resp import Step

__all__ = ["Rounds"]

_TURNS: Final = 10
"""Rounds of one take before those who split the vote are called the holders."""
_BACK_OFF: Final = 0.001
_BACK_OFF_MOST: Final = 0.03
_FOUND_WITHIN: Final = 1.0
_REMEMBERED: Final = 4096
_AHEAD_MOST_US: Final = 60_000_000
_TAKE_BACK_WITHIN: Final = 0.05
"""Seconds for taking votes back when the time of the take itself is over."""


class _Turn:
    """What one take has learnt."""

    def __init__(self, ballot: int) -> None:
        self.ballot = ballot
        self.above = 0
        self.raising = False
        self.answers: list[Answer] = []
        self.took = 0.0
        """Seconds of the last round."""


class Rounds:
    """Takes and gives."""

    def __init__(self, quorum: Quorum) -> None:
        self.quorum = quorum
        self._founded = False
        self.taken_back: dict[tuple[Key, str], int] = {}
        """Of claims that may be asked again: the largest ballot that was asked to be taken back.

        That request may still be on its way, so what is stored at such a ballot is no vote.
        """

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
        await self._found(panel, until)
        if first is None and not self.quorum.clock.knows():
            mute = [silent_of(it, "") for it in await panel.ask([None] * len(panel.born), until)]
            raise no_majority(self.quorum, mute, perhaps=False)
        turn = _Turn(first[0] if first else 0)
        turn.above = self.taken_back.get((key, claim), 0)
        turn.raising = turn.above > 0
        for count in range(_TURNS):
            if count or first is None:
                await self._ask_for_votes(panel, key, claim, ask, until, turn)
            elif first is not None:
                turn.answers = self._read_votes(first[1], claim)
            outcome = await self._settle(panel, key, claim, ask, until, turn, count)
            if outcome is not None:
                return outcome
        raise AssertionError("the last turn settles it")

    def is_decided(self, heard: Sequence[Heard | None], claim: str) -> bool:
        """Whether the answers that are there suffice, in a first round."""
        return ballots.is_decided([
            None if it is None else self._read_vote(node, it, claim)
            for node, it in enumerate(heard)
        ])  # fmt: skip

    async def _ask_for_votes(
        self, panel: Panel, key: Key, claim: str, ask: Ask, until: float, turn: _Turn
    ) -> None:
        quorum, now = self.quorum, _now()
        turn.ballot = quorum.clock.propose(now, turn.above)
        request = quorum.dialect.take(key, claim, ask, turn.ballot, raising=turn.raising)
        wait, step = quorum.dialect.wait_of(ask.ttl), Step(request, 1)
        young = {
            node: No("young", left=born + wait - now)
            for node, born in enumerate(panel.born)
            if born is not None and born + wait > now
        }
        steps = [None if node in young else step for node in range(len(quorum.names))]

        def enough(heard: Sequence[Heard | None]) -> bool:
            return ballots.is_decided([
                young.get(node, None if it is None else self._read_vote(node, it, claim))
                for node, it in enumerate(heard)
            ])  # fmt: skip

        heard = await panel.ask(steps, until, enough)
        turn.took = _now() - now
        turn.answers = self._read_votes(heard, claim)
        for node, no in young.items():
            turn.answers[node] = no

    def _read_votes(self, heard: Sequence[Heard], claim: str) -> list[Answer]:
        return [self._read_vote(node, it, claim) for node, it in enumerate(heard)]

    def _read_vote(self, node: int, heard: Heard, claim: str) -> Answer:
        if isinstance(heard, Silent):
            return heard
        quorum = self.quorum
        answer = quorum.dialect.read_vote(heard[0], claim, quorum.names[node])
        if isinstance(answer, No) and answer.now:
            quorum.clock.heard(node, answer.now, _now())
        return answer

    async def _settle(
        self,
        panel: Panel,
        key: Key,
        claim: str,
        ask: Ask,
        until: float,
        turn: _Turn,
        count: int,
    ) -> TakeOutcome | None:
        """The outcome, or None after which another turn is worth it."""
        verdict = decide(turn.answers)
        gone = self.taken_back.get((key, claim), 0)
        if isinstance(verdict, ballots.Won) and verdict.token <= gone:
            verdict = ballots.Raise(gone)
        last = count == _TURNS - 1 or _now() >= until
        match verdict:
            case ballots.Won(token, left, paused):
                if paused and await is_paused(self.quorum, panel, key, until):
                    await self._take_back(panel, key, claim, turn, until)
                    return Refused("paused", seen=_pause_seen(self.quorum, turn.answers))
                self.taken_back.pop((key, claim), None)
                return Granted(claim, token, ask.ttl if left is None else left, self.quorum.epoch)
            case ballots.Raise(above) if not last:
                turn.above, turn.raising = max(self._above(turn.answers), min(above, gone)), True
                return None
            case ballots.Lost(no):
                await self._take_back(panel, key, claim, turn, until)
                return self.quorum.dialect.refusal(no)
            case ballots.Split():
                return await self._split(panel, key, claim, turn, until, count, verdict)
            case ballots.Strangers(node):
                await self._take_back(panel, key, claim, turn, until)
                raise strangers(self.quorum, node)
            case _:
                await self._give_up(panel, key, claim, turn, until, verdict)
        return None

    async def _split(
        self,
        panel: Panel,
        key: Key,
        claim: str,
        turn: _Turn,
        until: float,
        count: int,
        split: ballots.Split,
    ) -> TakeOutcome | None:
        """One of those who split the vote goes on; the others take theirs back and wait."""
        turn.above, turn.raising = self._above(turn.answers), True
        # As long as a round takes: who comes back sooner meets the same others again.
        pause = max(min(_BACK_OFF_MOST, _BACK_OFF * 2.0**count), turn.took) * (0.5 + random())
        # A round that nobody could wait for would leave votes behind, and a doubt.
        last = count == _TURNS - 1 or _now() + pause + turn.took >= until
        if split.no.kind == "paused" and not last:
            # If that is the last word, all who missed it know it from now on, and say so.
            await is_paused(self.quorum, panel, key, until)
        if last or not split.first or count >= _TURNS // 2:
            confirmed = await self._take_back(panel, key, claim, turn, until)
            if last and not (confirmed and split.refused):
                # A minority that has it for another is no word of the quorum.
                raise no_majority(self.quorum, turn.answers, perhaps=not confirmed)
            if last:
                return self.quorum.dialect.refusal(split.no)
        await panel.rest(pause)
        # Perhaps one that was still being connected knows who has it.
        await panel.open(until)
        return None

    async def _give_up(
        self,
        panel: Panel,
        key: Key,
        claim: str,
        turn: _Turn,
        until: float,
        verdict: ballots.Verdict,
    ) -> None:
        """Too few nodes say anything."""
        perhaps = isinstance(verdict, ballots.Undecided) and verdict.perhaps
        if not perhaps:
            perhaps = not await self._take_back(panel, key, claim, turn, until)
        after = verdict.young_for if isinstance(verdict, ballots.Undecided) else None
        raise no_majority(self.quorum, turn.answers, perhaps=perhaps, retry_after=after)

    async def _take_back(
        self, panel: Panel, key: Key, claim: str, turn: _Turn, until: float
    ) -> bool:
        """Take back all votes, also those whose answer was lost; True if all of them are gone."""
        concerned = [_may_hold(it) for it in turn.answers]
        if not any(concerned):
            return True
        ballot = max(turn.ballot, *map(_seen_vote, turn.answers))
        self._remember(key, claim, ballot)
        step = Step(self.quorum.dialect.revoke(key, claim, ballot), 1)
        steps = [step if it else None for it in concerned]
        voted = [isinstance(it, Vote) for it in turn.answers]

        def enough(heard: Sequence[Heard | None]) -> bool:
            return all(it is not None for it, had in zip(heard, voted, strict=True) if had)

        by = max(until, _now() + _TAKE_BACK_WITHIN)
        heard = await panel.ask(steps, by, enough)
        confirmed = True
        for node, it in enumerate(heard):
            if concerned[node] and (isinstance(it, Silent) or type(it[0]) is not int):
                panel.owe(node, key, claim, ballot)
                confirmed = False
        return confirmed

    def _above(self, answers: Sequence[Answer]) -> int:
        """The largest ballot that was seen; but what a majority would refuse is not followed."""
        limit = self.quorum.clock.unix_us(_now()) + _AHEAD_MOST_US
        return max((seen for seen in map(_seen, answers) if seen <= limit), default=0)

    def _remember(self, key: Key, claim: str, ballot: int) -> None:
        kept = self.taken_back
        kept[key, claim] = max(ballot, kept.get((key, claim), 0))
        while len(kept) > _REMEMBERED:
            kept.pop(next(iter(kept)), None)

    # -- give ---------------------------------------------------------------------------------

    async def give(
        self,
        panel: Panel,
        key: Key,
        claim: str,
        token: int | None,
        until: float,
        closed_for: float,
        reserve_for: str | None,
        first: list[Heard] | None = None,
    ) -> GiveOutcome:
        """See Store.give. A majority's word is enough; the others are told when they answer."""
        quorum = self.quorum
        if first is None:
            ended = quorum.clock.unix_us(_now())
            request = quorum.dialect.give(key, claim, token, closed_for, reserve_for, ended)
            heard = await panel.ask([Step(request, 1)] * len(quorum.names), until, answered_by_most)
        else:
            heard = first
        released = answered = 0
        silent: list[Answer] = []
        for node, it in enumerate(heard):
            if not isinstance(it, Silent) and type(it[0]) is int:
                answered += 1
                released += it[0]
                continue
            silent.append(silent_of(it, quorum.names[node]))
            panel.owe(node, key, claim, quorum.clock.highest if token is None else token)
        if answered < quorum.need:
            raise no_majority(quorum, silent, perhaps=_any_sent(silent) or released > 0)
        return Released() if released else Gone()

    # -- a new cluster ------------------------------------------------------------------------

    async def _found(self, panel: Panel, until: float) -> None:
        """All nodes blank: a new cluster, whose nodes need not wait for holders from before."""
        if self._founded or not panel.blank:
            return
        self._founded = True
        quorum = self.quorum
        # The connections may be old: what counts is that all are blank now.
        heard = await panel.ask([quorum.dialect.marker()] * len(quorum.names), until)
        if any(isinstance(it, Silent) or it[0] is not None for it in heard):
            return
        last = quorum.clock.unix_us(min(until, _now() + _FOUND_WITHIN))
        await panel.ask([quorum.dialect.found(last)] * len(quorum.names), until)


def _may_hold(answer: Answer) -> bool:
    if isinstance(answer, No):
        # It did not raise an earlier vote of this claim, and has that still.
        return answer.kind in ("low", "high") and bool(answer.raw)
    return isinstance(answer, Vote) or answer.sent


def _seen(answer: Answer) -> int:
    return answer.floor if isinstance(answer, No) else _seen_vote(answer)


def _seen_vote(answer: Answer) -> int:
    return answer.ballot if isinstance(answer, Vote) else 0


def _any_sent(answers: Sequence[Answer]) -> bool:
    return any(isinstance(it, Silent) and it.sent for it in answers)


def _pause_seen(quorum: Quorum, answers: Sequence[Answer]) -> str:
    paused = next(it for it in answers if isinstance(it, No) and it.kind == "paused")
    return quorum.dialect.refusal(paused).seen
