"""How the last terms of a name ended: the field "endings" beside its lease.

The store keeps the history of a name: who held it, from when to when. Only the process that ran the
command knows why a term ended, and adds an entry here after it; the fencing token joins the two.
The lack of an entry means something too: if the term was never released, its instance died, froze
or was cut off before it could write.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from incumbent.durations import say_seconds
from incumbent.model import Record

ENDINGS: Final = "endings"
_MOST: Final = 20
"""The number of entries that are kept: as many as a history has."""
FLAPPING: Final = "flapping"
FLAP_WITHIN: Final = 600.0
"""Seconds back from now in which bad endings count together."""
FLAP_FROM: Final = 3
"""The number of bad endings within that time from which a name flaps."""


@dataclass(frozen=True, slots=True)
class TermEnding:
    """The end of one term. `at`: seconds since 1970 by the clock of the instance that held it.

    `how`: "exit" (the command ended by itself), "stopped" (a signal to the instance), "asked" (an
    operator, or a pause), "at_most_for", "lost" (the lease), "not_started" or "fault" (a process
    that even KILL did not end, or a dead guard). `code`: the exit code of the command, 128 + N
    after signal N. `why`: in words.
    """

    token: int
    how: str
    at: float
    code: int | None = None
    why: str = ""

    @property
    def failed(self) -> bool:
        """Whether this is no way in which a term should end."""
        return self.how in _FAILURES or (self.how == "exit" and self.code not in _ORDERLY)


_ORDERLY: Final = (0, None, 130)
"""Exit codes of a command that is no failure: 130 is a ^C at the terminal."""
_FAILURES: Final = frozenset({"lost", "not_started", "fault"})
_WHY_MOST: Final = 200


def with_ending(value: bytes | None, ending: TermEnding) -> bytes:
    """The field's value with one more ending; the oldest beyond twenty are dropped."""
    # A write that was perhaps applied is repeated: the term must not be listed twice.
    others = [one for one in read_endings(value) if one.token != ending.token]
    newest = sorted([*others, ending], key=lambda one: one.token)[-_MOST:]
    return json.dumps([_as_json(one) for one in newest], separators=(",", ":")).encode()


def _as_json(ending: TermEnding) -> dict[str, Any]:
    facts = {**asdict(ending), "at": round(ending.at, 3), "why": ending.why[:_WHY_MOST]}
    return {name: value for name, value in facts.items() if value not in (None, "")}


def read_endings(value: bytes | None) -> list[TermEnding]:
    """The endings in a field's value, oldest first; entries that cannot be read are left out."""
    try:
        entries = json.loads(value or b"[]")
    except ValueError:
        return []
    found = map(_from_json, entries if isinstance(entries, list) else ())
    return [one for one in found if one is not None]


def _from_json(entry: Any) -> TermEnding | None:
    try:
        code = entry.get("code")
        return TermEnding(
            int(entry["token"]),
            str(entry["how"]),
            float(entry["at"]),
            None if code is None else int(code),
            str(entry.get("why", "")),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def endings_of(record: Record) -> dict[int, TermEnding]:
    """The endings on record, by the term's fencing token."""
    field = record.fields.get(ENDINGS)
    return {one.token: one for one in read_endings(None if field is None else field.value)}


def describe_ending(ending: TermEnding) -> str:
    """The end of a term, in words."""
    if ending.how == "exit" and not ending.why:
        return f"its command ended with exit {ending.code}"
    return ending.why or ending.how.replace("_", " ")


# -- a name that flaps -----------------------------------------------------------------------------


class Flapping(NamedTuple):
    """Terms that end badly one after the other. `last`: how the newest of them ended, in words."""

    times: int
    last: str

    def __str__(self) -> str:
        within = say_seconds(FLAP_WITHIN)
        return f"{self.times} terms ended badly within {within}, the last: {self.last}"


def flapping(record: Record, now: float) -> Flapping | None:
    """Whether terms of this name end badly again and again; `now`: seconds since 1970.

    A term ended badly if its command failed or could not start, if the lease was lost, or if it was
    never given back.
    """
    # `abs`: each ending has the clock of its instance, which may be ahead of ours.
    bad = [(at, how) for at, how in _bad_ends(record) if abs(now - at) < FLAP_WITHIN]
    return Flapping(len(bad), max(bad)[1]) if len(bad) >= FLAP_FROM else None


def _bad_ends(record: Record) -> Sequence[tuple[float, str]]:
    endings = endings_of(record)
    found = [(one.at, describe_ending(one)) for one in endings.values() if one.failed]
    present = {holding.token for holding in record.holdings}
    found += [
        (past.started, "it was not given back: its ttl ran out")
        for past in record.history
        # A term that wrote its ending is judged by that, although its release was lost.
        if past.ended is None and past.token not in present and past.token not in endings
    ]
    return found
