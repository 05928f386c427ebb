"""What a thread or a task holds: the bodies that it is in, and what it may enter again.

What counts is the thread or the task itself, and no context variable: a child task inherits its
parent's context, and may well wait for what the parent holds.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from incumbent import clock
from incumbent.errors import Misuse
from incumbent.lease import State
from incumbent.protocol.words import waits_for_itself

if TYPE_CHECKING:
    from incumbent.model import Key
    from incumbent.protocol.held import Held, Wanted
    from incumbent.protocol.link import Link


def present_caller() -> Any:
    """The task that runs, or else the thread.

    A thread is not the same as its tasks: one of them may be suspended in its body while another
    one runs.
    """
    task = current_task()
    return threading.current_thread() if task is None else task


def current_task() -> Any:
    # Blocking code has no use for asyncio: what nobody imported runs no task here.
    asyncio = sys.modules.get("asyncio")
    try:
        return None if asyncio is None else asyncio.current_task()
    except RuntimeError:
        return None


# -- bodies: in there a caller would wait for the same name for ever -------------------------------

Bodies: TypeAlias = "list[tuple[weakref.ref[Held], Hashable]]"
"""Leases, and the identity of the store that each is of.

Only bodies count, of `with` and of decorated functions. A lease that was acquired alone may have
been handed to anybody.
"""

_bodies: Final[weakref.WeakKeyDictionary[Any, Bodies]] = weakref.WeakKeyDictionary()
"""By thread, and by task if there is one."""


def bodies_of_thread() -> Bodies:
    """The bodies that cannot end while this thread blocks: also those of its tasks."""
    # Asked at each call: gevent may be put in its place late, and then it is a greenlet.
    return _bodies.get(threading.current_thread(), [])


def bodies_of_task() -> Bodies:
    """The bodies that cannot end while the present task waits."""
    task = current_task()
    return _bodies.get(task, []) if task is not None else []


def enter(held: Held, store: Hashable) -> Callable[[], None]:
    """Note the body of a lease. Any caller may leave it with what is returned, also twice."""
    entry, task = (held.ref, store), current_task()
    callers = [threading.current_thread()] if task is None else [threading.current_thread(), task]
    lists = [_bodies.setdefault(caller, []) for caller in callers]
    for bodies in lists:
        bodies.append(entry)

    def leave() -> None:
        while lists:
            bodies = lists.pop()
            if entry in bodies:
                bodies.remove(entry)

    return leave


def refuse_waiting_for_oneself(wanted: Wanted, store: Hashable, bodies: Bodies) -> None:
    """Raises Misuse if one of the bodies is of a lease on that name which is still proved."""
    for ref, its_store in bodies:
        held = ref()
        if held is None or held.wanted.key != wanted.key or its_store != store:
            continue
        if held.machine.valid(clock.now()):
            raise Misuse(waits_for_itself(held.wanted, wanted))


# -- what reentrant locks hold for a caller --------------------------------------------------------

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
