"""How a run's process ended, and what the instance makes of it."""

from __future__ import annotations

import signal
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from incumbent import clock
from incumbent.cron.agenda import ClaimOrder
from incumbent.cron.events import Emit
from incumbent.cron.executor import Executor
from incumbent.cron.ledger import SlotRecord, SlotState
from incumbent.cron.runs import ALREADY_RECORDED, GAVE_BACK, NOT_BEGUN, STATE_OF, Claimer
from incumbent.cron.schedule import Every
from incumbent.cron.serving import CommandLauncher, _Serving
from incumbent.cron.spec import JobSlot, JobSpec
from incumbent.model import Key, Refused
from incumbent.protocol.claim import Claim
from incumbent.protocol.release import release
from incumbent.runtime.link import link_for
from incumbent.stores.plan import run_blocking
from tests.support.waiting import eventually

SPEC = JobSpec(name="job", schedule=Every(60), command=("true",), on_failure=("true",))
SLOT = JobSlot("manual/abc", 1_000_000_000.0)


class FakeZygote:
    fd = -1

    def __init__(self, *ended: tuple[str, str, int]) -> None:
        self.reported = [*ended]
        self.dead = self.gone = False

    def send(self, message: object) -> None:
        self.gone = self.dead

    def reports(self) -> list[tuple[str, str, int]]:
        return self.reported


def quiet(event: str, /, **_: Any) -> None:
    """Hears nothing."""


def launcher(zygote: FakeZygote, emit: Emit = quiet) -> CommandLauncher:
    link = link_for("memory:launcher")
    claimer = Claimer(link, "n", {"holder": "me"})
    its: Any = zygote
    made = CommandLauncher(claimer, its, emit)
    made.runs.running["job", SLOT.name] = SLOT
    return made


@pytest.mark.parametrize("code", [*STATE_OF, ALREADY_RECORDED, GAVE_BACK, 125, -9])
def test_the_instance_hears_how_a_run_ended(code: int) -> None:
    it = launcher(FakeZygote(("job", SLOT.name, code)))
    it.read_reports()
    assert it.runs.ended == [("job", SLOT, code)]
    assert not it.runs.running


def test_a_slot_whose_run_no_process_takes_over_is_given_back() -> None:
    """A host that is out of processes must not use up the slots of the fleet."""
    zygote, heard = FakeZygote(), list[str]()
    it = launcher(zygote, cast("Any", lambda event, **_: heard.append(event)))
    held = it.claim(SPEC, SLOT)
    assert isinstance(held, Claim)
    it.launch(SPEC, SLOT, held)
    zygote.reported = [("job", SLOT.name, NOT_BEGUN)]
    it.read_reports()
    assert (it.runs.ended, it.runs.running) == ([("job", SLOT, GAVE_BACK)], {})
    assert heard == ["given_back"]

    def again() -> Claim | None:
        found = it.claim(SPEC, SLOT)
        return found if isinstance(found, Claim) else None

    it._claimer.release(cast("Claim", eventually(again)))


def test_a_zygote_that_is_gone_is_noticed_whatever_it_was_to_do() -> None:
    zygote = FakeZygote()
    it = launcher(zygote)
    zygote.dead = True
    it.run_on_failure(SPEC, SlotRecord(SLOT.name, SlotState.LOST, SLOT.due))
    assert it.gone
    it.stop_all()


def test_a_slot_is_told_as_given_back_only_if_it_was() -> None:
    """The task that was being sent may have come through: its lease ends by itself."""
    zygote, told = FakeZygote(), list[str]()
    emit = cast("Any", lambda event, **_: told.append(event))
    it = launcher(zygote, emit)
    fleet = Executor([SPEC], "n", it._claimer.link.port, it, emit, lambda: SLOT.due)
    zygote.dead = True
    for name in ("manual/dies", "manual/is-gone"):
        fleet._claim(ClaimOrder(replace(SPEC, name=name), replace(SLOT, name=name)))
    assert told == ["fault", "given_back"]


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


def test_a_signal_that_comes_twice_at_once_is_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `timeout` sends it: to its child, and to the whole group."""
    now, said, stopped = [0.0], list[str](), list[str]()
    monkeypatch.setattr(clock, "now", lambda: now[0])
    runs = SimpleNamespace(running={("job", "slot"): SLOT})
    serving: Any = _Serving(
        cast("Any", SimpleNamespace(stop=lambda: stopped.append("claims"))),
        cast("Any", SimpleNamespace(runs=runs, stop_all=lambda: stopped.append("runs"))),
        cast("Any", None),
        25.0,
        tuple,
        cast("Any", lambda _, why, **__: said.append(why)),
    )
    for at in (0.0, 0.1):
        now[0] = at
        serving._begin_drain(signal.SIGTERM)
    assert (said, stopped) == (["SIGTERM"], ["claims"])
    now[0] = 1.0
    serving._begin_drain(signal.SIGTERM)
    assert (said[1:], stopped[1:]) == (["SIGTERM again"], ["runs"])
