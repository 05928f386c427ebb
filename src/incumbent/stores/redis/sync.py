"""The blocking side. A connection has one user.

Connections are taken off a list and put back: `list.pop` and `list.append` are atomic, so there is
no lock that a signal handler or `__del__` could meet; re-entry takes or opens another connection.
Whatever interrupts an exchange (any BaseException) closes its connection.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar
from weakref import WeakSet

import hiredis

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.model import (
    Ask,
    GiveOutcome,
    Guard,
    Key,
    PutOutcome,
    Record,
    Renewal,
    RenewOutcome,
    TakeOutcome,
)
from incumbent.stores.redis.dial import dial
from incumbent.stores.redis.dialect import Dialect, is_repeatable
from incumbent.stores.redis.driver import Site
from incumbent.stores.redis.errors import (
    Broken,
    Mismatch,
    exchange_error,
    restart_error,
    still_in_doubt,
)
from incumbent.stores.redis.resp import Program
from incumbent.stores.redis.server import greeting
from incumbent.stores.redis.wire import Wire

__all__ = ["RedisStore"]

T = TypeVar("T")
Read: TypeAlias = Callable[[Any, Key, str, Any, str], T]
"""How an answer is read: with the key, the claim, the ask, and the epoch of the connection."""

_STALE_AFTER: Final = 0.1
"""A connection unused for longer is looked at before it is trusted: one system call."""
_IDLE_MAX: Final = 64
_LEAVE_WITHIN: Final = 0.05
_UNUSABLE: Final = (Broken, Mismatch, hiredis.ProtocolError)

_now = clock.now


class RedisStore:
    """See stores.base.Store."""

    def __init__(self, site: Site, dialect: Dialect) -> None:
        self._site = site
        self._dialect = dialect
        self._idle: list[Wire] = []
        self._listeners: list[Wire] = []
        self._all: WeakSet[Wire] = WeakSet()
        _stores.add(self)

    # -- operations ---------------------------------------------------------------------------

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """See Store.take."""
        dialect, wait = self._dialect, self._site.restart_wait
        request = dialect.take(key, claim, ask)
        if wait is None:
            wait = ask.ttl
        return self._ask(request, until, wait, dialect.taken, key, claim, ask)

    def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        """See Store.renew."""
        return self._run(lambda epoch: self._dialect.renew(renewals, epoch), until)

    def give(
        self,
        key: Key,
        claim: str,
        token: int | None,
        until: float,
        *,
        closed_for: float = 0.0,
        reserve_for: str | None = None,
        slot: str | None = None,
    ) -> GiveOutcome:
        """See Store.give."""
        dialect = self._dialect
        request = dialect.give(key, claim, token, closed_for, slot)
        return self._ask(request, until, 0.0, dialect.given, key, claim, None)

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        """See Store.put."""
        return self._run(
            lambda _: self._dialect.put(key, field, value, guard),
            until,
            repeatable=is_repeatable(guard),
        )

    def read(self, key: Key, until: float) -> Record:
        """See Store.read."""
        return self._run(lambda _: self._dialect.read(key), until)

    def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        """See Store.scan."""
        return self._run(lambda _: self._dialect.scan(namespace, prefix), until)

    def wait_change(self, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change. Raises StoreUnavailable if nobody can listen."""
        listeners = self._listeners
        wire = self._listen(key, until)
        try:
            if self._run(lambda _: self._dialect.unchanged(key, seen), until):
                wire.next(until)
            wire.used = _now()
            wire.send(self._dialect.unsubscribe(key), wire.used + _LEAVE_WITHIN)
        except Broken:
            # The time is over, or nothing will be heard any more: both are hints enough.
            wire.close()
        except BaseException:
            wire.close()
            raise
        else:
            _put_back(wire, listeners, self._listeners)

    def close(self) -> None:
        """See Store.close."""
        idle, self._idle = self._idle, []
        listeners, self._listeners = self._listeners, []
        _close_all(idle)
        _close_all(listeners)

    # -- exchanges ----------------------------------------------------------------------------

    def _ask(
        self,
        request: bytes,
        until: float,
        wait: float,
        read: Read[T],
        key: Key,
        claim: str,
        ask: Ask | None,
    ) -> T:
        """One request by a connection just used, which is the hot path; all else is `_do`."""
        idle, now = self._idle, _now()
        try:
            wire = idle.pop()
        except IndexError:
            again = _one(request, until, read, key, claim, ask)
            return self._do(again, until, wait, repeatable=ask is None)
        if now - wire.used > _STALE_AFTER or now < wire.born + wait:
            idle.append(wire)
            again = _one(request, until, read, key, claim, ask)
            return self._do(again, until, wait, repeatable=ask is None)
        wire.used = now
        try:
            outcome = read(wire.ask(request, until), key, claim, ask, wire.epoch)
        except _UNUSABLE as error:
            wire.close()
            again = _one(request, until, read, key, claim, ask)
            # A take in doubt is the caller's to repeat, who remembers that there were two.
            return self._again(error, again, until, wait, repeatable=ask is None)
        except BaseException:
            wire.close()
            raise
        if idle is self._idle:
            idle.append(wire)
        else:
            wire.close()
        return outcome

    def _run(
        self, start: Callable[[str], Program[T]], until: float, *, repeatable: bool = True
    ) -> T:
        def operate(wire: Wire) -> T:
            return wire.run(start(wire.epoch), until)

        return self._do(operate, until, repeatable=repeatable)

    def _do(
        self,
        operate: Callable[[Wire], T],
        until: float,
        wait: float = 0.0,
        *,
        repeatable: bool = True,
    ) -> T:
        """`operate` on one connection, and once more on a fresh one if that was dead already."""
        wire = self._trusted(always_look=not repeatable)
        if wire is None:
            return self._afresh(operate, until, wait)
        try:
            return self._use(wire, operate, wait)
        except _UNUSABLE as error:
            return self._again(error, operate, until, wait, repeatable=repeatable)

    def _trusted(self, *, always_look: bool) -> Wire | None:
        """A connection at hand that the server has not closed."""
        while self._idle:
            try:
                wire = self._idle.pop()
            except IndexError:
                break
            fresh = _now() - wire.used < _STALE_AFTER and not always_look
            if fresh or not wire.is_stale():
                return wire
            wire.close()
        return None

    def _use(self, wire: Wire, operate: Callable[[Wire], T], wait: float) -> T:
        idle = self._idle
        wire.used = now = _now()
        early = wire.born + wait - now
        if early > 0:
            _put_back(wire, idle, self._idle)
            raise restart_error(self._site.where, now - wire.born, early)
        try:
            outcome = operate(wire)
        except BaseException:
            wire.close()
            raise
        _put_back(wire, idle, self._idle)
        return outcome

    def _afresh(self, operate: Callable[[Wire], T], until: float, wait: float) -> T:
        wire = self._connect(until)
        try:
            return self._use(wire, operate, wait)
        except _UNUSABLE as error:
            raise exchange_error(error, self._site.where) from error.__cause__ or error

    def _again(
        self,
        error: Exception,
        operate: Callable[[Wire], T],
        until: float,
        wait: float,
        *,
        repeatable: bool,
    ) -> T:
        doubt = not isinstance(error, Broken) or error.sent
        if not isinstance(error, Broken) or error.late or (doubt and not repeatable):
            raise exchange_error(error, self._site.where) from error.__cause__ or error
        # What killed one (a restart, a cut network) killed its neighbours.
        while self._idle:
            _close_all([self._idle.pop()])
        try:
            return self._afresh(operate, until, wait)
        except StoreUnavailable as second:
            if doubt:
                raise still_in_doubt(second, self._site.where) from second
            raise

    def _connect(self, until: float) -> Wire:
        site = self._site
        wire = Wire(dial(site, until))
        self._all.add(wire)
        program = greeting(site.where, allow_eviction=site.allow_eviction, proved=site.proved)
        try:
            facts = wire.run(program, until)
        except _UNUSABLE as error:
            wire.close()
            raise StoreUnavailable(f"{site.where} cannot be reached: {error}") from error
        except BaseException:
            wire.close()
            raise
        wire.epoch, wire.born = facts.epoch, facts.born(_now())
        site.proved = True
        return wire

    def _listen(self, key: Key, until: float) -> Wire:
        """A connection that listens for `key`: one that listened before, or a fresh one."""
        try:
            return self._subscribed(self._listeners.pop(), key, until)
        except (IndexError, *_UNUSABLE):
            pass
        try:
            return self._subscribed(self._connect(until), key, until)
        except _UNUSABLE as error:
            raise StoreUnavailable(f"{self._site.where} cannot be reached: {error}") from error

    def _subscribed(self, wire: Wire, key: Key, until: float) -> Wire:
        try:
            wire.used = _now()
            wire.send(self._dialect.subscribe(key), until)
            while not self._dialect.listens(wire.next(until), key):
                pass
        except BaseException:
            wire.close()
            raise
        return wire

    def drop(self) -> None:
        """In a fork's child: give the descriptors back. What is in use was other threads'."""
        self._idle, self._listeners = [], []
        _close_all(list(self._all))


def _one(
    request: bytes, until: float, read: Read[T], key: Key, claim: str, ask: Ask | None
) -> Callable[[Wire], T]:
    def operate(wire: Wire) -> T:
        return read(wire.ask(request, until), key, claim, ask, wire.epoch)

    return operate


def _put_back(wire: Wire, whence: list[Wire], where: list[Wire]) -> None:
    # Another list by now: the store was closed, or this is a fork's child.
    if whence is where and len(where) < _IDLE_MAX:
        where.append(wire)
    else:
        wire.close()


def _close_all(wires: list[Wire]) -> None:
    for wire in wires:
        wire.close()


_stores: WeakSet[RedisStore] = WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store.drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
