"""After any single fault somebody leads again. Quiet: no other fault, and time to spare."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.chaos.runner import run
from tests.chaos.schedule import (
    KINDS,
    LOSES_KEYS,
    ON_CHILD,
    ON_FILE,
    ON_PROCESSES,
    TTL,
    Fault,
    Schedule,
)
from tests.support.needs import needs

WITHIN = TTL + 5.0
"""Seconds after the end of the fault: a lease runs out, a restarted store waits for another."""

AT_A_TIME = 6
"""Fleets of three, which all start their processes at once: more would not be quiet."""

EVERYWHERE = (*ON_PROCESSES, *ON_CHILD)
OF_REDIS = tuple(kind for kind in KINDS if kind not in (*EVERYWHERE, *ON_FILE, *LOSES_KEYS))
GROUPS = {
    "processes, SQLite": [("sqlite", kind) for kind in (*EVERYWHERE, *ON_FILE)],
    "processes, Redis": [("redis", kind) for kind in EVERYWHERE],
    "server and network": [("redis", kind) for kind in OF_REDIS],
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.server,
    needs(os.geteuid() == 0, "root: PID namespaces"),
]


@pytest.mark.timeout(120)
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
