"""A part of the contract, for servers on which the rest would be the same again.

It is what layers, routing and another server could change. INCUMBENT_CONTRACT=all runs all of it.
"""

from __future__ import annotations

import os

from incumbent.testing.contract import StoreContract
from incumbent.testing.contract.faults import FaultCases
from incumbent.testing.contract.leases import RenewalCases, RepeatCases
from incumbent.testing.contract.records import RecordCases
from incumbent.testing.contract.shared import SharedCases
from incumbent.testing.contract.waits import WaitCases

ALL = os.environ.get("INCUMBENT_CONTRACT") == "all"
CHOSEN = (RepeatCases, RenewalCases, SharedCases, WaitCases, FaultCases, RecordCases)


class ChosenContract(StoreContract):
    """Without the knob, only the cases of CHOSEN."""

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if ALL:
            return
        chosen = {name for cases in CHOSEN for name in vars(cases)}
        for name in [name for name in dir(StoreContract) if name.startswith("test_")]:
            if name not in chosen:
                setattr(cls, name, None)  # pytest collects what can be called
