"""Taking a lease: one transaction, unless a slot, a reservation or a repeat needs a second."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final
from urllib.parse import unquote
from zlib import crc32

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreError, StoreUnavailable
from incumbent.model import UNLIMITED, Ask, Field, Granted, Holding, Key, Refused, TakeOutcome
from incumbent.rules import taking as rules
from incumbent.rules.notices import PAUSE, RESIGN
from incumbent.rules.record import HISTORY_KEPT, Closing, Grant, LeaseRecord, Moment, micros
from incumbent.rules.taking import CANDIDATES_KEPT
from incumbent.stores.etcd import foreign, kv
from incumbent.stores.etcd.incarnation import Cluster, ClusterMarker
from incumbent.stores.etcd.kv import EtcdProgram, GatewayRequest, KeyValue, Reply
from incumbent.stores.etcd.line import TakeInLine, line_of
from incumbent.stores.etcd.obstacles import OLDEST_FIRST, Obstacles, read_obstacles
from incumbent.stores.etcd.sessions import ClaimState, state_of
from incumbent.stores.etcd.site import LeaseMissing, OtherIncarnation

_ROUNDS: Final = 6
_ROUNDS_FOR_A_SEAT: Final = 20
_OLDEST: Final = f'{OLDEST_FIRST},"limit":"24","keys_only":true'

_now = clock.now


class EtcdTake:
    """One take, in rounds: each round notes here how the next round has to ask.

    `closing_seen`: None (at first): the take requires that no switch is set. Else a refused round
    has read them, and notices may stand: the revision of the closing for the asker, 0 for none.
    `ticket`: the ticket that all foreign keys wait for; 0 (at first): there must be none.
    `sharers`: the seats that are taken, as last read; None (at first): they have to be read.
    `own_slot`: this same claim has taken the slot before; `slot_lease`: the slot's etcd lease.
    `history_response`: which response to a grant has the history; 0: the take does not ask for it.
    """

    incarnation: ClusterMarker

    def __init__(self, cluster: Cluster, key: Key, claim: str, ask: Ask) -> None:
        self.cluster = cluster
        self.sessions = cluster.sessions
        self.names = kv.names_of(cluster.prefix, key)
        self.key = key
        self.claim = claim
        self.ask = ask
        self.closing_seen: int | None = None
        self.ticket = 0
        self.sharers: tuple[KeyValue, ...] | None = None if ask.permits is not None else ()
        self.own_slot = False
        self.slot_lease = ""
        self.line = TakeInLine(cluster, key, claim, ask)
        self.history_response = 0

    def run(self) -> EtcdProgram[TakeOutcome]:
        """The outcome of the take. Raises StoreError."""
        try:
            return (yield from self._rounds())
        except StoreUnavailable as error:
            if not self.line.joined:
                raise
            # Not granted; but the claim stays in line unless its caller gives it up.
            after = error.retry_after
            raise OutcomeUnknown(
                str(error), permanent=error.permanent, retry_after=after
            ) from error

    def _rounds(self) -> EtcdProgram[TakeOutcome]:
        rounds = _ROUNDS if self.ask.permits is None else _ROUNDS_FOR_A_SEAT
        for _ in range(rounds):
            try:
                self.incarnation = yield from self.cluster.granting_marker(self.ask.ttl)
                outcome = yield from self._round()
            # Nothing was written: a transaction that names a missing etcd lease fails as a whole.
            except LeaseMissing:
                self._forget_leases()
                continue
            except OtherIncarnation:
                self.slot_lease = ""
                continue
            if outcome is not None:
                if self.slot_lease and isinstance(outcome, Refused):
                    # The slot was not taken. If this fails, its etcd lease ends by itself.
                    with suppress(StoreError, LeaseMissing):
                        yield kv.lease_request("revoke", self.slot_lease)
                return outcome
        where = self.cluster.site.where
        raise StoreUnavailable(
            f"{where}: gave up after {rounds} attempts: {self.key} keeps changing"
        )

    def _forget_leases(self) -> None:
        """Forget all etcd leases of this take: one is gone, and the reply does not say which."""
        session = self.sessions.by_ttl.get(kv.seconds(self.ask.ttl))
        if session is not None:
            self.sessions.forget_session(session)
        self.sessions.history_leases.pop(kv.seconds(self.ask.keep_record), None)
        self.sessions.candidacies.pop((self.key, self.ask.holder), None)
        self.sessions.places.remember_missing_lease()
        self.slot_lease = ""

    def _round(self) -> EtcdProgram[TakeOutcome | None]:
        """The outcome of a round; None if it was not granted, and no obstacle is left to see."""
        ask, sessions = self.ask, self.sessions
        wants_slot = ask.slot is not None and not self.own_slot and not self.slot_lease
        if wants_slot or self.sharers is None or not sessions.has_session(ask.ttl):
            outcome = yield from self._read_before_grant()
            if outcome is not None:
                return outcome
            if ask.slot is not None and not self.own_slot:
                self.slot_lease = (yield from sessions.grant(kv.seconds(ask.slot.keep))).id
        session = yield from sessions.session(ask.ttl, ask.lock_delay)
        if not self.cluster.knows(self.incarnation.value):
            return None
        history_lease = yield from sessions.history_lease(ask.keep_record)
        state = ClaimState(
            key=self.key,
            claim=self.claim,
            session=session,
            lapses_at=_now() + ask.ttl,
            holder=ask.holder,
            since=clock.wall(),
            ttl=ask.ttl,
            meta=ask.meta,
            history_lease=history_lease,
            history_key=self._history_key(),
            ticket=self.ticket,
            own_key=self._seat(),
            permits=ask.permits,
        )
        return (yield from self._send(state))

    def _read_before_grant(self) -> EtcdProgram[TakeOutcome | None]:
        """Read the obstacles before an etcd lease is made: most takes are refused, and leave none.

        Returns the outcome, or None if the take has to be sent.
        """
        found = yield from self._read_obstacles()
        if found:
            outcome = yield from self._judge_obstacles(found)
            if outcome is not None:
                yield from self._write_candidate(outcome)
                return outcome
        # If this same claim has taken the slot before, the take neither writes it nor needs an etcd
        # lease for it.
        self.own_slot = bool(found.slots) and not self._slots_of_others(found)
        return None

    def _send(self, state: ClaimState) -> EtcdProgram[TakeOutcome | None]:
        cluster, sessions, session = self.cluster, self.sessions, state.session
        candidacy = (yield from self._candidacy()) if self.ask.candidacy > 0 else ""
        request = self.request(state, candidacy)
        before = sessions.claims.get(state.id)
        # Both from before the request: its reply proves nothing that was asked for later.
        proof, sent = session.pending, _now()
        # Noted before it is sent: if the reply is lost, the claim is removed when its time is over.
        sessions.remember(state)
        try:
            reply = yield request
        except (StoreUnavailable, LeaseMissing):
            self._restore(state, before)
            raise
        # Its place in the history may be written: another holding must not share it.
        except OutcomeUnknown:
            self._note_history_written()
            raise
        session.confirm(proof, kv.raft_term_of(reply))
        if reply.get("succeeded"):
            self._note_history_written()
            state.revision = kv.revision_of(reply)
            # From before the request: what is believed may not begin later than what etcd counts.
            state.lapses_at = sent + self.ask.ttl
            state.surplus = self._surplus(reply)
            self.line.note_granted(reply)
            return _granted(state, self.incarnation, sent)
        self._restore(state, before)
        self.line.note_refused()
        found = self._obstacles_in_reply(reply)
        if found is None:
            found = yield from self._read_obstacles()
            if found.marker_value != self.incarnation.value:
                cluster.end_incarnation()
                return None
        return (yield from self._judge_obstacles(found))

    def _history_key(self) -> str:
        key = self.sessions.history_key(self.key)
        if self.ask.permits is not None:
            # Others of this process may be granted a seat before this take is answered.
            self.sessions.note_history_written(self.key)
        return key

    def _note_history_written(self) -> None:
        if self.ask.permits is None:
            self.sessions.note_history_written(self.key)

    def _restore(self, state: ClaimState, before: ClaimState | None) -> None:
        self.sessions.forget_claim(*state.id)
        if before is not None and not before.session.gone:
            self.sessions.remember(before)

    # -- requests -----------------------------------------------------------------------------

    def request(self, state: ClaimState, candidacy: str) -> GatewayRequest:
        """The request of a take. Not repeatable: the caller repeats it in doubt, and notes that."""
        names, ask, closing_seen = self.names, self.ask, self.closing_seen
        self.history_response = 0
        compare = [kv.absent(names.given_up(self.claim)), *self._may_take(state)]
        past = kv.packed(holder=state.holder, since=state.since)
        success = [*writes(names, state), kv.put(state.history_key, past, state.history_lease)]
        if self.claim[-1:] in "07":
            # Random hex: one take of eight checks how long the history is.
            self.history_response = len(success)
            success.append(kv.read_all(f"{names.record}h/", _OLDEST))
        compare += self.line.comparisons(success, ticket=self.ticket)
        if closing_seen is None:
            compare.append(kv.free(names.switches))
        else:
            compare += [kv.absent(names.field(PAUSE)), kv.modified(names.closing, closing_seen)]
            success.append(kv.delete(names.closing))
            if not self.sharers:
                # A notice is for the holders before. If others share the lease, it still applies.
                success.append(kv.delete(names.field(RESIGN)))
        if ask.slot is not None and not self.own_slot:
            keep = ask.slot.keep
            compare.append(kv.free(names.slot(ask.slot.name)))
            kept = kv.packed(holder=state.holder, kept=keep, until=state.since + keep)
            success.append(kv.put(names.slot(ask.slot.name, self.claim), kept, self.slot_lease))
        # Most refused takes only need the holder; `_read_obstacles` reads the rest.
        given_up = kv.read(names.given_up(self.claim), more=kv.COUNT)
        failure = [kv.read_all(names.contenders, OLDEST_FIRST), given_up]
        failure += self.line.join_if_held()
        if ask.queue is not None:
            failure.append(kv.read_all(names.line, OLDEST_FIRST))
        if ask.candidacy > 0:
            success.append(kv.delete(names.candidate(state.holder)))
            failure.append(self._candidate_operation(state.since, candidacy))
            failure.append(self._count_candidates())
        return self.cluster.transaction(
            self.incarnation, compare, success, failure, repeatable=False
        )

    def _may_take(self, state: ClaimState) -> list[str]:
        if self.ask.permits is None:
            return foreign.may_take(self.names, self.ticket)
        return foreign.may_share(self.names, self.ask.permits, state.own_key)

    def _seat(self) -> str:
        """The key for a claim that shares the name: a seat that was free when last read."""
        permits = self.ask.permits
        if permits is None:
            return ""
        doubted = self.sessions.claims.get((self.key, self.claim))
        if doubted is not None and doubted.own_key and not doubted.revision:
            # Its take may still arrive: with another seat, one claim would have two.
            return doubted.own_key
        area = self.names.seats(permits)
        if permits == UNLIMITED:
            return f"{area}{self.claim}"
        taken = {entry.key for entry in self.sharers or ()}
        first = crc32(self.claim.encode())
        # As many as are taken, and one more: one of these is free, unless all are taken.
        seats = (f"{area}{(first + nth) % permits}" for nth in range(len(taken) + 1))
        return next((seat for seat in seats if seat not in taken), f"{area}{first % permits}")

    def _surplus(self, reply: Reply) -> tuple[str, ...]:
        """The oldest keys of the history beyond its limit, from the reply to a grant."""
        if not self.history_response:
            return ()
        found = reply["responses"][self.history_response]
        too_many = kv.count_of(found) - HISTORY_KEPT
        return tuple(entry.key for entry in kv.entries_in(found)[: max(0, too_many)])

    def _obstacles_in_reply(self, reply: Reply) -> Obstacles | None:
        """The holder that a refused take found, if there is one."""
        responses = reply["responses"]
        own = responses[:-2] if self.ask.candidacy > 0 else responses
        found = foreign.contenders(self.names, kv.entries_in(responses[0]))
        if not found.holders or self.ask.permits is not None:
            return None
        return Obstacles(
            kv.revision_of(reply),
            kv.seen_in(found.keys),
            found.holders,
            line=tuple(kv.entries_in(own[-1])) if self.ask.queue else (),
            candidates=kv.count_of(responses[-1]) if self.ask.candidacy > 0 else 0,
            given_up=kv.count_of(responses[1]) > 0,
        )

    def _read_obstacles(self, *before: str) -> EtcdProgram[Obstacles]:
        """Read all possible obstacles, without a take, after the operations `before`."""
        slot = self.ask.slot
        where = self.names.slot(slot.name) if slot is not None else ""
        found = yield from read_obstacles(self.cluster, self.key, self.claim, *before, slot=where)
        self.sharers = tuple(entry for entry in found.holders if entry.permits is not None)
        self.line.first = None
        return found

    # -- candidates ---------------------------------------------------------------------------

    def _candidacy(self) -> EtcdProgram[str]:
        """The etcd lease of the asker's candidacy."""
        return (yield from self.sessions.candidacy((self.key, self.ask.holder), self.ask.candidacy))

    def _write_candidate(self, outcome: TakeOutcome) -> EtcdProgram[None]:
        """List the asker as a candidate also after a refusal that came without a take."""
        if isinstance(outcome, Refused) and self.ask.candidacy > 0:
            write = self._candidate_operation(clock.wall(), (yield from self._candidacy()))
            reply = yield kv.transaction([write, self._count_candidates()])
            if kv.count_of(reply["responses"][1]) > CANDIDATES_KEPT:
                yield from self._prune()

    def _candidate_operation(self, wall: float, etcd_lease: str) -> str:
        """The operation that lists the asker as a candidate, unless its claim was given up."""
        waits, kept = kv.absent(self.names.given_up(self.claim)), self.ask.candidacy
        value = kv.packed(kept=kept, until=wall + kept)
        name = self.names.candidate(self.ask.holder)
        return kv.nested([waits], [kv.put(name, value, etcd_lease)])

    def _count_candidates(self) -> str:
        return kv.read(self.names.candidates, kv.after(self.names.record), kv.COUNT)

    def _prune(self) -> EtcdProgram[None]:
        """Remove surplus candidates: those whose time ends first."""
        reply = yield kv.transaction([kv.read(self.names.candidates, kv.after(self.names.record))])
        surplus = kv.surplus_candidates(kv.entries_in(reply["responses"][0]))
        if surplus:
            yield kv.transaction([kv.delete(key) for key in surplus[: kv.BATCH]])

    # -- refusals -----------------------------------------------------------------------------

    def _judge_obstacles(self, found: Obstacles) -> EtcdProgram[TakeOutcome | None]:
        self.sessions.remember_seen(self.key, found.seen, found.revision)
        if found.given_up:
            return Refused("closed", seen=found.seen)
        if found.candidates > CANDIDATES_KEPT:
            yield from self._prune()
        mine = next((entry for entry in found.holders if entry.claim == self.claim), None)
        if mine is not None:
            return (yield from self._same_grant(mine))
        refused = yield from self._refusal(found)
        if refused is None:
            return None
        place = self.line.remember(found)
        self.line.let_first_listen(found)
        if place is None and self.line.has_to_join(found, refused):
            return (yield from self._join())
        if place is not None and refused.reason == "permits" and place.created == found.revision:
            # The holders changed while it joined: waiting does not help.
            yield kv.transaction(self.sessions.places.removal(self.key, self.claim))
            self.sessions.places.forget(self.key, self.claim)
        return self.line.marked_in_line(refused)

    def _join(self) -> EtcdProgram[TakeOutcome | None]:
        """Join the line, and decide again by what is there then."""
        found = yield from self._read_obstacles(*(yield from self.line.join()))
        self.line.joined = True
        if found.marker_value != self.incarnation.value:
            self.cluster.end_incarnation()
            return None
        if not found.given_up and self.line.entry_in(found) is None:
            # Another claim, of which this process knows no more, has that key: take another.
            self.sessions.places.change_keys()
            return None
        return (yield from self._judge_obstacles(found))

    def _refusal(self, found: Obstacles) -> EtcdProgram[Refused | None]:
        """The refusal by the rules of a lease.

        Or None, after remembering here what the next round may overwrite.
        """
        share = self.ask.permits is not None
        there = found.foreign if share and found.foreign else found.holders
        wall, base = clock.wall(), self.incarnation.token_base
        holdings = tuple(kv.holding_of(entry, base, {}, wall) for entry in there)
        if any(holding.foreign for holding in holdings):
            return self.line.with_place(Refused("held", holdings, None, found.seen), found)
        record, used = yield from self._lease_record(found, holdings)
        queue = self.ask.queue if self.line.entry_in(found) else None
        ask = Ask(self.ask.ttl, self.ask.holder, self.ask.permits, queue)
        outcome = rules.take(record, self.claim, ask, Moment(now=0, wall=0), used).outcome
        if isinstance(outcome, Granted):
            return self._plan_overwriting(found, holdings)
        if outcome.reason in ("held", "permits"):
            outcome = replace(outcome, holders=holdings)
        return replace(outcome, seen=found.seen)

    def _lease_record(
        self, found: Obstacles, holdings: Sequence[Holding]
    ) -> EtcdProgram[tuple[LeaseRecord, Grant | None]]:
        """What was found, as the rules know it at the instant 0; and who has used the slot."""
        # The key of a dead holder disappears with its etcd lease, and a watch shows that.
        grants, mine = tuple(map(_grant_of, holdings)), self.line.entry_in(found)
        record = LeaseRecord(grants=grants, line=line_of(found.line, self.claim, mine))
        if found.pause is not None:
            record = record._replace(pause=Field(found.pause.value, found.pause.modified))
        if found.holders and not self.sharers:
            # Held alone: nothing else matters.
            return record, None
        slots = self._slots_of_others(found)
        ends = yield from self._ends([*slots[:1], *filter(None, [found.closing])])
        if found.closing is not None:
            facts, token = found.closing.fields, self.incarnation.token_base + found.closing.created
            who = str(facts.get("holder", "")), int(kv.number_in(facts.get("token"), token))
            reserved_for = str(facts.get("reserved_for", ""))
            closing = Closing(*who, ends[found.closing.etcd_lease], reserved_for)
            record = record._replace(closing=closing)
        if not slots:
            return record, None
        slot, token = slots[0], self.incarnation.token_base + slots[0].created
        holder, kept = str(slot.fields.get("holder", "")), kv.number_in(slot.fields.get("kept"))
        claim, left = unquote(slot.key.rpartition("/")[2]), ends[slot.etcd_lease]
        since = left - micros(kept)
        return record, Grant(claim, holder, token, ttl=micros(kept), since=since, expires=left)

    def _ends(self, entries: Sequence[KeyValue]) -> EtcdProgram[dict[str, int]]:
        """When the etcd leases of these keys end: in how many microseconds."""
        ids = {entry.etcd_lease for entry in entries}
        lives = yield from self.sessions.seconds_left(ids)
        # At 0 it is over, and etcd is about to delete its key. Without one, it does not end.
        return {it: micros(lives.get(it, self.ask.ttl) or 0.5) for it in ids}

    def _plan_overwriting(self, found: Obstacles, holdings: tuple[Holding, ...]) -> Refused | None:
        """Remember what the next round may overwrite: it requires only real obstacles to be absent.

        Refused if the seat is taken for which an earlier take may still arrive.
        """
        if any(entry.key == self._seat() for entry in found.holders):
            return Refused("held", holdings, self.ask.ttl, found.seen)
        self.line.remember(found)
        self.line.first = next(iter(found.line), None)
        self.closing_seen = found.closing.modified if found.closing else 0
        self.own_slot = bool(found.slots)
        self.ticket = found.ticket_in_turn
        return None

    def _slots_of_others(self, found: Obstacles) -> list[KeyValue]:
        """The entries of the slot that are not this claim's own."""
        own = self.names.slot(self.ask.slot.name, self.claim) if self.ask.slot else ""
        return [entry for entry in found.slots if entry.key != own]

    # -- the same claim again -----------------------------------------------------------------

    def _same_grant(self, entry: KeyValue) -> EtcdProgram[Granted | None]:
        """The same grant again, with its token; the ttl becomes max(remaining, ttl)."""
        ask, sessions = self.ask, self.sessions
        ttl = max(ask.ttl, float(entry.fields.get("ttl", 0.0)))
        session = sessions.by_id.get(entry.etcd_lease)
        moves = session is None or not session.serves(kv.seconds(ttl))
        if session is None or moves:
            session = yield from sessions.session(ttl, ask.lock_delay)
        elif not session.is_fresh(_now(), ask.lock_delay):
            yield from sessions.keep_alive(session)
        known = sessions.claims.get((self.key, self.claim))
        state = state_of(self.key, entry, session, _now() + ttl)
        state.ttl = ttl
        if known is not None and known.revision == state.revision:
            state.lapses_at = max(known.ends, _now() + ask.ttl)
            state.history_key, state.history_lease = known.history_key, known.history_lease
            state.surplus = known.surplus
        proof, sent = session.pending, _now()
        if moves:
            # If the reply is lost, the key itself names the etcd lease that it is attached to.
            sessions.must_reread(state)
        reply = yield self.repeat(state, entry.etcd_lease, write=moves)
        session.confirm(proof, kv.raft_term_of(reply))
        if not reply.get("succeeded"):
            sessions.forget_claim(self.key, self.claim)
            return None
        sessions.remember(state)
        sessions.places.forget(self.key, self.claim)
        return _granted(state, self.incarnation, sent)

    def repeat(self, state: ClaimState, attached: str, *, write: bool) -> GatewayRequest:
        """Check that the lease exists; if so, remove its holder from the candidates.

        `attached`: the key's etcd lease; `write`: also write the state's value and etcd lease.
        """
        read = self.cluster.linearizable_read
        success = [read]
        if write:
            success += writes(self.names, state)
        success += self.sessions.places.removal(self.key, self.claim)
        if self.ask.candidacy > 0:
            success.append(kv.delete(self.names.candidate(self.ask.holder)))
        there = self.sessions.key_and_ticket_compared(state, attached)
        return self.cluster.transaction(self.incarnation, there, success, [read])


def _grant_of(holding: Holding) -> Grant:
    """A holding as the rules know it; how much of its ttl is left is not known."""
    # It holds the name whatever its key says.
    ttl = max(1, micros(holding.ttl or 0.0))
    claim, holder, token = holding.claim, holding.holder, holding.token
    return Grant(claim, holder, token, ttl=ttl, since=0, expires=ttl, permits=holding.permits)


def _granted(state: ClaimState, incarnation: ClusterMarker, sent: float) -> Granted:
    """The grant, proved from the instant `sent`, before its request was sent."""
    proved = min(state.session.proved, state.lapses_at) - sent
    return Granted(state.claim, incarnation.token_base + state.revision, proved, incarnation.epoch)


def value_of(state: ClaimState) -> str:
    """The value of a lease's key."""
    meta = b64encode(state.meta).decode()
    # A version that knows no tickets would leave ours on another etcd lease: it finds no claim.
    who = {"with_ticket" if state.ticket else "claim": state.claim, "holder": state.holder}
    more = {"ticket": state.ticket} if state.ticket else {}
    if state.permits is not None:
        more["permits"] = state.permits
    return kv.packed(
        format=kv.RECORD_FORMAT, **who, ttl=state.ttl, since=state.since, meta=meta, **more
    )


def writes(names: kv.Names, state: ClaimState) -> list[str]:
    """The operations that write a lease's key, and its ticket, on the etcd lease of its session."""
    puts = [kv.put(state.own_key or names.held, value_of(state), state.session.id)]
    if state.ticket:
        puts.append(kv.put(names.ticket, foreign.WAITS, state.session.id))
    return puts
