"""The plan of each operation: programs that yield requests of etcd. No connection in sight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.model import (
    Ask,
    ByClaim,
    GiveOutcome,
    Gone,
    Guard,
    Key,
    PutOutcome,
    Record,
    Released,
    Renewal,
    RenewOutcome,
    Stale,
    Stored,
    TakeOutcome,
)
from incumbent.stores.etcd.errors import LeaseMissing
from incumbent.stores.etcd.incarnation import Incarnation
from incumbent.stores.etcd.leases import Leases
from incumbent.stores.etcd.marker import Markers
from incumbent.stores.etcd.records import Entry, entries_in, entry_of, record_of, seen_in
from incumbent.stores.etcd.renewing import Renewing
from incumbent.stores.etcd.requests import REPEATED, Reply, Requests, Steps, revision_of, seconds
from incumbent.stores.etcd.sessions import ClaimState, Memory, Session, state_of
from incumbent.stores.etcd.site import Site
from incumbent.stores.etcd.taking import Taking
from incumbent.stores.plan import Plan
from incumbent.stores.repeats import heard_again

__all__ = ["Dialect"]

_KEEP_HISTORY: Final = 86_400.0
_ASKED_MAX: Final = 16
"""For so many etcd leases of one read the remaining time is asked; for others the writer's clock is
used."""


class Dialect:
    """See stores.plan.Dialect. `memory` is what both sides of an engine share."""

    def __init__(self, site: Site, requests: Requests) -> None:
        self.requests = requests
        self.memory = Memory()
        self.markers = Markers(site, requests, self.memory)
        self._leases = Leases(requests, self.memory)
        self._taking = Taking(self.markers, self._leases)
        self._renewing = Renewing(self.markers, self._leases)
        self._where = site.where

    def take(self, key: Key, claim: str, ask: Ask) -> Plan[None, TakeOutcome]:
        return Plan(
            "take",
            lambda *_: self._taking.take(key, claim, ask),
            (key,),
            repeatable=False,
            ttl=ask.ttl,
        )

    def renew(self, renewals: Sequence[Renewal]) -> Plan[None, list[RenewOutcome]]:
        return Plan("renew", lambda *_: self._renewing.renew(renewals), renewals=renewals)

    def give(
        self,
        key: Key,
        claim: str,
        token: int | None,
        *,
        closed_for: float = 0.0,
        reserve_for: str | None = None,
        slot: str | None = None,
    ) -> Plan[None, GiveOutcome]:
        closing = (closed_for, reserve_for or "")
        return Plan("give", lambda *_: self._leave(key, claim, token, closing, slot), (key,))

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard
    ) -> Plan[None, PutOutcome]:
        start = lambda *_: self._write(key, field, value, guard)  # noqa: E731 - as the others
        return Plan("put", start, (key,), repeatable=guard is None)

    def read(self, key: Key) -> Plan[None, Record]:
        return Plan("read", lambda *_: self._record(key), (key,))

    def scan(self, namespace: str, prefix: str) -> Plan[None, tuple[Record, ...]]:
        return Plan("scan", lambda *_: self._records(namespace, prefix))

    # -- leaving ------------------------------------------------------------------------------

    def _leave(
        self,
        key: Key,
        claim: str,
        token: int | None,
        closing: tuple[float, str],
        slot: str | None,
    ) -> Steps[GiveOutcome]:
        incarnation = yield from self.markers.identify()
        for _ in range(3):
            try:
                state = yield from self._held(key, claim, token, incarnation.base, slot)
                if state is None:
                    return Gone()
                given = yield from self._give(state, incarnation, closing, slot)
                if given:
                    return Released()
                # The key is not as it was remembered: look at it.
            except LeaseMissing:
                # The history's: it outlived its own.
                self.memory.histories.clear()
                known = self.memory.claims.get((key, claim))
                if known is not None:
                    known.history = yield from self._leases.history(_KEEP_HISTORY)
        raise StoreUnavailable(f"{self._where}: etcd leases vanish as soon as they are made")

    def _held(
        self, key: Key, claim: str, token: int | None, base: int, slot: str | None
    ) -> Steps[ClaimState | None]:
        """The claim that is to be given back; None: there is none, and its slot is free again."""
        known = self.memory.claims.get((key, claim))
        if token is None:
            return (yield from self._given_up(key, claim, known, slot))
        if known is not None and _is(known, token, base):
            return known
        if known is not None and not known.revision:
            self.memory.drop(key, claim)
        state = yield from self._stored(key, claim)
        if state is not None and _is(state, token, base):
            return state
        if slot is not None:
            yield self.requests.undo_slot(key, claim, slot)
        return None

    def _given_up(
        self, key: Key, claim: str, known: ClaimState | None, slot: str | None
    ) -> Steps[ClaimState | None]:
        """The same for a claim without a known token: first forbid a late take, then look."""
        history = yield from self._leases.history(_KEEP_HISTORY)
        reply = yield self.requests.give_up(key, claim, history, slot, clock.wall())
        entry = entry_of(claim, reply["responses"][1])
        if entry is None:
            self.memory.drop(key, claim)
            return None
        if known is not None and known.revision == entry.created:
            return known
        return state_of(key, entry, Session(entry.lease, 1, 0.0), 0.0)

    def _stored(self, key: Key, claim: str) -> Steps[ClaimState | None]:
        """A claim of which this process remembers nothing, as its key says."""
        reply = yield self.requests.lookup([key])
        entry = entry_of(claim, reply["responses"][0])
        return entry and state_of(key, entry, Session(entry.lease, 1, 0.0), 0.0)

    def _give(
        self,
        state: ClaimState,
        incarnation: Incarnation,
        closing: tuple[float, str],
        slot: str | None,
    ) -> Steps[bool]:
        closed_for, reserved_for = closing
        closed = None
        if closed_for > 0:
            lease = yield from self._leases.grant(seconds(closed_for))
            closed = (closed_for, lease.id, reserved_for)
        if not state.past64:
            # Another process took it.
            state.history = yield from self._leases.history(_KEEP_HISTORY)
            place = self.memory.place(state.key)
            state.past64 = self.requests.naming.of(state.key).past64(place)
            self.memory.placed(state.key)
        reply = yield self.requests.give(
            state,
            clock.wall(),
            base=incarnation.base,
            closing=closed,
            slot=slot,
        )
        self.memory.drop(state.key, state.claim)
        if reply[REPEATED] and not reply.get("succeeded"):
            heard_again(Gone(), self._where)
        return bool(reply.get("succeeded"))

    # -- fields -------------------------------------------------------------------------------

    def _write(self, key: Key, field: str, value: bytes | None, guard: Guard) -> Steps[PutOutcome]:
        base = 0
        if isinstance(guard, ByClaim):
            base = yield from self.markers.base()
            state = self.memory.claims.get((key, guard.claim))
            if state is None or not _is(state, guard.token, base):
                state = yield from self._stored(key, guard.claim)
            if state is None or not _is(state, guard.token, base):
                return Stale()
        reply = yield self.requests.put(key, field, value, guard, base)
        if not reply.get("succeeded"):
            return Stale()
        return Stored(0 if value is None else revision_of(reply))

    # -- reading ------------------------------------------------------------------------------

    def _record(self, key: Key) -> Steps[Record]:
        reply = yield self.requests.read(key)
        entries = _all_entries(reply)
        if not entries:
            return Record(key)
        (record,) = yield from self._read_from({key: entries})
        self.memory.note_seen(key, record.seen, revision_of(reply))
        return record

    def _records(self, namespace: str, prefix: str) -> Steps[tuple[Record, ...]]:
        reply = yield self.requests.scan(namespace, prefix)
        by_key: dict[Key, list[Entry]] = {}
        for entry in _all_entries(reply):
            place = self.requests.naming.parse(namespace, entry.key)
            if place is not None:
                by_key.setdefault(place[0], []).append(entry)
        return (yield from self._read_from(by_key))

    def _read_from(self, by_key: dict[Key, list[Entry]]) -> Steps[tuple[Record, ...]]:
        base = yield from self.markers.base()
        # Leases and closings end soon, so their remaining time matters.
        entries = [entry for found in by_key.values() for entry in found]
        timed = {entry.lease for entry in entries if "!r/" not in entry.key}
        lives = yield from self._leases.lives(set(sorted(timed)[:_ASKED_MAX]))
        wall, naming = clock.wall(), self.requests.naming
        return tuple(
            record_of(key, naming, by_key[key], base, lives, wall) for key in sorted(by_key)
        )

    def unchanged_since(self, key: Key, seen: str) -> Steps[int]:
        """From which revision to watch; 0 if it is not as it was seen."""
        reply = yield self.requests.newest(key)
        leases, *others = map(entries_in, reply["responses"])
        newest = seen_in(leases or [entry for entries in others for entry in entries])
        return revision_of(reply) + 1 if newest == seen else 0


def _is(state: ClaimState, token: int | None, base: int) -> bool:
    """Whether it is known when it was granted, and with this token if one is given."""
    return state.revision > 0 and token in {None, base + state.revision}


def _all_entries(reply: Reply) -> list[Entry]:
    return [entry for response in reply.get("responses", ()) for entry in entries_in(response)]
