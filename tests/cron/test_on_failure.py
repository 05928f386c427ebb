"""Whatever ends a run for good, its on_failure runs once, and to its end."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

from incumbent import Lock, clock
from incumbent.cron import runs, worker
from incumbent.cron.ledger import TAIL, Ledger, SlotRecord, SlotState, recorded_run
from incumbent.cron.runs import AttemptEnd, Attempts
from incumbent.cron.schedule import Every
from incumbent.cron.spec import JobSlot, JobSpec
from incumbent.cron.worker import run_on_failure
from incumbent.errors import StoreUnavailable
from incumbent.model import Key
from incumbent.runtime.link import LeaseView
from incumbent.stores.memory import MemoryStore
from incumbent.supervise.launch import WITHHELD
from tests import tiers
from tests.cli.tool import incumbent
from tests.cron.fleet import NEVER_DUE, CronFleet, children, real_processes
from tests.support.faulty import Fault, FaultyEngine
from tests.support.waiting import eventually, written


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[CronFleet]:
    running = CronFleet(f"sqlite:///{tmp_path}/leases.db", tmp_path, "")
    yield running
    running.stop()


def begin(fleet: CronFleet, job: str) -> None:
    fleet.file.write_text(f'[[job]]\nname = "job"\n{NEVER_DUE}\n{job}\n')
    fleet.start()
    eventually(lambda: fleet.events("ready"))


TELL = 'on_failure = "echo $INCUMBENT_RUN_SLOT $INCUMBENT_RUN_STATE >> $FOLDER/told"'


def told(fleet: CronFleet) -> list[str]:
    path = fleet.folder / "told"
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.left(tiers.LONG)
@real_processes
def test_each_run_that_is_over_its_time_and_ignores_term_is_told_once(fleet: CronFleet) -> None:
    begin(fleet, f"command = \"trap '' TERM; sleep 60\"\nat_most_for = 1.5\n{TELL}")
    for number in range(1, 4):
        fleet.trigger("job")
        eventually(lambda: len(fleet.events("on_failure")) == number)  # noqa: B023
    slots = [event["slot"] for event in fleet.events("timed_out")]
    assert told(fleet) == [f"{slot} timed_out" for slot in slots]
    assert [event["code"] for event in fleet.events("on_failure")] == [0] * 3


@pytest.mark.left(tiers.LONG)
@real_processes
def test_what_is_told_has_its_time_when_that_of_the_run_is_nearly_over(fleet: CronFleet) -> None:
    """It sleeps beyond at_most_for, and beyond the lease."""
    slow = TELL.replace('= "', '= "sleep 9; ')
    begin(fleet, f'command = "exit 3"\nat_most_for = 8\n{slow}')
    fleet.trigger("job")
    eventually(lambda: fleet.events("on_failure"))
    assert [line.split()[1] for line in told(fleet)] == ["failed"]
    assert fleet.events("on_failure")[0]["code"] == 0


@pytest.mark.left(tiers.LONG)
@real_processes
def test_a_lease_that_is_lost_meanwhile_does_not_end_what_is_told(fleet: CronFleet) -> None:
    slow = TELL.replace('= "', '= "touch $FOLDER/begun; sleep 4; ')
    begin(fleet, f'command = "exit 3"\n{slow}')
    fleet.trigger("job")
    eventually((fleet.folder / "begun").exists)
    assert incumbent("-s", fleet.store, "break", "job", "--force").returncode == 0
    eventually(lambda: fleet.events("on_failure"))
    assert len(told(fleet)) == 1


@real_processes
def test_the_next_run_waits_for_what_is_told_while_the_lease_lasts(fleet: CronFleet) -> None:
    until_go = "until test -e $FOLDER/go; do sleep 0.1; done"
    slow = TELL.replace('= "', f'= "touch $FOLDER/begun; {until_go}; ')
    begin(fleet, f'command = "exit 3"\n{slow}')
    fleet.trigger("job")
    eventually((fleet.folder / "begun").exists)
    done = incumbent("-s", fleet.store, "trigger", "job", "--timeout", "2s")
    (fleet.folder / "go").touch()
    assert done.returncode == 75, done.stderr


@real_processes
def test_the_end_of_the_instance_lets_what_is_told_end(fleet: CronFleet) -> None:
    """Also what is told for a run that another instance lost, which has no worker."""
    slow = TELL.replace('= "', '= "touch $FOLDER/begun; sleep 2; ')
    begin(fleet, f'command = "sleep 60"\n{slow}')
    fleet.trigger("job")
    eventually(lambda: fleet.events("started"))
    (zygote,) = children(fleet.processes[0].pid)
    (its_worker,) = children(zygote)
    os.kill(its_worker, signal.SIGKILL)
    eventually((fleet.folder / "begun").exists)
    fleet.processes[0].send_signal(signal.SIGTERM)
    assert fleet.processes[0].wait(60) == 0
    assert len(told(fleet)) == 1


# -- the command itself ----------------------------------------------------------------------------


def spec_of(script: str, **more: Any) -> JobSpec:
    on_failure = ("sh", "-c", script)
    settings = {"name": "job", "schedule": Every(60), "command": ("true",), **more}
    return JobSpec(on_failure=on_failure, **settings)


def run_it(spec: JobSpec, store: str | None = None) -> list[tuple[str, dict[str, Any]]]:
    heard: list[tuple[str, dict[str, Any]]] = []
    events = cast("Any", lambda event, **facts: heard.append((event, facts)))
    output = cast("Any", SimpleNamespace(drain=lambda: heard.append(("drained", {}))))
    ended = SlotRecord("2026-01-01T00:00:00Z", SlotState.LOST, 0.0, why="vanished")
    run_on_failure(spec, ended, store, output, events)
    return heard


def test_it_is_told_how_the_run_ended_and_what_it_says_comes_before_its_end(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INCUMBENT_LEASE_TERM", "5")
    say = "echo $INCUMBENT_RUN_JOB $INCUMBENT_RUN_STATE $INCUMBENT_RUN_WHY $PWD $INCUMBENT_STORE"
    heard = run_it(spec_of(f"{say} [$INCUMBENT_LEASE_TERM]; exit 3", cwd=str(tmp_path)))
    slot = "2026-01-01T00:00:00Z"
    assert heard == [("drained", {}), ("on_failure", {"slot": slot, "code": 3, "why": None})]
    assert capfd.readouterr().out == f"job lost vanished {tmp_path} {WITHHELD} []\n"
    run_it(spec_of("echo $INCUMBENT_STORE"), "redis://shared")
    assert capfd.readouterr().out == "redis://shared\n"


def test_one_that_cannot_start_says_so(tmp_path: Path) -> None:
    spec = spec_of("true", cwd=str(tmp_path / "nowhere"))
    ((kind, facts),) = run_it(spec)
    assert (kind, "No such file" in facts["why"]) == ("on_failure", True)


def test_one_that_never_ends_is_stopped_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_ON_FAILURE_WITHIN", 0.5)
    pid = tmp_path / "pid"
    heard = run_it(spec_of(f"trap '' TERM; sleep 60 & echo $! > {pid}; wait"))
    assert heard[-1][1]["why"] == "stopped after 500ms"
    eventually(lambda: not is_alive(int(written(pid) or 0)))


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


# -- retries under what is left of at_most_for -----------------------------------------------------


@pytest.mark.parametrize("away", [False, True])
def test_a_run_whose_begin_is_in_doubt_leaves_no_record_that_it_ran(
    monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    """Its slot is given back: another instance would find the record, and count it as lost."""
    monkeypatch.setattr(runs, "_BEGIN_WITHIN", 0.0)
    engine, heard = FaultyEngine(), list[dict[str, Any]]()
    slot, spec = JobSlot("2026-01-01T00:00:00Z", 0.0), spec_of("true", at_most_for=30)
    ttl = 2 if away else 30
    lease = Lock("job", store=engine, ttl=ttl, once_per=900, slot=slot.name).acquire()
    emit = cast("Any", lambda event, **facts: heard.append({"event": event, **facts}))
    # The begin is written; the reply is lost, and it cannot be read.
    engine.faulty.plan("put", Fault.LOST_REPLY)
    engine.faulty.plan("read", None, Fault.NOT_SENT, Fault.NOT_SENT)
    if away:
        engine.faulty.plan("read", *[Fault.NOT_SENT] * 10_000)
    assert Attempts(lease, spec, slot, emit).begin() == runs.GAVE_BACK
    (event,) = heard
    assert (event["event"], event["slot"]) == ("given_back", slot.name)
    fields = MemoryStore.read(engine.faulty, Key("default", "job"), clock.now() + 30).fields
    left = recorded_run(fields, slot.name)
    assert (left is not None, "it will count as lost" in event["why"]) == (away, away)
    if not away:
        # The same slot runs, as if nobody had claimed it.
        again = Lock("job", store=engine, ttl=ttl, once_per=900, slot=slot.name).acquire(0)
        assert Attempts(again, spec, slot, emit).begin() is None
        again.release()


class Attempted:
    """One run, whose attempts fail."""

    def __init__(self, at_most_for: float, retry_backoff: float) -> None:
        engine = FaultyEngine()
        self.heard: list[str] = []
        spec = spec_of("true", retries=5, retry_backoff=retry_backoff, at_most_for=at_most_for)
        self.lease = Lock("job", store=engine, at_most_for=at_most_for).acquire()
        emit = cast("Any", lambda event, **facts: self.heard.append(event))
        self.attempts = Attempts(self.lease, spec, JobSlot("2026-01-01T00:00:00Z", 0.0), emit)
        assert self.attempts.begin() is None

    def run(self, pause: Any) -> SlotRecord:
        ended = self.attempts.run_attempts(lambda: AttemptEnd(SlotState.FAILED, 3, "exit 3"), pause)
        assert ended is not None
        return ended


def test_output_that_cannot_be_shown_is_in_no_runs_way() -> None:
    one = Attempted(at_most_for=30, retry_backoff=20)
    fields = one.lease.belief.link.store

    def tail() -> bool:
        return TAIL in fields.read(one.lease.belief.key, clock.now() + 30).fields

    assert one.attempts.show_output("so far")
    assert tail()
    with mock.patch.object(LeaseView, "answered", False):
        assert not one.attempts.show_output("later")
    with mock.patch.object(Ledger, "show", side_effect=StoreUnavailable("away")):
        assert not one.attempts.show_output("more")
        ended = one.run(lambda _: False)
        one.attempts.hide_output()
    assert ended.state is SlotState.LOST
    assert not one.attempts.show_output("after its end")
    one.attempts.hide_output()
    assert not tail()
    one.lease.release()


def test_no_attempt_begins_for_which_at_most_for_leaves_no_time() -> None:
    """It would be stopped at once, and hide why the run failed."""
    one = Attempted(at_most_for=30, retry_backoff=20)
    pauses: list[float] = []

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        return True

    ended = one.run(pause)
    # The second pause, of 40 s, would last beyond at_most_for.
    assert pauses == [20]
    assert (ended.state, ended.attempt) == (SlotState.FAILED, 2)
    assert ended.why == "exit 3; at_most_for leaves no time for another attempt"
    assert one.lease.valid
    one.lease.release()


@pytest.mark.parametrize(
    ("reason", "state"),
    [("paused", SlotState.FAILED), ("broken", SlotState.FAILED), ("taken", SlotState.LOST)],
)
def test_an_end_between_attempts_says_what_ended_the_run(
    monkeypatch: pytest.MonkeyPatch, reason: str, state: SlotState
) -> None:
    one, said = Attempted(at_most_for=300, retry_backoff=1), list[AttemptEnd]()

    def pause(_: float) -> bool:
        one.lease._claim.machine.note_broken(reason)
        return False

    monkeypatch.setattr(Attempts, "_record_end", lambda _, end: said.append(end))
    one.attempts.run_attempts(lambda: AttemptEnd(SlotState.FAILED, 3, "exit 3"), pause)
    (end,) = said
    assert (end.state, end.final) == (state, True)
    assert end.why.startswith("stopped after")


def test_a_run_has_taken_its_time_although_the_wall_clock_was_set_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, wall = Attempted(at_most_for=300, retry_backoff=1), clock.wall

    def pause(_: float) -> bool:
        monkeypatch.setattr(clock, "wall", lambda: wall() - 2400)
        return False

    ended = one.run(pause)
    assert ended.seconds is not None
    assert 0 < ended.seconds < 60
    one.lease.release()


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> set[SlotState]:
    """States that the store refuses to record, as a Redis at its maxmemory does.

    The lease is renewed all the same: that takes no memory.
    """
    refused, record_state = set[SlotState](), Ledger.record_state

    async def record(self: Ledger, run: SlotRecord, state: SlotState, *args: Any, **kw: Any) -> Any:
        if state in refused:
            raise StoreUnavailable("it is out of memory", permanent=True)
        return await record_state(self, run, state, *args, **kw)

    monkeypatch.setattr(Ledger, "record_state", record)
    return refused


def test_retries_have_their_bound_although_no_attempt_can_be_recorded(
    full: set[SlotState],
) -> None:
    one, pauses = Attempted(at_most_for=300, retry_backoff=1), list[float]()
    full |= {SlotState.RUNNING, SlotState.WAITING}

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        return len(pauses) < 20

    ended = one.run(pause)
    assert pauses == [1, 2, 4, 8, 16]
    assert (ended.state, ended.attempt) == (SlotState.FAILED, 6)
    one.lease.release()


def test_an_attempt_whose_beginning_could_not_be_recorded_can_end_well(
    full: set[SlotState],
) -> None:
    one = Attempted(at_most_for=300, retry_backoff=1)
    full.add(SlotState.RUNNING)
    ends = [AttemptEnd(SlotState.FAILED, 3, "exit 3"), AttemptEnd(SlotState.OK, 0)]
    ended = one.attempts.run_attempts(lambda: ends.pop(0), lambda _: True)
    assert ended is not None
    assert (ended.state, ended.attempt, ended.code) == (SlotState.OK, 2, 0)
    one.lease.release()


def test_an_instance_that_is_stopped_between_attempts_loses_the_run() -> None:
    one = Attempted(at_most_for=300, retry_backoff=1)
    ended = one.run(lambda _: False)
    assert (ended.state, ended.why) == (SlotState.LOST, "its instance was stopped between attempts")
    assert runs.code_of(ended)
    assert clock.now() < one.lease.belief.at_most_until
    one.lease.release()
