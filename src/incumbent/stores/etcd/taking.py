"""Taking a lease: one transaction, unless a slot, a reservation or a repeat needs a second."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import Ask, Granted, Holding, Key, Refused, TakeOutcome
from incumbent.stores.etcd.errors import LeaseMissing, Reborn
from incumbent.stores.etcd.incarnation import Incarnation
from incumbent.stores.etcd.leases import Leases
from incumbent.stores.etcd.marker import Markers
from incumbent.stores.etcd.records import Entry, entries_in, holding_of, surplus_candidates
from incumbent.stores.etcd.requests import Obstacles, Reply, Steps, revision_of, seconds, term_of
from incumbent.stores.etcd.sessions import ClaimState, state_of
from incumbent.stores.table import CANDIDATES_KEPT

__all__ = ["Taking"]

_ROUNDS: Final = 6

_now = clock.now


@dataclass(slots=True)
class _Attempt:
    """One take; a refusal leaves here what the next round needs."""

    key: Key
    claim: str
    ask: Ask
    admitted_by: int | None = None
    own_slot: bool = False
    slot_lease: str = ""


class Taking:
    """Programs of a take."""

    def __init__(self, markers: Markers, leases: Leases) -> None:
        self._markers = markers
        self._leases = leases
        self._requests = markers.requests
        self._memory = markers.memory

    def take(self, key: Key, claim: str, ask: Ask) -> Steps[TakeOutcome]:
        attempt = _Attempt(key, claim, ask)
        for _ in range(_ROUNDS):
            try:
                incarnation = yield from self._markers.admit(ask.ttl)
                outcome = yield from self._round(attempt, incarnation)
            except LeaseMissing:
                self._distrust(attempt)
                continue
            except Reborn:
                attempt.slot_lease = ""
                continue
            if outcome is not None:
                yield from self._tidy(attempt, outcome)
                return outcome
        where = self._markers.site.where
        raise StoreUnavailable(f"{where}: what stands at {key} keeps changing")

    def _distrust(self, attempt: _Attempt) -> None:
        """One of the etcd leases is gone, and the answer does not say which."""
        ask, memory = attempt.ask, self._memory
        session = memory.sessions.get(seconds(ask.ttl))
        if session is not None:
            memory.lose(session)
        memory.histories.pop(seconds(ask.keep_record), None)
        memory.standing.pop((attempt.key, ask.holder), None)
        attempt.slot_lease = ""

    def _round(self, attempt: _Attempt, incarnation: Incarnation) -> Steps[TakeOutcome | None]:
        """None: it was not granted, and nothing that stands there says why (any more)."""
        ask, leases = attempt.ask, self._leases
        wants_slot = ask.slot is not None and not attempt.own_slot and not attempt.slot_lease
        if wants_slot or not leases.has_session(ask.ttl):
            # Most takes are refused, and should leave no etcd lease behind.
            reply, found = yield from self._look(attempt)
            if found:
                outcome = yield from self._obstructed(attempt, incarnation, reply, found)
                if outcome is not None:
                    yield from self._stand_by(attempt, outcome)
                    return outcome
            attempt.own_slot = found.own_slot(attempt.claim)
            if ask.slot is not None and not attempt.own_slot:
                slot_lease = yield from leases.grant(seconds(ask.slot.keep))
                attempt.slot_lease = slot_lease.id
        session = yield from leases.session(ask.ttl)
        if not self._markers.knows(incarnation):
            return None
        history = yield from leases.history(ask.keep_record)
        state = ClaimState(
            *(attempt.key, attempt.claim, session, _now() + ask.ttl),
            *(ask.holder, clock.wall(), ask.ttl, ask.meta),
            history=history,
            past64=self._requests.naming.of(attempt.key).past64(self._memory.place(attempt.key)),
        )
        return (yield from self._send(attempt, incarnation, state))

    def _look(self, attempt: _Attempt) -> Steps[tuple[Reply, Obstacles]]:
        key, ask = attempt.key, attempt.ask
        reply = yield self._requests.look(key, attempt.claim, ask)
        return reply, self._requests.obstacles(key, ask, reply)

    def _candidacy(self, attempt: _Attempt) -> Steps[str]:
        """The etcd lease of the asker's candidacy."""
        ask = attempt.ask
        standing = yield from self._leases.standing((attempt.key, ask.holder), ask.candidacy)
        return standing.id

    def _stand_by(self, attempt: _Attempt, outcome: TakeOutcome) -> Steps[None]:
        """A refusal that came without a take leaves its candidate all the same."""
        if isinstance(outcome, Refused) and attempt.ask.candidacy > 0:
            lease = yield from self._candidacy(attempt)
            yield self._requests.stand_by(attempt.key, attempt.ask, clock.wall(), lease)

    def _tidy(self, attempt: _Attempt, outcome: TakeOutcome) -> Steps[None]:
        """A slot that was not taken needs no etcd lease; left alone it ends by itself."""
        if attempt.slot_lease and isinstance(outcome, Refused):
            with suppress(StoreError, LeaseMissing):
                yield from self._leases.revoke(attempt.slot_lease)

    def _send(
        self, attempt: _Attempt, incarnation: Incarnation, state: ClaimState
    ) -> Steps[TakeOutcome | None]:
        ask, memory, session = attempt.ask, self._memory, state.session
        standing = (yield from self._candidacy(attempt)) if ask.candidacy > 0 else ""
        request = self._requests.take(
            state,
            ask,
            incarnation,
            admitted_by=attempt.admitted_by,
            own_slot=attempt.own_slot,
            slot_lease=attempt.slot_lease,
            standing=standing,
        )
        before = memory.claims.get((attempt.key, attempt.claim))
        proof, sent = session.pending, _now()
        # Noted before it is sent: if nobody ever hears of it, it is removed when its time is over.
        memory.note(state)
        try:
            reply = yield request
        except (StoreUnavailable, LeaseMissing):
            self._restore(state, before)
            raise
        except OutcomeUnknown:
            memory.placed(attempt.key)
            raise
        session.confirm(proof, term_of(reply))
        if reply.get("succeeded"):
            memory.placed(attempt.key)
            state.revision = revision_of(reply)
            state.due = sent + ask.ttl
            state.surplus = self._requests.surplus(attempt.claim, reply)
            return _granted(state, incarnation, sent)
        self._restore(state, before)
        found = self._requests.held(ask, reply)
        if found is None:
            reply, found = yield from self._look(attempt)
            if found.marker != incarnation.value:
                memory.disown()
                return None
        return (yield from self._obstructed(attempt, incarnation, reply, found))

    def _restore(self, state: ClaimState, before: ClaimState | None) -> None:
        self._memory.drop(state.key, state.claim)
        if before is not None and not before.session.gone:
            self._memory.note(before)

    # -- what stands there --------------------------------------------------------------------

    def _obstructed(
        self, attempt: _Attempt, incarnation: Incarnation, reply: Reply, found: Obstacles
    ) -> Steps[TakeOutcome | None]:
        self._memory.note_seen(attempt.key, found.seen, revision_of(reply))
        if found.given_up:
            return Refused("closed", seen=found.seen)
        if found.candidates > CANDIDATES_KEPT:
            yield from self._prune(attempt.key)
        lease = found.lease
        if lease is not None and lease.fields.get("claim") == attempt.claim:
            return (yield from self._same_grant(attempt, incarnation, lease))
        return (yield from self._refusal(attempt, incarnation, found))

    def _refusal(
        self, attempt: _Attempt, incarnation: Incarnation, found: Obstacles
    ) -> Steps[Refused | None]:
        if found.lease is not None:
            holding = holding_of(found.lease, incarnation.base, {}, clock.wall())
            # The key of a holder that died goes with its etcd lease, and a watch shows that.
            return Refused("held", (holding,), holding.ttl, found.seen)
        if found.pause is not None:
            return Refused("paused", seen=found.seen)
        # The next round asks for the absence of real obstacles only.
        attempt.admitted_by = 0
        closing, slots = found.closing, found.slots_of_others(attempt.claim)
        if closing is not None:
            reserved_for = closing.fields.get("reserved_for")
            if not reserved_for or reserved_for != attempt.ask.holder:
                return (yield from self._closed(incarnation, closing, found.seen))
            attempt.admitted_by = closing.modified
        if slots:
            return (yield from self._closed(incarnation, slots[0], found.seen))
        attempt.own_slot = bool(found.slots)
        return None

    def _closed(self, incarnation: Incarnation, closing: Entry, seen: str) -> Steps[Refused]:
        fields = closing.fields
        lives = yield from self._leases.lives({closing.lease})
        left = lives.get(closing.lease)
        if left is not None and left <= 0:
            left = 0.5  # it is over, and its key is about to go
        reserved_for = str(fields.get("reserved_for", ""))
        if reserved_for:
            return Refused("reserved", (Holding(reserved_for, 0, left),), left, seen)
        token = int(fields.get("token", incarnation.base + closing.created))
        return Refused("closed", (Holding(str(fields.get("holder", "")), token, left),), left, seen)

    def _prune(self, key: Key) -> Steps[None]:
        """Remove surplus candidates: those whose time ends first."""
        reply = yield self._requests.candidates(key)
        surplus = surplus_candidates(entries_in(reply["responses"][0]))
        if surplus:
            yield self._requests.remove(surplus)

    # -- the same claim again -----------------------------------------------------------------

    def _same_grant(
        self, attempt: _Attempt, incarnation: Incarnation, lease: Entry
    ) -> Steps[Granted | None]:
        """Its token, and the ttl becomes max(remaining, ttl)."""
        key, claim, ask, memory = attempt.key, attempt.claim, attempt.ask, self._memory
        ttl = max(ask.ttl, float(lease.fields.get("ttl", 0.0)))
        session = memory.by_id.get(lease.lease)
        moves = session is None or session.gone or session.ttl < seconds(ttl)
        if session is None or moves:
            session = yield from self._leases.session(ttl)
        elif not session.is_fresh(_now()):
            yield from self._leases.keep_alive(session)
        known = memory.claims.get((key, claim))
        state = state_of(key, lease, session, _now() + ttl)
        state.ttl = ttl
        if known is not None and known.revision == state.revision:
            state.due = max(known.ends, _now() + ask.ttl)
            state.history, state.surplus = known.history, known.surplus
            state.past64 = known.past64
        proof, sent = session.pending, _now()
        if moves:
            # If nobody hears of it, the key says with which etcd lease it lives.
            memory.drop(key, claim)
        reply = yield self._requests.again(state, ask, incarnation, write=moves)
        session.confirm(proof, term_of(reply))
        if not reply.get("succeeded"):
            memory.drop(key, claim)
            return None
        memory.note(state)
        return _granted(state, incarnation, sent)


def _granted(state: ClaimState, incarnation: Incarnation, sent: float) -> Granted:
    """The grant, proved from the instant before it was asked for."""
    proved = min(state.session.proved, state.due) - sent
    return Granted(state.claim, incarnation.base + state.revision, proved, incarnation.epoch)
