"""The judge sees true time, every belief and every answer, and says what must never be."""

from __future__ import annotations

from collections import defaultdict

from incumbent.lease import LeaseState
from incumbent.locks.several import MultiLeaseHandle
from incumbent.model import (
    Ask,
    GiveOutcome,
    Gone,
    Granted,
    Key,
    Released,
    Renewal,
    Renewed,
    RenewOutcome,
    Slot,
)
from incumbent.protocol.claim import Claim, LeaseRequest
from tests.sim.setting import Client, Setting

__all__ = ["Judge", "Violation"]

_ROUNDING = 1e-6


class Violation(AssertionError):
    """A history that must never be. `rule` names what it breaks."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule = rule


class _Live:
    """What the store has to know of one lease, reckoned apart from it."""

    __slots__ = ("claim", "epoch", "expires", "permits", "token")

    def __init__(self, grant: Granted, permits: int | None, expires: float) -> None:
        self.claim = grant.claim
        self.token = grant.token
        self.epoch = grant.epoch
        self.permits = permits
        self.expires = expires


class Judge:
    """One history's checks. Belief needs no sampling: it can only begin at a proof, and each proof
    is compared with every other belief at that very instant.
    """

    def __init__(self, world: Setting) -> None:
        self._world = world
        self._strict = not world.profile.overlaps
        self.overlaps = 0
        self.acquired = 0
        self.losses = 0
        self._live: dict[Key, dict[str, _Live]] = defaultdict(dict)
        self._tokens: dict[Key, int] = {}
        self._believing: dict[Key, list[tuple[Client, Claim]]] = {}
        self._all: list[tuple[Client, Claim]] = []
        self._closed: dict[Key, float] = {}
        self._at_least: dict[str, float] = {}
        self._floor: dict[Key, float] = {}
        self._paused: set[Key] = set()
        self._granted_at: dict[str, float] = {}
        self._runs: dict[tuple[Key, str], tuple[str, float]] = {}
        self._undone: set[str] = set()
        self._given: set[str] = set()
        self._several: list[tuple[Client, MultiLeaseHandle]] = []
        self._asking: dict[Client, int] = {}
        self._answered = 0

    def fail(self, rule: str, text: str) -> None:
        """This history must not be."""
        self._world.say("judge", f"{rule}: {text}")
        raise Violation(rule, text)

    # -- what the store answers --------------------------------------------------------------

    def granted(self, key: Key, claim: str, ask: Ask, grant: Granted, now: float) -> None:
        """The store granted a take."""
        live = self._standing(key, claim, now)
        if live is not None:
            if grant.token != live.token:
                self.fail("repeat", f"the same claim got tokens {live.token} and {grant.token}")
            live.expires = max(live.expires, now + ask.ttl)
            return
        others = [one for one in self._live[key].values() if one.expires > now]
        if self._strict and not _fits(ask.permits, [one.permits for one in others]):
            names = ", ".join(one.claim for one in others)
            self.fail("two records", f"{key} was granted to {claim} while {names} had it")
        self._check_new(key, claim, grant, now)
        self._check_whole(key, claim)
        self._tokens[key] = grant.token
        self._granted_at[claim] = now
        self._live[key] = {one.claim: one for one in others}
        self._live[key][claim] = _Live(grant, ask.permits, now + ask.ttl)

    def _standing(self, key: Key, claim: str, now: float) -> _Live | None:
        live = self._live[key].get(claim)
        return live if live is not None and live.expires > now else None

    def _check_new(self, key: Key, claim: str, grant: Granted, now: float) -> None:
        if self._world.history is not None:
            self._world.say("server", f"grants {key.name} to {claim[-4:]}, token {grant.token}")
        if grant.token <= self._tokens.get(key, 0):
            self.fail("tokens", f"{grant.token} after {self._tokens[key]}")
        if now < self._closed.get(key, now):
            self.fail("closed", f"{key} was granted {self._closed[key] - now:.3f} s too early")
        if self._world.now < self._floor.get(key, 0.0):
            early = self._floor[key] - self._world.now
            self.fail("at least", f"{key} was granted {early:.3f} s before its at_least_for")
        if key in self._paused:
            self.fail("paused", f"{key} was granted to {claim} while it is paused")
        if self._strict and self._world.policy.lock_delay:
            self._check_delay(key, now)

    def _check_whole(self, key: Key, claim: str) -> None:
        """While it believes in all of several, none of them is another's."""
        for process, multi in self._several:
            theirs = {held.wanted.key: held.id for held in multi._claims}
            if self._strict and theirs.get(key, claim) != claim and multi.valid:
                self.fail("all or none", f"{process.name} believes, and {key.name} is another's")

    def _check_delay(self, key: Key, now: float) -> None:
        """Nobody follows a holder that did not release before its lock_delay is over."""
        for process, held in self._all:
            if held.wanted.key != key or held.id in self._given:
                continue
            believed = self._world.store_clock.at(process.when(held.machine.deadline))
            early = believed + held.wanted.policy.lock_delay - now
            if early > _ROUNDING:
                self.fail("delay", f"{key} was granted {early:.3f} s before its lock_delay is over")

    def denied(self, key: Key, claim: str, now: float) -> None:
        """The store refused a take."""
        if self._strict and self._standing(key, claim, now):
            self.fail("refused", f"{claim} holds {key}, and was refused its repeated take")

    def renewed(self, renewal: Renewal, outcome: RenewOutcome, now: float, epoch: str) -> None:
        """The store answered a renewal."""
        live = self._standing(renewal.key, renewal.claim, now)
        if isinstance(outcome, Renewed):
            if live is None:
                self.fail("revived", f"{renewal.claim} was renewed, though its record was gone")
            else:
                live.expires = max(live.expires, now + renewal.ttl)
        elif live is not None and live.epoch == epoch and self._strict:
            self.fail("refused", f"{renewal.claim} holds {renewal.key}, and was told {outcome}")

    def given(
        self, key: Key, claim: str, outcome: GiveOutcome, now: float, closed_for: float
    ) -> None:
        """The store answered a release."""
        if not isinstance(outcome, Released):
            return
        self._given.add(claim)
        if self._world.history is not None:
            self._world.say("server", f"{key.name} is given back by {claim[-4:]}")
        live = self._live[key].pop(claim, None)
        if self._strict and (live is None or live.expires <= now):
            self.fail("stranger", f"{claim} released what it did not hold")
        if closed_for > 0:
            self._closed[key] = now + closed_for
        if claim in self._at_least and claim not in self._undone:
            self._floor[key] = self._at_least[claim]

    def restarted(self, *, empty: bool) -> None:
        """The store came back."""
        if empty:
            for known in (self._live, self._closed, self._floor, self._runs):
                known.clear()
            self._paused.clear()

    def paused(self, key: Key, *, on: bool) -> None:
        """The switch was thrown."""
        (self._paused.add if on else self._paused.discard)(key)

    def forced(self, key: Key, claim: str) -> None:
        """An operator removed the record."""
        self._live[key].pop(claim, None)

    # -- what the processes believe ----------------------------------------------------------

    def began(self, process: Client, held: Claim, asked: list[str]) -> None:
        """An acquire returned a lease."""
        machine, wanted, world = held.machine, held.wanted, self._world
        self._all.append((process, held))
        if world.history is not None:
            text = f"holds {wanted.key.name} as {held.id[-4:]}, token {machine.token}"
            world.say(process.name, f"{text}, for {machine.deadline - process.now():.3f} s")
        self.acquired += 1
        if not machine.valid(process.now()) or process.now() >= machine.stop_at:
            self.fail("unproved", f"{process.name} was given a lease that proves nothing")
        if machine.deadline > process.now() + wanted.at_most_for + wanted.policy.grace:
            self.fail("at most", f"{process.name} believes for longer than at_most_for")
        self._expect_gone(process, wanted, [claim for claim in asked if claim != held.id])
        if wanted.at_least_for:
            least = wanted.at_least_for * (1 - 3 * wanted.policy.rho)
            self._at_least[held.id] = world.now + least
        if wanted.unqueued.slot is not None:
            self._check_run(held, wanted.unqueued.slot)
        self._believing.setdefault(wanted.key, []).append((process, held))
        self._check_proof(process, held)

    def _check_run(self, held: Claim, slot: Slot) -> None:
        granted = self._granted_at.get(held.id, 0.0)
        run = (held.wanted.key, slot.name)
        before = self._runs.get(run)
        if before is not None and granted < before[1] and before[0] not in self._undone:
            self.fail("slot", f"{slot.name} ran as {before[0]} and as {held.id}")
        self._runs[run] = (held.id, granted + slot.keep)

    def renewal_ended(self, process: Client, held: Claim, *, noticed: bool) -> None:
        """The keeper has tried; whatever came of it, this is where a belief may have grown."""
        if held.machine.state is not LeaseState.HELD:
            return
        if noticed:
            self.fail("notice", f"{process.name} was asked for {held.id}, and goes on")
        self._check_proof(process, held)

    def acts(self, process: Client, held: Claim) -> None:
        """A check said: still yours."""
        if not _believes(process, held):
            self.fail("told", f"{process.name} was told that it holds what it cannot prove")
        self._check_alone(process, held)

    def _check_proof(self, process: Client, held: Claim) -> None:
        self._check_alone(process, held)
        if not self._strict or not _believes(process, held):
            return
        live = self._live[held.wanted.key].get(held.id)
        if live is None or live.epoch != held.machine.epoch:
            # After a restart, restart_wait protects the holder in place of the record.
            return
        end = self._world.store_clock.at(process.when(held.machine.deadline))
        if self._world.profile.strict_proofs and end > live.expires + _ROUNDING:
            over = end - live.expires
            self.fail("outlives", f"{process.name} believes {over:.4f} s beyond its record")

    def _check_alone(self, process: Client, held: Claim) -> None:
        if not _believes(process, held):
            return
        believing = self._believing.get(held.wanted.key, ())
        others = [one for one in believing if one[1] is not held and _believes(*one)]
        if _fits(
            held.wanted.unqueued.permits, [theirs.wanted.unqueued.permits for _, theirs in others]
        ):
            return
        self.overlaps += len(others)
        if self._strict:
            left = {other.name: theirs.machine.deadline - other.now() for other, theirs in others}
            rest = " and ".join(f"{name}, which believes {left[name]:.4f} s more" for name in left)
            self.fail("overlap", f"{process.name} and {rest}")

    def succeeded(self, process: Client, held: Claim) -> None:
        """A body ended, and nothing tells its caller that the lease was lost."""
        if not _believes(process, held):
            self.fail("success", f"{process.name} reports success for a lease that it lost")

    def leaves(self, process: Client, held: Claim, *, undone: bool) -> None:
        """A release begins."""
        if self._world.history is not None:
            self._world.say(process.name, f"releases {held.wanted.key.name} as {held.id[-4:]}")
        if undone:
            self._undone.add(held.id)

    def released(
        self, process: Client, held: Claim, outcome: GiveOutcome | None, *, confirmed: bool
    ) -> None:
        """A release ended by an answer, or by none."""
        lost = held.machine.state is LeaseState.LOST
        if self._world.history is not None:
            what = "confirmed" if confirmed else "lost before" if lost else "not known"
            self._world.say(process.name, f"has released {held.id[-4:]}: {what}")
        in_time = process.now() < held.machine.deadline
        if confirmed is not isinstance(outcome, Released):
            self.fail("release", f"{process.name} says {confirmed}, and heard {outcome}")
        if lost is not (isinstance(outcome, Gone) and in_time):
            self.fail("release", f"{process.name} reports loss: {lost}, and heard {outcome}")

    def left(self, process: Client, held: Claim) -> None:
        """A release ended, by an answer or by an interruption."""
        if held.machine.state is LeaseState.HELD:
            self.fail("left", f"{process.name} still believes what it has released")
        self._forget(held)
        self._expect_gone(process, held.wanted, [held.id])

    def lost(self, process: Client, held: Claim) -> None:
        """A body ended in LeaseLost."""
        self.losses += 1
        if self._world.history is not None:
            self._world.say(process.name, f"has lost {held.id[-4:]}: {held.machine.reason}")
        if self._world.profile.calm and held.machine.reason != "at_most_for":
            self.fail("lost", f"{process.name} lost a lease for no reason: {held.machine.reason}")
        self._forget(held)

    def ended_without(
        self, process: Client, wanted: LeaseRequest, asked: list[str], error: BaseException
    ) -> None:
        """An acquire ended without a lease."""
        if self._world.history is not None:
            self._world.say(process.name, f"acquired nothing: {error!r}")
        self._expect_gone(process, wanted, asked)

    def died(self, process: Client) -> None:
        """SIGKILL: it believes nothing any more."""
        if self._world.history is not None:
            self._world.say(process.name, "dies")
        for key, believing in self._believing.items():
            self._believing[key] = [one for one in believing if one[0] is not process]
        for owner, held in self._all:
            if owner is process:
                # Or it would be given back when Python collects it.
                held.machine.note_forked()
        self.answered(process)
        self._several = [one for one in self._several if one[0] is not process]

    # -- several names -----------------------------------------------------------------------

    def asks(self, process: Client) -> None:
        """An acquire begins: somebody's ends before long, or they wait for each other."""
        if self._world.profile.served:
            self._asking[process] = self._answered
            self._look_again(process)

    def _look_again(self, process: Client) -> None:
        by = self._world.now + self._world.ttl * self._world.profile.served
        self._world.at(by, self._check_served, process, self._asking[process], self._answered)

    def _check_served(self, process: Client, asked: int, answered: int) -> None:
        if self._asking.get(process) != asked:
            return
        if self._answered == answered:
            self.fail("stuck", f"{process.name} waits, and nobody is served")
        self._look_again(process)

    def answered(self, process: Client) -> None:
        """An acquire ended."""
        self._answered += 1
        self._asking.pop(process, None)

    def began_all(self, process: Client, multi: MultiLeaseHandle, asked: list[str]) -> None:
        """An acquire returned a lease on several names."""
        for held in multi._claims:
            self.began(process, held, asked)
        self._several.append((process, multi))
        self.acts_on_all(process, multi)

    def acts_on_all(self, process: Client, multi: MultiLeaseHandle) -> None:
        """A check said: all are still yours."""
        now = self._world.store_clock.at(self._world.now)
        for held in multi._claims:
            standing = self._live[held.wanted.key].values()
            if any(one.claim != held.id and one.expires > now for one in standing):
                self.fail("all or none", f"{process.name} acts, and {held.wanted.key} is another's")
            self.acts(process, held)

    def left_all(self, process: Client, multi: MultiLeaseHandle) -> None:
        """A release of several ended, by an answer or by an interruption."""
        self._several.remove((process, multi))
        for held in multi._claims:
            if held.machine.state is LeaseState.LOST:
                self.lost(process, held)
            else:
                self.left(process, held)

    def _forget(self, held: Claim) -> None:
        key = held.wanted.key
        self._believing[key] = [one for one in self._believing[key] if one[1] is not held]

    # -- nothing leaks -----------------------------------------------------------------------

    def _expect_gone(self, process: Client, wanted: LeaseRequest, claims: list[str]) -> None:
        world = self._world
        if world.profile.prompt and claims:
            by = world.now + world.ttl * world.profile.prompt
            world.at(by, self._check_gone, process, wanted.key, tuple(claims))

    def _check_gone(self, process: Client, key: Key, claims: tuple[str, ...]) -> None:
        now = self._world.store_clock.at(self._world.now)
        left = [claim for claim in claims if self._standing(key, claim, now)]
        if left and not process.dead:
            self.fail("leak", f"{left[0]} of {process.name} still stands in the store")


def _fits(permits: int | None, others: list[int | None]) -> bool:
    """Whether one who asks with that number may hold it beside the others; see model.Ask."""
    if permits is None or any(theirs != permits for theirs in others):
        return not others
    return not permits or len(others) < permits


def _believes(process: Client, held: Claim) -> bool:
    # Not `valid`: looking must change nothing.
    return held.machine.state is LeaseState.HELD and process.now() < held.machine.deadline
