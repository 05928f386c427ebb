"""Which incarnation of a server a connection leads to, by a marker among its data. Pure.

    incumbent1 <id> <since> <seen> <run> <replication> <longest> <floor>

The first client that sees a server, or sees it restarted or promoted, writes a new marker. A wipe
removes it; replicas have it. A take too soon after `since` is refused: see restart_wait.

Behind sentinels the id also has the number of the master's promotion: "<id>@<number>". Nothing else
identifies a master that was replaced, did not notice it, and is named again.

INFO is read when a connection is made, and again with a take now and then: settings may change
while clients are connected. `admit` refuses a server that must not grant leases.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from incumbent.errors import StoreError, StoreUnavailable
from incumbent.interrupts import raise_if_from_signal
from incumbent.stores.plan import Plan, PlannedTogether
from incumbent.stores.redis.resp import SCRIPTS, RequestBatch, RespProgram, Script, pack
from incumbent.stores.redis.site import (
    MARKER_KEY,
    QUORUM_KEY,
    Demoted,
    Moved,
    Outdated,
    Packer,
    RedisSite,
    answered_error,
)

T = TypeVar("T")

RECORD_FORMAT: Final = 1
"""The number that records and markers begin with."""
CHECK_EVERY: Final = 0.5
"""Seconds for which a connection trusts its last check of the marker, the role and the eviction.

A role that changes and changes back in between is not noticed. The interim master grants nothing
for the `restart_wait`, but a lease that was not replicated to it may be lost with the resync."""
TOKEN_JUMP: Final = 60.0
"""Seconds by which a new incarnation's tokens are ahead of the server's clock, and so the seconds
by which the clock of a promoted server may be behind that of the previous master.

No incarnation adds it to what an earlier one has added: tokens would then be further ahead than a
server without its data can know. See `_floor`."""

_MICRO: Final = 1_000_000
_JUMP: Final = int(TOKEN_JUMP * _MICRO)
_UNREPLICATED: Final = 1000
"""The most takes of one name that a promoted server lacks although it has the marker."""
_TRIES: Final = 3
_RESTART_APART: Final = 2 * _MICRO
"""The uncertainty of the start of a server that has no run id (microseconds)."""
_INFO: Final = pack("INFO")
INFO_CHECK: Final = (pack("INFO", "replication"), pack("INFO", "memory"))
"""The part of INFO whose facts can change while a connection lives: role and eviction."""
_TIME: Final = pack("TIME")
_MEMBER: Final = pack("GET", QUORUM_KEY)
_LOADS: Final = tuple(pack("SCRIPT", "LOAD", script.text) for script in SCRIPTS.values())
_write_over: Final = Script("put:marker")


class IncarnationMarker(NamedTuple):
    """The content of the marker.

    `since`, `written_at`: when it was written, by the server's clock and by the writer's, in
    microseconds; `run`, `replication`: the ids of the server's run and of its data's history;
    `longest`: the largest ttl that was asked for, in milliseconds; `floor`: the least token to
    grant, since the tokens of earlier servers may be ahead of this server's clock.
    """

    id: str
    since: int
    written_at: int
    run: str
    replication: str
    longest: int = 0
    floor: int = 0

    @property
    def text(self) -> str:
        """The marker as it is stored."""
        run, replication = self.run or "-", self.replication or "-"
        numbers = f"{self.since} {self.written_at} {run} {replication} {self.longest} {self.floor}"
        return f"incumbent{RECORD_FORMAT} {self.id} {numbers}"

    @property
    def promoted(self) -> bool:
        """Whether another server was the master before, according to the id."""
        return ":" in self.id

    @property
    def promotion(self) -> int:
        """The number of the promotion, from sentinels; 0 before the first or without sentinels."""
        number = self.id.partition("@")[2].partition(":")[0]
        return int(number) if number.isdecimal() else 0

    def is_of(self, facts: InfoFacts, promotion: int | None, start: int) -> bool:
        """Whether the server with these `facts` is still the one that the marker describes."""
        if promotion not in (None, self.promotion):
            return False
        if facts.run:
            same = self.run == facts.run
        else:
            same = self.run.startswith("~") and abs(int(self.run[1:]) - start) <= _RESTART_APART
        # A master without a replica for an hour also gets a new history id, but no second id.
        return same and (self.replication == facts.replication or not facts.promoted)


_FORMAT: Final = re.compile(rb"incumbent(\d+) ")


def check_format(raw: bytes, where: str, at: str) -> None:
    """Raises StoreUnavailable for a record of incumbent's in another format."""
    found = _FORMAT.match(raw)
    if found is not None and int(found[1]) != RECORD_FORMAT:
        raise StoreUnavailable(
            f"{where} has a record of format {int(found[1])} at the key {at}, and this version of"
            f" incumbent speaks format {RECORD_FORMAT}: stop the instances of the other version"
            " first, or use another namespace or database",
            permanent=True,
        )


def read_marker(raw: Any, where: str, key: str) -> IncarnationMarker | None:
    """The marker's content; None if there is none. Raises StoreUnavailable for another format."""
    if not isinstance(raw, bytes) or not raw:
        return None
    check_format(raw, where, key)
    try:
        _, identity, since, seen, run, replication, longest, floor = raw.decode().split(" ")
        numbers = (int(since), int(seen))
        run, replication = run.strip("-"), replication.strip("-")
        return IncarnationMarker(identity, *numbers, run, replication, int(longest), int(floor))
    except ValueError as error:
        raise_if_from_signal(error)
        # Another client's value counts as no marker.
        return None


class Handshake(NamedTuple):
    """The facts of a new connection. `time`: the server's clock in seconds; `age`: in seconds.

    `marker_key`: where the marker was found; `problem`: why there is none, which only a take needs;
    `age_gap`: seconds between the server's age by its own clock and by ours, of which `age` is the
    smaller one.
    """

    marker: IncarnationMarker
    marker_key: str
    replication: str
    time: float
    age: float
    problem: StoreError | None = None
    age_gap: float = 0.0


def handshake(
    site: RedisSite, *, wall: float, fresh: str, promotion: int | None = None, longest: int = 0
) -> RespProgram[Handshake]:
    """Look at the server, load the scripts there, and find or write its marker, in all copies.

    `wall`: our wall clock; `fresh`: the id for a new incarnation; `promotion`: the number of the
    master's promotion; `longest`: the least that the marker's `longest` must be. One round trip, or
    two if the marker must be written. Raises StoreUnavailable for a server that must not grant
    leases.
    """
    keys = site.marker_keys
    reads = [pack("GET", key) for key in keys]
    asked = (_INFO, _TIME, _MEMBER, *reads, *_LOADS)
    info, time, member, *answers = yield RequestBatch(b"".join(asked), len(asked))
    for answer in (info, time):
        if isinstance(answer, Exception):
            raise answered_error(str(answer), site.where, served=site.served)
    facts = read_facts(info)
    admit(facts, site.where, allow_eviction=site.allow_eviction, served=site.served)
    refuse_if_used_otherwise(member, QUORUM_KEY, site.where)
    # SCRIPT LOAD may fail (an administrator may have run it): a missing script shows when called.
    now, replies = _micros(time), dict(zip(keys, answers, strict=False))
    # In a cluster a slot may have moved to another node, with its copy.
    there = {key: raw for key, raw in replies.items() if raw is None or isinstance(raw, bytes)}
    new = _NewMarker(facts, now, int(wall * _MICRO), fresh, promotion, longest)
    marker, is_written = _choose(there, site.where, new)
    problem: StoreError | None = None
    try:
        for _ in range(_TRIES):
            todo = {key: raw for key, raw in there.items() if raw != marker.text.encode()}
            if there and not todo:
                break
            there |= yield from _write(todo, marker, site, replies)
            # Another client may have written another marker meanwhile.
            marker, is_written = _choose(there, site.where, new)
        else:
            raise StoreUnavailable(
                f"{site.where}: its marker changes all the time", retry_after=0.1
            )
    except StoreError as error:
        # If one copy has the marker, the server can be used although others cannot be written.
        problem = None if is_written else error
    # Either clock may have been set: only the smaller age is safe.
    ages = (now - marker.since) / _MICRO, wall - marker.written_at / _MICRO
    age_gap, age = abs(ages[0] - ages[1]), max(0.0, min(ages))
    key = next(iter(there), MARKER_KEY)
    return Handshake(marker, key, facts.replication, now / _MICRO, age, problem, age_gap)


def _write(
    todo: dict[str, bytes | None],
    marker: IncarnationMarker,
    site: RedisSite,
    replies: dict[str, Any],
) -> RespProgram[dict[str, bytes | None]]:
    """Write the marker; return the values there afterwards. Raises StoreError if that fails."""
    # Several clients may see a new server at once: the script writes only over what was read, and
    # answers with what is there, so that all of them go by the same marker.
    writes = [
        pack("EVAL", _write_over.text, 1, key, raw or b"", marker.text) for key, raw in todo.items()
    ]
    if not writes:
        raise _unmarked(list(replies.values()), site)
    written = yield RequestBatch(b"".join(writes), len(writes))
    for answer in written:
        if not isinstance(answer, bytes):
            raise _unmarked([answer], site)
    return dict(zip(todo, written, strict=False))


def _unmarked(answers: Sequence[Any], site: RedisSite) -> StoreError:
    errors = [answered_error(str(answer), site.where, served=site.served) for answer in answers]
    for error in errors:
        # In a cluster, Moved would name the node of the marker, not that of the lease.
        if not isinstance(error, Moved) or MARKER_KEY in site.marker_keys:
            return error
    return StoreUnavailable(f"{site.where}: it has no slot for its marker", retry_after=0.1)


class _NewMarker(NamedTuple):
    """The content of a possible new marker; instants in microseconds."""

    facts: InfoFacts
    now: int
    written_at: int
    id: str
    promotion: int | None
    longest: int


def _choose(
    there: dict[str, bytes | None], where: str, new: _NewMarker
) -> tuple[IncarnationMarker, bool]:
    """The marker for all copies (the oldest that fits, or a new one).

    And whether a copy has it already, with this `longest`.
    """
    facts, promotion = new.facts, new.promotion
    found = [marker for key, raw in there.items() if (marker := read_marker(raw, where, key))]
    noted = max((marker.longest for marker in found), default=0)
    longest = max(noted, new.longest)
    start = new.now - facts.uptime * _MICRO
    fitting = [marker for marker in found if marker.is_of(facts, promotion, start)]
    if fitting:
        # The oldest copy says since when this incarnation exists.
        first = min(fitting, key=lambda marker: (marker.since, marker.id))
        marker = first._replace(replication=facts.replication, longest=longest)
        return marker, noted == longest
    run = facts.run or f"~{start}"
    promoted = bool(facts.promoted) or any(
        promotion not in (None, marker.promotion) for marker in found
    )
    identity = f"{new.id}@{promotion}" if promotion else new.id
    if promoted:
        identity += ":promoted"
    floor = _floor(new.now, found)
    return IncarnationMarker(
        identity, new.now, new.written_at, run, facts.replication, longest, floor
    ), False


def _floor(now: int, before: Sequence[IncarnationMarker]) -> int:
    """A number above the tokens of the incarnations before this one."""
    # No token is more than a jump ahead of its server's clock: a floor starts there, and each take
    # of a name adds one, but lasts longer than a microsecond. So the same clock, read later, plus a
    # jump is above them all, even if the data were lost and nothing shows that. Another server's
    # clock may be behind: the jump makes up for that once the earlier server's clock has passed its
    # floor; before that, only the time between the two incarnations does.
    return max(now + _JUMP + 1, *(marker.floor + _UNREPLICATED for marker in before), 0)


def _micros(time: Sequence[bytes]) -> int:
    return int(time[0]) * _MICRO + int(time[1])


class ServerFacts:
    """What a connection knows of its server.

    `born`: the latest instant at which the incarnation can have begun; `check_sent`: when the last
    check was sent; `unchanged_at`: when the last one was sent that found it unchanged;
    `clock_ahead`: the least seconds by which the server's clock is ahead of ours; `age_gap`: see
    Handshake; `old_enough_for`: the largest ttl that has passed since it began; `epoch`: the id of
    its marker; `id_and_floor`: what a take sends of its marker; `target`: the server that the
    connection was made to; `marker_request`, `check_request` (all that may have changed): packed.
    """

    __slots__ = (
        *("age_gap", "born", "check_request", "check_sent", "clock_ahead", "epoch", "id_and_floor"),
        *("marker", "marker_key", "marker_request", "marker_start", "old_enough_for", "problem"),
        *("replication", "target", "unchanged_at"),
    )

    def __init__(self) -> None:
        self.epoch = self.marker_key = ""
        self.problem: StoreError | None = None
        self.target: object = None
        self.born = self.check_sent = self.unchanged_at = 0.0
        self.old_enough_for = self.clock_ahead = self.age_gap = 0.0
        self.marker = IncarnationMarker("", 0, 0, "", "")
        self.check_request = self.marker_request = self.marker_start = b""
        self.replication = self.id_and_floor = b""

    def learn_from(self, found: Handshake, received: float, old_master_for: float) -> None:
        """Take over the facts of `found`, whose answer came at `received`."""
        marker = found.marker
        self.marker, self.epoch, self.marker_key = marker, marker.id, found.marker_key
        self.problem, self.age_gap = found.problem, found.age_gap
        # The age is negative as long as the previous master may still be in use.
        self.born = received - found.age + (old_master_for if marker.promoted else 0.0)
        self.clock_ahead = found.time - received
        # A handshake stands for no check: the first take brings its own.
        self.check_sent = self.unchanged_at = self.old_enough_for = 0.0
        self.replication = found.replication.encode()
        self.marker_request = pack("GET", found.marker_key)
        self.check_request = b"".join((self.marker_request, INFO_CHECK[0], _TIME, INFO_CHECK[1]))
        self.id_and_floor = f"{marker.id} {marker.floor}".encode()
        self.marker_start = f"incumbent{RECORD_FORMAT} {marker.id} ".encode()

    def is_marked(self, reply: Any) -> bool:
        """Whether the reply to `marker_request` is still the marker of this incarnation."""
        # Its start alone: other clients may have raised `longest` since.
        return type(reply) is bytes and reply.startswith(self.marker_start)

    @property
    def longest(self) -> float:
        """The largest ttl that is known to have been asked for, in seconds."""
        return self.marker.longest / 1000

    def compare(
        self, replies: Sequence[Any], sent: float, received: float, *, allow_eviction: bool
    ) -> None:
        """Note the answers to `check_request`. Raises Outdated if the server has changed."""
        raw, info, time, memory = replies
        if [type(each) for each in replies] != [bytes, bytes, list, bytes]:
            raise Outdated("its marker or its INFO cannot be read")
        if not allow_eviction and read_facts(memory).evicts:
            raise Outdated("it may evict leases by now")
        if not self.is_marked(raw) or b"role:master" not in info:
            raise Outdated("its data are others, or it changed its role")
        if b"master_replid:%b\r" % self.replication not in info and b"master_replid:" in info:
            facts = read_facts(info)
            if facts.promoted:
                raise Outdated("it was a replica in between")
            self.replication = facts.replication.encode()
        # Another client may have asked for a longer ttl, which a later restart has to wait for.
        if found := read_marker(raw, "the server", self.marker_key):
            self.marker = found
        # Last, once all of it was found well; and from when it was sent, as it
        # may be as old as that.
        self.unchanged_at = sent
        self.clock_ahead = _micros(time) / _MICRO - received


class ServerContext(NamedTuple):
    """What a program is given. `facts`: what the connection knows of its server."""

    site: RedisSite
    packer: Packer
    facts: ServerFacts


RedisPlan: TypeAlias = Plan[ServerContext, T]
RedisOperations: TypeAlias = PlannedTogether[ServerContext]


# -- what INFO says of a server ------------------------------------------------------------------


class InfoFacts(NamedTuple):
    """The part of INFO that a lease depends on. `uptime`: whole seconds, as the server counts.

    `promoted`: the replication id of a master that was a replica before, else ""; `master_for`:
    seconds for which it has certainly been one; `run`, `replication`: ids of the server's run and
    of its data's history, "" if INFO has none; `stopped`: why it takes no writes, or "";
    `snapshot_failed`: whether the last one failed; `good_replicas`: None if writes need none.
    """

    uptime: int
    role: str
    version: str
    product: str
    maxmemory: int
    policy: str
    aof: bool
    replicas: int = 0
    promoted: str = ""
    master_for: float = inf
    run: str = ""
    replication: str = ""
    stopped: str = ""
    snapshot_failed: bool = False
    good_replicas: int | None = None

    @property
    def evicts(self) -> bool:
        """Whether the server may delete a lease to make room."""
        return self.maxmemory > 0 and self.policy != "noeviction"

    def born(self, received: float) -> float:
        """The latest possible beginning of this incarnation, if INFO arrived at `received`.

        The uptime is a difference of two wall clock readings, each cut to whole seconds, so it may
        be up to a second too large.
        """
        return received - min(max(0, self.uptime - 1), self.master_for)


def read_facts(text: bytes) -> InfoFacts:
    """Read the answer to INFO."""
    fields = dict(
        line.split(":", 1)
        for line in text.decode("utf-8", "replace").splitlines()
        if ":" in line and not line.startswith("#")
    )
    # Set only by a promotion (and by a restart from a snapshot, where waiting is right too).
    before = fields.get("master_replid2", "").strip("0")
    promoted = fields.get("master_replid", "") if before else ""
    product = "Valkey" if "valkey_version" in fields else "Redis"
    return InfoFacts(
        uptime=_number(fields, "uptime_in_seconds"),
        role=fields.get("role", "master"),
        version=fields.get("valkey_version") or fields.get("redis_version", "?"),
        product="Dragonfly" if "dragonfly_version" in fields else product,
        maxmemory=_number(fields, "maxmemory"),
        policy=fields.get("maxmemory_policy", "noeviction"),
        aof=fields.get("aof_enabled") == "1",
        replicas=_number(fields, "connected_slaves"),
        promoted=promoted,
        run=fields.get("run_id", ""),
        replication=fields.get("master_replid", ""),
        stopped=_why_no_writes(fields),
        snapshot_failed=fields.get("rdb_last_bgsave_status", "ok") != "ok",
        good_replicas=(
            _number(fields, "min_slaves_good_slaves")
            if "min_slaves_good_slaves" in fields
            else None
        ),
    )


def _why_no_writes(fields: dict[str, str]) -> str:
    used, most = _number(fields, "used_memory"), _number(fields, "maxmemory")
    if 0 < most < used and fields.get("maxmemory_policy", "noeviction") == "noeviction":
        return f"it is out of memory: {used} bytes of {most} (maxmemory), and takes no writes"
    if fields.get("aof_last_write_status", "ok") != "ok":
        return "it cannot write its append-only file, and takes no writes"
    return ""


def _number(fields: dict[str, str], name: str) -> int:
    text = fields.get(name, "")
    return int(text) if text.isdigit() else 0


_PROMOTED: Final = Script("put:promoted")
_PROMOTED_KEY: Final = "incumbent:{incumbent}:promoted"
"""The key where clients note when they first saw a promoted replica as the master."""


def check_node(where: str, *, allow_eviction: bool, served: bool) -> RespProgram[InfoFacts]:
    """Check a node of a quorum: one round trip, or two for a promoted replica.

    Raises StoreUnavailable for a server that must not grant leases.
    """
    (info,) = yield RequestBatch(_INFO, 1)
    if not isinstance(info, bytes):
        raise answered_error(str(info), where, served=served)
    facts = read_facts(info)
    admit(facts, where, allow_eviction=allow_eviction, served=served)
    if facts.promoted:
        request = pack("EVAL", _PROMOTED.text, 1, _PROMOTED_KEY, facts.promoted)
        (since,) = yield RequestBatch(request, 1)
        if not isinstance(since, int):
            raise answered_error(str(since), where, served=served)
        return facts._replace(master_for=max(0.0, since / 1000))
    return facts


def refuse_if_used_otherwise(found: object, key: str, where: str) -> None:
    """Raises StoreUnavailable if `found`, the value of `key`, is a marker.

    A server that is a member of a quorum and serves alone too would grant a lease twice.
    """
    if isinstance(found, bytes) and found:
        by = "a member of a quorum" if key == QUORUM_KEY else "a server of its own"
        raise StoreUnavailable(
            f"{where} is used as {by} already (its key {key} says so): stop the clients that use it"
            " so, wait for the longest ttl and delete that key; or use another server or database",
            permanent=True,
        )


def admit(facts: InfoFacts, where: str, *, allow_eviction: bool, served: bool) -> None:
    """Raises StoreUnavailable for a server that must not grant leases.

    `served`: it has served this process before, so that it may serve again.
    """
    if facts.role != "master":
        raise Demoted(
            f"{where} is a replica, which cannot grant leases: use the address of the master",
            retry_after=1.0,
        )
    if facts.evicts and not allow_eviction:
        raise StoreUnavailable(
            f"{where} may evict leases (maxmemory-policy {facts.policy}): set maxmemory-policy to"
            " noeviction, or accept two holders with ?allow_eviction=yes",
            permanent=not served,
        )
