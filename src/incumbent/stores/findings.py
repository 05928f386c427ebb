"""What `doctor` says of a store: (level, what, what to do). Pure but for `examine`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from incumbent.durations import say_seconds
from incumbent.errors import StoreError
from incumbent.policy import TTL_DEFAULT
from incumbent.stores.base import Engine
from incumbent.stores.states import GRANTS, UNKNOWN, WAITING, State

Finding: TypeAlias = tuple[str, str, str]
"""The level is "ok", "warning" or "error"; nothing is to be done where it is "ok"."""


class Verdict(tuple[str, str, str]):
    """A Finding about whether leases are given now."""

    __slots__ = ()


class GrantsNothing(Verdict):
    """A Finding that says why nobody is given a lease now."""

    __slots__ = ()


def grants_nothing(what: str, advice: str, *, level: str = "warning") -> GrantsNothing:
    """The finding that nobody is given a lease now, because of `what`."""
    return GrantsNothing((level, what, advice))


class CannotTell(Verdict):
    """A Finding that says why nobody can tell whether leases are given now."""

    __slots__ = ()


def cannot_tell(what: str, advice: str = "") -> CannotTell:
    """The finding that nobody can tell whether leases are given now, because of `what`."""
    return CannotTell(("error", what, advice))


def state_of_store(findings: Iterable[Finding]) -> State:
    """The state of a name that nobody holds, as far as it depends on the store alone."""
    reported = list(findings)
    refused = [found[1] for found in reported if isinstance(found, GrantsNothing)]
    unsure = [found[1] for found in reported if isinstance(found, CannotTell)]
    if refused:
        return State(WAITING, f"nobody is given a lease yet: {'; '.join(refused)}")
    if unsure:
        return State(UNKNOWN, f"whether the store gives leases now: {'; '.join(unsure)}")
    return GRANTS


def examine(engine: Engine, until: float) -> State:
    """Ask a store for `state_of_store`; that it gives no answer is one too."""
    try:
        return state_of_store(engine.diagnose(TTL_DEFAULT, until))
    except StoreError as error:
        return state_of_store([cannot_tell(str(error))])


def at(where: str, findings: Iterable[Finding]) -> list[Finding]:
    """The same findings, of one part of a store."""
    there: list[Finding] = []
    for finding in findings:
        level, what, todo = finding
        placed = (level, f"{where}: {what}", todo)
        there.append(type(finding)(placed) if isinstance(finding, Verdict) else placed)
    return there


def found(
    fine: bool, what: str, otherwise: str = "", advice: str = "", *, level: str = "warning"
) -> Finding:
    """`what` if all is fine, else `otherwise` (or the same) with what to do."""
    return ("ok", what, "") if fine else (level, otherwise or what, advice)


def about_start(what: str, age: float, wait: float, *, error: float = 0.0) -> Finding:
    """Whether a store grants, `age` seconds after it began, or up to `error` seconds less.

    `what` comes before the age.
    """
    what = f"{what} {say_seconds(age)}, restart_wait {say_seconds(wait)}"
    if age - error >= wait:
        return ("ok", what, "")
    return grants_nothing(f"{what}: it grants nothing yet", "wait")


def about_clock(apart: float) -> Finding:
    """How many seconds its clock is apart from ours."""
    what = f"its clock and this machine's are {say_seconds(apart)} apart"
    return found(
        apart <= 1, what, advice="synchronise both: a jump of the server's clock moves every ttl"
    )


def about_trip(trip: float, ttl: float, what: str = "a round trip") -> Finding:
    """How many seconds a request takes, beside the ttl."""
    what = f"{what} takes {say_seconds(trip)}"
    otherwise = f"{what}, much for a ttl of {say_seconds(ttl)}"
    return found(trip <= ttl / 30, what, otherwise, "use a longer ttl")
