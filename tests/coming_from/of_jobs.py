"""Kubernetes' leader election, ShedLock, celery-once, single-beat."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from tests.coming_from.cases import LIBRARIES, Library, Servers, row
from tests.coming_from.environments import bin_of
from tests.coming_from.sides import NOT_RUN, Both, Outcome
from tests.support.servers import RedisServer
from tests.support.waiting import eventually

LEASE = Outcome("pass", 'lease = Lock("job").acquire()')


def redis(servers: Servers) -> str:
    return servers.redis.url


# A record in a file, in place of the API server; with `down` in the folder it is unavailable.
RECORD = """
import json, types
from http import HTTPStatus
from functools import partial
from pathlib import Path
from kubernetes.leaderelection.electionconfig import Config
from kubernetes.leaderelection.leaderelection import LeaderElection
from kubernetes.leaderelection.leaderelectionrecord import LeaderElectionRecord

class Record:
    name, namespace, identity, file = "job", "default", "me", Path("record")

    def get(self, name, namespace):
        if self.file.exists() and not Path("down").exists():
            return True, LeaderElectionRecord(**json.loads(self.file.read_text()))
        code = HTTPStatus.SERVICE_UNAVAILABLE if Path("down").exists() else HTTPStatus.NOT_FOUND
        return False, types.SimpleNamespace(body=json.dumps({"code": code}), reason=str(code))

    def update(self, name, namespace, record):
        return not Path("down").exists() and self.file.write_text(json.dumps(vars(record))) > 0

    def create(self, name, namespace, election_record):
        return self.update(name, namespace, election_record)

lock = Record()
def started(): Path("started").touch()
def stopped(): Path("stopped").touch()
"""


LIBRARIES["Kubernetes (Python)"] = Library(
    lambda servers: RECORD,
    LEASE,
    redis,
    lambda servers: "def work(term): return 'done'",
    environment="today",
)


@row("Kubernetes (Python)", "election = LeaderElection(Config(lock, 3, 2, 1, started, stopped))")
def a_candidate(both: Both) -> None:
    assert both.made == ("LeaderElection", "Election")


@row("Kubernetes (Python)", "election.run()")
def work_that_returns(both: Both) -> None:
    leading = both.theirs.start(both.row.theirs)
    assert both.ours.run(both.row.ours) == "'done'"
    eventually((Path.cwd() / "started").exists)
    assert not leading.done(), "it leads without work"
    (Path.cwd() / "down").touch()
    assert leading.result(20) == "None"
    assert (Path.cwd() / "stopped").exists()


@row("Kubernetes (Python)", "lock.get(lock.name, lock.namespace)[1].holder_identity")
def who_leads(both: Both) -> None:
    leading = both.theirs.start("election.run()")
    eventually((Path.cwd() / "started").exists)
    (Path.cwd() / "down").touch()
    leading.result(20)
    (Path.cwd() / "down").unlink()
    both.ours.run("term = election.campaign()")
    assert both.run() == ("'me'", "'me'")
    both.ours.run("term.release()")


LIBRARIES["Kubernetes (client-go)"] = Library(
    lambda servers: "pass",
    LEASE,
    redis,
    lambda servers: (
        "from incumbent import Policy\ndef stopped(lost): pass\ndef changed(leader): pass"
    ),
    environment=NOT_RUN,
)


@row("Kubernetes (client-go)", "LeaseDuration: 15 * time.Second")
@row("Kubernetes (client-go)", "Callbacks.OnStoppedLeading")
@row("Kubernetes (client-go)", "Callbacks.OnNewLeader")
def ours_of_an_election(both: Both) -> None:
    assert both.run().ours == "Election"


@row("Kubernetes (client-go)", "RenewDeadline: 10 * time.Second")
@row("Kubernetes (client-go)", "RetryPeriod: 2 * time.Second")
def ours_of_times(both: Both) -> None:
    assert both.run().ours == "float"


@row("Kubernetes (client-go)", "le.IsLeader()")
def ours_of_leading(both: Both) -> None:
    assert both.run().ours == "False"


@row("Kubernetes (client-go)", "le.GetLeader()")
def ours_of_the_leader(both: Both) -> None:
    assert both.run().ours == "None"


LIBRARIES["ShedLock"] = Library(
    lambda servers: "pass",
    LEASE,
    redis,
    lambda servers: "jobs = incumbent.Jobs(); lease = Lock('lease').acquire()",
    environment=NOT_RUN,
)


@row("ShedLock", '@SchedulerLock(name = "job", lockAtMostFor = "14m", lockAtLeastFor = "10m")')
def ours_of_a_task(both: Both) -> None:
    assert both.ours.run("work()") == "'ran'"
    assert both.ours.run("work()") == "None", "the name is closed for at_least_for"


@row("ShedLock", '@Scheduled(cron = "0 0 3 * * *")')
def ours_of_a_schedule(both: Both) -> None:
    both.run()
    assert both.ours.run("jobs.specs[0].name") == "'work'"


@row("ShedLock", "executor.executeWithLock(task, configuration)")
def ours_of_a_body(both: Both) -> None:
    assert both.run().ours == "'ran'"


@row("ShedLock", "LockAssert.assertLocked()")
@row("ShedLock", "LockExtender.extendActiveLock(Duration.ofMinutes(5), ZERO)")
def ours_of_a_held_lock(both: Both) -> None:
    assert both.run().ours in {"None", "float"}


def of_celery(servers: Servers) -> str:
    url = f"redis://127.0.0.1:{servers.redis.port}/0"
    return (
        "import celery\nfrom celery_once import QueueOnce\n"
        "app = celery.Celery(broker='memory://', set_as_current=False)\n"
        "app.conf.ONCE = {'backend': 'celery_once.backends.Redis',"
        f" 'settings': {{'url': {url!r}}}}}"
    )


LIBRARIES["celery-once"] = Library(
    of_celery,
    Outcome("work.delay(7)", 'lease = Lock("job-7").acquire()'),
    redis,
    give="work.once_backend.clear_lock(work.get_key((7,)))",
    environment="jobs",
)


@row("celery-once", '@app.task(base=QueueOnce, name="job")')
def a_task_that_is_queued_already(both: Both) -> None:
    with both.held():
        assert both.each("work.delay(7)", "work(7)") == (
            *("raises AlreadyQueued", "raises NotAcquired"),
        )
    assert both.each("work.delay(7)", "work(7)") == ("AsyncResult", "'ran'")


@row("celery-once", '@app.task(base=QueueOnce, name="job", once={"graceful": True})')
def a_task_that_is_left_out(both: Both) -> None:
    both.run()
    with both.held():
        assert both.each("work.delay(7).state", "work(7)") == ("'REJECTED'", "None")


@row("celery-once", '@app.task(base=QueueOnce, name="job", once={"keys": []})')
def one_for_all_arguments(both: Both) -> None:
    both.run()
    both.each("work.delay(7)", 'lease = Lock("job").acquire()')
    assert both.each("work.delay(8)", "work(8)") == (
        *("raises AlreadyQueued", "raises NotAcquired"),
    )


@row("celery-once", '@app.task(base=QueueOnce, name="job", once={"timeout": 3})')
def a_task_that_takes_longer(both: Both) -> None:
    both.run()
    both.each("work.delay(7)", 'lease = Lock("job-7", ttl=3).acquire()')
    eventually(lambda: both.theirs.run("work.delay(7)") == "AsyncResult")
    assert both.ours.run("work(7)") == "raises NotAcquired"
    # The end of the first run frees what the second one has.
    assert both.theirs.run("work.after_return('SUCCESS', None, '', (7,), {}, None)") == "None"
    assert both.theirs.run("work.delay(7)") == "AsyncResult"


LIBRARIES["single-beat"] = Library(
    lambda servers: "pass", LEASE, redis, commands=True, environment=NOT_RUN
)
BEAT = "while :; do echo >> beats; sleep 0.1; done"


class Instance:
    """A command of the page, as an instance that runs it in a folder of its own."""

    def __init__(self, command: str, number: int, server: RedisServer) -> None:
        self.folder = Path.cwd() / f"{command.partition(' ')[0]}-{number}"
        self.folder.mkdir()
        (self.folder / "beat.sh").write_text(BEAT)
        programs = f"{bin_of('jobs')}:{Path(sys.executable).parent}"
        settings = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "SINGLE_BEAT_REDIS_SERVER": f"redis://127.0.0.1:{server.port}",
            "SINGLE_BEAT_LOCK_TIME": "3",
            "SINGLE_BEAT_INITIAL_LOCK_TIME": "4",
            "INCUMBENT_STORE": f"{server.url}?restart_wait=0",
            "INCUMBENT_TTL": "3",
        }
        self.process = subprocess.Popen(
            command.split(),
            cwd=self.folder,
            env={**os.environ, **settings},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def works(self) -> bool:
        before = self._beats()
        time.sleep(0.5)  # five beats
        return self._beats() > before

    def _beats(self) -> int:
        beats = self.folder / "beats"
        return beats.stat().st_size if beats.exists() else 0

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _any_works(side: list[Instance]) -> bool:
    return any(instance.works() for instance in side)


@contextmanager
def instances(both: Both, many: int) -> Iterator[tuple[RedisServer, list[list[Instance]]]]:
    """So many of theirs and of ours on a server of their own, of which one of each works."""
    first = both.row.first or both.row
    with RedisServer() as server, ExitStack() as ending:
        started: list[list[Instance]] = []
        for command in (first.theirs, first.ours):
            started.append([Instance(both.named(command), at, server) for at in range(many)])
            for instance in started[-1]:
                ending.callback(instance.end)
        for side in started:
            eventually(partial(_any_works, side))
        yield server, started


@row("single-beat", "single-beat sh beat.sh")
def one_of_a_fleet_runs_the_command(both: Both) -> None:
    with instances(both, 2) as (_, sides):
        assert [sum(instance.works() for instance in side) for side in sides] == [1, 1]


@row("single-beat", "if Redis goes away, its instance ends, and the command goes on")
def a_store_that_goes_away(both: Both) -> None:
    with instances(both, 1) as (server, ((theirs,), (ours,))):
        server.kill()
        eventually(lambda: theirs.process.poll() is not None)
        eventually(lambda: not ours.works())
        assert theirs.works(), "without anybody who looks after it"
        assert ours.process.poll() is None, "it is a candidate again"


@row("single-beat", "if the instance is killed, the command goes on beside the next one")
def an_instance_that_is_killed(both: Both) -> None:
    with instances(both, 2) as (_, sides):
        working = [next(it for it in side if it.works()) for side in sides]
        others = [it for side in sides for it in side if it not in working]
        for instance in working:
            instance.process.kill()
        for instance in others:
            eventually(instance.works)
        assert [instance.works() for instance in working] == [True, False]
