"""The present incarnation of a cluster: learnt from its marker, and checked at every step.

With etcd's defaults, a cluster that is restored from a snapshot keeps its id, and its revisions
(and perhaps its leases) go on from the snapshot. It does not keep the log: the index begins again.
Each entry of the log raises the revision by at most one, so within one incarnation
`index - revision` never falls. The marker under the prefix has the difference at the instant of its
writing. A lower difference belongs to another incarnation.

An old copy of a data folder brings back an earlier state *with* its log. So does
`--force-new-cluster` on a member that lagged behind. A process that has seen a later revision, or
a later entry of the log, notices that. A new process cannot.

The incarnation is checked when the marker is read, on each new connection, and by the revision of
each reply. Whatever begins a new incarnation ends all connections to the old one. Each transaction
that grants or proves a lease compares the marker itself.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.policy import TTL_DEFAULT
from incumbent.stores.etcd import kv
from incumbent.stores.etcd.kv import EtcdProgram, GatewayRequest, KeyValue, Reply
from incumbent.stores.etcd.sessions import Sessions
from incumbent.stores.etcd.site import EtcdSite, GatewayError, OtherIncarnation
from incumbent.stores.findings import restart_words, wait_after_restart
from incumbent.stores.turns import Turns
from incumbent.stores.url import Endpoint

_STARTED: Final = re.compile(rb"^process_start_time_seconds ([0-9.e+]+)$", re.MULTILINE)
# The most writes that a restore may lose and tokens still grow, if a clock is behind.
_LOST: Final = 100_000

# Number of no-op entries in the log before a marker. A log that begins anew has, for N members, up
# to 2 N + 4 entries of its own (one for each member, a leader, one that each member publishes, two
# versions, one of ours), and the first log had at least N + 1 of these: so this suffices for seven
# members, and for some elections.
_AHEAD: Final = 16

_now = clock.now


class ClusterMarker(NamedTuple):
    """The incarnation of the cluster, as the marker under the prefix describes it.

    `token_base` + a revision is a fencing token; the first is near the clock. `value`: the marker's
    value in base64 (its revision may be the same in the next incarnation). `at`:
    the instant (of clock.now) at which this incarnation began, by the servers' clocks. `term` and
    `applied`: the last entry of the log that a member had applied shortly before the marker was
    written at the revision `modified`; 0 if no member reported it.
    """

    epoch: str
    token_base: int
    value: str
    at: float
    cluster: str = ""
    term: int = 0
    applied: int = 0
    modified: int = 0

    @property
    def first(self) -> int:
        """A number below the first token; it grows from one incarnation to the next."""
        return self.token_base + self.modified


class Status(NamedTuple):
    """The last entry of the log that a member has applied, by index and term."""

    cluster: str
    term: int
    applied: int
    revision: int


def status_of(reply: Reply) -> Status | None:
    """The status in a reply of etcd's Maintenance.Status; None if the reply has none."""
    header = reply.get("header", {})
    if "raftAppliedIndex" not in reply or "revision" not in header:
        return None
    return Status(
        str(header.get("cluster_id", "")),
        int(reply.get("raftTerm", 0)),
        int(reply["raftAppliedIndex"]),
        int(header["revision"]),
    )


def differs(known: ClusterMarker, furthest: Status | None, now: Status) -> bool:
    """Whether a member that has applied all earlier requests is of another incarnation.

    `furthest`: the furthest state of any member that this process has seen. A member that starts or
    lags behind may differ, too: ask it only once it has applied a new entry.
    """
    if now.cluster != known.cluster or now.revision < known.modified:
        return True
    # A new leader has all entries that were applied before it: a later term, a later index.
    if furthest is not None and now.term > furthest.term and now.applied < furthest.applied:
        return True
    if not known.applied:
        return False
    return now.term < known.term or now.applied - now.revision < known.applied - known.modified


def later(known: Status | None, now: Status) -> Status:
    """The further of the two states."""
    return now if known is None or (known.term, known.applied) < (now.term, now.applied) else known


class NotedTtl(NamedTuple):
    """The longest ttl that is noted beside a marker, the marker's value and the note's revision."""

    marker_value: str = ""
    ttl: float = TTL_DEFAULT
    modified: int = 0

    def covers(self, ttl: float, marker: str) -> bool:
        """Whether a process that finds this marker after a restore waits for such a ttl."""
        return ttl <= TTL_DEFAULT or (marker == self.marker_value and ttl <= self.ttl)


class Cluster:
    """What an engine knows about its cluster, on both sides, and the programs that learn it.

    `incarnation`: the known incarnation; `last_gone`: the highest `first` of a marker that is over;
    `ended`: number of incarnations that turned out to be over; `furthest`: the furthest state that
    was seen of any member; `floor`: the cluster's id and the highest revision of a linearizable
    reply; `dialled`: number of connections made; `longest`: the longest ttl that is known to be
    used under the prefix; `noted`: the longest ttl that was read there.
    """

    def __init__(self, site: EtcdSite) -> None:
        self.site = site
        self.prefix = site.options.prefix
        self.marker_key = f"{self.prefix}!born"
        self.sessions = Sessions(self.prefix)
        self.turns = Turns()
        # Without it, a member answers comparisons from its own data. One that lost its cluster
        # would go on confirming leases.
        self.linearizable_read = kv.read(self.marker_key, more=kv.COUNT)
        self.incarnation: ClusterMarker | None = None
        self.last_gone = -1
        self.ended = 0
        self.furthest: Status | None = None
        self.floor = ("", 0)
        self.dialled = 0
        self.longest = TTL_DEFAULT
        self.noted = NotedTtl()
        self._cluster_id = ""
        self._revision = 0

    # -- the present incarnation --------------------------------------------------------------

    def identify(self) -> EtcdProgram[ClusterMarker]:
        """The incarnation of the cluster; the first process to meet a new one writes its marker."""
        known = self.incarnation
        if known is None:
            known = yield from self._learn()
            if known.first <= self.last_gone:
                # Another thread noticed meanwhile that this incarnation is over.
                raise OtherIncarnation(self.site.where)
            # If it ends only now, the next comparison of its marker shows that.
            self.incarnation = known
        return known

    def granting_marker(self, ttl: float) -> EtcdProgram[ClusterMarker]:
        """As `identify`; raises StoreUnavailable while an earlier holder may rely on its lease."""
        known = yield from self.identify()
        if not self.noted.covers(ttl, known.value):
            yield from self._write_ttl(known, ttl)
        early = self._grants_at(known, ttl) - _now()
        if early > 0:
            what = "is new, lost its data or was restored"
            words = restart_words(self.site.where, what, max(0.0, _now() - known.at), early)
            raise StoreUnavailable(words, retry_after=early)
        return known

    def _grants_at(self, known: ClusterMarker, ttl: float) -> float:
        return known.at + wait_after_restart(self.site.restart_wait, ttl, self.longest)

    def token_base(self) -> EtcdProgram[int]:
        """The number that is added to a revision to make a token. Creates no marker."""
        if self.incarnation is not None:
            return self.incarnation.token_base
        found = yield from self.read_marker()
        return int(self._fields(found).get("base", 0)) if found else 0

    def seconds_until_grants(self, endpoint: Endpoint, ttl: float) -> EtcdProgram[float | None]:
        """Seconds until the cluster grants, by its marker; None: that is of another incarnation.

        Writes nothing.
        """
        found = yield from self.read_marker()
        if found is None:
            return 0.0
        wall, _ = yield from self._ages(endpoint)
        known = _incarnation_of(found, self._fields(found), wall)
        if (yield from self.is_other(known, endpoint)):
            return None
        return max(0.0, self._grants_at(known, ttl) - _now())

    # -- the marker ---------------------------------------------------------------------------

    def marker_compared(self, known: ClusterMarker) -> str:
        """The comparison that the cluster is still of the known incarnation."""
        return kv.has_value(self.marker_key, known.value)

    def transaction(
        self,
        known: ClusterMarker,
        where: Sequence[str],
        success: Sequence[str],
        failure: Sequence[str] = (),
        *,
        repeatable: bool = True,
    ) -> GatewayRequest:
        """A transaction that fails, and whose reply is rejected, in another incarnation."""
        where, marker = [self.marker_compared(known), *where], known.value
        return kv.transaction(
            success, failure, where=where, repeatable=repeatable, marker_value=marker
        )

    def read_marker(self) -> EtcdProgram[KeyValue | None]:
        """The marker, by a linearizable read; remembers the longest ttl beside it."""
        asked = {"key": kv.b64(self.marker_key), "range_end": kv.b64(f"{self.marker_key}.")}
        reply = yield GatewayRequest("/v3/kv/range", json.dumps(asked).encode())
        self._cluster_id = str(reply["header"].get("cluster_id", ""))
        self._revision = int(reply["header"].get("revision", 0))
        found, noted = None, NotedTtl()
        for entry in kv.entries_in(reply):
            if entry.key == self.marker_key:
                found = entry
            else:
                noted = NotedTtl(ttl=kv.number_in(entry.fields.get("ttl")), modified=entry.modified)
        self.noted = noted._replace(marker_value=found.value64 if found else "")
        self.longest = max(self.longest, noted.ttl)
        return found

    def _fields(self, entry: KeyValue) -> Reply:
        return kv.check_format(entry, f", then remove it with `etcdctl del '{self.marker_key}'`")

    def _learn(self) -> EtcdProgram[ClusterMarker]:
        for _ in range(3):
            found = yield from self.read_marker()
            fields = self._fields(found) if found else {}
            endpoint = self.site.members[0]
            wall, uptime = yield from self._ages(endpoint)
            if found or self.last_gone >= 0:
                # Nobody knows when an earlier incarnation ended: servers may have run for long
                # before they got its address.
                uptime = 0.0
            if found:
                known = _incarnation_of(found, fields, wall)
                if known.first > self.last_gone and not (yield from self.is_other(known, endpoint)):
                    return known
            for _ in range(_AHEAD):
                yield from self._propose_nothing(endpoint)
            status = yield from self.status(endpoint)
            # And above all known tokens of before: a clock may be behind.
            before = max(self.last_gone, 0)
            if found:
                before = max(before, _highest_in(found, fields, wall, self._revision))
            first = max(int(clock.wall() * 1_000_000), before + _LOST)
            value = kv.packed(
                format=kv.RECORD_FORMAT,
                epoch=uuid.uuid4().hex,
                # The revision is high in an old cluster, or after --bump-revision: added to the
                # clock, it would put tokens far ahead.
                base=first - self._revision,
                cluster=self._cluster_id,
                at=wall - uptime,
                term=status.term if status else 0,
                applied=status.applied if status else 0,
            )
            # Another process may just have written its own marker.
            unchanged = (
                kv.modified(self.marker_key, found.modified)
                if found
                else kv.absent(self.marker_key)
            )
            yield kv.transaction([kv.put(self.marker_key, value)], where=[unchanged])
        raise StoreUnavailable(f"{self.site.where}: its marker {self.marker_key} keeps changing")

    def _write_ttl(self, known: ClusterMarker, ttl: float) -> EtcdProgram[None]:
        """Write the ttl beside the marker. Only then may a holder rely on a lease for so long.

        Raises OtherIncarnation, or StoreUnavailable if no time is left.
        """
        key = f"{self.marker_key}-ttl"
        while not self.noted.covers(ttl, known.value):
            changed = yield from self.changed()
            if changed or not self.knows(known.value):
                raise OtherIncarnation(self.site.where)
            noted = self.noted
            if noted.ttl < ttl:
                # If another process writes a longer ttl now, nothing is written: read it again.
                unchanged = [self.marker_compared(known), kv.modified(key, noted.modified)]
                yield kv.transaction([kv.put(key, kv.packed(ttl=ttl))], where=unchanged)

    def _ages(self, endpoint: Endpoint) -> EtcdProgram[tuple[float, float]]:
        """The wall clock of a member, and the seconds for which it has run (0.0: unknown)."""
        try:
            reading = yield GatewayRequest("/metrics", b"", endpoint=endpoint)
        except StoreError:
            # Without an uptime the whole restart_wait counts from now.
            return clock.wall(), 0.0
        try:
            wall = parsedate_to_datetime(reading.header(b"date").decode()).timestamp()
        except (ValueError, TypeError):
            wall = clock.wall()
        started = _STARTED.search(reading.body) if reading.status == 200 else None
        return wall, max(0.0, wall - float(started[1])) if started else 0.0

    # -- checks of the incarnation ------------------------------------------------------------

    def knows(self, marker: str) -> bool:
        """Whether the known incarnation is the one whose marker has this value."""
        known = self.incarnation
        return known is not None and known.value == marker

    def changed(self) -> EtcdProgram[bool]:
        """Whether the cluster is of another incarnation than the known one."""
        known = self.incarnation
        found = yield from self.read_marker()
        if known is not None and found and found.value64 == known.value:
            return False
        # Another thread may know a newer incarnation by now.
        if known is not None and self.incarnation is known:
            self.end_incarnation()
        return True

    def end_incarnation(self) -> None:
        """Forget what is known: the cluster turned out to be of another incarnation."""
        # First: from here on no reply of an earlier request is believed.
        self.ended += 1
        known, self.incarnation = self.incarnation, None
        if known is not None:
            self.last_gone = max(self.last_gone, known.first)
        self.furthest, self.floor = None, ("", 0)
        self.sessions.lose_all()

    def check(
        self, request: GatewayRequest, reply: Reply, ended: int, floor: tuple[str, int]
    ) -> None:
        """Check that a reply is of the incarnation that was known when the request was sent.

        `ended`, `floor`: their values before the request was sent. Raises OutcomeUnknown.
        """
        self.sessions.term = kv.raft_term_of(reply.get("result", reply))
        if request.path in kv.LINEARIZABLE:
            header = reply["header"]
            cluster, revision = str(header.get("cluster_id", "")), int(header.get("revision", 0))
            if self.ended != ended:
                # The reply may be late, and of the previous incarnation.
                raise self._not_the_same()
            if not self.fits(cluster, revision, floor):
                self.end_incarnation()
                raise self._not_the_same()
        if request.marker_value and not self.knows(request.marker_value):
            # Another connection showed meanwhile that the incarnation is over.
            raise self._not_the_same()

    def fits(self, cluster: str, revision: int, floor: tuple[str, int]) -> bool:
        """Whether a linearizable reply fits `floor`, known before the request was sent."""
        known, least = floor
        if known and (cluster != known or revision < least):
            return False
        if not self.floor[0] or revision > self.floor[1]:
            self.floor = (cluster, revision)
        return True

    def _not_the_same(self) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"{self.site.where} turned out to be another incarnation of the cluster: it was"
            " restored, put back, or lost its data"
        )

    def is_other(self, known: ClusterMarker, endpoint: Endpoint) -> EtcdProgram[bool]:
        """Whether this member is of another incarnation than the known one."""
        for tries in range(2):
            if tries:
                # A member that starts or catches up shows old numbers for a moment. Once it has
                # answered a no-op proposal, it has applied all earlier entries. With a log-in token
                # of another incarnation it would wait for the log entry that the token names.
                self.site.login_token = ""
                yield from self._propose_nothing(endpoint)
            status = yield from self.status(endpoint)
            # Then only the marker and the revisions show another incarnation; `doctor` says so.
            if status is None:
                return False
            if not differs(known, self.furthest, status):
                self.furthest = later(self.furthest, status)
                return False
        return True

    def _propose_nothing(self, endpoint: Endpoint) -> EtcdProgram[None]:
        """Add an entry to the log that does not raise the revision."""
        try:
            # The key never exists. Its removal is an entry all the same, even in a full database.
            yield kv.transaction([kv.delete(f"{self.prefix}!nothing")], endpoint=endpoint)
        except GatewayError as error:
            raise self._refused(error) from error

    def status(self, endpoint: Endpoint) -> EtcdProgram[Status | None]:
        """The status of a member; None if the member does not serve it."""
        try:
            reply = yield GatewayRequest("/v3/maintenance/status", endpoint=endpoint)
        except GatewayError as error:
            if error.unsupported:
                return None
            raise self._refused(error) from error
        return status_of(reply)

    def _refused(self, error: GatewayError) -> StoreUnavailable:
        """The exception for a refused check, before any other request was sent."""
        self.site.drop_stale_token(error)
        return StoreUnavailable(f"{self.site.where} refuses a check: {error.text}")


def _highest_in(entry: KeyValue, fields: Reply, wall: float, revision: int) -> int:
    """The highest token that this marker's incarnation can have granted up to a revision."""
    # At most one was granted each microsecond, however far a restore has raised the revision.
    age = max(0.0, wall - float(fields.get("at", wall)))
    return int(fields["base"]) + min(revision, entry.modified + int(age * 1_000_000))


def _incarnation_of(entry: KeyValue, fields: Reply, wall: float) -> ClusterMarker:
    age = max(0.0, wall - float(fields.get("at", wall)))
    return ClusterMarker(
        str(fields["epoch"]),
        int(fields["base"]),
        entry.value64,
        _now() - age,
        str(fields.get("cluster", "")),
        int(fields.get("term", 0)),
        int(fields.get("applied", 0)),
        entry.modified,
    )
