"""A release that is written out for blocking callers does what the protocol does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from incumbent import Lock, clock
from incumbent.protocol.acquire import acquire
from incumbent.protocol.claim import Claim, LeaseRequest
from incumbent.protocol.port import Debt
from incumbent.protocol.release import release, release_blocking
from incumbent.runtime.link import link_for
from incumbent.runtime.sync import SyncPort
from incumbent.stores.plan import run_blocking
from tests.support.faulty import Fault, FaultyEngine

_Acquire = Callable[[SyncPort, LeaseRequest], Claim]
_Release = Callable[[SyncPort, Claim], bool]


def what_comes_of_it(
    acquired: _Acquire, left: _Release, fault: Fault | None
) -> tuple[list[Any], list[int], dict[str, int]]:
    engine = FaultyEngine()
    port, wanted = link_for(engine).port, Lock("a", store=engine, ttl=2)._wanted
    owed: list[Debt] = []
    setattr(port, "owe", owed.append)  # noqa: B010 - it is a method for mypy
    found: list[Any] = []
    for again in (False, True):
        if fault is not None:
            engine.faulty.plan("take", fault)
            engine.faulty.plan("give", *[fault] * again)
        try:
            claim = acquired(port, wanted)
            found += [
                claim.machine.state,
                claim.takes_in_doubt,
                left(port, claim),
                claim.machine.state,
            ]
        except Exception as error:  # noqa: BLE001 - both have to raise the same
            found.append(type(error))
    return found, [debt.takes_in_doubt for debt in owed], dict(engine.faulty.calls)


@pytest.mark.parametrize("timeout", [0, 0.3])
@pytest.mark.parametrize("fault", [None, *Fault])
def test_a_give_that_meets_a_fault_ends_alike(fault: Fault | None, timeout: float) -> None:
    protocol = what_comes_of_it(
        lambda port, wanted: run_blocking(acquire(port, wanted, timeout)),
        lambda port, claim: run_blocking(release(port, claim)),
        fault,
    )
    written_out = what_comes_of_it(
        lambda port, wanted: run_blocking(acquire(port, wanted, timeout)),
        lambda port, claim: release_blocking(port, claim, clock.now()),
        fault,
    )
    assert written_out == protocol
