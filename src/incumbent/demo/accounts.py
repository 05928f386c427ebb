"""What the judge knows of each worker, and what follows from it. Instants are of one host's clock.

Pure: nothing here reads a clock, so the verdict can be tested with written accounts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

__all__ = ["Account", "faults_in", "seconds_shared", "spans_shared", "writes_beside"]


@dataclass
class Account:
    """One worker, from its beginning to the instant when nothing of it lives. Seconds."""

    number: int
    side: str
    who: str
    term: int
    alone: bool
    """Whether it got the file lock."""
    at: float
    met: tuple[int, ...] = ()
    """Those of its side that lived when it began."""
    first: float | None = None
    last: float | None = None
    gone: float | None = None
    taken: int = 0
    refused: int = 0

    def wrote(self, at: float, *, taken: bool) -> None:
        """One more write, begun at `at`."""
        self.first = at if self.first is None else self.first
        self.last = at
        self.taken += taken
        self.refused += not taken

    def as_dict(self) -> dict[str, Any]:
        """For a line of JSON; `Account(**...)` is the way back."""
        return asdict(self)

    @property
    def span(self) -> tuple[float, float] | None:
        """From its first write to its last."""
        if self.first is None or self.last is None:
            return None
        return self.first, self.last


def faults_in(accounts: Sequence[Account]) -> list[str]:
    """Every breach of "one at a time, and terms that only grow", in words; empty is good."""
    found = [
        f"{account.who} began (term {account.term}) while another lived"
        for account in accounts
        if account.met or not account.alone
    ]
    for before, after in pairwise(sorted(accounts, key=lambda account: account.at)):
        if after.term <= before.term:
            found.append(f"term {after.term} of {after.who} follows term {before.term}")
    return found


def spans_shared(accounts: Iterable[Account]) -> list[tuple[float, float]]:
    """When at least two were between their first and last writes, in order."""
    edges = sorted(
        edge
        for account in accounts
        if account.span is not None
        for edge in ((account.span[0], 1), (account.span[1], -1))
    )
    found: list[tuple[float, float]] = []
    writing, since = 0, 0.0
    for at, change in edges:
        if writing >= 2 and at > since:
            found.append((since, at))
        writing, since = writing + change, at
    return found


def seconds_shared(accounts: Iterable[Account]) -> float:
    """For how long at least two were between their first and last writes."""
    return sum(end - begin for begin, end in spans_shared(accounts))


def writes_beside(old: Account, new: Account) -> float:
    """For how long `old` went on after `new` had begun to write; 0 if it had stopped. Seconds."""
    if old.last is None or new.first is None:
        return 0.0
    return max(0.0, old.last - new.first)
