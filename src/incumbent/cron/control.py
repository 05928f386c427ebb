"""What reaches all instances of a fleet: triggers, and the switch for everything.

Both are fields of one key of the namespace, CONTROL, on which every instance waits.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from incumbent.model import Record
from incumbent.stores.notices import PAUSE

CONTROL: Final = "@cron"
SWEEP: Final = "@cron/sweep"
TRIGGER: Final = "trigger/"
STALE: Final = 600.0
"""Seconds after which a trigger that nobody took is void."""


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


def encode(**facts: Any) -> bytes:
    """A field's value."""
    return json.dumps(facts, separators=(",", ":")).encode()


def triggers(record: Record) -> list[Trigger]:
    """Those that stand, oldest first."""
    found = []
    for name, field in record.fields.items():
        if name.startswith(TRIGGER):
            facts = read_value(field.value)
            job, when = facts.get("job"), facts.get("when")
            if isinstance(job, str) and isinstance(when, int | float):
                who, reason = str(facts.get("who", "")), str(facts.get("reason", ""))
                found.append(Trigger(name.removeprefix(TRIGGER), job, float(when), who, reason))
    return sorted(found, key=lambda trigger: trigger.when)


def pause_of(record: Record) -> bytes | None:
    """The switch for everything, if it is off."""
    field = record.fields.get(PAUSE)
    return None if field is None else field.value


def is_job_name(name: str) -> bool:
    """Whether a key may be a job's: ours begin with an @."""
    return not name.startswith("@")


def read_value(value: bytes) -> dict[str, Any]:
    """What `encode` made; empty if nothing readable."""
    try:
        facts = json.loads(value)
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}
