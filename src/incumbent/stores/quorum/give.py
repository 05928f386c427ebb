"""Giving a lease back, with the slot that was used under it. A majority's word is enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from incumbent.clock import now as _now
from incumbent.errors import OutcomeUnknown, StoreError
from incumbent.model import GiveOutcome, Gone, Key, Released
from incumbent.stores.quorum.ballots import Answer, Silent
from incumbent.stores.quorum.nodes import Panel, Reply, agreed_by_most, no_majority, silent_of
from incumbent.stores.quorum.slots import give_slot_back


class Parting(NamedTuple):
    """What is given back, and for whom the name is closed or kept then: see Store.give."""

    key: Key
    claim: str
    token: int | None
    closed_for: float = 0.0
    reserve_for: str | None = None
    slot: str | None = None
    shared: bool = False
    """Never: a quorum shares nothing."""


async def give(
    panel: Panel, parting: Parting, until: float, first: Sequence[Reply] | None = None
) -> GiveOutcome:
    """See Store.give. Nodes that do not confirm are told when they reply again.

    `first`: the replies of a round that was made already.
    """
    slot = parting.slot
    if slot is None:
        return await _give_lease(panel, parting, until, first)
    doubt: StoreError | None = None
    # While nobody else can have the lease, which needs its own time to be given back.
    half = (_now() + until) / 2
    try:
        await give_slot_back(panel, parting.key, parting.claim, slot, half)
    except StoreError as error:
        doubt = error
    try:
        outcome = await _give_lease(panel, parting, until)
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
    panel: Panel, parting: Parting, until: float, first: Sequence[Reply] | None = None
) -> GiveOutcome:
    quorum, now = panel.quorum, panel.quorum.clock.unix_us(_now())
    key, claim, token, closed_for, reserve_for, *_ = parting
    ballot = max(quorum.clock.highest, now) if token is None else token
    if first is None:
        if token is None and closed_for <= 0:
            # Nobody knows whether it was granted: its votes may still be on their way.
            quorum.remember(quorum.given_up, key, claim, ballot)
            request = quorum.dialect.revoke(key, claim, ballot)
        else:
            request = quorum.dialect.give(key, claim, token, closed_for, reserve_for, now)
        first = await panel.ask_all(request, until, agreed_by_most)
    released = missing = 0
    silent: list[Answer] = []
    for node, reply in enumerate(first):
        if not isinstance(reply, Silent) and type(reply[0]) is int:
            released += reply[0]
            missing += 1 - reply[0]
            continue
        silent.append(silent_of(reply, quorum.names[node]))
        panel.owe(node, key, claim, ballot)
    # A vote that was left with a minority was no lease: a majority may have been another's.
    any_will_do = token is None and released + missing >= quorum.need
    if released >= (1 if any_will_do else quorum.need):
        return Released()
    if missing >= quorum.need:
        return Gone()
    sent = any(isinstance(answer, Silent) and answer.sent for answer in silent)
    raise no_majority(quorum, silent, perhaps=sent or released > 0)
