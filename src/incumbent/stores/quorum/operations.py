"""The operations of a store, written once for both sides: each is a coroutine over a panel.

The asynchronous side awaits them. The blocking side runs each in one step (`stores.blocking`), with
panels that block instead of suspending.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import Any, TypeVar

from incumbent.clock import now as _now
from incumbent.errors import StoreError
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
from incumbent.stores.quorum.fields import put_field
from incumbent.stores.quorum.group import Quorum
from incumbent.stores.quorum.hub import Hub
from incumbent.stores.quorum.panel import Panel
from incumbent.stores.quorum.reading import is_unchanged, read, scan
from incumbent.stores.quorum.rounds import Parting, Rounds
from incumbent.stores.quorum.seats import Ears
from incumbent.stores.quorum.upkeep import renew
from incumbent.stores.redis.readers import Wakeup

__all__ = ["Operations"]

T = TypeVar("T")


class Operations(ABC):
    """See stores.base.AsyncStore; and seats.Host, for the waiters."""

    def __init__(self, quorum: Quorum) -> None:
        self.quorum = quorum
        self.rounds = Rounds(quorum)
        self.hub = Hub(quorum)

    @abstractmethod
    async def on_panel(self, operate: Callable[[Panel], Coroutine[Any, Any, T]], until: float) -> T:
        """Run an operation on a panel that was opened for it. Raises StoreError."""

    @abstractmethod
    def let_go(self) -> None:
        """Close what is not in use; what is in use is closed when it comes back."""

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """See Store.take."""
        return await self.on_panel(
            lambda panel: self.rounds.take(panel, key, claim, ask, until), until
        )

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        """See Store.renew."""
        return await self.on_panel(lambda panel: renew(self.quorum, panel, renewals, until), until)

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
        """See Store.give."""
        parting = Parting(key, claim, token, closed_for, reserve_for, slot)
        return await self.on_panel(lambda panel: self.rounds.give(panel, parting, until), until)

    async def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        """See Store.put."""
        return await self.on_panel(
            lambda panel: put_field(self.quorum, panel, key, field, value, guard, until), until
        )

    async def read(self, key: Key, until: float) -> Record:
        """See Store.read."""
        return await self.on_panel(lambda panel: read(self.quorum, panel, key, until), until)

    async def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        """See Store.scan."""
        return await self.on_panel(
            lambda panel: scan(self.quorum, panel, namespace, prefix, until), until
        )

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change. Raises StoreError if no node can be listened to."""
        try:
            await self.hub.wait(self, key, seen, until)
        except StoreError:
            # Once the time is over the caller looks for itself, whatever went wrong meanwhile.
            if _now() < until:
                raise

    # -- for the hub: see seats.Host ------------------------------------------------------------

    async def is_unchanged(self, key: Key, seen: str, until: float) -> bool:
        """See Host.is_unchanged."""
        return await self.on_panel(
            lambda panel: is_unchanged(self.quorum, panel, key, seen, until), until
        )

    @abstractmethod
    def new_ears(self) -> Ears:
        """See Host.new_ears."""

    @abstractmethod
    def new_bell(self) -> Wakeup:
        """See Host.new_bell."""

    @abstractmethod
    def me(self) -> Hashable:
        """See Host.me."""
