"""Following a master that sentinels name.

Nothing is asked of a server before a majority of the sentinels has said, within the last second,
that it is the master. So who is cut off together with an old master proves nothing any more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TypeVar

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError
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
from incumbent.stores.blocking import Operations
from incumbent.stores.redis.driver import Site, target_at
from incumbent.stores.redis.errors import Demoted
from incumbent.stores.redis.hosts import Address, Reach, the_same
from incumbent.stores.redis.layers.base import Layer, Side
from incumbent.stores.redis.layers.sentinel import FRESH, Opinion, majority_of, question, verdict
from incumbent.stores.redis.resp import Program

__all__ = ["Follow", "Followed"]

T = TypeVar("T")

_now = clock.now


@dataclass(slots=True)
class Followed:
    """A master and its sentinels, as both sides of an engine see them.

    `asked`: when the sentinels were asked whose answer `address` is; `checked`: the same, as long
    as nothing speaks against it.
    """

    site: Site
    sentinels: tuple[Site, ...]
    service: str
    reach: Reach = the_same
    address: Address | None = None
    asked: float = -inf
    checked: float = -inf

    @property
    def stale(self) -> bool:
        """Whether the sentinels have to be asked again."""
        return not 0 <= _now() - self.checked <= FRESH

    async def ask(self, side: Side, until: float) -> Address:
        """Where the master is. Raises StoreUnavailable, at `until` at the latest."""
        asked_at, site = _now(), self.site

        def program(sentinel: Site) -> Program[Opinion]:
            return question(self.service, sentinel.where, proved=site.proved)

        enough = majority_of(len(self.sentinels))
        answers = await side.survey(self.sentinels, program, enough, until)
        address = verdict(answers, len(self.sentinels), site.where)
        # Another thread may have asked later and heard more.
        if asked_at >= self.asked:
            self.asked = self.checked = asked_at
            if address != self.address:
                site.target = target_at(site.target, self.reach(address))
                self.address = address
        return address

    def doubt(self) -> None:
        """Something went wrong at the master: the sentinels may know more by now."""
        self.checked = -inf


class Follow(Layer):
    """Asks the sentinels before the master, and drops what is connected to an old one."""

    def __init__(self, inner: Operations, side: Side, followed: Followed) -> None:
        super().__init__(inner)
        self._side = side
        self._followed = followed
        self._address: Address | None = None

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """See Store.take."""
        return await self._at_the_master(until, partial(self.inner.take, key, claim, ask, until))

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        """See Store.renew."""
        return await self._at_the_master(until, partial(self.inner.renew, renewals, until))

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
        return await self._at_the_master(
            until,
            partial(
                self.inner.give,
                key,
                claim,
                token,
                until,
                closed_for=closed_for,
                reserve_for=reserve_for,
                slot=slot,
            ),
        )

    async def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        """See Store.put."""
        return await self._at_the_master(
            until, partial(self.inner.put, key, field, value, guard, until)
        )

    async def read(self, key: Key, until: float) -> Record:
        """See Store.read."""
        return await self._at_the_master(until, partial(self.inner.read, key, until))

    async def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        """See Store.scan."""
        return await self._at_the_master(until, partial(self.inner.scan, namespace, prefix, until))

    async def wait_change(self, key: Key, seen: str, until: float) -> None:
        """See Store.wait_change."""
        try:
            await self._at_the_master(until, partial(self.inner.wait_change, key, seen, until))
        except StoreError:
            # Once the time is over the caller looks for itself, whatever went wrong meanwhile.
            if _now() < until:
                raise

    async def _at_the_master(self, until: float, operate: Callable[[], Awaitable[T]]) -> T:
        followed = self._followed
        if followed.stale:
            await self._side.alone(partial(self._ask, until), until)
        if self._address != followed.address:
            self.inner.let_go()
            self._address = followed.address
        try:
            return await operate()
        except StoreError as error:
            followed.doubt()
            if isinstance(error, Demoted | OutcomeUnknown):
                self.inner.let_go()
            raise

    async def _ask(self, until: float) -> None:
        # Another task may have asked while this one waited for its turn.
        if self._followed.stale:
            await self._followed.ask(self._side, until)
