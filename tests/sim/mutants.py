"""Bugs to plant in the real code, each with the profile that has to catch it.

Each is a small patch: of a method, of one number, or of the table behind the simulated server.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest

from incumbent import policy
from incumbent.errors import OutcomeUnknown, StoreError
from incumbent.lease import TRANSITIONS, Input, LeaseMachine, LeaseState
from incumbent.locks.several import MultiLeaseHandle
from incumbent.model import Ask, Granted
from incumbent.protocol import acquire, release
from incumbent.protocol.claim import Claim
from incumbent.protocol.messages import late_grant
from incumbent.protocol.port import Debt, ManyPort, Port
from incumbent.protocol.release import release_all
from incumbent.stores.memory import MemoryTable
from tests.contract import mutants as tables
from tests.contract import mutants_of_sharing as sharing
from tests.sim import server
from tests.sim.judge import Judge
from tests.sim.process import Process
from tests.sim.server import Server
from tests.sim.setting import Setting

Plant = Callable[[pytest.MonkeyPatch], None]
WITHIN = 10_000


@dataclass(frozen=True)
class Mutant:
    """`rules`: what the judge must say of it; any other verdict would be luck.

    `overlaps_only`: the judge compares beliefs alone, not each proof with the store's record.
    """

    name: str
    profile: str
    rules: frozenset[str]
    plant: Plant
    overlaps_only: bool = False


MUTANTS: list[Mutant] = []


def mutant(profile: str, *rules: str, overlaps_only: bool = False) -> Callable[[Plant], Plant]:
    def add(plant: Plant) -> Plant:
        name = plant.__name__.replace("_", " ")
        MUTANTS.append(Mutant(name, profile, frozenset(rules), plant, overlaps_only))
        return plant

    return add


def table(name: str, kind: type[MemoryTable], profile: str, *rules: str) -> None:
    """A bug of the store, from those that the contract suite is tried on."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(server, "MemoryTable", kind)

    MUTANTS.append(Mutant(name, profile, frozenset(rules), plant))


# -- time ------------------------------------------------------------------------------------


@mutant("pauses", "overlap", overlaps_only=True)
def deadline_from_the_reply(patch: pytest.MonkeyPatch) -> None:
    granted, renewed = LeaseMachine.note_granted, LeaseMachine.note_renewed

    def late_granted(self: LeaseMachine, grant: Granted, now: float) -> bool:
        self.sent_at = now
        return granted(self, grant, now)

    def late_renewed(self: LeaseMachine, now: float) -> None:
        self.sent_at = now
        renewed(self, now)

    patch.setattr(LeaseMachine, "note_granted", late_granted)
    patch.setattr(LeaseMachine, "note_renewed", late_renewed)


@mutant("drift", "overlap", overlaps_only=True)
def no_drift_margin(patch: pytest.MonkeyPatch) -> None:
    fit = policy._fit

    def generous(ttl: float, *others: float) -> tuple[float, float]:
        span, left = fit(ttl, *others)
        extra = 2 * others[-1] * ttl
        return span + extra, left + extra

    patch.setattr(policy, "_fit", generous)


@mutant("pauses", "overlap", "told", overlaps_only=True)
def a_clock_that_misses_suspend(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Process, "now", Process.awake)
    patch.setattr(Process, "when", Process.awake_when)


@mutant("pauses", "told", "success", "unproved")
def the_deadline_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaseMachine, "valid", lambda self, now: self.state is LeaseState.HELD)


@mutant("pauses", "overlap", overlaps_only=True)
def a_late_renewal_revives(patch: pytest.MonkeyPatch) -> None:
    def renewed(self: LeaseMachine, now: float) -> None:
        self.renewing = False
        if self.state in (LeaseState.HELD, LeaseState.LOST):
            self.state = LeaseState.HELD
            self.stop_at = now + self.policy.renew_deadline
            self.deadline = now + self.policy.span

    patch.setattr(LeaseMachine, "note_renewed", renewed)


@mutant("pauses", "unproved")
def a_late_grant_is_believed(patch: pytest.MonkeyPatch) -> None:
    granted = LeaseMachine.note_granted
    patch.setattr(
        LeaseMachine, "note_granted", lambda self, grant, now: granted(self, grant, self.sent_at)
    )


@mutant("slots", "at most")
def at_most_for_is_ignored(patch: pytest.MonkeyPatch) -> None:
    init = LeaseMachine.__init__
    patch.setattr(LeaseMachine, "__init__", lambda self, policy, at_most_for: init(self, policy))


@mutant("delays", "delay", "outlives")
def renewals_ask_for_the_ttl_alone(patch: pytest.MonkeyPatch) -> None:
    renewal = Claim.renewal
    patch.setattr(Claim, "renewal", lambda self: replace(renewal(self), ttl=self.wanted.policy.ttl))


@mutant("delays", "delay", "outlives")
def the_delay_is_believed(patch: pytest.MonkeyPatch) -> None:
    fit = policy._fit

    def generous(ttl: float, *others: float) -> tuple[float, float]:
        span, left = fit(ttl, *others)
        return span + 1.5 * ttl, left + 1.5 * ttl

    patch.setattr(policy, "_fit", generous)


@mutant("delays", "delay")
def a_restarted_store_waits_for_the_ttl_alone(patch: pytest.MonkeyPatch) -> None:
    init = Server.__init__

    def hasty(self: Server, world: Setting, judge: Judge) -> None:
        init(self, world, judge)
        self.restart_wait = world.ttl

    patch.setattr(Server, "__init__", hasty)


# -- doubt -----------------------------------------------------------------------------------


@mutant("network", "overlap", overlaps_only=True)
def an_unsure_take_is_believed(patch: pytest.MonkeyPatch) -> None:
    take = acquire._take

    async def believing(port: Port, held: Claim, ask: Ask, *limits: float) -> Any:
        outcome = await take(port, held, ask, *limits)
        if not isinstance(outcome, OutcomeUnknown):
            return outcome
        held.machine.note_sent(held.machine.sent_at)
        hoped = Granted(held.id, 1, held.wanted.policy.ttl)
        if not held.machine.note_granted(hoped, port.now()):
            return late_grant(held.wanted, 0.0)
        held.began = port.now()
        return hoped

    patch.setattr(acquire, "_take", believing)


@mutant("signals", "leak")
def a_retry_with_a_new_claim(patch: pytest.MonkeyPatch) -> None:
    take = acquire._take

    async def anew(port: Port, held: Claim, ask: Ask, *limits: float) -> Any:
        if held.machine.state is LeaseState.DOUBT:
            held.id = port.draw_claim()
        return await take(port, held, ask, *limits)

    patch.setattr(acquire, "_take", anew)


@mutant("signals", "leak")
def no_compensation_after_a_cancel(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaseMachine, "note_abandoned", lambda self: False)


@mutant("signals", "leak")
def a_refusal_after_doubt_is_clean(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(TRANSITIONS[LeaseState.ASKING_AGAIN], Input.REFUSE, LeaseState.NEW)


@mutant("signals", "leak")
def a_debt_in_doubt_is_settled_by_the_first_gone(patch: pytest.MonkeyPatch) -> None:
    _with_debts(patch, takes_in_doubt=0)


@mutant("signals", "leak")
def a_debt_of_two_takes_is_settled_by_one_release(patch: pytest.MonkeyPatch) -> None:
    _with_debts(patch, takes_in_doubt=1)


@mutant("signals", "leak")
def a_release_forgets_the_take_that_got_no_answer(patch: pytest.MonkeyPatch) -> None:
    unanswered = acquire._unanswered

    def forgets(port: Port, held: Claim, error: StoreError) -> StoreError:
        found = unanswered(port, held, error)
        held.takes_in_doubt = 0
        return found

    patch.setattr(acquire, "_unanswered", forgets)


@mutant("slots", "at least")
def a_debt_forgets_at_least_for(patch: pytest.MonkeyPatch) -> None:
    _with_debts(patch, closed_until=float("-inf"))


def _with_debts(patch: pytest.MonkeyPatch, **changed: Any) -> None:
    settle = release.settle

    async def changed_settle(port: Port, debt: Debt, timeout: float) -> bool:
        if "takes_in_doubt" in changed:
            return await settle(
                port,
                replace(debt, takes_in_doubt=min(debt.takes_in_doubt, changed["takes_in_doubt"])),
                timeout,
            )
        return await settle(port, replace(debt, **changed), timeout)

    patch.setattr("tests.sim.process.settle", changed_settle)


@mutant("network", "overlap", "two records", "leak", "outlives", "revived")
def the_echo_of_the_claim_is_not_compared(patch: pytest.MonkeyPatch) -> None:
    believe = acquire._believe

    def trusting(port: Port, held: Claim, grant: Granted, sent: float) -> Any:
        return believe(port, held, grant._replace(claim=held.id), sent)

    patch.setattr(acquire, "_believe", trusting)


# -- leaving ---------------------------------------------------------------------------------


@mutant("calm", "overlap", overlaps_only=True)
def belief_goes_on_until_the_release_is_confirmed(patch: pytest.MonkeyPatch) -> None:
    def given(self: LeaseMachine) -> None:
        self.state = LeaseState.RELEASED

    patch.setattr(LeaseMachine, "note_leaving", lambda self: None)
    patch.setattr(LeaseMachine, "note_given", given)


@mutant("restarts", "release")
def a_release_ignores_that_the_record_is_gone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(release, "_apply", lambda port, held, outcome: True)


@mutant("operators", "notice")
def a_notice_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaseMachine, "note_broken", lambda self, reason: None)


@mutant("calm", "lost", "overlap")
def renewals_are_not_sent(patch: pytest.MonkeyPatch) -> None:
    async def nothing(port: Port, leases: Any) -> None:
        return None

    patch.setattr("tests.sim.process.renew", nothing)


# -- several names -----------------------------------------------------------------------------


@mutant("several", "stuck")
def several_names_are_taken_in_the_order_given(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("tests.sim.setting.in_order", lambda names: names)


@mutant("several", "leak")
def the_first_is_kept_when_the_second_is_refused(patch: pytest.MonkeyPatch) -> None:
    async def kept(port: ManyPort, claims: Sequence[Claim]) -> bool:
        for held in claims:
            held.machine.note_leaving()
        return True

    patch.setattr(acquire, "release_all", kept)


@mutant("several", "leak")
def a_release_of_several_forgets_what_got_no_answer(patch: pytest.MonkeyPatch) -> None:
    async def forgets(port: ManyPort, claims: Sequence[Claim]) -> bool:
        forgetful: Any = SimpleNamespace(
            now=port.now,
            limits=port.limits,
            give_all=port.give_all,
            owe=lambda debt: None,
        )
        return await release_all(forgetful, claims)

    patch.setattr("incumbent.locks.leases.release_all", forgets)


@mutant("parted", "all or none", "told", "success")
def the_loss_of_one_of_several_is_not_noticed(patch: pytest.MonkeyPatch) -> None:
    any_valid = property(lambda self: any(held.machine.valid(self._now()) for held in self._claims))
    patch.setattr(MultiLeaseHandle, "valid", any_valid)


@mutant("parted", "success")
def nobody_is_told_that_one_of_several_was_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MultiLeaseHandle, "_error_of", lambda self, held: None)


_TOO_LONG = ("outlives", "two records", "overlap")
_OPEN = ("closed", "at least")
_TOO_MANY = ("two records", "overlap")
_GONE = ("refused", "revived", "stranger", "two records", "outlives")

# -- the store -------------------------------------------------------------------------------

table("release without compare", tables.ReleasesWithoutCompare, "network", "stranger")
table("renewal without compare", tables.RenewalWithoutCompare, "network", "revived")
table("renewal that re-creates", tables.RenewalRecreates, "network", "revived")
table("token that restarts", tables.TokenRestarts, "restarts", "tokens")
table("restart wait ignored", tables.RestartWaitIgnored, "restarts", "overlap")
table("repeat that keeps the old ttl", tables.RepeatKeepsTheOldTtl, "network", *_TOO_LONG)
table("repeat that is refused", tables.RepeatIsRefused, "network", "refused")
table("repeat that is a new grant", tables.RepeatIsANewGrant, "network", "repeat")
table("grants to all", tables.GrantsToAll, "calm", "two records")
table("slot given back by a stranger", tables.SlotNotCompared, "slots", "slot")
table("slot that dies with its lease", tables.SlotDiesWithItsLease, "slots", "slot")
table("release that forgets to close", tables.ReleaseForgetsToClose, "slots", *_OPEN)
table("take that ignores a pause", tables.TakeIgnoresPause, "operators", "paused")
table("one more than there are permits", sharing.OneMoreThanThereArePermits, "shared", *_TOO_MANY)
table("writer beside readers", sharing.WriterComesBesideReaders, "shared", *_TOO_MANY)
table("reader beside a writer", sharing.ReaderComesBesideAWriter, "shared", *_TOO_MANY)
table("one token for all who share", sharing.ThoseWhoShareHaveOneToken, "shared", "tokens")
table("first to leave ends it for all", sharing.FirstToLeaveEndsItForAll, "shared", *_GONE)
table("last to come says when it ends", sharing.LastToComeSaysWhenItEnds, "shared", *_GONE)


BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
