"""The etcd leases and claims that an engine remembers in this process, and their programs.

Claims of the same ttl share an etcd lease, here a *session*: thousands of claims cost one
keep-alive, and a refused take leaves nothing behind. A claim whose own time ran out is removed with
a later renewal; if the process dies, all claims end with their session.

When is a keep-alive a proof? The member that *believes* it leads answers without asking the others.
So a keep-alive counts from the instant before it was sent, and only once a linearizable reply to a
later request has the same raft term: then no other member led in between.

An etcd lease serves only while the member that granted it leads: under the next leader, claims move
to a new etcd lease. A leader that was frozen or cut off revokes, as soon as it runs again, all etcd
leases that are over by its own count, even those that its successor kept alive
(github.com/etcd-io/etcd/issues/15247). It does not know etcd leases that were granted later.

The blocking and the asyncio side share this state. Each change is one assignment or one operation
of a dict, so there is no lock that a signal handler or a fork could meet.
"""

from __future__ import annotations

import os
from base64 import b64decode
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import inf
from typing import Final, NamedTuple

from incumbent import clock
from incumbent.model import Key
from incumbent.rules.record import HISTORY_KEPT
from incumbent.stores.etcd import kv
from incumbent.stores.etcd.kv import EtcdProgram, GatewayRequest, KeyValue, Reply
from incumbent.stores.etcd.places import LinePlaces
from incumbent.stores.etcd.site import LeaseExists

NOTED_MAX: Final = 16_384
_CANDIDACIES_MAX: Final = 4096
_ENOUGH: Final = 0.8
"""Fraction of the ttl: if less of it is proved, a take first sends a keep-alive."""

_now = clock.now


class SessionProof(NamedTuple):
    """The etcd lease lives until `until`, if a later request meets the same raft term."""

    until: float
    term: str


@dataclass(slots=True, eq=False)
class Session:
    """One etcd lease. `ttl`: the whole seconds asked for; the server may have granted more.

    `proved`: the instant until which it surely lives; `term`: the raft term in which it was
    granted, or None if that is not certain; `of_earlier_term`: the raft term changed since;
    `earliest`: no claim is overdue before this instant.
    """

    id: str
    ttl: int
    proved: float
    term: str | None = None
    of_earlier_term: bool = False
    pending: SessionProof | None = None
    gone: bool = False
    swept: float = 0.0
    earliest: float = inf
    claims: dict[tuple[Key, str], ClaimState] = field(default_factory=dict)

    def note_answered(self, sent: float, ttl: int, term: str) -> None:
        """Note that a keep-alive sent at `sent` brought `ttl` seconds (0: the lease is gone)."""
        if ttl <= 0:
            self.gone = True
            return
        # Of another leader, under which no claim may stay on it.
        if term != self.term:
            self.of_earlier_term = True
            return
        # A session of another process may be shorter than its keys say: its claims must move.
        self.ttl = min(self.ttl, ttl)
        proof = SessionProof(sent + ttl, term)
        if self.pending is None or self.pending.until < proof.until:
            self.pending = proof

    def confirm(self, proof: SessionProof | None, term: str) -> bool:
        """Accept `proof` if a linearizable reply to a request sent after it has the same term."""
        if proof is None or proof.term != term:
            return False
        # Never back: a reply that comes late may confirm an older keep-alive.
        self.proved = max(self.proved, proof.until)
        return True

    def serves(self, ttl: float) -> bool:
        """Whether claims of this ttl may stay attached to this etcd lease."""
        return not self.gone and not self.of_earlier_term and self.ttl >= ttl

    def is_fresh(self, now: float, lock_delay: float = 0.0) -> bool:
        """Whether enough time is left to begin a lease, counting a proof that is still pending.

        All of `lock_delay` must be left, because no holder relies on its lease during that time.
        """
        until = max(self.proved, self.pending.until if self.pending else 0.0)
        enough = lock_delay + _ENOUGH * (self.ttl - lock_delay)
        return self.serves(self.ttl) and until - now >= enough


@dataclass(slots=True, eq=False)
class RenewalGroup:
    """Claims that are renewed together, again and again, and so lapse together at `lapses_at`.

    `intact`: this process still remembers the same state of each claim.
    """

    lapses_at: float
    intact: bool = True


@dataclass(slots=True)
class ClaimState:
    """One claim of this process.

    `revision` 0: it is unknown whether the take was carried out, or which session the key is on.

    `lapses_at`: the instant at which it ends unless it is renewed, alone or in a `group`;
    `history_key`: the key of its entry in the history, once there is one; `history_lease`: the
    etcd lease of that entry; `surplus`: keys of the history to remove when the lease is given back;
    `ticket`: the revision of the ticket with which it was granted (0: without), see `foreign`;
    `own_key`: its key if it is not `held`, because it shares the name with others, `permits` of
    them at most.
    """

    key: Key
    claim: str
    session: Session
    lapses_at: float
    holder: str
    since: float
    ttl: float
    meta: bytes = b""
    revision: int = 0
    history_lease: str = "0"
    surplus: tuple[str, ...] = ()
    history_key: str = ""
    group: RenewalGroup | None = None
    ticket: int = 0
    own_key: str = ""
    permits: int | None = None

    @property
    def id(self) -> tuple[Key, str]:
        return self.key, self.claim

    @property
    def ends(self) -> float:
        """The instant at which the claim ends unless it is renewed."""
        group = self.group
        return self.lapses_at if group is None else max(self.lapses_at, group.lapses_at)

    def join(self, group: RenewalGroup | None) -> None:
        """Renew this claim with a group from now on, or (None) alone again."""
        before = self.group
        if before is not None:
            self.lapses_at = self.ends
            before.intact = False
        self.group = group

    def has_token(self, token: int | None, base: int) -> bool:
        """Whether the revision of its grant is known, and matches the token if one is given."""
        return self.revision > 0 and (token is None or token == base + self.revision)


def state_of(key: Key, entry: KeyValue, session: Session, lapses_at: float) -> ClaimState:
    """The state of a claim, as its key describes it."""
    fields = entry.fields
    return ClaimState(
        *(key, entry.claim, session, lapses_at),
        *(str(fields.get("holder", "")), kv.number_in(fields.get("since"))),
        *(kv.number_in(fields.get("ttl")), b64decode(str(fields.get("meta", "")))),
        revision=entry.created,
        ticket=entry.ticket,
        own_key="" if entry.permits is None else entry.key,
        permits=entry.permits,
    )


def unremembered_state(key: Key, entry: KeyValue) -> ClaimState:
    """The state of a claim that is not remembered, on an etcd lease that is not renewed here."""
    return state_of(key, entry, Session(entry.etcd_lease, 1, 0.0), 0.0)


class Sessions:
    """The etcd leases and the claims of one engine.

    `by_ttl`: the session for new claims; `by_id`: all sessions; `seen_revision`: see remember_seen;
    `history_leases`, `candidacies`: the etcd leases of history entries and of candidates;
    `places`: our places in lines of waiters; `term`: the raft term of the last reply.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.history_leases: dict[int, tuple[str, int]] = {}
        self.seen_revision: dict[Key, tuple[str, int]] = {}
        self.term = ""
        self.forget()

    def forget(self) -> None:
        """In a forked child: forget the sessions and claims, which are the parent's."""
        self.by_ttl: dict[int, Session] = {}
        self.by_id: dict[str, Session] = {}
        self.claims: dict[tuple[Key, str], ClaimState] = {}
        self.candidacies: dict[tuple[Key, str], Session] = {}
        self.places = LinePlaces(self)
        self._new_ring()

    # -- claims -------------------------------------------------------------------------------

    def remember(self, state: ClaimState) -> None:
        """Remember a claim whose take is about to be sent, or was carried out."""
        claim_id, session = state.id, state.session
        before = self.claims.get(claim_id)
        if before is not None:
            before.join(None)
            if before.session is not session:
                before.session.claims.pop(claim_id, None)
        self.claims[claim_id] = session.claims[claim_id] = state
        session.earliest = min(session.earliest, state.lapses_at)

    def must_reread(self, state: ClaimState) -> None:
        """Remember that the state of the claim's key is unknown: it has to be read first."""
        self.remember(replace(state, revision=0, lapses_at=state.ends, group=None))

    def forget_claim(self, key: Key, claim: str) -> None:
        """Forget a claim of which nothing is left."""
        state = self.claims.pop((key, claim), None)
        if state is not None:
            state.join(None)
            state.session.claims.pop((key, claim), None)

    def forget_session(self, session: Session) -> None:
        """Forget an etcd lease that is gone, and all claims that were attached to it."""
        session.gone = True
        if self.by_ttl.get(session.ttl) is session:
            # Not `del`: another thread may forget it at the same time.
            self.by_ttl.pop(session.ttl, None)
        self.by_id.pop(session.id, None)
        for key, claim in list(session.claims):
            self.forget_claim(key, claim)

    def lose_all(self) -> None:
        """Forget all: in a new incarnation, keep-alives would only keep leases without a holder."""
        for session in list(self.by_id.values()):
            self.forget_session(session)
        self.by_ttl, self.history_leases, self.candidacies, self.seen_revision = {}, {}, {}, {}
        self.places = LinePlaces(self)

    def key_compared(self, state: ClaimState, etcd_lease: str = "") -> list[str]:
        """Comparisons that hold while the claim has its key on our etcd lease.

        `etcd_lease`: the etcd lease of the key, if it is not yet that of the claim's session.
        """
        key = self.key_of(state)
        return [kv.created(key, state.revision), kv.attached(key, etcd_lease or state.session.id)]

    def key_of(self, state: ClaimState) -> str:
        """The claim's key."""
        return state.own_key or kv.names_of(self.prefix, state.key).held

    def key_and_ticket_compared(self, state: ClaimState, etcd_lease: str = "") -> list[str]:
        """Comparisons: also that the claim has its ticket. Else a foreign key may lead."""
        compare = self.key_compared(state, etcd_lease)
        if state.ticket:
            ticket = kv.names_of(self.prefix, state.key).ticket
            compare.append(kv.created(ticket, state.ticket))
            compare.append(kv.attached(ticket, etcd_lease or state.session.id))
        return compare

    def removal(self, state: ClaimState) -> list[str]:
        """Operations: remove the claim's key, and its ticket."""
        names = kv.names_of(self.prefix, state.key)
        remove = [kv.delete(self.key_of(state))]
        if state.ticket:
            same = kv.created(names.ticket, state.ticket)
            remove.append(kv.nested([same], [kv.delete(names.ticket)]))
        return remove

    def lookup(self, keys: list[Key]) -> EtcdProgram[dict[Key, Reply]]:
        """Read leases that are not remembered; `kv.entry_of` finds their claims in the replies."""
        # Many may share one name: it is read once.
        each = list(dict.fromkeys(keys))
        reads = [kv.read_ours(kv.names_of(self.prefix, key)) for key in each]
        reply = yield kv.transaction(reads)
        return dict(zip(each, reply["responses"], strict=True))

    def find(
        self, key: Key, claim: str, token: int | None, base: int
    ) -> EtcdProgram[ClaimState | None]:
        """The claim, with this token if one is given, as remembered or else as its key says."""
        state = self.claims.get((key, claim))
        if state is None or not state.has_token(token, base):
            found = yield from self.lookup([key])
            entry = kv.entry_of(claim, found[key])
            state = entry and unremembered_state(key, entry)
        return state if state is not None and state.has_token(token, base) else None

    def remember_seen(self, key: Key, seen: str, revision: int) -> None:
        """Remember that a refusal or a record with this `seen` was true at this revision."""
        if len(self.seen_revision) >= NOTED_MAX:
            self.seen_revision.clear()
        self.seen_revision[key] = (seen, revision)

    # -- keys in the history ------------------------------------------------------------------

    def _new_ring(self) -> None:
        self._written: dict[Key, int] = {}
        self._ring = os.urandom(6).hex()

    def history_key(self, key: Key) -> str:
        """The key in the history for the next holding of `key`, in a ring of this process's own.

        So a process overwrites its own entries again and again, and never those of another one.
        """
        place = f"{self._ring}/{self._written.get(key, 0) % HISTORY_KEPT}"
        return kv.names_of(self.prefix, key).past(place)

    def note_history_written(self, key: Key) -> None:
        """Note that the history key of `key` was, or may have been, written."""
        if len(self._written) >= NOTED_MAX:
            self._new_ring()
        self._written[key] = self._written.get(key, 0) + 1

    # -- etcd leases --------------------------------------------------------------------------

    def grant(self, ttl: int, etcd_lease: int = 0) -> EtcdProgram[Session]:
        """A new etcd lease of `ttl` whole seconds, with this id or (0) one of etcd's choice.

        A grant goes through the cluster's log, so it is proved at once. If the reply before it had
        the same term, no earlier leader can have granted it.
        """
        sent, before = _now(), self.term
        named = b',"ID":"%d"' % etcd_lease if etcd_lease else b""
        reply = yield GatewayRequest("/v3/lease/grant", b'{"TTL":"%d"%b}' % (ttl, named))
        term = kv.raft_term_of(reply)
        proved = sent + int(reply.get("TTL", ttl))
        return Session(str(reply["ID"]), ttl, proved, term if term == before else None)

    def keep_alive(self, session: Session) -> EtcdProgram[None]:
        """Renew a session for its whole ttl; the module says when that is proved."""
        # From before the request: etcd counts from when it arrives, which is later.
        sent = _now()
        reply = yield kv.lease_request("keepalive", session.id)
        result = reply.get("result", reply)
        session.note_answered(sent, int(result.get("TTL", 0)), kv.raft_term_of(result))
        if session.gone:
            self.forget_session(session)

    def has_session(self, ttl: float) -> bool:
        """Whether there is a session already, so that a refused take leaves no new one behind."""
        session = self.by_ttl.get(kv.seconds(ttl))
        return session is not None and not session.of_earlier_term and session.proved > _now()

    def session(self, ttl: float, lock_delay: float = 0.0) -> EtcdProgram[Session]:
        """The etcd lease of all claims of this ttl, with enough time left."""
        session = self.by_ttl.get(kv.seconds(ttl))
        if session is not None and (yield from self._usable(session, lock_delay)):
            return session
        return self.add((yield from self.grant(kv.seconds(ttl))))

    def _usable(self, session: Session, lock_delay: float = 0.0) -> EtcdProgram[bool]:
        """Whether enough time is left, perhaps after a keep-alive."""
        now = _now()
        if session.is_fresh(now, lock_delay):
            return True
        if session.of_earlier_term or session.proved <= now:
            return False
        yield from self.keep_alive(session)
        if not session.gone:
            yield from self.sweep(session)
        return session.serves(session.ttl)

    def add(self, session: Session) -> Session:
        """Add a session, which new claims of its ttl use from now on."""
        for old in list(self.by_id.values()):
            # Over for a whole ttl, so nothing that is under way can still need it.
            if old.proved + old.ttl < session.proved - session.ttl:
                self.forget_session(old)
        self.by_id[session.id] = self.by_ttl[session.ttl] = session
        return session

    def history_lease(self, keep: float) -> EtcdProgram[str]:
        """The etcd lease of history and marks, shared by the whole fleet.

        One for each period of `keep` seconds, with an id that all processes compute alike; it lives
        for two periods.
        """
        lasts = kv.seconds(keep)
        period = int(clock.wall() // lasts)
        known = self.history_leases.get(lasts)
        if known is not None and known[1] == period:
            return known[0]
        text = f"{self.prefix}!h/{lasts}/{period}"
        # Positive, as etcd's ids are, and never 0, which would have etcd choose one.
        etcd_lease = int.from_bytes(sha256(text.encode()).digest()[:8]) >> 2 | 1
        # Another process of the fleet made it, which is what the common id is for.
        with suppress(LeaseExists):
            yield from self.grant(2 * lasts, etcd_lease)
        self.history_leases[lasts] = (str(etcd_lease), period)
        return str(etcd_lease)

    def candidacy(self, candidate: tuple[Key, str], lasts: float) -> EtcdProgram[str]:
        """The etcd lease of a holder's candidacy; the holder's next take uses it again."""
        session = self.candidacies.get(candidate)
        known = session is not None and session.ttl == kv.seconds(lasts)
        if session is not None and known and (yield from self._usable(session)):
            return session.id
        if len(self.candidacies) >= _CANDIDACIES_MAX:
            self.candidacies.clear()
        session = self.candidacies[candidate] = yield from self.grant(kv.seconds(lasts))
        return session.id

    def seconds_left(self, leases: set[str]) -> EtcdProgram[dict[str, float]]:
        """The seconds left of etcd leases."""
        found = {}
        for etcd_lease in leases - {"0"}:
            reply = yield kv.lease_request("timetolive", etcd_lease)
            left, most = int(reply.get("TTL", 0)), int(reply.get("grantedTTL", 0))
            # etcd rounds down to whole seconds: a lease that is not over has up to one more.
            found[etcd_lease] = float(min(left + 1, most)) if left >= 0 else 0.0
        return found

    # -- claims whose time ran out ------------------------------------------------------------

    def sweep(self, session: Session) -> EtcdProgram[None]:
        """Remove claims whose own time ran out although their session, or the next one, lives."""
        now = _now()
        others = [one for one in list(self.by_id.values()) if one is not session]
        earlier = [one for one in others if one.of_earlier_term]
        overdue = [state for one in (session, *earlier) for state in self.overdue(one, now)]
        for start in range(0, len(overdue), kv.NESTED_MOST):
            batch = yield from self._still_there(overdue[start : start + kv.NESTED_MOST])
            if not batch:
                continue
            # Claims that were granted anew or moved meanwhile stay, and are checked again later.
            reply = yield kv.transaction([
                kv.nested(self.key_compared(one, at), self.removal(one)) for one, at in batch
            ])  # fmt: skip
            for (state, _), response in zip(batch, reply["responses"], strict=True):
                if response["response_txn"].get("succeeded"):
                    self._drop_unless_newer(state)

    def overdue(self, session: Session, now: float) -> list[ClaimState]:
        """The claims whose time ran out; searched for only a few times in a ttl."""
        if now < max(session.swept + session.ttl / 8, session.earliest):
            return []
        session.swept = now
        # Set this first, so that a claim that another thread notes meanwhile is not missed.
        session.earliest = now + session.ttl / 2
        ends = [(state.ends, state) for state in list(session.claims.values())]
        session.earliest = min([session.earliest, *(at for at, _ in ends)])
        return [state for at, state in ends if at <= now]

    def _still_there(self, batch: list[ClaimState]) -> EtcdProgram[list[tuple[ClaimState, str]]]:
        """The claims with a key on an etcd lease of ours, and that lease (it may have moved)."""
        found = []
        there = yield from self.lookup([state.key for state in batch])
        for state in batch:
            entry = kv.entry_of(state.claim, there[state.key])
            if entry is None or entry.etcd_lease not in self.by_id:
                self._drop_unless_newer(state)
            # A newer take of the same claim, noted since, is not overdue.
            elif self.claims.get(state.id) is state:
                state.revision = entry.created
                state.ticket = entry.ticket
                state.own_key = "" if entry.permits is None else entry.key
                found.append((state, entry.etcd_lease))
        return found

    def _drop_unless_newer(self, state: ClaimState) -> None:
        if self.claims.get(state.id) is state:
            self.forget_claim(*state.id)
