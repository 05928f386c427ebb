"""Which incarnation of the cluster is asked: learnt from its marker, and watched at every step.

See incarnation for what tells two of them apart. It is looked at when the marker is read, on each
new connection (whatever begins a new incarnation ends all connections to the old one), and by the
revision of each answer. The marker itself is compared in every transaction that grants or proves.
"""

from __future__ import annotations

import re
import uuid
from email.utils import parsedate_to_datetime
from typing import Final

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.stores.etcd.errors import Answered, Reborn, format_error, restart_error
from incumbent.stores.etcd.http import Reading
from incumbent.stores.etcd.incarnation import Incarnation, Status, differs, later, status_of
from incumbent.stores.etcd.records import RECORD_FORMAT, Entry, entries_in, number_in, packed
from incumbent.stores.etcd.requests import METRICS, Reply, Request, Requests, Steps
from incumbent.stores.etcd.sessions import Memory, NotedTtl
from incumbent.stores.etcd.site import Site
from incumbent.stores.restart import wait_after_restart
from incumbent.stores.url import Endpoint

__all__ = ["Markers"]

_STARTED: Final = re.compile(rb"^process_start_time_seconds ([0-9.e+]+)$", re.MULTILINE)
_STEP: Final = 1_000_000
"""By how much the base of tokens grows at least, where a clock is behind: for so many writes that
were lost."""

_now = clock.now


class Markers:
    """Programs about the marker, and what an answer says of it."""

    def __init__(self, site: Site, requests: Requests, memory: Memory) -> None:
        self.site = site
        self.requests = requests
        self.memory = memory
        self.place = f"{requests.naming.prefix}!born"
        self._cluster_id = ""

    # -- what a holder may count on -------------------------------------------------------------

    def identify(self) -> Steps[Incarnation]:
        """The incarnation of the cluster; the first process to meet a new one writes its marker."""
        known = self.memory.incarnation
        if known is None:
            known = yield from self._learn()
            if known.base <= self.memory.disowned:
                # Learnt while another thread noticed that it is over.
                raise Reborn(self.site.where)
            self.memory.incarnation = known
        return known

    def admit(self, ttl: float) -> Steps[Incarnation]:
        """The same, once it is older than a holder from before may believe."""
        known = yield from self.identify()
        if not self.memory.noted.covers(ttl, known.value):
            yield from self._note_ttl(known, ttl)
        early = self._grants_at(known, ttl) - _now()
        if early > 0:
            raise restart_error(self.site.where, _now() - known.at, early)
        return known

    def _grants_at(self, known: Incarnation, ttl: float) -> float:
        return known.at + wait_after_restart(self.site.restart_wait, ttl, self.memory.longest)

    def base(self) -> Steps[int]:
        """The number to which a revision is added for a token; reading creates no marker."""
        if self.memory.incarnation is not None:
            return self.memory.incarnation.base
        found = yield from self.read()
        return int(self._fields(found).get("base", 0)) if found else 0

    def waits_for(self, endpoint: Endpoint, ttl: float) -> Steps[float | None]:
        """Seconds until it grants, as far as the marker says; None: it is of another incarnation.

        Writes nothing.
        """
        found = yield from self.read()
        if found is None:
            return 0.0
        wall, _ = yield from self._ages(endpoint)
        known = _incarnation_of(found, self._fields(found), wall)
        if (yield from self.is_other(known, endpoint)):
            return None
        return max(0.0, self._grants_at(known, ttl) - _now())

    def changed(self) -> Steps[bool]:
        """Whether this is another incarnation than the one that is known."""
        known = self.memory.incarnation
        found = yield from self.read()
        if known is not None and found and found.value64 == known.value:
            return False
        # Another thread may have learnt of a newer one meanwhile.
        if known is not None and self.memory.incarnation is known:
            self.memory.disown()
        return True

    # -- the marker -----------------------------------------------------------------------------

    def read(self) -> Steps[Entry | None]:
        """The marker; notes the longest ttl that stands beside it."""
        reply = yield self.requests.marker()
        self._cluster_id = str(reply["header"].get("cluster_id", ""))
        found, noted, memory = None, NotedTtl(), self.memory
        for entry in entries_in(reply):
            if entry.key == self.place:
                found = entry
            else:
                noted = NotedTtl(ttl=number_in(entry.fields.get("ttl")), modified=entry.modified)
        memory.noted = noted._replace(marker=found.value64 if found else "")
        memory.longest = max(memory.longest, noted.ttl)
        return found

    def _fields(self, entry: Entry) -> Reply:
        """Raises StoreUnavailable, finally, for the marker of another version."""
        fields = entry.fields
        if fields.get("format") != RECORD_FORMAT:
            raise format_error(fields.get("format"), self.site.where, self.place, RECORD_FORMAT)
        return fields

    def _learn(self) -> Steps[Incarnation]:
        for _ in range(3):
            found = yield from self.read()
            fields = self._fields(found) if found else {}
            endpoint = self.site.endpoints.best(_now())
            wall, uptime = yield from self._ages(endpoint)
            if found or self.memory.disowned >= 0:
                # Where there was one before, nobody knows when it ended: servers may have run long
                # before they were given its address.
                uptime = 0.0
            if found:
                known = _incarnation_of(found, fields, wall)
                if known.base > self.memory.disowned:
                    other = yield from self.is_other(known, endpoint)
                    if not other:
                        return known
            status = yield from self.status(endpoint)
            yield self._mark(found, status, wall - uptime)
        raise StoreUnavailable(f"{self.site.where}: its marker {self.place} keeps changing")

    def _mark(self, found: Entry | None, status: Status | None, at: float) -> Request:
        """Write the marker of this incarnation, unless another process just did."""
        # Above every base that this process remembers too, in case a clock is behind.
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
        return self.requests.mark(found, value)

    def _note_ttl(self, known: Incarnation, ttl: float) -> Steps[None]:
        """Note beside the marker that holders may believe for so long, before one does.

        Raises Reborn, or when no time is left StoreUnavailable.
        """
        while not self.memory.noted.covers(ttl, known.value):
            changed = yield from self.changed()
            if changed or not self.knows(known):
                raise Reborn(self.site.where)
            noted = self.memory.noted
            if noted.ttl < ttl:
                # Another may note a longer one now: then nothing is written, and it is read again.
                yield self.requests.note_ttl(known, ttl, noted.modified)

    def _ages(self, endpoint: Endpoint) -> Steps[tuple[float, float]]:
        """The wall clock of a member, and for how many seconds it has run (0.0: nobody knows)."""
        try:
            reading = yield Request(METRICS, endpoint=endpoint)
        except StoreError:
            return clock.wall(), 0.0
        wall = _date(reading)
        started = _STARTED.search(reading.body) if reading.status == 200 else None
        return wall, max(0.0, wall - float(started[1])) if started else 0.0

    # -- whether it is still the same -----------------------------------------------------------

    def check(self, reply: Reply, ended: int, floor: tuple[str, int]) -> None:
        """Whether a linearizable answer is of the incarnation that was known when it was asked.

        `ended`, `floor`: of memory, before it was asked. Raises OutcomeUnknown.
        """
        header, memory = reply["header"], self.memory
        cluster, revision = str(header.get("cluster_id", "")), int(header.get("revision", 0))
        if memory.ended != ended:
            # It may be late, and of the incarnation before.
            raise self.not_the_same()
        if not memory.fits(cluster, revision, floor):
            memory.disown()
            raise self.not_the_same()

    def knows(self, incarnation: Incarnation) -> bool:
        """Whether this is still the incarnation that is known."""
        known = self.memory.incarnation
        return known is not None and known.value == incarnation.value

    def not_the_same(self) -> OutcomeUnknown:
        """The exception for an answer of an unknown incarnation."""
        return OutcomeUnknown(
            f"{self.site.where} turned out to be another incarnation of the cluster: it was"
            " restored, put back, or lost its data"
        )

    def is_other(self, known: Incarnation, endpoint: Endpoint) -> Steps[bool]:
        """Whether this member is of another incarnation than the one that is known."""
        status = yield from self.status(endpoint)
        if status is not None and differs(known, self.memory.met, status):
            # One that starts, or catches up, shows old numbers for a moment. After a proposal,
            # which changes nothing, it has carried out all that was before. With a token of another
            # incarnation it would wait for the entry of the log that the token names.
            self.site.token = ""
            try:
                yield self.requests.nothing(endpoint)
            except Answered as error:
                raise self._refused(error) from error
            status = yield from self.status(endpoint)
            if status is not None and differs(known, self.memory.met, status):
                return True
        if status is not None:
            self.memory.met = later(self.memory.met, status)
        return False

    def status(self, endpoint: Endpoint) -> Steps[Status | None]:
        """What a member has carried out; None if it never tells."""
        try:
            reply = yield self.requests.status(endpoint)
        except Answered as error:
            if error.never:
                return None
            raise self._refused(error) from error
        return status_of(reply)

    def _refused(self, error: Answered) -> StoreUnavailable:
        """A look, before anything else was sent."""
        self.site.wants_login(error)
        return StoreUnavailable(f"{self.site.where} refuses a look: {error.text}")


def _incarnation_of(entry: Entry, fields: Reply, wall: float) -> Incarnation:
    age = max(0.0, wall - float(fields.get("at", wall)))
    return Incarnation(
        str(fields["epoch"]),
        int(fields["base"]),
        entry.value64,
        _now() - age,
        str(fields.get("cluster", "")),
        int(fields.get("term", 0)),
        int(fields.get("applied", 0)),
        entry.modified,
    )


def _date(reading: Reading) -> float:
    try:
        return parsedate_to_datetime(reading.header(b"date").decode()).timestamp()
    except (ValueError, TypeError):
        return clock.wall()
