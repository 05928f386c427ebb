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


def fields(record: logging.LogRecord, *names: str) -> list[object]:
    return [getattr(record, name) for name in names]


def test_a_lease_without_waiting_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "incumbent")
    incumbent.Lock("x", store=FaultyEngine()).acquire().release()
    assert caplog.records == []


def test_who_waited_says_for_how_long(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "incumbent")
    engine = FaultyEngine()
    lease = incumbent.Lock("x", store=engine, holder="one").acquire()
    got: list[int] = []

    def wait() -> None:
        with incumbent.Lock("x", store=engine, holder="two").acquire() as mine:
            got.append(mine.fencing_token)

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: engine.faulty.calls["take"] >= 2)
    lease.release()
    thread.join()
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert record.getMessage().startswith("x: acquired after ")
    assert fields(record, "lease", "holder", "token") == ["x", "two", got[0]]
    assert getattr(record, "waited") > 0  # noqa: B009 - logging declares no fields of ours


def test_a_term_says_when_it_begins_and_how_it_ended(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "incumbent")
    election = incumbent.Election("switch-7", store=FaultyEngine(), holder="one")
    with election.lead() as term:
        number = term.number
    eventually(lambda: len(caplog.records) == 2)
    elected, ended = caplog.records
    assert elected.getMessage() == f"switch-7: elected, term {number}"
    assert ended.getMessage() == f"switch-7: term {number} ended"
    assert fields(elected, "lease", "holder", "token") == ["switch-7", "one", number]
    assert fields(ended, "token", "reason") == [number, ""]


def test_a_lost_term_says_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "incumbent")
    engine = FaultyEngine()
    term = incumbent.Election("switch-7", store=engine).campaign()
    term._held.machine.gone("taken")
    term._link.keeper.disarm(term._held)
    eventually(lambda: len(caplog.records) == 2)
    assert caplog.records[1].getMessage() == f"switch-7: term {term.number} ended: taken"
    assert fields(caplog.records[1], "reason") == ["taken"]


def test_a_failed_job_of_python_leaves_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    jobs = incumbent.Jobs(store=MemoryEngine(next(NAMES)))

    @jobs.every(1)
    def bill() -> None:
        raise ValueError("no such invoice")

    def errors() -> list[logging.LogRecord]:
        return [record for record in caplog.records if record.levelno == logging.ERROR]

    with jobs:
        eventually(errors)
    record = errors()[0]
    assert record.name == "incumbent.jobs"
    assert fields(record, "job") == ["bill"]
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)
    assert 'raise ValueError("no such invoice")' in caplog.text
