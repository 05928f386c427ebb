"""Renewing: a keep-alive for each etcd lease, then proof that each key is there.

The proof is one transaction of comparisons for many leases: all there, and no switch set. Only
if that fails each is asked for apart. It comes after the keep-alive, so that it also proves that
the member which answered the keep-alive was the leader still (see sessions).

Renewals that are sent again and again are prepared once (see model.Batch). An answer says of which
state of the cluster it is. If that is the state of which a look at keys was answered before, none
of them can have changed: it need not be taken again. So while nobody writes, thousands of leases
cost the look at a few of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

from incumbent import clock
from incumbent.errors import OutcomeUnknown
from incumbent.model import Batch, Gone, Key, Renewal, Renewed, RenewOutcome
from incumbent.stores.etcd.errors import LeaseMissing
from incumbent.stores.etcd.incarnation import Incarnation
from incumbent.stores.etcd.leases import Leases
from incumbent.stores.etcd.marker import Markers
from incumbent.stores.etcd.records import entries_in, entry_of
from incumbent.stores.etcd.requests import (
    BATCH,
    AsOf,
    Reply,
    Request,
    Steps,
    as_of,
    seconds,
    term_of,
)
from incumbent.stores.etcd.sessions import (
    ClaimState,
    Memory,
    Proof,
    RenewalGroup,
    Session,
    state_of,
)
from incumbent.stores.notices import notices_for

__all__ = ["Prepared", "Renewing"]

_EACH: Final = 50
"""Transactions within one."""
_FIRST: Final = 8
"""Leases of the first look of several, which tells whether the others are needed."""
_RENEWED: Final = Renewed()

_now = clock.now


@dataclass(slots=True)
class _Item:
    """One renewal on its way. `state` is what the key is to be, `write` whether it must be written.

    `lease`: the etcd lease that it is attached to before; `outcome` None: not known yet.
    """

    renewal: Renewal
    state: ClaimState | None = None
    write: bool = False
    lease: str = ""
    outcome: RenewOutcome | None = None


@dataclass(slots=True)
class _Look:
    """Whether some leases are there and unpaused. `as_of`: the state that last said yes."""

    request: Request
    as_of: AsOf | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """Leases of one ttl and one session, all of which were renewed."""

    incarnation: Incarnation
    session: Session
    ttl: float
    looks: list[_Look]
    group: RenewalGroup

    def holds(self, memory: Memory, now: float) -> bool:
        """Whether all is as it was when this was prepared."""
        session, group = self.session, self.group
        return (
            group.whole
            and group.due > now
            and not session.gone
            and session.ttl >= self.ttl
            and memory.by_id.get(session.id) is session
            and memory.incarnation is self.incarnation
        )


class Renewing:
    """Programs of a renewal."""

    def __init__(self, markers: Markers, leases: Leases) -> None:
        self._markers = markers
        self._leases = leases
        self._requests = markers.requests
        self._memory = markers.memory

    def renew(self, renewals: Sequence[Renewal]) -> Steps[list[RenewOutcome]]:
        if not renewals:
            return []
        batch = renewals if isinstance(renewals, Batch) else None
        prepared = batch and batch.prepared
        if isinstance(prepared, Prepared) and (yield from self._again(prepared)):
            return [_RENEWED] * len(renewals)
        items = yield from self._each(renewals)
        if batch is not None:
            batch.prepared = self._prepare(items)
        return [item.outcome or Gone() for item in items]

    # -- the same again -----------------------------------------------------------------------

    def _prepare(self, items: list[_Item]) -> Prepared | None:
        """What sends the same renewals again, if all of it went as usual, in one session."""
        states, known, ttl = [], self._memory.incarnation, items[0].renewal.ttl
        for item in items:
            state, renewal = item.state, item.renewal
            if state is None or item.outcome != _RENEWED or renewal.ttl != ttl:
                return None
            if known is None or renewal.epoch != known.epoch:
                return None
            states.append(state)
        session = states[0].session
        if known is None or any(state.session is not session for state in states):
            return None
        group = RenewalGroup(min(state.ends for state in states))
        for state in states:
            state.join(group)
        newest = max(states, key=lambda state: state.revision)
        all_quiet = self._requests.all_quiet
        looks = [_Look(all_quiet(some, known, newest)) for some in _shares(states)]
        return Prepared(known, session, ttl, looks, group)

    def _again(self, prepared: Prepared) -> Steps[bool]:
        """Whether all of them are renewed; False: they have to be looked at one by one."""
        session, sent = prepared.session, _now()
        if not prepared.holds(self._memory, sent):
            return False
        # Also if no reply comes: a lease that etcd may keep must not be removed as overdue.
        prepared.group.due = max(prepared.group.due, sent + prepared.ttl)
        yield from self._leases.keep_alive(session)
        if not prepared.holds(self._memory, sent):
            return False
        proof, current = session.pending, None
        for look in prepared.looks:
            if current is not None and look.as_of == current:
                # Nothing at all has changed in the cluster since.
                continue
            reply = yield look.request
            if not reply.get("succeeded") or not session.confirm(proof, term_of(reply)):
                return False
            look.as_of = as_of(reply, self._memory.dialled)
            current = current or look.as_of
        yield from self._leases.sweep(session)
        return True

    # -- one by one ---------------------------------------------------------------------------

    def _each(self, renewals: Sequence[Renewal]) -> Steps[list[_Item]]:
        incarnation, now = (yield from self._markers.identify()), _now()
        items = [self._known(renewal, incarnation, now) for renewal in renewals]
        # Twice: an etcd lease that turns out to be gone, or a new leader, asks for another look.
        for _ in range(3):
            yield from self._adopt(items, incarnation)
            if (yield from self._extend(items, incarnation)):
                yield from self._reasoned(items)
                return items
        where = self._markers.site.where
        raise OutcomeUnknown(
            f"{where}: its leader changed while leases were renewed; nothing is proved"
        )

    def _reasoned(self, items: list[_Item]) -> Steps[None]:
        """Give leases that are gone another reason if the cluster lost its data."""
        gone = [item for item in items if item.outcome is None or item.outcome == Gone()]
        if gone and (yield from self._markers.changed()):
            for item in gone:
                item.outcome = Gone("store_restarted")

    def _known(self, renewal: Renewal, incarnation: Incarnation, now: float) -> _Item:
        if renewal.epoch != incarnation.epoch:
            return _Item(renewal, outcome=Gone("store_restarted"))
        state = self._memory.claims.get((renewal.key, renewal.claim))
        if state is None or not state.revision or state.session.gone:
            return _Item(renewal)
        if incarnation.base + state.revision != renewal.token or state.ends <= now:
            return _Item(renewal, outcome=Gone())
        return _Item(renewal, state)

    def _adopt(self, items: list[_Item], incarnation: Incarnation) -> Steps[None]:
        """Leases of which nothing is remembered are what their keys say."""
        unknown = [item for item in items if item.state is None and item.outcome is None]
        for start in range(0, len(unknown), BATCH):
            batch = unknown[start : start + BATCH]
            reply = yield self._requests.lookup([item.renewal.key for item in batch])
            for item, response in zip(batch, reply["responses"], strict=True):
                self._adopt_one(item, incarnation, response)

    def _adopt_one(self, item: _Item, incarnation: Incarnation, response: Reply) -> None:
        renewal, memory = item.renewal, self._memory
        entry = entry_of(renewal.claim, response)
        if entry is None or incarnation.base + entry.created != renewal.token:
            item.outcome = Gone()
            return
        ttl = float(entry.fields.get("ttl", renewal.ttl))
        session = memory.by_id.get(entry.lease)
        if session is None:
            session = memory.by_id[entry.lease] = Session(entry.lease, seconds(ttl), 0.0)
        item.state = state_of(renewal.key, entry, session, _now() + renewal.ttl)
        memory.note(item.state)

    def _extend(self, items: list[_Item], incarnation: Incarnation) -> Steps[bool]:
        """One round; False: something changed meanwhile, and another round is needed."""
        sent = _now()
        yield from self._choose_sessions(items)
        waiting = [item for item in items if item.state is not None and item.outcome is None]
        sessions = {item.state.session for item in waiting if item.state is not None}
        for item in waiting:
            if item.state is not None:
                # Also if no reply comes: a lease that etcd may keep must not be removed as overdue.
                item.state.due = max(item.state.ends, sent + item.renewal.ttl)
        for session in sessions:
            yield from self._leases.keep_alive(session)
        if any(item.state and item.state.session.ttl < item.renewal.ttl for item in waiting):
            return False
        if any(session.gone for session in sessions):
            for item in waiting:
                if item.state is not None and item.state.session.gone:
                    item.state, item.write, item.lease = None, False, ""
            return False
        try:
            proved = yield from self._verify(waiting, incarnation)
        except LeaseMissing:
            return False
        for session in sessions:
            yield from self._leases.sweep(session)
        return proved

    def _choose_sessions(self, items: list[_Item]) -> Steps[None]:
        """A longer ttl needs another etcd lease, and new metadata must be written."""
        for item in items:
            state, renewal = item.state, item.renewal
            if state is None or item.outcome is not None:
                continue
            item.lease = item.lease or state.session.id
            if state.session.ttl < renewal.ttl:
                session = yield from self._leases.session(renewal.ttl)
                item.state = state = _changed(state, session=session, ttl=renewal.ttl)
                item.write = True
            if renewal.meta is not None and renewal.meta != state.meta:
                item.state = _changed(state, meta=renewal.meta)
                item.write = True

    def _verify(self, waiting: list[_Item], incarnation: Incarnation) -> Steps[bool]:
        """Whether all of it is proved. Sets the outcomes."""
        quiet = [item for item in waiting if not item.write]
        each = [item for item in waiting if item.write]
        proved = True
        for start in range(0, len(quiet), BATCH):
            loud = yield from self._quiet(quiet[start : start + BATCH], incarnation)
            proved = proved and loud is not None
            each += loud or []
        for batch in _apart(each):
            proved = (yield from self._ask_each(batch, incarnation)) and proved
        if not proved:
            for item in waiting:
                if isinstance(item.outcome, Renewed):
                    item.outcome = None
        return proved

    def _quiet(self, batch: list[_Item], incarnation: Incarnation) -> Steps[list[_Item] | None]:
        """The items that must be asked for one by one; None: not proved."""
        proved = yield from self._all_quiet(batch, incarnation)
        if proved is not None:
            return [] if proved else None
        if len(batch) <= BATCH // 2:
            return batch
        # A switch of any name in the namespace tells no more than that.
        loud: list[_Item] = []
        for start in range(0, len(batch), BATCH // 2):
            some = yield from self._quiet(batch[start : start + BATCH // 2], incarnation)
            if some is None:
                return None
            loud += some
        return loud

    def _all_quiet(self, batch: list[_Item], incarnation: Incarnation) -> Steps[bool | None]:
        """Whether they are proved; None: one is gone, or somebody set a switch."""
        states = [item.state for item in batch if item.state is not None]
        proofs = _pending(states)
        newest = max(states, key=lambda state: state.revision)
        reply = yield self._requests.all_quiet(states, incarnation, newest)
        if not reply.get("succeeded"):
            return None
        for item in batch:
            item.outcome = _RENEWED
        return _confirmed(proofs, reply)

    def _ask_each(self, batch: list[_Item], incarnation: Incarnation) -> Steps[bool]:
        asked = [(item.state, item.write, item.lease) for item in batch if item.state is not None]
        for state, write, _ in asked:
            if write:
                # If nobody hears of it, the key says with which etcd lease it lives.
                self._memory.drop(state.key, state.claim)
        proofs = _pending([state for state, _, _ in asked])
        reply = yield self._requests.each(asked, incarnation)
        if not reply.get("succeeded"):
            # Another incarnation, as the marker says: see _reasoned.
            for item in batch:
                item.outcome = Gone()
            return True
        for item, response in zip(batch, reply["responses"], strict=True):
            self._answered(item, response["response_txn"])
        return _confirmed(proofs, reply)

    def _answered(self, item: _Item, found: Reply) -> None:
        state = item.state
        if state is None:
            return
        if not found.get("succeeded"):
            item.outcome = Gone()
            self._memory.drop(state.key, state.claim)
            return
        if item.write:
            self._memory.note(state)
            item.write, item.lease = False, state.session.id
        pause, resign = (entries_in(response) for response in found["responses"][:2])
        item.outcome = Renewed(
            notices_for(
                item.renewal.token,
                pause[0].value if pause else None,
                resign[0].value if resign else None,
            )
        )


def _shares(states: Sequence[ClaimState]) -> list[Sequence[ClaimState]]:
    """For one look each."""
    if len(states) <= BATCH // 2:
        return [states]
    starts = [0, *range(_FIRST, len(states), BATCH), len(states)]
    return [states[start:end] for start, end in pairwise(starts)]


def _apart(items: Sequence[_Item]) -> list[list[_Item]]:
    """As many as fit into one transaction, none of which may write a key twice.

    An old claim of ours on a name may still be remembered beside the new one.
    """
    rounds: list[list[_Item]] = []
    met: Counter[Key] = Counter()
    for item in items:
        key = item.renewal.key
        if met[key] == len(rounds):
            rounds.append([])
        rounds[met[key]].append(item)
        met[key] += 1
    return [some[at : at + _EACH] for some in rounds for at in range(0, len(some), _EACH)]


def _changed(state: ClaimState, **fields: Any) -> ClaimState:
    return replace(state, due=state.ends, group=None, **fields)


def _pending(states: Sequence[ClaimState]) -> dict[Session, Proof | None]:
    """What the reply to the next request may prove."""
    return {state.session: state.session.pending for state in states}


def _confirmed(proofs: dict[Session, Proof | None], reply: Reply) -> bool:
    confirmed = [session.confirm(proof, term_of(reply)) for session, proof in proofs.items()]
    return all(confirmed)
