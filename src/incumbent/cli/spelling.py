"""How far one word is from another, and which known word was meant."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`: did you mean X?` if a known word is near, else nothing."""
    near = nearest(word, known)
    return f": did you mean {near}?" if near else ""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is one slip away, or a third of the letters; the first of equals."""
    slips, near = min((distance(word, each), each) for each in known)
    return near if slips <= max(1, len(word) // 3) else None


def distance(one: str, other: str) -> int:
    """How many slips make one word of the other: letters left out, put in, changed or swapped.

    Optimal string alignment (Damerau, 1964; the restricted form).
    """
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        before, last, row = row, before, [i]
        for j, b in enumerate(other, 1):
            best = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                best = min(best, last[j - 2] + 1)
            row.append(best)
    return row[-1]
