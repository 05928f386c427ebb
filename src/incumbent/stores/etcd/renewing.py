"""Renewing: a keep-alive for each etcd lease, then proof that each key still exists.

The proof is one transaction of comparisons for many leases: all keys exist, and no switch is set.
Only if that fails, each lease is checked separately. The proof comes after the keep-alive, so it
also proves that the member which answered the keep-alive was still the leader (see sessions).

Renewals that are sent again and again are prepared once (see model.Batch). Each reply names the
state of the cluster that it is of. If an earlier check of some keys was of the same state, none of
these keys can have changed, and the check is not repeated. So while nothing is written, thousands
of leases cost a check of a few of them.
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
from incumbent.rules.notices import PAUSE, RESIGN, notices_for
from incumbent.stores.etcd import kv
from incumbent.stores.etcd.incarnation import Cluster, ClusterMarker
from incumbent.stores.etcd.kv import EtcdProgram, GatewayRequest, Reply
from incumbent.stores.etcd.sessions import ClaimState, RenewalGroup, Session, SessionProof, state_of
from incumbent.stores.etcd.site import LeaseMissing
from incumbent.stores.etcd.taking import writes

_CHECKED_FIRST: Final = 8
"""Leases in the first check of several; its reply shows whether the others are needed."""
_RENEWED: Final = Renewed()

_now = clock.now


def renew(cluster: Cluster, renewals: Sequence[Renewal]) -> EtcdProgram[list[RenewOutcome]]:
    """The outcome of each renewal, in the same order."""
    if not renewals:
        return []
    batch = renewals if isinstance(renewals, Batch) else None
    prepared = batch and batch.prepared
    if isinstance(prepared, _Prepared) and (yield from prepared.run(cluster)):
        return [_RENEWED] * len(renewals)
    incarnation = yield from cluster.identify()
    renewing = _Renewing(cluster, incarnation, renewals)
    yield from renewing.run()
    if batch is not None:
        batch.prepared = renewing.prepare()
    return [outcome or Gone() for outcome in renewing.outcomes]


def check_all(
    cluster: Cluster, incarnation: ClusterMarker, states: Sequence[ClaimState]
) -> GatewayRequest:
    """Check that all leases exist and have no switch; for many, that their namespaces have none."""
    # A member that has the newest grant also has everything that was written before it, so the
    # other leases are compared by revision alone.
    newest = max(states, key=lambda state: state.revision)
    compare = cluster.sessions.key_compared(newest)
    names = [kv.names_of(cluster.prefix, state.key) for state in states]
    for state, keys in zip(states, names, strict=True):
        if state is not newest:
            compare.append(kv.created(state.own_key or keys.held, state.revision))
    if len(states) <= kv.BATCH // 2:
        compare += [kv.free(keys.switches) for keys in names]
    else:
        namespaces = {state.key.namespace for state in states}
        compare += [kv.free(f"{cluster.prefix}/{namespace}!s/") for namespace in namespaces]
    return cluster.transaction(
        incarnation, compare, [cluster.linearizable_read], [cluster.linearizable_read]
    )


# -- repeated renewals ----------------------------------------------------------------------------


@dataclass(slots=True)
class _ExistenceCheck:
    """A check that some leases exist without switches. `as_of`: the state of its last success."""

    request: GatewayRequest
    as_of: kv.AsOf | None = None


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Leases with the same ttl and session, all of which were renewed."""

    cluster: Cluster
    incarnation: ClusterMarker
    session: Session
    ttl: float
    checks: list[_ExistenceCheck]
    group: RenewalGroup

    def _is_unchanged(self, now: float) -> bool:
        """Whether everything is still as it was when this was prepared."""
        session, group, cluster = self.session, self.group, self.cluster
        return (
            group.intact
            and group.lapses_at > now
            and session.serves(self.ttl)
            and cluster.sessions.by_id.get(session.id) is session
            and cluster.incarnation is self.incarnation
        )

    def run(self, cluster: Cluster) -> EtcdProgram[bool]:
        """Renew all leases; False if they have to be checked one by one."""
        session, sent = self.session, _now()
        if cluster is not self.cluster or not self._is_unchanged(sent):
            return False
        # Even if no reply comes: a lease that etcd may keep must not be removed as overdue.
        self.group.lapses_at = max(self.group.lapses_at, sent + self.ttl)
        yield from cluster.sessions.keep_alive(session)
        # Again: the keep-alive may have found it gone, or under another leader.
        if not self._is_unchanged(sent):
            return False
        # The keep-alive from before the checks: they prove none that another
        # thread sends meanwhile.
        proof, current = session.pending, None
        for check in self.checks:
            if current is not None and check.as_of == current:
                # Nothing at all has changed in the cluster since.
                continue
            reply = yield check.request
            if not reply.get("succeeded") or not session.confirm(proof, kv.raft_term_of(reply)):
                return False
            check.as_of = kv.as_of(reply, cluster.dialled)
            current = current or check.as_of
        yield from cluster.sessions.sweep(session)
        return True


# -- one by one -----------------------------------------------------------------------------------


@dataclass(slots=True)
class _Item:
    """One renewal. `state`: the claim's state afterwards; `write`: whether to write its key.

    `etcd_lease`: the etcd lease that the key is attached to before; `at`: the index of the outcome.
    """

    at: int
    renewal: Renewal
    state: ClaimState
    etcd_lease: str
    write: bool = False

    @property
    def alone(self) -> bool:
        """Whether it needs more than the check that its key exists."""
        return self.write or self.state.ticket > 0

    def change(self, **fields: Any) -> None:
        self.state = replace(self.state, lapses_at=self.state.ends, group=None, **fields)
        self.write = True


class _Renewing:
    """Renewals one by one. `outcomes`: None if not known yet; `_items`: those with known keys."""

    def __init__(
        self, cluster: Cluster, incarnation: ClusterMarker, renewals: Sequence[Renewal]
    ) -> None:
        self._cluster = cluster
        self._sessions = cluster.sessions
        self._incarnation = incarnation
        self._renewals = renewals
        self.outcomes: list[RenewOutcome | None] = [None] * len(renewals)
        self._items: dict[int, _Item] = {}

    def run(self) -> EtcdProgram[None]:
        self._recall(_now())
        # A missing etcd lease, or a new leader, makes another round necessary.
        for _ in range(3):
            yield from self._adopt()
            if (yield from self._extend()):
                break
        else:
            raise OutcomeUnknown(
                f"{self._cluster.site.where}: its leader changed while leases were renewed;"
                " nothing is proved"
            )
        gone = [
            at
            for at, outcome in enumerate(self.outcomes)
            if not isinstance(outcome, Renewed) and outcome in (None, Gone())
        ]
        if gone and (yield from self._cluster.changed()):
            # The cluster lost its data, or was restored.
            for at in gone:
                self.outcomes[at] = Gone("store_restarted")

    def prepare(self) -> _Prepared | None:
        """Prepare the same renewals to be repeated; None unless all succeeded, in one session."""
        known, ttl = self._cluster.incarnation, self._renewals[0].ttl
        if known is None or len(self._items) < len(self._renewals):
            return None
        if any(
            outcome != _RENEWED or renewal.ttl != ttl or renewal.epoch != known.epoch
            for outcome, renewal in zip(self.outcomes, self._renewals, strict=True)
        ):
            return None
        states = [self._items[at].state for at in range(len(self._renewals))]
        session = states[0].session
        if any(state.session is not session or state.ticket for state in states):
            return None
        group = RenewalGroup(min(state.ends for state in states))
        for state in states:
            state.join(group)
        starts = [0, len(states)]
        if len(states) > kv.BATCH // 2:
            starts[1:1] = range(_CHECKED_FIRST, len(states), kv.BATCH)
        checks = [
            _ExistenceCheck(check_all(self._cluster, known, states[start:end]))
            for start, end in pairwise(starts)
        ]
        return _Prepared(self._cluster, known, session, ttl, checks, group)

    def _recall(self, now: float) -> None:
        """Use the claims that this process remembers."""
        claims, known = self._sessions.claims, self._incarnation
        for at, renewal in enumerate(self._renewals):
            state = claims.get((renewal.key, renewal.claim))
            if renewal.epoch != known.epoch:
                self.outcomes[at] = Gone("store_restarted")
            elif state is None or not state.revision or state.session.gone:
                continue
            # Although its session lives: a claim whose own time is over may be swept at any moment.
            elif known.token_base + state.revision != renewal.token or state.ends <= now:
                self.outcomes[at] = Gone()
            else:
                self._items[at] = _Item(at, renewal, state, state.session.id)

    def _adopt(self) -> EtcdProgram[None]:
        """Read the keys of leases that this process does not remember."""
        unknown = [
            (at, renewal)
            for at, renewal in enumerate(self._renewals)
            if self.outcomes[at] is None and at not in self._items
        ]
        for start in range(0, len(unknown), kv.BATCH):
            batch = unknown[start : start + kv.BATCH]
            found = yield from self._sessions.lookup([renewal.key for _, renewal in batch])
            for at, renewal in batch:
                self._adopt_one(at, renewal, found[renewal.key])

    def _adopt_one(self, at: int, renewal: Renewal, response: Reply) -> None:
        entry = kv.entry_of(renewal.claim, response)
        if entry is None or self._incarnation.token_base + entry.created != renewal.token:
            self.outcomes[at] = Gone()
            return
        ttl = float(entry.fields.get("ttl", renewal.ttl))
        session = self._sessions.by_id.get(entry.etcd_lease)
        if session is None:
            session = Session(entry.etcd_lease, kv.seconds(ttl), 0.0)
            self._sessions.by_id[entry.etcd_lease] = session
        state = state_of(renewal.key, entry, session, _now() + renewal.ttl)
        self._sessions.remember(state)
        self._items[at] = _Item(at, renewal, state, session.id)

    def _extend(self) -> EtcdProgram[bool]:
        """One round; False if something changed meanwhile, so that another round is needed."""
        sent = _now()
        waiting = [item for item in self._items.values() if self.outcomes[item.at] is None]
        yield from self._change(waiting)
        for item in waiting:
            # Even if no reply comes: a lease that etcd may keep must not be removed as overdue.
            item.state.lapses_at = max(item.state.ends, sent + item.renewal.ttl)
        sessions = {item.state.session for item in waiting}
        for session in sessions:
            yield from self._sessions.keep_alive(session)
        if not all(item.state.session.serves(item.renewal.ttl) for item in waiting):
            for item in waiting:
                if item.state.session.gone:
                    del self._items[item.at]
            return False
        try:
            proved = yield from self._verify(waiting)
        except LeaseMissing:
            return False
        for session in sessions:
            yield from self._sessions.sweep(session)
        return proved

    def _change(self, items: list[_Item]) -> EtcdProgram[None]:
        """Move items to another etcd lease (longer ttl, new leader), and note new metadata."""
        for item in items:
            ttl, meta = item.renewal.ttl, item.renewal.meta
            if not item.state.session.serves(ttl):
                item.change(session=(yield from self._sessions.session(ttl)), ttl=ttl)
            if meta is not None and meta != item.state.meta:
                item.change(meta=meta)

    def _verify(self, waiting: list[_Item]) -> EtcdProgram[bool]:
        """Set the outcomes; True if all of them are proved."""
        quiet = [item for item in waiting if not item.alone]
        each = [item for item in waiting if item.alone]
        proved = True
        for start in range(0, len(quiet), kv.BATCH):
            single = yield from self._verify_together(quiet[start : start + kv.BATCH])
            proved = proved and single is not None
            each += single or []
        for batch in _in_rounds(each):
            proved = (yield from self._verify_each(batch)) and proved
        # The leader changed, so no keep-alive of this round counts, whatever its keys say.
        if not proved:
            for item in waiting:
                if isinstance(self.outcomes[item.at], Renewed):
                    self.outcomes[item.at] = None
        return proved

    def _verify_together(self, batch: list[_Item]) -> EtcdProgram[list[_Item] | None]:
        """Check all at once. Returns the items to check one by one; None: not proved."""
        states = [item.state for item in batch]
        proofs = _pending(states)
        reply = yield check_all(self._cluster, self._incarnation, states)
        if reply.get("succeeded"):
            for item in batch:
                self.outcomes[item.at] = _RENEWED
            return [] if _confirmed(proofs, reply) else None
        # A lease is gone, or a switch is set (if they are many, of any name in the namespace).
        half = kv.BATCH // 2
        if len(batch) <= half:
            return batch
        single: list[_Item] = []
        for some in (batch[:half], batch[half:]):
            each = yield from self._verify_together(some)
            if each is None:
                return None
            single += each
        return single

    def _verify_each(self, batch: list[_Item]) -> EtcdProgram[bool]:
        """Check that each lease is ours, read its switches, and write its key if necessary."""
        asked = []
        for item in batch:
            state, names = item.state, kv.names_of(self._cluster.prefix, item.state.key)
            success = [kv.read(names.field(PAUSE)), kv.read(names.field(RESIGN))]
            failure = []
            if item.write:
                success += writes(names, state)
                failure.append(kv.read_ours(names))
                # If the reply is lost, the key itself names the etcd lease that it is attached to.
                self._sessions.must_reread(state)
            asked.append(
                kv.nested(
                    self._sessions.key_and_ticket_compared(state, item.etcd_lease), success, failure
                )
            )
        proofs = _pending([item.state for item in batch])
        reply = yield self._cluster.transaction(self._incarnation, [], asked)
        if not reply.get("succeeded"):
            # The marker is of another incarnation: see run.
            for item in batch:
                self.outcomes[item.at] = Gone()
            return True
        for item, response in zip(batch, reply["responses"], strict=True):
            self._answered(item, response["response_txn"])
        answered = all(self.outcomes[item.at] is not None for item in batch)
        return _confirmed(proofs, reply) and answered

    def _answered(self, item: _Item, found: Reply) -> None:
        """Set the outcome, or leave it open if the write has to be sent again."""
        if not found.get("succeeded"):
            if item.write and self._has_moved(item, found["responses"][0]):
                return
            self.outcomes[item.at] = Gone()
            self._sessions.must_reread(item.state)
            return
        if item.write:
            self._sessions.remember(item.state)
            item.write, item.etcd_lease = False, item.state.session.id
        switches = [kv.entries_in(response) for response in found["responses"][:2]]
        pause, resign = (entries[0].value if entries else None for entries in switches)
        self.outcomes[item.at] = Renewed(notices_for(item.renewal.token, pause, resign))

    def _has_moved(self, item: _Item, found: Reply) -> bool:
        """Whether an earlier write without a reply attached the key to another session of ours."""
        entry = kv.entry_of(item.renewal.claim, found)
        if entry is None or entry.created != item.state.revision:
            return False
        if entry.etcd_lease == item.etcd_lease or entry.etcd_lease not in self._sessions.by_id:
            return False
        item.etcd_lease = entry.etcd_lease
        return True


def _in_rounds(items: Sequence[_Item]) -> list[list[_Item]]:
    """The items, in batches that fit into one transaction, which must not write a key twice."""
    # An old claim of ours on a name may still be remembered beside the new claim.
    rounds: list[list[_Item]] = []
    times: Counter[tuple[Key, str]] = Counter()
    for item in items:
        key = item.renewal.key, item.state.own_key
        if times[key] == len(rounds):
            rounds.append([])
        rounds[times[key]].append(item)
        times[key] += 1
    most = kv.NESTED_MOST
    return [some[at : at + most] for some in rounds for at in range(0, len(some), most)]


def _pending(states: Sequence[ClaimState]) -> dict[Session, SessionProof | None]:
    """The keep-alives that the reply to the next request may prove."""
    return {state.session: state.session.pending for state in states}


def _confirmed(proofs: dict[Session, SessionProof | None], reply: Reply) -> bool:
    # A list first: `all` alone would stop at the first, and the others would not be noted.
    confirmed = [
        session.confirm(proof, kv.raft_term_of(reply)) for session, proof in proofs.items()
    ]
    return all(confirmed)
