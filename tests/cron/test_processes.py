"""Real instances: jobs each second, killed and frozen; each slot runs once and is on record."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from incumbent.cron.ledger import SlotState
from incumbent.cron.schedule import slot_id
from tests import tiers
from tests.cron.fleet import NEVER_DUE, SHORT, CronFleet, children, descendants, identity, note
from tests.stores.postgresql.world import new_database
from tests.support.etcd import EtcdServer
from tests.support.postgresql import PostgresServer
from tests.support.servers import RedisServer
from tests.support.waiting import eventually, written

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(200)]

SECONDS = float(os.environ.get("CRON_SECONDS", "8"))
"""How long the long test takes; `CRON_SECONDS=60` is the campaign."""

STORES = ("sqlite", "redis", "etcd", "postgresql", "quorum")
two_stores = pytest.mark.parametrize("store", STORES[:2], indirect=True)
"""For what an instance does by itself: a file and a server are enough."""


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/leases.db"
        return
    if request.param == "quorum":
        with ExitStack() as stack:
            three = [stack.enter_context(RedisServer()) for _ in range(3)]
            hosts = ",".join(f"127.0.0.1:{it.port}" for it in three)
            # New and empty, and older than the leases are long as far as anybody asks.
            yield f"redis+quorum://{hosts}?restart_wait=0"
        return
    with {"redis": RedisServer, "etcd": EtcdServer, "postgresql": PostgresServer}[
        request.param
    ]() as server:
        if isinstance(server, PostgresServer):
            yield server.url_of(new_database(server))
        elif isinstance(server, EtcdServer):
            yield server.store_url(restart_wait="1s")
        else:
            yield f"{server.url}?restart_wait=0"


@pytest.fixture
def fleet(store: str, tmp_path: Path) -> Iterator[CronFleet]:
    made = CronFleet(store, tmp_path, f'[[job]]\nname = "tick"\nevery = "1s"\ncommand = {note()}\n')
    yield made
    made.stop()


@pytest.mark.left(tiers.LONG)
def test_each_slot_runs_once_through_kills_and_freezes(fleet: CronFleet) -> None:
    seed = random.SystemRandom().randrange(10**6)
    chance = random.Random(seed)
    slow = f'[[job]]\nname = "slow"\nevery = "2s"\ncommand = {note("time.sleep(1.2)")}\n'
    fleet.file.write_text(f"{fleet.jobs}keep_runs = 1000\n{slow}retries = 1\nkeep_runs = 1000\n")
    for _ in range(5):
        fleet.start(*SHORT)
    eventually(lambda: len(fleet.events("ready")) == 5)
    end, frozen = time.monotonic() + SECONDS, list[int]()
    while time.monotonic() < end:
        time.sleep(chance.uniform(0.8, 1.6))
        fleet.thaw(frozen)
        frozen = []
        living = [it for it in fleet.processes if it.poll() is None]
        victim = chance.choice(living)
        if chance.random() < 0.5:
            fleet.kill(victim)
            fleet.start(*SHORT)
        else:
            frozen = fleet.freeze(victim)
    fleet.thaw(frozen)
    fleet.start(*SHORT)
    ended = time.time()
    # A ttl, a look, and a retry.
    time.sleep(5.0)
    eventually(lambda: _all_ended(fleet, ended))
    fleet.stop()
    try:
        _check(fleet, ended)
    except AssertionError as error:
        error.add_note(f"seed {seed}")
        raise


def _all_ended(fleet: CronFleet, due: float) -> bool:
    runs = [*fleet.runs("tick").values(), *fleet.runs("slow").values()]
    return all(run.state.ended for run in runs if run.due < due)


def _nothing_on_record(fleet: CronFleet, ended: float) -> list[str]:
    """Slots that came due by then, of which the ledger says nothing."""
    found = []
    for job, every in (("tick", 1.0), ("slow", 2.0)):
        runs = fleet.runs(job)
        missed = [run for run in runs.values() if run.state is SlotState.MISSED]
        due = (fleet.since(job) // every + 1) * every
        while due < ended:
            if slot_id(due) not in runs and not any(it.since <= due <= it.due for it in missed):
                found.append(f"{job} {slot_id(due)}")
            due += every
    return found


def _check(fleet: CronFleet, ended: float) -> None:
    ran = fleet.ran()
    assert len(ran) > SECONDS / 2, fleet.errors
    assert [slot for slot, times in ran.items() if times > 1] == []
    for _ in range(5):
        fleet.account()
        # On a slow store it writes one record after the other, for longer than one look lasts.
        if not _nothing_on_record(fleet, ended):
            break
    assert _nothing_on_record(fleet, ended) == []
    for job, every in (("tick", 1.0), ("slow", 2.0)):
        runs = fleet.runs(job)
        due, slots, silent = (fleet.since(job) // every + 1) * every, 0, 0
        while due < ended:
            run = runs.get(slot_id(due))
            assert run is None or run.state.ended, f"{job} {slot_id(due)}: {run.state}"
            if run is None or run.state is SlotState.MISSED:
                silent += 1
            due, slots = due + every, slots + 1
        states = Counter(str(run.state) for run in runs.values())
        sys.stdout.write(f"{job}: {slots} slots, {dict(states)}, {silent} missed on the way\n")
        # Instances are always up: only a store that did not answer in time makes them miss a slot.
        assert silent <= slots / 5
        said = {f"{job}@{slot}" for slot, run in runs.items() if run.state is SlotState.OK}
        assert said <= set(ran)


@pytest.mark.left(tiers.STORES, "etcd")
def test_a_run_whose_instance_is_killed_is_lost_and_retried(fleet: CronFleet) -> None:
    fleet.file.write_text(
        f'[[job]]\nname = "long"\n{NEVER_DUE}\ncommand = {note("time.sleep(6)")}\nretries = 1\n'
    )
    first, second = (fleet.start() for _ in range(2))
    eventually(lambda: len(fleet.events("ready")) == 2)
    fleet.trigger("long")
    eventually(lambda: fleet.events("started"))
    began = fleet.events("started")[0]
    slot = began["slot"]
    fleet.kill(first if began["instance"] == "i1" else second)
    eventually(lambda: fleet.runs("long")[slot].state is SlotState.LOST)
    eventually(lambda: fleet.runs("long").get(f"{slot}#2") is not None)
    # It takes six seconds.
    eventually(lambda: fleet.runs("long")[f"{slot}#2"].state is SlotState.OK, within=40)


@pytest.mark.left(tiers.STORES, "postgresql")
def test_a_run_longer_than_the_ttl_ends_well_while_its_instance_claims_other_slots(
    fleet: CronFleet,
) -> None:
    long = f'[[job]]\nname = "long"\n{NEVER_DUE}\ncommand = {note("time.sleep(6)")}\n'
    fleet.file.write_text(fleet.jobs + long)
    fleet.start()
    eventually(lambda: fleet.events("ready"))
    fleet.trigger("long")
    (run,) = fleet.runs("long").values()
    eventually(lambda: fleet.runs("long")[run.slot].state.ended)
    assert fleet.runs("long")[run.slot].state is SlotState.OK


@pytest.mark.left(tiers.STORES, "sqlite")
@two_stores
def test_a_term_lets_runs_end_and_starts_no_other(fleet: CronFleet) -> None:
    fleet.file.write_text(
        f'[[job]]\nname = "long"\n{NEVER_DUE}\ncommand = {note("time.sleep(1.5)")}\n'
    )
    process = fleet.start()
    eventually(lambda: fleet.events("ready"))
    fleet.trigger("long")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    (run,) = fleet.runs("long").values()
    assert run.state is SlotState.OK


@pytest.mark.left(tiers.STORES, "redis")
@two_stores
def test_a_drain_that_takes_too_long_stops_the_runs(fleet: CronFleet) -> None:
    fleet.file.write_text(
        f'[[job]]\nname = "long"\n{NEVER_DUE}\ncommand = {note("time.sleep(30)")}\n'
        'on_failure = "echo $INCUMBENT_RUN_STATE > on_failure"\n'
    )
    process = fleet.start("--drain", "0.3")
    eventually(lambda: fleet.events("ready"))
    fleet.trigger("long")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    (run,) = fleet.runs("long").values()
    assert (run.state, "SIGTERM" in run.why) == (SlotState.LOST, True)
    eventually(lambda: written(fleet.folder / "on_failure") == "lost\n")


@pytest.mark.left(tiers.STORES, "sqlite")
@two_stores
def test_a_hup_reads_the_jobs_anew_and_keeps_them_if_they_are_broken(fleet: CronFleet) -> None:
    process = fleet.start()
    eventually(fleet.ran)
    fleet.file.write_text(fleet.jobs + f'[[job]]\nname = "new"\nevery = "1s"\ncommand = {note()}\n')
    process.send_signal(signal.SIGHUP)
    eventually(lambda: any(it.startswith("new@") for it in fleet.ran()))
    fleet.file.write_text('[[job]]\nname = "x"\n')
    process.send_signal(signal.SIGHUP)
    eventually(lambda: fleet.events("reload_failed"))
    before = len(fleet.ran())
    eventually(lambda: len(fleet.ran()) > before + 2)


@pytest.mark.left(tiers.STORES, "redis")
@two_stores
def test_what_a_command_writes_and_how_it_ended_is_kept(fleet: CronFleet) -> None:
    fleet.file.write_text(
        f'[[job]]\nname = "bad"\n{NEVER_DUE}\ncommand = "echo one; echo two >&2; exit 3"\n'
        "keep_output = 5\nretries = 1\nretry_backoff = 0.1\n"
        'on_failure = "echo $INCUMBENT_RUN_STATE $INCUMBENT_RUN_CODE > on_failure"\n'
        f'[[job]]\nname = "late"\n{NEVER_DUE}\ncommand = "sleep 30"\nat_most_for = 0.5\n'
        f'[[job]]\nname = "reads"\n{NEVER_DUE}\ncommand = ["cat"]\nsuccess_codes = [0, 1]\n'
    )
    fleet.start()
    eventually(lambda: fleet.events("ready"))
    for job in ("bad", "late", "reads"):
        fleet.trigger(job)

    def states() -> list[SlotState]:
        return [run.state for job in ("bad", "late", "reads") for run in fleet.runs(job).values()]

    eventually(lambda: states() == [SlotState.FAILED, SlotState.TIMED_OUT, SlotState.OK])
    (bad,) = fleet.runs("bad").values()
    assert (bad.code, bad.attempt, bad.output) == (3, 2, "two")
    eventually(lambda: written(fleet.folder / "on_failure") == "failed 3\n")


@pytest.mark.left(tiers.STORES, "sqlite")
@two_stores
def test_a_schedule_that_changes_lets_the_run_that_is_on_end(fleet: CronFleet) -> None:
    job = f'[[job]]\nname = "long"\ncommand = {note("time.sleep(1.5)")}\n'
    fleet.file.write_text(f"{job}{NEVER_DUE}\n")
    process = fleet.start()
    eventually(lambda: fleet.events("ready"))
    fleet.trigger("long")
    fleet.file.write_text(f"{job}{NEVER_DUE.replace('2099', '2098')}\n")
    process.send_signal(signal.SIGHUP)
    eventually(lambda: fleet.events("reloaded"))
    (reloaded,) = fleet.events("reloaded")
    assert reloaded["rescheduled"] == ["long"]
    eventually(lambda: [it.state for it in fleet.runs("long").values()] == [SlotState.OK])


@pytest.mark.left(tiers.STORES, "sqlite")
@two_stores
def test_a_run_whose_instance_was_killed_says_so(fleet: CronFleet) -> None:
    fleet.file.write_text(
        f'[[job]]\nname = "long"\n{NEVER_DUE}\ncommand = {note("time.sleep(60)")}\n'
    )
    process = fleet.start()
    eventually(lambda: fleet.events("ready"))
    fleet.trigger("long")
    eventually(fleet.ran)
    process.kill()
    eventually(lambda: [it.state for it in fleet.runs("long").values()] == [SlotState.LOST])
    (lost,) = fleet.runs("long").values()
    assert lost.why.startswith("its instance died, or was killed; stopped after ")


@pytest.mark.left(tiers.LONG)
def test_a_run_whose_host_died_keeps_the_output_that_was_seen_last(fleet: CronFleet) -> None:
    fleet.file.write_text(
        f'[[job]]\nname = "long"\n{NEVER_DUE}\ncommand = "echo working; sleep 600"\n'
    )
    first = fleet.start()
    eventually(lambda: fleet.events("ready"))
    fleet.trigger("long")
    eventually(lambda: [it.output for it in fleet.runs("long").values()] == ["working"])
    (going,) = fleet.runs("long").values()
    assert (going.state, going.output_seen is None) == (SlotState.RUNNING, False)
    # First, so that no process sees another one end.
    fleet.freeze(first)
    fleet.kill(first)
    fleet.start()
    eventually(lambda: [it.state for it in fleet.runs("long").values()] == [SlotState.LOST])
    (lost,) = fleet.runs("long").values()
    assert (lost.output, lost.output_seen) == ("working", going.output_seen)
    assert "@" in lost.triggered_by


@pytest.mark.left(tiers.STORES, "quorum")
def test_a_worker_that_is_killed_leaves_nothing_behind_and_its_run_is_lost(
    fleet: CronFleet,
) -> None:
    fleet.file.write_text(
        f'[[job]]\nname = "long"\n{NEVER_DUE}\ncommand = {note("time.sleep(30)")}\n'
        'cwd = "below"\non_failure = "echo told; echo $INCUMBENT_RUN_STATE > on_failure"\n'
    )
    (fleet.folder / "below").mkdir()
    process = fleet.start()
    eventually(lambda: fleet.events("ready"))
    fleet.trigger("long")
    eventually(fleet.ran)
    (zygote,) = children(process.pid)
    (worker,) = children(zygote)
    below = {pid: identity(pid) for pid in descendants(worker)}
    assert len(below) >= 2
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: [it.state for it in fleet.runs("long").values()] == [SlotState.LOST])
    # A namespace's init stays until the machine's own PID 1 has reaped its last process.
    eventually(lambda: not any(it and identity(pid) == it for pid, it in below.items()))
    eventually((fleet.folder / "below" / "on_failure").exists)
    # What it says is an event as all else on standard output is.
    eventually(lambda: fleet.events("on_failure"))
    said = [it["line"] for it in fleet.events("output")]
    # A worker that waited for the store says so there, too.
    assert [line for line in said if not line.startswith("incumbent: ")] == ["told"]
    assert process.poll() is None
