"""The lease of a run is gone from the store: the ledger says so, and what follows happens."""

from __future__ import annotations

from pathlib import Path

import pytest

from incumbent import clock
from incumbent.cron.ledger import SlotState
from tests import tiers
from tests.cli.tool import incumbent
from tests.cron.fleet import NEVER_DUE, REAL_PROCESSES, CronFleet
from tests.support.pace import took
from tests.support.waiting import eventually, written

pytestmark = [*REAL_PROCESSES, pytest.mark.timing(tiers.PROCESSES)]

JOBS = f"""
[[job]]
name = "job"
{NEVER_DUE}
command = "sleep 60"
on_failure = "echo $INCUMBENT_RUN_STATE > told"
"""
WITHIN = 20.0
"""Seconds: a renewal, a ttl of 5 s, a second of the witness, and a busy machine."""


def test_a_run_whose_record_was_removed_is_lost_on_record_and_its_failure_is_told(
    tmp_path: Path,
) -> None:
    fleet = CronFleet(f"sqlite:///{tmp_path}/leases.db", tmp_path, JOBS)
    fleet.start()
    try:
        fleet.trigger("job")
        (slot,) = fleet.runs("job")
        assert fleet.runs("job")[slot].state is SlotState.RUNNING
        removed = incumbent("-s", fleet.store, "break", "job", "--force")
        assert removed.returncode == 0, removed.stderr
        since = clock.now()
        eventually(lambda: fleet.runs("job")[slot].state is SlotState.LOST, within=WITHIN)
        assert took(since) < WITHIN
        eventually(lambda: written(tmp_path / "told") == "lost\n", within=WITHIN)
        assert [it["slot"] for it in fleet.events("fault")] == []
    finally:
        fleet.stop()
