"""The judge's account of each worker, and the verdict that follows from the accounts.

Pure: nothing here reads a clock. Instants are those of time.monotonic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["Account", "faults_in", "seconds_shared", "spans_shared", "writes_beside"]


@dataclass
class Account:
    """One worker, from its beginning until none of its processes lives."""

    number: int
    side: str
    who: str
    term: int
    began: float
    met: Sequence[int] = ()
    """The numbers of the workers of its side that lived when it began."""
    first_write: float | None = None
    last_write: float | None = None
    ended: float | None = None

    @property
    def span(self) -> tuple[float, float] | None:
        """From its first write to its last; None before the first."""
        if self.first_write is None or self.last_write is None:
            return None
        return self.first_write, self.last_write


def faults_in(accounts: Sequence[Account]) -> list[str]:
    """Every breach of "one at a time, and terms that only grow", in words; empty is good."""
    faults = [
        f"{account.who} began (term {account.term}) while another lived"
        for account in accounts
        if account.met
    ]
    for before, after in pairwise(sorted(accounts, key=lambda account: account.began)):
        if after.term <= before.term:
            faults.append(f"term {after.term} of {after.who} follows term {before.term}")
    return faults


def spans_shared(accounts: Iterable[Account]) -> list[tuple[float, float]]:
    """When at least two workers were between their first and last writes, in order."""
    spans = [account.span for account in accounts if account.span is not None]
    edges = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    shared: list[tuple[float, float]] = []
    writing, since = 0, 0.0
    for at, change in edges:
        if writing >= 2 and at > since:
            shared.append((since, at))
        writing, since = writing + change, at
    return shared


def seconds_shared(accounts: Iterable[Account]) -> float:
    """For how long at least two workers were between their first and last writes."""
    return sum(end - begin for begin, end in spans_shared(accounts))


def writes_beside(old: Account, new: Account) -> float:
    """For how many seconds `old` wrote after the first write of `new`; 0 if it had stopped."""
    if old.last_write is None or new.first_write is None:
        return 0.0
    return max(0.0, old.last_write - new.first_write)
