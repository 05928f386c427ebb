"""Renewing: a keep-alive for each etcd lease, then proof that each key is there.

The proof is one transaction of comparisons for many leases: all there, and no switch set. Only
if that fails each is asked for apart. It comes after the keep-alive, so that it also proves that
the member which answered the keep-alive was the leader still (see memory).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from incumbent import clock
from incumbent.errors import OutcomeUnknown
from incumbent.model import Batch, Gone, Key, Renewal, Renewed, RenewOutcome
from incumbent.stores.etcd.answers import as_of, seconds, term_of
from incumbent.stores.etcd.cluster import TXN, Cluster
from incumbent.stores.etcd.dialect import BATCH
from incumbent.stores.etcd.errors import LeaseMissing
from incumbent.stores.etcd.exchange import W
from incumbent.stores.etcd.incarnation import Born
from incumbent.stores.etcd.memory import Mine, Proof, Session
from incumbent.stores.etcd.prepared import Prepared, prepare
from incumbent.stores.etcd.records import entries_in, entry_of, mine_of, unpacked
from incumbent.stores.notices import notices_for

__all__ = ["Renewing"]

_EACH: Final = 50
"""Transactions within one."""
_RENEWED: Final = Renewed()

_now = clock.now


@dataclass(slots=True)
class _Item:
    """One renewal on its way. `mine` is what the key is to be, `write` whether it must be written.

    `lease`: the etcd lease that it is attached to before; `outcome` None: not known yet.
    """

    renewal: Renewal
    mine: Mine | None = None
    write: bool = False
    lease: str = ""
    outcome: RenewOutcome | None = None


class Renewing(Cluster[W]):
    """See the module."""

    async def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        """See Store.renew."""
        if not renewals:
            return []
        if not isinstance(renewals, Batch):
            return [item.outcome or Gone() for item in await self._each(renewals, until)]
        prepared = renewals.prepared
        if isinstance(prepared, Prepared) and await self._again(prepared, until):
            return [_RENEWED] * len(renewals)
        items = await self._each(renewals, until)
        renewals.prepared = self._prepare(items)
        return [item.outcome or Gone() for item in items]

    # -- the same again -----------------------------------------------------------------------

    def _prepare(self, items: list[_Item]) -> Prepared | None:
        """What sends the same renewals again, if all of it went as usual."""
        mines, born, ttl = [], self.memory.born, items[0].renewal.ttl
        for item in items:
            mine, renewal = item.mine, item.renewal
            if mine is None or item.outcome != _RENEWED or renewal.ttl != ttl:
                return None
            if born is None or renewal.epoch != born.epoch:
                return None
            mines.append(mine)
        return prepare(self.memory, self.dialect, mines, ttl)

    async def _again(self, prepared: Prepared, until: float) -> bool:
        """Whether all of them are renewed; False: they have to be looked at one by one."""
        session, sent = prepared.session, _now()
        if not prepared.holds(self.memory, sent):
            return False
        # Also where no answer comes: what the store may keep is not removed as overdue.
        prepared.extend(sent)
        await self.keep_alive(session, until)
        if not prepared.holds(self.memory, sent):
            return False
        proof, current = session.pending, None
        for look in prepared.looks:
            if current is not None and look.as_of == current:
                # Nothing at all has changed in the cluster since.
                continue
            reply = await self.decide(prepared.born, look.body, until)
            if not reply.get("succeeded") or not session.confirm(proof, term_of(reply)):
                return False
            look.as_of = as_of(reply, self.memory.dialled)
            current = current or look.as_of
        await self.sweep(session, until)
        return True

    # -- one by one ---------------------------------------------------------------------------

    async def _each(self, renewals: Sequence[Renewal], until: float) -> list[_Item]:
        born, now = await self.born(until), _now()
        items = [self._known(renewal, born, now) for renewal in renewals]
        # Twice: an etcd lease that turns out to be gone, or a new leader, asks for another look.
        for _ in range(3):
            await self._adopt(items, born, until)
            if await self._extend(items, born, until):
                await self._reasoned(items, until)
                return items
        raise OutcomeUnknown(
            f"{self.site.where}: its leader changed while leases were renewed; nothing is proved"
        )

    async def _reasoned(self, items: list[_Item], until: float) -> None:
        """What is gone is so for a reason of its own if the cluster lost its data."""
        gone = [item for item in items if item.outcome is None or item.outcome == Gone()]
        if gone and await self.marker_changed(until):
            for item in gone:
                item.outcome = Gone("store_restarted")

    def _known(self, renewal: Renewal, born: Born, now: float) -> _Item:
        if renewal.epoch != born.epoch:
            return _Item(renewal, outcome=Gone("store_restarted"))
        mine = self.memory.mine.get((renewal.key, renewal.claim))
        if mine is None or not mine.revision or mine.session.gone:
            return _Item(renewal)
        if born.base + mine.revision != renewal.token or mine.ends <= now:
            return _Item(renewal, outcome=Gone())
        return _Item(renewal, mine)

    async def _adopt(self, items: list[_Item], born: Born, until: float) -> None:
        """Leases of which nothing is remembered are what their keys say."""
        unknown = [item for item in items if item.mine is None and item.outcome is None]
        for start in range(0, len(unknown), BATCH):
            batch = unknown[start : start + BATCH]
            body = self.dialect.lookup([item.renewal.key for item in batch])
            reply = await self.call(TXN, body, until)
            for item, response in zip(batch, reply["responses"], strict=True):
                self._adopt_one(item, born, response)

    def _adopt_one(self, item: _Item, born: Born, response: dict[str, Any]) -> None:
        renewal, memory = item.renewal, self.memory
        entry = entry_of(renewal.claim, response)
        if entry is None or born.base + entry.created != renewal.token:
            item.outcome = Gone()
            return
        ttl = float(unpacked(entry.value).get("ttl", renewal.ttl))
        session = memory.by_id.get(entry.lease)
        if session is None:
            session = memory.by_id[entry.lease] = Session(entry.lease, seconds(ttl), 0.0)
        item.mine = mine_of(renewal.key, entry, session, _now() + renewal.ttl)
        memory.note(item.mine)

    async def _extend(self, items: list[_Item], born: Born, until: float) -> bool:
        """One round; False: something changed meanwhile, and another round is needed."""
        sent = _now()
        await self._choose_sessions(items, until)
        waiting = [item for item in items if item.mine is not None and item.outcome is None]
        sessions = {item.mine.session for item in waiting if item.mine is not None}
        for item in waiting:
            if item.mine is not None:
                # Also where no answer comes: what the store may keep is not removed as overdue.
                item.mine.due = max(item.mine.ends, sent + item.renewal.ttl)
        for session in sessions:
            await self.keep_alive(session, until)
        if any(item.mine and item.mine.session.ttl < item.renewal.ttl for item in waiting):
            return False
        if any(session.gone for session in sessions):
            for item in waiting:
                if item.mine is not None and item.mine.session.gone:
                    item.mine, item.write, item.lease = None, False, ""
            return False
        try:
            proved = await self._verify(waiting, born, until)
        except LeaseMissing:
            return False
        for session in sessions:
            await self.sweep(session, until)
        return proved

    async def _choose_sessions(self, items: list[_Item], until: float) -> None:
        """A longer ttl needs another etcd lease, and new metadata must be written."""
        for item in items:
            mine, renewal = item.mine, item.renewal
            if mine is None or item.outcome is not None:
                continue
            item.lease = item.lease or mine.session.id
            if mine.session.ttl < renewal.ttl:
                session = await self.session(renewal.ttl, until)
                item.mine = mine = _changed(mine, session=session, ttl=renewal.ttl)
                item.write = True
            if renewal.meta is not None and renewal.meta != mine.meta:
                item.mine = _changed(mine, meta=renewal.meta)
                item.write = True

    async def _verify(self, waiting: list[_Item], born: Born, until: float) -> bool:
        """Whether all of it is proved. Sets the outcomes."""
        quiet = [item for item in waiting if not item.write]
        each = [item for item in waiting if item.write]
        proved = True
        for start in range(0, len(quiet), BATCH):
            loud = await self._quiet(quiet[start : start + BATCH], born, until)
            proved = proved and loud is not None
            each += loud or []
        for batch in _apart(each):
            proved = await self._ask_each(batch, born, until) and proved
        if not proved:
            for item in waiting:
                if isinstance(item.outcome, Renewed):
                    item.outcome = None
        return proved

    async def _quiet(self, batch: list[_Item], born: Born, until: float) -> list[_Item] | None:
        """Those that have to be asked for each apart; None: not proved."""
        answer = await self._all_quiet(batch, born, until)
        if answer is not None:
            return [] if answer else None
        if len(batch) <= BATCH // 2:
            return batch
        # A switch of any name in the namespace tells no more than that.
        loud: list[_Item] = []
        for start in range(0, len(batch), BATCH // 2):
            some = await self._quiet(batch[start : start + BATCH // 2], born, until)
            if some is None:
                return None
            loud += some
        return loud

    async def _all_quiet(self, batch: list[_Item], born: Born, until: float) -> bool | None:
        """Whether they are proved; None: one is gone, or somebody set a switch."""
        mines = [item.mine for item in batch if item.mine is not None]
        proofs = {mine.session: mine.session.pending for mine in mines}
        newest = max(mines, key=lambda mine: mine.revision)
        reply = await self.decide(born, self.dialect.all_quiet(mines, born, newest), until)
        if not reply.get("succeeded"):
            return None
        for item in batch:
            item.outcome = _RENEWED
        term = term_of(reply)
        return _confirmed(proofs, term)

    async def _ask_each(self, batch: list[_Item], born: Born, until: float) -> bool:
        asked = [(it.mine, it.write, it.lease) for it in batch if it.mine is not None]
        for mine, write, _ in asked:
            if write:
                # If nobody hears of it, the key says with which etcd lease it lives.
                self.memory.drop(mine.key, mine.claim)
        proofs = {mine.session: mine.session.pending for mine, _, _ in asked}
        reply = await self.decide(born, self.dialect.each(asked, born), until)
        if not reply.get("succeeded"):
            # Another incarnation, as the marker says: see _reasoned.
            for item in batch:
                item.outcome = Gone()
            return True
        for item, response in zip(batch, reply["responses"], strict=True):
            self._answered(item, response["response_txn"])
        term = term_of(reply)
        return _confirmed(proofs, term)

    def _answered(self, item: _Item, found: dict[str, Any]) -> None:
        mine = item.mine
        if mine is None:
            return
        if not found.get("succeeded"):
            item.outcome = Gone()
            self.memory.drop(mine.key, mine.claim)
            return
        if item.write:
            self.memory.note(mine)
            item.write, item.lease = False, mine.session.id
        pause, resign = (entries_in(response) for response in found["responses"][:2])
        item.outcome = Renewed(
            notices_for(
                item.renewal.token,
                pause[0].value if pause else None,
                resign[0].value if resign else None,
            )
        )


def _apart(items: Sequence[_Item]) -> list[list[_Item]]:
    """As many as fit into one transaction, none of which may write a key twice.

    An old claim of ours on a name may still be remembered beside the new one.
    """
    rounds: list[list[_Item]] = []
    met: Counter[Key] = Counter()
    for item in items:
        key = item.renewal.key
        if met[key] == len(rounds):
            rounds.append([])
        rounds[met[key]].append(item)
        met[key] += 1
    return [some[at : at + _EACH] for some in rounds for at in range(0, len(some), _EACH)]


def _changed(mine: Mine, **fields: Any) -> Mine:
    return replace(mine, due=mine.ends, together=None, **fields)


def _confirmed(proofs: dict[Session, Proof | None], term: str) -> bool:
    confirmed = [session.confirm(proof, term) for session, proof in proofs.items()]
    return all(confirmed)
