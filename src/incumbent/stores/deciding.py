"""Every operation of the store contract, decided by the rules over a store's registers. Pure.

An operation is a program: it yields requests (`stores.registers`), is sent their replies, and
returns the outcome. It reads the record, applies a rule, and swaps in what the rule says. If
another client changed the record meanwhile, it decides again, by the record as it is then.

A take, a give or a put tries that eight times, and then says that it was not done: its caller comes
again later. A renewal tries until its deadline, because its lease ends otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

from incumbent.errors import StoreError, StoreUnavailable
from incumbent.model import (
    PLAIN,
    Ask,
    ByClaim,
    GiveOutcome,
    Gone,
    Granted,
    Guard,
    Key,
    Parting,
    PutOutcome,
    Queued,
    Record,
    Released,
    Renewal,
    Renewed,
    RenewOutcome,
    TakeOutcome,
    Unproved,
)
from incumbent.rules import keeping, taking
from incumbent.rules import line as lines
from incumbent.rules.record import (
    Entry,
    LeaseRecord,
    Ruling,
    Waiter,
    dated_line,
    holding_of,
    micros,
)
from incumbent.rules.showing import shown
from incumbent.stores.base import Answers, Give, Take
from incumbent.stores.findings import restart_words, wait_after_restart
from incumbent.stores.names import flat
from incumbent.stores.plan import Plan
from incumbent.stores.registers import (
    ALL,
    NOTHING_QUICK,
    Join,
    Load,
    Quick,
    Request,
    Scan,
    Seen,
    Swap,
    Swaps,
    TryGive,
    TryRenew,
    TryTake,
    Wanted,
)

__all__ = ["Deciding", "display", "present"]

T = TypeVar("T")

Program: TypeAlias = Generator[Request, Any, T]

_TRIES: Final = 8


class Step(NamedTuple, Generic[T]):
    """One name's part of an operation: what to read, and the rule to apply to it."""

    wanted: Wanted
    rule: Callable[[Seen], Ruling[T]]


class Deciding:
    """See stores.plan.DialectOfMany.

    `where`: the store's URL for messages; `restart_wait`: the option of that name, in seconds;
    `quick`: the quicker requests that the store answers; `late_kept`: see rules.keeping.give.
    """

    began = "started"
    """How an incarnation begins, for messages."""

    def __init__(
        self,
        where: str,
        restart_wait: float | None = None,
        quick: Quick = NOTHING_QUICK,
        late_kept: float = keeping.LATE_KEPT,
    ) -> None:
        self.where = where
        self.restart_wait = restart_wait
        self._quick = quick
        self._late_kept = late_kept

    # -- take ---------------------------------------------------------------------------------

    def take(self, key: Key, claim: str, ask: Ask) -> Plan[Any, TakeOutcome]:
        """Plan a take; never repeatable, because its caller repeats it and counts the tries."""
        step = self._take_step(key, claim, ask)

        def start(_facts: Any, _until: float) -> Program[TakeOutcome]:
            alone = ask.permits is None and ask.slot is None
            if self._quick.take and alone and (self._quick.candidates or not ask.candidacy):
                found = yield TryTake(key, claim, ask)
                if isinstance(found, Granted):
                    return found
            else:
                found = yield from self._try_recalled(step)
                if isinstance(found, Granted):
                    return found
                if found is None:
                    (found,) = yield Load((step.wanted,))
            waits = ask.queue is not None and not ask.candidacy
            if self._quick.join and waits and isinstance(found, Seen):
                queued = yield from self._join(step, claim, ask, found)
                if queued is not None:
                    return queued
            return (yield from self._decide(step, found))

        return Plan("take", start, (key,), repeatable=False, ttl=ask.ttl)

    def _take_step(self, key: Key, claim: str, ask: Ask) -> Step[TakeOutcome]:
        slot = ask.slot.name if ask.slot else None

        def rule(seen: Seen) -> Ruling[TakeOutcome]:
            # First: a free name may be one whose grant the store has lost.
            self._admit(seen, ask.ttl)
            asked = self.asked(key, claim, ask, seen)
            return taking.take(present(seen), claim, asked, seen.moment, seen.use_of(slot))

        return Step(_with_slot(key, slot), rule)

    def recalled(self, wanted: Wanted) -> Seen | None:
        """What this process last wrote of a name; None if it must be read."""
        return None

    def _try_recalled(self, step: Step[Any]) -> Program[Any]:
        """Try what a recalled record decides: only the swap can show that the record is right.

        Returns the outcome if so, else what the store has instead; None if it must be read first.
        """
        seen = self.recalled(step.wanted)
        if seen is None:
            return None
        outcome, swap = _apply(step, seen)
        # A refusal, or "gone", by an old record proves nothing; these two are proved by the swap.
        if swap is None or not isinstance(outcome, Granted | Released):
            return None
        (instead,) = yield Swaps((swap,))
        return outcome if instead is None else instead

    def asked(self, key: Key, claim: str, ask: Ask, seen: Seen) -> Ask:
        """The ask to decide by, now that the record is read."""
        return ask

    def _admit(self, seen: Seen, ttl: float) -> None:
        """Raises StoreUnavailable while a holder from before the incarnation may believe."""
        age, longest = seen.incarnation.age, seen.incarnation.longest
        wait = wait_after_restart(self.restart_wait, ttl, longest)
        if age < wait:
            words = restart_words(self.where, self.began, age, wait - age)
            raise StoreUnavailable(words, retry_after=wait - age)

    def _join(
        self, step: Step[TakeOutcome], claim: str, ask: Ask, seen: Seen
    ) -> Program[Queued | None]:
        """Join the line without a swap, if that is all that the take changes."""
        outcome, record, *_ = step.rule(seen)
        before = present(seen).line.waiters
        if record is None or not isinstance(outcome, Queued) or stands(before, claim):
            return None
        left = ask.ttl if outcome.retry_after is None else min(ask.ttl, outcome.retry_after)
        now = _readable((yield Join(step.wanted.key, record.line.waiters[-1], micros(left))))
        waiters = present(now).line.waiters
        # `seen` is that of the refusal: what happened meanwhile ends the wait at once.
        place = next((at for at, it in enumerate(waiters) if it.claim == claim), len(before))
        return replace(outcome, place=place)

    def take_all(self, takes: Sequence[Take]) -> Plan[Any, Answers[TakeOutcome]]:
        """Plan takes of exclusive leases, together."""
        steps = [self._take_step(*take) for take in takes]
        keys, ttl = [take.key for take in takes], max(take.ask.ttl for take in takes)
        return Plan(
            "take", lambda _facts, _until: self._decide_all(steps), keys, repeatable=False, ttl=ttl
        )

    # -- renew --------------------------------------------------------------------------------

    def renew(self, renewals: Sequence[Renewal]) -> Plan[Any, list[RenewOutcome]]:
        """Plan renewals: those of one name in one swap, all names in one request."""

        def start(_facts: Any, _until: float) -> Program[list[RenewOutcome]]:
            done: list[RenewOutcome | None] = [None] * len(renewals)
            if self._quick.renew:
                done = yield TryRenew(renewals)
            # By name: two swaps of one version would refuse each other.
            indexes: dict[Key, list[int]] = {}
            for index, renewal in enumerate(renewals):
                if done[index] is None:
                    indexes.setdefault(renewal.key, []).append(index)
            steps = [
                _renew_step(key, [renewals[index] for index in of]) for key, of in indexes.items()
            ]
            answers = yield from self._decide_all(steps, tries=None)
            for of, answer in zip(indexes.values(), answers, strict=True):
                for at, index in enumerate(of):
                    if isinstance(answer, StoreError):
                        done[index] = Unproved(str(answer))
                    else:
                        done[index] = answer[at]
            return [outcome for outcome in done if outcome is not None]

        return Plan("renew", start, renewals=renewals)

    # -- give ---------------------------------------------------------------------------------

    def give(
        self, key: Key, claim: str, token: int | None, parting: Parting = PLAIN
    ) -> Plan[Any, GiveOutcome]:
        """Plan a give."""
        step = self._give_step(key, claim, token, parting)
        is_alone = not (parting.closed_for or parting.reserve_for or parting.slot)

        def start(_facts: Any, _until: float) -> Program[GiveOutcome]:
            found = yield from self._try_recalled(step)
            # Not without a token: then the record has to say that the claim was given up.
            if found is None and self._quick.give and token and is_alone:
                found = yield TryGive(key, claim, token)
            if isinstance(found, Released | Gone):
                return found
            return (yield from self._decide(step, found))

        return Plan("give", start, (key,))

    def _give_step(
        self, key: Key, claim: str, token: int | None, parting: Parting = PLAIN
    ) -> Step[GiveOutcome]:
        def rule(seen: Seen) -> Ruling[GiveOutcome]:
            return keeping.give(
                *(present(seen), claim, token, seen.moment, parting),
                used=seen.use_of(parting.slot),
                late_kept=self._late_kept,
            )

        return Step(_with_slot(key, parting.slot), rule)

    def give_all(self, gives: Sequence[Give]) -> Plan[Any, Answers[GiveOutcome]]:
        """Plan gives, together."""
        steps = [self._give_step(*give) for give in gives]
        keys = [give.key for give in gives]
        return Plan("give", lambda _facts, _until: self._decide_all(steps), keys, repeatable=False)

    # -- fields and records -------------------------------------------------------------------

    def put(self, key: Key, field: str, value: bytes | None, guard: Guard) -> Plan[Any, PutOutcome]:
        """Plan a put; repeatable if a second, equal write has the same outcome."""

        def rule(seen: Seen) -> Ruling[PutOutcome]:
            return keeping.put(present(seen), field, value, guard, seen.moment, seen.field(field))

        step = Step(Wanted(key, (("field", field),)), rule)
        repeatable = guard is None or isinstance(guard, ByClaim)
        return Plan("put", lambda _facts, _until: self._decide(step), (key,), repeatable=repeatable)

    def read(self, key: Key) -> Plan[Any, Record]:
        """Plan a read."""

        def start(_facts: Any, _until: float) -> Program[Record]:
            (seen,) = yield Load((Wanted(key, ALL),))
            return display(key, _readable(seen))

        return Plan("read", start, (key,))

    def scan(self, namespace: str, prefix: str) -> Plan[Any, tuple[Record, ...]]:
        """Plan a scan."""

        def start(_facts: Any, _until: float) -> Program[tuple[Record, ...]]:
            found = yield Scan(namespace, prefix)
            return tuple(display(*each) for each in sorted(found, key=lambda it: it[0]))

        return Plan("scan", start)

    # -- deciding -----------------------------------------------------------------------------

    def _decide(self, step: Step[T], seen: Seen | StoreError | None = None) -> Program[T]:
        """Apply a step's rule to the record, and swap in what it says. Raises StoreError."""
        (outcome,) = yield from self._decide_all([step], None if seen is None else [seen])
        if isinstance(outcome, StoreError):
            raise outcome
        return outcome

    def _decide_all(
        self,
        steps: Sequence[Step[T]],
        found: Sequence[Seen | StoreError] | None = None,
        tries: int | None = _TRIES,
    ) -> Program[list[T | StoreError]]:
        """The outcome of each step, or its error; `found`: what was read already."""
        if not steps:
            return []
        if found is None:
            found = yield Load(tuple(step.wanted for step in steps))
        outcomes: dict[int, T | StoreError] = {}
        left = list(enumerate(found))
        for _ in count() if tries is None else range(tries):
            swaps: dict[int, Swap] = {}
            for index, seen in left:
                applied = _apply(steps[index], seen)
                # Not final: it is true only if its swap is written.
                outcomes[index], swap = applied
                if swap is not None:
                    swaps[index] = swap
            if not swaps:
                break
            replies: Sequence[Seen | StoreError | None] = yield Swaps(tuple(swaps.values()))
            # Those whose swap was refused are decided again, by what the store has instead.
            pairs = zip(swaps, replies, strict=True)
            left = [(index, instead) for index, instead in pairs if instead is not None]
        else:
            for index, _ in left:
                # Refused to the last, so certainly nothing was written.
                outcomes[index] = self._busy(steps[index].wanted.key)
        return [outcomes[index] for index in range(len(steps))]

    def _busy(self, key: Key) -> StoreUnavailable:
        return StoreUnavailable(
            f"{self.where}: the record of {flat(key)} changed {_TRIES} times while this request was"
            " decided, because many clients change it at once",
            retry_after=0.05,
        )


def _apply(step: Step[T], seen: Seen | StoreError) -> tuple[T | StoreError, Swap | None]:
    """The outcome by the record as it was read, and the swap on which the outcome depends."""
    if isinstance(seen, StoreError):
        return seen, None
    try:
        outcome, record, wake, entries = step.rule(seen)
    except StoreError as error:
        return error, None
    # Without a record nothing is written: a refusal that changes nothing costs one request.
    swap = None if record is None else Swap(step.wanted, seen, record, entries, wake)
    return outcome, swap


def _renew_step(key: Key, renewals: Sequence[Renewal]) -> Step[list[RenewOutcome]]:
    """The renewals of one name, which share its lease, in one swap."""

    def rule(seen: Seen) -> Ruling[list[RenewOutcome]]:
        record, outcomes, wake = present(seen), list[RenewOutcome](), ""
        for renewal in renewals:
            outcome, new, wakes, _ = keeping.renew(record, renewal, seen.moment)
            record, wake = new or record, wakes or wake
            outcomes.append(outcome)
        changed = any(isinstance(outcome, Renewed) for outcome in outcomes)
        return Ruling(outcomes, record if changed else None, wake)

    return Step(Wanted(key), rule)


def _readable(seen: Seen | StoreError) -> Seen:
    """What was seen. Raises StoreError if the record cannot be read."""
    if isinstance(seen, StoreError):
        raise seen
    return seen


def _with_slot(key: Key, slot: str | None) -> Wanted:
    return Wanted(key, () if slot is None else (("slot", slot),))


# -- records ---------------------------------------------------------------------------------------


def present(seen: Seen) -> LeaseRecord:
    """The record, with the waiters in its line that joined after it was written."""
    record = seen.record
    for joined in seen.joined:
        claim, at = joined.waiter.claim, joined.at
        # It may have been granted the name, or have gone, before it reached the store.
        gone = any(it.claim == claim and it.until > at for it in record.given_up)
        if gone or holding_of(record, claim, at):
            continue
        line = lines.join(record.line, joined.waiter, joined.looks_in, joined.at)
        record = record._replace(line=dated_line(line, joined.at))
    return record


def stands(waiters: Sequence[Waiter], claim: str) -> bool:
    """Whether a claim is among them."""
    return any(waiter.claim == claim for waiter in waiters)


def display(key: Key, seen: Seen) -> Record:
    """A record for display."""
    beside = [Entry(*which, value) for which, value in seen.beside.items()]
    return shown(key, present(seen), beside, seen.moment)
