"""Which lease belongs to which `with` block, for a lock that many threads or tasks share."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from incumbent.errors import Misuse, NotHeld

__all__ = ["Entered"]

L = TypeVar("L")


class Entered(Generic[L]):
    """Leases by the thread or task that `me` names."""

    __slots__ = ("_leases", "_me", "_name")

    def __init__(self, name: str, me: Callable[[], Hashable]) -> None:
        self._name = name
        self._me = me
        self._leases: dict[Hashable, L] = {}

    def refuse_reentry(self) -> None:
        """Raise Misuse where waiting would be waiting for oneself."""
        if self._leases and self._me() in self._leases:
            raise Misuse(f"the lock on {self._name!r} is held by this very caller: not reentrant")

    def add(self, lease: L) -> None:
        """Remember the caller's lease."""
        self._leases[self._me()] = lease

    def pop(self) -> L:
        """The caller's lease; one that another thread or task entered, if it is the only one."""
        lease = self._leases.pop(self._me(), None)
        if lease is None and len(self._leases) == 1:
            _, lease = self._leases.popitem()
        if lease is None:
            raise NotHeld(f"the lock on {self._name!r} was not entered here")
        return lease
