"""A pytest plugin that writes down what each case sends; `python -m tests.recorded` loads it."""

from __future__ import annotations

import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from incumbent.testing.contract import crowds, processes, races
from incumbent.testing.contract.bench import Bench
from tests.recorded.normal import normal
from tests.recorded.wire import cut
from tests.support.proxy import FaultProxy

ENGINE, FOLDER, ONLY = "RECORDED_ENGINE", "RECORDED_FOLDER", "RECORDED_ONLY"
"""Of the environment: what is recorded, where to, and (optional) the cases to run, one a line."""

_CROWDS = (
    *(races.RaceCases, crowds.CrowdCases),
    *(processes.ClockCases, processes.ForkCases),
    *(processes.InterruptionCases, processes.SlowNameCases),
)
"""What they send is in other cases as well; timing, and other processes, make it differ."""
_FAILED = pytest.StashKey[bool]()
_races: list[str] = []
"""How the case sent requests from several threads or tasks at once: chance decides on them."""
_engine = os.environ.get(ENGINE, "")
_sent: dict[object, bytearray] = defaultdict(bytearray)
_statements: list[str] = []


def _hear(connection: object, chunk: bytes) -> None:
    _sent[connection] += chunk


def _connect(*args: Any, _real: Any = sqlite3.connect, **options: Any) -> sqlite3.Connection:
    connection: sqlite3.Connection = _real(*args, **options)
    connection.set_trace_callback(lambda said: _statements.append(" ".join(said.split())))
    return connection


def _noting_races(method: Callable[..., Any]) -> Callable[..., Any]:
    def noting(*args: Any, **options: Any) -> Any:
        _races.append(method.__name__)
        return method(*args, **options)

    return noting


def pytest_configure() -> None:
    """Listen at the networks of the tests, and at SQLite; note the cases that race."""
    for name in ("contend", "at_once"):
        setattr(Bench, name, _noting_races(getattr(Bench, name)))
    FaultProxy.tap = _hear
    sqlite3.connect = _connect  # type: ignore[assignment]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what was not asked for, and what only says how many requests meet, and when."""
    items[:] = [item for item in items if not _is_of_a_crowd(item)]
    if only := os.environ.get(ONLY):
        wanted = set(only.splitlines())
        items[:] = [item for item in items if _case(item) in wanted]


def _is_of_a_crowd(item: pytest.Item) -> bool:
    return any(hasattr(cases, getattr(item, "originalname", item.name)) for cases in _CROWDS)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """What a case sends that fails is no matter."""
    report = yield
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """One line for a case, in a file of this process."""
    _races.clear()
    _sent.clear()
    _statements.clear()
    result = yield
    if item.stash[_FAILED] or _races:
        return result
    streams = [bytes(stream) for stream in list(_sent.values())]
    requests = {normal(one) for stream in streams for one in cut(_engine, stream)}
    requests |= {normal(one) for one in _statements}
    with (Path(os.environ[FOLDER]) / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(json.dumps([_case(item), sorted(requests)]) + "\n")
    return result


def _case(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[2].replace("::test_", " ").replace("\n", " ")
