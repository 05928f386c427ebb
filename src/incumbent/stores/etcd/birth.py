"""Which incarnation of the cluster is asked: learnt from its marker, and watched at every step.

See incarnation for what tells two of them apart. It is looked at when the marker is read, on each
new connection (whatever begins a new incarnation ends all connections to the old one), and by the
revision of each answer. The marker itself is compared in every transaction that grants or proves.
"""

from __future__ import annotations

import json
import re
import uuid
from base64 import b64encode
from collections.abc import Awaitable, Callable
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Final, TypeAlias

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.stores.etcd.dialect import Dialect
from incumbent.stores.etcd.errors import Answered, Broken, Reborn, format_error, restart_error
from incumbent.stores.etcd.exchange import Exchange, Reply, Site, W
from incumbent.stores.etcd.http import Garbled, Reading
from incumbent.stores.etcd.incarnation import (
    RECORD_FORMAT,
    Born,
    Status,
    differs,
    later,
    status_of,
)
from incumbent.stores.etcd.memory import Memory, Noted
from incumbent.stores.etcd.options import Endpoint
from incumbent.stores.etcd.phrases import absent, delete, modified, put, transaction
from incumbent.stores.etcd.records import Entry, entries_in, packed, unpacked
from incumbent.stores.restart import wait_after_restart

__all__ = ["TXN", "Birth"]

TXN: Final = "/v3/kv/txn"
_RANGE: Final = "/v3/kv/range"
_STATUS: Final = "/v3/maintenance/status"
_STARTED: Final = re.compile(rb"^process_start_time_seconds ([0-9.e+]+)$", re.MULTILINE)
_STEP: Final = 1_000_000
"""By how much the base of tokens grows at least, where a clock is behind: for so many writes that
were lost."""

_Ask: TypeAlias = Callable[[str, bytes], Awaitable[Reply]]

_now = clock.now


class Birth(Exchange[W]):
    """See the module."""

    def __init__(self, site: Site, dialect: Dialect, memory: Memory) -> None:
        super().__init__(site)
        self.dialect = dialect
        self.memory = memory
        self._cluster_id = ""

    # -- what a holder may count on -------------------------------------------------------------

    async def born(self, until: float) -> Born:
        """The incarnation of the cluster; whoever comes first to a new one says so."""
        born = self.memory.born
        if born is None:
            born = await self._learn(until)
            if born.base <= self.memory.disowned:
                # Learnt while another thread noticed that it is over.
                raise Reborn(self.site.where)
            self.memory.born = born
        return born

    async def admitted(self, ttl: float, until: float) -> Born:
        """The same, once it is older than a holder from before may believe."""
        born = await self.born(until)
        if not self.memory.noted.covers(ttl, born.value):
            await self._note_ttl(born, ttl, until)
        wait = wait_after_restart(self.site.restart_wait, ttl, self.memory.longest)
        early = born.at + wait - _now()
        if early > 0:
            raise restart_error(self.site.where, _now() - born.at, early)
        return born

    async def base(self, until: float) -> int:
        """What a revision is added to; reading creates nothing."""
        if self.memory.born is not None:
            return self.memory.born.base
        found = await self.marker(until)
        return int(self._fields(found).get("base", 0)) if found else 0

    async def tells_no_status(self, endpoint: Endpoint, until: float) -> bool:
        """Whether this member would not show that it was restored."""
        return await self._status(partial(self._post, endpoint, until)) is None

    async def waits_for(self, endpoint: Endpoint, ttl: float, until: float) -> float | None:
        """Seconds until it grants, as far as the marker says; None: it is of another incarnation.

        Writes nothing.
        """
        found = await self.marker(until)
        if found is None:
            return 0.0
        wall, _ = await self._ages(endpoint, until)
        born = _born(found, self._fields(found), wall)
        if await self._is_other(born, partial(self._post, endpoint, until)):
            return None
        wait = wait_after_restart(self.site.restart_wait, ttl, self.memory.longest)
        return max(0.0, born.at + wait - _now())

    async def marker_changed(self, until: float) -> bool:
        """Whether this is another incarnation than the one that is known."""
        known = self.memory.born
        found = await self.marker(until)
        if known is not None and found and _value(found) == known.value:
            return False
        # Another thread may have learnt of a newer one meanwhile.
        if known is not None and self.memory.born is known:
            self.memory.disown()
        return True

    # -- the marker -----------------------------------------------------------------------------

    async def marker(self, until: float) -> Entry | None:
        """The marker by a linearizable read, and what is known of ttls along with it."""
        naming = self.dialect.naming
        asked = {"key": naming.born64, "range_end": naming.born_end64}
        reply = await self.call(_RANGE, json.dumps(asked).encode(), until)
        self._cluster_id = str(reply["header"].get("cluster_id", ""))
        found, noted, memory = None, Noted(), self.memory
        for entry in entries_in(reply):
            if entry.key == self._where():
                found = entry
                continue
            ttl = unpacked(entry.value).get("ttl")
            noted = Noted(ttl=ttl if isinstance(ttl, int | float) else 0.0, modified=entry.modified)
        memory.noted = noted._replace(marker=_value(found) if found else "")
        memory.longest = max(memory.longest, noted.ttl)
        return found

    def _where(self) -> str:
        return f"{self.dialect.naming.prefix}!born"

    def _fields(self, entry: Entry) -> Reply:
        """Raises StoreUnavailable, finally, for the marker of another version."""
        fields = unpacked(entry.value)
        if fields.get("format") != RECORD_FORMAT:
            raise format_error(fields.get("format"), self.site.where, self._where(), RECORD_FORMAT)
        return fields

    async def _learn(self, until: float) -> Born:
        for _ in range(3):
            found = await self.marker(until)
            fields = self._fields(found) if found else {}
            endpoint = self.site.endpoints.best(_now())
            wall, uptime = await self._ages(endpoint, until)
            if found or self.memory.disowned >= 0:
                # Where there was one before, nobody knows when it ended: servers may have run long
                # before they were given its address.
                uptime = 0.0
            if found:
                born = _born(found, fields, wall)
                if born.base > self.memory.disowned and not await self._is_other(
                    born, partial(self._post, endpoint, until)
                ):
                    return born
            status = await self._status(partial(self._post, endpoint, until))
            await self._mark(found, status, wall - uptime, until)
        raise StoreUnavailable(f"{self.site.where}: its marker {self._where()} keeps changing")

    async def _mark(
        self, found: Entry | None, status: Status | None, at: float, until: float
    ) -> None:
        """Say that this incarnation began, unless somebody else just did."""
        key = self.dialect.naming.born64
        # Also above what only this process remembers, where a clock is behind.
        before = max(int(self._fields(found)["base"]) if found else 0, self.memory.disowned)
        base = max(int(clock.wall() * 1_000_000), before) + (_STEP if before else 0)
        value = packed(
            format=RECORD_FORMAT,
            epoch=uuid.uuid4().hex,
            base=base,
            cluster=self._cluster_id,
            at=at,
            term=status.term if status else 0,
            applied=status.applied if status else 0,
        )
        compare = modified(key, found.modified) if found else absent(key)
        await self.call(TXN, transaction([compare], [put(key, value)]), until)

    async def _note_ttl(self, born: Born, ttl: float, until: float) -> None:
        """Have it known that holders may believe for so long, before one does.

        Raises Reborn, or at `until` StoreUnavailable.
        """
        key = self.dialect.naming.ttl64
        while not self.memory.noted.covers(ttl, born.value):
            if await self.marker_changed(until) or not self.knows(born):
                raise Reborn(self.site.where)
            noted = self.memory.noted
            if noted.ttl < ttl:
                # Another may note a longer one now: then nothing is written, and it is read again.
                unchanged = [self.dialect.still(born), modified(key, noted.modified)]
                body = transaction(unchanged, [put(key, packed(ttl=ttl))])
                await self.call(TXN, body, until)

    async def _ages(self, endpoint: Endpoint, until: float) -> tuple[float, float]:
        """The wall clock of a member, and for how many seconds it has run (0.0: nobody knows)."""
        try:
            reading = await self.get(endpoint, "/metrics", until)
        except (StoreError, Broken, Garbled):
            return clock.wall(), 0.0
        wall = _date(reading)
        started = _STARTED.search(reading.body) if reading.status == 200 else None
        return wall, max(0.0, wall - float(started[1])) if started else 0.0

    # -- whether it is still the same -----------------------------------------------------------

    async def call(self, path: str, body: bytes, until: float, *, repeatable: bool = True) -> Reply:
        """See Exchange.call. What an earlier state of the cluster has answered proves nothing."""
        memory = self.memory
        over, floor = memory.over, memory.floor
        reply = await super().call(path, body, until, repeatable=repeatable)
        if path in {TXN, _RANGE}:
            header = reply["header"]
            cluster, revision = str(header.get("cluster_id", "")), int(header.get("revision", 0))
            if memory.over != over:
                # It may be late, and of the incarnation before.
                raise self._not_the_same()
            if not memory.heard(cluster, revision, floor):
                memory.disown()
                raise self._not_the_same()
        return reply

    async def decide(
        self, born: Born, body: bytes, until: float, *, repeatable: bool = True
    ) -> Reply:
        """A transaction that grants or proves, if `born` is still known when it is answered."""
        reply = await self.call(TXN, body, until, repeatable=repeatable)
        if not self.knows(born):
            # Noticed meanwhile, on another connection.
            raise self._not_the_same()
        return reply

    def knows(self, born: Born) -> bool:
        """Whether `born` is still the incarnation that is known."""
        known = self.memory.born
        return known is not None and known.value == born.value

    def _not_the_same(self) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"{self.site.where} turned out to be another incarnation of the cluster: it was"
            " restored, put back, or lost its data"
        )

    async def _join(self, endpoint: Endpoint, until: float) -> W:
        """A new connection, to the incarnation that is known. Raises Reborn."""
        wire = await super()._join(endpoint, until)
        self.memory.dialled += 1
        born = self.memory.born
        if born is None:
            return wire
        try:
            other = await self._is_other(born, partial(self._on, endpoint, wire, until))
        except (Broken, Garbled) as error:
            wire.close()
            raise Broken(str(error), sent=False) from error
        except BaseException:
            wire.close()
            raise
        if other:
            wire.close()
            if self.knows(born):
                self.memory.disown()
            raise Reborn(self.site.where)
        return wire

    async def _is_other(self, born: Born, ask: _Ask) -> bool:
        """Whether the member that `ask` asks is of another incarnation than `born`."""
        status = await self._status(ask)
        if status is not None and differs(born, self.memory.met, status):
            # One that starts, or catches up, shows old numbers for a moment. After a proposal,
            # which changes nothing, it has carried out all that was before. With a token of another
            # incarnation it would wait for the entry of the log that the token names.
            self.site.token = ""
            try:
                await ask(TXN, transaction([], [delete(self.dialect.naming.nothing64)]))
            except Answered as error:
                raise self._refused(error) from error
            status = await self._status(ask)
            if status is not None and differs(born, self.memory.met, status):
                return True
        if status is not None:
            self.memory.met = later(self.memory.met, status)
        return False

    async def _status(self, ask: _Ask) -> Status | None:
        """What a member has carried out; None if it never tells."""
        try:
            return status_of(await ask(_STATUS, b"{}"))
        except Answered as error:
            if error.never:
                return None
            raise self._refused(error) from error

    def _refused(self, error: Answered) -> StoreUnavailable:
        """A look, before anything else was sent."""
        self._wants_login(error)
        return StoreUnavailable(f"{self.site.where} refuses a look: {error.text}")

    async def _on(self, endpoint: Endpoint, wire: W, until: float, path: str, body: bytes) -> Reply:
        await self._log_in(endpoint, until, wire)
        request = self._request("POST", path, endpoint, body)
        return self._read(await self.ask(endpoint, wire, request, until))

    async def _post(self, endpoint: Endpoint, until: float, path: str, body: bytes) -> Reply:
        try:
            wire = await self._ready(endpoint, until)
            request = self._request("POST", path, endpoint, body)
            return self._read(await self.exchange(endpoint, wire, request, until))
        except (Broken, Garbled) as error:
            raise StoreUnavailable(f"{self.site.where} cannot be reached: {error}") from error


def _born(entry: Entry, fields: Reply, wall: float) -> Born:
    age = max(0.0, wall - float(fields.get("at", wall)))
    return Born(
        str(fields["epoch"]),
        int(fields["base"]),
        _value(entry),
        _now() - age,
        str(fields.get("cluster", "")),
        int(fields.get("term", 0)),
        int(fields.get("applied", 0)),
        entry.modified,
    )


def _value(entry: Entry) -> str:
    return b64encode(entry.value).decode()


def _date(reading: Reading) -> float:
    try:
        return parsedate_to_datetime(reading.header(b"date").decode()).timestamp()
    except (ValueError, TypeError):
        return clock.wall()
