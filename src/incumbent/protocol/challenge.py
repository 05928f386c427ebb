"""A candidate of higher priority asks the leader to hand over to it, by the notice of a transfer.

Only the leader ends a term: it stops its work, releases, and reserves the name for the candidate.
It says in its record for how long each of its terms lasts at least, so leadership cannot flap. The
decision is pure; all instants are handed in.
"""

from __future__ import annotations

from math import inf

from incumbent.election import Rank, rank_of
from incumbent.errors import StoreError
from incumbent.model import ABSENT, ByVersion, Field, Guard, Record, Refused
from incumbent.protocol.held import Wanted
from incumbent.protocol.observe import WritingPort
from incumbent.stores.notices import RESIGN, encode_notice, read_notice


class Challenge:
    """What one campaign knows of the leader that it waits for. `due`: when to look at it again."""

    __slots__ = ("_seen", "_token", "due", "rank", "wanted")

    def __init__(self, wanted: Wanted, rank: Rank) -> None:
        self.wanted = wanted
        self.rank = rank
        self.due = inf
        self._token = -1
        self._seen = 0.0

    def is_due(self, refused: Refused, now: float) -> bool:
        """Whether to look at the record, after this refusal: once a term, and then as it says."""
        if refused.reason != "held" or not refused.holders:
            self.due = inf
            return False
        if refused.holders[0].token != self._token:
            self._token, self._seen, self.due = refused.holders[0].token, now, now
        return now >= self.due

    def decide(self, record: Record, now: float) -> tuple[bytes, Guard] | None:
        """The notice to write now, if any; plans the next look."""
        self.due = now + self.wanted.policy.renew_every
        holding = record.holdings[0] if record.holdings else None
        if holding is None or holding.token != self._token:
            return None
        theirs, ours = rank_of(holding.meta), self.rank.priority
        if theirs is None or theirs.priority >= ours:
            self.due = inf
            return None
        led = now - self._seen if holding.held_for is None else holding.held_for
        if led < theirs.step_down_after:
            # Never sooner: the store counts it by a clock of its own, and may lack a moment.
            self.due = max(self.due, now + theirs.step_down_after - led)
            return None
        field = record.fields.get(RESIGN)
        if _asked_by(field, self._token) >= ours:
            self.due = now + self.wanted.policy.ttl
            return None
        me, why = self.wanted.ask.holder, f"priority {ours} is above {theirs.priority}"
        notice = encode_notice(who=me, reason=why, to=me, token=self._token, priority=ours)
        return notice, ABSENT if field is None else ByVersion(field.version)


def _asked_by(field: Field | None, token: int) -> float:
    """The priority of who asked the leader before; an operator's goes before all."""
    notice = {} if field is None else read_notice(field.value)
    if field is None or notice.get("token") != token:
        return -inf
    priority = notice.get("priority")
    return priority if isinstance(priority, int) else inf


async def pursue(port: WritingPort, challenge: Challenge, until: float, refused: Refused) -> float:
    """Ask the leader to hand over to us, if it is time; the instant at which to look again."""
    if not challenge.is_due(refused, port.now()):
        return challenge.due
    key, policy = challenge.wanted.key, challenge.wanted.policy
    until = min(until, port.now() + policy.request_timeout)
    try:
        notice = challenge.decide(await port.read(key, until), port.now())
        if notice is not None:
            await port.put(key, RESIGN, *notice, until)
    except StoreError as error:
        challenge.due = port.now() + policy.renew_every
        port.tell_outage(key, error)
    return challenge.due
