"""The suite: one class with all cases; a subclass has only the cases for what it declares."""
# ruff: noqa: S101 - a contract's cases are assertions

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from typing import ClassVar

import pytest

from incumbent.model import Capabilities
from incumbent.stores.base import Engine
from incumbent.testing.contract import (
    crowds,
    faults,
    leases,
    processes,
    races,
    records,
    registers,
    shared,
    together,
    waits,
)
from incumbent.testing.contract.bench import DRIVERS, Bench, Hook, World, needs_of


class StoreContract(
    leases.LeaseCases,
    leases.RepeatCases,
    leases.RenewalCases,
    leases.TokenCases,
    waits.WaitCases,
    records.FieldCases,
    records.NoticeCases,
    waits.CandidateCases,
    waits.ReservationCases,
    waits.LineCases,
    shared.SharedCases,
    shared.SharedLineCases,
    shared.SharedFaultCases,
    records.SlotCases,
    records.NameCases,
    records.RecordCases,
    faults.FaultCases,
    faults.LateCases,
    faults.RestartCases,
    races.RaceCases,
    crowds.CrowdCases,
    together.TogetherCases,
    processes.ClockCases,
    processes.ForkCases,
    processes.InterruptionCases,
    processes.SlowNameCases,
    registers.RegisterCases,
):
    """Subclass it, declare your store's capabilities and hooks, and define the fixture `world`."""

    capabilities: ClassVar[Capabilities] = Capabilities()
    """The engine's capabilities; the subclass has no cases for others."""
    hooks: ClassVar[frozenset[Hook]] = frozenset()
    """The hooks that the world implements beside `pass_time`."""
    only: ClassVar[frozenset[Hook]] = frozenset()
    """Keep only the cases that need one of these hooks: for a world that is expensive to make."""
    ttl: ClassVar[float] = 0.5
    """A ttl that cases let pass with `World.pass_time`; where that sleeps, longer is steadier."""

    _left_out: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        flags = {name for name, value in asdict(cls.capabilities).items() if value is True}
        # Leases that survive it, and leases that end by it, have different cases.
        for upset in ("restart", "failover"):
            if f"survives_{upset}" not in flags:
                flags.add(f"ends_by_{upset}")
        offered = flags | cls.hooks
        before, left_out = cls._left_out, set[str]()
        for name in [name for name in dir(StoreContract) if name.startswith("test_")]:
            needed = needs_of(getattr(StoreContract, name))
            if not needed <= offered or (cls.only and not needed & cls.only):
                left_out.add(name)
                setattr(cls, name, None)  # pytest collects callables only
            elif name in before and name not in vars(cls):
                # A class between this one and the suite declares less, so it left the case out.
                setattr(cls, name, getattr(StoreContract, name))
        cls._left_out = frozenset(left_out)

    @pytest.fixture
    def world(self) -> World:
        """The one fixture that a subclass has to give."""
        raise NotImplementedError("the suite needs a fixture `world` that gives a World")

    @pytest.fixture(params=list(DRIVERS))
    def bench(self, world: World, request: pytest.FixtureRequest) -> Iterator[Bench]:
        """A bench for the world, through each of the engine's two sides in turn."""
        try:
            with closing(Bench(world, DRIVERS[request.param], self.ttl)) as bench:
                yield bench
        finally:
            world.engine.store().close()

    def test_the_engine_is_as_the_class_declares(self, bench: Bench) -> None:
        assert bench.world.engine.capabilities == self.capabilities
        assert isinstance(bench.world.engine, Engine)

    def test_an_engine_has_one_blocking_store(self, bench: Bench) -> None:
        assert bench.world.engine.store() is bench.world.engine.store()

    def test_closing_twice_is_harmless(self, bench: Bench) -> None:
        bench.granted()
        bench.store.close()
        bench.store.close()

    def test_a_diagnosis_has_levels_that_people_know(self, bench: Bench) -> None:
        findings = bench.world.engine.diagnose(self.ttl, bench.until())
        assert {level for level, _, _ in findings} <= {"ok", "warning", "error"}
