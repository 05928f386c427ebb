"""Events as lines of JSON on standard output, and the metrics of jobs."""

from __future__ import annotations

import logging
import os
import select
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from typing import Any, Final, Protocol

from incumbent import clock
from incumbent.cron.ledger import SlotRecord, SlotState, runs_of
from incumbent.cron.spec import JobSpec
from incumbent.meters import JOB_RUN, RUN_STATES, Sample, pass_on
from incumbent.model import Record
from incumbent.printable import json_line, printable

_log = logging.getLogger("incumbent.jobs")
_WORTH_A_WARNING: Final = frozenset({"failed", "timed_out", "lost", "missed", "store", "fault"})
_STDOUT = 1
LONGEST_EVENT = 4096
"""Bytes that a pipe takes in one piece, so that lines of several processes never mix."""


class Emit(Protocol):
    """A function that receives events."""

    def __call__(self, event: str, /, **facts: Any) -> None: ...


def log_event(event: str, /, **facts: Any) -> None:
    """Tell an event by the log "incumbent.jobs"."""
    given = {key: value for key, value in facts.items() if value is not None}
    text = " ".join(f"{key}={printable(str(value))}" for key, value in given.items())
    level = logging.WARNING if event in _WORTH_A_WARNING else logging.INFO
    _log.log(level, "%s %s", event, text)


class _Dropped:
    """The number of lines that were dropped since one could be written."""

    count = 0


class Events:
    """Writes events to `fd`, and never waits for the reader: a stopped reader loses lines.

    The next event says how many were `dropped`.
    """

    def __init__(self, fd: int = _STDOUT, **always: Any) -> None:
        self._fd = fd
        self._always = always
        self._put: Callable[[bytes], bool] = self._write
        self._dropped = _Dropped()

    def with_facts(self, fd: int | None = None, **more: Any) -> Events:
        """A copy that adds the facts `more` to every line, and writes to `fd` if that is given."""
        made = Events(self._fd if fd is None else fd, **{**self._always, **more})
        made._dropped = self._dropped
        return made

    def written_by(self, put: Callable[[bytes], bool]) -> Events:
        """A copy that passes its lines to `put`, which says whether it takes them."""
        made = self.with_facts()
        made._put = put
        return made

    @property
    def dropped(self) -> int:
        """The number of lines that were dropped since one could be written."""
        return self._dropped.count

    def count_dropped(self, lines: int) -> None:
        """Count lines that others had to drop."""
        self._dropped.count += lines

    def __call__(self, event: str, /, **facts: Any) -> None:
        """Write the event; facts that are None are left out."""
        # Taken before the line is made, and given back if it is not written.
        dropped, self._dropped.count = self._dropped.count, 0
        if not self._put(self.line(event, **facts, dropped=dropped or None)):
            self.count_dropped(dropped + 1)

    def line(self, event: str, /, **facts: Any) -> bytes:
        """The line of an event."""
        facts = self._facts(event, facts)
        while True:
            line = json_line(facts).encode()
            if len(line) < LONGEST_EVENT:
                return line + b"\n"
            # Only text that a command made is that long, or a list of very many jobs.
            longest = max(facts, key=lambda key: len(str(facts[key])))
            value = facts[longest]
            if isinstance(value, list) and value:
                facts[longest] = value[: len(value) * 3 // 4]
                left_out = f"{longest}_left_out"
                facts[left_out] = facts.get(left_out, 0) + len(value) - len(facts[longest])
            else:
                facts[longest] = str(value)[: len(str(value)) * 3 // 4]

    def lines(self, event: str, key: str, texts: Iterable[str], /, **facts: Any) -> Iterator[bytes]:
        """The lines of many events that differ in one text; a text that is too long is halved."""
        head = f"{json_line(self._facts(event, facts))[:-1]}, {json_line(key)}: "
        for text in texts:
            line = f"{head}{json_line(text)}}}\n".encode()
            if len(line) <= LONGEST_EVENT or len(text) < 2:
                yield line
                continue
            middle = len(text) // 2
            yield from self.lines(event, key, (text[:middle], text[middle:]), **facts)

    def _facts(self, event: str, facts: Mapping[str, Any]) -> dict[str, Any]:
        when = datetime.fromtimestamp(clock.wall(), UTC).isoformat(timespec="milliseconds")
        known = {"time": when.replace("+00:00", "Z"), "event": event, **self._always, **facts}
        return {name: value for name, value in known.items() if value is not None}

    def _write(self, line: bytes) -> bool:
        poll = select.poll()
        with suppress(OSError, ValueError):
            poll.register(self._fd, select.POLLOUT)
            # A pipe that is writable takes PIPE_BUF bytes at once, and no line is longer: write
            # never waits.
            if poll.poll(0):
                os.write(self._fd, line)
                return True
        return False


# -- metrics ---------------------------------------------------------------------------------------


class JobMetrics:
    """The metrics of jobs: the instance's loop writes, any thread reads. Instants: wall clock."""

    def __init__(self) -> None:
        self._runs: Counter[tuple[str, str]] = Counter()
        self._seconds: dict[str, tuple[int, float]] = {}
        self._succeeded: dict[str, float] = {}
        self._next: dict[str, tuple[JobSpec, float, float]] = {}
        """By job: since when its next slot is known, and that slot."""

    def learn(self, specs: Iterable[JobSpec], records: Mapping[str, Record]) -> None:
        """Read from the ledger when each job last succeeded: other instances may have run it."""
        for spec in specs:
            if (record := records.get(spec.name)) is not None:
                runs = (run for run, _ in runs_of(record.fields).values())
                ends = [run.ended or run.due for run in runs if run.state is SlotState.OK]
                if ends:
                    self._succeeded[spec.name] = max(ends)

    def count_record(self, job: str, run: SlotRecord) -> None:
        """Count a record that this instance wrote for slots that it did not run."""
        self._runs[job, run.state] += run.count

    def count_run(self, job: str, state: SlotState, seconds: float | None, now: float) -> None:
        """Count a run of this instance that has ended."""
        self._runs[job, state] += 1
        if state is SlotState.OK:
            self._succeeded[job] = now
        if seconds is not None:
            runs, before = self._seconds.get(job, (0, 0.0))
            self._seconds[job] = (runs + 1, before + seconds)
            pass_on(JOB_RUN, seconds, job)

    def samples(self, specs: Iterable[JobSpec], now: float) -> Iterator[Sample]:
        """Yield the numbers of these jobs."""
        for spec in specs:
            # Not `job`: Prometheus uses that label for its scrape target.
            job = (("name", spec.name),)
            for state in RUN_STATES:
                runs = self._runs[spec.name, state]
                yield Sample("incumbent_job_runs_total", (*job, ("state", state)), runs)
            runs, seconds = self._seconds.get(spec.name, (0, 0.0))
            yield Sample(JOB_RUN, job, seconds, "_sum")
            yield Sample(JOB_RUN, job, runs, "_count")
            if (success := self._succeeded.get(spec.name)) is not None:
                yield Sample("incumbent_job_last_success_timestamp_seconds", job, success)
            if (slot := self._next_slot(spec, now)) < inf:
                yield Sample("incumbent_job_next_run_timestamp_seconds", job, slot)

    def _next_slot(self, spec: JobSpec, now: float) -> float:
        known, since, slot = self._next.get(spec.name, (None, inf, -inf))
        if known is not spec or not since <= now < slot:
            slot = spec.schedule.next_after(now) or inf
            self._next[spec.name] = (spec, now, slot)
        return slot
