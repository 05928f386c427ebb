"""Each exit code of `run`, with its one line on stderr and its result file."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from incumbent import clock
from incumbent.durations import parse_duration
from incumbent.model import Ask, Granted, Key
from incumbent.runtime.link import link_for
from tests import tiers
from tests.cli.tool import answer, command_line, environment, incumbent, python, start
from tests.support.servers import RedisServer, free_port
from tests.support.waiting import eventually

SHORT = ("--ttl", "6", "--grace", "0.1")
"""A short grace. A busy disk may take half a second to make the file, so the ttl is not short."""


@contextmanager
def holder(store: str, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Somebody holds "job" until the block ends."""
    with start("-s", store, "run", "job", "--holder", "them", *options, "--", "sleep", "30") as it:
        try:
            eventually(lambda: '"held"' in incumbent("-s", store, "status", "--json").stdout)
            yield it
        finally:
            it.terminate()
            it.communicate()


def lines(result: subprocess.CompletedProcess[str]) -> list[str]:
    return result.stderr.splitlines()


def result_of(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    assert list(found) == ["command", "namespace", "time", "result"]
    assert found["command"] == "run"
    result: dict[str, Any] = found["result"]
    return result


@pytest.mark.left(tiers.SIDES, "0", "75")
@pytest.mark.parametrize("code", [0, 1, 7, 75, 255])
def test_the_commands_own_code_is_untouched(store: str, code: int) -> None:
    done = incumbent("-s", store, "run", "-q", "job", "--", *python(f"raise SystemExit({code})"))
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_a_command_that_dies_by_a_signal_gives_its_number(store: str) -> None:
    done = incumbent("-s", store, "run", "job", "--", "sh", "-c", "kill -KILL $$")
    assert (done.returncode, done.stderr) == (128 + signal.SIGKILL, "")


@pytest.mark.parametrize("isolate", ["auto", "pgroup"])
def test_a_command_inherits_no_descriptor_of_ours(store: str, isolate: str) -> None:
    script = python("import os; print(*(os.readlink(f.path) for f in os.scandir('/proc/self/fd')))")
    bare = subprocess.run(script, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    done = incumbent("-s", store, "run", "-q", "job", "--isolate", isolate, "--", *script)
    assert len(done.stdout.split()) == len(bare.stdout.split())


def test_success_is_quiet_but_for_the_hint_on_short_jobs(store: str) -> None:
    hinted = incumbent("-s", store, "run", "job", "--", "true")
    assert len(lines(hinted)) == 1
    assert "--once-per" in hinted.stderr
    assert incumbent("-s", store, "run", "-q", "job", "--", "true").stderr == ""
    assert incumbent("-s", store, "run", "job", "--once-per", "1h", "--", "true").stderr == ""


def test_a_skip_says_who_holds_it_and_for_how_long(store: str, tmp_path: Path) -> None:
    file = tmp_path / "result"
    with holder(store):
        done = incumbent("-s", store, "run", "job", "--result-file", file, "--", "true")
    assert done.returncode == 75
    (line,) = lines(done)
    assert re.match(r"incumbent: job: skipped: held by them, ttl \d", line), line
    result = result_of(file)
    assert (result["outcome"], result["exit_code"], result["held_by"]) == ("skipped", 75, "them")


def test_a_skip_exits_as_asked(store: str) -> None:
    with holder(store):
        assert incumbent("-s", store, "run", "-E", "0", "job", "--", "true").returncode == 0
        quiet = incumbent("-s", store, "-q", "run", "job", "--", "true")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (75, "", "")


def test_a_job_that_ran_is_skipped_until_its_slot_is_over(store: str) -> None:
    run = ("-s", store, "run", "job", "--once-per", "12h", "--holder")
    assert incumbent(*run, "me", "--", "true").returncode == 0
    again = incumbent(*run, "you", "--", "true")
    assert again.returncode == 75
    assert "skipped: already ran by me; its slot stays used for another 1" in again.stderr


NO_FOLDER = """
import sys, tempfile
def refuse(**_): raise OSError
tempfile.mkdtemp = refuse
from incumbent.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_job_that_could_not_be_prepared_leaves_its_slot(store: str, tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    run = ("-s", store, "run", "job", "--once-per", "12h", "--", "touch", str(touched))
    refused = subprocess.run(
        [sys.executable, "-c", NO_FOLDER, *run], env=environment(), capture_output=True, check=False
    )
    assert (refused.returncode, touched.exists()) == (64, False)
    assert b"no folder for the lease's socket" in refused.stderr
    assert incumbent(*run).returncode == 0
    assert touched.exists()


def test_waiting_in_vain_ends_in_time_with_75(store: str) -> None:
    with holder(store):
        done = incumbent("-s", store, "run", "--wait=1", "job", "--", "true")
    assert done.returncode == 75
    assert (waited := re.search(r"gave up after ([\d.]+m?s)", done.stderr)), done.stderr
    assert 1 <= parse_duration(waited[1], "waited") < 15
    assert "held by them" in done.stderr


def test_waiting_ends_when_the_holder_does(store: str) -> None:
    with holder(store) as them:
        with start("-s", store, "run", "-q", "--wait=10", "job", "--", "echo", "mine") as us:
            them.terminate()
            assert us.communicate()[0] == "mine\n"
        assert us.returncode == 0


@pytest.mark.left(tiers.SIDES, "15")
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_ends_the_wait_and_leaves_nothing_behind(store: str, signum: int) -> None:
    with holder(store) as them:
        with start("-s", store, "run", "-v", "--wait", "job", "--", "true") as us:
            eventually(lambda: waits(us.pid))
            us.send_signal(signum)
            _, said = us.communicate()
        assert us.returncode == 128 + signum
        assert said.count("incumbent:") == 1
        assert "nothing ran" in said
        assert them.poll() is None


def waits(pid: int) -> bool:
    """Whether it has its handlers and its store: before that a signal ends it as any other."""
    status = Path(f"/proc/{pid}/status").read_text()
    (mask,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
    handled = int(mask, 16) >> (signal.SIGTERM - 1) & 1
    return bool(handled) and "leases.db" in Path(f"/proc/{pid}/maps").read_text()


def test_a_store_that_gives_no_answer_is_69_and_nothing_ran(tmp_path: Path) -> None:
    file, touched = tmp_path / "result", tmp_path / "touched"
    url = f"redis://127.0.0.1:{free_port()}"
    done = incumbent("-s", url, "run", "job", "--result-file", file, "--", "touch", touched)
    assert done.returncode == 69
    assert len(lines(done)) == 1
    assert "nothing ran" in done.stderr
    assert not touched.exists()
    assert result_of(file)["outcome"] == "unproved"


def test_a_bounded_run_is_stopped_in_time(store: str, tmp_path: Path) -> None:
    file = tmp_path / "result"
    bound = ("--at-most-for", "0.3", *SHORT, "--result-file", file)
    done = incumbent("-s", store, "run", "job", *bound, "--", "sleep", "30")
    assert done.returncode == 124
    assert "--at-most-for" in done.stderr
    result = result_of(file)
    assert (result["outcome"], result["reason"]) == ("at_most_for", "at_most_for")
    assert result["term"] > 0
    assert result["started"] <= result["ended"]


@pytest.mark.left(tiers.FORMS, "no-such-command-127")
@pytest.mark.parametrize(("command", "code"), [("no-such-command", 127), ("/etc/passwd", 126)])
def test_what_cannot_be_started_gives_lease_and_slot_back(
    store: str, command: str, code: int
) -> None:
    run = ("-s", store, "run", "job", "--once-per", "12h", "--at-least-for", "1h", "--")
    done = incumbent(*run, command)
    assert done.returncode == code
    assert command in done.stderr
    assert len(lines(done)) == 1
    assert incumbent(*run, "true").returncode == 0


def test_a_broken_lease_is_123(store: str, tmp_path: Path) -> None:
    file = tmp_path / "result"
    # Longer than a busy machine stands still: it is to be broken, not lost.
    bound = ("--ttl", "3", "--grace", "0.1", "--result-file", str(file))
    with start("-s", store, "run", "job", *bound, "--", "sleep", "30") as us:
        eventually(lambda: '"held"' in incumbent("-s", store, "status", "--json").stdout)
        assert incumbent("-s", store, "break", "job").returncode == 0
        _, said = us.communicate()
    assert us.returncode == 123
    assert "an operator" in said
    assert result_of(file)["reason"] == "broken"


LONG = ("--ttl", "60")
_ON_RECORD: tuple[list[str], ...] = (
    [],
    ["--once-per", "1h"],
    ["--once-per", "1h", "--slot", "today"],
)


@pytest.mark.left(tiers.MEET, "0-", "7---once-per 1h", "0---once-per 1h --slot today")
@pytest.mark.parametrize("recorded", _ON_RECORD, ids=" ".join)
@pytest.mark.parametrize("code", [0, 7])
def test_a_command_that_outlived_its_lease_reports_no_success(
    store: str, tmp_path: Path, recorded: list[str], code: int
) -> None:
    """No renewal is due before it ends: only the release, or the ledger, finds it out."""
    file, go = tmp_path / "result", tmp_path / "go"
    script = f"while ! test -e {go}; do sleep 0.01; done; exit {code}"
    words = ("run", "-q", "job", *LONG, *recorded, "--result-file", str(file), "--")
    with start("-s", store, *words, "sh", "-c", script) as us:
        eventually(lambda: '"held"' in incumbent("-s", store, "status", "--json").stdout)
        remove_and_hold(store)
        go.touch()
        _, said = us.communicate()
    assert us.returncode == (code or 123)
    assert "is gone from the store" in said
    assert "CMD ended after" in said
    assert result_of(file)["reason"] == "taken"
    if recorded:
        assert '"lost"' in history_of(store)
        assert '"ok"' not in history_of(store)


@pytest.mark.left(tiers.SIDES, "7")
@pytest.mark.server
@pytest.mark.parametrize("code", [0, 7])
def test_an_end_that_the_ledger_cannot_be_told_in_time_is_lost_here_and_there(
    tmp_path: Path, code: int
) -> None:
    """CMD ends within its lease, but the store is away until that has run out."""
    file, go, began = (tmp_path / name for name in ("result", "go", "began"))
    script = f"touch {began}; while ! test -e {go}; do sleep 0.01; done; exit {code}"
    words = ("run", "-q", "job", "--ttl", "6", "--once-per", "1h", "--result-file", str(file), "--")
    with RedisServer() as server:
        store = f"{server.url}?restart_wait=0"
        with start("-s", store, *words, "sh", "-c", script) as us:
            # Not once its run is on record: the job itself is written after that, before CMD.
            eventually(began.exists)
            assert '"running"' in history_of(store)
            server.freeze()
            go.touch()
            _, said = us.communicate()
            server.thaw()
        assert us.returncode == (code or 123)
        assert "before the end of the work was on record; CMD ended after" in said
        assert result_of(file)["reason"] == "unrecorded"
        assert '"ok"' not in history_of(store)


def history_of(store: str) -> str:
    return json.dumps(answer("-s", store, "history", "job"))


@pytest.mark.left(tiers.FORMS, "7")
@pytest.mark.parametrize("code", [0, 7])
def test_a_leader_that_outlived_its_lease_reports_no_success(
    store: str, tmp_path: Path, code: int
) -> None:
    go = tmp_path / "go"
    script = f"while ! test -e {go}; do sleep 0.01; done; exit {code}"
    words = ("lead", "job", *LONG, "--restart", "never", "--", "sh", "-c", script)
    with start("-s", store, *words) as us:
        eventually(lambda: '"held"' in incumbent("-s", store, "status", "--json").stdout)
        remove_and_hold(store)
        go.touch()
        _, said = us.communicate()
    assert us.returncode == (code or 123)
    assert "is gone from the store" in said


def remove_and_hold(store: str) -> None:
    """The record is removed under its holder, and another one takes the name."""
    link = link_for(store)
    key = Key("default", "job")
    (holding,) = link.store.read(key, clock.now() + 5).holdings
    link.store.give(key, holding.claim, None, clock.now() + 5)
    taken = link.store.take(key, "f" * 32, Ask(60.0, "rival"), clock.now() + 5)
    assert isinstance(taken, Granted)


def test_signals_reach_the_command_and_its_answer_comes_back(store: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"trap 'exit 42' USR2; touch {ready}; while :; do sleep 0.01; done"
    with start("-s", store, "run", "-q", "job", "--", "sh", "-c", script) as us:
        eventually(ready.exists)
        us.send_signal(signal.SIGUSR2)
        us.communicate()
    assert us.returncode == 42


def test_the_command_inherits_what_its_caller_left_open(store: str) -> None:
    reader, writer = os.pipe()
    script = f"import os; os.write({writer}, b'through')"
    line = ("-s", store, "run", "-q", "job", "--", *python(script))
    subprocess.run(command_line(*line), env=environment(), pass_fds=(writer,), check=True)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == "through"


def test_the_result_of_a_run_is_complete(store: str, tmp_path: Path) -> None:
    file = tmp_path / "result"
    line = (
        "run",
        "job",
        "--holder",
        "me",
        "--result-file",
        str(file),
        "--",
        *python("raise SystemExit(3)"),
    )
    assert incumbent("-s", store, *line).returncode == 3
    result = result_of(file)
    assert set(result) == {
        *("outcome", "exit_code", "name", "holder", "held_by", "term"),
        *("started", "ended", "reason"),
    }
    assert (result["outcome"], result["exit_code"], result["holder"]) == ("ended", 3, "me")
    assert [path.name for path in tmp_path.iterdir() if "result" in path.name] == ["result"]


@pytest.mark.parametrize("kind", ["link", "pipe", "long"])
def test_a_result_file_stays_what_it_is(tmp_path: Path, kind: str) -> None:
    file = tmp_path / ("a" * 255 if kind == "long" else "result")
    reading = -1
    if kind == "link":
        (tmp_path / "below").mkdir()
        file.symlink_to("below/real")
    elif kind == "pipe":
        os.mkfifo(file)
        reading = os.open(file, os.O_RDONLY | os.O_NONBLOCK)
    store = f"sqlite:///{tmp_path}/leases.db"
    done = incumbent("-s", store, "run", "-q", "job", "--result-file", file, "--", "true")
    assert (done.returncode, done.stderr) == (0, "")
    if kind == "pipe":
        said = os.read(reading, 4096).decode()
        os.close(reading)
    else:
        said = file.read_text()
    assert json.loads(said)["result"]["outcome"] == "ended"
    assert (file.is_symlink(), file.is_fifo()) == (kind == "link", kind == "pipe")
    assert not list(tmp_path.glob(".incumbent*"))
