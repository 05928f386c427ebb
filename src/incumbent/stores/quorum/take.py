"""Taking a lease and the slot that the caller asks for, and giving both back.

Every take is decided before it returns: a majority granted it, or a majority refused it, or no node
that answers has a vote of it any more, or it raises OutcomeUnknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from random import random
from typing import Final

from incumbent.clock import now as _now
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import (
    PLAIN,
    Ask,
    GiveOutcome,
    Gone,
    Granted,
    Key,
    Parting,
    Refused,
    Released,
    Slot,
    TakeOutcome,
)
from incumbent.stores.quorum import ballots
from incumbent.stores.quorum.ballots import UNFIT, Answer, No, Silent, Vote, decide
from incumbent.stores.quorum.changes import found, give_slot_back, is_paused, refused_slot, use_slot
from incumbent.stores.quorum.nodes import (
    Panel,
    Quorum,
    Reply,
    agreed_by_most,
    answered_by_most,
    no_majority,
    silent_of,
    strangers,
)
from incumbent.stores.redis.resp import RequestBatch

# Rounds of one take before a split vote counts as a refusal, if most nodes refuse.
_TURNS: Final = 10
# Rounds of one take before it fails without a majority, if most nodes do not refuse.
_TURNS_MOST: Final = 20
_BACK_OFF: Final = 0.001
_BACK_OFF_MOST: Final = 0.03
# Seconds for taking votes back when the time of the take itself is over.
_TAKE_BACK_WITHIN: Final = 0.05


async def take(
    panel: Panel,
    key: Key,
    claim: str,
    ask: Ask,
    until: float,
    first: tuple[int, list[Reply]] | None = None,
) -> TakeOutcome:
    """See Store.take. `first`: the ballot and the replies of a round that is over already."""
    if (key, claim) in panel.quorum.given_up:
        raise StoreUnavailable(f"this claim of {key.name} was given up and is not asked again")
    if ask.slot is None:
        return await _QuorumTake(panel, key, claim, ask, until).run(first)
    return await _take_with_slot(panel, key, claim, ask, ask.slot, until)


async def _take_with_slot(
    panel: Panel, key: Key, claim: str, ask: Ask, slot: Slot, until: float
) -> TakeOutcome:
    """Take the lease, then use the slot under its protection, or else give the lease back."""
    quorum = panel.quorum
    # A look first: instances that come late need not take the lease to learn that it is used.
    refused = await refused_slot(panel, key, claim, slot, until)
    if refused is not None:
        if ask.candidacy > 0:
            step = quorum.dialect.stand_by(key, ask, quorum.clock.unix_us(_now()))
            await panel.ask([step] * len(quorum.names), until, answered_by_most)
        return refused
    outcome = await _QuorumTake(panel, key, claim, ask, until).run()
    if not isinstance(outcome, Granted):
        return outcome
    try:
        used = await use_slot(panel, key, outcome, ask, slot, until)
    except StoreError:
        await _hand_back(panel, key, outcome, until)
        raise
    if used is True:
        return outcome
    given = await _hand_back(panel, key, outcome, until)
    if isinstance(used, Refused) and given:
        return used
    raise OutcomeUnknown(f"{quorum.where}: the lease ended before slot {slot.name} was used")


async def _hand_back(panel: Panel, key: Key, grant: Granted, until: float) -> bool:
    """Give back a lease that nothing ran under. If that fails, it is owed, or ends with its ttl."""
    by = max(until, _now() + _TAKE_BACK_WITHIN)
    try:
        await give(panel, key, grant.claim, grant.token, by)
    except StoreError:
        return False
    return True


def is_decided(
    quorum: Quorum,
    replies: Sequence[Reply | None],
    claim: str,
    ballot: int,
    young: Mapping[int, No],
) -> bool:
    """Whether the replies so far suffice. `young`: nodes that are too new, and were not asked."""
    return ballots.is_decided(
        [
            young.get(
                node, None if reply is None else _read_vote(quorum, node, reply, claim, ballot)
            )
            for node, reply in enumerate(replies)
        ]
    )


def _read_vote(quorum: Quorum, node: int, reply: Reply, claim: str, ballot: int) -> Answer:
    if isinstance(reply, Silent):
        return reply
    answer = quorum.dialect.read_vote(reply[0], claim, quorum.names[node])
    if not isinstance(answer, No) or not answer.now:
        return answer
    quorum.clock.learn(node, answer.now, _now())
    # If only the clocks are in the way: the time until the node would vote.
    if answer.kind == "high":
        return answer._replace(left=(ballot - ballots.AHEAD_MOST_US - answer.now) / 1e6)
    early = answer.floor - quorum.clock.highest_admitted(_now())
    if answer.kind == "low" and early > 0:
        return answer._replace(kind="ahead", left=early / 1e6)
    return answer


class _QuorumTake:
    """A take of the lease alone, without a slot, and its state between rounds."""

    def __init__(self, panel: Panel, key: Key, claim: str, ask: Ask, until: float) -> None:
        self.panel, self.quorum = panel, panel.quorum
        self.key, self.claim, self.ask, self.until = key, claim, ask, until
        self.above, self.raising = self.gone, self.gone > 0
        self.ballot = 0
        self.answers: list[Answer] = []
        self.took = 0.0
        """Seconds that the last round took."""
        self.last = False
        """Whether no other round follows."""

    @property
    def gone(self) -> int:
        """The ballot up to which the claim's votes were taken back."""
        return self.quorum.taken_back.get((self.key, self.claim), 0)

    async def run(self, first: tuple[int, list[Reply]] | None = None) -> TakeOutcome:
        quorum, panel = self.quorum, self.panel
        await found(panel, self.until)
        if first is None and not quorum.clock.knows():
            nothing = await panel.ask([None] * len(quorum.names), self.until)
            raise no_majority(quorum, [silent_of(reply, "") for reply in nothing], perhaps=False)
        for count in range(_TURNS_MOST):
            if count or first is None:
                await self._ask_for_votes()
            else:
                self.ballot, replies = first
                self.answers = [self._read(node, reply) for node, reply in enumerate(replies)]
            outcome = await self._decide(count)
            if outcome is not None:
                return outcome
        raise AssertionError("the last turn decides it")

    def _read(self, node: int, reply: Reply) -> Answer:
        return _read_vote(self.quorum, node, reply, self.claim, self.ballot)

    async def _ask_for_votes(self) -> None:
        quorum, ask, now = self.quorum, self.ask, _now()
        self.ballot = quorum.clock.propose(now, self.above)
        request = quorum.dialect.take(self.key, self.claim, ask, self.ballot, raising=self.raising)
        wait, panel = quorum.dialect.wait_of(ask.ttl), self.panel
        young = {
            node: No("young", left=born + wait - now)
            for node, born in enumerate(panel.born)
            if born is not None and born + wait > now
        }
        steps = [
            None if node in young else panel.vote_step(node, request)
            for node in range(len(quorum.names))
        ]
        enough = partial(is_decided, quorum, claim=self.claim, ballot=self.ballot, young=young)
        replies = await panel.ask(steps, self.until, enough)
        self.took = _now() - now
        self.answers = [
            young.get(node) or self._read(node, reply) for node, reply in enumerate(replies)
        ]

    async def _decide(self, count: int) -> TakeOutcome | None:
        """The outcome of a round; None if another round may succeed."""
        verdict = decide(self.answers)
        # These votes may be taken back by a request that is still on its way.
        if isinstance(verdict, ballots.Won) and verdict.token <= self.gone:
            verdict = ballots.Raise(self.gone)
        self.last = count == _TURNS_MOST - 1 or _now() >= self.until
        match verdict:
            case ballots.Won():
                return await self._won(verdict)
            case ballots.Raise(above) if not self.last:
                self._raise(min(above, self.gone))
                return None
            case ballots.Lost(no):
                await self._take_back()
                if no.kind == "paused" and any(isinstance(answer, Vote) for answer in self.answers):
                    # Tell nodes that missed the pause, before nodes that know it fail.
                    with suppress(StoreError):
                        await self._is_paused()
                return self.quorum.dialect.refusal(no)
            case ballots.Split():
                return await self._split(count, verdict)
            case ballots.Strangers(node, marker):
                await self._take_back()
                raise strangers(self.quorum, node, marker)
            case ballots.Undecided(perhaps=False, clocks_in=float(wait)) if not self.last:
                await self._outwait(verdict, wait)
            case _:
                await self._give_up(verdict)
        return None

    async def _won(self, won: ballots.Won) -> TakeOutcome:
        if won.but_paused and await self._is_paused():
            await self._take_back()
            nos = (answer for answer in self.answers if isinstance(answer, No))
            paused = next(no for no in nos if no.kind == "paused")
            return Refused("paused", seen=self.quorum.dialect.refusal(paused).seen)
        # A larger ballot has won: what was taken back cannot be mistaken for it any more.
        self.quorum.taken_back.pop((self.key, self.claim), None)
        left = self.ask.ttl if won.left is None else won.left
        return Granted(self.claim, won.token, left, self.quorum.epoch)

    async def _is_paused(self) -> bool:
        """Whether the newest state is paused; also updates nodes that missed the pause."""
        return await is_paused(self.panel, self.key, self.until)

    def _raise(self, least: int = 0) -> None:
        """Go next above all ballots seen, except ballots too far ahead for most nodes."""
        limit = self.quorum.clock.highest_admitted(_now())
        seen = filter(limit.__ge__, map(ballots.ballot_of, self.answers))
        self.above, self.raising = max((least, *seen)), True

    async def _outwait(self, verdict: ballots.Verdict, wait: float) -> None:
        """Wait, without reporting an error, for the moment when the clocks admit the ballot."""
        pause = wait + _BACK_OFF
        fits = _now() + pause + self.took < self.until
        if not fits or not await self._take_back():
            await self._give_up(verdict)
        await self.panel.rest(pause)
        await self.panel.open(self.until)
        self._raise()

    async def _split(self, count: int, split: ballots.Split) -> TakeOutcome | None:
        """One of the claims that split the vote goes on; the others revoke their votes and wait."""
        self._raise()
        # Pause as long as a round takes: a sooner retry would meet the same rivals again.
        pause = max(min(_BACK_OFF_MOST, _BACK_OFF * 2.0**count), self.took) * (0.5 + random())
        # A round with no time for its replies would leave votes and an unknown outcome.
        last = self.last or _now() + pause + self.took >= self.until
        last = last or (split.refused and count >= _TURNS - 1)
        if split.no.kind == "paused" and not last:
            # If the pause is in the newest state, this tells all nodes that missed it.
            await self._is_paused()
        if last or not split.first or count >= _TURNS // 2:
            confirmed = await self._take_back()
            if last and not (confirmed and split.refused):
                # A minority that has the lease for another claim is no refusal by the quorum.
                raise no_majority(self.quorum, self.answers, perhaps=not confirmed)
            if last:
                return self.quorum.dialect.refusal(split.no)
        await self.panel.rest(pause)
        # A node that was still being connected may know the holder.
        await self.panel.open(self.until)
        return None

    async def _give_up(self, verdict: ballots.Verdict) -> None:
        """Raise the error for a take that too few nodes answered."""
        undecided = verdict if isinstance(verdict, ballots.Undecided) else None
        perhaps = undecided is not None and undecided.perhaps
        if not perhaps:
            perhaps = not await self._take_back()
        after = undecided.votes_in if undecided else None
        raise no_majority(self.quorum, self.answers, perhaps=perhaps, retry_after=after)

    async def _take_back(self) -> bool:
        """Take back all votes, even votes whose reply was lost; True if all of them are gone."""
        concerned = [_may_hold(answer) for answer in self.answers]
        if not any(concerned):
            return True
        key, claim, quorum = self.key, self.claim, self.quorum
        voted = {at: vote.ballot for at, vote in enumerate(self.answers) if isinstance(vote, Vote)}
        ballot = max(self.ballot, *voted.values(), 0)
        # Before it is sent: from now on a ballot up to this one is no vote, whatever still arrives.
        quorum.remember(quorum.taken_back, key, claim, ballot)
        step = RequestBatch(quorum.dialect.revoke(key, claim, ballot), 1)

        # The nodes that answered will answer again; the others are not awaited.
        there = [at for at, it in enumerate(self.answers) if not isinstance(it, Silent)]

        def enough(replies: Sequence[Reply | None]) -> bool:
            return all(replies[node] is not None for node in there if concerned[node])

        by = max(self.until, _now() + _TAKE_BACK_WITHIN)
        replies = await self.panel.ask([step if it else None for it in concerned], by, enough)
        confirmed = True
        for node, reply in enumerate(replies):
            if concerned[node] and (isinstance(reply, Silent) or type(reply[0]) is not int):
                self.panel.owe(node, key, claim, ballot)
                confirmed = False
        return confirmed


def _may_hold(answer: Answer) -> bool:
    if isinstance(answer, No):
        # The node did not raise an earlier vote of this claim, and still has that vote; or its vote
        # does not count.
        return answer.kind in ("low", "high", "ahead", UNFIT) and bool(answer.raw)
    return isinstance(answer, Vote) or answer.sent


# -- giving back -------------------------------------------------------------------------------


async def give(
    panel: Panel,
    key: Key,
    claim: str,
    token: int | None,
    until: float,
    parting: Parting = PLAIN,
    first: Sequence[Reply] | None = None,
) -> GiveOutcome:
    """See Store.give. Nodes that do not confirm it are asked again when they next reply.

    `first`: the replies of a round that is over already.
    """
    slot = parting.slot
    if slot is None:
        return await _give_lease(panel, key, claim, token, until, parting, first)
    doubt: StoreError | None = None
    # First the slot, while no other claim can have the lease; half of the time is for the lease.
    half = (_now() + until) / 2
    try:
        await give_slot_back(panel, key, claim, slot, half)
    except StoreError as error:
        doubt = error
        # A turn that ran out of time may have cost the connections.
        await panel.open((_now() + until) / 2)
    try:
        outcome = await _give_lease(panel, key, claim, token, until, parting)
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


def _half_done(what: str, error: StoreError) -> OutcomeUnknown:
    after = error.retry_after
    return OutcomeUnknown(f"{what}: {error}", permanent=error.permanent, retry_after=after)


async def _give_lease(
    panel: Panel,
    key: Key,
    claim: str,
    token: int | None,
    until: float,
    parting: Parting = PLAIN,
    first: Sequence[Reply] | None = None,
) -> GiveOutcome:
    quorum, now = panel.quorum, panel.quorum.clock.unix_us(_now())
    # Without a token: above every ballot that this process can have proposed for the claim.
    ballot = max(quorum.clock.highest, now) if token is None else token
    if first is not None:
        rounds = [first]
    else:
        requests = [quorum.dialect.give(key, claim, token, now, parting)]
        if token is None:
            # It is unknown whether the claim was granted: its votes may still be on their way.
            quorum.remember(quorum.given_up, key, claim, ballot)
            if parting.closed_for <= 0:
                requests.clear()
            requests.append(quorum.dialect.revoke(key, claim, ballot, ended=now))
        # One after the other: what is sent together is repeated together.
        rounds = [await panel.ask_all(request, until, agreed_by_most) for request in requests]
    silent: list[Silent | None] = [None] * len(quorum.names)
    for replies in rounds:
        for node, reply in enumerate(replies):
            if isinstance(reply, Silent) or type(reply[0]) is not int:
                silent[node] = silent_of(reply, quorum.names[node])
                panel.owe(node, key, claim, ballot)
    answers = [
        reply[0] for reply in rounds[0] if not isinstance(reply, Silent) and type(reply[0]) is int
    ]
    released = sum(answers)
    missing = len(answers) - released
    # Votes of a minority are no lease: a majority may have voted for another claim.
    any_will_do = token is None and released + missing >= quorum.need
    if released >= (1 if any_will_do else quorum.need):
        return Released()
    if missing >= quorum.need:
        return Gone()
    sent = any(each is not None and each.sent for each in silent)
    raise no_majority(quorum, silent, perhaps=sent or released > 0)
