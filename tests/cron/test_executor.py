"""What an instance tells and writes: one line an outage, secrets left out, events that fit."""

from __future__ import annotations

import itertools
import json
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from incumbent.cron.events import Events
from incumbent.cron.executor import Executor, facts_of_job, without_secrets
from incumbent.cron.fleet import PRESENCE, Peers, SignOfLife, encode
from incumbent.cron.folds import FOLD, Fold, encode_fold
from incumbent.cron.ledger import RUN, SLOT_KEEP, SlotRecord, SlotState
from incumbent.cron.ledger import encode as encode_run
from incumbent.cron.schedule import Every
from incumbent.cron.spec import JobSlot, JobSpec
from incumbent.errors import StoreUnavailable
from incumbent.model import Ask, Key, Refused
from incumbent.model import Slot as StoreSlot
from incumbent.rules.notices import PAUSE
from incumbent.runtime.link import link_for

NUMBERS = itertools.count()


def test_a_peer_lives_for_as_long_as_its_sign_of_life_changes() -> None:
    peers = Peers()

    def before(seen: float, now: float) -> bool:
        return peers.any_behind([SignOfLife("other", 0.0, seen)], 1000.0, now)

    assert before(seen=500.0, now=0.0)
    assert before(seen=500.0, now=80.0)
    assert not before(seen=500.0, now=95.0)
    assert before(seen=530.0, now=100.0)
    assert not before(seen=1001.0, now=130.0)


def test_a_clock_that_is_an_hour_ahead_cancels_no_slot_that_is_yet_to_come() -> None:
    link = link_for("memory:wrong-clock")
    spec = JobSpec(name="job", schedule=Every(600), command=("true",))
    right = 1_000_000_000.0
    said: list[str] = []

    def tell(event: str, /, **_: object) -> None:
        said.append(event)

    wrong = Executor([spec], "n", link.port, Idle(), tell, lambda: right + 3600)
    slots = tuple(JobSlot.at(due, only_check=True) for due in (1_000_000_200.0, 1_000_000_800.0))
    link.store.put(Key("n", PRESENCE), "up/other", encode(since=1, seen=right), None, 1e12)
    wrong.begin([])
    wrong.dispatcher.check_at("job", slots[0], 0.0)
    wrong.dispatcher.check_at("job", slots[1], 0.0)
    wrong.carry_out_orders()
    assert said == []
    # Once the others have passed it, it was missed indeed.
    link.store.put(Key("n", PRESENCE), "up/other", encode(since=1, seen=right + 900), None, 1e12)
    wrong.dispatcher.check_at("job", slots[0], 0.0)
    wrong.dispatcher.check_at("job", slots[1], 0.0)
    wrong.carry_out_orders()
    assert said == ["missed"]


class Idle:
    """A Launcher that is never asked."""

    def claim(self, spec: JobSpec, slot: JobSlot) -> Refused:
        return Refused("held")

    def launch(self, spec: JobSpec, slot: JobSlot, grant: object) -> None:
        raise AssertionError

    def run_on_failure(self, spec: JobSpec, run: SlotRecord) -> None:
        raise AssertionError


LATE = JobSlot.at(1_000_000_000.0)
GONE = SlotRecord(LATE.name, SlotState.RUNNING, LATE.due, "gone", 3, LATE.due)


@pytest.mark.parametrize(
    ("behind", "attempt", "asked"),
    [
        pytest.param(60.0, 1, [], id="to come"),
        pytest.param(-60.0, 2, [], id="a retry"),
        pytest.param(-60.0, 1, ["2001-09-09T01:46:40Z~2"], id="over again"),
    ],
)
def test_a_slot_of_a_time_that_was_taken_back_is_not_claimed_again_and_again(
    behind: float, attempt: int, asked: list[str]
) -> None:
    """Its run may not begin, and the check after that found the slot free, at once and for ever."""
    link = link_for(f"memory:taken-back-{next(NUMBERS)}")
    spec = JobSpec(name="job", schedule=Every(600), command=("true",), retries=1)
    claimed: list[str] = []

    class Asked(Idle):
        def claim(self, spec: JobSpec, slot: JobSlot) -> Refused:
            claimed.append(slot.name)
            return Refused("held")

    fold = Fold(2, LATE.due - 3600, LATE.due + 3600)
    link.store.put(Key("n", "job"), FOLD, encode_fold(fold), None, 1e12)
    executor = Executor(
        [spec], "n", link.port, Asked(), lambda *_, **__: None, lambda: LATE.due - behind
    )
    executor.begin([])
    executor.dispatcher.check_at("job", LATE if attempt == 1 else LATE.next_attempt(), 0.0)
    for _ in range(3):
        executor.carry_out_orders()
    assert claimed == asked


@pytest.mark.parametrize(
    ("retries", "run", "slot", "held", "told"),
    [
        pytest.param(0, GONE, LATE, False, [("lost", 1)], id="no retries"),
        pytest.param(1, GONE, LATE, False, [], id="a retry to come"),
        pytest.param(
            1,
            replace(GONE, state=SlotState.LOST),
            LATE.next_attempt(),
            True,
            [("skipped", 2)],
            id="skipped",
        ),
        pytest.param(0, None, LATE, None, [("lost", 1)], id="never begun"),
        pytest.param(1, None, LATE, None, [], id="never begun, a retry to come"),
    ],
)
def test_the_failure_of_a_lost_run_is_told_once_no_attempt_is_to_come(
    retries: int,
    run: SlotRecord | None,
    slot: JobSlot,
    held: bool | None,
    told: list[tuple[str, int]],
) -> None:
    link = link_for(f"memory:on-failure-{next(NUMBERS)}")
    spec = JobSpec(name="job", schedule=Every(600), command=("true",), retries=retries)
    heard: list[tuple[str, int]] = []

    class Told(Idle):
        def run_on_failure(self, spec: JobSpec, run: SlotRecord) -> None:
            heard.append((str(run.state), run.attempt))

    key = Key("n", "job")
    if run is not None:
        link.store.put(key, RUN + run.slot, encode_run(run), None, 1e12)
    if held is not False:
        # Held by a newer run; or claimed by somebody who vanished before saying so.
        keep = SLOT_KEEP if held else SLOT_KEEP - 10
        ask = Ask(15.0, "other", slot=StoreSlot("newer" if held else slot.name, keep))
        link.store.take(key, "c", ask, 1e12)
        if not held:
            link.store.give(key, "c", None, 1e12)
    it = Executor([spec], "n", link.port, Told(), lambda *_, **__: None, lambda: LATE.due + 60)
    it.begin([])
    it.dispatcher.check_at("job", slot, 0.0)
    it.carry_out_orders()
    assert heard == told


def test_a_run_that_was_stopped_with_its_only_instance_is_retried_when_it_is_back() -> None:
    link = link_for("memory:back-again")
    spec = JobSpec(name="job", schedule=Every(86_400), command=("true",), retries=1)
    lost = replace(GONE, state=SlotState.LOST)
    link.store.put(Key("n", "job"), RUN + lost.slot, encode_run(lost), None, 1e12)
    claimed: list[str] = []

    class Claims(Idle):
        def claim(self, spec: JobSpec, slot: JobSlot) -> Refused:
            claimed.append(slot.name)
            return Refused("held", retry_after=60.0)

    it = Executor([spec], "n", link.port, Claims(), lambda *_, **__: None, lambda: LATE.due + 60)
    it.begin(link.store.scan("n", "", 1e12))
    it.carry_out_orders()
    it.carry_out_orders()
    assert claimed == [f"{LATE.name}#2"]


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("curl -fsS https://u:hunter2@host/x", "curl -fsS https://u:***@host/x"),
        ("x --password=hunter2 y", "x --password=*** y"),
        ("x --api-key hunter2", "x --api-key ***"),
        ("PGPASSWORD=hunter2 psql", "PGPASSWORD=*** psql"),
        ("backup /srv/passengers", "backup /srv/passengers"),
    ],
)
def test_a_command_is_shown_without_its_secrets(command: str, shown: str) -> None:
    assert without_secrets(command) == shown


def test_what_is_registered_of_a_job_is_all_that_a_reader_needs() -> None:
    facts = facts_of_job(JobSpec(name="a", schedule=Every(60), command=("true", "x"), retries=2))
    assert facts == {
        "schedule": "every 1m",
        "timezone": "UTC",
        "command": "true x",
        "retries": 2,
    }


def test_an_event_is_one_line_however_long_its_facts_are() -> None:
    reading, writing = os.pipe()
    Events(writing, instance="i")("output", line="ä" * 10_000, job=None)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    assert (text.count(b"\n"), len(text) <= 4096) == (1, True)
    event = json.loads(text)
    assert (event["event"], event["instance"], event["line"][:2]) == ("output", "i", "ää")
    assert "job" not in event


def test_a_reader_that_is_too_slow_loses_lines_and_delays_nobody() -> None:
    reading, writing = os.pipe()
    events = Events(writing)
    for _ in range(100):
        events("output", line="x" * 3000)
    assert events.dropped > 0
    os.close(reading)
    events("output", line="nobody reads")
    os.close(writing)


def test_a_job_that_is_met_while_all_is_paused_has_a_second_to_be_paused_too() -> None:
    port = link_for("memory:paused-from-the-start").port
    untils: list[float] = []

    class Watched:
        def put(self, key: Key, name: str, value: bytes, guard: Any, until: float) -> Any:
            if name == PAUSE:
                untils.append(until - port.now())
            return port.put(key, name, value, guard, until)

        def __getattr__(self, name: str) -> Any:
            return getattr(port, name)

    job = JobSpec(name="job", schedule=Every(60), command=("true",))
    it = Executor([job], "n", port, Idle(), lambda *_, **__: None, lambda: 0.0)
    it._port = cast("Any", Watched())
    it.register(job, {}, b"{}")
    assert len(untils) == 1
    assert untils[0] > 1


def test_an_outage_is_told_when_it_begins_once_a_minute_and_when_it_is_over() -> None:
    told: list[bool] = []
    nows = [100.0, 130.0, 161.0]

    def emit(_: str, /, **facts: Any) -> None:
        told.append(facts["ok"])

    it = Executor([], "n", link_for("memory:outage").port, Idle(), emit, lambda: 0.0)
    it._port = cast("Any", SimpleNamespace(now=lambda: nows.pop(0)))
    while nows:
        it._report_outage(StoreUnavailable("it is down"))
    it._report_reply()
    it._report_reply()
    assert told == [False, False, True]


def test_one_job_whose_key_the_store_refuses_is_told_once_a_minute() -> None:
    told: list[bool] = []
    nows = [100.0, 130.0, 140.0, 161.0]

    def emit(_: str, /, **facts: Any) -> None:
        told.append(facts["ok"])

    it = Executor([], "n", link_for("memory:refused").port, Idle(), emit, lambda: 0.0)
    it._port = cast("Any", SimpleNamespace(now=lambda: nows.pop(0)))
    for permanent in (True, True, False, True):
        it._report_outage(StoreUnavailable("it is so", permanent=permanent))
        it._report_reply()
    assert told == [False, True, False, True]
    assert not nows


def test_an_event_with_very_many_jobs_names_some_and_counts_the_rest() -> None:
    names = [f"a job with a long name {number}" for number in range(600)]
    said = json.loads(Events().line("reloaded", added=names, removed=names[:2]))
    assert said["added"] == names[: len(said["added"])]
    assert len(said["added"]) + said["added_left_out"] == 600
    assert len(said["added"]) > 50
    assert said["removed"] == names[:2]
