"""How many runs there may be here, how many workers stand by, and when they are forked."""

from __future__ import annotations

import select
import socket
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from incumbent import clock
from incumbent.cron.agenda import Agenda, ClaimOrder, Dispatcher
from incumbent.cron.fleet import PRESENCE, UP, encode
from incumbent.cron.instance import Capacity
from incumbent.cron.runs import GAVE_BACK, LEAVES, NOT_BEGUN, STARTED, Task
from incumbent.cron.schedule import Every
from incumbent.cron.spec import JobSlot, JobSpec
from incumbent.cron.worker import Inbox
from incumbent.cron.zygote import Worker, WorkerPool, _ZygoteLoop
from incumbent.errors import StoreUnavailable
from incumbent.model import Key
from incumbent.runtime.link import new_link

WALL = 1_800_000_000.0


def agenda(count: int, every: float = 60.0) -> Agenda:
    specs = [JobSpec(name=f"j{it}", schedule=Every(every)) for it in range(count)]
    specs += [JobSpec(name=f"later{it}", schedule=Every(86_400.0)) for it in range(count)]
    return Agenda(specs, WALL + 1)


@pytest.mark.parametrize(("most", "found"), [(1000, 70), (70, 70), (20, 20), (0, 0)])
def test_jobs_that_are_due_soon_are_counted_without_a_look_at_the_others(
    most: int, found: int
) -> None:
    assert agenda(70).count_until(WALL + 60, most) == found
    assert agenda(70).count_until(WALL + 59, most) == 0
    assert agenda(0).count_until(WALL + 60, most) == 0


def test_what_had_no_room_is_asked_for_again_within_two_seconds_and_together() -> None:
    spec = JobSpec(name="j", schedule=Every(60))
    chances = iter([0.0, 0.999, 0.3, 0.5] * 50)
    it = Dispatcher([spec], Agenda([spec], WALL), lambda: next(chances))
    claim = ClaimOrder(spec, JobSlot.at(WALL))
    wakes = set()
    for _ in range(40):
        it.postpone(claim, 100.1)
        wakes.add(it.next_in(100.1, WALL))
        assert it.orders(102.0, WALL) == [claim]
    assert min(wakes) >= 0.25
    assert max(wakes) <= 1.5
    assert len(wakes) <= 5


@pytest.fixture
def soon() -> Any:
    link = new_link("memory:soon")
    for number in range(5):
        said = encode(since=0.0, seen=clock.wall(), jobs=1)
        until = clock.now() + 30
        link.store.put(Key("n", PRESENCE), f"{UP}i{number}", said, None, until)
    yield Capacity(link, "n")
    link.close()


def test_workers_stand_by_for_the_even_share_and_some_more(soon: Capacity) -> None:
    assert soon.workers(0, 0, 100) == (0, 0)
    # A single run is not worth it.
    assert soon.workers(1, 0, 100) == (0, 0)
    assert soon.workers(40, 0, 100) == (10, 10)
    assert soon.workers(10_000, 0, 100) == (24, 24)
    assert soon.workers(10_000, 0, 7) == (7, 24)


def test_what_waits_for_room_here_keeps_workers(soon: Capacity) -> None:
    assert soon.workers(0, 5, 100) == (5, 5)


def test_idle_workers_stay_for_a_while_after_a_burst(
    soon: Capacity, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = clock.now()
    monkeypatch.setattr("incumbent.cron.instance.clock.now", lambda: now)
    assert soon.workers(40, 0, 100) == (10, 10)
    now += 2.0
    assert soon.workers(0, 0, 100) == (0, 10)
    now += 2.0
    assert soon.workers(0, 0, 100) == (0, 0)


def test_without_an_answer_the_instance_counts_as_the_only_one(
    soon: Capacity, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(key: Key, until: float) -> Any:
        raise StoreUnavailable("no answer")

    monkeypatch.setattr(soon._store, "read", silent)
    assert soon.workers(4, 0, 100) == (5, 5)


@pytest.mark.parametrize("first", ["its end", "its channel"])
def test_one_that_died_before_it_was_prepared_is_replaced_though_nothing_is_heard(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(clock, "now", lambda: now)
    made: list[Worker] = []
    ends: list[socket.socket] = []

    def fork(task: Task | None) -> Worker:
        ours, its = socket.socketpair()
        ends.append(its)
        made.append(Worker(1000 + len(made), ours, None, preparing=task is None))
        return made[-1]

    pool = WorkerPool(fork, lambda *_: None, select.poll())
    pool.stand_by(1, 1)
    assert pool.prepare() is None
    if first == "its channel":
        ends[0].close()
        pool.receive(made[0].channel.fileno())
    pool._after_exit(made[0], -9)
    # Not at once: what makes it die may be there still.
    assert pool.prepare() == 10_000
    now += 9.5
    assert pool.prepare() == 500
    assert len(made) == 1
    now += 0.5
    assert pool.prepare() is None
    assert len(made) == 2
    for one in (*ends, made[1].channel):
        one.close()


def test_a_task_for_which_no_process_can_be_forked_is_reported_as_not_begun() -> None:
    said: list[tuple[str, str, int]] = []
    pool = WorkerPool(lambda _: None, lambda *report: said.append(report), select.poll())
    pool.run_task(cast("Any", SimpleNamespace(key=("job", "slot"))))
    assert said == [("job", "slot", NOT_BEGUN)]


def test_one_that_leaves_after_many_attempts_gets_no_other_task() -> None:
    ours, its = socket.socketpair()
    said: list[int] = []
    made = Worker(1000, ours, ("job", "slot"), preparing=False)
    pool = WorkerPool(lambda _: made, lambda *report: said.append(report[-1]), select.poll())
    pool.run_task(cast("Any", SimpleNamespace(key=("job", "slot"))))
    its.sendall(bytes((*[STARTED] * 100, GAVE_BACK, LEAVES)))
    pool.receive(ours.fileno())
    assert said == [*[STARTED] * 100, GAVE_BACK]
    assert pool.channels == []
    its.close()


def test_reports_that_the_instance_does_not_read_yet_hold_nothing_up() -> None:
    """It may be sending tasks, and wait until these are read: each would wait for the other."""
    ours, its = socket.socketpair()
    loop, poll = cast("Any", object.__new__(_ZygoteLoop)), select.poll()
    poll.register(ours, select.POLLIN)
    loop._channel, loop._poll, loop._connected, loop._unsent = ours, poll, True, bytearray()
    sent = [("job", f"slot-{number}", STARTED) for number in range(2000)]

    def work() -> None:
        for report in sent:
            loop._pass_on(*report)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    # Nothing is lost, and nothing is asked of the poll once all was read.
    inbox, found = Inbox(its), list[Any]()
    while len(found) < len(sent):
        found += inbox.receive()
        if (ours.fileno(), select.POLLOUT) in poll.poll(0):
            loop._send_reports()
    assert found == sent
    assert poll.poll(0) == []
    its.close()
    loop._pass_on(*sent[0])
    assert poll.poll(0) != []
    assert not loop._unsent
    ours.close()
