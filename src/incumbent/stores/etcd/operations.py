"""The operations of a store (see stores.base.AsyncStore), written once for both sides."""

from __future__ import annotations

from typing import Final

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.model import (
    ByClaim,
    GiveOutcome,
    Gone,
    Guard,
    Key,
    PutOutcome,
    Record,
    Released,
    Stale,
    Stored,
)
from incumbent.stores.etcd.answers import revision_of, seconds
from incumbent.stores.etcd.cluster import TXN
from incumbent.stores.etcd.errors import LeaseMissing
from incumbent.stores.etcd.exchange import REPEATED, Reply, W
from incumbent.stores.etcd.incarnation import Born
from incumbent.stores.etcd.memory import Mine, Session
from incumbent.stores.etcd.records import Entry, entries_in, entry_of, mine_of, record_of
from incumbent.stores.etcd.renewing import Renewing
from incumbent.stores.etcd.taking import Taking
from incumbent.stores.etcd.waiting import Waiting
from incumbent.stores.repeats import heard_again

__all__ = ["Operations"]

_KEEP_HISTORY: Final = 86_400.0
_ASKED_MAX: Final = 16
"""Etcd leases whose remaining time is asked for one record; of others the writer's clock tells."""

_now = clock.now


class Operations(Taking[W], Renewing[W], Waiting[W]):
    """See the module."""

    # -- leaving ------------------------------------------------------------------------------

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
        born = await self.born(until)
        for _ in range(3):
            closing = None
            try:
                mine = await self._held(key, claim, token, born.base, slot, until)
                if mine is None:
                    return Gone()
                if closed_for > 0:
                    lease = await self.grant(seconds(closed_for), until)
                    closing = (closed_for, lease.id, reserve_for or "")
                if await self._give(mine, born, until, closing, slot):
                    return Released()
                # Not as it was remembered: the key says whose it is.
            except LeaseMissing:
                # The history's: it outlived its own.
                self.memory.histories.clear()
                mine = self.memory.mine.get((key, claim))
                if mine is not None:
                    mine.history = await self.history(_KEEP_HISTORY, until)
        raise StoreUnavailable(f"{self.site.where}: etcd leases vanish as soon as they are made")

    async def _held(
        self, key: Key, claim: str, token: int | None, base: int, slot: str | None, until: float
    ) -> Mine | None:
        """What is to be given back; if nothing is, the slot has been."""
        known = self.memory.mine.get((key, claim))
        if token is None:
            return await self._given_up(key, claim, known, slot, until)
        if known is not None and _is(known, token, base):
            return known
        if known is not None and not known.revision:
            self.memory.drop(key, claim)
        mine = await self._stored(key, claim, until)
        if mine is not None and _is(mine, token, base):
            return mine
        if slot is not None:
            await self.call(TXN, self.dialect.undo_slot(key, claim, slot), until)
        return None

    async def _given_up(
        self, key: Key, claim: str, known: Mine | None, slot: str | None, until: float
    ) -> Mine | None:
        """First no take of it can come any more, then it is certain what there is of it."""
        history = await self.history(_KEEP_HISTORY, until)
        body = self.dialect.give_up(key, claim, history, slot, clock.wall())
        reply = await self.call(TXN, body, until)
        entry = entry_of(claim, reply["responses"][1])
        if entry is None:
            self.memory.drop(key, claim)
            return None
        if known is not None and known.revision == entry.created:
            return known
        return mine_of(key, entry, Session(entry.lease, 1, 0.0), 0.0)

    async def _stored(self, key: Key, claim: str, until: float) -> Mine | None:
        """A claim of which this process remembers nothing, as its key says."""
        reply = await self.call(TXN, self.dialect.lookup([key]), until)
        entry = entry_of(claim, reply["responses"][0])
        return entry and mine_of(key, entry, Session(entry.lease, 1, 0.0), 0.0)

    async def _give(
        self,
        mine: Mine,
        born: Born,
        until: float,
        closing: tuple[float, str, str] | None,
        slot: str | None,
    ) -> bool:
        if not mine.past64:
            # Another process took it.
            mine.history = await self.history(_KEEP_HISTORY, until)
            mine.past64 = self.dialect.past64(mine.key, self.memory.place(mine.key))
            self.memory.placed(mine.key)
        body = self.dialect.give(mine, clock.wall(), base=born.base, closing=closing, slot=slot)
        reply = await self.call(TXN, body, until)
        self.memory.drop(mine.key, mine.claim)
        if reply.get(REPEATED) and not reply.get("succeeded"):
            heard_again(Gone(), self.site.where)
        return bool(reply.get("succeeded"))

    # -- fields -------------------------------------------------------------------------------

    async def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        """See Store.put."""
        base = 0
        if isinstance(guard, ByClaim):
            base = await self.base(until)
            mine = self.memory.mine.get((key, guard.claim))
            if mine is None or not _is(mine, guard.token, base):
                mine = await self._stored(key, guard.claim, until)
            if mine is None or not _is(mine, guard.token, base):
                return Stale()
        body = self.dialect.put(key, field, value, guard, base)
        # The second try of a guarded write could meet the first one's value.
        reply = await self.call(TXN, body, until, repeatable=guard is None)
        if not reply.get("succeeded"):
            return Stale()
        return Stored(0 if value is None else revision_of(reply))

    # -- reading ------------------------------------------------------------------------------

    async def read(self, key: Key, until: float) -> Record:
        """See Store.read."""
        reply = await self.call(TXN, self.dialect.read(key), until)
        entries = _all_entries(reply)
        if not entries:
            return Record(key)
        return await self._record(key, entries, reply, until)

    async def _record(self, key: Key, entries: list[Entry], reply: Reply, until: float) -> Record:
        naming, base = self.dialect.naming, await self.base(until)
        lives = await self._lives(entries, until)
        record = record_of(key, naming, entries, base, lives, clock.wall())
        self.memory.saw(key, record.seen, revision_of(reply))
        return record

    async def _lives(self, entries: list[Entry], until: float) -> dict[str, float]:
        asked = {entry.lease for entry in entries if _timed(entry.key)}
        return await self.lives(set(sorted(asked)[:_ASKED_MAX]), until)

    async def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        """See Store.scan."""
        reply = await self.call(TXN, self.dialect.scan(namespace, prefix), until)
        by_key: dict[Key, list[Entry]] = {}
        for entry in _all_entries(reply):
            place = self.dialect.naming.parse(namespace, entry.key)
            if place is not None:
                by_key.setdefault(place[0], []).append(entry)
        every = [entry for entries in by_key.values() for entry in entries]
        base, lives = await self.base(until), await self._lives(every, until)
        wall, naming = clock.wall(), self.dialect.naming
        return tuple(
            record_of(key, naming, by_key[key], base, lives, wall) for key in sorted(by_key)
        )


def _is(mine: Mine, token: int | None, base: int) -> bool:
    """Whether it is known when it was granted, and with this token if one is given."""
    return mine.revision > 0 and token in {None, base + mine.revision}


def _all_entries(reply: Reply) -> list[Entry]:
    return [entry for response in reply.get("responses", ()) for entry in entries_in(response)]


def _timed(key: str) -> bool:
    """A lease or a closing: what ends soon, and what people ask about."""
    return "!r/" not in key
