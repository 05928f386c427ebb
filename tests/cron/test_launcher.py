"""How a run's process ended, and what the instance makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from incumbent import clock
from incumbent.cron.ledger import SlotRecord, SlotState
from incumbent.cron.runs import ALREADY_RECORDED, GAVE_BACK, STATE_OF, Claimer
from incumbent.cron.schedule import Every
from incumbent.cron.serving import CommandLauncher
from incumbent.cron.spec import JobSlot, JobSpec
from incumbent.model import Key, Refused
from incumbent.protocol.claim import Claim
from incumbent.protocol.release import release
from incumbent.runtime.link import link_for
from incumbent.stores.plan import run_blocking

SPEC = JobSpec(name="job", schedule=Every(60), command=("true",), on_failure=("true",))
SLOT = JobSlot("manual/abc", 1_000_000_000.0)


class FakeZygote:
    fd = -1

    def __init__(self, *ended: tuple[str, str, int]) -> None:
        self._ended = [*ended]
        self.dead = self.gone = False

    def send(self, message: object) -> None:
        self.gone = self.dead

    def reports(self) -> list[tuple[str, str, int]]:
        return self._ended


def quiet(event: str, /, **_: Any) -> None:
    """Hears nothing."""


def launcher(zygote: FakeZygote) -> CommandLauncher:
    link = link_for("memory:launcher")
    claimer = Claimer(link, "n", {"holder": "me"})
    its: Any = zygote
    made = CommandLauncher(claimer, its, quiet)
    made.runs.running["job", SLOT.name] = SLOT
    return made


@pytest.mark.parametrize("code", [*STATE_OF, ALREADY_RECORDED, GAVE_BACK, 125, -9])
def test_the_instance_hears_how_a_run_ended(code: int) -> None:
    it = launcher(FakeZygote(("job", SLOT.name, code)))
    it.read_reports()
    assert it.runs.ended == [("job", SLOT, code)]
    assert not it.runs.running


def test_a_zygote_that_is_gone_is_noticed_whatever_it_was_to_do() -> None:
    zygote = FakeZygote()
    it = launcher(zygote)
    zygote.dead = True
    it.run_on_failure(SPEC, SlotRecord(SLOT.name, SlotState.LOST, SLOT.due))
    assert it.gone
    it.stop_all()


def test_a_claim_takes_the_slot_along_with_the_lease() -> None:
    claimer = Claimer(link_for("memory:claimer"), "n", {"holder": "me"})
    held = claimer.claim(SPEC, SLOT)
    assert isinstance(held, Claim)
    record = claimer.link.store.read(Key("n", "job"), clock.now() + 30)
    assert list(record.slots) == [SLOT.name]
    run_blocking(release(claimer.link.port, held))
    refused = claimer.claim(SPEC, SLOT)
    assert isinstance(refused, Refused)
    assert refused.reason == "used"
