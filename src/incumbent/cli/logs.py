"""`logs`: the output of a job's runs; with `-f` also of the runs that come."""

from __future__ import annotations

import sys

from incumbent import clock
from incumbent.cli.operator import REQUEST_TIMEOUT, describe_unknown, open_client, read_until
from incumbent.cli.parser import CommandRequest
from incumbent.cli.settings import number
from incumbent.cli.text import print_json, say
from incumbent.cron import fleet
from incumbent.cron.ledger import SlotRecord, SlotState
from incumbent.model import Record
from incumbent.page.facts import run_as_json
from incumbent.printable import json_line, printable_lines
from incumbent.supervise.codes import OK, USAGE

_LOOKS_EVERY = 1.0
_ANSWER_WITHIN = 30.0
"""Seconds without an answer of the store after which `-f` ends."""
_MOST_SHOWN = 10_000


def command(request: CommandRequest) -> int:
    """Show the last runs, and with `-f` the next ones until ^C. Raises StoreError."""
    most = number(request, "last", 1, _MOST_SHOWN, 1)
    with open_client(request) as client:
        record = client.read(request.name, REQUEST_TIMEOUT)
        runs = fleet.runs_in(record)
        follower = _Follower(request, runs[:-most])
        while fleet.is_job(record):
            if request.on("json") and not request.on("follow"):
                print_json(request, [run_as_json(run) for run in runs[-most:]])
                return OK
            follower.show(record)
            if not request.on("follow"):
                return OK
            until = clock.now() + _ANSWER_WITHIN
            record = read_until(client, request.name, until, follower.lacks, _LOOKS_EVERY)
        unknown = describe_unknown(client, record) or "this is no job: only jobs keep their output"
        say(f"{request.name}: {unknown}; see `incumbent jobs`")
    return USAGE


def _name_of(run: SlotRecord) -> tuple[str, int]:
    return run.slot, run.attempt


class _Follower:
    """What was shown of each run: the output in the record is only its end, which moves on."""

    def __init__(self, request: CommandRequest, passed: list[SlotRecord]) -> None:
        self._request = request
        self._shown = {_name_of(run): run for run in passed}

    def lacks(self, record: Record) -> bool:
        """Whether there is anything to show, or the job is gone."""
        return not fleet.is_job(record) or any(map(self._is_news, fleet.runs_in(record)))

    def show(self, record: Record) -> None:
        """Show what is new."""
        for run in filter(self._is_news, fleet.runs_in(record)):
            before = self._shown.get(_name_of(run))
            piece = beyond(before.output if before else "", run.output)
            self._shown[_name_of(run)] = run
            if self._request.on("json"):
                print(json_line({**run_as_json(run), "output": piece}))
            else:
                self._write(run, before, piece)
            sys.stdout.flush()

    def _is_news(self, run: SlotRecord) -> bool:
        before = self._shown.get(_name_of(run))
        if before is None:
            return True
        changed = run.state is not before.state or run.output != before.output
        return changed and not before.state.ended

    def _write(self, run: SlotRecord, before: SlotRecord | None, piece: str) -> None:
        """The output to stdout alone, as it is; what became of the run to stderr."""
        running = run.state is SlotState.RUNNING
        if before is None and running:
            self._say(run)
        print(printable_lines(piece), end="\n" if run.output and not running else "")
        sys.stdout.flush()
        if not running:
            self._say(run)

    def _say(self, run: SlotRecord) -> None:
        if not self._request.on("quiet"):
            by = f" on {run.instance}" if run.instance else ""
            attempt = f", attempt {run.attempt}" if run.attempt > 1 else ""
            why = f": {said}" if (said := fleet.why_and_who(run)) else ""
            say(f"{self._request.name} {run.slot}: {fleet.result_of(run)}{by}{attempt}{why}")


def beyond(before: str, now: str) -> str:
    """What the end of an output has beyond an earlier one; with "..." if part of it was lost.

    While a run goes on less of its output is on record than after its end.
    """
    if before in now:
        return now[now.index(before) + len(before) :]
    for kept in range(min(len(before), len(now)), 0, -1):
        if before.endswith(now[:kept]):
            return now[kept:]
    return f"\n...\n{now}"
