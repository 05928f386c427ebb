"""What receivers are told about jobs: each end once, by the instance that recorded it."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from incumbent import clock
from incumbent.cron.instance import Instance
from incumbent.cron.ledger import RUN, SlotRecord, SlotState, encode
from incumbent.cron.load import load_jobs
from incumbent.cron.news import JobNews
from incumbent.cron.runs import ALREADY_RECORDED, NOT_RECORDED, STATE_OF, Runs
from incumbent.cron.schedule import Every
from incumbent.cron.spec import JobSlot, JobSpec
from incumbent.errors import StoreUnavailable
from incumbent.model import Key
from incumbent.notify.outbox import LINGER, Post
from incumbent.notify.receivers import Receiver, parse_ping, parse_receiver
from incumbent.runtime.link import Link, link_for
from tests import tiers
from tests.cli.tool import incumbent
from tests.cron.fleet import NEVER_DUE, CronFleet, real_processes
from tests.cron.test_instance import Launches, quiet
from tests.notify import listening as faults
from tests.notify.listening import SECRET, Listening, listening
from tests.support.waiting import eventually, written

HOOK, PING = "https://hook.example/SECRETPATH", "https://ping.example/SECRETPATH"
NAMES = (f"memory:news{number}" for number in itertools.count())
DUE = 1_700_000_000.0


class Sent:
    """In place of an outbox: what would be sent, at once."""

    def __init__(self) -> None:
        self.posts: list[Post] = []

    def put(self, receiver: Receiver, what: str, compose: Callable[[], Post | None]) -> None:
        assert "SECRETPATH" not in what
        if (post := compose()) is not None:
            self.posts.append(post)

    def messages(self) -> list[tuple[str, dict[str, Any]]]:
        return [(it.webhook.kind, dict(it.webhook.facts)) for it in self.posts if it.webhook]

    def pings(self) -> list[str]:
        return [it.receiver.path for it in self.posts if it.webhook is None]


@pytest.fixture
def link() -> Link:
    return link_for(next(NAMES))


def job(**more: Any) -> JobSpec:
    hook, ping = parse_receiver(HOOK, "notify"), parse_ping(PING, "ping")
    return JobSpec(name="job", schedule=Every(60.0), notify=hook, ping=ping, **more)


def news_to(sent: Sent, link: Link) -> JobNews:
    made = JobNews(link, "n", "me", quiet)
    made._outbox = sent  # type: ignore[assignment]
    return made


def record(link: Link, *runs: SlotRecord) -> None:
    for run in runs:
        link.store.put(Key("n", "job"), RUN + run.slot, encode(run), None, clock.now() + 10)


def run_at(number: int, state: SlotState, **more: Any) -> SlotRecord:
    due = DUE + 60 * number
    return SlotRecord(JobSlot.at(due).name, state, due, "me", 7, due, due + 5, **more)


def ended(link: Link, run: SlotRecord, spec: JobSpec | None = None) -> Sent:
    sent = Sent()
    record(link, run)
    news_to(sent, link).ended(spec or job(), JobSlot(run.slot, run.due), run.state)
    return sent


@pytest.mark.parametrize("state", [SlotState.FAILED, SlotState.TIMED_OUT, SlotState.LOST])
def test_a_bad_end_is_told_with_the_facts_on_record(link: Link, state: SlotState) -> None:
    sent = ended(link, run_at(1, state, code=3, why="exit 3", attempt=2, output="SECRETPATH"))
    ((kind, facts),) = sent.messages()
    assert kind == f"job.{state}"
    assert facts["slot"] == "2023-11-14T22:14:20Z"
    assert (facts["code"], facts["why"], facts["attempt"], facts["term"]) == (3, "exit 3", 2, 7)
    assert (facts["started"], facts["ended"]) == (
        "2023-11-14T22:14:20.000Z",
        "2023-11-14T22:14:25.000Z",
    )
    assert "output" not in facts
    assert sent.pings() == ["/SECRETPATH/3"]


def test_a_good_end_is_pinged_and_not_told(link: Link) -> None:
    record(link, run_at(0, SlotState.OK))
    sent = ended(link, run_at(1, SlotState.OK, code=0))
    assert (sent.messages(), sent.pings()) == ([], ["/SECRETPATH"])


@pytest.mark.parametrize(
    "before", [SlotState.FAILED, SlotState.TIMED_OUT, SlotState.LOST, SlotState.MISSED]
)
def test_the_first_good_end_after_a_bad_one_is_told(link: Link, before: SlotState) -> None:
    record(link, run_at(0, before), run_at(1, SlotState.SKIPPED), run_at(9, SlotState.OK))
    ((kind, facts),) = ended(link, run_at(2, SlotState.OK)).messages()
    assert (kind, facts["state"], facts["before"]) == ("job.recovered", "ok", str(before))
    assert ended(link, run_at(3, SlotState.OK)).messages() == []


def test_a_retry_that_succeeds_is_no_recovery(link: Link) -> None:
    """The attempt before it was not told, because it was retried."""
    record(link, run_at(0, SlotState.OK), run_at(1, SlotState.LOST))
    again = run_at(1, SlotState.OK)
    slot = f"{again.slot}#2"
    record(link, SlotRecord(slot, SlotState.OK, again.due, "me", 8, attempt=2))
    sent = Sent()
    news_to(sent, link).ended(job(), JobSlot(slot, again.due, 2), SlotState.OK)
    assert (sent.messages(), sent.pings()) == ([], ["/SECRETPATH"])


def test_a_loss_that_another_instance_retries_is_not_told(link: Link) -> None:
    now = clock.wall()
    run = SlotRecord(JobSlot.at(now).name, SlotState.LOST, now, "me", 7)
    sent = ended(link, run, job(retries=1))
    assert (sent.messages(), sent.pings()) == ([], [])
    assert len(ended(link, run, job(retries=0)).messages()) == 1


def test_without_the_store_what_is_known_is_told(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_at(1, SlotState.FAILED, code=3)

    def away(*_: object) -> None:
        raise StoreUnavailable("away")

    record(link, run)
    monkeypatch.setattr(link.store, "read", away)
    sent = Sent()
    news_to(sent, link).ended(job(), JobSlot(run.slot, run.due), run.state)
    ((kind, facts),) = sent.messages()
    assert (kind, facts["slot"], facts["code"]) == ("job.failed", run.slot, None)
    assert sent.pings() == ["/SECRETPATH/fail"]


def test_what_is_noted_about_others_is_told(link: Link) -> None:
    sent = Sent()
    news = news_to(sent, link)
    news.noted(job(), run_at(1, SlotState.MISSED, count=3))
    news.noted(job(), run_at(2, SlotState.LOST))
    news.noted(job(), run_at(3, SlotState.SKIPPED))
    now = clock.wall()
    news.noted(job(retries=1), SlotRecord(JobSlot.at(now).name, SlotState.LOST, now, "other"))
    assert [(kind, facts["count"]) for kind, facts in sent.messages()] == [
        ("job.missed", 3),
        ("job.lost", 1),
    ]
    # The switch of a job whose slots are missed goes off because nothing comes.
    assert sent.pings() == ["/SECRETPATH/fail"]


def test_a_job_without_receivers_is_told_to_the_one_of_the_instance(link: Link) -> None:
    sent = Sent()
    news = news_to(sent, link)
    plain = JobSpec(name="job", schedule=Every(60.0))
    news.noted(plain, run_at(1, SlotState.MISSED))
    assert sent.posts == []
    news.default = parse_receiver("https://other.example/", "notify")
    news.noted(plain, run_at(1, SlotState.MISSED))
    news.noted(job(), run_at(1, SlotState.MISSED))
    assert [it.receiver.host for it in sent.posts] == ["other.example", "hook.example"]


def test_the_end_of_a_run_is_told_to_the_receivers_that_it_began_with(link: Link) -> None:
    """The file may be read again meanwhile, and the job may be gone from it."""
    sent = Sent()
    news = news_to(sent, link)
    news.started(job())
    other = JobSpec(name="job", schedule=Every(60.0))
    news.ended(other, JobSlot.at(DUE), SlotState.FAILED)
    assert sent.pings() == ["/SECRETPATH/start", "/SECRETPATH/fail"]


@pytest.mark.parametrize("code", [*STATE_OF, ALREADY_RECORDED, NOT_RECORDED, 125, -9])
def test_only_an_end_that_is_on_record_is_told(link: Link, code: int) -> None:
    """What is not recorded is told by the instance that records it."""
    sent, runs = Sent(), Runs[JobSlot]()
    instance = Instance([job()], link, "n", "me", Launches(), quiet, runs, news=news_to(sent, link))
    instance.step()
    instance.step()
    runs.begin("job", JobSlot.at(DUE).name)
    runs.ended.append(("job", JobSlot.at(DUE), code))
    instance.wake()
    instance.step()
    told = {"/SECRETPATH", "/SECRETPATH/fail"} & set(sent.pings())
    assert sent.pings()[0] == "/SECRETPATH/start"
    assert bool(told) is (code in STATE_OF)
    instance.close()


def test_a_run_of_several_attempts_begins_once() -> None:
    runs = Runs[JobSlot]()
    runs.begin("job", "slot")
    runs.begin("job", "slot")
    assert runs.to_announce == ["job"]


# -- processes -------------------------------------------------------------------------------------


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[CronFleet]:
    running = CronFleet(f"sqlite:///{tmp_path}/leases.db", tmp_path, "")
    running.env["INCUMBENT_NOTIFY_SECRET"] = SECRET
    yield running
    running.stop()


def begin(fleet: CronFleet, server: Listening, job: str, instances: int = 1) -> None:
    url = f"{server.url}/SECRETPATH"
    fleet.file.write_text(
        f'[defaults]\nnotify = "{url}"\n[[job]]\nname = "job"\n{NEVER_DUE}\n{job}\n'
        f'ping = "{url}/ping"\n'
    )
    for _ in range(instances):
        fleet.start("--ttl", "6", "--grace", "1.5")
    eventually(lambda: len(fleet.events("ready")) == instances)


@real_processes
def test_of_three_instances_one_tells_each_end(fleet: CronFleet) -> None:
    with listening() as server:
        begin(fleet, server, 'command = "exit 3"', instances=3)
        for number in range(1, 5):
            fleet.trigger("job")
            eventually(lambda: len(fleet.events("failed")) == number)  # noqa: B023
        # All pings too: an instance that is asked to end has no more than its linger.
        eventually(lambda: len(server.requests) >= 12)
        assert set(fleet.stop()) == {0}
        told = [message["data"]["slot"] for message in server.webhooks()]
        assert sorted(told) == sorted(event["slot"] for event in fleet.events("failed"))
        pings = [request.path for request in server.requests if request.method == "GET"]
        assert sorted(pings) == ["/SECRETPATH/ping/3"] * 4 + ["/SECRETPATH/ping/start"] * 4
    _nothing_secret_was_said(fleet)


def _nothing_secret_was_said(fleet: CronFleet) -> None:
    said = [fleet.errors, *(written(path) for path in fleet.folder.glob("events*"))]
    for command in (("jobs",), ("history", "job"), ("why", "job"), ("status", "--all")):
        for form in ((), ("--json",)):
            done = incumbent("-s", fleet.store, *command, *form)
            said += [done.stdout, done.stderr]
    said += [
        incumbent("cron", "--check", fleet.file, *form, env=fleet.env).stdout
        for form in ((), ("--json",))
    ]
    with Path(fleet.folder / "leases.db").open("rb") as file:
        said.append(file.read().decode("latin-1"))
    for text in said:
        assert "SECRETPATH" not in text
        assert SECRET not in text


@real_processes
@pytest.mark.left(tiers.LONG)
def test_the_run_of_a_killed_instance_is_told_once_by_another(fleet: CronFleet) -> None:
    with listening() as server:
        begin(fleet, server, 'command = "sleep 100"', instances=3)
        fleet.trigger("job")
        (started,) = eventually(lambda: fleet.events("started"))
        eventually(lambda: "/SECRETPATH/ping/start" in server.paths())
        holder = started["instance"]
        fleet.kill(fleet.processes[int(holder[1:]) - 1])
        eventually(server.webhooks, within=120)
        eventually(lambda: "/SECRETPATH/ping/fail" in server.paths())
        fleet.stop()
        (message,) = server.webhooks()
        assert message["type"] == "job.lost"
        assert message["data"]["instance"] == holder != message["data"]["told_by"]
        assert server.paths().count("/SECRETPATH/ping/fail") == 1


@real_processes
@pytest.mark.left(tiers.LONG)
@pytest.mark.parametrize("fault", [faults.HANGS, faults.ENDLESS_HEAD, "503"])
def test_a_bad_receiver_delays_no_start_no_renewal_and_no_end(fleet: CronFleet, fault: str) -> None:
    with listening(fault) as server:
        begin(fleet, server, 'command = "test -e $FOLDER/long && sleep 9; exit 3"')
        for number in range(1, 4):
            fleet.trigger("job")
            eventually(lambda: len(fleet.events("failed")) == number)  # noqa: B023
        eventually(lambda: server.requests)
        # The ttl is 6 s: the lease of this run has to be renewed.
        (fleet.folder / "long").touch()
        fleet.trigger("job")
        eventually(lambda: len(fleet.events("failed")) == 4, within=60)
        assert not fleet.events("lost")
        assert fleet.stop() == [0]


@real_processes
def test_a_job_file_that_is_read_again_needs_its_secret_too(fleet: CronFleet) -> None:
    del fleet.env["INCUMBENT_NOTIFY_SECRET"]
    fleet.file.write_text(f'[[job]]\nname = "job"\n{NEVER_DUE}\ncommand = "true"\n')
    process = fleet.start()
    eventually(lambda: fleet.events("ready"))
    fleet.file.write_text(f'{fleet.file.read_text()}notify = "{HOOK}"\n')
    os.kill(process.pid, signal.SIGHUP)
    (event,) = eventually(lambda: fleet.events("reload_failed"))
    assert "there is no secret" in event["why"]
    assert "SECRETPATH" not in event["why"]


# -- the file --------------------------------------------------------------------------------------


def written_job(tmp_path: Path, line: str) -> Path:
    path = tmp_path / "jobs.toml"
    path.write_text(f'[[job]]\nname = "job"\nevery = "1h"\ncommand = "true"\n{line}\n')
    return path


@pytest.mark.parametrize(
    ("line", "text", "place"),
    [
        ('notify = "h/SECRETPATH"', "notify: the URL begins with https://", (5, 1)),
        ('ping = "https://h:SECRETPATH/"', "ping: the host or the port of the URL", (5, 1)),
        ('ping = { start = "https://h/SECRETPATH" }', "ping: the URL for success is", (5, 1)),
        ('notify = "${HOOK}"', "the variable HOOK is not set", (5, 1)),
        ('ping = "${SECRET}"', "ping: the URL begins with https://", (5, 1)),
    ],
)
def test_what_is_wrong_with_a_receiver_is_said_with_its_place(
    tmp_path: Path, line: str, text: str, place: tuple[int, int]
) -> None:
    path = written_job(tmp_path, line)
    loaded = load_jobs(str(path), {"PATH": os.defpath, "SECRET": "SECRETPATH"}, 0.0)
    (problem,) = loaded.errors
    assert text in problem.text
    assert "SECRETPATH" not in problem.text
    assert (problem.line, problem.column) == place


def test_a_ping_is_no_default(tmp_path: Path) -> None:
    path = tmp_path / "jobs.toml"
    path.write_text(f'[defaults]\nping = "{PING}"\n{written_job(tmp_path, "").read_text()}')
    (problem,) = load_jobs(str(path), {"PATH": os.defpath}, 0.0).errors
    assert "only a [[job]] has it" in problem.text


@real_processes
def test_check_refuses_a_webhook_without_a_secret(tmp_path: Path) -> None:
    path = written_job(tmp_path, f'notify = "{HOOK}"')
    done = incumbent("cron", "--check", path)
    assert (done.returncode, "there is no secret" in done.stderr) == (64, True), done.stderr
    as_json = incumbent("cron", "--check", path, "--json")
    assert (as_json.returncode, "there is no secret" in as_json.stdout) == (64, True)
    assert "SECRETPATH" not in done.stdout + done.stderr + as_json.stdout + as_json.stderr
    assert (
        incumbent("cron", "--check", path, env={"INCUMBENT_NOTIFY_SECRET": SECRET}).returncode == 0
    )


def test_the_linger_of_an_instance_is_short() -> None:
    assert LINGER <= 2.0


@real_processes
def test_functions_refuse_a_receiver_that_they_would_not_tell(tmp_path: Path) -> None:
    source = (
        "import incumbent\njobs = incumbent.Jobs()\n"
        "@jobs.every(60)\ndef tick():\n    raise SystemExit(1)\n"
    )
    (tmp_path / "itsjobs.py").write_text(source)
    env = {"PYTHONPATH": str(tmp_path), "INCUMBENT_NOTIFY": HOOK}
    done = incumbent("-s", f"sqlite:///{tmp_path}/x.db", "cron", "itsjobs:jobs", env=env)
    assert (done.returncode, "is for a file of commands" in done.stderr) == (64, True), done.stderr
    assert "SECRETPATH" not in done.stderr
