"""What receivers are told about the runs of jobs, after it is on record.

Only the instance that recorded an end tells it: its own runs (`ended`), and what it noted about the
slots of others (`noted`). The rest of the facts is read from the ledger, in the outbox's thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Final

from incumbent import clock
from incumbent.cron.events import Emit
from incumbent.cron.fleet import NOT_WELL
from incumbent.cron.judging import fails_for_good
from incumbent.cron.ledger import SlotRecord, SlotState, recorded_run, runs_of
from incumbent.cron.spec import JobSlot, JobSpec
from incumbent.durations import utc
from incumbent.errors import StoreError
from incumbent.model import Field, Key
from incumbent.notify.outbox import LINGER, Outbox, Post, read_secrets
from incumbent.notify.receivers import Ping, Receiver, Webhook
from incumbent.runtime.link import Link

_WITHIN: Final = 1.0


@dataclass
class JobNews:
    """Tells what became of runs; never blocks. `emit` gets the failures to send.

    `default`: the receiver of webhooks about jobs that have none of their own.
    """

    link: Link
    namespace: str
    holder: str
    emit: Emit
    default: Receiver | None = None
    _started: dict[str, JobSpec] = field(default_factory=dict)
    """By name: a job as it was when its run began; the file may be read again meanwhile."""

    def __post_init__(self) -> None:
        self._outbox = Outbox(partial(self.emit, "notify"), read_secrets)

    def close(self) -> None:
        """Send what waits, for LINGER seconds at most."""
        self._outbox.close(LINGER)

    def started(self, spec: JobSpec | None) -> None:
        """Tell that a command began to run, for the first time in its run."""
        if spec is not None:
            self._started[spec.name] = spec
            if spec.ping is not None and (receiver := spec.ping.start) is not None:
                self._outbox.put(receiver, f"start of {spec.name}", lambda: Post(receiver))

    def ended(self, spec: JobSpec | None, slot: JobSlot, state: SlotState) -> None:
        """Tell that a run of this instance ended; its end is on record."""
        if spec is not None:
            run = SlotRecord(slot.name, state, slot.due, self.holder, attempt=slot.attempt)
            self._tell(_End(self, self._started.pop(spec.name, spec), run))

    def noted(self, spec: JobSpec, run: SlotRecord) -> None:
        """Tell that this instance put on record what became of a slot that it did not run."""
        if run.state is SlotState.MISSED or fails_for_good(spec, run, clock.wall()):
            self._tell(_End(self, spec, run, noted=True))

    def _tell(self, end: _End) -> None:
        spec, what = end.spec, f"{end.known.state} of {end.spec.name}"
        if (receiver := spec.notify or self.default) is not None:
            self._outbox.put(receiver, what, partial(end.webhook, receiver))
        # A missed slot had no start: its switch goes off because nothing comes.
        if spec.ping is not None and end.known.state is not SlotState.MISSED:
            self._outbox.put(spec.ping.success, what, partial(end.ping, spec.ping))


class _End:
    """The end of a run, or a slot that was not run. `known`: what this process knows of it.

    `noted`: it is the whole record, and nothing follows it.
    """

    def __init__(
        self, news: JobNews, spec: JobSpec, known: SlotRecord, *, noted: bool = False
    ) -> None:
        self.spec = spec
        self.known = known
        self._news = news
        self._noted = noted
        self._at = clock.wall()

    @cached_property
    def _fields(self) -> dict[str, Field]:
        """The job's record; empty if the store does not answer: then less is told."""
        key = Key(self._news.namespace, self.spec.name)
        try:
            return dict(self._news.link.store.read(key, clock.now() + _WITHIN).fields)
        except StoreError:
            return {}

    @cached_property
    def _run(self) -> SlotRecord:
        found = None if self._noted else recorded_run(self._fields, self.known.slot)
        return found or self.known

    def _is_retried(self) -> bool:
        """Whether another instance makes another attempt."""
        own_loss = self.known.state is SlotState.LOST and not self._noted
        return own_loss and not fails_for_good(self.spec, self._run, clock.wall())

    def ping(self, ping: Ping) -> Post | None:
        """What a dead man's switch is told."""
        ok = self.known.state is SlotState.OK
        if self._is_retried():
            return None
        # The exit code of a success may be another than 0.
        receiver = ping.after(None if ok else self._run.code, ok=ok)
        return None if receiver is None else Post(receiver)

    def webhook(self, receiver: Receiver) -> Post | None:
        """The message; None after a run that went well as the one before it did."""
        run, before = self._run, self._bad_before()
        ok = run.state is SlotState.OK
        if self._is_retried() or (ok and not before):
            return None
        kind = {SlotState.OK: "recovered", SlotState.SKIPPED: "lost"}.get(run.state, run.state)
        facts: dict[str, Any] = {
            "namespace": self._news.namespace,
            "job": self.spec.name,
            "slot": run.slot,
            "due": utc(run.due),
            "state": str(run.state),
            "before": before if ok else None,
            "attempt": run.attempt,
            "code": run.code,
            "why": run.why,
            "started": None if run.started is None else utc(run.started),
            "ended": None if run.ended is None else utc(run.ended),
            "instance": run.instance,
            "term": run.token or None,
            "count": run.count,
            "told_by": self._news.holder,
        }
        return Post(receiver, Webhook(f"job.{kind}", self._at, facts))

    def _bad_before(self) -> str:
        """The state of the last slot before this one, if it was bad; else an empty text."""
        name = self.known.slot
        for run, _ in reversed(runs_of(self._fields).values()):
            earlier = (run.due, run.slot) < (self.known.due, name)
            # An earlier attempt at the same slot was not told: this one followed it.
            same = run.slot.partition("#")[0] == name.partition("#")[0]
            if earlier and not same and run.state is not SlotState.SKIPPED:
                return str(run.state) if run.state in NOT_WELL else ""
        return ""
