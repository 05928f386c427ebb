"""`if_lost="exit"`: the process has ended before another can hold the lease.

Judged by a file lock that the holder keeps for as long as it lives; the kernel lets go of it.
"""

from __future__ import annotations

import fcntl
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from incumbent import Lock, clock
from tests import tiers
from tests.support.pace import stood_still
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer

pytestmark = [
    pytest.mark.left(
        "longer leases, and a fault and a kind of holder that are met beside another",
        "1s-black_hole-busy",
        "1s-frozen_store-waits",
    ),
    pytest.mark.crowd(tiers.BURNS),
]

_PROGRAM = Path(__file__).with_name("exiting.py")

ROUNDS = [
    pytest.param(1.0, 2, id="1s"),
    pytest.param(3.0, 2, id="3s"),
    pytest.param(15.0, 1, id="15s", marks=[pytest.mark.slow, pytest.mark.timeout(120)]),
]


@dataclass
class Scene:
    """A holder behind a faulty network, and a rival that reaches the store directly."""

    server: RedisServer
    proxy: FaultProxy
    witness: Path
    ttl: float
    chance: random.Random

    @contextmanager
    def holder(self, kind: str) -> Iterator[subprocess.Popen[bytes]]:
        words = (_PROGRAM, f"{self.proxy.url}?restart_wait=0", self.ttl, self.witness, kind)
        command = [sys.executable, *map(str, words)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == b"holding\n"
                yield process
            finally:
                process.kill()

    def overlap(self) -> float:
        """Seconds for which the old holder lived on beside the next one while this machine ran."""
        store = f"{self.server.url}?restart_wait=0"
        lock = Lock("job", store=store, ttl=self.ttl, timeout=4 * self.ttl + 10)
        with lock, self.witness.open("w") as file:
            granted = clock.now()
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                fcntl.flock(file, fcntl.LOCK_EX)
                # A holder that the machine did not let run at its deadline did nothing either.
                return max(0.0, clock.now() - granted - stood_still(granted - 1.0))
            return 0.0


@pytest.fixture
def scene(redis_server: RedisServer, tmp_path: Path) -> Iterator[Scene]:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it with a failure
    with FaultProxy(redis_server.port) as proxy:
        yield Scene(redis_server, proxy, tmp_path / "witness", 0.0, random.Random(seed))


def black_hole(scene: Scene) -> None:
    scene.proxy.blackhole()


def frozen_store(scene: Scene) -> None:
    scene.server.freeze()
    # Then the holder cannot have renewed it: its last proof is older than the freeze.
    time.sleep(scene.ttl * (1.0 + 0.1 * scene.chance.random()))
    scene.server.thaw()


@pytest.mark.parametrize("kind", ["waits", "busy"])
@pytest.mark.parametrize("fault", [black_hole, frozen_store])
@pytest.mark.parametrize(("ttl", "rounds"), ROUNDS)
def test_a_holder_that_ends_with_its_lease_has_ended_before_the_next_one_begins(
    scene: Scene, ttl: float, rounds: int, fault: Callable[[Scene], None], kind: str
) -> None:
    scene.ttl = ttl
    for _ in range(rounds):
        with scene.holder(kind) as process:
            # At any instant of a renewal interval.
            time.sleep(ttl / 5 * (0.5 + scene.chance.random()))
            fault(scene)
            assert scene.overlap() == 0.0
            scene.proxy.heal()
            assert process.wait(60) == 123
            assert process.stderr is not None
            assert b"could not be renewed in time; the process ends" in process.stderr.read()
