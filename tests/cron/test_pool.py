"""Which workers are forked, and when."""

from __future__ import annotations

import select
import socket

import pytest

from incumbent import clock
from incumbent.cron.runs import Task
from incumbent.cron.zygote import Pool, Worker


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
        made.append(Worker(1000 + len(made), ours, None, comes_up=task is None))
        return made[-1]

    pool = Pool(fork, lambda *_: None, select.poll())
    pool.stand_by(1, 1)
    assert pool.prepare() is None
    if first == "its channel":
        ends[0].close()
        pool.receive(made[0].channel.fileno())
    pool._ended(made[0], -9)
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
