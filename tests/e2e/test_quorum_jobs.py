"""Jobs that run once in a fleet whose store is a quorum, while its servers are down in turn."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import tiers
from tests.cli.tool import incumbent, start
from tests.cron.fleet import SHORT, CronFleet, note
from tests.stores.quorum.world import Members
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.server, pytest.mark.timeout(240)]


PATIENT = ("--once-per", "12h", "--wait=8s")
"""On a busy machine a request may take longer than its second: then there is time for others."""


@pytest.fixture
def three() -> Iterator[Members]:
    with Members(3) as members:
        yield members


@pytest.fixture
def url(three: Members) -> str:
    url = three.url("restart_wait=0", near=True)
    three.found(url)
    return url


@pytest.mark.left("the other servers, which are equals", "1")
@pytest.mark.parametrize("down", range(3))
def test_of_five_instances_one_runs_it_whatever_server_is_down(
    three: Members, url: str, down: int
) -> None:
    server = three.all[down].server
    server.kill()
    run = ("-s", url, "run", "nightly", *PATIENT, "--")
    fleet = [start(*run, "sleep", "0.5") for _ in range(5)]
    said = [instance.communicate()[1] for instance in fleet]
    assert sorted(it.returncode for it in fleet) == [0, 75, 75, 75, 75], said
    # It is still used, also on a majority with the one that missed it.
    server.restart(empty=False)
    three.all[(down + 1) % 3].server.kill()
    later = incumbent(*run, "true")
    assert later.returncode == 75, later.stderr


@pytest.mark.left(tiers.LONG)
def test_each_slot_of_a_job_runs_once_while_servers_are_killed_and_emptied(
    three: Members, url: str, tmp_path: Path
) -> None:
    jobs = f'[[job]]\nname = "tick"\nevery = "1s"\ncommand = {note()}\nkeep_runs = 1000\n'
    fleet = CronFleet(url, tmp_path, jobs)
    try:
        for _ in range(3):
            fleet.start(*SHORT)
        eventually(lambda: len(fleet.events("ready")) == 3)
        for member, empty in zip(three.all, (False, True, False), strict=True):
            time.sleep(1.5)
            member.server.kill()
            time.sleep(1.5)
            member.server.restart(empty=empty)
        eventually(lambda: len(fleet.ran()) > 4)
    finally:
        fleet.stop()
    ran = fleet.ran()
    assert len(ran) > 4, fleet.errors
    assert [slot for slot, times in ran.items() if times > 1] == []
    done = {f"tick@{slot}" for slot, run in fleet.runs("tick").items() if run.state.ended}
    assert len(done & set(ran)) >= len(ran) - 2


@pytest.mark.left(tiers.LONG)
def test_a_job_is_paused_and_its_history_is_told_with_one_server_down(
    three: Members, url: str
) -> None:
    three.all[0].server.kill()
    assert incumbent("-s", url, "run", "job", "--once-per", "1h", "--", "true").returncode == 0
    assert incumbent("-s", url, "pause", "job", "--reason", "upgrade").returncode == 0
    refused = incumbent("-s", url, "run", "job", "--", "true")
    assert (refused.returncode, "paused" in refused.stderr) == (75, True), refused.stderr
    assert incumbent("-s", url, "unpause", "job").returncode == 0
    assert incumbent("-s", url, "run", "job", "--", "true").returncode == 0
    told = incumbent("-s", url, "history", "job", "--json")
    assert told.returncode == 0, told.stderr
    assert json.loads(told.stdout)["result"]
