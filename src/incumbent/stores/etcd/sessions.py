"""What one engine of this process remembers: its etcd leases, its claims, the cluster. No I/O.

Claims of one ttl share an etcd lease, here a *session*: thousands cost one keep-alive, and a losing
try leaves nothing behind. A claim whose own time ran out is removed with a later renewal; if the
process dies, all of them end with their session.

When is a keep-alive a proof? etcd answers it from the member that *believes* to lead, without
asking the others. So it counts from the instant before it was sent, and only once a linearizable
answer to a request that was sent after it has the same raft term: then nobody else led in between.

Blocking and asynchronous sides share one memory. Each change is one assignment or one operation of
a dict, so there is no lock that a signal handler or a fork could meet.
"""

from __future__ import annotations

import os
from base64 import b64decode
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from incumbent.model import Key
from incumbent.policy import TTL_DEFAULT
from incumbent.stores.etcd.incarnation import Incarnation, Status
from incumbent.stores.etcd.records import Entry, number_in
from incumbent.stores.table import HISTORY_KEPT

__all__ = ["ClaimState", "Memory", "NotedTtl", "Proof", "RenewalGroup", "Session", "state_of"]

_LOOKED_MAX: Final = 16_384
_ENOUGH: Final = 0.8
"""A take asks for a keep-alive first if less of the ttl is proved."""


class Proof(NamedTuple):
    """The etcd lease lives until then, if the raft term was the same at a later request."""

    until: float
    term: str


class Session:
    """One etcd lease. `ttl` is the whole seconds that were asked; the server may have made it more.

    `proved`: the instant until which it surely lives.
    """

    __slots__ = ("claims", "earliest", "gone", "id", "pending", "proved", "swept", "ttl")

    def __init__(self, lease_id: str, ttl: int, proved: float) -> None:
        self.id = lease_id
        self.ttl = ttl
        self.proved = proved
        self.pending: Proof | None = None
        self.gone = False
        self.swept = 0.0
        self.earliest = inf
        """Before that, no claim is overdue."""
        self.claims: dict[tuple[Key, str], ClaimState] = {}

    def answered(self, sent: float, ttl: int, term: str) -> None:
        """A keep-alive that was sent at `sent` brought `ttl` seconds, or none."""
        if ttl <= 0:
            self.gone = True
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

    def is_fresh(self, now: float) -> bool:
        """Whether enough of it is left, proved or about to be, to begin a lease."""
        until = max(self.proved, self.pending.until if self.pending else 0.0)
        return not self.gone and until - now >= _ENOUGH * self.ttl


class RenewalGroup:
    """Claims that are renewed together, again and again: one instant says when all are due.

    `due`: as ClaimState.due; `whole`: each of them is still what this process remembers of its key.
    """

    __slots__ = ("due", "whole")

    def __init__(self, due: float) -> None:
        self.due = due
        self.whole = True


@dataclass(slots=True)
class ClaimState:
    """One claim of this process. `revision` 0: nobody knows whether its take was carried out.

    `due`: the instant at which it ends unless it is renewed, alone or in a `group`; `past64`: the
    key of its entry in the history, once it has one.
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
    history: str = "0"
    surplus: tuple[str, ...] = ()
    past64: str = ""
    group: RenewalGroup | None = None

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


def state_of(key: Key, entry: Entry, session: Session, due: float) -> ClaimState:
    """A lease of ours as its key says it."""
    fields = entry.fields
    return ClaimState(
        *(key, str(fields.get("claim", "")), session, due),
        *(str(fields.get("holder", "")), number_in(fields.get("since"))),
        *(number_in(fields.get("ttl")), b64decode(str(fields.get("meta", "")))),
        revision=entry.created,
    )


class NotedTtl(NamedTuple):
    """The longest ttl that is noted beside a marker (its value), and at which revision."""

    marker: str = ""
    ttl: float = TTL_DEFAULT
    modified: int = 0

    def covers(self, ttl: float, marker: str) -> bool:
        """Whether a process that finds this marker after a restore waits for so long."""
        return ttl <= TTL_DEFAULT or (marker == self.marker and ttl <= self.ttl)


def _new_ring() -> str:
    return os.urandom(6).hex()


@dataclass(slots=True)
class Memory:
    """See the module.

    `disowned`: only a marker with a greater base than this is of the present incarnation; `ended`:
    how often one turned out to be over; `met`: the furthest state of a member that was met;
    `floor`: of which cluster, and at which revision, the last linearizable answer was; `dialled`:
    how many connections were made; `longest`: the longest ttl that is known to be used under the
    prefix; `noted`: what was read of it there.
    """

    incarnation: Incarnation | None = None
    disowned: int = -1
    ended: int = 0
    met: Status | None = None
    floor: tuple[str, int] = ("", 0)
    dialled: int = 0
    longest: float = TTL_DEFAULT
    noted: NotedTtl = field(default_factory=NotedTtl)
    sessions: dict[int, Session] = field(default_factory=dict)
    by_id: dict[str, Session] = field(default_factory=dict)
    claims: dict[tuple[Key, str], ClaimState] = field(default_factory=dict)
    histories: dict[int, tuple[str, int]] = field(default_factory=dict)
    standing: dict[tuple[Key, str], Session] = field(default_factory=dict)
    looked: dict[Key, tuple[str, int]] = field(default_factory=dict)
    ring: str = field(default_factory=_new_ring)
    places: dict[Key, int] = field(default_factory=dict)

    def new_session(self, session: Session) -> Session:
        """One more, and the one for new leases of its ttl from now on."""
        for old in list(self.by_id.values()):
            if old.proved + old.ttl < session.proved - session.ttl:
                self.lose(old)
        self.by_id[session.id] = self.sessions[session.ttl] = session
        return session

    def note(self, state: ClaimState) -> None:
        """Remember a claim whose take is about to be sent, or was carried out."""
        place, session = (state.key, state.claim), state.session
        before = self.claims.get(place)
        if before is not None:
            before.join(None)
            if before.session is not session:
                before.session.claims.pop(place, None)
        self.claims[place] = session.claims[place] = state
        session.earliest = min(session.earliest, state.due)

    def drop(self, key: Key, claim: str) -> None:
        """Nothing of the claim is left."""
        state = self.claims.pop((key, claim), None)
        if state is not None:
            state.join(None)
            state.session.claims.pop((key, claim), None)

    def lose(self, session: Session) -> None:
        """The etcd lease is gone, and with it all that was attached."""
        session.gone = True
        if self.sessions.get(session.ttl) is session:
            del self.sessions[session.ttl]
        self.by_id.pop(session.id, None)
        for key, claim in list(session.claims):
            self.drop(key, claim)

    def disown(self) -> None:
        """The cluster is of another incarnation: nothing that is remembered of it counts."""
        self.ended += 1
        known, self.incarnation = self.incarnation, None
        if known is not None:
            self.disowned = max(self.disowned, known.base)
        self.met, self.floor = None, ("", 0)
        # Kept alive any longer, they would keep leases that nobody holds.
        for session in list(self.by_id.values()):
            self.lose(session)
        self.sessions, self.histories, self.standing, self.looked = {}, {}, {}, {}

    def fits(self, cluster: str, revision: int, floor: tuple[str, int]) -> bool:
        """Whether a linearizable answer fits `floor`, which was known before it was asked."""
        known, least = floor
        if known and (cluster != known or revision < least):
            return False
        if not self.floor[0] or revision > self.floor[1]:
            self.floor = (cluster, revision)
        return True

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

    def note_seen(self, key: Key, seen: str, revision: int) -> None:
        """A refusal or a record with this `seen` was true at this revision."""
        if len(self.looked) >= _LOOKED_MAX:
            self.looked.clear()
        self.looked[key] = (seen, revision)

    def place(self, key: Key) -> str:
        """Where the next holding of `key` is noted: each process writes into a ring of its own.

        So its entries are written over again and again, and nobody writes over another's.
        """
        return f"{self.ring}/{self.places.get(key, 0) % HISTORY_KEPT}"

    def placed(self, key: Key) -> None:
        """That place is taken, or perhaps."""
        if len(self.places) >= _LOOKED_MAX:
            self.places, self.ring = {}, _new_ring()
        self.places[key] = self.places.get(key, 0) + 1

    def forget(self) -> None:
        """In a fork's child: nothing of this is ours."""
        self.places, self.ring = {}, _new_ring()
        self.sessions, self.by_id, self.claims, self.standing = {}, {}, {}, {}
