"""Observing a leadership, and challenging it.

An observer is woken by the store or by the leader's ttl, and continues through any outage.

A candidate of higher priority asks the leader to hand over, by a notice of transfer. Only the
leader ends a term: it stops its work, releases, and reserves the name for the candidate. The
leader's record says for how long its term lasts at least, so leadership cannot flap.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Protocol

from incumbent import meters
from incumbent.election import Leader, Priority, leader_of, rank_of, watch_for
from incumbent.errors import StoreError
from incumbent.model import ABSENT, ByVersion, Field, Guard, Key, PutOutcome, Record, Refused
from incumbent.protocol.claim import LeaseRequest
from incumbent.protocol.port import Port, pace, retry_delay
from incumbent.rules.notices import RESIGN, encode_notice, read_notice


class WritingPort(Port, Protocol):
    """A Port that can also read records and write fields."""

    async def read(self, key: Key, until: float) -> Record: ...

    async def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome: ...


class Watched(Protocol):
    """A thing whose news a caller awaits. `failures`: requests in a row without an answer."""

    key: Key
    failures: int

    async def recheck(self, port: WritingPort) -> bool:
        """Ask the store; returns whether the answer is news. Raises StoreError."""
        ...

    async def wait(self, port: WritingPort, until: float) -> None:
        """Wait until it is time to ask again. Raises StoreError."""
        ...


@dataclass(slots=True)
class Observation:
    """A leadership as one observer has seen it. `ttl`, `request_timeout`: seconds.

    `unchanged`: answers in a row without news.
    """

    key: Key
    ttl: float
    request_timeout: float
    leader: Leader | None = None
    record: Record | None = None
    failures: int = 0
    unchanged: int = 0

    async def recheck(self, port: WritingPort) -> bool:
        """Read the record; returns whether it is news. The first answer always is."""
        record = await port.read(self.key, port.now() + self.request_timeout)
        leader, first = leader_of(record), self.record is None
        news = first or leader != self.leader
        self.failures, self.unchanged = 0, 0 if news else self.unchanged + 1
        self.leader, self.record = leader, record
        return news

    async def wait(self, port: WritingPort, until: float) -> None:
        """Wait until the store hints at a change, or the leader may have vanished without one."""
        record = self.record or Record(self.key)
        wake = min(until, port.now() + watch_for(record, self.unchanged, port.jitter(), self.ttl))
        await pace(port, self.unchanged if record.holdings else 0, wake)
        await port.wait_change(self.key, record.seen, wake)


async def await_news(port: WritingPort, watched: Watched, until: float) -> bool:
    """Wait for news; False if there was none by `until`.

    Raises only permanent StoreErrors.
    """
    while True:
        try:
            if await watched.recheck(port):
                return True
            if port.now() >= until:
                return False
            await watched.wait(port, until)
        except StoreError as error:
            if not await outlast(port, watched, error, until):
                return False


async def outlast(port: Port, watched: Watched, error: StoreError, until: float) -> bool:
    """Back off before asking again; False once `until` has passed. Raises `error` if permanent."""
    if error.permanent:
        raise error
    watched.failures += 1
    if meters.on:
        meters.failed(error)
    port.log_outage(watched.key, error)
    await port.sleep_until(min(until, port.now() + retry_delay(port, error, watched.failures)))
    return port.now() < until


# -- preempting ------------------------------------------------------------------------------------


class Preemption:
    """A candidate's knowledge of the leader that it waits for. `due`: when to read its record."""

    __slots__ = ("_seen", "_token", "due", "rank", "wanted")

    def __init__(self, wanted: LeaseRequest, rank: Priority) -> None:
        self.wanted = wanted
        self.rank = rank
        self.due = inf
        self._token = -1
        self._seen = 0.0

    def is_due(self, refused: Refused, now: float) -> bool:
        """Whether to read the record after this refusal: at once in a new term, later at `due`."""
        if refused.reason != "held" or not refused.holders:
            self.due = inf
            return False
        if refused.holders[0].token != self._token:
            # A new term is counted from when we saw it, in case the store does
            # not say how old it is.
            self._token, self._seen, self.due = refused.holders[0].token, now, now
        return now >= self.due

    def decide(self, record: Record, now: float) -> tuple[bytes, Guard] | None:
        """Plan the next reading; returns the notice to write now, if any, and its guard."""
        self.due = now + self.wanted.policy.renew_every
        holding = record.holdings[0] if record.holdings else None
        # Another term began since the refusal: its leader has not had its time yet.
        if holding is None or holding.token != self._token:
            return None
        theirs, ours = rank_of(holding.meta), self.rank.priority
        if theirs is None or theirs.priority >= ours:
            self.due = inf
            return None
        led = now - self._seen if holding.held_for is None else holding.held_for
        if led < theirs.step_down_after:
            # Never sooner: the store counts by a clock of its own, which may be a moment behind.
            self.due = max(self.due, now + theirs.step_down_after - led)
            return None
        field = record.fields.get(RESIGN)
        # Somebody of at least our priority, or an operator, has asked already: that notice stays.
        if _asked_by(field, self._token) >= ours:
            self.due = now + self.wanted.policy.ttl
            return None
        me, why = self.wanted.holder, f"priority {ours} is above {theirs.priority}"
        notice = encode_notice(who=me, reason=why, to=me, token=self._token, priority=ours)
        # Guarded by what was read: a notice that an operator wrote meanwhile is not overwritten.
        return notice, ABSENT if field is None else ByVersion(field.version)


def _asked_by(field: Field | None, token: int) -> float:
    """The priority of an earlier request to this leader; inf for an operator's, -inf for none."""
    notice = {} if field is None else read_notice(field.value)
    if field is None or notice.get("token") != token:
        return -inf
    priority = notice.get("priority")
    return priority if isinstance(priority, int) else inf


async def preempt(
    port: WritingPort, preemption: Preemption, until: float, refused: Refused
) -> float:
    """Ask the leader to hand over to us if it is time; returns the instant to check again."""
    if not preemption.is_due(refused, port.now()):
        return preemption.due
    key, policy = preemption.wanted.key, preemption.wanted.policy
    until = min(until, port.now() + policy.request_timeout)
    try:
        notice = preemption.decide(await port.read(key, until), port.now())
        if notice is not None:
            await port.put(key, RESIGN, *notice, until)
    except StoreError as error:
        preemption.due = port.now() + policy.renew_every
        port.log_outage(key, error)
    return preemption.due
