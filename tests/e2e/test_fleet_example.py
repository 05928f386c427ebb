"""The example with five instances does what it says."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import tiers
from tests.cli.tool import environment
from tests.support.servers import ROOT

pytestmark = pytest.mark.left(tiers.LONG)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_fleet_with_a_crash_and_wrong_clocks_does_each_slot_once() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "fleet" / "fleet.py"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "each slot was done once" in done.stdout
    assert "lost on" in done.stdout
