"""What reaches all instances of a fleet: triggers, the switch for everything, who is up.

Two keys of the namespace: CONTROL, on which every instance waits, and PRESENCE, on which nobody
does, so that a sign of life wakes no one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from incumbent.model import Record
from incumbent.stores.notices import PAUSE

__all__ = [
    "CONTROL",
    "GONE_AFTER",
    "PRESENCE",
    "PRESENT_EVERY",
    "STALE",
    "SWEEP",
    "TRIGGER",
    "UP",
    "Peers",
    "Present",
    "Trigger",
    "encode",
    "is_job_name",
    "pause_of",
    "presences",
    "triggers",
    "up_now",
]

CONTROL: Final = "@cron"
PRESENCE: Final = "@cron/up"
SWEEP: Final = "@cron/sweep"
TRIGGER: Final = "trigger/"
UP: Final = "up/"
STALE: Final = 600.0
"""Seconds after which a trigger that nobody took is void."""
PRESENT_EVERY: Final = 30.0
"""Seconds between signs of life; three without one, and an instance counts as gone."""
GONE_AFTER: Final = 3 * PRESENT_EVERY


@dataclass(frozen=True, slots=True)
class Trigger:
    """An operator's wish for one run now."""

    id: str
    job: str
    when: float
    who: str = ""
    reason: str = ""

    @property
    def slot(self) -> str:
        """The slot that it is run as."""
        return f"manual/{self.id}"

    @property
    def field(self) -> str:
        """Where it stands until somebody takes it."""
        return TRIGGER + self.id


@dataclass(frozen=True, slots=True)
class Present:
    """An instance, as it said itself. Instants are its own wall clock's."""

    instance: str
    since: float
    seen: float
    jobs: int = 0
    knows: str = ""
    """Names the set of its jobs; see `known`."""


class Peers:
    """Which instances live, told without trusting any clock: their sign of life changes."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}

    def any_before(self, present: Iterable[Present], instant: float, now: float) -> bool:
        """Whether one that lives has not come to `instant` by its clock.

        `now` counts seconds on the caller's steady clock. Who is new counts as living until three
        signs of life are overdue.
        """
        found = False
        for peer in present:
            seen, since = self._seen.get(peer.instance, (None, now))
            if seen != peer.seen:
                self._seen[peer.instance] = (peer.seen, now)
                since = now
            found = found or (peer.seen < instant and now - since < 3 * PRESENT_EVERY)
        return found


def encode(**said: Any) -> bytes:
    """A field's value."""
    return json.dumps(said, separators=(",", ":")).encode()


def triggers(record: Record) -> list[Trigger]:
    """Those that stand, oldest first."""
    found = []
    for name, field in record.fields.items():
        if name.startswith(TRIGGER):
            said = _read(field.value)
            job, when = said.get("job"), said.get("when")
            if isinstance(job, str) and isinstance(when, int | float):
                who, reason = str(said.get("who", "")), str(said.get("reason", ""))
                found.append(Trigger(name.removeprefix(TRIGGER), job, float(when), who, reason))
    return sorted(found, key=lambda it: it.when)


def presences(record: Record) -> list[Present]:
    """Who said to be up, whenever that was."""
    found = []
    for name, field in record.fields.items():
        said = _read(field.value) if name.startswith(UP) else {}
        since, seen = said.get("since"), said.get("seen")
        if isinstance(since, int | float) and isinstance(seen, int | float):
            jobs, instance = said.get("jobs", 0), name.removeprefix(UP)
            jobs = jobs if isinstance(jobs, int) else 0
            found.append(Present(instance, since, seen, jobs, str(said.get("knows", ""))))
    return sorted(found, key=lambda it: it.instance)


def up_now(present: Iterable[Present], now: float) -> list[Present]:
    """Instances that gave a sign of life lately; their clocks may be 5 minutes off."""
    return [it for it in present if abs(now - it.seen) < GONE_AFTER + 300]


def pause_of(record: Record) -> bytes | None:
    """The switch for everything, if it is off."""
    field = record.fields.get(PAUSE)
    return None if field is None else field.value


def is_job_name(name: str) -> bool:
    """Whether a key may be a job's: ours begin with an @."""
    return not name.startswith("@")


def _read(value: bytes) -> dict[str, Any]:
    try:
        said = json.loads(value)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
