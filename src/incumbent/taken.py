"""What a thread or a task acquired through one lock: for those who keep the lock, not the lease."""

from __future__ import annotations

import weakref
from functools import partial
from typing import Any, Generic

from incumbent.errors import Misuse, NotHeld
from incumbent.handles import L, LockHandle


class TakingHandle(LockHandle[L], Generic[L]):
    """A lock that keeps a lease for the thread or the task that acquired it, while that lives."""

    __slots__ = ()

    _may_be_reentrant = True

    @staticmethod
    def _caller() -> object:
        """The thread or the task itself: unlike its number it is never another's later."""
        raise NotImplementedError

    def owned(self) -> bool:
        """Whether a lease that this very thread or task acquired through this lock is proved now.

        That is what is believed, as in `Lease.valid`; no store is asked. False is "not proved": the
        store may still keep others out, until the ttl of a lease that could not be renewed is over.
        """
        lease = self._mine()
        return lease is not None and lease.valid

    def _mine(self) -> L | None:
        if self._entries is not None:
            return self._entries.innermost()
        caller = self._caller()
        entered = self._entered.get(self._me())
        if entered is not None or caller is None:
            return entered
        return self._taken.get(weakref.ref(caller))

    def _of_caller(self) -> L:
        lease = self._mine()
        if lease is None:
            raise NotHeld(
                f"release: this thread or task acquired no lease on {self.name!r} through this"
                " lock; others call release() of the lease that acquire() returned"
            )
        return lease

    def _has_entered(self, lease: L) -> None:
        if self._entries is not None:
            self._entries.add(lease, entered=True)
        else:
            self._entered[self._me()] = lease

    def _note(self, lease: L) -> L:
        if self._entries is not None:
            self._entries.add(lease, entered=False)
            return lease
        for taker, earlier in list(self._taken.items()):
            if earlier._let_go():
                self._taken.pop(taker, None)
        self._keep(lease)
        return lease

    def _keep(self, lease: L) -> None:
        caller = self._caller()
        if caller is not None:
            # Weakly on both sides: what is in a cycle would be given back late.
            self._taken[weakref.ref(caller, partial(_forget, weakref.ref(self)))] = lease

    def _refuse_waiting(self) -> None:
        """Raise Misuse where only this lock has the caller's lease: nobody else would end it."""
        caller = self._caller()
        lease = None if caller is None else self._taken.pop(weakref.ref(caller), None)
        if lease is None or not lease.valid:
            return
        seen = weakref.ref(lease)
        del lease
        lease = seen()
        if lease is None:
            raise Misuse(
                f"{self.name!r} was acquired by this thread or task before, and neither released"
                " nor kept: it would wait for itself. That lease is given back now"
            )
        self._keep(lease)


def _forget(lock: weakref.ref[TakingHandle[Any]], taker: weakref.ref[Any]) -> None:
    alive = lock()
    if alive is not None:
        alive._taken.pop(taker, None)
