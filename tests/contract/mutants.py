"""Memory tables with one planted bug each, as stores of the field were seen to have them."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

from incumbent.errors import StoreUnavailable
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
    Record,
    Refused,
    Released,
    Renewal,
    Renewed,
    RenewOutcome,
    Slot,
    Stored,
    TakeOutcome,
)
from incumbent.rules.record import micros
from incumbent.stores.memory import MemoryTable
from tests.contract.planted import Planted


class ReleasesWithoutCompare(Planted):
    def give(
        self, key: Key, claim: str, token: int | None, now: float, *rest: Any, **more: Any
    ) -> GiveOutcome:
        held = self.alone(key, now)
        if held is not None:
            claim, token = held.claim, held.token
        return super().give(key, claim, token, now, *rest, **more)


class ReleaseIgnoresToken(MemoryTable):
    def give(
        self, key: Key, claim: str, token: int | None, now: float, *rest: Any, **more: Any
    ) -> GiveOutcome:
        return super().give(key, claim, None, now, *rest, **more)


class ReleaseForgetsToClose(MemoryTable):
    def give(
        self,
        key: Key,
        claim: str,
        token: int | None,
        now: float,
        wall: float,
        parting: Parting = PLAIN,
    ) -> GiveOutcome:
        return super().give(key, claim, token, now, wall, parting._replace(closed_for=0.0))


class ReleaseIsSilent(Planted):
    """Waiters that have not begun to wait miss it."""

    def give(self, key: Key, *rest: Any, **more: Any) -> GiveOutcome:
        before = self.record(key).changes
        outcome = super().give(key, *rest, **more)
        self.change(key, changes=before)
        return outcome


class SlotNotCompared(Planted):
    def give(
        self,
        key: Key,
        claim: str,
        token: int | None,
        now: float,
        wall: float,
        parting: Parting = PLAIN,
    ) -> GiveOutcome:
        if parting.slot is not None and self.known(key):
            self._kept[key].entries.pop(("slot", parting.slot), None)
        return super().give(key, claim, token, now, wall, parting)


class SlotDiesWithItsLease(MemoryTable):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        if ask.slot is not None:
            ask = replace(ask, slot=Slot(ask.slot.name, ask.ttl))
        return super().take(key, claim, ask, now, *rest, **more)


class RefusalClaimsTheSlot(Planted):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        outcome = super().take(key, claim, ask, now, *rest, **more)
        held = self.alone(key, now)
        if isinstance(outcome, Refused) and ask.slot is not None and held is not None:
            self._kept[key].entries.setdefault(("slot", ask.slot.name), held)
        return outcome


class RenewalRecreates(MemoryTable):
    def renew(self, renewal: Renewal, now: float) -> RenewOutcome:
        outcome = super().renew(renewal, now)
        if outcome == Gone() and not self.read(renewal.key, now).holdings:
            self.take(renewal.key, renewal.claim, Ask(renewal.ttl, "back again"), now, now)
            return Renewed()
        return outcome


class RenewalShortens(Planted):
    def renew(self, renewal: Renewal, now: float) -> RenewOutcome:
        outcome = super().renew(renewal, now)
        if isinstance(outcome, Renewed):
            self.change_grants(renewal.key, expires=micros(now + renewal.ttl))
        return outcome


class RenewalWithoutCompare(MemoryTable):
    def renew(self, renewal: Renewal, now: float) -> RenewOutcome:
        holdings = self.read(renewal.key, now).holdings
        if holdings:
            renewal = replace(renewal, claim=holdings[0].claim, token=holdings[0].token)
        return super().renew(renewal, now)


class RenewalIgnoresToken(MemoryTable):
    def renew(self, renewal: Renewal, now: float) -> RenewOutcome:
        holdings = self.read(renewal.key, now).holdings
        if holdings:
            renewal = replace(renewal, token=holdings[0].token)
        return super().renew(renewal, now)


class RenewalOutlivesRestart(MemoryTable):
    def renew(self, renewal: Renewal, now: float) -> RenewOutcome:
        return super().renew(replace(renewal, epoch=self.epoch), now)


class RepeatKeepsTheOldTtl(MemoryTable):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        held = self.read(key, now).holdings
        if held and held[0].claim == claim:
            return Granted(claim, held[0].token, ask.ttl, self.epoch)
        return super().take(key, claim, ask, now, *rest, **more)


class RepeatShortens(Planted):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        outcome = super().take(key, claim, ask, now, *rest, **more)
        if isinstance(outcome, Granted):
            self.change_grants(key, expires=micros(now + ask.ttl))
        return outcome


class RepeatIsRefused(MemoryTable):
    """SET NX and nothing else: who lost the answer waits for itself."""

    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        holdings = self.read(key, now).holdings
        if holdings:
            return Refused("held", holdings, holdings[0].remaining, self.seen(key))
        return super().take(key, claim, ask, now, *rest, **more)


class RepeatIsANewGrant(Planted):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        held = self.alone(key, now)
        if held is not None and held.claim == claim:
            self.change(key, grants=())
        return super().take(key, claim, ask, now, *rest, **more)


class TokenRestarts(MemoryTable):
    """A bare counter in memory: the first holder after a wipe is number one again."""

    def take(
        self,
        key: Key,
        claim: str,
        ask: Ask,
        now: float,
        wall: float,
        restart_wait: float | None = None,
    ) -> TakeOutcome:
        return super().take(key, claim, ask, now, 0.0, restart_wait)


class TokenStandsStill(Planted):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        outcome = super().take(key, claim, ask, now, *rest, **more)
        if isinstance(outcome, Granted):
            self.change_grants(key, token=7)
            return outcome._replace(token=7)
        return outcome


class EchoesNothing(MemoryTable):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        outcome = super().take(key, claim, ask, now, *rest, **more)
        return outcome._replace(claim="") if isinstance(outcome, Granted) else outcome


class GrantsToAll(Planted):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        self.change(key, grants=())
        return super().take(key, claim, ask, now, *rest, **more)


class NeverExpires(MemoryTable):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        return super().take(key, claim, replace(ask, ttl=1e9), now, *rest, **more)


class RoundsTheTtlDown(MemoryTable):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        return super().take(key, claim, replace(ask, ttl=ask.ttl // 1), now, *rest, **more)


class TakeIgnoresPause(Planted):
    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        self.change(key, pause=None)
        return super().take(key, claim, ask, now, *rest, **more)


class RestartWaitIgnored(MemoryTable):
    def _admit(self, wait: float, now: float) -> None:
        return


class RestartRefusesInsteadOfSaying(MemoryTable):
    """A no where nobody knows: the asker would believe that somebody holds."""

    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        try:
            return super().take(key, claim, ask, now, *rest, **more)
        except StoreUnavailable as error:
            return Refused("held", (), error.retry_after)


class ResignHitsTheNextHolder(Planted):
    def renew(self, renewal: Renewal, now: float) -> RenewOutcome:
        resign = self.record(renewal.key).resign
        if resign is not None:
            self.change(renewal.key, resign=resign._replace(value=b'{"token": %d}' % renewal.token))
        return super().renew(renewal, now)


class PauseIsNoNotice(MemoryTable):
    def renew(self, renewal: Renewal, now: float) -> RenewOutcome:
        outcome = super().renew(renewal, now)
        return Renewed() if isinstance(outcome, Renewed) else outcome


class PutIgnoresItsGuard(MemoryTable):
    def put(self, key: Key, name: str, value: bytes | None, guard: Guard, now: float) -> PutOutcome:
        return super().put(key, name, value, None, now)


class KeepsFewFields(MemoryTable):
    def put(self, key: Key, name: str, value: bytes | None, guard: Guard, now: float) -> PutOutcome:
        outcome = super().put(key, name, value, guard, now)
        if len(beside := self._of(key).entries) > 256:
            del beside[next(iter(beside))]
        return outcome


class PutByClaimAfterTheEnd(Planted):
    """Compares the claim of whoever held last, and forgets to ask whether it still holds."""

    def put(self, key: Key, name: str, value: bytes | None, guard: Guard, now: float) -> PutOutcome:
        last = self.record(key).grants
        if isinstance(guard, ByClaim) and last and last[0].claim == guard.claim:
            guard = None
        return super().put(key, name, value, guard, now)


class VersionsComeBack(Planted):
    def put(self, key: Key, name: str, value: bytes | None, guard: Guard, now: float) -> PutOutcome:
        outcome = super().put(key, name, value, guard, now)
        if outcome == Stored(0):
            self.change(key, version=0)
        return outcome


class ReleaseOfNothingIsReleased(MemoryTable):
    def give(
        self, key: Key, claim: str, token: int | None, now: float, *rest: Any, **more: Any
    ) -> GiveOutcome:
        super().give(key, claim, token, now, *rest, **more)
        return Released()


class HistoryWithoutEnd(Planted):
    def give(
        self, key: Key, claim: str, token: int | None, now: float, *rest: Any, **more: Any
    ) -> GiveOutcome:
        before = self.record(key).last
        outcome = super().give(key, claim, token, now, *rest, **more)
        self.change(key, last=before)
        return outcome


class NamesCollide(MemoryTable):
    """An encoding that is not injective: `/` and `:` become one separator."""

    def take(
        self, key: Key, claim: str, ask: Ask, now: float, *rest: Any, **more: Any
    ) -> TakeOutcome:
        key = Key(key.namespace, key.name.replace("/", ":"))
        return super().take(key, claim, ask, now, *rest, **more)


class ScanLeavesItsNamespace(MemoryTable):
    def scan(self, namespace: str, prefix: str, now: float) -> tuple[Record, ...]:
        keys = [key for key in self._kept if f"{key}".startswith(f"{namespace}")]
        return tuple(self.read(key, now) for key in keys if key.name.startswith(prefix))


class ReadCreates(MemoryTable):
    _reads = count()

    def read(self, key: Key, now: float) -> Record:
        super().put(key, "read", b"%d" % next(self._reads), None, now)
        return super().read(key, now)
