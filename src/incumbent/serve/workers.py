"""The joint situation of many workers: each reports to the process that serves the health pages."""

from __future__ import annotations

import errno
import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import Final

from incumbent import clock
from incumbent.meters import Sample
from incumbent.metrics import families
from incumbent.serve.situation import InstanceView, Situation

_log = logging.getLogger("incumbent")

_EVERY: Final = 5.0
"""The most seconds between reports, a quarter of the ttl if that is less. Changes come at once."""
_SILENT: Final = 15.0
"""Seconds without a report after which a worker's loop counts as hung."""
# More than a datagram of a socket pair can have by default; where it can have more, a longer report
# would arrive cut off.
_LONGEST: Final = 1 << 18


@contextmanager
def reporting(situation: Situation, index: int, channel: socket.socket) -> Iterator[None]:
    """Report this worker's situation through `channel` until the block ends."""
    wake, closed = threading.Event(), threading.Event()
    situation.on_change(wake.set)
    # A reported proof is believed until it runs out, so its renewal has to be reported before.
    every = min(_EVERY, situation.view().recent_for / 8)

    def report() -> None:
        told = False
        while True:
            # Read `closed` before the situation: the last report has to say that it is stopping.
            last, at = closed.is_set(), clock.now()
            samples = [
                (metric, (("worker", f"w{index + 1}"), *labels), value, suffix)
                for metric, series in families(situation).items()
                for (suffix, labels), value in series.items()
            ]
            facts = asdict(situation.view())
            if not _send(channel, (index, at, facts, samples)):
                # Without its metrics: a worker that is not heard would count as hung.
                _send(channel, (index, at, facts, ()))
                if not told:
                    _log.warning("w%d: too many metrics for a report: none in /metrics", index + 1)
                told = True
            if last:
                return
            wake.wait(every)
            # Before the next look: see SystemdNotifier.
            wake.clear()

    thread = threading.Thread(target=report, name="incumbent-report", daemon=True)
    thread.start()
    try:
        yield
    finally:
        # Before `closed`: the thread's last report is made after it has seen that.
        situation.note_stopping()
        closed.set()
        wake.set()
        thread.join()


def report_end(channel: socket.socket, index: int) -> None:
    """Report that a worker has ended."""
    _send(channel, (index, 0.0, None, ()))


def _send(channel: socket.socket, report: object) -> bool:
    """Send a report; False: it is too long to be sent."""
    data = json.dumps(report).encode()
    try:
        if len(data) <= _LONGEST:
            channel.send(data, socket.MSG_DONTWAIT)
            return True
    except OSError as error:
        # If the reader is too slow, this report is dropped; a later report replaces it.
        return error.errno != errno.EMSGSIZE
    return False


class Workers(Situation):
    """The joint situation of all workers; `receive` reads their reports."""

    def __init__(self, name: str, holder: str, channel: socket.socket, *, ttl: float) -> None:
        super().__init__(name, holder, ttl=ttl)
        self._channel = channel
        self._reports: dict[int, tuple[float, InstanceView, list[Sample]]] = {}

    def receive(self) -> None:
        """Read the reports that have arrived."""
        with suppress(BlockingIOError):
            while True:
                report = self._channel.recv(_LONGEST, socket.MSG_DONTWAIT)
                index, at, facts, samples = json.loads(report)
                if facts is None or facts["role"] == "stopping":
                    # A worker that ended, or is drained, is not late.
                    self._reports.pop(index, None)
                else:
                    found = [
                        Sample(metric, tuple((key, text) for key, text in labels), value, suffix)
                        for metric, labels, value, suffix in samples
                    ]
                    self._reports[index] = (at, InstanceView(**facts), found)
                # Also after an end: the last word of a leader that is gone is not ours.
                self._report(role=self.view().role if self._reports else "ended")

    def view(self) -> InstanceView:
        """The joint view: ready if one worker is, healthy if all workers are."""
        whole, now = super().view(), clock.now()
        # Aged by our clock: one host has one clock since boot, whatever process reads it.
        views = [_seen_later(view, now - at) for at, view, _ in list(self._reports.values())]
        if not views:
            return whole
        leader = max(views, key=lambda view: view.proven_for)
        return replace(
            leader,
            name=whole.name,
            holder=whole.holder,
            role=whole.role if whole.role == "stopping" else leader.role,
            late=max(whole.late, *(view.late for view in views)),
            unanswered_for=min(view.unanswered_for for view in views),
            store_up=any(view.store_up for view in views),
        )

    def samples(self) -> Iterator[Sample]:
        """The samples of all workers."""
        for _, _, samples in list(self._reports.values()):
            yield from samples


def _seen_later(view: InstanceView, age: float) -> InstanceView:
    """A view as it is `age` seconds later if no news came."""
    proven_for = max(0.0, view.proven_for - age)
    return replace(
        view,
        proven_for=proven_for,
        leading=proven_for > 0,
        unanswered_for=view.unanswered_for + age,
        late=max(view.late, age if age > _SILENT else 0.0),
    )
