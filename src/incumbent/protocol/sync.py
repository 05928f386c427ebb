"""The blocking driver: a protocol is one step of a coroutine that never suspends."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from incumbent import clock
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
from incumbent.protocol.chance import draw_claim, draw_jitter
from incumbent.stores.base import Store

if TYPE_CHECKING:
    from incumbent.protocol.keeper import Keeper

__all__ = ["SyncPort"]


class SyncPort:
    """A Port whose waits block the calling thread."""

    now = staticmethod(clock.now)
    jitter = staticmethod(draw_jitter)
    draw_claim = staticmethod(draw_claim)

    def __init__(self, store: Store, keeper: Keeper) -> None:
        self.store = store
        self.hand_over = keeper.hand_over
        self.tell_outage = keeper.tell_outage

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """See Port.take."""
        return self.store.take(key, claim, ask, until)

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        """See Port.renew."""
        return self.store.renew(renewals, until)

    async def give(
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
        """See Port.give."""
        return self.store.give(
            key, claim, token, until, closed_for=closed_for, reserve_for=reserve_for, slot=slot
        )

    async def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        """See stores.base.Store.put."""
        return self.store.put(key, field, value, guard, until)

    async def read(self, key: Key, until: float) -> Record:
        """See stores.base.Store.read."""
        return self.store.read(key, until)

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        """See Port.wait_change."""
        self.store.wait_change(key, seen, until)

    async def sleep_until(self, instant: float) -> None:
        """See Port.sleep_until; signal handlers run meanwhile, and may end it by raising."""
        left = instant - clock.now()
        if left > 0:
            time.sleep(left)  # noqa: ASYNC251 - blocking is what this driver is for
