"""From an operation to requests of etcd, and from a reply to what was decided. Pure.

A *program* is a generator: it yields requests, is sent their replies, and returns an outcome. An
error of a request is raised where the program waits for its reply. Keys and values come in base64,
numbers as digits.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Generator, Sequence
from math import ceil
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from incumbent.model import Absent, Ask, ByClaim, ByVersion, Guard, Key
from incumbent.stores.etcd.incarnation import Incarnation
from incumbent.stores.etcd.records import (
    RECORD_FORMAT,
    Entry,
    Names,
    Naming,
    after,
    b64,
    entries_in,
    packed,
    part,
    seen_in,
)
from incumbent.stores.etcd.sessions import ClaimState
from incumbent.stores.notices import PAUSE
from incumbent.stores.table import HISTORY_KEPT
from incumbent.stores.url import Endpoint

__all__ = [
    "BATCH",
    "LINEARIZABLE",
    "METRICS",
    "REPEATED",
    "TXN",
    "AsOf",
    "Obstacles",
    "Reply",
    "Request",
    "Requests",
    "Steps",
    "as_of",
    "revision_of",
    "seconds",
    "term_of",
]

T = TypeVar("T")
Reply: TypeAlias = dict[str, Any]

BATCH: Final = 116
"""Leases compared in one transaction; etcd takes 128 comparisons (--max-txn-ops)."""
REPEATED: Final = " repeated"
"""Of a reply: whether an earlier try of its request was perhaps carried out."""
TXN: Final = "/v3/kv/txn"
METRICS: Final = "/metrics"
_RANGE: Final = "/v3/kv/range"
_STATUS: Final = "/v3/maintenance/status"
LINEARIZABLE: Final = frozenset({TXN, _RANGE})
_FIRST: Final = ',"sort_order":"ASCEND","sort_target":"CREATE"'
_OLDEST: Final = ',"sort_order":"ASCEND","sort_target":"CREATE","limit":"24","keys_only":true'
_NEWEST: Final = ',"sort_order":"DESCEND","sort_target":"MOD","limit":"1","keys_only":true'
_COUNT: Final = ',"count_only":true'


class Request(NamedTuple):
    """One request.

    `repeatable`: another member may be asked after a doubt. `incarnation`: the one that must still
    be known when the reply comes. `endpoint`: this member is asked, and no other.
    """

    path: str
    body: bytes = b""
    repeatable: bool = True
    incarnation: Incarnation | None = None
    endpoint: Endpoint | None = None


Steps: TypeAlias = Generator[Request, Any, T]
"""A program."""


# -- what a reply says ----------------------------------------------------------------------------


class Obstacles(NamedTuple):
    """Why a take was refused: what stands in its way."""

    lease: Entry | None
    pause: Entry | None
    closing: Entry | None
    slots: list[Entry]
    seen: str
    candidates: int = 0
    given_up: bool = False
    marker: str = ""

    def __bool__(self) -> bool:
        return any((self.lease, self.pause, self.closing, self.slots, self.given_up))

    def slots_of_others(self, claim: str) -> list[Entry]:
        """The slot as other claims took it."""
        return [entry for entry in self.slots if not entry.key.endswith(f"/{part(claim)}")]

    def own_slot(self, claim: str) -> bool:
        """Whether this very claim has taken the slot before."""
        return bool(self.slots) and not self.slots_of_others(claim)


def seconds(ttl: float) -> int:
    """The etcd lease for a ttl: whole seconds, never fewer."""
    return max(1, ceil(ttl))


def revision_of(reply: Reply) -> int:
    """At which revision the cluster answered."""
    return int(reply["header"].get("revision", 0))


def term_of(reply: Reply) -> str:
    """In which term the cluster answered."""
    return str(reply["header"].get("raft_term", ""))


class AsOf(NamedTuple):
    """Which state of the cluster an answer is of: as long as it is the same, so is every key."""

    cluster: str
    term: str
    revision: int
    dialled: int


def as_of(reply: Reply, dialled: int = 0) -> AsOf | None:
    """Of which state the cluster answered; None: it does not say.

    `dialled`: how many connections were made until then; a new one may lead to another state.
    """
    revision = revision_of(reply)
    cluster = str(reply["header"].get("cluster_id", ""))
    return AsOf(cluster, term_of(reply), revision, dialled) if revision else None


# -- the words of a transaction -------------------------------------------------------------------


def _absent(key: str, end: str = "") -> str:
    """A comparison: there is no such key, or none in the range."""
    return f'{{"key":"{key}","range_end":"{end}","target":"CREATE","create_revision":"0"}}'


def _created(key: str, revision: int) -> str:
    """A comparison: the key is there since that revision."""
    return f'{{"key":"{key}","target":"CREATE","create_revision":"{revision}"}}'


def _modified(key: str, revision: int) -> str:
    """A comparison: the key was last written at that revision."""
    return f'{{"key":"{key}","target":"MOD","mod_revision":"{revision}"}}'


def _put(key: str, value: str, lease: str = "0") -> str:
    """Write `value` (base64), attached to an etcd lease."""
    return f'{{"request_put":{{"key":"{key}","value":"{value}","lease":"{lease}"}}}}'


def _delete(key: str) -> str:
    return f'{{"request_delete_range":{{"key":"{key}","range_end":""}}}}'


def _read(key: str, end: str = "", more: str = "") -> str:
    """Read a key, or a range; `more` holds further options, each with a comma before it."""
    return f'{{"request_range":{{"key":"{key}","range_end":"{end}"{more}}}}}'


def _nested(compare: Sequence[str], success: Sequence[str]) -> str:
    """A transaction within one."""
    return f'{{"request_txn":{_transaction(compare, success)}}}'


def _transaction(
    compare: Sequence[str], success: Sequence[str], failure: Sequence[str] = ()
) -> str:
    return (
        f'{{"compare":[{",".join(compare)}],"success":[{",".join(success)}],'
        f'"failure":[{",".join(failure)}]}}'
    )


def _txn(
    success: Sequence[str],
    failure: Sequence[str] = (),
    *,
    where: Sequence[str] = (),
    repeatable: bool = True,
    incarnation: Incarnation | None = None,
    endpoint: Endpoint | None = None,
) -> Request:
    body = _transaction(where, success, failure).encode()
    return Request(TXN, body, repeatable, incarnation, endpoint)


def _range(prefix: str) -> tuple[str, str]:
    return b64(prefix), b64(after(prefix))


class Requests:
    """The requests to a cluster under one prefix."""

    def __init__(self, naming: Naming) -> None:
        self.naming = naming
        # Without a read that has to be linearizable, etcd answers comparisons from what the member
        # itself has: one that lost its cluster would go on saying that all is well.
        self._current = (_read(naming.born64, "", _COUNT),)

    # -- the cluster --------------------------------------------------------------------------

    def status(self, endpoint: Endpoint) -> Request:
        """What a member has carried out."""
        return Request(_STATUS, b"{}", endpoint=endpoint)

    def nothing(self, endpoint: Endpoint) -> Request:
        """An entry of the log that changes nothing."""
        return _txn([_delete(self.naming.nothing64)], endpoint=endpoint)

    def marker(self) -> Request:
        """The marker by a linearizable read, and the longest ttl along with it."""
        asked = {"key": self.naming.born64, "range_end": self.naming.born_end64}
        return Request(_RANGE, json.dumps(asked).encode())

    def mark(self, found: Entry | None, value: str) -> Request:
        """Write the marker, if it is still the one that was found."""
        key = self.naming.born64
        unchanged = _modified(key, found.modified) if found else _absent(key)
        return _txn([_put(key, value)], where=[unchanged])

    def note_ttl(self, incarnation: Incarnation, ttl: float, modified: int) -> Request:
        """Write the longest ttl, if the one that is there was written at that revision."""
        key = self.naming.ttl64
        unchanged = [self._still(incarnation), _modified(key, modified)]
        return _txn([_put(key, packed(ttl=ttl))], where=unchanged)

    # -- etcd leases --------------------------------------------------------------------------

    def grant(self, whole: int, lease: int = 0) -> Request:
        """A new etcd lease of so many seconds, with an id of our choice or (0) of etcd's."""
        named = b',"ID":"%d"' % lease if lease else b""
        return Request("/v3/lease/grant", b'{"TTL":"%d"%b}' % (whole, named))

    def about(self, what: str, lease: str) -> Request:
        """`keepalive`, `timetolive` or `revoke` an etcd lease."""
        return Request(f"/v3/lease/{what}", b'{"ID":"%b"}' % lease.encode())

    # -- taking -------------------------------------------------------------------------------

    def take(
        self,
        state: ClaimState,
        ask: Ask,
        incarnation: Incarnation,
        *,
        admitted_by: int | None = None,
        own_slot: bool = False,
        slot_lease: str = "",
        standing: str = "",
    ) -> Request:
        """`admitted_by`: the revision of the closing that reserves it for the asker, 0 for none.

        None asks for less: nothing must be there, not even a notice for the holder before.
        `slot_lease`, `standing`: etcd leases of the slot and of the candidacy. A take in doubt is
        the caller's to repeat, who remembers that there were two.
        """
        names = self.naming.of(state.key)
        compare = [
            self._still(incarnation),
            _absent(names.late64(state.claim)),
            _absent(names.leases64, names.leases_end64),
        ]
        past = packed(holder=state.holder, since=state.since)
        success = [
            _put(names.lease64, _value_of(state), state.session.id),
            _put(state.past64, past, state.history),
        ]
        if _looks_after_history(state.claim):
            success.append(_read(*_range(f"{names.record}h/"), _OLDEST))
        if admitted_by is None:
            compare.append(_absent(names.switches64, names.switches_end64))
        else:
            compare += [_absent(names.pause64), _modified(names.closing64, admitted_by)]
            success += [_delete(names.closing64), _delete(names.resign64)]
        if ask.slot is not None and not own_slot:
            keep = ask.slot.keep
            compare.append(_absent(*_range(names.slot(ask.slot.name))))
            kept = packed(holder=state.holder, kept=keep, until=state.since + keep)
            success.append(_put(names.slot64(ask.slot.name, state.claim), kept, slot_lease))
        # Most takes that lose only need the holder; `look` reads the rest.
        failure = [_read(names.leases64, names.leases_end64, _FIRST)]
        if ask.candidacy > 0:
            success.append(_delete(names.candidate64(state.holder)))
            failure.append(_candidate(names, ask, state.since, standing))
            failure.append(_read(names.others64, names.record_end64, _COUNT))
        return _txn(success, failure, where=compare, repeatable=False, incarnation=incarnation)

    def held(self, ask: Ask, reply: Reply) -> Obstacles | None:
        """The holder that a refused take found, if there is one."""
        responses = reply["responses"]
        leases = entries_in(responses[0])
        if not leases:
            return None
        count = responses[-1]["response_range"].get("count", 0) if ask.candidacy > 0 else 0
        return Obstacles(leases[0], None, None, [], seen_in(leases), int(count))

    def stand_by(self, key: Key, ask: Ask, wall: float, lease: str) -> Request:
        """Note a candidate."""
        return _txn([_candidate(self.naming.of(key), ask, wall, lease)])

    def look(self, key: Key, claim: str, ask: Ask) -> Request:
        """The same reads without the take."""
        names = self.naming.of(key)
        reads = [
            _read(names.leases64, names.leases_end64, _FIRST),
            _read(names.switches64, names.switches_end64),
            _read(names.record64, names.others64, _NEWEST),
            _read(names.late64(claim), "", _COUNT),
            _read(self.naming.born64),
        ]
        if ask.slot is not None:
            reads.append(_read(*_range(names.slot(ask.slot.name))))
        return _txn(reads)

    def obstacles(self, key: Key, ask: Ask, reply: Reply) -> Obstacles:
        """The obstacles that `look` found."""
        responses = reply["responses"]
        leases, switches, others = map(entries_in, responses[:3])
        late, marker = responses[3]["response_range"], entries_in(responses[4])
        by_key = {entry.key: entry for entry in switches}
        start = self.naming.of(key).switches
        return Obstacles(
            leases[0] if leases else None,
            by_key.get(f"{start}{PAUSE}"),
            by_key.get(f"{start}closing"),
            entries_in(responses[5]) if ask.slot is not None else [],
            seen_in(leases or [*switches, *others]),
            given_up=int(late.get("count", 0)) > 0,
            marker=marker[0].value64 if marker else "",
        )

    def surplus(self, claim: str, reply: Reply) -> tuple[str, ...]:
        """Of a grant: the oldest of the history, where it is longer than it should be."""
        if not _looks_after_history(claim):
            return ()
        found = reply["responses"][2]["response_range"]
        too_many = int(found.get("count", 0)) - HISTORY_KEPT
        return tuple(kv["key"] for kv in found.get("kvs", ())[: max(0, too_many)])

    def candidates(self, key: Key) -> Request:
        """Read all candidates."""
        names = self.naming.of(key)
        return _txn([_read(names.others64, names.record_end64)])

    def remove(self, found: Sequence[str]) -> Request:
        """Remove keys beside a lease, at most one batch."""
        return _txn([_delete(b64(key)) for key in found[:BATCH]])

    # -- holding ------------------------------------------------------------------------------

    def again(
        self, state: ClaimState, ask: Ask, incarnation: Incarnation, *, write: bool
    ) -> Request:
        """Whether the lease is there; if so its holder is no candidate, as its take has noted.

        `write`: once more, with its present value and etcd lease.
        """
        names = self.naming.of(state.key)
        success = [*self._current]
        if write:
            success.append(_put(names.lease64, _value_of(state), state.session.id))
        if ask.candidacy > 0:
            success.append(_delete(names.candidate64(ask.holder)))
        compare = [self._still(incarnation), self._check(state)]
        return _txn(success, self._current, where=compare, incarnation=incarnation)

    def _still(self, incarnation: Incarnation) -> str:
        """The comparison that says that this is the incarnation that is known."""
        value = incarnation.value
        return f'{{"key":"{self.naming.born64}","target":"VALUE","value":"{value}"}}'

    def _check(self, state: ClaimState) -> str:
        """The comparison that says that the lease is there: a revision grants only once.

        That is, in one incarnation of the cluster.
        """
        return _created(self.naming.of(state.key).lease64, state.revision)

    def _ours(self, state: ClaimState, lease: str = "") -> list[str]:
        """The same in any incarnation: nobody else attaches a key to our etcd lease.

        `lease`: to which it is attached, where that is not the one of its session yet.
        """
        key, lease = self.naming.of(state.key).lease64, lease or state.session.id
        return [self._check(state), f'{{"key":"{key}","target":"LEASE","lease":"{lease}"}}']

    def all_quiet(
        self, batch: Sequence[ClaimState], incarnation: Incarnation, newest: ClaimState
    ) -> Request:
        """Whether all of them are there and no switch is set: of few of theirs, of many of any.

        `newest`: the one of this process that was granted last. Where it is ours there is also all
        that was written before it, so the others are those that were granted then.
        """
        compare = [self._still(incarnation), *self._ours(newest)]
        compare += [self._check(state) for state in batch if state is not newest]
        if len(batch) <= BATCH // 2:
            for names in [self.naming.of(state.key) for state in batch]:
                compare.append(_absent(names.switches64, names.switches_end64))
        else:
            for namespace in {state.key.namespace for state in batch}:
                compare.append(_absent(*_range(f"{self.naming.prefix}/{namespace}!s/")))
        return _txn(self._current, self._current, where=compare, incarnation=incarnation)

    def each(
        self, batch: Sequence[tuple[ClaimState, bool, str]], incarnation: Incarnation
    ) -> Request:
        """For each whether it is ours, and its switches; `True` writes its value anew.

        The third says to which etcd lease it is attached until then.
        """
        asked = []
        for state, write, lease in batch:
            names = self.naming.of(state.key)
            success = [_read(names.pause64), _read(names.resign64)]
            if write:
                success.append(_put(names.lease64, _value_of(state), state.session.id))
            asked.append(_nested(self._ours(state, lease), success))
        return _txn(asked, where=[self._still(incarnation)], incarnation=incarnation)

    def remove_leases(self, batch: Sequence[ClaimState]) -> Request:
        """Remove leases whose time ran out, unless they were granted anew or moved away."""
        return _txn([
            _nested(self._ours(state), [_delete(self.naming.of(state.key).lease64)])
            for state in batch
        ])  # fmt: skip

    def lookup(self, keys: Sequence[Key]) -> Request:
        """Read leases that this process does not know; records.entry_of finds their claims."""
        return _txn([_read(self.naming.of(key).lease64) for key in keys])

    # -- leaving ------------------------------------------------------------------------------

    def give(
        self,
        state: ClaimState,
        wall: float,
        *,
        base: int,
        closing: tuple[float, str, str] | None,
        slot: str | None,
    ) -> Request:
        """`closing`: seconds, its etcd lease, and for whom the name is reserved."""
        names = self.naming.of(state.key)
        past = packed(holder=state.holder, since=state.since, ended=wall, revision=state.revision)
        success = [_delete(names.lease64), _put(state.past64, past, state.history)]
        success += [_delete(key) for key in state.surplus if key != state.past64]
        if closing is not None:
            kept, etcd_lease, reserved_for = closing
            value = packed(
                holder=state.holder,
                token=base + state.revision,
                reserved_for=reserved_for,
                kept=kept,
                until=wall + kept,
            )
            success.append(_put(names.closing64, value, etcd_lease))
        failure = []
        if slot is not None:
            undo = _delete(names.slot64(slot, state.claim))
            success.append(undo)
            failure.append(undo)
        return _txn(success, failure, where=self._ours(state))

    def give_up(self, key: Key, claim: str, history: str, slot: str | None, wall: float) -> Request:
        """From now on a take of this claim comes too late; what stands at `key` is read after it.

        `history`: the etcd lease of the mark, which lives for a day at least.
        """
        names = self.naming.of(key)
        done = [_put(names.late64(claim), packed(given_up=wall), history), _read(names.lease64)]
        if slot is not None:
            done.append(_delete(names.slot64(slot, claim)))
        return _txn(done)

    def undo_slot(self, key: Key, claim: str, slot: str) -> Request:
        """Give a slot back, of a claim that holds nothing."""
        return _txn([_delete(self.naming.of(key).slot64(slot, claim))])

    # -- fields -------------------------------------------------------------------------------

    def put(self, key: Key, field: str, value: bytes | None, guard: Guard, base: int) -> Request:
        """Write or remove a field. Of a ByClaim that the claim has this token is known."""
        names = self.naming.of(key)
        field64 = names.field64(field)
        write = _delete(field64) if value is None else _put(field64, b64encode(value).decode())
        # The second try of a guarded write could meet the first one's value.
        return _txn([write], where=_guarded(names, field64, guard, base), repeatable=guard is None)

    # -- reading ------------------------------------------------------------------------------

    def read(self, key: Key) -> Request:
        """Everything of one key."""
        names = self.naming.of(key)
        return _txn([
            _read(names.leases64, names.leases_end64),
            _read(names.switches64, names.switches_end64),
            _read(names.record64, names.record_end64),
        ])  # fmt: skip

    def scan(self, namespace: str, prefix: str) -> Request:
        """Everything of the names that begin with `prefix`."""
        ranges = self.naming.ranges(namespace, prefix)
        return _txn([_read(b64(start), b64(end)) for start, end in ranges])

    def newest(self, key: Key) -> Request:
        """When any of it changed last."""
        names = self.naming.of(key)
        return _txn([
            _read(names.leases64, names.leases_end64, _NEWEST),
            _read(names.record64, names.others64, _NEWEST),
            _read(names.switches64, names.switches_end64, _NEWEST),
        ])  # fmt: skip

    def watch(self, key: Key, revision: int) -> Request:
        """One stream for all that makes a change, from `revision` on."""
        names = self.naming.of(key)
        ranges = (
            (names.leases64, names.leases_end64),
            (names.switches64, names.switches_end64),
            (names.record64, names.others64),
        )
        body = "".join(
            f'{{"create_request":{{"key":"{start}","range_end":"{end}",'
            f'"start_revision":"{revision}","watch_id":"{index}"}}}}'
            for index, (start, end) in enumerate(ranges, 1)
        )
        return Request("/v3/watch", body.encode())


def _looks_after_history(claim: str) -> bool:
    """One take of eight does: claims are random."""
    return claim[-1:] in "07"


def _candidate(names: Names, ask: Ask, wall: float, lease: str) -> str:
    value = packed(kept=ask.candidacy, until=wall + ask.candidacy)
    return _put(names.candidate64(ask.holder), value, lease)


def _value_of(state: ClaimState) -> str:
    """What stands under a lease's key."""
    meta = b64encode(state.meta).decode()
    who = {"claim": state.claim, "holder": state.holder}
    return packed(format=RECORD_FORMAT, **who, ttl=state.ttl, since=state.since, meta=meta)


def _guarded(names: Names, field64: str, guard: Guard, base: int) -> list[str]:
    match guard:
        case Absent():
            return [_absent(field64)]
        case ByVersion(version):
            # A key that is not there compares as version 0.
            return [_modified(field64, version if version > 0 else -1)]
        case ByClaim(_, token):
            revision = token - base
            return [_created(names.lease64, revision if revision > 0 else -1)]
        case _:
            return []
