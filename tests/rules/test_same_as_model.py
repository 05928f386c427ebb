"""The rules, over memory and over registers, say what the second model of the contract says."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from incumbent.stores.deciding import Deciding
from incumbent.stores.memory import MemoryStore
from incumbent.stores.register_store import RegisterStore
from tests.rules.registers import DictRegisters
from tests.rules.same_as_model import SameAsModel


class MemoryAsModel(SameAsModel):
    def begin(self) -> None:
        self.store = MemoryStore(lambda: self.now, lambda: self.wall)


class RegistersAsModel(SameAsModel):
    """As texts: each record is written and read again between any two operations."""

    def begin(self) -> None:
        self.registers = DictRegisters("nothing")
        self.store = RegisterStore(self.registers, Deciding("dict:", restart_wait=0.0))
        self.move()

    def move(self) -> None:
        self.registers.now, self.registers.wall = int(self.now * 1e6), int(self.wall * 1e6)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("machine", [MemoryAsModel, RegistersAsModel])
def test_the_rules_say_what_the_model_says(machine: type[SameAsModel]) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=80, stateful_step_count=40, deadline=None)
    )
