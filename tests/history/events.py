"""The words in which a history is told. All instants are seconds of one clock, that of the judge.

A simulator tells them in true time. Real processes of one host tell them on its CLOCK_BOOTTIME.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeAlias, TypeVar

__all__ = [
    "Due",
    "Entry",
    "Event",
    "GivenUp",
    "Grant",
    "History",
    "Left",
    "Removed",
    "Run",
    "Stands",
]
__all__ += ["Witness"]


@dataclass(frozen=True, slots=True)
class Grant:
    """A request that was granted, and what its sender then believed.

    It was sent at `sent` and answered at `heard`. The holder believed from `heard` to `until`: a
    release, a loss, or the last deadline. `until` at or before `heard`: it never believed.
    `permits`: how many may hold it at once if all say so, 0 any number; None: one.
    """

    who: str
    key: str
    claim: str
    token: int
    sent: float
    heard: float
    until: float
    permits: int | None = None


@dataclass(frozen=True, slots=True)
class Witness:
    """`who` worked from `begin` to `until`: told by somebody outside, who asks no store.

    `permits`: see Grant.
    """

    who: str
    key: str
    token: int
    begin: float
    until: float
    permits: int | None = None


@dataclass(frozen=True, slots=True)
class Left:
    """A holder ended its work; its release began at `at`. `said`: what its caller was told.

    "released" (all was well), "lost", or "unknown" (no answer, or too late to tell).
    """

    who: str
    key: str
    claim: str
    at: float
    said: str


@dataclass(frozen=True, slots=True)
class Removed:
    """An operator, or a loss of data, removed the record of a claim at `at`."""

    key: str
    claim: str
    at: float


@dataclass(frozen=True, slots=True)
class GivenUp:
    """Nothing of this claim may be left in the store from `after` on."""

    who: str
    key: str
    claim: str
    after: float


@dataclass(frozen=True, slots=True)
class Stands:
    """Somebody who looked into the store at `at` found this claim there. `slot`: as its user."""

    key: str
    claim: str
    at: float
    slot: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """Work that may be done once in `keep` seconds began. `undone`: it said that it did nothing."""

    who: str
    key: str
    slot: str
    claim: str
    begin: float
    keep: float
    undone: bool = False


@dataclass(frozen=True, slots=True)
class Due:
    """A job's slot came at `at`; by `until` the ledger has to know what became of it."""

    key: str
    slot: str
    at: float
    until: float


@dataclass(frozen=True, slots=True)
class Entry:
    """What the ledger says of a slot in the end. `claim`: of the run; empty: there was none."""

    key: str
    slot: str
    outcome: str
    claim: str = ""


Event: TypeAlias = "Grant | Witness | Left | Removed | GivenUp | Stands | Run | Due | Entry"
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (Grant, Witness, Left, Removed, GivenUp, Stands, Run, Due, Entry)
}
E_ = TypeVar("E_")


@dataclass
class History:
    """Events in any order. `ends`: until when somebody watched."""

    events: list[Event] = field(default_factory=list)
    ends: float = float("inf")

    def tell(self, event: Event) -> None:
        """One more."""
        self.events.append(event)

    def of(self, kind: type[E_]) -> Iterator[E_]:
        """All events of one kind."""
        return (event for event in self.events if isinstance(event, kind))

    def keys(self) -> Iterable[str]:
        """The names that it is about, in order."""
        return dict.fromkeys(event.key for event in self.events)


def to_line(event: Event) -> dict[str, Any]:
    """As JSON."""
    return {"event": type(event).__name__, **asdict(event)}


def from_line(line: dict[str, Any]) -> Event:
    """What `to_line` wrote."""
    kind = _KINDS[line["event"]]
    made: Event = kind(**{one.name: line[one.name] for one in fields(kind) if one.name in line})
    return made
