"""One situation of many workers: what each of them tells, and what is true of all."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import suppress

import pytest

from incumbent import clock, metrics
from incumbent.locks.lock import Lock
from incumbent.meters import Sample
from incumbent.serve.situation import Situation
from incumbent.serve.workers import Workers, report_end, reporting
from tests.support.faulty import FaultyEngine
from tests.support.waiting import eventually


@pytest.fixture
def channel() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, its:
        yield ours, its


@pytest.fixture
def workers(channel: tuple[socket.socket, socket.socket]) -> Workers:
    return Workers("job", "node-1", channel[0], ttl=15)


@pytest.fixture
def its(channel: tuple[socket.socket, socket.socket]) -> socket.socket:
    return channel[1]


def heard(workers: Workers) -> bool:
    workers.receive()
    return True


def told(workers: Workers, number: int) -> bool:
    """Whether that worker has reported."""
    workers.receive()
    return f'worker="w{number}"' in metrics.text(workers)


def one(number: int) -> Situation:
    return Situation("job", f"node-1:w{number}", is_candidate=True)


def test_before_the_first_report_nothing_is_ready(workers: Workers) -> None:
    view = workers.view()
    assert (view.ready, view.healthy, view.leading) == (False, True, False)


def test_one_worker_that_leads_makes_a_leader_of_all(workers: Workers, its: socket.socket) -> None:
    lease = Lock("job", store=FaultyEngine(), holder="node-1:w2").acquire()
    first, second = one(1), one(2)
    first.note_answered()
    first.note_standby("node-1:w2")
    second.note_leading(lease)
    with reporting(first, 0, its), reporting(second, 1, its):
        eventually(lambda: told(workers, 1) and told(workers, 2))
        view = workers.view()
        assert (view.name, view.holder, view.leader) == ("job", "node-1", "node-1:w2")
        assert (view.role, view.ready, view.term) == ("leading", True, lease.fencing_token)
        text = metrics.text(workers)
        assert 'incumbent_is_leader{worker="w2",name="job"} 1\n' in text
        assert 'incumbent_is_leader{worker="w1",name="job"} 0\n' in text
    lease.release()


def test_what_was_proved_is_believed_no_longer_than_that(
    workers: Workers, its: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = Lock("job", store=FaultyEngine(), ttl=15).acquire()
    situation = one(1)
    situation.note_leading(lease)
    with reporting(situation, 0, its):
        eventually(lambda: heard(workers) and workers.view().leading)
        proved, real = workers.view().proven_for, clock.now
        assert 0 < proved <= 15
        monkeypatch.setattr(clock, "now", lambda: real() + proved)
        assert not workers.view().leading
        monkeypatch.undo()
    lease.release()


def test_one_hanging_worker_makes_all_of_it_unhealthy(workers: Workers, its: socket.socket) -> None:
    good, bad = one(1), one(2)
    bad.pulse(clock.now() - 60)
    with reporting(good, 0, its), reporting(bad, 1, its):
        eventually(lambda: heard(workers) and not workers.view().healthy)
        bad.pulse(clock.now() + 60)
        bad.note_answered()
        eventually(lambda: heard(workers) and workers.view().healthy)


def test_a_silent_worker_hangs_and_one_that_is_gone_does_not(
    workers: Workers, its: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reporting(one(1), 0, its):
        eventually(lambda: heard(workers) and workers._reports)
        real = clock.now
        workers.pulse(real() + 100)
        monkeypatch.setattr(clock, "now", lambda: real() + 31)
        assert not workers.view().healthy
        report_end(its, 0)
        workers.receive()
        assert workers.view().healthy
        monkeypatch.undo()


def test_the_end_of_a_worker_is_told_with_its_last_word(
    workers: Workers, its: socket.socket
) -> None:
    with reporting(one(1), 0, its):
        eventually(lambda: heard(workers) and workers._reports)
    workers.receive()
    assert not workers._reports


class _Verbose(Situation):
    """A worker with so many metrics that no datagram has room for them."""

    series = 5000

    def samples(self) -> Iterator[Sample]:
        for number in range(self.series):
            yield Sample("incumbent_term", (("name", f"a-rather-long-name-{number}"),), number)


def test_a_report_that_is_too_long_comes_without_its_metrics(
    workers: Workers, its: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    situation = _Verbose("job", "node-1:w1")
    with caplog.at_level(logging.WARNING, "incumbent"), reporting(situation, 0, its):
        eventually(lambda: heard(workers) and workers._reports)
        situation.note_answered()
        eventually(lambda: heard(workers) and workers.view().store_up)
        assert not list(workers.samples())
        situation.series = 1
        situation.note_unanswered()
        eventually(lambda: told(workers, 1))
    assert caplog.text.count("too many metrics for a report") == 1


def test_a_report_that_would_arrive_cut_off_is_not_sent(
    workers: Workers, its: socket.socket
) -> None:
    """Where the system allows longer datagrams than we read."""
    wide = 1 << 21
    for option in (socket.SO_SNDBUF, getattr(socket, "SO_SNDBUFFORCE", socket.SO_SNDBUF)):
        with suppress(OSError):
            its.setsockopt(socket.SOL_SOCKET, option, wide)
    if its.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) < wide:
        pytest.skip("longer datagrams need root here")
    with reporting(_Verbose("job", "node-1:w1"), 0, its):
        eventually(lambda: heard(workers) and workers._reports)


def test_when_the_leader_ends_nobody_leads(workers: Workers, its: socket.socket) -> None:
    lease = Lock("job", store=FaultyEngine(), holder="node-1:w2").acquire()
    leads = one(1)
    leads.note_leading(lease)
    with reporting(leads, 0, its):
        eventually(lambda: heard(workers) and workers.view().role == "leading")
        report_end(its, 0)
        workers.receive()
        assert (workers.view().role, workers.view().leading) == ("ended", False)
    lease.release()
