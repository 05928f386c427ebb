"""`logs`: the output of a job's runs, and of those that come."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest

from incumbent import Client, Lock, clock
from incumbent.cli import logs
from incumbent.cli.logs import beyond
from incumbent.cli.main import main
from incumbent.cron.ledger import JOB, RUN, SlotRecord, SlotState, encode
from incumbent.model import Ask, Granted, Key, Record
from incumbent.runtime.link import link_for
from tests.cli.tool import answer, incumbent, start
from tests.support.servers import RedisServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


class Job:
    """A job whose runs a test writes as an instance would."""

    def __init__(self, store: str, name: str = "nightly") -> None:
        self._client, self._key = Client(store), Key("default", name)
        # Only a run whose holder is there goes on.
        link, ask = link_for(self._client), Ask(3600.0, "i1")
        granted = link.store.take(self._key, "c" * 32, ask, clock.now() + 30)
        assert isinstance(granted, Granted)
        self._token = granted.token
        self._put(JOB, b'{"schedule":"every 1h","timezone":"UTC"}')

    def write(self, run: SlotRecord) -> SlotRecord:
        self._put(RUN + run.slot, encode(replace(run, token=self._token)))
        return run

    def remove(self) -> None:
        self._put(JOB, None)

    def close(self) -> None:
        self._client.close()

    def _put(self, field: str, value: bytes | None) -> None:
        link_for(self._client).store.put(self._key, field, value, None, clock.now() + 30)


@pytest.fixture
def job(store: str) -> Iterator[Job]:
    made = Job(store)
    yield made
    made.close()


def ran(slot: str, output: str, due: float, **changes: object) -> SlotRecord:
    run = SlotRecord(slot, SlotState.OK, due, "i1", 1, due, due + 3, 0, output=output)
    return replace(run, **changes)  # type: ignore[arg-type]


@pytest.fixture
def follower(store: str, job: Job) -> Iterator[subprocess.Popen[str]]:
    del job  # It has to be there first.
    with start("-s", store, "logs", "nightly", "-f") as process:
        yield process
        process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    return process.stderr.readline()


def test_the_output_of_the_last_run_is_on_stdout_alone(store: str, job: Job) -> None:
    job.write(ran("1", "old", 1.0))
    job.write(ran("2", "a\nb\x1b[31m", 2.0, state=SlotState.FAILED, code=3, why="exit 3"))
    done = incumbent("-s", store, "logs", "nightly")
    assert (done.returncode, done.stdout) == (0, "a\nb\\x1b[31m\n")
    assert done.stderr == "incumbent: nightly 2: failed (3) on i1: exit 3\n"
    assert incumbent("-s", store, "-q", "logs", "nightly").stderr == ""
    assert incumbent("-s", store, "logs", "nightly", "-n", "2").stdout.startswith("old\na\n")
    (run,) = answer("-s", store, "logs", "nightly")
    assert (run["slot"], run["output"]) == ("2", "a\nb\x1b[31m")


def test_it_follows_the_runs_that_come_and_ends_with_130(
    job: Job, follower: subprocess.Popen[str]
) -> None:
    run = job.write(ran("1", "", 1.0, state=SlotState.RUNNING, ended=None, code=None))
    assert said(follower) == "incumbent: nightly 1: running on i1\n"
    job.write(replace(run, output="first\n"))
    assert line_of(follower) == "first\n"
    job.write(replace(run, output="first\nsecond", state=SlotState.OK, ended=9.0))
    assert line_of(follower) == "second\n"
    assert said(follower) == "incumbent: nightly 1: ok on i1\n"
    job.write(ran("2", "of the next", 5000.0))
    assert line_of(follower) == "of the next\n"
    assert said(follower) == "incumbent: nightly 2: ok on i1\n"
    follower.send_signal(signal.SIGINT)
    assert follower.wait(30) == 130
    assert said(follower) == ""


def test_each_attempt_of_a_run_is_shown(job: Job, follower: subprocess.Popen[str]) -> None:
    run = job.write(
        ran("1", "once", 1.0, state=SlotState.WAITING, ended=None, code=1, why="exit 1")
    )
    assert line_of(follower) == "once\n"
    assert said(follower) == "incumbent: nightly 1: waiting on i1: exit 1\n"
    job.write(replace(run, output="once", attempt=2, state=SlotState.OK, why="", ended=9.0))
    assert line_of(follower) == "once\n"
    assert said(follower) == "incumbent: nightly 1: ok on i1, attempt 2\n"


def test_for_programs_each_piece_is_a_line_of_json(store: str, job: Job) -> None:
    run = job.write(ran("1", "a", 1.0, state=SlotState.RUNNING, ended=None, code=None))
    with start("-s", store, "--json", "logs", "nightly", "--follow") as process:
        first = json.loads(line_of(process))
        job.write(replace(run, output="ab", state=SlotState.OK, ended=9.0, code=0))
        second = json.loads(line_of(process))
        process.kill()
    assert (first["state"], first["output"]) == ("running", "a")
    assert (second["state"], second["output"], second["exit_code"]) == ("ok", "b", 0)


def test_a_job_that_nobody_knows_is_said_and_ends(store: str, job: Job) -> None:
    job.write(ran("1", "x", 1.0))
    for words in ((), ("-f",), ("--json",)):
        done = incumbent("-s", store, "logs", "nightli", *words)
        assert (done.returncode, done.stdout) == (64, "")
        assert "nothing on record; did you mean 'nightly'?; see" in done.stderr
    with Lock("plain", store=store):
        pass
    assert "this is no job" in incumbent("-s", store, "logs", "plain").stderr


def test_a_job_that_goes_ends_it(job: Job, follower: subprocess.Popen[str]) -> None:
    job.write(ran("1", "x", 1.0))
    assert line_of(follower) == "x\n"
    job.remove()
    assert follower.wait(60) == 64


def test_a_store_that_goes_away_and_stays_away_ends_it_with_69(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with RedisServer() as server:
        store = f"{server.url}?restart_wait=0"
        with closing(Job(store)) as job:
            job.write(ran("1", "x", 1.0))
        show = logs._Follower.show

        def show_and_end_the_server(self: logs._Follower, record: Record) -> None:
            show(self, record)
            monkeypatch.setattr(logs, "_ANSWER_WITHIN", 1.0)
            server.kill()

        monkeypatch.setattr(logs._Follower, "show", show_and_end_the_server)
        assert main(["-s", store, "logs", "nightly", "-f"]) == 69
    out, errors = capsys.readouterr()
    assert out == "x\n"
    assert f"127.0.0.1:{server.port}" in errors


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        ("", "abc", "abc"),
        ("abc", "abc", ""),
        ("abc", "abcd", "d"),
        ("abcdef", "defgh", "gh"),
        ("tick\ntick", "tick\ntick\ntick", "\ntick"),
        ("the end so far", "all that was before the end so far\nand the rest", "\nand the rest"),
        ("abc", "xyz", "\n...\nxyz"),
    ],
)
def test_what_a_window_shows_beyond_the_last_is_new(before: str, now: str, new: str) -> None:
    assert beyond(before, now) == new
