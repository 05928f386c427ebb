"""Taking a lease: one transaction, unless a slot, a reservation or a repeat needs a second."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Ask, Granted, Holding, Key, Refused, TakeOutcome
from incumbent.stores.etcd.answers import Present, revision_of, seconds, term_of
from incumbent.stores.etcd.cluster import TXN, Cluster
from incumbent.stores.etcd.errors import LeaseMissing, Reborn
from incumbent.stores.etcd.exchange import Reply, W
from incumbent.stores.etcd.incarnation import Born
from incumbent.stores.etcd.memory import Mine
from incumbent.stores.etcd.records import (
    Entry,
    entries_in,
    holding_of,
    mine_of,
    surplus_candidates,
    unpacked,
)
from incumbent.stores.table import CANDIDATES_KEPT

__all__ = ["Taking"]

_ROUNDS: Final = 6

_now = clock.now


@dataclass(slots=True)
class _Try:
    """One take; what a refusal taught is used by the next round."""

    key: Key
    claim: str
    ask: Ask
    until: float
    admitted_by: int | None = None
    own_slot: bool = False
    slot_lease: str = ""


class Taking(Cluster[W]):
    """See the module."""

    async def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        """See Store.take."""
        tried = _Try(key, claim, ask, until)
        for _ in range(_ROUNDS):
            try:
                born = await self.admitted(ask.ttl, until)
                outcome = await self._round(tried, born)
            except LeaseMissing:
                self._distrust(tried)
                continue
            except Reborn:
                tried.slot_lease = ""
                continue
            if outcome is not None:
                await self._tidy(tried, outcome)
                return outcome
        raise StoreUnavailable(f"{self.site.where}: what stands at {key} keeps changing")

    def _distrust(self, tried: _Try) -> None:
        """One of the etcd leases is gone, and the answer does not say which."""
        ask, memory = tried.ask, self.memory
        session = memory.sessions.get(seconds(ask.ttl))
        if session is not None:
            memory.lose(session)
        memory.histories.pop(seconds(ask.keep_record), None)
        memory.standing.pop((tried.key, ask.holder), None)
        tried.slot_lease = ""

    async def _round(self, tried: _Try, born: Born) -> TakeOutcome | None:
        """None: it was not granted, and nothing that stands there says why (any more)."""
        ask, until = tried.ask, tried.until
        wants_slot = ask.slot is not None and not tried.own_slot and not tried.slot_lease
        if wants_slot or not self.has_session(ask.ttl):
            # Most of those who ask are too late, and should leave no etcd lease behind.
            reply = await self.call(TXN, self.dialect.look(tried.key, tried.claim, ask), until)
            found = self.dialect.present(tried.key, ask, reply["responses"])
            outcome = await self._present(tried, born, reply, found) if found.stands else None
            if outcome is not None:
                return await self._stand_by(tried, outcome)
            tried.own_slot = found.own_slot(tried.claim)
            if ask.slot is not None and not tried.own_slot:
                tried.slot_lease = (await self.grant(seconds(ask.slot.keep), until)).id
        session = await self.session(ask.ttl, until)
        if not self.knows(born):
            return None
        history = await self.history(ask.keep_record, until)
        mine = Mine(
            *(tried.key, tried.claim, session, _now() + ask.ttl),
            *(ask.holder, clock.wall(), ask.ttl, ask.meta),
            history=history,
            past64=self.dialect.past64(tried.key, self.memory.place(tried.key)),
        )
        return await self._send(tried, born, mine)

    async def _stand_by(self, tried: _Try, outcome: TakeOutcome) -> TakeOutcome:
        """A refusal that came without a take leaves its candidate all the same."""
        if isinstance(outcome, Refused) and tried.ask.candidacy > 0:
            place = (tried.key, tried.ask.holder)
            lease = (await self.standing(place, tried.ask.candidacy, tried.until)).id
            body = self.dialect.stand_by(tried.key, tried.ask, clock.wall(), lease)
            await self.call(TXN, body, tried.until)
        return outcome

    async def _tidy(self, tried: _Try, outcome: TakeOutcome) -> None:
        """A slot that was not taken needs no etcd lease; left alone it ends by itself."""
        if tried.slot_lease and isinstance(outcome, Refused):
            with suppress(StoreError, LeaseMissing):
                await self.revoke(tried.slot_lease, tried.until)

    async def _send(self, tried: _Try, born: Born, mine: Mine) -> TakeOutcome | None:
        ask, memory, session = tried.ask, self.memory, mine.session
        standing = ""
        if ask.candidacy > 0:
            place = (tried.key, ask.holder)
            standing = (await self.standing(place, ask.candidacy, tried.until)).id
        body = self.dialect.take(
            mine,
            ask,
            born,
            admitted_by=tried.admitted_by,
            own_slot=tried.own_slot,
            slot_lease=tried.slot_lease,
            standing=standing,
        )
        before, proof, sent = memory.mine.get((tried.key, tried.claim)), session.pending, _now()
        # Noted before it is sent: if nobody ever hears of it, it is removed when its time is over.
        memory.note(mine)
        try:
            # A take in doubt is the caller's to repeat, who remembers that there were two.
            reply = await self.decide(born, body, tried.until, repeatable=False)
        except (StoreUnavailable, LeaseMissing):
            self._restore(mine, before)
            raise
        except OutcomeUnknown:
            memory.placed(tried.key)
            raise
        session.confirm(proof, term_of(reply))
        if reply.get("succeeded"):
            memory.placed(tried.key)
            mine.revision = revision_of(reply)
            mine.due = sent + ask.ttl
            mine.surplus = self.dialect.surplus(tried.claim, reply["responses"])
            return _granted(mine, born, sent)
        self._restore(mine, before)
        found = self.dialect.held(ask, reply["responses"])
        if found is None:
            reply = await self.call(
                TXN, self.dialect.look(tried.key, tried.claim, ask), tried.until
            )
            found = self.dialect.present(tried.key, ask, reply["responses"])
            if found.marker != born.value:
                self.memory.disown()
                return None
        return await self._present(tried, born, reply, found)

    def _restore(self, mine: Mine, before: Mine | None) -> None:
        self.memory.drop(mine.key, mine.claim)
        if before is not None and not before.session.gone:
            self.memory.note(before)

    # -- what stands there --------------------------------------------------------------------

    async def _present(
        self, tried: _Try, born: Born, reply: Reply, found: Present
    ) -> TakeOutcome | None:
        self.memory.saw(tried.key, found.seen, revision_of(reply))
        if found.given_up:
            return Refused("closed", seen=found.seen)
        if found.candidates > CANDIDATES_KEPT:
            await self._prune(tried)
        lease = found.lease
        if lease is not None and unpacked(lease.value).get("claim") == tried.claim:
            return await self._same_grant(tried, born, lease)
        return await self._refusal(tried, born, found)

    async def _refusal(self, tried: _Try, born: Born, found: Present) -> Refused | None:
        if found.lease is not None:
            holding = holding_of(found.lease, born.base, {}, clock.wall())
            # When a holder that died is gone its key goes too, and who waits is told of that.
            return Refused("held", (holding,), holding.ttl, found.seen)
        if found.pause is not None:
            return Refused("paused", seen=found.seen)
        # From here on only what really is in the way counts.
        tried.admitted_by = 0
        closing, slots = found.closing, found.slots_of_others(tried.claim)
        if closing is not None:
            reserved_for = unpacked(closing.value).get("reserved_for")
            if reserved_for and reserved_for == tried.ask.holder:
                tried.admitted_by = closing.modified
            else:
                return await self._closed(tried, born, closing, found.seen)
        if slots:
            return await self._closed(tried, born, slots[0], found.seen)
        tried.own_slot = bool(found.slots)
        return None

    async def _closed(self, tried: _Try, born: Born, closing: Entry, seen: str) -> Refused | None:
        fields = unpacked(closing.value)
        left = (await self.lives({closing.lease}, tried.until)).get(closing.lease)
        if left is not None and left <= 0:
            left = 0.5  # it is over, and its key is about to go
        reserved_for = str(fields.get("reserved_for", ""))
        if reserved_for:
            return Refused("reserved", (Holding(reserved_for, 0, left),), left, seen)
        token = int(fields.get("token", born.base + closing.created))
        return Refused("closed", (Holding(str(fields.get("holder", "")), token, left),), left, seen)

    async def _prune(self, tried: _Try) -> None:
        """Of too many candidates those are left out whose time is over first."""
        reply = await self.call(TXN, self.dialect.candidates(tried.key), tried.until)
        surplus = surplus_candidates(entries_in(reply["responses"][0]))
        if surplus:
            await self.call(TXN, self.dialect.remove(surplus), tried.until)

    # -- the same claim again -----------------------------------------------------------------

    async def _same_grant(self, tried: _Try, born: Born, lease: Entry) -> Granted | None:
        """Its token, and the ttl becomes max(remaining, ttl)."""
        fields, ask, memory = unpacked(lease.value), tried.ask, self.memory
        ttl = max(ask.ttl, float(fields.get("ttl", 0.0)))
        session = memory.by_id.get(lease.lease)
        moves = session is None or session.gone or session.ttl < seconds(ttl)
        if session is None or moves:
            session = await self.session(ttl, tried.until)
        elif not session.is_fresh(_now()):
            await self.keep_alive(session, tried.until)
        known = memory.mine.get((tried.key, tried.claim))
        mine = mine_of(tried.key, lease, session, _now() + ttl)
        mine.ttl = ttl
        if known is not None and known.revision == mine.revision:
            mine.due = max(known.ends, _now() + ask.ttl)
            mine.history, mine.surplus = known.history, known.surplus
            mine.past64 = known.past64
        proof, sent = session.pending, _now()
        if moves:
            # If nobody hears of it, the key says with which etcd lease it lives.
            memory.drop(tried.key, tried.claim)
        body = self.dialect.again(mine, ask, born, write=moves)
        reply = await self.decide(born, body, tried.until)
        session.confirm(proof, term_of(reply))
        if not reply.get("succeeded"):
            memory.drop(tried.key, tried.claim)
            return None
        memory.note(mine)
        return _granted(mine, born, sent)


def _granted(mine: Mine, born: Born, sent: float) -> Granted:
    """What is proved of it, counted from before it was asked for."""
    proved = min(mine.session.proved, mine.due) - sent
    return Granted(mine.claim, born.base + mine.revision, proved, born.epoch)
