"""What the library says to `logging`: when, and with which fields."""

from __future__ import annotations

import itertools
import logging
import threading

import pytest

import incumbent
from incumbent.stores.memory import MemoryEngine
from tests.support.faulty import FaultyEngine
from tests.support.waiting import eventually

NAMES = (f"memory:logging{number}" for number in itertools.count())


def said(caplog: pytest.LogCaptureFixture, lease: str) -> list[logging.LogRecord]:
    """About this lease: threads of other tests may log too."""
    return [record for record in caplog.records if getattr(record, "lease", "") == lease]


def fields(record: logging.LogRecord, *names: str) -> list[object]:
    return [getattr(record, name) for name in names]


def test_a_lease_without_waiting_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "incumbent")
    incumbent.Lock("at-once", store=FaultyEngine()).acquire().release()
    assert said(caplog, "at-once") == []


def test_who_waited_says_for_how_long(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "incumbent")
    engine = FaultyEngine()
    lease = incumbent.Lock("waited", store=engine, holder="one").acquire()
    got: list[int] = []

    def wait() -> None:
        with incumbent.Lock("waited", store=engine, holder="two").acquire() as mine:
            got.append(mine.fencing_token)

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: engine.faulty.calls["take"] >= 2)
    lease.release()
    thread.join()
    (record,) = said(caplog, "waited")
    assert record.levelno == logging.INFO
    assert record.getMessage().startswith("waited: acquired after ")
    assert fields(record, "lease", "holder", "token") == ["waited", "two", got[0]]
    assert getattr(record, "waited") > 0  # noqa: B009 - logging declares no fields of ours


def test_a_term_says_when_it_begins_and_how_it_ended(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "incumbent")
    election = incumbent.Election("elected", store=FaultyEngine(), holder="one")
    with election.lead() as term:
        number = term.number
    eventually(lambda: len(said(caplog, "elected")) == 2)
    elected, ended = said(caplog, "elected")
    assert elected.getMessage() == f"elected: elected, term {number}"
    assert ended.getMessage() == f"elected: term {number} ended"
    assert fields(elected, "lease", "holder", "token") == ["elected", "one", number]
    assert fields(ended, "token", "reason") == [number, ""]


def test_a_lost_term_says_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "incumbent")
    engine = FaultyEngine()
    term = incumbent.Election("lost", store=engine).campaign()
    term._claim.machine.note_gone("taken")
    term._link.keeper.disarm(term._claim)
    eventually(lambda: len(said(caplog, "lost")) == 2)
    ended = said(caplog, "lost")[1]
    assert ended.getMessage() == f"lost: term {term.number} ended: taken"
    assert fields(ended, "reason") == ["taken"]


class Stuck(logging.Handler):
    """Writes to a pipe that nobody reads: it says of one lease only, and blocks then."""

    def __init__(self, lease: str) -> None:
        super().__init__()
        self.lease, self.over = lease, threading.Event()
        self.blocked, self.passed = threading.Event(), threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "lease", "") == self.lease and "ended" in record.getMessage():
            self.blocked.set()
            self.over.wait(60)
            self.passed.set()


def test_a_log_that_blocks_delays_no_thread_that_tells_of_losses(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "incumbent")
    log, stuck = logging.getLogger("incumbent"), Stuck("stuck")
    term = incumbent.Election("stuck", store=FaultyEngine()).campaign()
    log.addHandler(stuck)
    try:
        term._claim.machine.note_gone("taken")
        term._link.keeper.disarm(term._claim)
        assert not stuck.passed.is_set()
        assert stuck.blocked.wait(60)
    finally:
        stuck.over.set()
        log.removeHandler(stuck)


@pytest.mark.usefixtures("looks_often")
def test_a_failed_job_of_python_leaves_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    jobs = incumbent.Jobs(store=MemoryEngine(next(NAMES)))

    @jobs.every(1)
    def bill() -> None:
        raise ValueError("no such invoice")

    def errors() -> list[logging.LogRecord]:
        failed = (it for it in caplog.records if getattr(it, "job", "") == "bill")
        return [record for record in failed if record.levelno == logging.ERROR]

    with jobs:
        eventually(errors)
    record = errors()[0]
    assert record.name == "incumbent.jobs"
    assert fields(record, "job") == ["bill"]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)
    assert 'raise ValueError("no such invoice")' in caplog.text
