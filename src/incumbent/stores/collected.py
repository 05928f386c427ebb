"""Closing the socket of a connection that nobody closed and that the collector finds in a cycle.

There the collector calls the finalizers of both in any order; the socket's own, if it comes first,
warns that nobody closed it. Callbacks of weak references come before all finalizers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from weakref import ref

__all__ = ["close_with"]

_open: Final[dict[ref[Any], Callable[[], object]]] = {}
"""By what is referred to from here, a socket outlives its connection until it was closed."""


def close_with(wire: object, close: Callable[[], object]) -> None:
    """Call `close` when `wire` is collected. At the interpreter's end its `__del__` has to."""
    _open[ref(wire, _collected)] = close


def _collected(
    gone: ref[Any],
    # Bound here: at the interpreter's end the module's names go first.
    take: Callable[[ref[Any], None], Callable[[], object] | None] = _open.pop,
) -> None:
    close = take(gone, None)
    if close is not None:
        close()
