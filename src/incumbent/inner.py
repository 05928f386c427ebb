"""In whose body a thread or a task is: in there it would wait for the same name for ever.

What counts is the thread or the task itself, and no context variable: a child task inherits its
parent's context, and may well wait for what the parent holds. Only bodies count, of `with` and of
decorated functions. A lease that was acquired alone may have been handed to anybody.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from incumbent import clock
from incumbent.errors import Misuse
from incumbent.protocol.words import waits_for_itself

if TYPE_CHECKING:
    from incumbent.protocol.held import Held, Wanted

Bodies: TypeAlias = "list[tuple[weakref.ref[Held], Hashable]]"
"""Leases, and the identity of the store that each is of."""


_bodies: Final[weakref.WeakKeyDictionary[Any, Bodies]] = weakref.WeakKeyDictionary()
"""By the thread, and by the task, if there is one."""


def bodies_of_thread() -> Bodies:
    """Those that a wait that blocks keeps from ending: also those of the tasks of this thread."""
    # Asked at each call: gevent may be put in its place late, and then it is a greenlet.
    return _bodies.get(threading.current_thread(), [])


def bodies_of_task() -> Bodies:
    """Those that a wait of the present task keeps from ending."""
    task = _current_task()
    return _bodies.get(task, []) if task is not None else []


def enter(held: Held, store: Hashable) -> Leaving:
    """Note the body of a lease, until it is left, by whomever."""
    entry, task = (held.ref, store), _current_task()
    callers = [threading.current_thread()] if task is None else [threading.current_thread(), task]
    lists = [_bodies.setdefault(caller, []) for caller in callers]
    for bodies in lists:
        bodies.append(entry)
    return Leaving(entry, lists)


class Leaving:
    """How a body is left; again does nothing."""

    __slots__ = ("_entry", "_lists")

    def __init__(self, entry: tuple[weakref.ref[Held], Hashable], lists: list[Bodies]) -> None:
        self._entry = entry
        self._lists = lists

    def __call__(self) -> None:
        while self._lists:
            bodies = self._lists.pop()
            if self._entry in bodies:
                bodies.remove(self._entry)


def refuse_waiting_for_oneself(wanted: Wanted, store: Hashable, bodies: Bodies) -> None:
    """Raises Misuse in the body of a lease on that name which is still proved."""
    for ref, its_store in bodies:
        held = ref()
        if held is None or held.wanted.key != wanted.key or its_store != store:
            continue
        if held.machine.valid(clock.now()):
            raise Misuse(waits_for_itself(held.wanted, wanted))


def present_caller() -> Any:
    """The task that runs, or else the thread."""
    task = _current_task()
    return threading.current_thread() if task is None else task


def _current_task() -> Any:
    # Blocking code has no use for asyncio: what nobody imported runs no task here.
    asyncio = sys.modules.get("asyncio")
    try:
        return None if asyncio is None else asyncio.current_task()
    except RuntimeError:
        return None
