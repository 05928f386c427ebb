"""Jobs that write more than anybody can read: they are not slowed down, and no other job is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from incumbent.cron.ledger import SlotState
from tests import tiers
from tests.cli.tool import command_line, environment
from tests.cron.fleet import NEVER_DUE, REAL_PROCESSES, TIMES, CronFleet
from tests.support.waiting import eventually

pytestmark = REAL_PROCESSES
MANY = 500_000
TALK = f"""
[[job]]
name = "talk"
{NEVER_DUE}
command = "COMMAND"
keep_output = 8
at_most_for = "60s"
on_failure = "yes | head -n {MANY}; echo told > $FOLDER/told"
"""
COMMANDS = {
    "many lines": f"yes | head -n {2 * MANY}",
    "standard error": "yes so it goes on and on and on | head -c 3000000 >&2; echo >&2",
    "both": "yes on and on and on | head -c 3000000 >&2 & yes | head -c 9000; wait; echo",
    "no line": "head -c 3000000 /dev/zero | tr '\\\\0' x; echo",
    "no text": "head -c 3000000 /dev/urandom; echo",
}
UNTIL = "until [ -e $FOLDER/{} ]; do sleep 0.1; done"
THEN_WAIT = f"; touch $FOLDER/said; {UNTIL.format('go')}; echo the end; {UNTIL.format('read')}"


@contextmanager
def unread(fleet: CronFleet) -> Iterator[subprocess.Popen[bytes]]:
    """An instance whose standard output nobody reads, until its test does."""
    line = ("-s", fleet.store, "cron", str(fleet.file), *TIMES, "--holder", "i1")
    process = subprocess.Popen(
        command_line(*line),
        env=environment({"FOLDER": str(fleet.folder)}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    fleet.processes.append(process)
    yield process
    process.send_signal(signal.SIGTERM)
    process.wait(30)
    assert process.stdout is not None
    process.stdout.close()


class Reader:
    """Read to the end."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._lines = stream, list[bytes]()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        for line in self._stream:
            self._lines.append(line)

    def has_read(self, line: str) -> bool:
        return any(json.loads(it).get("line") == line for it in self._lines[-10:])

    def events(self) -> list[dict[str, Any]]:
        """Each line is whole: what is cut would be no JSON."""
        self._thread.join(30)
        return list(map(json.loads, self._lines))


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[CronFleet]:
    running = CronFleet(f"sqlite:///{tmp_path}/leases.db", tmp_path, "")
    yield running
    running.stop()


def states_of(fleet: CronFleet, job: str = "talk") -> list[SlotState]:
    return [run.state for run in fleet.runs(job).values()]


@pytest.mark.left(tiers.LONG)
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_job_whose_output_nobody_reads_ends_as_if_it_were_read(
    fleet: CronFleet, command: str
) -> None:
    fleet.file.write_text(TALK.replace("COMMAND", command + THEN_WAIT))
    with unread(fleet) as process:
        fleet.trigger("talk")
        eventually((fleet.folder / "said").exists)
        # It has said all of it, to nobody. Now somebody reads.
        assert process.stdout is not None
        reader = Reader(process.stdout)
        (fleet.folder / "go").touch()
        # On a busy machine a reader may be later than what is left is kept for it at the end.
        eventually(lambda: reader.has_read("the end"))
        (fleet.folder / "read").touch()
        eventually(lambda: states_of(fleet) == [SlotState.OK])
        (run,) = fleet.runs("talk").values()
        assert run.output == "the end"
    events = reader.events()
    assert {"ready", "started", "output", "output_lost", "ok"} <= {it["event"] for it in events}
    assert [it["line"] for it in events if it["event"] == "output"][-1] == "the end"


def test_all_that_a_talkative_job_says_is_read_while_somebody_reads(fleet: CronFleet) -> None:
    both = f"yes | head -n {MANY // 20} >&2 & yes | head -n {MANY // 20}; wait; echo the end"
    fleet.file.write_text(TALK.replace("COMMAND", both))
    fleet.start()
    fleet.trigger("talk")
    eventually(lambda: states_of(fleet) == [SlotState.OK])
    fleet.stop()
    said = [event["line"] for event in fleet.events("output")]
    assert (said.count("y"), said[-1]) == (MANY // 10, "the end")
    assert fleet.events("output_lost") == []


def test_a_job_that_writes_for_ever_is_stopped_in_time_and_keeps_no_other_waiting(
    fleet: CronFleet,
) -> None:
    beat = '[[job]]\nname = "beat"\nevery = "2s"\ncommand = "echo x >> $FOLDER/beat"\n'
    talk = TALK.replace("COMMAND", "yes").replace("60s", "4s")
    fleet.file.write_text(beat + talk)
    with unread(fleet):
        fleet.trigger("talk")
        eventually(lambda: states_of(fleet) == [SlotState.TIMED_OUT], within=30)
        eventually((fleet.folder / "told").exists, within=30)
        states = states_of(fleet, "beat")
        assert SlotState.OK in states
        assert set(states) <= {SlotState.OK, SlotState.RUNNING}


@pytest.mark.left(tiers.LONG)
def test_what_a_job_says_costs_no_memory(fleet: CronFleet) -> None:
    quiet = f'[[job]]\nname = "quiet"\n{NEVER_DUE}\ncommand = "true"\n'
    fleet.file.write_text(quiet + TALK.replace("COMMAND", "yes | head -c 300000000"))
    with unread(fleet) as process:
        fleet.trigger("quiet")
        before = rss_of_largest(process.pid)
        fleet.trigger("talk")
        most = 0

        def is_over() -> bool:
            nonlocal most
            most = max(most, rss_of_largest(process.pid))
            return states_of(fleet) == [SlotState.OK]

        eventually(is_over, within=60)
    assert most - before < 30_000_000


def rss_of_largest(session: int) -> int:
    """Bytes of memory that the largest of the processes below this one has."""
    found, left = 0, [session]
    while left:
        pid = left.pop()
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            for task in Path(f"/proc/{pid}/task").iterdir():
                left += map(int, (task / "children").read_text().split())
        except (OSError, ValueError):
            continue
        found = max(found, pages * os.sysconf("SC_PAGE_SIZE"))
    return found
