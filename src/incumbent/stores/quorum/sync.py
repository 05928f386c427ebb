"""The blocking side: `rounds` in one step, and a shorter way for what has to be fast."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar
from weakref import WeakSet

from incumbent.clock import now as _now
from incumbent.errors import StoreError
from incumbent.model import (
    Ask,
    GiveOutcome,
    Granted,
    Guard,
    Key,
    PutOutcome,
    Record,
    Released,
    Renewal,
    RenewOutcome,
    TakeOutcome,
)
from incumbent.protocol.port import run
from incumbent.stores.quorum.dialing import Dialer
from incumbent.stores.quorum.fields import put_field
from incumbent.stores.quorum.group import Quorum, agreed_by_most
from incumbent.stores.quorum.panel import Node
from incumbent.stores.quorum.reading import read, scan
from incumbent.stores.quorum.rounds import Rounds
from incumbent.stores.quorum.sync_panel import SyncPanel
from incumbent.stores.quorum.upkeep import renew
from incumbent.stores.quorum.waiting import SyncWaiter
from incumbent.stores.redis.errors import Mismatch, exchange_error

__all__ = ["QuorumStore"]

T = TypeVar("T")

_SWIFT: Final = 0.1
_IDLE_MAX: Final = 64
_GIVEN: Final = b":1\r\n"
_RELEASED: Final = Released()


class QuorumStore:
    """See stores.base.Store.

    Panels are taken off a list and put back: `list.pop` and `list.append` are atomic, so there is
    no lock that a signal handler or `__del__` could meet; re-entry takes or makes another panel.
    """

    def __init__(self, quorum: Quorum, nodes: list[Node]) -> None:
        self._quorum = quorum
        self._epoch = quorum.epoch
        self._dialer = Dialer(quorum, nodes)
        self._rounds = Rounds(quorum)
        self._idle: list[SyncPanel] = []
        self._waiter = SyncWaiter(quorum, self._dialer)
        _stores.add(self)

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """See Store.take."""
        quorum, idle = self._quorum, self._idle
        rounds = self._rounds
        wait = quorum.dialect.wait_of(ask.ttl)
        # A claim whose votes are being taken back needs a ballot above those.
        swift = ask.slot is None and not rounds.is_doubtful(key, claim)
        panel = self._swift(wait, until) if swift else None
        if panel is None:
            return self._run(until, lambda it: rounds.take(it, key, claim, ask, until))
        ballot = quorum.clock.propose(panel.used)
        request = quorum.dialect.take(key, claim, ask, ballot)
        try:
            said = b"incumbent1 %b %d" % (claim.encode(), ballot)
            wanted = b"$%d\r\n%b\r\n" % (len(said), said)
            heard = panel.swiftly(request, wanted, until, lambda it: rounds.is_decided(it, claim))
            if heard is None:
                outcome: TakeOutcome = Granted(claim, ballot, ask.ttl, self._epoch)
            else:
                outcome = run(rounds.take(panel, key, claim, ask, until, (ballot, heard)))
                panel.rested()
        except StoreError:
            panel.rested()
            self._put_back(panel, idle)
            raise
        except Mismatch as error:
            panel.close()
            raise exchange_error(error, quorum.where) from error
        except BaseException:
            panel.close()
            raise
        self._put_back(panel, idle)
        return outcome

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
        quorum, rounds, idle = self._quorum, self._rounds, self._idle
        swift = token is not None and slot is None
        panel = self._swift(0.0, until) if swift else None
        parting = (key, claim, token, until, closed_for, reserve_for)
        if panel is None:
            return self._run(until, lambda it: rounds.give(it, *parting, None, slot))
        ended = quorum.clock.unix_us(panel.used)
        request = quorum.dialect.give(key, claim, token, closed_for, reserve_for, ended)
        try:
            heard = panel.swiftly(request, _GIVEN, until, agreed_by_most)
            if heard is None:
                outcome: GiveOutcome = _RELEASED
            else:
                outcome = run(rounds.give(panel, *parting, heard))
                panel.rested()
        except StoreError:
            panel.rested()
            self._put_back(panel, idle)
            raise
        except Mismatch as error:
            panel.close()
            raise exchange_error(error, quorum.where) from error
        except BaseException:
            panel.close()
            raise
        self._put_back(panel, idle)
        return outcome

    def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        """See Store.renew."""
        return self._run(until, lambda panel: renew(self._quorum, panel, renewals, until))

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        """See Store.put."""
        return self._run(
            until, lambda panel: put_field(self._quorum, panel, key, field, value, guard, until)
        )

    def read(self, key: Key, until: float) -> Record:
        """See Store.read."""
        return self._run(until, lambda panel: read(self._quorum, panel, key, until))

    def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        """See Store.scan."""
        return self._run(until, lambda panel: scan(self._quorum, panel, namespace, prefix, until))

    def wait_change(self, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change. Raises StoreError if no node can be listened to."""
        self._waiter.wait(key, seen, until, self._run)

    def close(self) -> None:
        """See Store.close."""
        idle, self._idle = self._idle, []
        for panel in idle:
            panel.close()
        self._dialer.let_go()
        self._waiter.let_go()

    # -- panels -------------------------------------------------------------------------------

    def _swift(self, wait: float, until: float) -> SyncPanel | None:
        """A panel that was whole a moment ago, of servers that are old enough."""
        try:
            panel = self._idle.pop()
        except IndexError:
            return None
        now = _now()
        if panel.whole and now - panel.used < _SWIFT and panel.oldest + wait <= now < until:
            panel.used = now
            return panel
        self._idle.append(panel)
        return None

    def _run(self, until: float, operate: Callable[[SyncPanel], Coroutine[Any, Any, T]]) -> T:
        idle = self._idle
        try:
            panel = idle.pop()
        except IndexError:
            panel = SyncPanel(self._dialer)
        try:
            panel.prepare(until)
            outcome = run(operate(panel))
        except StoreError:
            # The nodes' answers were heard, or are known to be missing.
            panel.rested()
            self._put_back(panel, idle)
            raise
        except Mismatch as error:
            panel.close()
            raise exchange_error(error, self._quorum.where) from error
        except BaseException:
            # Interrupted, perhaps between a request and its answer.
            panel.close()
            raise
        panel.rested()
        self._put_back(panel, idle)
        return outcome

    def _put_back(self, panel: SyncPanel, whence: list[SyncPanel]) -> None:
        # Another list by now: the store was closed, or this is a fork's child.
        if whence is self._idle and len(whence) < _IDLE_MAX:
            whence.append(panel)
        else:
            panel.close()

    def drop(self) -> None:
        """In a fork's child: give the descriptors back. What is in use was other threads'."""
        self._idle = []
        self._dialer.forget()
        self._waiter.forget()


_stores: WeakSet[QuorumStore] = WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store.drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
