"""The part that blocking and asyncio elections share: everything that does not wait."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar, Unpack

from incumbent import clock, meters
from incumbent.chance import draw_jitter
from incumbent.durations import Duration
from incumbent.election import (
    Absence,
    CandidatePauses,
    Leader,
    encode_metadata,
    leader_by_refusal,
    read_metadata,
    with_rank,
)
from incumbent.errors import (
    AlreadyReleased,
    ConfigError,
    Error,
    LeaseLost,
    Misuse,
    NotCandidate,
    NotHeld,
    StoreError,
)
from incumbent.lease import LeaseState
from incumbent.locks.callers import Exclusion
from incumbent.locks.leases import SingleLease
from incumbent.locks.lock import SingleLock
from incumbent.locks.options import (
    PERMITS_MOST,
    IfLost,
    LockSettings,
    OnLost,
    explain_arguments,
    rank_from,
)
from incumbent.meters import Sample
from incumbent.model import Record, Refused
from incumbent.protocol.messages import claim_lost, lease_lost
from incumbent.protocol.observe import Observation, Watched
from incumbent.runtime.threads import notifier

if TYPE_CHECKING:
    from incumbent.protocol.claim import Claim
    from incumbent.runtime.link import Link, StoreLike

_log = logging.getLogger("incumbent")

Metadata: TypeAlias = Mapping[str, str] | bytes | None
T = TypeVar("T", bound="TermHandle")
OnElected: TypeAlias = Callable[[T], None]
OnRevoked: TypeAlias = Callable[[LeaseLost | None], None]
OnLeaderChange: TypeAlias = Callable[[Leader | None], None]


class ElectionSettings(LockSettings, Generic[T], total=False):
    """Keyword settings of every election: those of locks, and these, which `Election` explains."""

    metadata: Metadata
    on_elected: OnElected[T] | None
    on_revoked: OnRevoked | None
    on_leader_change: OnLeaderChange | None
    priority: int | None
    step_down_after: Duration | None
    permits: int


class TermHandle(SingleLease):
    """A lease on the leadership."""

    __slots__ = ("_asked", "_stop_seen")

    def __init__(
        self, link: Link, claims: Sequence[Claim], on_lost: OnLost | None, if_lost: IfLost
    ) -> None:
        super().__init__(link, claims, on_lost, if_lost)
        self._asked = False
        """Whether the term was asked to end."""
        self._stop_seen = False
        """Whether `stopping` was True once."""

    @property
    def number(self) -> int:
        """The term's number: the fencing token, larger than that of every earlier leader."""
        return self.fencing_token

    @property
    def stopping(self) -> bool:
        """Whether the work of this term must stop now; the time left is for its clean-up.

        Computed at each read. Once read as True it stays True, whatever is proved later.
        """
        if not self._stop_seen:
            now, machine = clock.now(), self._claim.machine
            # Kept: a renewal after the work was told to stop must not tell it to go on.
            self._stop_seen = self._asked or now >= machine.stop_at or not machine.valid(now)
        return self._stop_seen

    def _why_ended(self) -> LeaseLost | None:
        """The loss that ended the term; None after an orderly end."""
        if self._claim.machine.state is LeaseState.LOST:
            return claim_lost(self._claim)
        return None if self._asked else self._loss_despite_release()

    def _why_not_entered(self, error: AlreadyReleased) -> Error:
        """The error of a body that found its term released: a resignation is a loss of the term."""
        return lease_lost(self.name, "resigned") if self._asked else error

    def _released_within(self) -> Error:
        return lease_lost(self.name, "resigned")

    def _loss_despite_release(self) -> LeaseLost | None:
        """The loss to report for a released term whose work had to stop for lack of proof."""
        raise NotImplementedError


class ElectionHandle(SingleLock[T], Generic[T]):
    """One candidate: its settings, its current term, and its callbacks."""

    __slots__ = (
        "_absence",
        "_campaigning",
        "_leader",
        "_on_elected",
        "_on_leader_change",
        "_on_revoked",
        "_pauses",
        "_permits",
        "_term",
        "_terms",
    )

    @explain_arguments
    def __init__(
        self,
        name: str,
        *,
        store: StoreLike | None = None,
        namespace: str = "default",
        metadata: Metadata = None,
        timeout: Duration | None = None,
        on_elected: OnElected[T] | None = None,
        on_revoked: OnRevoked | None = None,
        on_leader_change: OnLeaderChange | None = None,
        priority: int | None = None,
        step_down_after: Duration | None = None,
        permits: int = 1,
        **settings: Unpack[LockSettings],
    ) -> None:
        encoded = encode_metadata(metadata)
        given = {"priority": priority, "on_leader_change": on_leader_change}
        alone = [setting for setting, value in given.items() if value is not None]
        self._permits = _checked_permits(permits, *alone)
        super().__init__(name, store=store, namespace=namespace, timeout=timeout, **settings)
        policy, can = self._wanted.policy, self._link.engine.capabilities
        wanted, candidacy = self._wanted, 0.0
        rank = rank_from(priority, step_down_after, wanted, can)
        if can.candidates:
            # A waiter asks again at least once a ttl, a queued one once in two: this outlasts one
            # lost request.
            lined = can.queue and wanted.queued.queue is not None
            waits = 2 * policy.ttl if lined else policy.ttl
            candidacy = 2 * waits + policy.request_timeout
        meta = with_rank(encoded, rank)
        self._wanted = wanted.asking(meta=meta, candidacy=candidacy)._replace(
            rank=rank, outwaits_slots=True
        )
        self._on_elected = on_elected
        self._on_revoked = on_revoked
        self._on_leader_change = on_leader_change
        self._campaigning = Exclusion()
        self._pauses = CandidatePauses(policy.ttl, head_start=policy.renew_every)
        self._leader: Leader | None = None
        self._absence = Absence()
        self._terms = (0, 0)
        """The count of terms that this candidate began, and the number of the last one."""
        # A weak reference: a term that the caller drops must be released, not kept alive here.
        self._term: Callable[[], T | None] = lambda: None
        meters.provide(self)

    @property
    def holder(self) -> str:
        """This candidate's name, as others see it."""
        return self._wanted.holder

    @property
    def permits(self) -> int:
        """The number of candidates that may lead at once, in the whole fleet."""
        return self._permits or 1

    @property
    def term(self) -> T | None:
        """The current term of this candidate; None if it does not lead."""
        term = self._term()
        return term if term is not None and term.valid else None

    @property
    def is_leader(self) -> bool:
        """Whether this candidate is proved to lead at this instant; no request is sent.

        False means "not proved": after a loss, and while the outcome is unknown. Whether the work
        must stop is in `TermHandle.stopping`.
        """
        return self.term is not None

    # -- a term begins and ends --------------------------------------------------------------

    @contextmanager
    def _one_campaign(self) -> Iterator[None]:
        if self.term is not None:
            raise Misuse(f"this candidate leads {self.name!r} already")
        with self._campaigning.enter() as alone:
            if not alone:
                raise Misuse(
                    f"this candidate campaigns for {self.name!r} already: make another one"
                )
            yield

    def _note_refusal(self, answer: Refused | StoreError) -> None:
        """Note the leader that a refusal names; a store's error says nothing about leaders."""
        if isinstance(answer, Refused):
            self._leader_seen(leader_by_refusal(answer))

    def _begin_term(self, term: T) -> T:
        # Before the callbacks: one that asks `is_leader` must get yes.
        ref = self._term = weakref.ref(term)
        self._terms = (self._terms[0] + 1, term.number)
        _log.info("%s: elected, term %d", self.name, term.number, extra=self._facts(term.number))
        self._leader_seen(_leader_by_term(term))
        if self._on_elected is not None:
            notifier.call(partial(self._on_elected, term))
        # Last: a term that has ended already calls `on_revoked` after `on_elected`.
        self._link.keeper.watch(term._claim, partial(self._report_end, ref, term.number))
        return term

    def _report_end(self, ref: Callable[[], T | None], number: int) -> None:
        """Start the callbacks without waiting for them. Called in any thread."""
        term = ref()
        why = term._why_ended() if term else None
        reason = why.reason if why else ""
        facts = {**self._facts(number), "reason": reason}
        how = f": {reason}" if reason else ""
        say = partial(_log.info, "%s: term %d ended%s", self.name, number, how, extra=facts)
        if why is None:
            say()
        else:
            # Logging can block, and this thread may have to end a process at the next deadline.
            notifier.call(say)
        if self._leader is not None and self._leader.term == number:
            self._leader_seen(None)
        if self._on_revoked is not None:
            notifier.call(partial(self._on_revoked, why))

    def _facts(self, number: int) -> dict[str, object]:
        """Fields for structured logs."""
        return {"lease": self.name, "holder": self.holder, "token": number}

    def samples(self) -> Iterator[Sample]:
        """The metrics of this candidate."""
        name, term = (("name", self.name),), self.term
        yield Sample("incumbent_is_leader", name, term is not None)
        yield Sample("incumbent_term", name, self._terms[1])
        yield Sample("incumbent_terms_total", name, self._terms[0])
        if term is not None:
            yield Sample("incumbent_lease_remaining_seconds", name, term.remaining)
        if self.permits == 1:
            leaderless = self._absence.seconds(clock.now())
            yield Sample("incumbent_leaderless_seconds_total", name, leaderless)

    def _leader_seen(self, leader: Leader | None) -> None:
        if leader == self._leader:
            return
        self._leader = leader
        self._absence.seen(clock.now(), leader=leader is not None)
        if self._on_leader_change is not None:
            notifier.call(partial(self._on_leader_change, leader))

    def _next_campaign(self, term: T) -> float:
        """The instant of the next campaign after this term."""
        now = clock.now()
        lasted = now - term._claim.began
        # `asked`: this candidate, or a notice in the store, asked for another leader.
        asked = term._asked or term._claim.notice is not None
        pause = self._pauses.pause(lasted, draw_jitter(), asked=asked)
        return now + pause

    # -- the leader's metadata and its successor ---------------------------------------------

    def _present_term(self, what: str) -> T:
        term = self.term
        if term is None:
            raise NotHeld(f"{what}: this candidate does not lead {self.name!r}")
        return term

    def _set_metadata(self, metadata: Metadata) -> tuple[T, bytes]:
        """Make the next renewals, and later terms, carry new metadata."""
        term = self._present_term("proclaim")
        encoded = with_rank(encode_metadata(metadata), self._wanted.rank)
        term._claim.proclaim(encoded)
        self._wanted = self._wanted.asking(meta=encoded)
        return term, encoded

    def _proclaimed(self, term: T, encoded: bytes) -> bool:
        """Whether the store has this metadata, or a later `proclaim` replaced it."""
        claim = term._claim
        if claim.proclaimed is not encoded and claim.meta is encoded:
            return False
        self._leader_seen(_leader_by_term(term))
        return True

    def _term_to_transfer(self, to: str) -> T:
        if self.permits > 1:
            raise Misuse(
                f"transfer: one of {self.permits} permits cannot be kept for {to!r}; resign()"
            )
        can = self._link.engine.capabilities
        if not (can.candidates and can.reservations):
            raise ConfigError("transfer: this store keeps no list of candidates", name="to")
        if to == self.holder:
            raise ConfigError(f"transfer(to={to!r}): that is this candidate", name="to")
        return self._present_term("transfer")

    def _reserve_for(self, term: T, to: str, record: Record) -> None:
        """Reserve the leadership for the candidate `to`. Raises NotCandidate."""
        names = tuple(candidate.holder for candidate in record.candidates)
        if to not in names:
            raise NotCandidate(
                f"{to!r} does not stand for {self.name!r}; candidates are:"
                f" {', '.join(names) or 'none'}",
                name=self.name,
                candidates=names,
            )
        term._claim.reserve_for = to

    def _refuse_several(self, what: str) -> None:
        if self.permits > 1:
            raise Misuse(f"{what}: {self.name!r} has {self.permits} permits: ask leaders() for all")

    def _observation(self) -> tuple[Watched, Callable[[], Leader | None]]:
        """The observation for `observe`, and a function that returns its current leader."""
        self._refuse_several("observe")
        policy = self._wanted.policy
        seen = Observation(self._wanted.key, policy.ttl, policy.request_timeout)
        return seen, (lambda: seen.leader)


def _checked_permits(permits: int, *alone: str) -> int | None:
    """`permits` as an Ask has it. `alone`: the given settings that allow only one leader."""
    if type(permits) is not int or not 1 <= permits <= PERMITS_MOST:
        raise ConfigError(
            f"permits={permits!r:.40}: a number from 1 to {PERMITS_MOST:,}", name="permits"
        )
    if permits > 1 and alone:
        raise ConfigError(
            f"{alone[0]} is for one leader, and permits={permits} has several", name=alone[0]
        )
    return None if permits == 1 else permits


def _leader_by_term(term: TermHandle) -> Leader:
    claim = term._claim
    meta = claim.wanted.unqueued.meta if claim.proclaimed is None else claim.proclaimed
    return Leader(term.holder, term.number, read_metadata(meta), meta)
