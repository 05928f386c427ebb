"""The leases of each thread and task: the bodies it is in, and the holdings it may enter again.

The keys are threads and tasks themselves, not a context variable: a child task inherits its
parent's context, but may rightly wait for a lease that the parent holds.

The child of a fork is another caller: it inherits the objects, but holds none of the leases.
"""

from __future__ import annotations

import inspect
import os
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from incumbent import clock
from incumbent.errors import Misuse
from incumbent.lease import LeaseState
from incumbent.protocol.messages import waits_for_itself

if TYPE_CHECKING:
    from types import FrameType

    from incumbent.model import Key
    from incumbent.protocol.claim import Claim, LeaseRequest
    from incumbent.runtime.link import Link

T = TypeVar("T")
_GENERATORS: Final = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def present_caller() -> Any:
    """The running task, or the thread if no task runs.

    A thread does not stand for its tasks: one of them may be suspended in its body while another
    runs.
    """
    task = current_task()
    return threading.current_thread() if task is None else task


def current_task() -> Any:
    # Not imported here, so that blocking code need not load it: without asyncio no task runs.
    asyncio = sys.modules.get("asyncio")
    try:
        return None if asyncio is None else asyncio.current_task()
    except RuntimeError:
        return None


def enclosing_generator() -> FrameType | None:
    """The frame of the generator, blocking or not, whose `with` is entered or left at present."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith("incumbent."):
        frame = frame.f_back
    # Another frame would be kept alive by what notes it, with all that it knows, when it has ended.
    is_generator = frame is not None and frame.f_code.co_flags & _GENERATORS
    return frame if is_generator else None


class ByCaller(Generic[T]):
    """The leases of one shared object, in the order of their grants: each caller has its own.

    A caller that outlived its lease must not release the lease of the next caller. A caller that
    never tried to acquire one gets the oldest: another caller handed it over. A caller that did try
    (it released its own, or was refused) gets the oldest that a caller left which has ended.
    """

    _MOST: Final = 100
    """More are kept only by callers that never release what they lost."""

    def __init__(self) -> None:
        self._kept: list[tuple[weakref.ref[Any], T]] = []
        """Its changes are atomic steps: other threads may be in here."""
        self._tried: weakref.WeakSet[Any] = weakref.WeakSet()

    def note_attempt(self) -> None:
        """Note that the present caller acquires leases of its own."""
        self._tried.add(present_caller())

    def own(self) -> T | None:
        """The lease of the present caller."""
        me, kept = present_caller(), self._kept.copy()
        for caller, it in kept:
            if caller() is me:
                return it
        # A caller that tried on its own does not get what another still works under.
        left = (it for caller, it in kept if me not in self._tried or has_ended(caller()))
        return next(left, None)

    def keep(self, it: T) -> None:
        """Keep it for the present caller, in place of its last one."""
        me = weakref.ref(present_caller())
        self._remove(lambda caller, _: caller == me)
        del self._kept[: max(0, len(self._kept) + 1 - self._MOST)]
        self._kept.append((me, it))

    def drop(self, it: T) -> None:
        """Forget it."""
        self._remove(lambda _, other: other is it)

    def _remove(self, which: Callable[[weakref.ref[Any], T], bool]) -> None:
        for entry in self._kept.copy():
            if which(*entry):
                with suppress(ValueError):  # another thread was faster
                    self._kept.remove(entry)


def has_ended(caller: Any) -> bool:
    """Whether a thread or task will do nothing more; None: it is gone."""
    if isinstance(caller, threading.Thread):
        return not caller.is_alive()
    return caller is None or bool(caller.done())


class Exclusion:
    """A body that one caller of a process may be in at a time.

    Counted by process: a fork's child inherits the entry of a thread that it does not have.
    """

    __slots__ = ("_inside",)

    def __init__(self) -> None:
        self._inside: dict[int, object] = {}

    @contextmanager
    def enter(self) -> Iterator[bool]:
        """Enter; the value is whether this caller is the only one inside."""
        process, me = os.getpid(), object()
        # One step, so that of two threads exactly one is alone.
        alone = self._inside.setdefault(process, me) is me
        try:
            yield alone
        finally:
            if alone:
                del self._inside[process]


# -- bodies: a caller inside one would wait for its name for ever ----------------------------------

Bodies: TypeAlias = "list[tuple[weakref.ref[Claim], Hashable]]"
"""Leases, each with the identity of its store.

Only bodies count: those of `with` and of decorated functions. A lease from a bare `acquire` may
have been handed to another thread or task.
"""

_bodies: Final[weakref.WeakKeyDictionary[Any, Bodies]] = weakref.WeakKeyDictionary()
"""The bodies of each thread, and of each task."""


def bodies_of_thread() -> Bodies:
    """The bodies that cannot end while this thread blocks: its own and those of its tasks."""
    # Looked up at each call: gevent may be installed late, and then this is a greenlet.
    return _bodies.get(threading.current_thread(), []) if _bodies else []


def bodies_of_task() -> Bodies:
    """The bodies that cannot end while the current task waits."""
    task = current_task()
    return _bodies.get(task, []) if task is not None else []


def is_in_body(claim: Claim) -> bool:
    """Whether this thread, or a task of it, is in a body of this lease."""
    return any(ref is claim.ref for ref, _ in bodies_of_thread())


def enter(claim: Claim, store: Hashable) -> Callable[[], None]:
    """Note the body of a lease. Return a function that removes it: for any caller, also twice."""
    # For a task in both lists: while it is in the body, its thread must not block on the name
    # either.
    entry, task = (claim.ref, store), current_task()
    callers = [threading.current_thread()] if task is None else [threading.current_thread(), task]
    lists = [_bodies.setdefault(caller, []) for caller in callers]
    for bodies in lists:
        bodies.append(entry)

    def leave() -> None:
        # Taken off one by one: a second call, or one that was interrupted, goes on where the first
        # ended.
        while lists:
            bodies = lists.pop()
            if entry in bodies:
                bodies.remove(entry)

    return leave


def forget_bodies(claim: Claim) -> None:
    """Remove the caller's bodies of a lease that is given up: `enter` may have been interrupted."""
    for bodies in (bodies_of_thread(), bodies_of_task()):
        bodies[:] = [entry for entry in bodies if entry[0] is not claim.ref]


def refuse_waiting_for_oneself(wanted: LeaseRequest, store: Hashable, bodies: Bodies) -> None:
    """Raise Misuse if one of `bodies` is of a lease on the wanted name that is still proved."""
    for ref, its_store in bodies:
        claim = ref()
        if claim is None or claim.wanted.key != wanted.key or its_store != store:
            continue
        if claim.machine.valid(clock.now()):
            raise Misuse(waits_for_itself(claim.wanted, wanted))


# -- the holdings of each caller in reentrant locks ------------------------------------------------

_Own: TypeAlias = "weakref.WeakValueDictionary[tuple[Hashable, Key], Claim]"

_own: Final[weakref.WeakKeyDictionary[Any, _Own]] = weakref.WeakKeyDictionary()
_links: Final[weakref.WeakKeyDictionary[Claim, Link]] = weakref.WeakKeyDictionary()


def allow_reentry(claim: Claim, link: Link) -> None:
    """Let the caller enter `claim` again, until it has released all its leases on it."""
    claim.reentries = []
    _links[claim] = link
    own = _own.setdefault(present_caller(), weakref.WeakValueDictionary())
    own[link.identity, claim.wanted.key] = claim


def enter_again(key: Key, store: Hashable) -> tuple[Link, Claim, bool] | None:
    """Add a lease to the caller's holding of `key`; return the holding and whether it is proved.

    None if the caller holds nothing. A holding that was lost gets no more leases.
    """
    own = _own.get(present_caller())
    claim = None if own is None else own.get((store, key))
    if claim is None or claim.reentries is None:
        return None
    try:
        # Added first, so that a release by another thread meanwhile does not end the holding.
        claim.reentries.append(None)
        proved = claim.machine.valid(clock.now())
    except BaseException:
        claim.drop_reentry()
        raise
    if not proved:
        claim.drop_reentry()
        if claim.machine.state is not LeaseState.LOST:
            return None
    return _links[claim], claim, proved


# -- forks -----------------------------------------------------------------------------------------


def _forget_parent() -> None:
    """In the child of a fork: its thread is the same object as in the parent."""
    _bodies.clear()
    _own.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
