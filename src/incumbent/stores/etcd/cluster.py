"""What every operation needs of the cluster: its etcd leases, as coroutines."""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from typing import Final

from incumbent import clock
from incumbent.model import Key
from incumbent.stores.etcd.answers import seconds, term_of
from incumbent.stores.etcd.birth import TXN, Birth
from incumbent.stores.etcd.errors import LeaseExists
from incumbent.stores.etcd.exchange import W
from incumbent.stores.etcd.memory import Mine, Session
from incumbent.stores.etcd.records import entry_of

__all__ = ["TXN", "Cluster"]

_STANDING_MAX: Final = 4096

_now = clock.now


class Cluster(Birth[W]):
    """See the module."""

    # -- etcd leases --------------------------------------------------------------------------

    async def session(self, ttl: float, until: float) -> Session:
        """An etcd lease that is shared by all leases of this ttl, with enough of it left."""
        whole = seconds(ttl)
        session = self.memory.sessions.get(whole)
        now = _now()
        if session is not None and session.is_fresh(now):
            return session
        if session is not None and session.proved > now:
            await self.keep_alive(session, until)
            if not session.gone:
                await self.sweep(session, until)
                return session
        return self.memory.new_session(await self.grant(whole, until))

    async def history(self, keep: float, until: float) -> str:
        """The etcd lease of all that is kept for people, shared by the whole fleet.

        Its id says what it is for: a new one every `keep` seconds, each living for twice as long.
        """
        whole = seconds(keep)
        period = int(clock.wall() // whole)
        known = self.memory.histories.get(whole)
        if known is not None and known[1] == period:
            return known[0]
        text = f"{self.dialect.naming.prefix}!h/{whole}/{period}"
        lease = int.from_bytes(sha256(text.encode()).digest()[:8]) >> 2 | 1
        body = b'{"TTL":"%d","ID":"%d"}' % (2 * whole, lease)
        with suppress(LeaseExists):
            await self.call("/v3/lease/grant", body, until)
        self.memory.histories[whole] = (str(lease), period)
        return str(lease)

    def has_session(self, ttl: float) -> bool:
        """Whether one is at hand, so that a try that loses leaves no new one behind."""
        session = self.memory.sessions.get(seconds(ttl))
        return session is not None and session.proved > _now()

    async def grant(self, whole: int, until: float) -> Session:
        """A new etcd lease. It went through the cluster's log, so it is proved at once."""
        sent = _now()
        reply = await self.call("/v3/lease/grant", b'{"TTL":"%d"}' % whole, until)
        return Session(str(reply["ID"]), whole, sent + int(reply.get("TTL", whole)))

    async def revoke(self, lease: str, until: float) -> None:
        """End an etcd lease, and all that is attached."""
        await self.call("/v3/lease/revoke", b'{"ID":"%b"}' % lease.encode(), until)

    async def keep_alive(self, session: Session, until: float) -> None:
        """Ask for the whole ttl again; see memory for when that is proved."""
        sent = _now()
        reply = await self.call("/v3/lease/keepalive", b'{"ID":"%b"}' % session.id.encode(), until)
        result = reply.get("result", reply)
        session.answered(sent, int(result.get("TTL", 0)), term_of(result))
        if session.gone:
            self.memory.lose(session)

    async def sweep(self, session: Session, until: float) -> None:
        """Remove the claims of a living session whose own time ran out."""
        overdue = self.memory.overdue(session, _now())
        for start in range(0, len(overdue), 50):
            batch = await self._certain(overdue[start : start + 50], until)
            if not batch:
                continue
            await self.call(TXN, self.dialect.remove_leases(batch), until)
            for mine in batch:
                if self.memory.mine.get((mine.key, mine.claim)) is mine:
                    self.memory.drop(mine.key, mine.claim)

    async def _certain(self, batch: list[Mine], until: float) -> list[Mine]:
        """Those of which there is a key, with its revision, so that no later grant is removed."""
        unsure = [mine for mine in batch if not mine.revision]
        if unsure:
            body = self.dialect.lookup([mine.key for mine in unsure])
            reply = await self.call(TXN, body, until)
            for mine, response in zip(unsure, reply["responses"], strict=True):
                entry = entry_of(mine.claim, response)
                if entry is not None:
                    mine.revision = entry.created
                if not mine.revision and self.memory.mine.get((mine.key, mine.claim)) is mine:
                    self.memory.drop(mine.key, mine.claim)
        # Another take of a claim, noted since, is not overdue: what it is granted is newer.
        known = self.memory.mine
        return [it for it in batch if it.revision and known.get((it.key, it.claim)) is it]

    async def standing(self, place: tuple[Key, str], lasts: float, until: float) -> Session:
        """The etcd lease of a holder's candidacy; its next try uses the same one again."""
        standing = self.memory.standing
        session = standing.get(place)
        if session is not None and session.ttl == seconds(lasts):
            if session.is_fresh(_now()):
                return session
            if session.proved > _now():
                await self.keep_alive(session, until)
                if not session.gone:
                    return session
        if len(standing) >= _STANDING_MAX:
            standing.clear()
        session = standing[place] = await self.grant(seconds(lasts), until)
        return session

    async def lives(self, leases: set[str], until: float) -> dict[str, float]:
        """Seconds that are left of etcd leases."""
        found = {}
        for lease in leases - {"0"}:
            body = b'{"ID":"%b"}' % lease.encode()
            reply = await self.call("/v3/lease/timetolive", body, until)
            left, most = int(reply.get("TTL", 0)), int(reply.get("grantedTTL", 0))
            # Whole seconds, rounded down: one that is not over has up to another second.
            found[lease] = float(min(left + 1, most)) if left >= 0 else 0.0
        return found
