"""Registers whose conditional writes do not hold are found: by the kit, `doctor` and the suite."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pytest

from incumbent import Lock
from incumbent.errors import StoreUnavailable
from incumbent.model import Ask, Capabilities, Granted, Key
from incumbent.stores.deciding import Deciding
from incumbent.stores.register_store import InlineRegisterStore, RegisterStore, prove
from incumbent.testing.contract import Bench, StoreContract, World
from incumbent.testing.contract.bench import DRIVERS
from incumbent.testing.contract.registers import RegisterCases
from incumbent.testing.contract.sides import until
from incumbent.testing.contract.together import TogetherCases
from tests.rules.registers import DictRegisters

FAULTS = ("comparing", "writes", "reads", "numbers")
ALL_FAULTS = (*FAULTS, "versions", "incarnation", "clock")
TAKE = Key("default", "nightly"), "claim", Ask(10.0, "me")
CAUGHT: dict[str, str] = {
    "comparing": "test_a_write_by_an_old_version_is_refused_with_what_is_there",
    "writes": "test_what_was_written_is_read_by_every_client",
    "reads": "test_what_was_written_is_read_by_every_client",
    "numbers": "test_every_write_makes_another_version",
    "versions": "test_no_version_comes_back_after_a_name_was_forgotten",
    "incarnation": "test_a_write_for_another_incarnation_is_refused",
    "clock": "test_a_write_is_refused_while_the_clock_is_behind_the_one_it_was_decided_by",
}


class DictEngine:
    """See stores.base.Engine: one dict, whose rules can be left out."""

    capabilities = Capabilities(waits="poll", queue=True, refuses_late=True, shared=True)
    url = "dict:"

    def __init__(self, *left_out: str) -> None:
        self.registers = DictRegisters(*left_out)
        deciding = Deciding(self.url, restart_wait=0.0)
        self._store = RegisterStore(self.registers, deciding)
        self._async_store = InlineRegisterStore(self.registers, deciding)

    def store(self) -> RegisterStore:
        return self._store

    def async_store(self) -> InlineRegisterStore:
        return self._async_store

    def diagnose(self, ttl: float, until: float) -> list[tuple[str, str, str]]:
        prove(self.registers, self.url, until)
        return [("ok", "it compares what it should", "")]


class DictWorld(World):
    def __init__(self, engine: DictEngine) -> None:
        super().__init__(engine)
        self._registers = engine.registers

    def registers(self) -> DictRegisters:
        return self._registers

    def pass_time(self, seconds: float) -> None:
        self._registers.pass_time(seconds)


class TestDict(StoreContract):
    capabilities = DictEngine.capabilities
    hooks = frozenset({"registers"})
    only = frozenset({"registers"})

    @pytest.fixture
    def world(self) -> DictWorld:
        return DictWorld(DictEngine())


@contextmanager
def _bench(*left_out: str) -> Iterator[Bench]:
    world = DictWorld(DictEngine(*left_out))
    with closing(Bench(world, DRIVERS["blocking"], ttl=0.5)) as bench:
        yield bench


@pytest.mark.parametrize("fault", ALL_FAULTS)
def test_the_suite_catches_each_fault_of_registers(fault: str) -> None:
    with _bench(fault) as bench, pytest.raises(AssertionError):
        getattr(RegisterCases(), CAUGHT[fault])(bench)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_take_finds_that_conditional_writes_do_not_hold(fault: str) -> None:
    engine = DictEngine(fault)
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="granted the same lease") as refused:
            Lock("nightly", store=engine).acquire(timeout=0)
        assert refused.value.permanent
    assert not [key for key in engine.registers.rows if key.name == "nightly"]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_take_finds_it_on_the_asyncio_side_too(fault: str) -> None:
    take = DictEngine(fault).async_store().take(*TAKE, until())
    with pytest.raises(StoreUnavailable, match="granted the same lease"):
        asyncio.run(take)


@pytest.mark.parametrize("fault", FAULTS)
def test_doctor_finds_that_conditional_writes_do_not_hold(fault: str) -> None:
    with pytest.raises(StoreUnavailable, match="granted the same lease"):
        DictEngine(fault).diagnose(15.0, until())


def test_registers_that_hold_are_tried_once() -> None:
    engine = DictEngine()
    store, requests = engine.store(), list[int]()
    for _ in range(2):
        before = engine.registers.requests
        granted = store.take(*TAKE, until())
        assert isinstance(granted, Granted)
        requests.append(engine.registers.requests - before)
    assert requests[1] == 2 < requests[0]


# -- several leases at once ------------------------------------------------------------------------


def in_another_order(outcomes: list[Any], asked: Sequence[Any]) -> list[Any]:
    return outcomes[::-1]


def only_the_first(outcomes: list[Any], asked: Sequence[Any]) -> list[Any]:
    return [outcomes[0]] * len(asked)


def granted_whatever_others_hold(outcomes: list[Any], asked: Sequence[Any]) -> list[Any]:
    return [Granted(it.claim, at + 1, 60.0, "first") for at, it in enumerate(asked)]


@pytest.mark.parametrize(
    ("bug", "operation", "case"),
    [
        (in_another_order, "take", "each_with_its_claim_and_token"),
        (only_the_first, "take", "each_with_its_claim_and_token"),
        (granted_whatever_others_hold, "take", "each_with_its_claim_and_token"),
        (granted_whatever_others_hold, "take", "is_refused_and_said_in_its_place"),
        (granted_whatever_others_hold, "take", "at_once_each_name_has_one"),
        (only_the_first, "give", "a_strangers_is_not"),
    ],
)
def test_the_suite_catches_what_is_wrong_with_several_leases_at_once(
    bug: Callable[[list[Any], Sequence[Any]], list[Any]],
    operation: str,
    case: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = getattr(RegisterStore, f"{operation}_all")

    def wrong(store: RegisterStore, asked: Sequence[Any], until: float) -> list[Any]:
        return bug(list(right(store, asked, until)), asked)

    (named,) = [name for name in dir(TogetherCases) if name.endswith(case)]
    with _bench() as bench:
        getattr(TogetherCases(), named)(bench)
    monkeypatch.setattr(RegisterStore, f"{operation}_all", wrong)
    with _bench() as bench, pytest.raises(AssertionError):
        getattr(TogetherCases(), named)(bench)
