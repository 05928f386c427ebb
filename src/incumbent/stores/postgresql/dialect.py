"""The plans of a database's operations. Pure."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any, TypeVar

from incumbent.model import Ask, Key, TakeOutcome
from incumbent.rules.record import holders
from incumbent.stores.deciding import Deciding, present, stands
from incumbent.stores.plan import Plan, Program
from incumbent.stores.polling import IN_LINE, in_line, may_have_changed
from incumbent.stores.postgresql.exchange import PostgresExchange, same_request
from incumbent.stores.recall import Recall
from incumbent.stores.registers import Quick, Seen, Wanted
from incumbent.stores.turns import Turns

T = TypeVar("T")


class PostgresDialect(Deciding):
    """See stores.deciding.Deciding. `turns`: the turns of all waiters of the store."""

    began = "crashed, was promoted, restored or made"

    def __init__(self, where: str, restart_wait: float | None) -> None:
        quick = Quick(take=True, renew=True, give=True, join=True, candidates=True)
        super().__init__(where, restart_wait, quick)
        self.turns = Turns()
        self._recall = Recall()

    def take(self, key: Key, claim: str, ask: Ask) -> Plan[Any, TakeOutcome]:
        """Plan a take; never repeatable, because its caller repeats it and counts the tries."""
        plan = super().take(key, claim, ask)
        if ask.queue is None:
            return plan

        def start(facts: Any, until: float) -> Program[TakeOutcome]:
            return in_line((yield from plan.start(facts, until)), claim, ask)

        return replace(plan, start=start)

    def asked(self, key: Key, claim: str, ask: Ask, seen: Seen) -> Ask:
        """See Deciding.asked: one waiter of a process stands for all in the line of the store.

        None has to while a claim of the process holds the name: its release wakes the next waiter.
        """
        if ask.queue is None or ask.queue.fair or ask.permits is not None or ask.candidacy:
            return ask
        waiters = present(seen).line.waiters
        self.turns.note_order(key, (it.claim for it in waiters))
        if stands(waiters, claim):
            return ask
        held_by = holders(seen.record, seen.now)
        before = *(it.claim for it in held_by), *(it.claim for it in waiters)
        ours = any(self.turns.has_claim(key, it) for it in before)
        return replace(ask, queue=None) if ours else ask

    def recalled(self, wanted: Wanted) -> Seen | None:
        """See Deciding.recalled."""
        return self._recall.of(wanted)

    def unchanged(self, key: Key, seen: str, wait: float) -> Plan[Any, bool]:
        """Plan to ask if a record is unchanged; changes in the next `wait` seconds are notified."""
        request = same_request(key, seen.partition(IN_LINE)[0], wait)

        def start(_facts: Any, _until: float) -> Program[bool]:
            reply = yield request
            if reply == b"same":
                return True
            (found,) = PostgresExchange(self.where).loaded(reply, [key])
            return not may_have_changed(seen, found)

        return Plan("look", start, (key,))

    def translated(self, plan: Plan[Any, T], ahead: float, until: float) -> Program[T]:
        """The program of a plan, in SQL: it yields StatementRequests. Raises StoreError, Mismatch.

        `ahead`: the seconds that the server's clock is ahead.
        """
        last = until + ahead if plan.kind == "take" else inf
        exchange = PostgresExchange(self.where, self.restart_wait, last, self._recall)
        return exchange.translate(plan.start(None, until))
