"""Records, jobs and runs as JSON: what `--json` prints and the API answers, with the same names.

Durations are numbers of seconds; instants are RFC 3339 in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from incumbent import clock
from incumbent.cron import fleet
from incumbent.cron.ledger import SlotRecord
from incumbent.cron.schedule import slot_id
from incumbent.durations import utc
from incumbent.model import Holding, Past, Record
from incumbent.rules.endings import TermEnding, describe_ending, flapping
from incumbent.rules.notices import PAUSE, RESIGN, read_notice
from incumbent.stores.findings import NameState, is_on_record

if TYPE_CHECKING:
    from incumbent.page.snapshot import Job


def facts_of(holding: Holding) -> dict[str, str]:
    """The facts that a holder reports about itself: isolation, host, pid, state; unverified."""
    from json import loads

    try:
        found = loads(holding.meta) if holding.meta else {}
    except ValueError:
        return {}
    if not isinstance(found, dict):
        return {}
    return {str(key): str(value) for key, value in found.items()}


def _instant(instant: float | None) -> str | None:
    return None if instant is None or not abs(instant) < _FAR else utc(instant)


_FAR: Final = 6e10
"""Seconds from 1970: instants that are farther away are outside of our calendar."""


def record_as_json(record: Record, state: NameState) -> dict[str, Any]:
    """A record as `status --json` shows it."""
    holding = record.holdings[0] if record.holdings else None
    facts = facts_of(holding) if holding else {}
    flaps = flapping(record, clock.wall())
    holders = [
        dict(
            zip(_OF_A_HOLDER, (it.holder, it.token, it.held_for, it.ttl, it.remaining), strict=True)
        )
        for it in record.holdings
    ]
    return {
        "namespace": record.key.namespace,
        "name": record.key.name,
        "known": is_on_record(record),
        "state": state.word,
        "why": state.why or None,
        **(holders[0] if holders else dict.fromkeys(_OF_A_HOLDER)),
        "permits": holding.permits if holding else None,
        "holders": holders,
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
        "flapping": None if flaps is None else flaps._asdict(),
    }


_OF_A_HOLDER: Final = ("holder", "token", "held_for", "ttl", "ttl_left")


def _notice(record: Record, field: str) -> dict[str, str] | None:
    if field not in record.fields:
        return None
    notice = read_notice(record.fields[field].value)
    return {"who": str(notice.get("who", "")), "reason": str(notice.get("reason", ""))}


def job_as_json(job: Job, now: float, *, gone: bool) -> dict[str, Any]:
    """A job as `jobs --json` shows it; `gone`: no instance that is up has it."""
    following = None if gone else fleet.next_slot(job.record, now)
    return {
        "name": job.record.key.name,
        **{key: value for key, value in job.facts.items() if key not in ("since", fleet.GONE)},
        "next": None if following is None else slot_id(following),
        "gone": gone,
        "paused": PAUSE in job.record.fields,
        "running": [run_as_json(run) for run in job.running],
        "last": run_as_json(job.runs[-1]) if job.runs else None,
    }


def run_as_json(run: SlotRecord) -> dict[str, Any]:
    """A run of a job as `history --json` shows it."""
    return {
        "slot": run.slot,
        "due": _instant(run.due),
        "state": str(run.state),
        "instance": run.instance or None,
        "term": run.token or None,
        "started": _instant(run.started),
        "ended": _instant(run.ended),
        "seconds": run.seconds,
        "exit_code": run.code,
        "attempt": run.attempt,
        "count": run.count,
        "why": run.why or None,
        "triggered_by": run.triggered_by or None,
        "output": run.output or None,
        "output_seen": _instant(run.output_seen),
    }


def past_as_json(past: Past, endings: Mapping[int, TermEnding]) -> dict[str, object]:
    """A past term as `history --json` shows it; `endings`: by token."""
    ending = endings.get(past.token)
    return {
        "holder": past.holder,
        "token": past.token,
        "started": _instant(past.started),
        "ended": _instant(past.ended),
        "seconds": None if past.ended is None else past.ended - past.started,
        "how": None if ending is None else ending.how,
        "exit_code": None if ending is None else ending.code,
        "why": None if ending is None else describe_ending(ending),
    }
