"""One Telnet session in the whole fleet, whatever becomes of its instances and their network."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import tiers
from tests.cli.tool import environment
from tests.e2e.switch import Said, Switch
from tests.support.pace import BUSY
from tests.support.proxy import FaultProxy
from tests.support.redis_age import pretend_age
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "telnet_leader"
TTL = 6.0
"""So long that a busy machine has time for what the guard kills to end, inside the lease."""
AGAIN_WITHIN = 40.0

pytestmark = [pytest.mark.server, pytest.mark.timeout(120), pytest.mark.timing(tiers.PROCESSES)]


class Instance:
    """One replica and its own way to Redis."""

    def __init__(self, number: int, form: str, switch: Switch, redis: int, folder: Path) -> None:
        self.name = f"i{number}"
        self.proxy = FaultProxy(redis)
        self._form = form
        self._switch = switch
        self.log = folder / f"{self.name}.log"
        self.start()

    def start(self) -> None:
        theirs = {
            "LOCK_KEY": "switch-7",
            "LOCK_TTL_MS": str(int(TTL * 1000)),
            "LOCK_RENEW_EVERY_MS": "200",
            "STANDBY_SLEEP_MS": "100",
            "INSTANCE_ID": self.name,
            "REDIS_HOST": "127.0.0.1",
            "REDIS_PORT": str(self.proxy.port),
        }
        telnet = {
            "TELNET_HOST": "127.0.0.1",
            "TELNET_PORT": str(self._switch.port),
            "TELNET_COMMAND": f"heartbeat {self.name}",
            "TELNET_EVERY": "0.05",
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, EXAMPLE / self._form],
                env=environment({**theirs, **telnet}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait(60)

    def stop(self) -> int:
        """In order; what it exited with."""
        self.proxy.heal()
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        return self.process.wait(60)


Fault = tuple[Callable[[Instance], object], Callable[[Instance], object]]

FAULTS: dict[str, Fault] = {
    "killed": (Instance.kill, Instance.start),
    "frozen": (
        lambda instance: instance.signal(signal.SIGSTOP),
        lambda instance: instance.signal(signal.SIGCONT),
    ),
    "cut off": (
        lambda instance: instance.proxy.blackhole(),
        lambda instance: instance.proxy.heal(),
    ),
}


class Fleet:
    """Three instances before one switch."""

    def __init__(self, form: str, redis: RedisServer, folder: Path, cleanup: ExitStack) -> None:
        self.switch = cleanup.enter_context(Switch())
        self.instances = {}
        pretend_age(redis.url, redis)
        for number in range(3):
            instance = Instance(number, form, self.switch, redis.port, folder)
            cleanup.callback(instance.proxy.close)
            cleanup.callback(instance.process.wait)
            cleanup.callback(instance.stop)
            self.instances[instance.name] = instance

    def leader(self) -> Instance:
        """The one that speaks, as soon as one does."""
        heard = len(self.switch.lines)
        eventually(lambda: self.switch.speaker(after=heard), AGAIN_WITHIN)
        return self.instances[self.switch.lines[-1].instance]

    def suffer(self, fault: Fault) -> Instance:
        """The leader meets the fault, another leads, the fault ends; who met it."""
        begin, end = fault
        struck = self.leader()
        begin(struck)
        eventually(lambda: self.switch.speaker() != struck.name, AGAIN_WITHIN)
        end(struck)
        heard = len(self.switch.lines)
        eventually(lambda: len(self.switch.lines) > heard + 10, AGAIN_WITHIN)
        return struck


@pytest.fixture
def fleet(
    request: pytest.FixtureRequest, own_redis: RedisServer, tmp_path: Path
) -> Iterator[Fleet]:
    with ExitStack() as cleanup:
        yield Fleet(request.param, own_redis, tmp_path, cleanup)


def speaks_in_turn(lines: list[Said]) -> None:
    """Once a term has spoken, none before it speaks; and a term is of one session."""
    terms = [said.term for said in lines]
    assert terms == sorted(terms), "an old leader spoke after its successor"
    sessions: dict[int, int] = {}
    for said in lines:
        assert sessions.setdefault(said.term, said.session) == said.session


@pytest.mark.left(tiers.LONG)
@pytest.mark.parametrize("fleet", ["lead.py"], indirect=True)
def test_under_lead_there_are_never_two_sessions_and_after_each_fault_there_is_one(
    fleet: Fleet,
) -> None:
    for fault in FAULTS.values():
        fleet.suffer(fault)
    assert fleet.switch.together == []
    speaks_in_turn(fleet.switch.lines)


@pytest.mark.left(tiers.SIDES, "killed-*")
@pytest.mark.parametrize("fleet", ["leader.py"], indirect=True)
@pytest.mark.parametrize("fault", ["killed", "cut off"])
def test_the_program_closes_its_session_before_another_opens_one(fleet: Fleet, fault: str) -> None:
    for _ in range(2):
        fleet.suffer(FAULTS[fault])
    assert fleet.switch.together == []
    speaks_in_turn(fleet.switch.lines)


@pytest.mark.left(tiers.LONG)
@pytest.mark.parametrize("fleet", ["leader.py"], indirect=True)
def test_a_frozen_program_keeps_its_socket_but_never_speaks_again(fleet: Fleet) -> None:
    struck = fleet.suffer(FAULTS["frozen"])
    # Nobody can close a socket while frozen: its session alone may stand beside another.
    old = fleet.switch.sessions_of(struck.name)
    assert fleet.switch.together, "the switch did not see the half-open session"
    assert set().union(*fleet.switch.together) <= old
    speaks_in_turn(fleet.switch.lines)
    # Once it runs again it closes it, and stands by.
    eventually(lambda: not old & fleet.switch.open_sessions)


@pytest.mark.left(tiers.SIDES, "leader.py")
@pytest.mark.parametrize("fleet", ["leader.py", "lead.py"], indirect=True)
def test_told_to_end_the_leader_hangs_up_and_the_next_one_follows_at_once(fleet: Fleet) -> None:
    leader = fleet.leader()
    heard = len(fleet.switch.lines)
    assert leader.stop() == 0
    # Released, not run out: a standby speaks well before the ttl and a start of Python are over.
    eventually(lambda: fleet.switch.speaker(after=heard) not in (None, leader.name), 2.4 + BUSY)
    assert fleet.switch.together == []
    speaks_in_turn(fleet.switch.lines)
