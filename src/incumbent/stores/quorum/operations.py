"""The operations of a store as plans (see stores.plan): each is a coroutine over a panel.

The asyncio side awaits the coroutines. The blocking side runs each in one step (`stores.plan`),
with panels that block instead of suspending.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from incumbent.clock import now as _now
from incumbent.errors import StoreError
from incumbent.model import (
    PLAIN,
    Ask,
    GiveOutcome,
    Guard,
    Key,
    Parting,
    PutOutcome,
    Record,
    Renewal,
    RenewOutcome,
    TakeOutcome,
)
from incumbent.net.readers import ReaderSide, Subscriber
from incumbent.stores.plan import Kind, Plan, Planned, Program
from incumbent.stores.quorum.changes import put_field
from incumbent.stores.quorum.connecting import Dialer
from incumbent.stores.quorum.nodes import Panel, Quorum
from incumbent.stores.quorum.read import is_unchanged, read, scan
from incumbent.stores.quorum.renew import renew
from incumbent.stores.quorum.take import give, take
from incumbent.stores.quorum.waiting import MajorityHub, QuorumHubStore

T = TypeVar("T")


def _plan(kind: Kind, operate: Callable[[Panel, float], Coroutine[Any, Any, T]]) -> Plan[Panel, T]:
    return Plan(kind, lambda panel, until: operate(panel, until).__await__(), repeatable=False)


@types.coroutine
def await_program(program: Program[T]) -> Program[T]:
    """Await a program of `Plans`."""
    return (yield from program)


class Plans:
    """The plans of all operations: see stores.plan.Dialect."""

    def take(self, key: Key, claim: str, ask: Ask) -> Plan[Panel, TakeOutcome]:
        return _plan("take", lambda panel, until: take(panel, key, claim, ask, until))

    def renew(self, renewals: Sequence[Renewal]) -> Plan[Panel, list[RenewOutcome]]:
        return _plan("renew", lambda panel, until: renew(panel, renewals, until))

    def give(
        self, key: Key, claim: str, token: int | None, parting: Parting = PLAIN
    ) -> Plan[Panel, GiveOutcome]:
        return _plan("give", lambda panel, until: give(panel, key, claim, token, until, parting))

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard
    ) -> Plan[Panel, PutOutcome]:
        return _plan("put", lambda panel, until: put_field(panel, key, field, value, guard, until))

    def read(self, key: Key) -> Plan[Panel, Record]:
        return _plan("read", lambda panel, until: read(panel, key, until))

    def scan(self, namespace: str, prefix: str) -> Plan[Panel, tuple[Record, ...]]:
        return _plan("scan", lambda panel, until: scan(panel, namespace, prefix, until))


class QuorumOperations(Planned[Panel], QuorumHubStore):
    """The operations of a store (stores.base.AsyncStore), and what its waiters' hub asks."""

    dialect = Plans()
    dialer: Dialer[Any]

    def __init__(self, quorum: Quorum, side: ReaderSide) -> None:
        self.quorum = quorum
        self.hub = MajorityHub(quorum, side)

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        try:
            await self.hub.wait(self, key, seen, until)
        except StoreError:
            # After `until` the caller rechecks in any case, so the error is not needed.
            if _now() < until:
                raise

    def begin(self, subscriber: Subscriber[Any], node: int, until: float) -> None:
        self.dialer.connect_apart(node, until, partial(subscriber.arrive, node))

    async def is_unchanged(self, key: Key, seen: str, until: float) -> bool:
        plan = _plan("look", lambda panel, end: is_unchanged(panel, key, seen, end))
        return await self.run(plan, until)
