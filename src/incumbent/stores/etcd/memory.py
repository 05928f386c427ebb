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

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from incumbent.model import Key

__all__ = ["Born", "Memory", "Mine", "Proof", "Session"]

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

    __slots__ = ("claims", "gone", "id", "pending", "proved", "swept", "ttl")

    def __init__(self, lease_id: str, ttl: int, proved: float) -> None:
        self.id = lease_id
        self.ttl = ttl
        self.proved = proved
        self.pending: Proof | None = None
        self.gone = False
        self.swept = 0.0
        self.claims: dict[tuple[Key, str], Mine] = {}

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


@dataclass(slots=True)
class Mine:
    """One claim of this process. `revision` 0: nobody knows whether its take was carried out.

    `due`: the instant at which it ends unless it is renewed; `check`: see Dialect.check; `lease64`,
    `past64`: its keys, once they were needed.
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
    check: str = ""
    lease64: str = ""
    past64: str = ""


class Born(NamedTuple):
    """The incarnation of the cluster, as the marker under the prefix says.

    `base` + a revision is a fencing token; `value` is the marker's, in base64 (its revision may be
    the same in the next incarnation); `at` the instant (of clock.now) at which this one began, as
    the servers' clocks tell.
    """

    epoch: str
    base: int
    value: str
    at: float


@dataclass(slots=True)
class Memory:
    """See the module."""

    born: Born | None = None
    sessions: dict[int, Session] = field(default_factory=dict)
    by_id: dict[str, Session] = field(default_factory=dict)
    mine: dict[tuple[Key, str], Mine] = field(default_factory=dict)
    histories: dict[int, tuple[str, int]] = field(default_factory=dict)
    standing: dict[tuple[Key, str], Session] = field(default_factory=dict)
    looked: dict[Key, tuple[str, int]] = field(default_factory=dict)

    def new_session(self, session: Session) -> Session:
        """One more, and the one for new leases of its ttl from now on."""
        for old in list(self.by_id.values()):
            if old.proved + old.ttl < session.proved - session.ttl:
                self.lose(old)
        self.by_id[session.id] = self.sessions[session.ttl] = session
        return session

    def note(self, mine: Mine) -> None:
        """A claim whose take is about to be sent, or was carried out."""
        before = self.mine.get((mine.key, mine.claim))
        if before is not None and before.session is not mine.session:
            before.session.claims.pop((mine.key, mine.claim), None)
        self.mine[mine.key, mine.claim] = mine
        mine.session.claims[mine.key, mine.claim] = mine

    def drop(self, key: Key, claim: str) -> None:
        """Nothing of the claim is left."""
        mine = self.mine.pop((key, claim), None)
        if mine is not None:
            mine.session.claims.pop((key, claim), None)

    def lose(self, session: Session) -> None:
        """The etcd lease is gone, and with it all that was attached."""
        session.gone = True
        if self.sessions.get(session.ttl) is session:
            del self.sessions[session.ttl]
        self.by_id.pop(session.id, None)
        for key, claim in list(session.claims):
            self.drop(key, claim)

    def overdue(self, session: Session, now: float) -> list[Mine]:
        """Claims whose time ran out; looked for a few times in a ttl."""
        if now < session.swept + session.ttl / 8:
            return []
        session.swept = now
        return [mine for mine in list(session.claims.values()) if mine.due <= now]

    def saw(self, key: Key, seen: str, revision: int) -> None:
        """A refusal or a record with this `seen` was true at this revision."""
        if len(self.looked) >= _LOOKED_MAX:
            self.looked.clear()
        self.looked[key] = (seen, revision)

    def forget(self) -> None:
        """In a fork's child: nothing of this is ours."""
        self.sessions, self.by_id, self.mine, self.standing = {}, {}, {}, {}
