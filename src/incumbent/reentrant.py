"""What a caller holds through reentrant locks, so that it may enter the same holding again.

The caller is the task, or the thread where none runs. A thread is not the same as its tasks: one of
them may be suspended in its body while another one runs.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from incumbent import clock
from incumbent.inner import present_caller
from incumbent.lease import State

if TYPE_CHECKING:
    from incumbent.handles import LeaseHandle
    from incumbent.model import Key
    from incumbent.protocol.held import Held
    from incumbent.protocol.link import Link

L = TypeVar("L", bound="LeaseHandle")

_Own: TypeAlias = "weakref.WeakValueDictionary[tuple[Hashable, Key], Held]"

_own: Final[weakref.WeakKeyDictionary[Any, _Own]] = weakref.WeakKeyDictionary()
_links: Final[weakref.WeakKeyDictionary[Held, Link]] = weakref.WeakKeyDictionary()


def remember(held: Held, link: Link) -> None:
    """The caller may enter `held` again, until it has let go of all its leases on it."""
    held.inner = []
    _links[held] = link
    own = _own.setdefault(present_caller(), weakref.WeakValueDictionary())
    own[link.same, held.wanted.key] = held


def enter_again(key: Key, store: Hashable) -> tuple[Link, Held, bool] | None:
    """What the caller holds of `key`, with one more lease on it, and whether it is proved.

    None: it holds nothing. A holding that was lost gets no more leases.
    """
    own = _own.get(present_caller())
    held = None if own is None else own.get((store, key))
    if held is None or held.inner is None:
        return None
    # First, so that another thread that lets go of a lease meanwhile does not give all back.
    held.inner.append(None)
    proved = held.machine.valid(clock.now())
    if not proved:
        held.let_go_of_one()
        if held.machine.state is not State.LOST:
            return None
    return _links[held], held, proved


class Entries(Generic[L]):
    """The leases that callers have through one lock, each caller's in the order of its entries."""

    def __init__(self) -> None:
        self._stacks: weakref.WeakKeyDictionary[Any, list[tuple[L, bool]]] = (
            weakref.WeakKeyDictionary()
        )

    def add(self, lease: L, *, entered: bool) -> None:
        """`entered`: by a `with` of the lock, which will leave it."""
        for caller, stack in list(self._stacks.items()):
            while stack and not stack[-1][1] and stack[-1][0]._let_go():
                stack.pop()
            if not stack:
                self._stacks.pop(caller, None)
        self._stacks.setdefault(present_caller(), []).append((lease, entered))

    def innermost(self) -> L | None:
        """The caller's last one that it has not let go of, or else its last one."""
        leases = [lease for lease, _ in self._stacks.get(present_caller(), ())]
        alive = (lease for lease in reversed(leases) if not lease._let_go())
        return next(alive, leases[-1] if leases else None)

    def leave(self) -> L | None:
        """The last one that the caller entered; another caller's, if only that one has entered."""
        own = self._stacks.get(present_caller(), [])
        stacks = [own] if _entered(own) else [*filter(_entered, list(self._stacks.values()))]
        if len(stacks) != 1:
            return None
        (stack,) = stacks
        last = max(at for at, (_, entered) in enumerate(stack) if entered)
        return stack.pop(last)[0]


def _entered(stack: list[tuple[L, bool]]) -> bool:
    return any(entered for _, entered in stack)
