"""The blocking side: `runner` in one step, and a shorter way for what has to be fast."""

from __future__ import annotations

import os
from typing import TypeVar
from weakref import WeakSet

from incumbent import clock
from incumbent.protocol.port import run
from incumbent.stores.blocking import BlockingPlanned
from incumbent.stores.plan import Plan
from incumbent.stores.postgresql.dialect import Dialect
from incumbent.stores.postgresql.libpq import Site
from incumbent.stores.postgresql.runner import Runner
from incumbent.stores.postgresql.waiting import Blocking
from incumbent.stores.postgresql.wire import STALE_AFTER

__all__ = ["PostgresStore"]

T = TypeVar("T")

_now = clock.now


class PostgresStore(BlockingPlanned[Runner]):
    """See stores.base.Store."""

    def __init__(self, site: Site, dialect: Dialect) -> None:
        super().__init__(Runner(site, dialect, Blocking()))
        _stores.add(self)

    def run(self, plan: Plan[float, T], until: float) -> T:
        """See BlockingPlanned.run. A connection that was just used needs no coroutine."""
        operations, now = self.operations, _now()
        idle = operations.idle
        try:
            wire = idle.pop()
        except IndexError:
            return super().run(plan, until)
        if now - wire.used > STALE_AFTER:
            idle.append(wire)
            return super().run(plan, until)
        wire.used = now
        try:
            outcome = wire.carry_out_at_once(plan, until)
        except operations.unusable as error:
            wire.close()
            return run(operations.again(error, plan, until))
        except BaseException as error:
            operations.settle(wire, idle, error)
            raise
        operations.put_back(wire, idle)
        return outcome


_stores: WeakSet[PostgresStore] = WeakSet()


def _after_fork() -> None:
    for store in list(_stores):
        store.operations.detach()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
