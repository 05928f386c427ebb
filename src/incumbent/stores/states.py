"""What a record says of a name: held, free, or that nobody can tell; and who is refused. Pure.

For people and their pages. A take decides for itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from incumbent.durations import say_seconds
from incumbent.model import Holding, Record
from incumbent.stores.notices import BREAK, PAUSE, RESIGN, read_notice

HELD: Final = "held"
FREE: Final = "free"
UNKNOWN: Final = "cannot tell"
WAITING: Final = "waiting"


class State(NamedTuple):
    """The state of a name at the instant of its record."""

    word: str
    """HELD, FREE, UNKNOWN, "paused", "reserved", "closed", or WAITING: the store grants nothing
    yet."""
    why: str = ""
    """A sentence; nothing if one holder has the name, or it is free for everybody."""


GRANTS: Final = State(FREE)
"""Of a name that nobody holds, as far as it depends on a store that gives leases."""


def state_of(record: Record, store: State = GRANTS) -> State:
    """The state; `store`: what its diagnosis says, see findings.state_of_store."""
    if record.holdings:
        state = State(HELD, share_of(record.holdings))
    elif record.undecided:
        state = State(UNKNOWN, "too few servers say the same")
    elif PAUSE in record.fields:
        state = State("paused", "nobody may hold it until `unpause`")
    elif record.closed_for > 0:
        state = _closed(say_seconds(record.closed_for), record.reserved_for)
    elif store.word != FREE:
        state = store
    elif record.slots:
        used = (f"{name} for another {say_seconds(left)}" for name, left in record.slots.items())
        state = State(FREE, f"but not for a run of a used slot: {', '.join(used)}")
    else:
        state = State(FREE)
    return state


def share_of(holdings: Sequence[Holding]) -> str:
    """How much of a name that is shared they hold; nothing of one that has one holder."""
    permits, held = holdings[0].permits, len(holdings)
    if permits is None:
        return ""
    if permits:
        return f"{held} of {permits} permit{'s' if permits > 1 else ''}"
    return f"{held} reader{'s' if held > 1 else ''}"


def _closed(left: str, reserved_for: str) -> State:
    if reserved_for:
        return State("reserved", f"for {reserved_for}, for another {left}")
    return State("closed", f"for another {left}: its last holder asked for that")


def said_of(state: State) -> str:
    """The word, and why."""
    goes_on = state.why.startswith(("for ", "but "))
    return f"{state.word}{'' if goes_on or not state.why else ':'} {state.why}".rstrip()


def asked_to(record: Record) -> str:
    """What its holder was asked to do, by the field "resign"."""
    is_break = read_notice(record.fields[RESIGN].value).get("kind") == BREAK
    return "asked to stop" if is_break else "asked to resign"


def said_by(record: Record, field: str) -> str:
    """Who wrote a switch, and why: " by X (reason)", or nothing."""
    notice = read_notice(record.fields[field].value)
    who, reason = notice.get("who"), notice.get("reason")
    return (f" by {who}" if who else "") + (f" ({reason})" if reason else "")


def places_of(name: str, records: Iterable[Record]) -> list[Record]:
    """The places NAME/1, NAME/2, ... of a pool (`work --holders`), in their order."""
    place = re.compile(rf"{re.escape(name)}/([1-9]\d{{0,3}})")
    found = [(place.fullmatch(record.key.name), record) for record in records]
    return [
        record for _, record in sorted((int(match[1]), record) for match, record in found if match)
    ]
