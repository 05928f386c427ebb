"""A take, and the look that proves that it was granted by the incarnation that was asked. Pure."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import hiredis

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError
from incumbent.model import Ask, Granted, Key, TakeOutcome
from incumbent.policy import TTL_DEFAULT
from incumbent.stores.redis.dialect import Dialect
from incumbent.stores.redis.driver import Site
from incumbent.stores.redis.errors import Outdated, restart_error
from incumbent.stores.redis.incarnation import MARKER_KEY, Known, Met, meet
from incumbent.stores.redis.resp import Program, Step, as_eval, milliseconds
from incumbent.stores.restart import wait_after_restart

__all__ = ["give_back", "is_forgotten", "meeting", "take_program", "too_early"]

_now = clock.now


def take_program(
    site: Site, dialect: Dialect, wire: Known, key: Key, claim: str, ask: Ask, until: float
) -> Program[TakeOutcome]:
    """A take, and in the same round trip a look whether the server is still what it was.

    Raises Outdated if it is not; what was granted is given back then.
    """
    if ask.ttl > max(TTL_DEFAULT, wire.longest):
        yield from _tell_longest(site, wire, ask.ttl)
    wire.asked = sent = _now()
    answer, seen = yield from _take_and_look(dialect, wire, key, claim, ask, until + wire.ahead)
    outcome = dialect.taken(answer, key, claim, ask, wire.epoch)
    try:
        wire.compare(seen, sent, _now())
    except Outdated:
        wire.looked = 0.0
        if isinstance(outcome, Granted):
            yield from give_back(dialect, key, outcome, ask)
        raise
    wire.serves = max(wire.serves, ask.ttl)
    return outcome


def _take_and_look(
    dialect: Dialect, wire: Known, key: Key, claim: str, ask: Ask, till: float
) -> Program[tuple[Any, Sequence[Any]]]:
    """What the server says to the take, and what to the look."""
    if wire.marked_at == MARKER_KEY:
        request = dialect.take_looking(key, claim, ask, wire.sign, till, MARKER_KEY)
        (said,) = yield Step(request, 1)
        if not _is_error(said, "CROSSSLOT"):
            return (said[0], said[1:]) if type(said) is list else (said, ())
    # In a cluster the marker has another slot than the lease, and no script may see both.
    request = dialect.take(key, claim, ask, wire.sign, till)
    answer, *seen = yield Step(request + wire.look, 4)
    if is_forgotten(answer):
        answer, *seen = yield Step(as_eval(request) + wire.look, 4)
    return answer, seen


def give_back(dialect: Dialect, key: Key, grant: Granted, ask: Ask) -> Program[None]:
    """Give back a grant that is not believed. Raises OutcomeUnknown where it may still stand."""
    (answer,) = yield Step(dialect.undo(key, grant, ask.slot.name if ask.slot else None), 1)
    if answer != 1:
        said = "it was not found" if answer == 0 else f"the answer was {str(answer)!r}"
        raise OutcomeUnknown(
            f"{dialect.where}: a grant was not believed and could not be given back: {said}"
        )


def meeting(site: Site, longest: float = 0.0) -> Program[Met]:
    """See incarnation.meet; `longest` in seconds."""
    return meet(
        site.where,
        site.marker,
        allow_eviction=site.allow_eviction,
        proved=site.proved,
        wall=clock.wall(),
        fresh=secrets.token_hex(4),
        longest=milliseconds(longest) if longest else 0,
    )


def _tell_longest(site: Site, wire: Known, ttl: float) -> Program[None]:
    """Leave word of a ttl that is larger than all before, for who comes after a restart.

    Raises StoreError where that cannot be written: nobody would wait for so long.
    """
    met = yield from meeting(site, ttl)
    if met.problem is not None:
        raise met.problem
    if met.mark.id != wire.mark.id:
        raise Outdated("its data are others")
    wire.mark = met.mark


def too_early(site: Site, wire: Known, ttl: float, now: float) -> StoreError | None:
    """The exception where a holder from before the server's last restart may still believe.

    Also where nobody can tell.
    """
    if wire.problem is not None:
        return wire.problem
    wait = wait_after_restart(site.restart_wait, ttl, wire.longest)
    left = wire.born + wait - now
    if wait <= 0 or left <= 0:
        return None
    return restart_error(site.where, promoted=wire.mark.promoted, age=now - wire.born, left=left)


def is_forgotten(answer: Any) -> bool:
    """Whether the server does not know the script (any more): it has to be sent along."""
    return _is_error(answer, "NOSCRIPT")


def _is_error(answer: Any, code: str) -> bool:
    return type(answer) is hiredis.ReplyError and str(answer).startswith(code)
