"""A hundred and fifty clients that join one line at once ask for at most three things each."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from incumbent.errors import StoreError
from incumbent.model import Ask, Granted, Key, Queue, Queued, TakeOutcome
from incumbent.stores.deciding import Deciding
from incumbent.stores.plan import Program
from incumbent.stores.register_store import RegisterStore
from incumbent.stores.registers import Join, Load, Quick, Swaps
from incumbent.testing.contract.sides import until
from tests import tiers
from tests.rules.registers import DictRegisters

TEMPLATE = Path(__file__).resolve().parents[2] / "examples" / "store_template" / "src"
CLIENTS, FEWER, MOST = 150, 50, 3
KEY = Key("default", "job")
IN_LINE = Ask(10.0, "one of many", queue=Queue(60.0, fair=True))
PATIENCE = 120.0


def _answer(registers: DictRegisters, request: Any) -> Any:
    match request:
        case Load(wanted):
            return registers.load(wanted, 0.0)
        case Swaps(swaps):
            return registers.swap(swaps, 0.0)
        case Join():
            return registers.join(request, 0.0)
    raise AssertionError(request)


def _in_step(
    registers: DictRegisters, programs: Sequence[Program[TakeOutcome]]
) -> list[tuple[int, TakeOutcome | StoreError]]:
    """Each has one request at a time carried out, all in turn: how many, and the outcome."""
    waiting = [(at, program, next(program), 1) for at, program in enumerate(programs)]
    done: dict[int, tuple[int, TakeOutcome | StoreError]] = {}
    while waiting:
        replies = [_answer(registers, request) for _, _, request, _ in waiting]
        going_on = []
        for (at, program, _, asked), reply in zip(waiting, replies, strict=True):
            try:
                going_on.append((at, program, program.send(reply), asked + 1))
            except StopIteration as end:
                done[at] = asked, end.value
            except StoreError as error:
                done[at] = asked, error
        waiting = going_on
    return [done[at] for at in range(len(programs))]


def _crowd(quick: Quick) -> list[tuple[int, TakeOutcome | StoreError]]:
    registers = DictRegisters()
    deciding = Deciding("dict:", 0.0, quick)
    holder = RegisterStore(registers, deciding).take(KEY, "holder", Ask(60.0, "holder"), until())
    assert isinstance(holder, Granted)
    plans = [deciding.take(KEY, f"c{at}", IN_LINE) for at in range(CLIENTS)]
    return _in_step(registers, [plan.start(None, 0.0) for plan in plans])


def test_all_who_read_the_same_record_join_by_one_more_request() -> None:
    found = _crowd(Quick(join=True))
    assert max(asked for asked, _ in found) <= MOST
    places = [outcome.place for _, outcome in found if isinstance(outcome, Queued)]
    assert sorted(places) == list(range(CLIENTS))


def test_without_a_join_they_refuse_each_other_a_bounded_number_of_times() -> None:
    found = _crowd(Quick())
    assert max(asked for asked, _ in found) == 9
    refused = [outcome for _, outcome in found if isinstance(outcome, StoreError)]
    assert len(refused) == CLIENTS - 8
    assert all(error.retry_after for error in refused)


@pytest.mark.left(tiers.LONG, "50")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("clients", [FEWER, CLIENTS])
def test_a_crowd_joins_the_line_of_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clients: int
) -> None:
    monkeypatch.syspath_prepend(str(TEMPLATE))
    from incumbent_directory import DirectoryEngine
    from incumbent_directory.registers import Registers, this_host

    class Counting(Registers):
        requests = 0

        def load(self, wanted: Any, until: float) -> Any:
            self.requests += 1
            return super().load(wanted, until)

        def swap(self, swaps: Any, until: float) -> Any:
            self.requests += 1
            return super().swap(swaps, until)

        def join(self, request: Any, until: float) -> Any:
            self.requests += 1
            return super().join(request, until)

    assert isinstance(
        DirectoryEngine(tmp_path).store().take(KEY, "holder", Ask(600.0, "holder"), until()),
        Granted,
    )
    together = Barrier(clients)

    def join(at: int) -> tuple[int, TakeOutcome]:
        registers = Counting(tmp_path, this_host)
        store = RegisterStore(registers, Deciding("directory:", 0.0, Quick(join=True)))
        # The first take of a client tries whether conditional writes hold.
        store.take(Key("default", f"of{at}"), "claim", Ask(1.0, "me"), until() + PATIENCE)
        before = registers.requests
        together.wait(PATIENCE)
        outcome = store.take(KEY, f"c{at}", IN_LINE, until() + PATIENCE)
        return registers.requests - before, outcome

    with ThreadPoolExecutor(clients) as pool:
        found = list(pool.map(join, range(clients)))
    assert max(asked for asked, _ in found) <= MOST
    assert sorted(it.place for _, it in found if isinstance(it, Queued)) == list(range(clients))
