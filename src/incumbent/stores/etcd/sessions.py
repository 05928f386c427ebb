"""The etcd leases and claims that an engine remembers in this process, and their programs.

Claims of one ttl share an etcd lease, here a *session*: thousands cost one keep-alive, and a losing
try leaves nothing behind. A claim whose own time ran out is removed with a later renewal; if the
process dies, all of them end with their session.

When is a keep-alive a proof? etcd answers it from the member that *believes* to lead, without
asking the others. So it counts from the instant before it was sent, and only once a linearizable
answer to a request that was sent after it has the same raft term: then nobody else led in between.

An etcd lease serves only while that leads which granted it: with the next leader, claims move to a
new one. A leader that was frozen or cut off ends all that is over by its own count as soon as it
runs again, also what its successor kept alive (github.com/etcd-io/etcd/issues/15247). Of an etcd
lease that was granted later it knows nothing.

Blocking and asynchronous sides share this. Each change is one assignment or one operation of a
dict, so there is no lock that a signal handler or a fork could meet.
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
from incumbent.stores.etcd import kv
from incumbent.stores.etcd.kv import Entry, Reply, Request, Steps
from incumbent.stores.etcd.site import LeaseExists
from incumbent.stores.table import HISTORY_KEPT

_NOTED_MAX: Final = 16_384
_CANDIDACIES_MAX: Final = 4096
_LINE_TTL: Final = 15
"""Seconds after which a process that died is gone from all lines."""
STAYS: Final = 4.0
"""After so many seconds a waiter looks whether its process still has them."""
_SWEPT: Final = 50
"""Transactions within one."""
_ENOUGH: Final = 0.8
"""A take asks for a keep-alive first if less of the ttl is proved."""

_now = clock.now


class Proof(NamedTuple):
    """The etcd lease lives until then, if the raft term was the same at a later request."""

    until: float
    term: str


@dataclass(slots=True, eq=False)
class Session:
    """One etcd lease. `ttl` is the whole seconds that were asked; the server may have made it more.

    `proved`: the instant until which it surely lives; `term`: the raft term in which it was
    granted, or None if that is not certain; `outlived`: another leader came; `earliest`: before
    that instant, no claim is overdue.
    """

    id: str
    ttl: int
    proved: float
    term: str | None = None
    outlived: bool = False
    pending: Proof | None = None
    gone: bool = False
    swept: float = 0.0
    earliest: float = inf
    claims: dict[tuple[Key, str], ClaimState] = field(default_factory=dict)

    def answered(self, sent: float, ttl: int, term: str) -> None:
        """A keep-alive that was sent at `sent` brought `ttl` seconds, or none."""
        if ttl <= 0:
            self.gone = True
            return
        if term != self.term:
            self.outlived = True
            return
        # One that others made may be shorter than its keys say: its leases must move.
        self.ttl = min(self.ttl, ttl)
        proof = Proof(sent + ttl, term)
        if self.pending is None or self.pending.until < proof.until:
            self.pending = proof

    def confirm(self, proof: Proof | None, term: str) -> bool:
        """A linearizable answer, to a request sent after `proof` was noted, has this term."""
        if proof is None or proof.term != term:
            return False
        self.proved = max(self.proved, proof.until)
        return True

    def serves(self, ttl: float) -> bool:
        """Whether claims of this ttl may stay attached to it."""
        return not self.gone and not self.outlived and self.ttl >= ttl

    def is_fresh(self, now: float, lock_delay: float = 0.0) -> bool:
        """Whether enough of it is left, proved or about to be, to begin a lease.

        Of `lock_delay` nothing may be missing, for no lease is believed in it.
        """
        until = max(self.proved, self.pending.until if self.pending else 0.0)
        enough = lock_delay + _ENOUGH * (self.ttl - lock_delay)
        return self.serves(self.ttl) and until - now >= enough


@dataclass(slots=True, eq=False)
class RenewalGroup:
    """Claims that are renewed together, again and again: one instant says when all are due.

    `due`: as ClaimState.due; `whole`: each of them is still what this process remembers of its key.
    """

    due: float
    whole: bool = True


@dataclass(slots=True)
class ClaimState:
    """One claim of this process.

    `revision` 0: nobody knows whether its take was carried out, or to which session it is attached.

    `due`: the instant at which it ends unless it is renewed, alone or in a `group`; `history_key`:
    of its entry in the history, once it has one; `history_lease`: the etcd lease of that entry;
    `surplus`: keys of the history that are removed when it is given back.
    """

    key: Key
    claim: str
    session: Session
    due: float
    holder: str
    since: float
    ttl: float
    meta: bytes = b""
    revision: int = 0
    history_lease: str = "0"
    surplus: tuple[str, ...] = ()
    history_key: str = ""
    group: RenewalGroup | None = None

    @property
    def id(self) -> tuple[Key, str]:
        return self.key, self.claim

    @property
    def ends(self) -> float:
        """The instant at which it ends unless it is renewed."""
        group = self.group
        return self.due if group is None else max(self.due, group.due)

    def join(self, group: RenewalGroup | None) -> None:
        """Be renewed with others from now on, or (None) alone again."""
        before = self.group
        if before is not None:
            self.due = self.ends
            before.whole = False
        self.group = group

    def has_token(self, token: int | None, base: int) -> bool:
        """Whether it is known when it was granted, and with this token if one is given."""
        return self.revision > 0 and (token is None or token == base + self.revision)


def state_of(key: Key, entry: Entry, session: Session, due: float) -> ClaimState:
    """A lease of ours as its key says it."""
    fields = entry.fields
    return ClaimState(
        *(key, str(fields.get("claim", "")), session, due),
        *(str(fields.get("holder", "")), kv.number_in(fields.get("since"))),
        *(kv.number_in(fields.get("ttl")), b64decode(str(fields.get("meta", "")))),
        revision=entry.created,
    )


def foreign(key: Key, entry: Entry) -> ClaimState:
    """A lease of ours of which nothing is remembered, on an etcd lease that is not renewed here."""
    return state_of(key, entry, Session(entry.lease, 1, 0.0), 0.0)


class Sessions:
    """The etcd leases and the claims of one engine.

    `by_ttl`: the session for new claims; `by_id`: all sessions; `seen_at`: see note_seen;
    `history_leases`, `candidacies`: the etcd leases of history entries and of candidates;
    `lined`: names for which waiters of this process stood in line; `line_lease_until`: the instant
    until which the etcd lease of all these lives; `term`: the raft term of the last answer.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.history_leases: dict[int, tuple[str, int]] = {}
        self.seen_at: dict[Key, tuple[str, int]] = {}
        self.term = ""
        self.forget()

    def forget(self) -> None:
        """In a fork's child: nothing of this is ours."""
        self.by_ttl: dict[int, Session] = {}
        self.by_id: dict[str, Session] = {}
        self.claims: dict[tuple[Key, str], ClaimState] = {}
        self.candidacies: dict[tuple[Key, str], Session] = {}
        self.lined: set[Key] = set()
        self.line_lease_until = 0.0
        self._line = os.urandom(7)
        self._new_ring()

    # -- claims -------------------------------------------------------------------------------

    def note(self, state: ClaimState) -> None:
        """Remember a claim whose take is about to be sent, or was carried out."""
        place, session = state.id, state.session
        before = self.claims.get(place)
        if before is not None:
            before.join(None)
            if before.session is not session:
                before.session.claims.pop(place, None)
        self.claims[place] = session.claims[place] = state
        session.earliest = min(session.earliest, state.due)

    def doubt(self, state: ClaimState) -> None:
        """The state of the claim's key is open: it has to be read before anything else."""
        self.note(replace(state, revision=0, due=state.ends, group=None))

    def drop(self, key: Key, claim: str) -> None:
        """Nothing of the claim is left."""
        state = self.claims.pop((key, claim), None)
        if state is not None:
            state.join(None)
            state.session.claims.pop((key, claim), None)

    def lose(self, session: Session) -> None:
        """The etcd lease is gone, and with it all that was attached."""
        session.gone = True
        if self.by_ttl.get(session.ttl) is session:
            del self.by_ttl[session.ttl]
        self.by_id.pop(session.id, None)
        for key, claim in list(session.claims):
            self.drop(key, claim)

    def lose_all(self) -> None:
        """The cluster is another one: keep-alives would only keep leases that nobody holds."""
        for session in list(self.by_id.values()):
            self.lose(session)
        self.by_ttl, self.history_leases, self.candidacies, self.seen_at = {}, {}, {}, {}

    def ours(self, state: ClaimState, lease: str = "") -> list[str]:
        """Comparisons: the claim has its key; nobody else attaches one to our etcd lease.

        `lease`: to which it is attached, where that is not the one of its session yet.
        """
        key = kv.names_of(self.prefix, state.key).lease
        return [kv.created(key, state.revision), kv.attached(key, lease or state.session.id)]

    def lookup(self, keys: list[Key]) -> Request:
        """Read leases of which nothing is remembered; `kv.entry_of` finds their claims."""
        return kv.transaction([kv.read(kv.names_of(self.prefix, key).lease) for key in keys])

    def find(self, key: Key, claim: str, token: int | None, base: int) -> Steps[ClaimState | None]:
        """The claim with this token, if one is given: as it is remembered, or as its key says."""
        state = self.claims.get((key, claim))
        if state is None or not state.has_token(token, base):
            reply = yield self.lookup([key])
            entry = kv.entry_of(claim, reply["responses"][0])
            state = entry and foreign(key, entry)
        return state if state is not None and state.has_token(token, base) else None

    def note_seen(self, key: Key, seen: str, revision: int) -> None:
        """A refusal or a record with this `seen` was true at this revision."""
        if len(self.seen_at) >= _NOTED_MAX:
            self.seen_at.clear()
        self.seen_at[key] = (seen, revision)

    # -- keys in the history ------------------------------------------------------------------

    def _new_ring(self) -> None:
        self._written: dict[Key, int] = {}
        self._ring = os.urandom(6).hex()

    def history_key(self, key: Key) -> str:
        """Where the next holding of `key` is noted: each process writes into a ring of its own.

        So its entries are written over again and again, and nobody writes over another's.
        """
        place = f"{self._ring}/{self._written.get(key, 0) % HISTORY_KEPT}"
        return kv.names_of(self.prefix, key).past(place)

    def history_written(self, key: Key) -> None:
        """That key was written, or perhaps."""
        if len(self._written) >= _NOTED_MAX:
            self._new_ring()
        self._written[key] = self._written.get(key, 0) + 1

    # -- keys in lines ------------------------------------------------------------------------

    def line_key(self, key: Key) -> str:
        """The key of this process in the line of waiters for `key`: written over and over."""
        return kv.names_of(self.prefix, key).line + self._line.hex()

    @property
    def line_lease(self) -> str:
        """The etcd lease of all our keys in lines. Only hints rest on it, so it is never proved."""
        return str(int.from_bytes(self._line) | 1)

    def keep_line_lease(self) -> Steps[str]:
        """The same, kept alive."""
        lease = self.line_lease
        left = self.line_lease_until - _now()
        if left > _LINE_TTL - STAYS:
            return lease
        # First, so that other waiters do not ask as well.
        self.line_lease_until = _now() + _LINE_TTL
        try:
            reply: Reply = {}
            if left > 0:
                reply = yield kv.lease("keepalive", lease)
            if int(reply.get("result", reply).get("TTL", 0)) <= 0:
                with suppress(LeaseExists):
                    yield from self.grant(_LINE_TTL, int(lease))
        except BaseException:
            self.line_lease_until = 0.0
            raise
        return lease

    # -- etcd leases --------------------------------------------------------------------------

    def grant(self, whole: int, lease: int = 0) -> Steps[Session]:
        """A new etcd lease of so many seconds, with an id of our choice or (0) of etcd's.

        It went through the cluster's log, so it is proved at once. If an answer before it had the
        same term, no earlier leader can have granted it.
        """
        sent, before = _now(), self.term
        named = b',"ID":"%d"' % lease if lease else b""
        reply = yield Request("/v3/lease/grant", b'{"TTL":"%d"%b}' % (whole, named))
        term = kv.term_of(reply)
        proved = sent + int(reply.get("TTL", whole))
        return Session(str(reply["ID"]), whole, proved, term if term == before else None)

    def keep_alive(self, session: Session) -> Steps[None]:
        """Ask for the whole ttl again; see the module for when that is proved."""
        sent = _now()
        reply = yield kv.lease("keepalive", session.id)
        result = reply.get("result", reply)
        session.answered(sent, int(result.get("TTL", 0)), kv.term_of(result))
        if session.gone:
            self.lose(session)

    def has(self, ttl: float) -> bool:
        """Whether a session is at hand, so that a try that loses leaves no new one behind."""
        session = self.by_ttl.get(kv.seconds(ttl))
        return session is not None and not session.outlived and session.proved > _now()

    def session(self, ttl: float, lock_delay: float = 0.0) -> Steps[Session]:
        """The etcd lease of all claims of this ttl, with enough of it left."""
        session = self.by_ttl.get(kv.seconds(ttl))
        if session is not None and (yield from self._usable(session, lock_delay)):
            return session
        return self.add((yield from self.grant(kv.seconds(ttl))))

    def _usable(self, session: Session, lock_delay: float = 0.0) -> Steps[bool]:
        """Whether enough of it is left, perhaps after a keep-alive."""
        now = _now()
        if session.is_fresh(now, lock_delay):
            return True
        if session.outlived or session.proved <= now:
            return False
        yield from self.keep_alive(session)
        if not session.gone:
            yield from self.sweep(session)
        return session.serves(session.ttl)

    def add(self, session: Session) -> Session:
        """One more, and the one for new leases of its ttl from now on."""
        for old in list(self.by_id.values()):
            if old.proved + old.ttl < session.proved - session.ttl:
                self.lose(old)
        self.by_id[session.id] = self.by_ttl[session.ttl] = session
        return session

    def history_lease(self, keep: float) -> Steps[str]:
        """The etcd lease of history and marks, shared by the whole fleet.

        Its id says what it is for: a new one every `keep` seconds, each living for twice as long.
        """
        whole = kv.seconds(keep)
        period = int(clock.wall() // whole)
        known = self.history_leases.get(whole)
        if known is not None and known[1] == period:
            return known[0]
        text = f"{self.prefix}!h/{whole}/{period}"
        lease = int.from_bytes(sha256(text.encode()).digest()[:8]) >> 2 | 1
        with suppress(LeaseExists):
            yield from self.grant(2 * whole, lease)
        self.history_leases[whole] = (str(lease), period)
        return str(lease)

    def candidacy(self, place: tuple[Key, str], lasts: float) -> Steps[str]:
        """The etcd lease of a holder's candidacy; its next try uses the same one again."""
        session = self.candidacies.get(place)
        known = session is not None and session.ttl == kv.seconds(lasts)
        if session is not None and known and (yield from self._usable(session)):
            return session.id
        if len(self.candidacies) >= _CANDIDACIES_MAX:
            self.candidacies.clear()
        session = self.candidacies[place] = yield from self.grant(kv.seconds(lasts))
        return session.id

    def lives(self, leases: set[str]) -> Steps[dict[str, float]]:
        """Seconds that are left of etcd leases."""
        found = {}
        for lease in leases - {"0"}:
            reply = yield kv.lease("timetolive", lease)
            left, most = int(reply.get("TTL", 0)), int(reply.get("grantedTTL", 0))
            # Whole seconds, rounded down: one that is not over has up to another second.
            found[lease] = float(min(left + 1, most)) if left >= 0 else 0.0
        return found

    # -- claims whose time ran out ------------------------------------------------------------

    def sweep(self, session: Session) -> Steps[None]:
        """Remove claims whose own time ran out although their session, or the next one, lives."""
        now = _now()
        outlived = [one for one in list(self.by_id.values()) if one.outlived and one is not session]
        overdue = [state for one in (session, *outlived) for state in self.overdue(one, now)]
        for start in range(0, len(overdue), _SWEPT):
            batch = yield from self._found(overdue[start : start + _SWEPT])
            if not batch:
                continue
            # Unless they were granted anew or moved: then they are looked at again.
            reply = yield kv.transaction([
                kv.nested(self.ours(one, at), [kv.delete(kv.names_of(self.prefix, one.key).lease)])
                for one, at in batch
            ])  # fmt: skip
            for (state, _), response in zip(batch, reply["responses"], strict=True):
                if response["response_txn"].get("succeeded"):
                    self._drop_unless_newer(state)

    def overdue(self, session: Session, now: float) -> list[ClaimState]:
        """Claims whose time ran out; looked for a few times in a ttl."""
        if now < max(session.swept + session.ttl / 8, session.earliest):
            return []
        session.swept = now
        # First, so that a claim that another thread notes meanwhile is not forgotten.
        session.earliest = now + session.ttl / 2
        ends = [(state.ends, state) for state in list(session.claims.values())]
        session.earliest = min([session.earliest, *(at for at, _ in ends)])
        return [state for at, state in ends if at <= now]

    def _found(self, batch: list[ClaimState]) -> Steps[list[tuple[ClaimState, str]]]:
        """The claims that have a key on an etcd lease of ours, and that one: it may have moved."""
        found = []
        reply = yield self.lookup([state.key for state in batch])
        for state, response in zip(batch, reply["responses"], strict=True):
            entry = kv.entry_of(state.claim, response)
            if entry is None or entry.lease not in self.by_id:
                self._drop_unless_newer(state)
            # Another take of the same claim, noted since, is not overdue: its grant is newer.
            elif self.claims.get(state.id) is state:
                state.revision = entry.created
                found.append((state, entry.lease))
        return found

    def _drop_unless_newer(self, state: ClaimState) -> None:
        if self.claims.get(state.id) is state:
            self.drop(*state.id)
