"""`lead` with a short lease: who leads stops in time, and one leads again."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from incumbent import clock
from tests import tiers
from tests.cli.tool import answer, incumbent, start
from tests.e2e.fleet import TIMES, TTL, Fleet, Place, died_within
from tests.e2e.test_lead import ask, more_began, three
from tests.support.waiting import eventually

pytestmark = pytest.mark.timing(tiers.PROCESSES)


def test_a_leader_that_is_broken_logs_that_it_was_asked_to_stop(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/leases.db"
    with start("-s", store, "lead", "job", *TIMES, "--", "sleep", "60") as leader:
        try:
            eventually(lambda: answer("-s", store, "status", "job")["state"] == "held")
            assert incumbent("-s", store, "break", "job", "--reason", "stuck").returncode == 0
        finally:
            leader.terminate()
        said = leader.communicate(timeout=60)[1]
    assert re.search(r"asked to stop by \S+ \(stuck\)", said), said


@pytest.mark.left(tiers.LONG)
def test_nobody_works_while_it_is_paused(fleet: Fleet) -> None:
    three(fleet, TIMES)
    done = ask(fleet, "pause", "job", "--reason", "incident 7")
    # It exits with 75 unless the term ended within two ttls of the notice.
    assert done.returncode == 0, done.stderr
    assert not fleet.worker_lives()
    assert ask(fleet, "pause", "job").returncode == 0
    assert "(incident 7)" in ask(fleet, "why", "job").stdout
    # A busy machine may have cost a leader its short lease before.
    before = len(fleet.begun)
    time.sleep(TTL)
    assert len(fleet.begun) == before
    assert ask(fleet, "unpause", "job").returncode == 0
    eventually(lambda: more_began(fleet, before))
    fleet.judge()


@pytest.mark.left(tiers.STORES, "etcd")
def test_a_silent_store_ends_the_term_inside_the_lease_and_one_leads_again(
    place: Place, fleet: Fleet
) -> None:
    begin, end = place.faults["silent"]
    three(fleet, TIMES)
    begin()
    # Until now a renewal may have been proved.
    since = clock.now()
    died_within(fleet, since, TTL)
    time.sleep(TTL)
    assert not fleet.worker_lives()
    end()
    eventually(lambda: len(fleet.begun) >= 2)
    fleet.judge()
