"""Defects that were mended, planted again: the plans that found them still find them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

import pytest

from incumbent.lease import LeaseMachine
from incumbent.protocol import release
from incumbent.protocol.port import Debt, Port
from incumbent.stores import memory
from incumbent.stores.memory import MemoryTable
from tests.combined import leases
from tests.combined.regressions import REGRESSIONS, Regression
from tests.combined.worlds import WORLDS

BY_NAME = {known.name: known for known in REGRESSIONS}


def the_wait_counts_the_asker() -> AbstractContextManager[Any]:
    def asked(named: float | None, ttl: float, *_: float) -> float:
        return ttl if named is None else named

    return patch.object(memory, "wait_after_restart", asked)


def a_missing_record_is_a_release() -> AbstractContextManager[Any]:
    def missed(self: LeaseMachine, _reason: str) -> None:
        self.note_given()

    return patch.object(LeaseMachine, "note_missed", missed)


def dead_claims_are_forgotten() -> AbstractContextManager[Any]:
    """By the process that gave them up, and by the store."""
    settle = release.settle

    async def forgets(port: Port, debt: Debt, timeout: float) -> bool:
        return port.now() >= debt.until or await settle(port, debt, timeout)

    stack = ExitStack()
    stack.enter_context(patch.object(leases, "settle", forgets))
    stack.enter_context(patch.object(MemoryTable, "late_kept", 0.0))
    return stack


PLANTED: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "the wait after a restart counted the ttl of whoever asked": the_wait_counts_the_asker,
    "a release that found nothing of ours said released": a_missing_record_is_a_release,
    "a take that was held up came after its claim was forgotten": dead_claims_are_forgotten,
    "a frozen store carried out a take that was forgotten": dead_claims_are_forgotten,
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_defect_that_is_planted_again_is_found(name: str) -> None:
    known: Regression = BY_NAME[name]
    with PLANTED[name]():
        broken = WORLDS[known.world].play(known.plan)
    assert known.rule in {one.rule for one in broken}
