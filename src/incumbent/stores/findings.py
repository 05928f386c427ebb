"""What `doctor` says of a store: (level, what, what to do). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from incumbent.durations import say_seconds

Finding: TypeAlias = tuple[str, str, str]
"""The level is "ok", "warning" or "error"; nothing is to be done where it is "ok"."""


class GrantsNothing(tuple[str, str, str]):
    """A Finding that says why nobody is given a lease now."""

    __slots__ = ()


def grants_nothing(what: str, advice: str, *, level: str = "warning") -> GrantsNothing:
    """The finding that nobody is given a lease now, because of `what`."""
    return GrantsNothing((level, what, advice))


def why_nothing_is_granted(findings: Iterable[Finding]) -> str:
    """Why nobody is given a lease now; nothing if the findings do not say so."""
    return "; ".join(found[1] for found in findings if isinstance(found, GrantsNothing))


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
