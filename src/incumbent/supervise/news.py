"""What receivers are told about the terms of `lead` and `work`, and about a `run`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from incumbent import clock
from incumbent.errors import StoreError
from incumbent.locks.leases import Lease
from incumbent.notify.outbox import Outbox, Post, read_secrets
from incumbent.notify.receivers import Ping, Receiver, Webhook
from incumbent.rules.endings import TermEnding, describe_ending, flapping
from incumbent.serve.situation import Situation

_WITHIN: Final = 1.0
"""Seconds for which the store is asked whether the name flaps."""


@dataclass
class TermNews:
    """Tells about one name; never blocks.

    `every`: the seconds between two pings of a leader. `log` gets the failures to send. `linger`:
    see `close`.
    """

    receiver: Receiver | None
    ping: Ping | None
    every: float
    linger: float
    log: Callable[[str], None]
    _runs: bool = False
    _flaps: bool = False

    def __post_init__(self) -> None:
        self._outbox = Outbox(self._report, read_secrets)

    def _report(self, *, to: str, why: str) -> None:
        self.log(f"notify {to}: {why}" if to else f"notify: {why}")

    def close(self) -> None:
        """Send what waits, for `linger` seconds at most."""
        self._outbox.close(self.linger)

    # -- leaders ---------------------------------------------------------------------------------

    def elected(self, lease: Lease) -> None:
        """Tell that a term begins."""
        self._tell(lease.name, partial(self._of_term, lease, None))

    def ended(self, lease: Lease, ending: TermEnding) -> None:
        """Tell that a term ended, if it ended badly. Its ending is on record by now."""
        # First: a beat that is due just now must not say that the command lives.
        self._runs = False
        if ending.failed:
            self._tell(lease.name, partial(self._of_term, lease, ending))

    def command_runs(self, situation: Situation, *, runs: bool) -> None:
        """Ping again and again, while the command `runs` and this instance leads."""
        self._runs = runs
        if not runs or (ping := self.ping) is None:
            return

        def proved() -> Receiver | None:
            view = situation.view()
            return ping.success if self._runs and view.leading and view.healthy else None

        self._outbox.beat(self.every, proved)

    def _of_term(self, lease: Lease, ending: TermEnding | None) -> Webhook | None:
        """The message about a term, made in the outbox's thread."""
        # That a name flaps is told once, and then nothing until it has calmed down.
        facts = {
            "namespace": lease.belief.key.namespace,
            "name": lease.name,
            "holder": lease.holder,
            "host": os.uname().nodename,
            "term": lease.fencing_token,
        }
        kind = "leader.elected"
        if ending is not None:
            kind = "leader.lost" if ending.how == "lost" else "leader.failed"
            why = describe_ending(ending)
            facts |= {"how": ending.how, "code": ending.code, "why": why}
        # No lock: all messages are made in the outbox's one thread.
        told, flaps = self._flaps, None
        try:
            key = lease.belief.key
            record = lease.belief.link.store.read(key, clock.now() + _WITHIN)
            flaps = flapping(record, clock.wall())
        except StoreError:
            # Not known: then each term is told.
            pass
        self._flaps = flaps is not None
        if flaps is not None:
            kind, facts = "leader.flapping", {**facts, "times": flaps.times, "last": flaps.last}
        return None if told and self._flaps else Webhook(kind, clock.wall(), facts)

    # -- a run -----------------------------------------------------------------------------------

    def run_begins(self, name: str) -> None:
        """Ping that the command of a `run` begins."""
        if self.ping is not None:
            self._ping(name, self.ping.start)

    def run_ended(self, name: str, code: int, kind: str, facts: Mapping[str, Any]) -> None:
        """Ping the end of a `run` that began; tell it if it is "failed", "timed_out" or "lost"."""
        if self.ping is not None:
            self._ping(name, self.ping.after(code, ok=code == 0))
        if kind:
            webhook = Webhook(f"run.{kind}", clock.wall(), facts)
            self._tell(name, lambda: webhook)

    # -- sending ---------------------------------------------------------------------------------

    def _ping(self, what: str, receiver: Receiver | None) -> None:
        if receiver is not None:
            self._outbox.put(receiver, what, partial(Post, receiver))

    def _tell(self, what: str, make: Callable[[], Webhook | None]) -> None:
        if (receiver := self.receiver) is None:
            return

        def compose() -> Post | None:
            webhook = make()
            return None if webhook is None else Post(receiver, webhook)

        self._outbox.put(receiver, what, compose)
