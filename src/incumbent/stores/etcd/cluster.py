"""What every operation needs of the cluster: its incarnation and etcd leases, as coroutines."""

from __future__ import annotations

import json
import re
import uuid
from base64 import b64encode
from contextlib import suppress
from email.utils import parsedate_to_datetime
from hashlib import sha256
from typing import Final

from incumbent import clock
from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import Key
from incumbent.stores.etcd.dialect import Dialect, seconds, term_of
from incumbent.stores.etcd.errors import Broken, LeaseExists, restart_error
from incumbent.stores.etcd.exchange import Exchange, Site, W
from incumbent.stores.etcd.http import Garbled, Reading
from incumbent.stores.etcd.memory import Born, Memory, Mine, Session
from incumbent.stores.etcd.phrases import absent, modified, put, transaction
from incumbent.stores.etcd.records import Entry, entries_in, entry_of, packed, unpacked

__all__ = ["TXN", "Cluster"]

TXN: Final = "/v3/kv/txn"
_RANGE: Final = "/v3/kv/range"
_STARTED: Final = re.compile(rb"^process_start_time_seconds ([0-9.e+]+)$", re.MULTILINE)
_STANDING_MAX: Final = 4096

_now = clock.now


class Cluster(Exchange[W]):
    """See the module."""

    def __init__(self, site: Site, dialect: Dialect, memory: Memory) -> None:
        super().__init__(site)
        self.dialect = dialect
        self.memory = memory
        self._cluster_id = ""

    # -- the incarnation ----------------------------------------------------------------------

    async def born(self, until: float) -> Born:
        """The incarnation of the cluster; whoever comes first to a new one says so."""
        born = self.memory.born
        if born is None:
            born = self.memory.born = await self._learn(until)
        return born

    async def admitted(self, ttl: float, until: float) -> Born:
        """The same, once it is older than a holder from before may believe."""
        born = await self.born(until)
        wait = ttl if self.site.restart_wait is None else self.site.restart_wait
        early = born.at + wait - _now()
        if early > 0:
            raise restart_error(self.site.where, _now() - born.at, early)
        return born

    async def base(self, until: float) -> int:
        """What a revision is added to; reading creates nothing."""
        if self.memory.born is not None:
            return self.memory.born.base
        found = await self._marker(until)
        return int(unpacked(found[0].value).get("base", 0)) if found else 0

    async def base_afresh(self, until: float) -> None:
        """One linearizable read."""
        await self._marker(until)

    async def _marker(self, until: float) -> list[Entry]:
        key = self.dialect.naming.born64
        reply = await self.call(_RANGE, json.dumps({"key": key}).encode(), until)
        self._cluster_id = str(reply["header"].get("cluster_id", ""))
        return entries_in(reply)

    async def _learn(self, until: float) -> Born:
        for _ in range(3):
            found = await self._marker(until)
            at, uptime = await self._ages(until)
            if found and (said := _born(found[0], self._cluster_id, at)) is not None:
                return said
            await self._mark(found, at, uptime, until)
        raise StoreUnavailable(f"{self.site.where}: its marker {self._where()} keeps changing")

    def _where(self) -> str:
        return f"{self.dialect.naming.prefix}!born"

    async def _mark(self, found: list[Entry], at: float, uptime: float, until: float) -> None:
        """Say that this incarnation began, unless somebody else just did."""
        key = self.dialect.naming.born64
        base = int(clock.wall() * 1_000_000)
        if found:
            base = max(base, int(unpacked(found[0].value).get("base", 0)) + 1)
        value = packed(epoch=uuid.uuid4().hex, base=base, cluster=self._cluster_id, at=at - uptime)
        compare = modified(key, found[0].modified) if found else absent(key)
        await self.call(TXN, transaction([compare], [put(key, value)]), until)

    async def _ages(self, until: float) -> tuple[float, float]:
        """The wall clock of a member, and for how many seconds it has run (0.0: nobody knows)."""
        endpoint = self.site.endpoints.best(_now())
        try:
            reading = await self.get(endpoint, "/metrics", until)
        except (StoreError, Broken, Garbled):
            return clock.wall(), 0.0
        wall = _date(reading)
        started = _STARTED.search(reading.body) if reading.status == 200 else None
        return wall, max(0.0, wall - float(started[1])) if started else 0.0

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
        session = await self.grant(whole, until)
        # An etcd lease of this incarnation: in the next one nothing can be attached to it, so a
        # take need not ask whether the cluster is still the one whose tokens it counts.
        await self.marker_changed(until)
        return self.memory.new_session(session)

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

    async def marker_changed(self, until: float) -> bool:
        """Whether this is another incarnation than the one that is known."""
        known = self.memory.born
        found = await self._marker(until)
        if known is not None and found and _value(found[0]) == known.value:
            return False
        self.memory.born = None
        return True


def _born(entry: Entry, cluster_id: str, at: float) -> Born | None:
    fields = unpacked(entry.value)
    if fields.get("cluster") != cluster_id or not isinstance(fields.get("base"), int):
        # Restored from a snapshot, or copied: its revisions may have begun again.
        return None
    age = max(0.0, at - float(fields.get("at", at)))
    return Born(str(fields["epoch"]), fields["base"], _value(entry), _now() - age)


def _value(entry: Entry) -> str:
    return b64encode(entry.value).decode()


def _date(reading: Reading) -> float:
    try:
        return parsedate_to_datetime(reading.header(b"date").decode()).timestamp()
    except (ValueError, TypeError):
        return clock.wall()
