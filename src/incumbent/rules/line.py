"""The waiters for a name, in line: which of them is next, and how long its turn lasts.

Only the first in line has to show that it is alive: it asks again when the holder's ttl runs out,
or when it is woken. Its place lapses (`lapses_at`) once its heartbeat has passed since it should
have asked; then the next claim that asks takes it. Each vain ask moves `lapses_at` on.
"""

from __future__ import annotations

from typing import Final

from incumbent.model import OVERTAKEN_MOST
from incumbent.rules.record import Instant, LeaseRecord, Line, Waiter, after, closed, holders

_LEFT_TO_THE_FIRST: Final = 50_000
"""Microseconds for which others leave a free name to the first in line."""


def first(line: Line) -> Waiter | None:
    """The first waiter, if any."""
    return line.waiters[0] if line.waiters else None


def preceding(line: Line, claim: str, now: Instant) -> Waiter | None:
    """The waiter for whom `claim` has to leave a free name, if any."""
    waiter = first(line)
    if waiter is None or waiter.claim == claim or line.lapses_at <= now:
        return None
    # Strict order costs a round trip between any two holders, so it is for those who ask for it.
    return waiter if waiter.fair or line.overtaken >= OVERTAKEN_MOST else None


def join(line: Line, waiter: Waiter, looks_in: int, now: Instant) -> Line:
    """The line with the waiter at its end, or where it stands already.

    `looks_in`: microseconds until it asks again by itself, if it is the first.
    """
    head = first(line)
    if head is None:
        line = Line((waiter,))
    elif waiter.claim != head.claim and line.lapses_at <= now:
        # The first had its turn, and stayed silent: it is dead, or frozen.
        line = _next_turn(line.waiters[1:])
    if not any(waiter.claim == other.claim for other in line.waiters):
        line = line._replace(waiters=(*line.waiters, waiter))
    head = line.waiters[0]
    # Only the first has to show that it lives: of the others silence says nothing.
    if head.claim != waiter.claim:
        return line
    return line._replace(lapses_at=after(looks_in + head.heartbeat))


def place_of(line: Line, claim: str) -> int:
    """The number of waiters before the claim."""
    return [waiter.claim for waiter in line.waiters].index(claim)


def served(line: Line, claim: str, looks_in: int, now: Instant) -> Line:
    """The line after a grant to `claim`, which may stand in line or not.

    `looks_in`: microseconds until the next waiter asks by itself: the ttl of the grant, or 0 if
    there is room beside it.
    """
    head = first(line)
    if head is None:
        return line
    if head.claim != claim and line.lapses_at > now:
        # Another claim overtook the first waiter, whose turn continues.
        waiters = _without(line.waiters, claim)
        return line._replace(waiters=waiters, overtaken=line.overtaken + 1)
    # The first waiter was served, or its turn passed unused: it leaves the line.
    return _next_turn(_without(line.waiters[1:], claim), looks_in)


def begin_turn(line: Line) -> Line:
    """The line when the name was given back: the first waiter has its heartbeat to ask."""
    head = first(line)
    return line if head is None else line._replace(lapses_at=after(head.heartbeat))


def leave(line: Line, claim: str, looks_in: int) -> Line:
    """The line without `claim`. `looks_in`: as for `join`, of the next waiter."""
    head = first(line)
    if head is not None and head.claim == claim:
        return _next_turn(line.waiters[1:], looks_in)
    waiters = _without(line.waiters, claim)
    return line if len(waiters) == len(line.waiters) else line._replace(waiters=waiters)


def may_ask(record: LeaseRecord, claim: str, now: Instant) -> bool:
    """Whether a waiter that read the record should ask again: advice, which no rule enforces.

    It spares the store the takes of those whose turn it is not.
    """
    line, head = record.line, first(record.line)
    waiter = next((it for it in line.waiters if it.claim == claim), None)
    if waiter is None or waiter is head or head is None:
        return True
    there, closing = holders(record, now), closed(record, now)
    if there:
        # Beside those who share it there may be room that the first in line has left unused.
        return there[0].permits is not None and line.lapses_at <= now
    if closing is not None:
        return closing.reserved_for == waiter.holder
    if head.fair or line.overtaken >= OVERTAKEN_MOST:
        return line.lapses_at <= now
    # It lapses a heartbeat after the instant at which the name was given back.
    ended = max((grant.expires for grant in record.grants), default=line.lapses_at - head.heartbeat)
    return ended + _LEFT_TO_THE_FIRST <= now


def _next_turn(waiters: tuple[Waiter, ...], looks_in: int = 0) -> Line:
    return Line(waiters, after(looks_in + waiters[0].heartbeat)) if waiters else Line()


def _without(waiters: tuple[Waiter, ...], claim: str) -> tuple[Waiter, ...]:
    return tuple(waiter for waiter in waiters if waiter.claim != claim)
