"""What not even KILL ends: its lease is not given back, it has to run out."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.needs import needs

SCRIPT = """
import os, signal, threading
from incumbent import Lock, clock
from incumbent.runtime.link import link_for
from incumbent.model import Key
from incumbent.supervise import child, guard as guards, plan
from incumbent.supervise.guarding import start_guard
from incumbent.supervise.run import Command, supervise
from incumbent.supervise.signals import Signals

plan._GIVE_UP_AFTER = 0.2
# As of a process that sleeps in the kernel.
child.Child.kill = guards._GuardProcess.kill = lambda self: None
with start_guard("pgroup") as guard, Signals() as signals:
    lease = Lock("job", store="memory:x", ttl=3, grace=0.1).acquire()
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
    command = ["sh", "-c", "trap '' TERM; sleep 30"]
    ending = supervise(lease, Command(command), signals, guard, stop_on={signal.SIGTERM})
    record = link_for("memory:x").store.read(Key("default", "job"), clock.now() + 30)
    for pid in ending.survivors:
        os.kill(pid, signal.SIGKILL)
    print(bool(ending.survivors), ending.confirmed, len(record.holdings), lease.valid)
"""


@pytest.mark.slow
@needs(sys.platform == "linux", "the guard needs Linux")
def test_what_outlives_kill_keeps_its_lease_until_that_runs_out() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["True", "False", "1", "False"], done.stderr
