"""The record of a lease is deleted and another takes it: how long both commands live."""

from __future__ import annotations

from pathlib import Path

import pytest

from incumbent import clock
from incumbent.model import Key
from incumbent.policy import make_policy
from incumbent.stores.redis.records import Naming
from tests import tiers
from tests.cli.tool import incumbent, start
from tests.e2e.fleet import WORKER, Fleet
from tests.support.pace import BUSY, took
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

pytestmark = pytest.mark.timing(tiers.PROCESSES)

TIMES = ("--ttl", "18s", "--grace", "8s")
POLICY = make_policy("18s", grace="8s")
AT_MOST = POLICY.renew_every + POLICY.request_timeout + BUSY


@pytest.mark.left(tiers.FORMS, "run")
@pytest.mark.parametrize("command", ["run", "lead"])
def test_a_command_ends_with_the_renewal_that_finds_its_record_gone(
    own_redis: RedisServer, tmp_path: Path, command: str
) -> None:
    assert POLICY.grace > AT_MOST, "a grace has to be seen"
    fleet = Fleet(f"{own_redis.url}?restart_wait=0", tmp_path)
    more = ("--wait=20",) if command == "run" else ("--restart", "never")
    line = ("python3", "-S", WORKER, tmp_path, "--stubborn")
    first = start("-s", fleet.store, command, "job", *TIMES, *more, "--", *line)
    fleet.started.append(first)
    eventually(lambda: fleet.begun or first.poll() is not None)
    own_redis.cli("DEL", Naming(None).of(Key("default", "job")).lease)
    since = clock.now()
    beside = incumbent("-s", fleet.store, "run", "job", *TIMES, "--", "true")
    assert beside.returncode == 0, beside.stderr
    _, said = first.communicate()
    seconds = took(since)
    assert first.returncode == 123, said
    assert "taken" in said
    assert seconds < AT_MOST, f"{seconds:.2f} s beside the next holder: {said}"
    fleet.close()
