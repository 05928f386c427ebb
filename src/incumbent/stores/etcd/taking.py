"""Taking a lease: one transaction, unless a slot, a reservation or a repeat needs a second."""

from __future__ import annotations

from base64 import b64encode
from contextlib import suppress
from typing import Final, NamedTuple

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Ask, Granted, Holding, Key, Refused, TakeOutcome
from incumbent.stores.etcd.errors import LeaseMissing, Reborn
from incumbent.stores.etcd.incarnation import Cluster, Incarnation
from incumbent.stores.etcd.records import (
    RECORD_FORMAT,
    Entry,
    Names,
    after,
    entries_in,
    holding_of,
    packed,
    seen_in,
    surplus_candidates,
)
from incumbent.stores.etcd.requests import (
    BATCH,
    COUNT,
    NEWEST,
    Reply,
    Request,
    Steps,
    absent,
    created,
    delete,
    free,
    lease_request,
    modified,
    put,
    read,
    read_all,
    revision_of,
    seconds,
    term_of,
    transaction,
)
from incumbent.stores.etcd.sessions import ClaimState, state_of
from incumbent.stores.notices import PAUSE, RESIGN
from incumbent.stores.table import CANDIDATES_KEPT, HISTORY_KEPT

__all__ = ["Take", "value_of"]

_ROUNDS: Final = 6
_FIRST: Final = ',"sort_order":"ASCEND","sort_target":"CREATE"'
_OLDEST: Final = ',"sort_order":"ASCEND","sort_target":"CREATE","limit":"24","keys_only":true'

_now = clock.now


class Obstacles(NamedTuple):
    """What stands in the way of a take."""

    revision: int
    seen: str
    lease: Entry | None = None
    pause: Entry | None = None
    closing: Entry | None = None
    slots: tuple[Entry, ...] = ()
    candidates: int = 0
    given_up: bool = False
    marker: str = ""

    def __bool__(self) -> bool:
        return any((self.lease, self.pause, self.closing, self.slots, self.given_up))


class Take:
    """One take; a refusal leaves here what the next round needs.

    `admitted_by`: the revision of the closing that reserves the name for the asker, 0 for none.
    None asks for less: nothing must be there, not even a notice for the holder before.
    `own_slot`: this very claim has taken the slot before; `slot_lease`: the slot's etcd lease.
    """

    def __init__(self, cluster: Cluster, key: Key, claim: str, ask: Ask) -> None:
        self.cluster = cluster
        self.sessions = cluster.sessions
        self.names = Names(cluster.prefix, key)
        self.key = key
        self.claim = claim
        self.ask = ask
        self.admitted_by: int | None = None
        self.own_slot = False
        self.slot_lease = ""

    def run(self) -> Steps[TakeOutcome]:
        for _ in range(_ROUNDS):
            try:
                incarnation = yield from self.cluster.admit(self.ask.ttl)
                outcome = yield from self._round(incarnation)
            except LeaseMissing:
                self._distrust()
                continue
            except Reborn:
                self.slot_lease = ""
                continue
            if outcome is not None:
                if self.slot_lease and isinstance(outcome, Refused):
                    # The slot was not taken. Left alone, its etcd lease ends by itself.
                    with suppress(StoreError, LeaseMissing):
                        yield lease_request("revoke", self.slot_lease)
                return outcome
        where = self.cluster.site.where
        raise StoreUnavailable(f"{where}: what stands at {self.key} keeps changing")

    def _distrust(self) -> None:
        """One of the etcd leases is gone, and the answer does not say which."""
        session = self.sessions.by_ttl.get(seconds(self.ask.ttl))
        if session is not None:
            self.sessions.lose(session)
        self.sessions.histories.pop(seconds(self.ask.keep_record), None)
        self.sessions.standing.pop((self.key, self.ask.holder), None)
        self.slot_lease = ""

    def _round(self, incarnation: Incarnation) -> Steps[TakeOutcome | None]:
        """None: it was not granted, and nothing that stands there says why (any more)."""
        ask, sessions = self.ask, self.sessions
        wants_slot = ask.slot is not None and not self.own_slot and not self.slot_lease
        if wants_slot or not sessions.has(ask.ttl):
            # Most takes are refused, and should leave no etcd lease behind.
            found = yield from self._look()
            if found:
                outcome = yield from self._obstructed(incarnation, found)
                if outcome is not None:
                    yield from self._stand_by(outcome)
                    return outcome
            self.own_slot = bool(found.slots) and not self._slots_of_others(found)
            if ask.slot is not None and not self.own_slot:
                slot_session = yield from sessions.grant(seconds(ask.slot.keep))
                self.slot_lease = slot_session.id
        session = yield from sessions.session(ask.ttl)
        if not self.cluster.knows(incarnation.value):
            return None
        history = yield from sessions.history(ask.keep_record)
        state = ClaimState(
            *(self.key, self.claim, session, _now() + ask.ttl),
            *(ask.holder, clock.wall(), ask.ttl, ask.meta),
            history=history,
            past=sessions.past(self.key),
        )
        return (yield from self._send(incarnation, state))

    def _send(self, incarnation: Incarnation, state: ClaimState) -> Steps[TakeOutcome | None]:
        cluster, sessions, session = self.cluster, self.sessions, state.session
        candidacy = (yield from self._candidacy()) if self.ask.candidacy > 0 else ""
        request = self.request(incarnation, state, candidacy)
        before = sessions.claims.get(state.place)
        proof, sent = session.pending, _now()
        # Noted before it is sent: if nobody ever hears of it, it is removed when its time is over.
        sessions.note(state)
        try:
            reply = yield request
        except (StoreUnavailable, LeaseMissing):
            self._restore(state, before)
            raise
        except OutcomeUnknown:
            sessions.placed(self.key)
            raise
        session.confirm(proof, term_of(reply))
        if reply.get("succeeded"):
            sessions.placed(self.key)
            state.revision = revision_of(reply)
            state.due = sent + self.ask.ttl
            state.surplus = self._surplus(reply)
            return _granted(state, incarnation, sent)
        self._restore(state, before)
        found = self._holder(reply)
        if found is None:
            found = yield from self._look()
            if found.marker != incarnation.value:
                cluster.disown()
                return None
        return (yield from self._obstructed(incarnation, found))

    def _restore(self, state: ClaimState, before: ClaimState | None) -> None:
        self.sessions.drop(*state.place)
        if before is not None and not before.session.gone:
            self.sessions.note(before)

    # -- requests -----------------------------------------------------------------------------

    def request(self, incarnation: Incarnation, state: ClaimState, candidacy: str) -> Request:
        """A take in doubt is the caller's to repeat, who remembers that there were two."""
        names, ask, admitted_by = self.names, self.ask, self.admitted_by
        compare = [
            self.cluster.still(incarnation),
            absent(names.late(self.claim)),
            free(names.leases),
        ]
        past = packed(holder=state.holder, since=state.since)
        success = [
            put(names.lease, value_of(state), state.session.id),
            put(state.past, past, state.history),
        ]
        if self._looks_after_history():
            success.append(read_all(f"{names.record}h/", _OLDEST))
        if admitted_by is None:
            compare.append(free(names.switches))
        else:
            compare += [absent(names.field(PAUSE)), modified(names.closing, admitted_by)]
            success += [delete(names.closing), delete(names.field(RESIGN))]
        if ask.slot is not None and not self.own_slot:
            keep = ask.slot.keep
            compare.append(free(names.slot(ask.slot.name)))
            kept = packed(holder=state.holder, kept=keep, until=state.since + keep)
            success.append(put(names.slot(ask.slot.name, self.claim), kept, self.slot_lease))
        # Most takes that lose only need the holder; `_look` reads the rest.
        failure = [read_all(names.leases, _FIRST)]
        if ask.candidacy > 0:
            success.append(delete(names.candidate(state.holder)))
            failure.append(self._as_candidate(state.since, candidacy))
            failure.append(read(names.waiting, after(names.record), COUNT))
        return transaction(
            success, failure, where=compare, repeatable=False, marker=incarnation.value
        )

    def _looks_after_history(self) -> bool:
        """One take of eight does: claims are random."""
        return self.claim[-1:] in "07"

    def _surplus(self, reply: Reply) -> tuple[str, ...]:
        """Of a grant: the oldest of the history, where it is longer than it should be."""
        if not self._looks_after_history():
            return ()
        found = reply["responses"][2]
        too_many = int(found["response_range"].get("count", 0)) - HISTORY_KEPT
        return tuple(entry.key for entry in entries_in(found)[: max(0, too_many)])

    def _holder(self, reply: Reply) -> Obstacles | None:
        """The holder that a refused take found, if there is one."""
        responses = reply["responses"]
        leases = entries_in(responses[0])
        if not leases:
            return None
        waiting = responses[-1]["response_range"] if self.ask.candidacy > 0 else {}
        count = int(waiting.get("count", 0))
        return Obstacles(revision_of(reply), seen_in(leases), leases[0], candidates=count)

    def _look(self) -> Steps[Obstacles]:
        """All that may stand in the way, without a take."""
        names, slot = self.names, self.ask.slot
        reads = [
            read_all(names.leases, _FIRST),
            read_all(names.switches),
            read(names.record, names.waiting, NEWEST),
            read(names.late(self.claim), more=COUNT),
            read(self.cluster.marker),
        ]
        if slot is not None:
            reads.append(read_all(names.slot(slot.name)))
        reply = yield transaction(reads)
        responses = reply["responses"]
        leases, switches, others = map(entries_in, responses[:3])
        late, marker = responses[3]["response_range"], entries_in(responses[4])
        by_key = {entry.key: entry for entry in switches}
        return Obstacles(
            revision_of(reply),
            seen_in(leases or [*switches, *others]),
            leases[0] if leases else None,
            by_key.get(names.field(PAUSE)),
            by_key.get(names.closing),
            tuple(entries_in(responses[5])) if slot is not None else (),
            given_up=int(late.get("count", 0)) > 0,
            marker=marker[0].value64 if marker else "",
        )

    # -- candidates ---------------------------------------------------------------------------

    def _candidacy(self) -> Steps[str]:
        """The etcd lease of the asker's candidacy."""
        return (yield from self.sessions.candidacy((self.key, self.ask.holder), self.ask.candidacy))

    def _as_candidate(self, wall: float, lease: str) -> str:
        kept = self.ask.candidacy
        value = packed(kept=kept, until=wall + kept)
        return put(self.names.candidate(self.ask.holder), value, lease)

    def _stand_by(self, outcome: TakeOutcome) -> Steps[None]:
        """A refusal that came without a take leaves its candidate all the same."""
        if isinstance(outcome, Refused) and self.ask.candidacy > 0:
            lease = yield from self._candidacy()
            yield transaction([self._as_candidate(clock.wall(), lease)])

    def _prune(self) -> Steps[None]:
        """Remove surplus candidates: those whose time ends first."""
        reply = yield transaction([read(self.names.waiting, after(self.names.record))])
        surplus = surplus_candidates(entries_in(reply["responses"][0]))
        if surplus:
            yield transaction([delete(key) for key in surplus[:BATCH]])

    # -- what stands there --------------------------------------------------------------------

    def _obstructed(self, incarnation: Incarnation, found: Obstacles) -> Steps[TakeOutcome | None]:
        self.sessions.note_seen(self.key, found.seen, found.revision)
        if found.given_up:
            return Refused("closed", seen=found.seen)
        if found.candidates > CANDIDATES_KEPT:
            yield from self._prune()
        lease = found.lease
        if lease is not None and lease.fields.get("claim") == self.claim:
            return (yield from self._same_grant(incarnation, lease))
        return (yield from self._refusal(incarnation, found))

    def _refusal(self, incarnation: Incarnation, found: Obstacles) -> Steps[Refused | None]:
        if found.lease is not None:
            holding = holding_of(found.lease, incarnation.base, {}, clock.wall())
            # The key of a holder that died goes with its etcd lease, and a watch shows that.
            return Refused("held", (holding,), holding.ttl, found.seen)
        if found.pause is not None:
            return Refused("paused", seen=found.seen)
        # The next round asks for the absence of real obstacles only.
        self.admitted_by = 0
        if found.closing is not None:
            reserved_for = found.closing.fields.get("reserved_for")
            if not reserved_for or reserved_for != self.ask.holder:
                return (yield from self._closed(incarnation, found.closing, found.seen))
            self.admitted_by = found.closing.modified
        slots = self._slots_of_others(found)
        if slots:
            return (yield from self._closed(incarnation, slots[0], found.seen))
        self.own_slot = bool(found.slots)
        return None

    def _slots_of_others(self, found: Obstacles) -> list[Entry]:
        """The slot as other claims took it."""
        own = self.names.slot(self.ask.slot.name, self.claim) if self.ask.slot else ""
        return [entry for entry in found.slots if entry.key != own]

    def _closed(self, incarnation: Incarnation, closing: Entry, seen: str) -> Steps[Refused]:
        fields = closing.fields
        lives = yield from self.sessions.lives({closing.lease})
        left = lives.get(closing.lease)
        if left is not None and left <= 0:
            left = 0.5  # it is over, and its key is about to go
        reserved_for = str(fields.get("reserved_for", ""))
        if reserved_for:
            return Refused("reserved", (Holding(reserved_for, 0, left),), left, seen)
        token = int(fields.get("token", incarnation.base + closing.created))
        return Refused("closed", (Holding(str(fields.get("holder", "")), token, left),), left, seen)

    # -- the same claim again -----------------------------------------------------------------

    def _same_grant(self, incarnation: Incarnation, lease: Entry) -> Steps[Granted | None]:
        """Its token, and the ttl becomes max(remaining, ttl)."""
        ask, sessions = self.ask, self.sessions
        ttl = max(ask.ttl, float(lease.fields.get("ttl", 0.0)))
        session = sessions.by_id.get(lease.lease)
        moves = session is None or session.gone or session.ttl < seconds(ttl)
        if session is None or moves:
            session = yield from sessions.session(ttl)
        elif not session.is_fresh(_now()):
            yield from sessions.keep_alive(session)
        known = sessions.claims.get((self.key, self.claim))
        state = state_of(self.key, lease, session, _now() + ttl)
        state.ttl = ttl
        if known is not None and known.revision == state.revision:
            state.due = max(known.ends, _now() + ask.ttl)
            state.history, state.surplus, state.past = known.history, known.surplus, known.past
        proof, sent = session.pending, _now()
        if moves:
            # If nobody hears of it, the key says with which etcd lease it lives.
            sessions.drop(self.key, self.claim)
        reply = yield self.repeat(incarnation, state, write=moves)
        session.confirm(proof, term_of(reply))
        if not reply.get("succeeded"):
            sessions.drop(self.key, self.claim)
            return None
        sessions.note(state)
        return _granted(state, incarnation, sent)

    def repeat(self, incarnation: Incarnation, state: ClaimState, *, write: bool) -> Request:
        """Whether the lease is there; if so its holder is no candidate, as its take has noted.

        `write`: once more, with its present value and etcd lease.
        """
        success = [self.cluster.current]
        if write:
            success.append(put(self.names.lease, value_of(state), state.session.id))
        if self.ask.candidacy > 0:
            success.append(delete(self.names.candidate(self.ask.holder)))
        compare = [self.cluster.still(incarnation), created(self.names.lease, state.revision)]
        return transaction(success, [self.cluster.current], where=compare, marker=incarnation.value)


def _granted(state: ClaimState, incarnation: Incarnation, sent: float) -> Granted:
    """The grant, proved from the instant before it was asked for."""
    proved = min(state.session.proved, state.due) - sent
    return Granted(state.claim, incarnation.base + state.revision, proved, incarnation.epoch)


def value_of(state: ClaimState) -> str:
    """What stands under a lease's key."""
    meta = b64encode(state.meta).decode()
    who = {"claim": state.claim, "holder": state.holder}
    return packed(format=RECORD_FORMAT, **who, ttl=state.ttl, since=state.since, meta=meta)
