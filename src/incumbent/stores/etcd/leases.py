"""Programs about etcd leases: those of sessions, of the history, and of candidates."""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from typing import Final

from incumbent import clock
from incumbent.model import Key
from incumbent.stores.etcd.errors import LeaseExists
from incumbent.stores.etcd.records import entry_of
from incumbent.stores.etcd.requests import Requests, Steps, seconds, term_of
from incumbent.stores.etcd.sessions import ClaimState, Memory, Session

__all__ = ["Leases"]

_STANDING_MAX: Final = 4096

_now = clock.now


class Leases:
    """See the module."""

    def __init__(self, requests: Requests, memory: Memory) -> None:
        self._requests = requests
        self._memory = memory

    def session(self, ttl: float) -> Steps[Session]:
        """An etcd lease that is shared by all leases of this ttl, with enough of it left."""
        whole = seconds(ttl)
        session = self._memory.sessions.get(whole)
        now = _now()
        if session is not None and session.is_fresh(now):
            return session
        if session is not None and session.proved > now:
            yield from self.keep_alive(session)
            if not session.gone:
                yield from self.sweep(session)
                return session
        session = yield from self.grant(whole)
        return self._memory.new_session(session)

    def history(self, keep: float) -> Steps[str]:
        """The etcd lease of history and marks, shared by the whole fleet.

        Its id says what it is for: a new one every `keep` seconds, each living for twice as long.
        """
        whole = seconds(keep)
        period = int(clock.wall() // whole)
        known = self._memory.histories.get(whole)
        if known is not None and known[1] == period:
            return known[0]
        text = f"{self._requests.naming.prefix}!h/{whole}/{period}"
        lease = int.from_bytes(sha256(text.encode()).digest()[:8]) >> 2 | 1
        with suppress(LeaseExists):
            yield self._requests.grant(2 * whole, lease)
        self._memory.histories[whole] = (str(lease), period)
        return str(lease)

    def has_session(self, ttl: float) -> bool:
        """Whether one is at hand, so that a try that loses leaves no new one behind."""
        session = self._memory.sessions.get(seconds(ttl))
        return session is not None and session.proved > _now()

    def grant(self, whole: int) -> Steps[Session]:
        """A new etcd lease. It went through the cluster's log, so it is proved at once."""
        sent = _now()
        reply = yield self._requests.grant(whole)
        return Session(str(reply["ID"]), whole, sent + int(reply.get("TTL", whole)))

    def revoke(self, lease: str) -> Steps[None]:
        """End an etcd lease, and all that is attached."""
        yield self._requests.about("revoke", lease)

    def keep_alive(self, session: Session) -> Steps[None]:
        """Ask for the whole ttl again; see sessions for when that is proved."""
        sent = _now()
        reply = yield self._requests.about("keepalive", session.id)
        result = reply.get("result", reply)
        session.answered(sent, int(result.get("TTL", 0)), term_of(result))
        if session.gone:
            self._memory.lose(session)

    def sweep(self, session: Session) -> Steps[None]:
        """Remove claims whose own time ran out although their session lives."""
        overdue = self._memory.overdue(session, _now())
        for start in range(0, len(overdue), 50):
            batch = yield from self._certain(overdue[start : start + 50])
            if not batch:
                continue
            yield self._requests.remove_leases(batch)
            for state in batch:
                self._drop(state)

    def _certain(self, batch: list[ClaimState]) -> Steps[list[ClaimState]]:
        """The claims that have a key, with its revision, so that no later grant is removed."""
        unsure = [state for state in batch if not state.revision]
        if unsure:
            reply = yield self._requests.lookup([state.key for state in unsure])
            for state, response in zip(unsure, reply["responses"], strict=True):
                entry = entry_of(state.claim, response)
                if entry is not None:
                    state.revision = entry.created
                if not state.revision:
                    self._drop(state)
        # Another take of the same claim, noted since, is not overdue: its grant is newer.
        known = self._memory.claims
        return [
            state
            for state in batch
            if state.revision and known.get((state.key, state.claim)) is state
        ]

    def _drop(self, state: ClaimState) -> None:
        """Unless another take of the claim was noted since."""
        if self._memory.claims.get((state.key, state.claim)) is state:
            self._memory.drop(state.key, state.claim)

    def standing(self, place: tuple[Key, str], lasts: float) -> Steps[Session]:
        """The etcd lease of a holder's candidacy; its next try uses the same one again."""
        standing = self._memory.standing
        session = standing.get(place)
        if session is not None and session.ttl == seconds(lasts):
            if session.is_fresh(_now()):
                return session
            if session.proved > _now():
                yield from self.keep_alive(session)
                if not session.gone:
                    return session
        if len(standing) >= _STANDING_MAX:
            standing.clear()
        session = yield from self.grant(seconds(lasts))
        standing[place] = session
        return session

    def lives(self, leases: set[str]) -> Steps[dict[str, float]]:
        """Seconds that are left of etcd leases."""
        found = {}
        for lease in leases - {"0"}:
            reply = yield self._requests.about("timetolive", lease)
            left, most = int(reply.get("TTL", 0)), int(reply.get("grantedTTL", 0))
            # Whole seconds, rounded down: one that is not over has up to another second.
            found[lease] = float(min(left + 1, most)) if left >= 0 else 0.0
        return found
