"""How durations, instants, records and messages are shown, and instants are read."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from incumbent.cli import logs
from incumbent.durations import parse_duration, say_seconds
from incumbent.errors import AcquireTimeout, ConfigError, NotAcquired
from incumbent.model import Holding, Record
from incumbent.stores.notices import PAUSE, RESIGN, read_notice


def busy(error: NotAcquired) -> str:
    """Who has it, and for how much longer."""
    left = None if error.retry_after is None else say_seconds(max(0.0, error.retry_after))
    by = error.held_by or "another"
    waited = isinstance(error, AcquireTimeout)
    gave_up = f"gave up after {say_seconds(error.waited)}: " if waited else ""
    match error.reason:
        case "closed":
            return f"{gave_up}already ran by {by}" + (
                f"; closed for another {left}" if left else ""
            )
        case "paused":
            return f"{gave_up}paused: nobody may take it until it is unpaused"
        case "reserved":
            return f"{gave_up}reserved for {by}"
        case _:
            return f"{gave_up}held by {by}" + (f", ttl {left} left" if left else "")


def state_of(record: Record) -> str:
    """One word for what a record says."""
    if record.holdings:
        return "held"
    if PAUSE in record.fields:
        return "paused"
    if record.closed_for > 0:
        return "reserved" if record.reserved_for else "closed"
    return "undecided" if record.undecided else "free"


def facts_of(holding: Holding) -> dict[str, str]:
    """What the holder says of itself: isolation, host, pid, state; not to be trusted."""
    from json import loads

    try:
        found = loads(holding.meta) if holding.meta else {}
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(key): str(value) for key, value in found.items()}


def said_by(record: Record, field: str) -> str:
    """Who wrote a switch, and why: " by X (reason)", or nothing."""
    notice = read_notice(record.fields[field].value)
    who, reason = notice.get("who"), notice.get("reason")
    return (f" by {who}" if who else "") + (f" ({reason})" if reason else "")


def record_as_json(record: Record) -> dict[str, Any]:
    """A record as `status --json` shows it."""
    holding = record.holdings[0] if record.holdings else None
    facts = facts_of(holding) if holding else {}
    return {
        "namespace": record.key.namespace,
        "name": record.key.name,
        "state": state_of(record),
        "holder": holding and holding.holder,
        "token": holding.token if holding else None,
        "held_for": holding.held_for if holding else None,
        "ttl": holding.ttl if holding else None,
        "ttl_left": holding.remaining if holding else None,
        "foreign": bool(holding and holding.foreign),
        "isolation": facts.get("isolation"),
        "stopping": facts.get("state") == "stopping",
        "candidates": [candidate.holder for candidate in record.candidates],
        "closed_for": record.closed_for,
        "reserved_for": record.reserved_for or None,
        "paused": _notice(record, PAUSE),
        "asked_to_resign": _notice(record, RESIGN),
        "slots": dict(record.slots),
        "nodes": list(record.nodes),
    }


def _notice(record: Record, field: str) -> dict[str, str] | None:
    if field not in record.fields:
        return None
    notice = read_notice(record.fields[field].value)
    return {"who": str(notice.get("who", "")), "reason": str(notice.get("reason", ""))}


def iso(instant: float) -> str:
    """An instant of the wall clock, in local time, with the offset that makes it exact."""
    from datetime import UTC, datetime

    local = datetime.fromtimestamp(instant, UTC).astimezone()
    return local.isoformat(sep=" ", timespec="seconds")


def since_of(text: str, now: float) -> float:
    """`2h` ago, or an instant; raises ConfigError."""
    try:
        return now - parse_duration(text, "since")
    except ConfigError:
        return instant_of(text, "since", now, "2h, ")


def instant_of(text: str, what: str, now: float, also: str = "") -> float:
    """`05:30` (the last one), `2026-11-21T05:30`, with a zone or in local time; ConfigError."""
    from datetime import UTC, datetime, timedelta

    here = datetime.fromtimestamp(now, UTC).astimezone()
    try:
        if len(text) <= 8 and ":" in text:
            time = datetime.strptime(text, "%H:%M" if text.count(":") == 1 else "%H:%M:%S")  # noqa: DTZ007 - only its time
            found = here.replace(
                hour=time.hour, minute=time.minute, second=time.second, microsecond=0
            )
            return (found if found <= here else found - timedelta(days=1)).timestamp()
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.astimezone()).timestamp()
    except ValueError:
        raise ConfigError(
            f"{what}={text[:40]!r}: write {also}05:30, 2026-11-21T05:30 or 2026-11-21T05:30:00Z",
            name=what,
        ) from None


def print_json(value: object) -> None:
    """Print `value` for programs."""
    from json import dumps

    print(dumps(value, indent=2))


def table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns; the last column is as wide as it is."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(padded).rstrip())
    sys.stdout.flush()


def say(line: str) -> None:
    """One line for people, on stderr; a closed stderr is nobody's fault."""
    logs.say(line)


def fault_line(error: Exception) -> str:
    """The message for an unexpected error."""
    whose = "the system refuses" if isinstance(error, OSError) else "a defect of incumbent"
    return f"{whose}: {type(error).__name__}: {error}"
