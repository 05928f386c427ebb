"""What a case needs of its store, said at the case."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

__all__ = ["needs", "needs_of"]

_Case = TypeVar("_Case", bound=Callable[..., object])
_NEEDS = "incumbent_needs"


def needs(*what: str) -> Callable[[_Case], _Case]:
    """The case exists only for stores with these capabilities and hooks."""

    def mark(case: _Case) -> _Case:
        setattr(case, _NEEDS, frozenset(what))
        return case

    return mark


def needs_of(case: object) -> frozenset[str]:
    """What `needs` said of the case."""
    found: frozenset[str] = getattr(case, _NEEDS, frozenset())
    return found
