"""After any single fault somebody leads again. Quiet: no other fault, and time to spare."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests import tiers
from tests.chaos.runner import run
from tests.chaos.schedule import (
    ON_CHILD,
    ON_PROCESSES,
    STORES,
    TTL,
    Fault,
    Schedule,
    faults_of,
)
from tests.support.needs import needs

WITHIN = TTL + 25.0
"""Seconds after the end of the fault: a lease runs out, a restarted store waits for another; on
Kubernetes for 5 s more, by which the clocks of its API servers may differ."""

AT_A_TIME = 4
"""Fleets of three, which all start their processes at once: more would not be quiet."""

EVERYWHERE = (*ON_PROCESSES, *ON_CHILD)
GROUPS = {
    "processes, SQLite": [("sqlite", kind) for kind in EVERYWHERE],
    "processes, Redis": [("redis", kind) for kind in EVERYWHERE],
    **{store: [(store, kind) for kind in faults_of(store)] for store in STORES},
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.server,
    needs(os.geteuid() == 0, "root: PID namespaces"),
    pytest.mark.crowd(tiers.MANY),
]


@pytest.mark.left(tiers.LONG)
@pytest.mark.timeout(400)
@pytest.mark.parametrize("group", GROUPS)
def test_after_a_single_fault_one_leads_again(group: str) -> None:
    schedules = [after(store, kind) for store, kind in GROUPS[group]]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        outcomes = list(pool.map(lambda one: run(one, patience=WITHIN), schedules))
    failed = [outcome.report for outcome in outcomes if outcome.sight.wrong or not outcome.leads]
    assert not failed, "\n\n".join(failed)


def after(store: str, kind: str) -> Schedule:
    lasts = 0.0 if kind.startswith(("kill ", "term ", "exit ")) else 1.4 * TTL
    if kind.endswith(" server"):
        lasts = 1.0
    return Schedule(0, store, "pidns", faults=(Fault(0.2, kind, lasts),))
