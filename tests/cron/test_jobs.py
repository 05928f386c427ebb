"""`incumbent.Jobs`: functions and coroutines of one application, on a store in memory."""

from __future__ import annotations

import asyncio
import concurrent.futures
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

import incumbent
from incumbent import clock
from incumbent.cron.instance import Instance
from incumbent.cron.jobs import Background, _FunctionRun
from incumbent.cron.ledger import PRUNED, SlotRecord, SlotState, read_job, runs_of
from incumbent.cron.runs import ALREADY_RECORDED
from incumbent.cron.schedule import Every
from incumbent.cron.spec import JobSlot, JobSpec
from incumbent.errors import ConfigError, LeaseLost, Misuse, StoreUnavailable
from incumbent.locks.options import LockSettings
from incumbent.model import Capabilities, Key
from incumbent.protocol.claim import Claim
from incumbent.rules.notices import BREAK, RESIGN, notice_to
from incumbent.runtime.link import link_for
from incumbent.stores.memory import MemoryEngine
from tests.support.faulty import FaultyEngine
from tests.support.servers import free_port
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(60)

STORES = iter(range(1_000_000))
RARELY = "0 0 29 2 *"
"""For what runs only when it is triggered: every hour is due while a test crosses the hour."""


@pytest.fixture
def store() -> str:
    return f"memory:jobs{next(STORES)}"


@pytest.fixture
def jobs(store: str) -> Iterator[incumbent.Jobs]:
    made = incumbent.Jobs(store, ttl=5, grace=1)
    yield made
    made.stop(drain=2)


def on_record(store: str, job: str) -> list[SlotRecord]:
    fields = link_for(store).store.read(Key("default", job), time.monotonic() + 1e9).fields
    return [run for run, _ in runs_of(fields).values()]


def test_jobs_end_with_their_client_and_say_so(store: str) -> None:
    client, seen, said = incumbent.Client(store), list[None](), list[str]()
    jobs = incumbent.Jobs(client, ttl=5, grace=1)

    @jobs.every("1s")
    def tick() -> None:
        seen.append(None)

    jobs.start(on_event=lambda event, /, **facts: said.append(f"{event} {facts.get('why')}"))
    eventually(lambda: seen)
    client.close()
    eventually(lambda: "fault the client that this came from was closed" in said)
    assert jobs.stop()
    eventually(lambda: not incumbent.Lock("tick", store=store).locked())


def refuse_us_late(store: str, late: threading.Event, patch: pytest.MonkeyPatch) -> None:
    """The store is away until `late` is set, and then its first reply is that it refuses us."""

    def scan(*_: object) -> None:
        text = "refused: WRONGPASS" if late.is_set() else "it is away"
        raise StoreUnavailable(text, permanent=late.is_set())

    patch.setattr("incumbent.cron.jobs._BEGIN_WITHIN", 0.01)
    patch.setattr(type(link_for(store).store), "scan", scan)


def test_jobs_that_the_store_refuses_after_their_start_say_so(
    store: str, jobs: incumbent.Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, said = threading.Event(), list[str]()
    refuse_us_late(store, late, monkeypatch)
    jobs.every("1s", name="tick")(lambda: None)
    jobs.start(on_event=lambda event, /, **facts: said.append(f"{event} {facts.get('why')}"))
    late.set()
    eventually(lambda: "fault refused: WRONGPASS" in said)


def test_a_run_ends_with_the_store_that_refuses_it_after_the_start(
    store: str, jobs: incumbent.Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, start = threading.Event(), incumbent.Jobs.start
    refuse_us_late(store, late, monkeypatch)
    jobs.every("1s", name="tick")(lambda: None)

    def start_first(*args: Any, **kwargs: Any) -> incumbent.Jobs:
        started: incumbent.Jobs = start(*args, **kwargs)
        late.set()
        return started

    monkeypatch.setattr(incumbent.Jobs, "start", start_first)
    with pytest.raises(StoreUnavailable, match="WRONGPASS"):
        jobs.run(drain=0)


def test_a_function_runs_in_each_slot_and_is_on_record(store: str, jobs: incumbent.Jobs) -> None:
    seen: list[incumbent.JobRun] = []

    @jobs.every("1s")
    def tick(run: incumbent.JobRun) -> None:
        run.check(need=0.1)
        seen.append(run)

    jobs.start()
    eventually(lambda: len(seen) >= 2)
    jobs.stop()
    assert len({run.slot for run in seen}) == len(seen)
    assert [run.fencing_token for run in seen] == sorted({run.fencing_token for run in seen})
    slots = {run.slot for run in seen}
    states = {run.state for run in on_record(store, "tick") if run.slot in slots}
    assert states == {SlotState.OK}


def test_a_run_without_a_thread_gives_its_slot_back_and_is_tried_again(
    store: str, jobs: incumbent.Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused, ran = threading.Thread.start, threading.Event(), threading.Event()

    def start_later(thread: threading.Thread) -> None:
        if thread.name == "incumbent-job tick" and not refused.is_set():
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    @jobs.cron(RARELY)
    def tick() -> None:
        ran.set()

    monkeypatch.setattr(threading.Thread, "start", start_later)
    trigger(jobs, store, "tick")
    assert ran.wait(30)
    assert refused.is_set()
    eventually(lambda: [it.state for it in on_record(store, "tick")] == [SlotState.OK])


def test_two_instances_share_the_slots(store: str) -> None:
    slots: list[str] = []

    def make(holder: str) -> incumbent.Jobs:
        jobs = incumbent.Jobs(store, holder=holder)

        @jobs.every("1s")
        def tick(run: incumbent.JobRun) -> None:
            slots.append(run.slot)

        return jobs

    with make("one"), make("two"):
        eventually(lambda: len(slots) >= 3)
    assert len(set(slots)) == len(slots)


def test_a_coroutine_runs_on_the_applications_loop(store: str) -> None:
    async def main() -> tuple[Any, Any]:
        jobs = incumbent.Jobs(store)
        ran = asyncio.Event()
        loops = []

        @jobs.every("1s")
        async def tick() -> None:
            loops.append(asyncio.get_running_loop())
            ran.set()

        async with jobs:
            await asyncio.wait_for(ran.wait(), 30)
        return loops[0], asyncio.get_running_loop()

    its, ours = asyncio.run(main())
    assert its is ours


def test_a_coroutine_without_a_loop_gets_one_and_is_cancelled_in_time(
    store: str, jobs: incumbent.Jobs
) -> None:
    cancelled = threading.Event()

    @jobs.every("1s", at_most_for=0.2)
    async def hangs() -> None:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    jobs.start()
    assert cancelled.wait(30)
    jobs.stop()
    states = {run.state for run in on_record(store, "hangs")}
    assert SlotState.TIMED_OUT in states
    assert SlotState.OK not in states


def test_a_stop_that_finds_a_coroutine_at_its_end_ends_the_others_too() -> None:
    """The event loop's thread forgets the scope while the stopping thread asks for it."""
    stopped: list[str] = []
    scopes: Iterator[Any] = iter([SimpleNamespace(stop=lambda: stopped.append("it")), None])

    class AtItsEnd(_FunctionRun):
        _scope = property(lambda _: next(scopes))

    object.__new__(AtItsEnd).stop()
    assert stopped == ["it"]


def test_a_stop_lets_a_coroutine_end_within_the_drain(store: str, jobs: incumbent.Jobs) -> None:
    stops = threading.Event()

    @jobs.cron(RARELY)
    async def slow() -> None:
        while not stops.is_set():
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)

    trigger(jobs, store, "slow")
    eventually(lambda: [it.state for it in on_record(store, "slow")] == [SlotState.RUNNING])
    stops.set()
    jobs.stop(drain=30)
    assert [it.state for it in on_record(store, "slow")] == [SlotState.OK]


def test_a_stop_just_before_a_coroutine_begins_cancels_it(store: str, jobs: incumbent.Jobs) -> None:
    begins, cancelled = threading.Event(), threading.Event()

    def on_event(event: str, /, **facts: Any) -> None:
        if event == "started":
            assert (background := jobs._background) is not None
            begins.set()
            # As a log that takes a moment: until the stop has looked for the coroutine.
            assert background.stopping.wait(30)
            time.sleep(0.2)

    @jobs.every("1s")
    async def slow() -> None:
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    jobs.start(on_event=on_event)
    assert begins.wait(30)
    assert jobs.stop(drain=0)
    assert cancelled.is_set()


def test_a_run_that_had_not_begun_at_the_stop_gives_its_slot_back(
    store: str, jobs: incumbent.Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a function would begin, and go on after the stop."""
    run, began, claimed = _FunctionRun.run, list[None](), threading.Event()

    def late(self: _FunctionRun) -> int:
        claimed.set()
        assert self._jobs.stopping.wait(30)
        return run(self)

    monkeypatch.setattr(_FunctionRun, "run", late)

    @jobs.cron(RARELY)
    def slow() -> None:
        began.append(None)

    trigger(jobs, store, "slow")
    assert claimed.wait(30)
    jobs.stop(drain=0)
    key, at_some_time = Key("default", "slow"), time.monotonic() + 1e9
    eventually(lambda: not link_for(store).store.read(key, at_some_time).slots)
    assert (began, on_record(store, "slow")) == ([], [])


def test_no_run_begins_by_a_claim_that_is_under_way_at_the_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stop would not wait for it, and end the loop that a coroutine needs."""
    engine, began = FaultyEngine(), list[str]()
    jobs = incumbent.Jobs(engine, ttl=30)
    claims, go, take = list[str](), threading.Event(), engine.faulty.take

    def slow(key: Key, *rest: Any) -> Any:
        outcome = take(key, *rest)
        if key.name in ("one", "two"):
            claims.append(key.name)
            assert go.wait(30)
        return outcome

    monkeypatch.setattr(engine.faulty, "take", slow)

    @jobs.every("1s")
    def one() -> None:
        began.append("one")

    @jobs.every("1s")
    async def two() -> None:
        began.append("two")

    jobs.start()
    background = jobs._background
    eventually(lambda: claims)
    stopping = threading.Thread(target=jobs.stop, args=(30,))
    stopping.start()
    eventually(lambda: background is not None and background.instance.stopped)
    go.set()
    stopping.join()
    # The one claim was given back, and there was no other.
    assert (began, len(claims)) == ([], 1)
    key = Key("default", claims[0])
    eventually(lambda: not engine.faulty.read(key, clock.now() + 30).slots)
    assert not runs_of(engine.faulty.read(key, clock.now() + 30).fields)


def test_a_coroutine_that_awaits_what_was_cancelled_has_failed_and_is_retried(
    store: str, jobs: incumbent.Jobs
) -> None:
    tries = []

    @jobs.cron(RARELY, retries=1, retry_backoff=0.01)
    async def bad() -> None:
        tries.append(1)
        inner = asyncio.ensure_future(asyncio.sleep(9))
        inner.cancel()
        await inner

    trigger(jobs, store, "bad")
    eventually(lambda: [it.state for it in on_record(store, "bad")] == [SlotState.FAILED])
    (run,) = on_record(store, "bad")
    assert (len(tries), run.attempt) == (2, 2)
    assert "CancelledError" in run.why
    assert "await inner" in run.output


@pytest.mark.parametrize("kind", [concurrent.futures.CancelledError, asyncio.CancelledError])
def test_a_function_that_met_a_cancelled_future_has_failed_and_is_retried(
    store: str, jobs: incumbent.Jobs, kind: type[BaseException]
) -> None:
    tries = []

    @jobs.cron(RARELY, retries=1, retry_backoff=0.01)
    def bad() -> None:
        tries.append(1)
        raise kind

    trigger(jobs, store, "bad")
    eventually(lambda: [it.state for it in on_record(store, "bad")] == [SlotState.FAILED])
    assert len(tries) == 2
    assert "CancelledError" in on_record(store, "bad")[0].why


def test_a_coroutine_that_its_ending_loop_cancels_is_no_lost_lease(
    store: str, jobs: incumbent.Jobs
) -> None:
    began: list[asyncio.Event] = []

    @jobs.cron(RARELY, retries=1)
    async def hangs() -> None:
        began[0].set()
        await asyncio.sleep(60)

    async def main() -> None:
        began.append(asyncio.Event())
        trigger(jobs, store, "hangs")
        await began[0].wait()

    asyncio.run(main())
    eventually(lambda: [it.state for it in on_record(store, "hangs")] == [SlotState.LOST])
    assert "the application cancelled" in on_record(store, "hangs")[0].why


def test_an_exception_is_a_failure_and_is_retried(store: str, jobs: incumbent.Jobs) -> None:
    tries = []

    @jobs.cron(RARELY, retries=2, retry_backoff=0.01)
    def bad() -> None:
        tries.append(1)
        raise ValueError("no")

    trigger(jobs, store, "bad")
    eventually(lambda: [it.state for it in on_record(store, "bad")] == [SlotState.FAILED])
    (run,) = on_record(store, "bad")
    assert (len(tries), run.attempt, run.why) == (3, 3, "ValueError: no")
    assert "raise ValueError" in run.output


def test_a_function_that_waits_for_its_retry_is_not_begun_again_once_its_instance_stops(
    store: str, jobs: incumbent.Jobs
) -> None:
    tries = []

    @jobs.cron(RARELY, retries=2, retry_backoff=60)
    def bad() -> None:
        tries.append(1)
        raise ValueError("no")

    trigger(jobs, store, "bad")
    eventually(lambda: [it.state for it in on_record(store, "bad")] == [SlotState.WAITING])
    jobs.stop(drain=0)
    assert [it.state for it in on_record(store, "bad")] == [SlotState.LOST]
    assert len(tries) == 1


def test_a_run_that_tries_again_does_not_say_why_the_try_before_failed(
    store: str, jobs: incumbent.Jobs
) -> None:
    shown = []

    @jobs.cron(RARELY, retries=1, retry_backoff=0.01)
    def flaky() -> None:
        (run,) = on_record(store, "flaky")
        shown.append((run.attempt, run.state, run.why, run.code))
        if run.attempt == 1:
            raise ValueError("no")

    trigger(jobs, store, "flaky")
    eventually(lambda: [it.state for it in on_record(store, "flaky")] == [SlotState.OK])
    assert shown[-1] == (2, SlotState.RUNNING, "", None)


def trigger(
    jobs: incumbent.Jobs, store: str, job: str, who: str = "test", reason: str = ""
) -> None:
    from incumbent.cron.fleet import CONTROL, encode

    jobs.start()
    eventually(lambda: "job" in field_names(store, job))
    value = encode(job=job, when=time.time(), who=who, reason=reason)
    link_for(store).store.put(Key("default", CONTROL), "trigger/t1", value, None, 1e9)


def field_names(store: str, job: str) -> set[str]:
    return set(link_for(store).store.read(Key("default", job), 1e9).fields)


def test_work_that_outlived_its_lease_is_not_recorded_as_ok(
    store: str, jobs: incumbent.Jobs
) -> None:
    heard = threading.Event()

    @jobs.cron(RARELY, at_most_for=0.2)
    def hangs(run: incumbent.JobRun) -> None:
        try:
            while True:
                time.sleep(0.02)
                run.check()
        except LeaseLost:
            heard.set()

    trigger(jobs, store, "hangs")
    assert heard.wait(30)
    eventually(lambda: [it.state for it in on_record(store, "hangs")] == [SlotState.TIMED_OUT])


@pytest.mark.parametrize(
    ("raised", "state"),
    [
        (ExceptionGroup("of tasks", [LeaseLost("too little", name="tick")]), SlotState.LOST),
        (LeaseLost("too little", name="of the work"), SlotState.WAITING),
    ],
)
def test_a_group_of_losses_is_a_loss_and_the_loss_of_another_lease_a_failure(
    store: str, jobs: incumbent.Jobs, raised: Exception, state: SlotState
) -> None:
    @jobs.cron(RARELY, retries=2, retry_backoff=60)
    def tick() -> None:
        raise raised

    trigger(jobs, store, "tick")
    eventually(lambda: [it.state for it in on_record(store, "tick")] == [state])
    assert "too little" in on_record(store, "tick")[0].why


def test_the_ledger_knows_what_the_jobs_are(store: str, jobs: incumbent.Jobs) -> None:
    @jobs.cron("30 5 * * *", tz="Europe/Berlin", at_most_for=300, catch_up="last")
    def nightly() -> None:
        pass

    jobs.start()
    eventually(lambda: "job" in field_names(store, "nightly"))
    facts = read_job(link_for(store).store.read(Key("default", "nightly"), 1e9).fields)
    assert facts["schedule"] == "30 5 * * * (Europe/Berlin)"
    assert (facts["at_most_for"], facts["catch_up"]) == (300, "last")


def test_names_default_to_the_functions_and_a_second_one_is_refused(store: str) -> None:
    jobs = incumbent.Jobs(store)

    @jobs.every(5)
    def one() -> None:
        pass

    with pytest.raises(ConfigError, match=r"there is a job 'one' already, from .*test_jobs\.py"):
        jobs.every(5, name="one")(print)
    assert [spec.name for spec in jobs.specs] == ["one"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"at_most_fro": 5}, "unknown setting 'at_most_fro'"),
        ({"at_least_for": 9, "at_most_for": 5}, "at_least_for=9s is above at_most_for=5s"),
        ({"catch_up": "some"}, "catch_up='some': one of no, last, all"),
        ({"retries": -1}, "retries: a whole number"),
        ({"name": "@x"}, "names that begin with @"),
        ({"name": "a b"}, "is not a name"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(
    store: str, settings: dict[str, Any], said: str
) -> None:
    jobs = incumbent.Jobs(store)
    with pytest.raises(ConfigError, match=said):
        jobs.every(5, **settings)(test_a_setting_that_cannot_work_is_refused)
        jobs.start()


def test_settings_that_cannot_work_are_refused_before_descriptors_are_open(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Instance] = []
    monkeypatch.setattr(Instance, "__init__", lambda it, *_, **__: made.append(it))
    jobs = incumbent.Jobs(store, ttl=-1)
    jobs.every("1s", name="tick")(lambda: None)
    with pytest.raises(ConfigError):
        jobs.start()
    assert not made


def test_a_schedule_that_cannot_work_is_refused(store: str) -> None:
    jobs = incumbent.Jobs(store)
    with pytest.raises(ConfigError):
        jobs.cron("0 0 30 2 *")
    with pytest.raises(ConfigError):
        jobs.cron("0 0 * * *", tz="Europe/Berlln")
    with pytest.raises(ConfigError, match="there are no jobs"):
        jobs.start()


def test_jobs_that_run_take_no_more(store: str, jobs: incumbent.Jobs) -> None:
    jobs.every("1h", name="one")(print)
    jobs.start()
    with pytest.raises(Misuse):
        jobs.every("1h", name="two")
    with pytest.raises(Misuse):
        jobs.start()


# -- @once -----------------------------------------------------------------------------------------


def test_once_is_on_record(store: str) -> None:
    @incumbent.once("nightly", per="1h", store=store)
    def build() -> int:
        return 1

    assert [build(), build()] == [1, None]
    (run,) = on_record(store, "nightly")
    assert (run.state, run.slot[:5]) == (SlotState.OK, "once/")


def test_a_failure_of_once_is_on_record_and_still_raised(store: str) -> None:
    @incumbent.once("nightly", per="1h", store=store)
    async def build() -> None:
        raise KeyError("gone")

    with pytest.raises(KeyError):
        asyncio.run(build())
    (run,) = on_record(store, "nightly")
    assert (run.state, run.why) == (SlotState.FAILED, "KeyError: 'gone'")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_start_that_cannot_be_put_on_record_gives_the_slot_back(
    store: str, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    ran = []

    @incumbent.once("nightly", per="1h", store=store)
    def build() -> None:
        ran.append(1)

    @incumbent.once("nightly", per="1h", store=store)
    async def build_async() -> None:
        ran.append(1)

    def call() -> None:
        if is_async:
            asyncio.run(build_async())
        else:
            build()

    async def fails(*_: object) -> bool:
        raise incumbent.StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr("incumbent.cron.ledger.Ledger.create", fails)
        with pytest.raises(incumbent.StoreUnavailable):
            call()
    call()
    assert ran == [1]


def ended_by_itself(store: str, job: str) -> list[SlotRecord]:
    """Its runs; on a busy machine a slot may be missed, or skipped."""
    return [it for it in on_record(store, job) if it.state in (SlotState.OK, SlotState.FAILED)]


def test_a_function_that_calls_exit_ends_its_own_run_and_nothing_else(
    store: str, jobs: incumbent.Jobs
) -> None:
    exits: dict[str, tuple[Any, SlotState, int]] = {
        "nothing": (None, SlotState.OK, 0),
        "zero": (0, SlotState.OK, 0),
        "three": (3, SlotState.FAILED, 3),
        "text": ("no", SlotState.FAILED, 1),
    }

    def add(name: str, code: Any) -> None:
        @jobs.every("1s", name=name)
        def leaves() -> None:
            sys.exit(code)

        @jobs.every("1s", name=f"{name}-aio")
        async def leaves_too() -> None:
            sys.exit(code)

    for name, (code, _, _) in exits.items():
        add(name, code)
    jobs.start()
    names = {f"{name}{kind}": exits[name] for name in exits for kind in ("", "-aio")}
    for name, (_, state, noted) in names.items():
        # A second run says that the loop, and the thread, are still there.
        eventually(lambda it=name: len(ended_by_itself(store, it)) >= 2)  # type: ignore[misc]
        first = ended_by_itself(store, name)[0]
        assert (first.state, first.code) == (state, noted)


def test_who_asked_for_a_run_and_who_cancelled_it_is_on_record(
    store: str, jobs: incumbent.Jobs
) -> None:
    begun = threading.Event()

    @jobs.cron(RARELY)
    def tick(run: incumbent.JobRun) -> None:
        begun.set()
        while True:
            run.check()
            time.sleep(0.02)

    trigger(jobs, store, "tick", "alice", "late data")
    assert begun.wait(30)
    ledger, key = link_for(store).store, Key("default", "tick")
    (holding,) = ledger.read(key, clock.now() + 30).holdings
    notice = notice_to(holding, who="bob", reason="wrong data", kind=BREAK)
    ledger.put(key, RESIGN, notice, None, clock.now() + 30)
    eventually(lambda: [it.state for it in on_record(store, "tick")] == [SlotState.FAILED])
    (run,) = on_record(store, "tick")
    assert run.triggered_by == "alice (late data)"
    assert run.why.endswith("asked to stop by bob (wrong data)")


def test_an_event_loop_goes_on_while_the_store_is_asked_for_the_first_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("incumbent.cron.jobs._BEGIN_WITHIN", 1.5)
    jobs = incumbent.Jobs(f"redis://127.0.0.1:{free_port()}")

    @jobs.every("1h")
    async def never() -> None: ...

    async def main() -> int:
        turns = 0

        async def other_requests() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.02)
                turns += 1

        beside = asyncio.create_task(other_requests())
        async with jobs:
            seen = turns
        beside.cancel()
        return seen

    assert asyncio.run(main()) >= 3


@pytest.mark.parametrize(("slots", "fields"), [(False, True), (True, False)])
def test_what_needs_a_ledger_claims_nothing_on_a_store_without_one(
    monkeypatch: pytest.MonkeyPatch, *, slots: bool, fields: bool
) -> None:
    engine = MemoryEngine()
    monkeypatch.setattr(engine, "capabilities", Capabilities(slots=slots, fields=fields))
    ran = []
    jobs = incumbent.Jobs(store=engine)
    jobs.every("1s", name="job")(lambda: ran.append(1))
    lacks = "no fields" if slots else "no slots"
    with pytest.raises(incumbent.ConfigError, match=f"this store has {lacks}; use sqlite:"):
        jobs.start()

    @incumbent.once("nightly", per="1h", store=engine)
    def build() -> None:
        ran.append(1)

    @incumbent.once("nightly", per="1h", store=engine)
    async def build_async() -> None:
        ran.append(1)

    with pytest.raises(incumbent.ConfigError, match=f"this store has {lacks}; use sqlite:"):
        build()
    with pytest.raises(incumbent.ConfigError, match=f"this store has {lacks}; use sqlite:"):
        asyncio.run(build_async())
    assert not ran
    assert engine.store().scan("default", "", clock.now() + 30) == ()


def test_a_function_whose_record_was_removed_is_lost_on_record_within_a_ttl(store: str) -> None:
    jobs = incumbent.Jobs(store, ttl=4, grace=0.5)

    @jobs.cron(RARELY)
    def works_on(run: incumbent.JobRun) -> None:
        while run.remaining:
            time.sleep(0.01)

    trigger(jobs, store, "works_on")
    eventually(lambda: [it.state for it in on_record(store, "works_on")] == [SlotState.RUNNING])
    key, table = Key("default", "works_on"), link_for(store).store
    (holding,) = table.read(key, clock.now() + 30).holdings
    table.give(key, holding.claim, holding.token, clock.now() + 30)
    eventually(
        lambda: [it.state for it in on_record(store, "works_on")] == [SlotState.LOST], within=15
    )
    jobs.stop()


def test_a_slot_that_has_had_its_turn_closes_nothing_and_runs_nothing(store: str) -> None:
    link, key, ran = link_for(store), Key("default", "job"), []
    spec = JobSpec(
        name="job", schedule=Every(60), call=lambda: ran.append(1), at_least_for=60, at_most_for=90
    )
    link.store.put(key, PRUNED, b"[[0, 2e9]]", None, clock.now() + 30)
    lock: LockSettings = {"holder": "me"}
    launcher = Background([spec], link, "default", lock, lambda *_, **__: None, None)
    slot = JobSlot.at(1e9)
    held = launcher.claim(spec, slot)
    assert isinstance(held, Claim)
    launcher.launch(spec, slot, held)
    eventually(lambda: launcher.runs.ended == [("job", slot, ALREADY_RECORDED)])
    launcher.instance.close()
    record = link.store.read(key, clock.now() + 30)
    assert (record.holdings, record.closed_for, ran) == ((), 0.0, [])
