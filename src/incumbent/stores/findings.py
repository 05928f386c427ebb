"""Reports for people about a store and its names. Pure but for `examine`.

`doctor` reports findings about a store: (level, finding, advice). The state of a name follows from
its record: held, free, unknown, or refused to some or all. It is for display only: a take decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from incumbent.durations import say_seconds
from incumbent.errors import StoreError
from incumbent.model import Holding, Record
from incumbent.policy import TTL_DEFAULT
from incumbent.rules.notices import BREAK, PAUSE, RESIGN, read_notice
from incumbent.stores.base import Engine

# -- the state of a name ---------------------------------------------------------------------------

HELD: Final = "held"
FREE: Final = "free"
UNKNOWN: Final = "cannot tell"
WAITING: Final = "waiting"


class NameState(NamedTuple):
    """The state of a name at the instant of its record."""

    word: str
    """HELD, FREE, UNKNOWN, "paused", "reserved", "closed", or WAITING: the store grants nothing
    yet."""
    why: str = ""
    """A sentence; empty if one holder has the name, or if the name is free for everybody."""


GRANTS: Final = NameState(FREE)
"""The state of a name that nobody holds, in a store that grants leases."""


def state_of(record: Record, store: NameState = GRANTS) -> NameState:
    """The state of a record's name; `store`: the result of `state_of_store`."""
    if record.holdings:
        state = NameState(HELD, share_of(record.holdings))
    elif record.undecided:
        state = NameState(UNKNOWN, "too few servers say the same")
    elif PAUSE in record.fields:
        state = NameState("paused", "nobody may hold it until `unpause`")
    elif record.closed_for > 0:
        left, only = say_seconds(record.closed_for), record.reserved_for
        state = NameState("closed", f"for another {left}: its last holder asked for that")
        if only:
            state = NameState("reserved", f"for {only}, for another {left}")
    elif store.word != FREE:
        state = store
    elif record.slots:
        used = (f"{name} for another {say_seconds(left)}" for name, left in record.slots.items())
        state = NameState(FREE, f"but not for a run of a used slot: {', '.join(used)}")
    else:
        state = NameState(FREE)
    return state


def beside_state(state: NameState, store: NameState) -> list[str]:
    """The line about a store that grants nothing yet, where the state of a name hides it.

    After a restart a record that survived may say "held": its name goes to nobody at its end.
    """
    return [said_of(store)] if store.word == WAITING != state.word else []


def is_on_record(record: Record) -> bool:
    """Whether the store knows anything of a record's name."""
    beside = (record.holdings, record.history, record.fields, record.slots, record.candidates)
    return any(beside) or record.closed_for > 0 or record.undecided


def share_of(holdings: Sequence[Holding]) -> str:
    """The number of holders that share a name, in words; "" if the holder does not share it."""
    permits, held = holdings[0].permits, len(holdings)
    if permits is None:
        return ""
    if permits:
        return f"{held} of {permits} permit{'s' if permits > 1 else ''}"
    return f"{held} reader{'s' if held > 1 else ''}"


def said_of(state: NameState) -> str:
    """The state's word and reason."""
    goes_on = state.why.startswith(("for ", "but "))
    return f"{state.word}{'' if goes_on or not state.why else ':'} {state.why}".rstrip()


def asked_to(record: Record) -> str:
    """The request to the holder in the field "resign", in words."""
    is_break = read_notice(record.fields[RESIGN].value).get("kind") == BREAK
    return "asked to stop" if is_break else "asked to resign"


def said_by(record: Record, field: str) -> str:
    """The author of a switch and the reason, as " by X (reason)"; "" without both."""
    notice = read_notice(record.fields[field].value)
    who, reason = notice.get("who"), notice.get("reason")
    return (f" by {who}" if who else "") + (f" ({reason})" if reason else "")


def places_of(name: str, records: Iterable[Record]) -> list[Record]:
    """The records of the places NAME/1, NAME/2, ... of a pool (`work --permits`), in order."""
    place = re.compile(rf"{re.escape(name)}/([1-9]\d{{0,3}})")
    found = [(place.fullmatch(record.key.name), record) for record in records]
    return [
        record for _, record in sorted((int(match[1]), record) for match, record in found if match)
    ]


# -- findings about a store ------------------------------------------------------------------------

Finding: TypeAlias = tuple[str, str, str]
"""Level ("ok", "warning" or "error"), finding and advice; the advice is empty if all is "ok"."""


class Verdict(tuple[str, str, str]):
    """A Finding about whether the store grants leases now."""

    __slots__ = ()


class GrantsNothing(Verdict):
    """A Finding that says why the store grants no lease now."""

    __slots__ = ()


def grants_nothing(what: str, advice: str, *, level: str = "warning") -> GrantsNothing:
    """The finding that the store grants no lease now, because of `what`."""
    return GrantsNothing((level, what, advice))


class CannotTell(Verdict):
    """A Finding that says why nobody can tell whether the store grants leases now."""

    __slots__ = ()


def cannot_tell(what: str, advice: str = "") -> CannotTell:
    """The finding that nobody can tell whether the store grants leases now, because of `what`."""
    return CannotTell(("error", what, advice))


def state_of_store(findings: Iterable[Finding]) -> NameState:
    """The state of a name that nobody holds, judged by the findings about its store alone."""
    reported = list(findings)
    refused = [found[1] for found in reported if isinstance(found, GrantsNothing)]
    unknown = [found[1] for found in reported if isinstance(found, CannotTell)]
    if refused:
        return NameState(WAITING, f"nobody is given a lease yet: {'; '.join(refused)}")
    if unknown:
        return NameState(UNKNOWN, f"whether the store gives leases now: {'; '.join(unknown)}")
    return GRANTS


def examine(engine: Engine, until: float) -> NameState:
    """Diagnose a store for `state_of_store`; if it gives no answer, the state is UNKNOWN."""
    try:
        return state_of_store(engine.diagnose(TTL_DEFAULT, until))
    except StoreError as error:
        return state_of_store([cannot_tell(str(error))])


def at(where: str, findings: Iterable[Finding]) -> list[Finding]:
    """The findings of one part of a store, with `where` before each."""
    there: list[Finding] = []
    for each in findings:
        level, what, todo = each
        placed = (level, f"{where}: {what}", todo)
        there.append(type(each)(placed) if isinstance(each, Verdict) else placed)
    return there


def finding(
    fine: bool, what: str, otherwise: str = "", advice: str = "", *, level: str = "warning"
) -> Finding:
    """The finding `what` if all is fine, else `otherwise` (or `what` again) with `advice`."""
    return ("ok", what, "") if fine else (level, otherwise or what, advice)


def about_start(what: str, age: float, wait: float) -> Finding:
    """The finding whether a store grants leases `age` seconds after its start.

    `what`: the words before the age.
    """
    what = f"{what} {say_seconds(age)}, restart_wait {say_seconds(wait)}"
    if age >= wait:
        return ("ok", what, "")
    return grants_nothing(f"{what}: it grants nothing yet", "wait")


def about_clock(apart: float) -> Finding:
    """The finding about a store's clock that is `apart` seconds from ours."""
    what = f"its clock and this machine's are {say_seconds(apart)} apart"
    return finding(
        apart <= 1, what, advice="synchronise both: a jump of the server's clock moves every ttl"
    )


def about_trip(trip: float, ttl: float, what: str = "a round trip") -> Finding:
    """The finding about a request that takes `trip` seconds, compared with the ttl."""
    what = f"{what} takes {say_seconds(trip)}"
    otherwise = f"{what}, much for a ttl of {say_seconds(ttl)}"
    return finding(trip <= ttl / 30, what, otherwise, "use a longer ttl")


# -- after a restart -------------------------------------------------------------------------------

_APART = 2.0
"""Seconds of difference that are put down to clocks and slow requests, and not reported."""


def wait_after_restart(named: float | None, ttl: float, *learnt: float) -> float:
    """Seconds after a restart for which the store grants nothing.

    A holder from before may still believe for its own ttl, which may differ from the asker's.
    `named`: the option `restart_wait`, which is final; `ttl`: the asker's; `learnt`: ttls found in
    records or markers. Without the option it is the longest ttl, and at least the default.
    """
    return max(TTL_DEFAULT, ttl, *learnt) if named is None else named


def restart_words(where: str, what: str, age: float, left: float, *, apart: float = 0.0) -> str:
    """The message of a refusal after a restart, with the ways out.

    `what` happened `age` seconds ago ("started", "lost its data"); the store grants in `left`
    seconds. `apart`: another clock says that it happened this many seconds earlier; then `left` is
    known for this process only, not for others.
    """
    ago = "less than a second ago" if age < 1 else f"{say_seconds(float(int(age)))} ago"
    wait = say_seconds(max(1.0, float(-int(-left // 1))))
    if apart >= _APART:
        earlier = say_seconds(float(int(apart)))
        return (
            f"{where} {what} {ago} by one clock, and {earlier} earlier by another: the clock of the"
            " store, of this host, or of the host that first saw it is wrong. For"
            f" {wait} more this process is given no lease, because a holder from before may still"
            f" be working; each new process may have to wait up to {earlier} longer. Set the clocks"
            " right, or if you know that there is no such holder, name restart_wait=0 in the"
            " store's URL"
        )
    return (
        f"{where} {what} {ago}. For {wait} more nobody is given a lease, because a holder from"
        f" before may still be working. Wait {wait}, or if you know that there is none, name"
        " restart_wait=0 in the store's URL"
    )
