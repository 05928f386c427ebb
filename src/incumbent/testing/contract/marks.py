"""What a case needs of its store, said at the case."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

__all__ = ["needs", "needs_of"]

_Marked = TypeVar("_Marked", bound=Callable[..., object])
_NEEDS = "incumbent_needs"


def needs(*what: str) -> Callable[[_Marked], _Marked]:
    """The case (or each of a class) exists only for stores with these capabilities and hooks."""

    def mark(marked: _Marked) -> _Marked:
        inside = vars(marked).items() if isinstance(marked, type) else ()
        for case in [case for name, case in inside if name.startswith("test_")] or [marked]:
            setattr(case, _NEEDS, needs_of(case) | frozenset(what))
        return marked

    return mark


def needs_of(case: object) -> frozenset[str]:
    """What `needs` said of the case."""
    found: frozenset[str] = getattr(case, _NEEDS, frozenset())
    return found
