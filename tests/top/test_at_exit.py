"""At a normal end of the interpreter leases are given back, unless somebody may be working."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import incumbent
from incumbent import Client
from incumbent.runtime.threads import SERVICES
from tests.support.servers import RedisServer

HOLD = """
import asyncio, os, signal, sys, threading, time
import incumbent
lease = incumbent.Lock("job", store=sys.argv[1], ttl=60).acquire()
"""
JOB = """
import sys, threading, time
import incumbent
jobs, running = incumbent.Jobs(store=sys.argv[1], ttl=60), threading.Event()

@jobs.every("1s")
def nightly():
    running.set()
    time.sleep(60)

jobs.start()
running.wait()
"""
ENDS = {
    "falls off the end": "",
    "exits": "sys.exit(3)",
    "raises": "raise ValueError('the program failed')",
    "ends beside a thread that ends": "threading.Thread(target=time.sleep, args=(0.3,)).start()",
    "ends after a loop": "asyncio.run(asyncio.sleep(0))",
}
LEAVES = {
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "ends at once": "os._exit(3)",
    "leaves a daemon thread at work": """
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
""",
    "leaves a thread of the name of ours": """
threading.Thread(target=time.sleep, args=(60,), name="incumbent-job x", daemon=True).start()
""",
    "has a callback that runs": """
from incumbent.runtime.threads import notifier
notifier.call(lambda: time.sleep(60))
""",
    "was forked": "os._exit(0) if os.fork() else sys.exit(0)",
}


def run(store: str, then: str) -> float:
    """Seconds that the end took, of a process that takes a lease of a minute."""
    begun = time.monotonic()
    subprocess.run(
        [sys.executable, "-c", HOLD + then, store], check=False, timeout=60, capture_output=True
    )
    return time.monotonic() - begun


def holders(store: str) -> int:
    with Client(store) as client:
        return len(client.read("job", 5).holdings)


@pytest.mark.parametrize("end", ENDS)
def test_a_process_that_ends_gives_its_lease_back(end: str, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/leases.db"
    run(store, ENDS[end])
    assert holders(store) == 0


@pytest.mark.parametrize("end", LEAVES)
def test_where_somebody_may_be_at_work_the_ttl_ends_the_lease(end: str, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/leases.db"
    run(store, LEAVES[end])
    assert holders(store) == 1


CHILD = """
import multiprocessing
multiprocessing.get_context("fork").Process(target=time.sleep, args=(3,)).start()
"""


@pytest.mark.parametrize(("first", "left"), [("", 0), ("import multiprocessing.util", 1)])
def test_no_lease_is_given_back_while_a_child_works_on(
    first: str, left: int, tmp_path: Path
) -> None:
    """What was imported first ends last: then multiprocessing waits for its children after us."""
    store = f"sqlite:///{tmp_path}/leases.db"
    program = f"{first}\n{HOLD}{CHILD}"
    subprocess.run([sys.executable, "-c", program, store], check=True, timeout=60)
    assert holders(store) == left


def test_no_lease_of_a_job_that_runs_in_a_thread_of_ours_is_given_back(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/leases.db"
    subprocess.run([sys.executable, "-c", JOB, store], check=True, timeout=60)
    with Client(store) as client:
        assert len(client.read("nightly", 5).holdings) == 1


def test_each_daemon_thread_of_ours_is_a_service_or_runs_the_programs_code() -> None:
    """The second kind keeps its leases at an exit: a new name has to be put in its place."""
    source = "".join(path.read_text() for path in Path(incumbent.__file__).parent.rglob("*.py"))
    named = set(re.findall(r'"(incumbent-[a-z-]*[a-z])"', source))
    processes = {"incumbent-guard", "incumbent-init", "incumbent-zygote"}
    assert named - processes - SERVICES == {"incumbent-jobs-loop"}


def test_a_slot_stays_used_and_a_name_stays_closed(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/leases.db"
    program = HOLD.replace("ttl=60", "ttl=60, once_per='1h', at_least_for='1h'")
    subprocess.run([sys.executable, "-c", program, store], check=True, timeout=60)
    with Client(store) as client:
        record = client.read("job", 5)
        assert record.holdings == ()
        assert record.slots
        assert record.closed_for > 3000


@pytest.mark.server
def test_a_store_that_is_away_holds_up_no_exit(own_redis: RedisServer) -> None:
    store = f"{own_redis.url}?restart_wait=0"
    done = subprocess.Popen(
        [sys.executable, "-c", HOLD + "print('held', flush=True); input()", store],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert done.stdout is not None
    assert done.stdin is not None
    with done:
        assert done.stdout.readline() == "held\n"
        own_redis.freeze()
        try:
            done.stdin.write("\n")
            done.stdin.close()
            # A second, on a busy machine.
            done.wait(timeout=15)
        finally:
            own_redis.thaw()
