"""The plan of each operation: a program that yields requests to etcd, without a connection."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.model import (
    PLAIN,
    Absent,
    Ask,
    ByClaim,
    ByVersion,
    GiveOutcome,
    Gone,
    Guard,
    Key,
    Parting,
    PutOutcome,
    Record,
    Released,
    Renewal,
    RenewOutcome,
    Stale,
    Stored,
    TakeOutcome,
)
from incumbent.net.pool import outcome_of_repeat
from incumbent.stores.etcd import foreign, kv
from incumbent.stores.etcd.incarnation import Cluster
from incumbent.stores.etcd.kv import EtcdProgram, GatewayRequest, KeyValue, Kinds, Reply
from incumbent.stores.etcd.renewing import renew
from incumbent.stores.etcd.sessions import ClaimState, unremembered_state
from incumbent.stores.etcd.site import LeaseMissing
from incumbent.stores.etcd.taking import EtcdTake
from incumbent.stores.plan import Plan

_KEEP_HISTORY: Final = 86_400.0
_ASKED_MAX: Final = 16
"""Most etcd leases whose remaining time one read asks etcd for; others go by the writer's clock."""


class EtcdDialect:
    """The dialect of etcd (see stores.plan.Dialect). Both sides of an engine share `cluster`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._sessions = cluster.sessions
        self._where = cluster.site.where

    def take(self, key: Key, claim: str, ask: Ask) -> Plan[None, TakeOutcome]:
        start = lambda *_: EtcdTake(self.cluster, key, claim, ask).run()  # noqa: E731 - as the others
        return Plan("take", start, (key,), repeatable=False, ttl=ask.ttl)

    def renew(self, renewals: Sequence[Renewal]) -> Plan[None, list[RenewOutcome]]:
        return Plan("renew", lambda *_: renew(self.cluster, renewals), renewals=renewals)

    def give(
        self, key: Key, claim: str, token: int | None, parting: Parting = PLAIN
    ) -> Plan[None, GiveOutcome]:
        give = _EtcdGive(self.cluster, key, claim, token, parting)
        return Plan("give", lambda *_: give.run(), (key,))

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard
    ) -> Plan[None, PutOutcome]:
        start = lambda *_: self._write(key, field, value, guard)  # noqa: E731 - as the others
        return Plan("put", start, (key,), repeatable=guard is None)

    def read(self, key: Key) -> Plan[None, Record]:
        return Plan("read", lambda *_: self._record(key), (key,))

    def scan(self, namespace: str, prefix: str) -> Plan[None, tuple[Record, ...]]:
        return Plan("scan", lambda *_: self._scan(namespace, prefix))

    # -- fields -------------------------------------------------------------------------------

    def _write(
        self, key: Key, field: str, value: bytes | None, guard: Guard
    ) -> EtcdProgram[PutOutcome]:
        names = kv.names_of(self.cluster.prefix, key)
        stored_at, conditions = names.field(field), []
        match guard:
            case Absent():
                conditions = [kv.absent(stored_at)]
            case ByVersion(version):
                # A missing key compares as version 0.
                conditions = [kv.modified(stored_at, version if version > 0 else -1)]
            case ByClaim(claim, token):
                base = yield from self.cluster.token_base()
                state = yield from self._sessions.find(key, claim, token, base)
                if state is None or state.permits is not None:
                    return Stale()
                conditions = [kv.created(names.held, token - base)]
        stored = None if value is None else b64encode(value).decode()
        write = kv.delete(stored_at) if stored is None else kv.put(stored_at, stored)
        # A second try of a guarded write could find the value of the first try.
        reply = yield kv.transaction([write], where=conditions, repeatable=guard is None)
        if not reply.get("succeeded"):
            return Stale()
        return Stored(0 if value is None else kv.revision_of(reply))

    # -- reading ------------------------------------------------------------------------------

    def _record(self, key: Key) -> EtcdProgram[Record]:
        names = kv.names_of(self.cluster.prefix, key)
        areas = (names.contenders, names.switches, names.record)
        reply = yield kv.transaction([kv.read_all(area) for area in areas])
        found = kv.by_name(self.cluster.prefix, key.namespace, _all_entries(reply))
        if not found:
            return Record(key)
        (record,) = yield from self._records(found)
        self._sessions.remember_seen(key, record.seen, kv.revision_of(reply))
        return record

    def _scan(self, namespace: str, name: str) -> EtcdProgram[tuple[Record, ...]]:
        prefix = self.cluster.prefix
        ranges = kv.scan_ranges(prefix, namespace, name)
        reply = yield kv.transaction([kv.read(start, end) for start, end in ranges])
        found = kv.by_name(prefix, namespace, _all_entries(reply))
        known = {key: it for key, it in found.items() if not foreign.is_only_waited_for(it)}
        return (yield from self._records(known))

    def _records(self, found: dict[Key, Kinds]) -> EtcdProgram[tuple[Record, ...]]:
        base = yield from self.cluster.token_base()
        # Leases and closings end soon, so their remaining time matters.
        timed = {
            entry.etcd_lease
            for kinds in found.values()
            for kind, entries in kinds.items()
            if kind.startswith("/")
            for _, entry in entries
        }
        lives = yield from self._sessions.seconds_left(set(sorted(timed)[:_ASKED_MAX]))
        wall = clock.wall()
        records = []
        for key in sorted(found):
            entries = [entry for _, entry in found[key]["/contender"]]
            contenders = foreign.contenders(kv.names_of(self.cluster.prefix, key), entries)
            records.append(kv.record_of(key, found[key], contenders, base, lives, wall))
        return tuple(records)

    # -- waiting ------------------------------------------------------------------------------

    def _watched_ranges(self, key: Key) -> list[tuple[str, str]]:
        """The ranges in which a write is a change: leases, record without candidates, switches."""
        names = kv.names_of(self.cluster.prefix, key)
        return [
            *foreign.ranges_without_ticket(names),
            (names.record, names.candidates),
            (names.switches, kv.after(names.switches)),
        ]

    def unchanged_since(self, key: Key, seen: str) -> EtcdProgram[int]:
        """The revision from which to watch; 0 if the state is not the one that was seen."""
        reply = yield kv.transaction(
            [kv.read(*area, kv.NEWEST) for area in self._watched_ranges(key)]
        )
        halves = reply["responses"][:2], reply["responses"][2:]
        contenders, others = (
            [entry for area in areas for entry in kv.entries_in(area)] for areas in halves
        )
        count = sum(map(kv.count_of, halves[0 if contenders else 1]))
        now = kv.seen_in(contenders, others, count)
        return kv.revision_of(reply) + 1 if now == seen else 0

    def watch(self, key: Key, revision: int) -> GatewayRequest:
        """The request for one stream of all changes, from `revision` on."""
        return kv.watch(self._watched_ranges(key), revision)


@dataclass
class _EtcdGive:
    """The give of one lease."""

    cluster: Cluster
    key: Key
    claim: str
    token: int | None
    parting: Parting

    def __post_init__(self) -> None:
        self.id = (self.key, self.claim)
        self.sessions = self.cluster.sessions
        self.names = names = kv.names_of(self.cluster.prefix, self.key)
        slot = self.parting.slot
        self.free_slot = [] if slot is None else [kv.delete(names.slot(slot, self.claim))]

    def run(self) -> EtcdProgram[GiveOutcome]:
        if self.token == 0 and self.parting.slot is None:
            yield from self._undo()
            return Gone()
        base = (yield from self.cluster.identify()).token_base
        why = ""
        for _ in range(3):
            try:
                find = self._given_up() if self.token is None else self._held(base)
                state = yield from find
                if state is None:
                    return Gone()
                if (yield from self._give(state, base)):
                    return Released()
                # The key differs from what this process remembers: read it.
                why = f"the key of {self.key.name!r} was changed before each try to give it back"
            except LeaseMissing:
                why = "etcd leases vanish as soon as they are made"
                # The history's etcd lease is gone: it was remembered for too long.
                self.sessions.history_leases.clear()
                known = self.sessions.claims.get(self.id)
                if known is not None:
                    known.history_lease = yield from self.sessions.history_lease(_KEEP_HISTORY)
        raise StoreUnavailable(f"{self.cluster.site.where}: {why}")

    def _held(self, base: int) -> EtcdProgram[ClaimState | None]:
        """The claim to give back; None if it holds no lease: its slot is free again then."""
        state = yield from self.sessions.find(self.key, self.claim, self.token, base)
        if state is not None:
            return state
        known = self.sessions.claims.get(self.id)
        if known is not None and not known.revision:
            self.sessions.forget_claim(*self.id)
        yield from self._undo()
        return None

    def _undo(self) -> EtcdProgram[None]:
        """For a claim that holds nothing: leave its slot, and the line."""
        undo = [*self.free_slot, *self.sessions.places.removal(self.key, self.claim)]
        if undo:
            yield kv.transaction(undo)
        self.sessions.places.forget(self.key, self.claim)

    def _given_up(self) -> EtcdProgram[ClaimState | None]:
        """As `_held`, for a claim whose token is not known: first forbid a late take, then read."""
        # The mark that forbids it lives for at least a day.
        known = self.sessions.claims.get(self.id)
        history = yield from self.sessions.history_lease(_KEEP_HISTORY)
        mark = kv.packed(given_up=clock.wall())
        done = [kv.put(self.names.given_up(self.claim), mark, history), kv.read_ours(self.names)]
        leave = self.sessions.places.removal(self.key, self.claim)
        # In one step: a take that came before is found here, and one that comes
        # later finds the mark.
        reply = yield kv.transaction([*done, *self.free_slot, *leave])
        self.sessions.places.forget(self.key, self.claim)
        entry = kv.entry_of(self.claim, reply["responses"][1])
        if entry is None:
            self.sessions.forget_claim(*self.id)
            return None
        if known is not None and known.revision == entry.created:
            return known
        return unremembered_state(self.key, entry)

    def _give(self, state: ClaimState, base: int) -> EtcdProgram[bool]:
        closing, closed_for = None, self.parting.closed_for
        if closed_for > 0:
            # Before the transaction, which names it. If that fails, nothing is
            # attached, and it just ends.
            closing = yield from self.sessions.grant(kv.seconds(closed_for))
        if not state.history_key:
            # Another process took the lease.
            state.history_lease = yield from self.sessions.history_lease(_KEEP_HISTORY)
            state.history_key = self.sessions.history_key(self.key)
            self.sessions.note_history_written(self.key)
        wall = clock.wall()
        past = kv.packed(
            holder=state.holder, since=state.since, ended=wall, revision=state.revision
        )
        success = [
            *self.sessions.removal(state),
            kv.put(state.history_key, past, state.history_lease),
        ]
        success += [kv.delete(key) for key in state.surplus if key != state.history_key]
        if closing is not None:
            value = kv.packed(
                holder=state.holder,
                token=base + state.revision,
                reserved_for=self.parting.reserve_for or "",
                kept=closed_for,
                until=wall + closed_for,
            )
            success.append(kv.put(self.names.closing, value, closing.id))
        reply = yield kv.transaction(
            [*success, *self.free_slot], self.free_slot, where=self.sessions.key_compared(state)
        )
        if reply.get("succeeded"):
            self.sessions.forget_claim(*self.id)
            return True
        known = self.sessions.claims.get(self.id)
        if known is not None:
            self.sessions.must_reread(known)
        # The first try may have given it back, so "gone" would be no proof of a loss.
        if reply[kv.REPEATED]:
            outcome_of_repeat(Gone(), self.cluster.site.where)
        return False


def _all_entries(reply: Reply) -> list[KeyValue]:
    return [entry for response in reply.get("responses", ()) for entry in kv.entries_in(response)]
