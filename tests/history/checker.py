"""Whether a history may be. Pure: it sees events, and never a store, a clock or a random number.

In the manner of Porcupine and Elle, but of leases: the rules need no search, for tokens order all
grants of a name. Each rule yields what breaks it, in words.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeVar

from tests.history.events import (
    Due,
    Entry,
    GivenUp,
    Grant,
    History,
    Left,
    Removed,
    Run,
    Stands,
    Witness,
)

__all__ = ["RULES", "Broken", "check"]

T = TypeVar("T", Grant, Witness)
_RAN: Final = frozenset({"ok", "failed"})
"""A slot may be lost though nothing ran: whoever claimed it vanished before."""


@dataclass(frozen=True, slots=True)
class Broken:
    """`rule` says which one, `text` by whom and when."""

    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


def check(history: History, *, but: frozenset[str] = frozenset()) -> list[Broken]:
    """All that the history breaks; `but`: rules that the faults of this history excuse."""
    return [
        Broken(name, text)
        for name, rule in RULES.items()
        if name not in but
        for text in rule(history)
    ]


def _alone(spans: Sequence[Grant | Witness]) -> Iterator[str]:
    """Spans of one name overlap not even by a microsecond, or as many as there are permits."""
    begun: list[Grant | Witness] = []
    for span in sorted(spans, key=_begin):
        begun = [one for one in begun if one.until > _begin(span)]
        against = [one for one in begun if not _share(one, span)]
        if against:
            last = max(against, key=lambda one: one.until)
            both = min(last.until, span.until) - _begin(span)
            yield f"for {both:.6f} s both {_said(last)} and {_said(span)}"
        elif span.permits and len(begun) >= span.permits:
            names = " and ".join(map(_said, begun))
            yield f"{_said(span)} beside {names}, with {span.permits} permits"
        begun.append(span)


def _share(one: Grant | Witness, other: Grant | Witness) -> bool:
    return one.permits is not None and one.permits == other.permits


def _beliefs(history: History) -> Iterator[str]:
    """Two never believe at once."""
    for believed in _by_key(history.of(Grant)).values():
        yield from _alone([grant for grant in believed if grant.until > grant.heard])


def _witnesses(history: History) -> Iterator[str]:
    """Two never work at once, whatever they believe."""
    for worked in _by_key(history.of(Witness)).values():
        yield from _alone(worked)


def _tokens(history: History) -> Iterator[str]:
    """Tokens are unique, and grow in real time: of requests, of beliefs and of work."""
    for grants in _by_key(history.of(Grant)).values():
        yield from _shared(grants)
        yield from _grow(grants, lambda grant: grant.sent, lambda grant: grant.heard)
        believed = [grant for grant in grants if grant.until > grant.heard]
        yield from _grow(believed, _begin, lambda grant: grant.until, beside=_share)
    for worked in _by_key(history.of(Witness)).values():
        yield from _grow(worked, _begin, lambda work: work.until, beside=_share)


def _shared(grants: Sequence[Grant]) -> Iterator[str]:
    claims: dict[int, Grant] = {}
    for grant in grants:
        first = claims.setdefault(grant.token, grant)
        if first.claim != grant.claim:
            yield f"one token for two claims: {_said(first)} and {_said(grant)}"


def _grow(
    spans: list[T],
    begun: Callable[[T], float],
    over: Callable[[T], float],
    beside: Callable[[T, T], bool] = lambda *_: False,
) -> Iterator[str]:
    """Whatever began after another was over has a larger token.

    Not so of two that may be held `beside` each other: the one that was granted first may be slow
    to hear of it, and to begin.
    """
    ended, at = sorted(spans, key=over), 0
    largest: dict[int | None, T] = {}
    for later in sorted(spans, key=begun):
        while at < len(ended) and over(ended[at]) < begun(later):
            one = ended[at]
            if one.permits not in largest or one.token > largest[one.permits].token:
                largest[one.permits] = one
            at += 1
        for before in largest.values():
            wrong = later.token <= before.token and not _same(before, later)
            if wrong and not beside(before, later):
                yield f"{_said(later)} came after {_said(before)}"


def _same(one: Grant | Witness, other: Grant | Witness) -> bool:
    """Two spans of one lease, such as work in two pieces."""
    return (one.who, one.token) == (other.who, other.token)


def _truth(history: History) -> Iterator[str]:
    """Who is told "released" held the record until the release began."""
    grants = {(grant.key, grant.claim): grant for grant in history.of(Grant)}
    removed = list(history.of(Removed))
    by_key = _by_key(history.of(Grant))
    for left in history.of(Left):
        mine = grants.get((left.key, left.claim))
        if left.said != "released" or mine is None:
            continue
        for gone in removed:
            # Before it was heard of, the claim may have been granted once more.
            if gone.claim == left.claim and mine.heard <= gone.at < left.at:
                yield f"{left.who} was told released at {left.at:.3f}: removed at {gone.at:.3f}"
        for other in by_key[left.key]:
            if _share(mine, other):
                continue
            if mine.token < other.token and mine.heard < other.heard < left.at:
                yield f"{left.who} was told released at {left.at:.3f}, after {_said(other)}"
                break


def _ghosts(history: History) -> Iterator[str]:
    """A claim that was given up is in no record, and has used no slot."""
    after = {(one.key, one.claim): one for one in history.of(GivenUp)}
    for stands in history.of(Stands):
        gone = after.get((stands.key, stands.claim))
        if gone is not None and stands.at > gone.after:
            what = f"uses slot {stands.slot}" if stands.slot else "has the lease"
            yield f"{gone.claim} {what} at {stands.at:.3f}, given up for {gone.after:.3f}"


def _slots(history: History) -> Iterator[str]:
    """A slot is used at most once."""
    runs: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in history.of(Run):
        runs[run.key, run.slot].append(run)
    for (key, slot), of_slot in runs.items():
        for earlier, later in pairwise(sorted(of_slot, key=lambda run: run.begin)):
            if not earlier.undone and later.begin < earlier.begin + earlier.keep:
                yield f"{key} slot {slot} ran as {earlier.claim} and as {later.claim}"


def _ledger(history: History) -> Iterator[str]:
    """Each slot that came has one entry in the end; each run is the run of its entry."""
    entries: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in history.of(Entry):
        entries[entry.key, entry.slot].append(entry)
    for due in history.of(Due):
        if due.until <= history.ends and not entries[due.key, due.slot]:
            yield f"{due.key} has no entry for slot {due.slot}"
    for (key, slot), found in entries.items():
        if len({entry.outcome for entry in found}) > 1 or len(found) > 1:
            yield f"{key} slot {slot} has {len(found)} entries"
    for run in history.of(Run):
        found = entries.get((run.key, run.slot), [])
        if found and not run.undone and found[0].claim != run.claim:
            yield f"{run.key} slot {run.slot} ran as {run.claim}, its entry says {found[0].claim!r}"
    yield from _untrue_entries(history, entries)


def _untrue_entries(history: History, entries: dict[tuple[str, str], list[Entry]]) -> Iterator[str]:
    ran = {(run.key, run.slot, run.claim) for run in history.of(Run)}
    lost = {(left.key, left.claim) for left in history.of(Left) if left.said == "lost"}
    for (key, slot), found in entries.items():
        for entry in found:
            if entry.outcome in _RAN and (key, slot, entry.claim) not in ran:
                yield f"{key} slot {slot} says {entry.outcome}, and nothing ran as {entry.claim!r}"
            if entry.outcome == "ok" and (key, entry.claim) in lost:
                yield f"{key} slot {slot} says ok, and {entry.claim} had lost its lease"


RULES: Final[dict[str, Callable[[History], Iterator[str]]]] = {
    "belief": _beliefs,
    "witness": _witnesses,
    "tokens": _tokens,
    "truth": _truth,
    "ghost": _ghosts,
    "slot": _slots,
    "ledger": _ledger,
}


def _by_key(events: Iterable[T]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = defaultdict(list)
    for event in events:
        found[event.key].append(event)
    return found


def _begin(span: Grant | Witness) -> float:
    return span.heard if isinstance(span, Grant) else span.begin


def _said(span: Grant | Witness) -> str:
    return f"{span.who} (token {span.token}, from {_begin(span):.3f} to {span.until:.3f})"
