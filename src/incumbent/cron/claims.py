"""Claiming a slot: one request; and handing what was granted to the process that does the work."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from incumbent.cron.ledger import SLOT_KEEP
from incumbent.cron.schedule import FixedTimes
from incumbent.cron.spec import JobSpec, Slot
from incumbent.durations import DAY
from incumbent.errors import NotAcquired, StoreError
from incumbent.locks import Lease
from incumbent.model import Refused
from incumbent.model import Slot as StoreSlot
from incumbent.options import LockSettings, require, wanted_from
from incumbent.protocol.acquire import acquire
from incumbent.protocol.held import Held, Wanted
from incumbent.protocol.link import Link
from incumbent.protocol.port import run
from incumbent.protocol.release import release

_NEVER: Final = FixedTimes(())


@dataclass(frozen=True, slots=True)
class Task:
    """A slot that was granted, for another process to adopt and run. `wanted` names it too.

    `unsure`: takes of the claim that got no answer; whoever gives it back gives them up too.
    """

    spec: JobSpec
    slot: Slot
    wanted: Wanted
    claim: str
    unsure: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """Its job and slot, by name."""
        return self.spec.name, self.slot.name


class Claimer:
    """Asks for slots of jobs in one namespace, for one instance.

    Raises ConfigError for a store on which it could claim and could not record the outcome.
    """

    def __init__(self, link: Link, namespace: str, settings: LockSettings) -> None:
        require(link.engine.capabilities, "cron", "slots", "fields")
        self.link = link
        self.namespace = namespace
        self._settings = settings

    def wanted(self, spec: JobSpec) -> Wanted:
        """What a claim of this job asks for, but for the slot; raises ConfigError."""
        settings: Any = {**self._settings, "at_most_for": spec.at_most_for}
        if spec.at_least_for > 0:
            settings["at_least_for"] = spec.at_least_for
        caps = self.link.engine.capabilities
        wanted = wanted_from(self.namespace, spec.name, caps, **settings)
        # A ledger's record is kept for as long as its fields are.
        return wanted.asking(keep_record=max(SLOT_KEEP, 30 * DAY))

    def claim(self, spec: JobSpec, slot: Slot) -> Held | Refused:
        """Ask once: what is held now, or the store's no.

        Raises StoreError; then nothing is believed, and what may be in the store is given back.
        """
        name = slot.name
        wanted = self.wanted(spec).asking(slot=StoreSlot(name, SLOT_KEEP), meta=name.encode())
        replies: list[Refused | StoreError] = []
        try:
            return run(acquire(self.link.port, wanted, 0, replies.append))
        except NotAcquired:
            return next(reply for reply in reversed(replies) if isinstance(reply, Refused))

    def give_back(self, held: Held) -> None:
        """Nothing was done with it: the slot is anybody's again."""
        run(release(self.link.port, held, undo_slot=True))

    def part_with(self, spec: JobSpec, slot: Slot, held: Held) -> Task:
        """Another process holds it from now on: here nothing is believed of it any more."""
        held.machine.left()
        return Task(without_schedule(spec), slot, held.wanted, held.claim, held.unsure)


def without_schedule(spec: JobSpec) -> JobSpec:
    """As it is sent to another process, which has no use for the schedule; some are long."""
    return replace(spec, schedule=_NEVER)


def adopted(link: Link, wanted: Wanted, claim: str, unsure: int) -> Lease:
    """The lease that another process was granted: asked for again with its claim.

    Not taken over by the numbers: a store may count on the process that it granted it to (etcd
    ends what that one does not renew), and the deadline counts from a request of our own. Raises
    NotAcquired if it was too late for that, else StoreError; then the slot is given back.
    """
    # A store that was just started may want a moment more of a new connection than of the old one.
    held = run(acquire(link.port, wanted, wanted.policy.ttl / 2, claim=claim))
    held.unsure += unsure
    link.keeper.arm(held)
    return Lease(link, held)
