"""A stretch of time that comes again, because clocks were set back. Pure.

A slot is named by its instant, and runs once. When a clock that was ahead is set back, the instants
up to where it was come again, and their slots are used. A rhythm continues all the same: one
instance writes a *fold* into the job's record, from which all take the names of these slots.

    ... 10:38 10:39 10:40 | the clock is set back by 40 minutes
                            10:01~2 10:02~2 ... 10:40~2 10:41 10:42 ...
                          since                 until

`~2` is the second time that an instant came, as `fold=1` is in Python (PEP 495).
`judging.next_fold` says when there is one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import Final, NamedTuple

from incumbent.cron.spec import JobSlot, is_scheduled
from incumbent.model import Field

FOLD: Final = "fold"
"""The field of a job's key that holds its latest fold."""


class Fold(NamedTuple):
    """Instants after `since`, up to `until`, are named as those that come for the `number`th time.

    Instants are epoch seconds.
    """

    number: int = 1
    since: float = -inf
    until: float = -inf

    def covers(self, due: float) -> bool:
        """Whether this instant comes again."""
        return self.since < due <= self.until

    def named(self, slot: JobSlot) -> JobSlot:
        """The slot under the name that its instant has in this fold."""
        covered = slot.scheduled and slot.attempt == 1 and self.covers(slot.due)
        if not covered or fold_number(slot.name) >= self.number:
            return slot
        return replace(slot, name=f"{slot.name.partition('~')[0]}~{self.number}")

    def outdates(self, slot_name: str, due: float) -> bool:
        """Whether a slot of this name belongs to a time that was taken back."""
        return is_scheduled(slot_name) and self.covers(due) and fold_number(slot_name) < self.number


NO_FOLD: Final = Fold()


def fold_number(slot_name: str) -> int:
    """For which time its instant came, by the name of a slot."""
    number = slot_name.partition("#")[0].partition("~")[2]
    return int(number) if number.isascii() and number.isdecimal() and len(number) < 9 else 1


def encode_fold(fold: Fold) -> bytes:
    """The value of the field."""
    facts = {"number": fold.number, "since": fold.since, "until": fold.until}
    return json.dumps(facts).encode()


def fold_of(fields: Mapping[str, Field]) -> Fold:
    """The latest fold of a job; NO_FOLD if there is none that can be read."""
    if FOLD not in fields:
        return NO_FOLD
    try:
        stored = json.loads(fields[FOLD].value)
        return Fold(int(stored["number"]), float(stored["since"]), float(stored["until"]))
    except (ValueError, KeyError, TypeError):
        return NO_FOLD
