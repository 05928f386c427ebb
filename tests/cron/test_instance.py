"""One instance's loop, on a store in memory: its start, its sweep, its signs of life."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from incumbent import clock
from incumbent.cli.main import main
from incumbent.cron.fleet import (
    CONTROL,
    PRESENCE,
    STALE,
    SWEEP,
    UP,
    Trigger,
    encode,
    presences,
    triggers,
)
from incumbent.cron.instance import Instance
from incumbent.cron.ledger import JOB, RUN, SlotRecord, SlotState, read_job, recorded_run
from incumbent.cron.ledger import encode as encode_run
from incumbent.cron.runs import ALREADY_RECORDED, GAVE_BACK, STATE_OF, Runs
from incumbent.cron.schedule import Every
from incumbent.cron.spec import JobSlot, JobSpec
from incumbent.model import Gone, Key, Record, Refused
from incumbent.rules.notices import PAUSE
from incumbent.runtime.link import Link, link_for
from tests.support.waiting import eventually

SPEC = JobSpec(name="job", schedule=Every(86_400), command=("true",))
DAY = 86_400.0
NAMES = (f"memory:instance{number}" for number in itertools.count())


class Launches:
    """A Launcher that notes what it is asked for, and gets nothing."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def claim(self, spec: JobSpec, slot: JobSlot) -> Refused:
        self.asked.append(slot.name)
        return Refused("held", retry_after=60.0)

    def launch(self, spec: JobSpec, slot: JobSlot, grant: object) -> None:
        raise AssertionError

    def run_on_failure(self, spec: JobSpec, run: SlotRecord) -> None:
        pass


def quiet(event: str, /, **_: Any) -> None:
    """Hears nothing."""


@pytest.fixture
def link() -> Link:
    return link_for(next(NAMES))


@pytest.fixture
def instance(link: Link) -> Iterator[Instance]:
    made = Instance([SPEC], link, "n", "me", Launches(), quiet)
    made.step()
    made.step()
    yield made
    made.close()


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the wall clock forward, for everybody."""
    wall, by = clock.wall, [0.0]
    monkeypatch.setattr(clock, "wall", lambda: wall() + by[0])

    def move(seconds: float) -> None:
        by[0] += seconds

    return move


def read(link: Link, name: str) -> Record:
    return link.store.read(Key("n", name), clock.now() + 30)


def put(link: Link, name: str, field: str, value: bytes) -> None:
    link.store.put(Key("n", name), field, value, None, clock.now() + 30)


def test_an_instance_says_what_its_jobs_are_and_that_it_lives(
    link: Link, instance: Instance
) -> None:
    assert read_job(read(link, "job").fields)["schedule"] == "every 1d"
    (present,) = presences(read(link, PRESENCE))
    assert (present.instance, present.jobs) == ("me", 1)


def test_an_instance_says_at_once_where_its_clock_is_when_that_was_set(
    link: Link, instance: Instance, moved: Callable[[float], None]
) -> None:
    """Others judge by it whether time was set back, or they are behind."""

    def said() -> float:
        (present,) = presences(read(link, PRESENCE))
        return present.seen

    before = said()
    moved(-2400)
    instance.wake()
    instance.step()
    assert -2405 < said() - before < -2300


def test_who_leaves_is_no_longer_present(link: Link) -> None:
    made = Instance([SPEC], link, "n", "me", Launches(), quiet)
    made.step()
    made.step()
    made.close()
    assert presences(read(link, PRESENCE)) == []


def test_the_sweep_finds_a_run_that_nobody_witnessed_and_forgets_who_is_long_gone(
    link: Link, instance: Instance, moved: Callable[[float], None]
) -> None:
    orphan = SlotRecord("manual/x", SlotState.RUNNING, clock.wall(), "gone", 7, clock.wall())
    put(link, "job", RUN + orphan.slot, encode_run(orphan))
    put(link, PRESENCE, f"{UP}gone", encode(since=1.0, seen=clock.wall() - 100_000))
    sweep(instance)
    assert len(presences(read(link, PRESENCE))) == 2
    moved(1200.0)
    sweep(instance)
    instance.wake()
    instance.step()
    found = recorded_run(read(link, "job").fields, orphan.slot)
    assert found is not None
    assert (found.state, found.why) == (SlotState.LOST, "gone vanished")
    assert [it.instance for it in presences(read(link, PRESENCE))] == ["me"]


def test_a_clock_two_days_ahead_forgets_nobody_who_lives(
    link: Link, instance: Instance, moved: Callable[[float], None]
) -> None:
    for _ in range(3):
        put(link, PRESENCE, f"{UP}right", encode(since=1.0, seen=clock.wall() - 2 * DAY))
        sweep(instance)
        assert [it.instance for it in presences(read(link, PRESENCE))] == ["me", "right"]
        moved(1200.0)


def test_a_trigger_by_a_clock_that_is_behind_is_taken_by_who_saw_it_come(
    link: Link, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[JobSlot] = []
    monkeypatch.setattr(
        instance._executor.dispatcher, "claim_at", lambda _, slot, __: taken.append(slot)
    )
    eventually(lambda: instance._control_read_at > 0)
    trigger, now = Trigger("x", "job", clock.wall() - 3600.0), clock.wall()
    put(link, CONTROL, trigger.field, encode(job="job", when=trigger.when))

    def hear() -> list[JobSlot]:
        instance._take_triggers()
        return taken

    eventually(hear)
    (slot,) = taken
    assert slot.name == trigger.slot
    assert slot.due > now - 60.0


def test_a_clock_an_hour_ahead_takes_no_trigger_away_from_others(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = Trigger("x", "job", clock.wall() - 3600.0)
    put(link, CONTROL, trigger.field, encode(job="job", when=trigger.when))
    instance = Instance([SPEC], link, "n", "me", Launches(), quiet)
    instance._control_records.append((-inf, read(link, CONTROL)))
    instance._take_triggers()
    assert "x" not in instance._taken
    assert triggers(read(link, CONTROL)) == [trigger]
    now = clock.now
    monkeypatch.setattr(clock, "now", lambda: now() + STALE + 1)
    instance._control_records.append((clock.wall(), read(link, CONTROL)))
    instance._take_triggers()
    assert triggers(read(link, CONTROL)) == []
    instance.close()


def test_a_trigger_that_was_removed_is_forgotten(link: Link, instance: Instance) -> None:
    def hear() -> bool:
        instance._take_triggers()
        return "y" in instance._taken

    def hear_nothing() -> bool:
        instance._take_triggers()
        return not instance._taken

    for name in "xy":
        trigger = Trigger(name, "job", clock.wall())
        put(link, CONTROL, trigger.field, trigger.value)
    eventually(hear)
    instance._remove_trigger("manual/x")
    eventually(lambda: hear() and instance._taken == {"y"})
    assert set(instance._trigger_since) == {"y"}
    # Also the last one, after which nothing stands in the record.
    instance._remove_trigger("manual/y")
    eventually(hear_nothing)
    assert instance._trigger_since == {}


def test_a_job_that_is_new_once_all_is_unpaused_is_not_paused(
    link: Link, instance: Instance
) -> None:
    def heard() -> bytes | None:
        instance._take_triggers()
        return instance._pause

    put(link, CONTROL, PAUSE, b'{"all": true}')
    eventually(lambda: heard() is not None)
    link.store.put(Key("n", CONTROL), PAUSE, None, None, clock.now() + 30)
    eventually(lambda: heard() is None)


@pytest.mark.parametrize("code", [*STATE_OF, ALREADY_RECORDED, GAVE_BACK, 125, -9])
def test_a_trigger_stands_until_its_run_was_seen_to_its_end(link: Link, code: int) -> None:
    trigger, runs, launches = Trigger("x", "job", clock.wall()), Runs[JobSlot](), Launches()
    instance = Instance([SPEC], link, "n", "me", launches, quiet, runs)
    instance.step()
    # What the instance makes of a trigger that it sees is not asked here.
    instance._take_triggers = lambda: None  # type: ignore[method-assign]
    put(link, CONTROL, trigger.field, encode(job="job", when=trigger.when))
    slot = JobSlot(trigger.slot, trigger.when)
    runs.ended.append(("job", slot, code))
    instance.wake()
    instance.step()
    assert (triggers(read(link, CONTROL)) == []) is (code in (*STATE_OF, ALREADY_RECORDED))
    # A slot that was given back is claimed again. If its run vanished, or it is on record already,
    # the record is looked at: its instant may have come again.
    pending = instance._executor.dispatcher._pending.get("job")
    claims, checks = (pending.claims, pending.checks) if pending else ({}, {})
    assert (slot.name in claims, slot.name in checks) == (
        code == GAVE_BACK, code not in (*STATE_OF, GAVE_BACK)
    )  # fmt: skip
    instance.close()


def test_one_instance_of_the_fleet_sweeps_at_a_time(link: Link, instance: Instance) -> None:
    scans = []
    scan = link.store.scan

    def counted(namespace: str, prefix: str, until: float) -> Any:
        scans.append(prefix)
        return scan(namespace, prefix, until)

    link.store.scan = counted  # type: ignore[method-assign]
    other = Instance([SPEC], link, "n", "other", Launches(), quiet)
    other.step()
    scans.clear()
    for each in (instance, other, instance, other):
        each._sweep_at = 0.0
        each.wake()
        each.step()
    other.close()
    assert len(scans) == 1


def test_a_sweep_whose_lease_is_gone_at_once_ends_no_instance(
    link: Link, instance: Instance, monkeypatch: pytest.MonkeyPatch
) -> None:
    give, takes = link.store.give, []

    def gone(key: Key, claim: str, token: int | None, until: float, **parting: Any) -> Any:
        # As after a restart of the store between the take and the give.
        give(key, claim, token, until, **parting)
        takes.append(key.name)
        return Gone()

    monkeypatch.setattr(link.store, "give", gone)
    sweep(instance)
    assert takes == [SWEEP]


def test_a_job_that_is_new_while_everything_is_paused_is_paused_too(link: Link) -> None:
    put(link, CONTROL, PAUSE, b'{"who": "ann", "all": true}')
    made = Instance([SPEC], link, "n", "me", Launches(), quiet)
    made.step()
    made.step()
    made.close()
    assert read(link, "job").fields[PAUSE].value == b'{"who": "ann", "all": true}'


class Grants(Launches):
    """A Launcher that notes which of the jobs that it is asked for the store would let run."""

    def __init__(self, link: Link) -> None:
        super().__init__()
        self._link = link
        self.free: list[str] = []

    def claim(self, spec: JobSpec, slot: JobSlot) -> Refused:
        if PAUSE not in read(self._link, spec.name).fields:
            self.free.append(spec.name)
        return super().claim(spec, slot)


def test_of_many_jobs_that_are_new_while_everything_is_paused_none_runs(
    link: Link, moved: Callable[[float], None]
) -> None:
    """More of them are due at once than are registered in one step."""
    put(link, CONTROL, PAUSE, b'{"who": "ann", "all": true}')
    specs = [replace(SPEC, name=f"job{n}", schedule=Every(1)) for n in range(60)]
    launches = Grants(link)
    made = Instance(specs, link, "n", "me", launches, quiet)
    for _ in range(4):
        moved(1.0)
        made.wake()
        made.step()
    made.close()
    assert len(launches.asked) > 60
    assert launches.free == []


def test_jobs_that_are_read_anew_while_many_wait_to_be_registered_all_are(link: Link) -> None:
    specs = [replace(SPEC, name=f"job{n}") for n in range(60)]
    made = Instance(specs, link, "n", "me", Launches(), quiet)
    made.step()
    made.step()
    made.reload(specs)
    for _ in range(4):
        made.wake()
        made.step()
    made.close()
    assert [it.name for it in specs if JOB not in read(link, it.name).fields] == []


def jobs_shown(capsys: pytest.CaptureFixture[str], link: Link) -> dict[str, tuple[bool, bool]]:
    """By name: whether the table shows it, and whether it is said to be gone."""
    words = ("-s", link.engine.url, "--namespace", "n", "jobs")
    assert main([*words]) == 0
    table = {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    assert main([*words[:-1], "--json", "jobs"]) == 0
    said = json.loads(capsys.readouterr().out)["result"]["jobs"]
    return {job["name"]: (job["name"] in table, job["gone"]) for job in said}


def test_a_job_that_was_removed_is_gone_and_those_of_other_files_are_not(
    link: Link, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, removed, others = (replace(SPEC, name=name) for name in ("kept", "removed", "others"))
    instance = Instance([kept, removed], link, "n", "me", Launches(), quiet)
    other = Instance([others], link, "n", "other", Launches(), quiet)
    for each in (instance, other):
        each.step()
        each.step()
    assert set(jobs_shown(capsys, link).values()) == {(True, False)}
    instance.reload([kept])
    instance.wake()
    instance.step()
    shown = jobs_shown(capsys, link)
    assert shown == {"kept": (True, False), "removed": (True, True), "others": (True, False)}
    assert main(["-s", link.engine.url, "--namespace", "n", "why", "removed"]) == 0
    assert "no instance that is up has this job" in capsys.readouterr().out
    other.close()
    instance.close()


def test_a_job_that_is_removed_while_it_runs_still_tells_how_it_ended(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, slot, heard = Runs[JobSlot](), JobSlot("manual/x", clock.wall()), list[str]()
    made = Instance([SPEC], link, "n", "me", Launches(), quiet, runs)
    made.step()
    for told in ("started", "ended"):
        monkeypatch.setattr(
            made._news,
            told,
            lambda spec, *_, told=told: heard.append(f"{told} {spec and spec.name}"),
        )
    runs.running["job", slot.name] = slot
    runs.to_announce.append("job")
    made.reload([])
    made.reload([])
    runs.ended.append(("job", runs.running.pop(("job", slot.name)), min(STATE_OF)))
    made.wake()
    made.step()
    made.close()
    assert heard == ["started job", "ended job"]


def sweep(instance: Instance) -> None:
    instance._present_at = instance._sweep_at = 0.0
    instance.wake()
    instance.step()


def test_what_nobody_has_is_hidden_after_a_day_and_forgotten_after_a_month(
    link: Link,
    instance: Instance,
    capsys: pytest.CaptureFixture[str],
    moved: Callable[[float], None],
) -> None:
    facts = {"schedule": "every 1d", "timezone": "UTC", "since": 1.0}
    for name, said in (("removed", facts), ("by-slot", {"schedule": "by slot"})):
        put(link, name, JOB, json.dumps(said).encode())
        put(link, name, RUN + "s", encode_run(SlotRecord("s", SlotState.OK, 1.0)))
    sweep(instance)
    assert jobs_shown(capsys, link)["removed"] == (True, True)
    moved(2 * DAY)
    sweep(instance)
    assert jobs_shown(capsys, link) == {
        "job": (True, False), "removed": (False, True), "by-slot": (True, False)
    }  # fmt: skip
    moved(30 * DAY)
    sweep(instance)
    assert read(link, "removed").fields == {}
    assert RUN + "s" in read(link, "by-slot").fields


def test_a_job_that_came_back_is_gone_no_more_and_keeps_its_history(
    link: Link, instance: Instance, capsys: pytest.CaptureFixture[str]
) -> None:
    back = replace(SPEC, name="back")
    facts = {"schedule": "every 1d", "timezone": "UTC", "since": 1.0, "gone": 5.0}
    put(link, "back", JOB, json.dumps(facts).encode())
    made = Instance([back], link, "n", "other", Launches(), quiet)
    made.step()
    made.step()
    assert jobs_shown(capsys, link)["back"] == (True, False)
    facts = read_job(read(link, "back").fields)
    assert (facts["since"], "gone" in facts) == (1.0, False)
    made.close()


def test_while_one_instance_does_not_say_what_it_has_nothing_is_gone(
    link: Link, instance: Instance, capsys: pytest.CaptureFixture[str]
) -> None:
    put(link, "its", JOB, b'{"schedule": "every 1d", "timezone": "UTC", "since": 1.0}')
    put(link, PRESENCE, f"{UP}older", encode(since=1.0, seen=clock.wall(), jobs=1))
    assert jobs_shown(capsys, link)["its"] == (True, False)
    sweep(instance)
    assert "gone" not in read_job(read(link, "its").fields)


def test_a_clock_that_is_set_is_told_and_no_slot_is_asked_for_twice(
    link: Link, moved: Callable[[float], None]
) -> None:
    heard: list[tuple[str, object]] = []

    def said(event: str, /, **facts: object) -> None:
        heard.append((event, facts.get("moved")))

    launches = Launches()
    made = Instance([replace(SPEC, schedule=Every(3600))], link, "n", "me", launches, said)
    # Half an hour after a slot, so that a step that is late changes nothing.
    moved(1800 - clock.wall() % 3600)
    for by in (0, 7200, -3600, 3600, 600, -2400, 3600):
        moved(by)
        made.wake()
        made.step()
    made.close()
    told = [round(float(str(by))) for event, by in heard if event == "clock"]
    assert told[-6:] == [7200, -3600, 3600, 600, -2400, 3600]
    assert len(launches.asked) == len(set(launches.asked))
