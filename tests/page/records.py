"""Records as a store might give them, for snapshots that no store made."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from incumbent.cron.ledger import JOB, RUN, SlotRecord
from incumbent.model import Candidate, Field, Holding, Key, Past, Record
from incumbent.page.rows import Blocks, FleetReading, blocks_of
from incumbent.page.snapshot import Snapshot, fleet_of
from incumbent.page.view import View, entries_of

NOW = 1_790_000_000.0  # 2026-09-21T14:13:20Z


def record(name: str, **changes: Any) -> Record:
    return Record(Key("default", name), **changes)


def held(name: str, holder: str = "node-1", token: int = 7, **changes: Any) -> Record:
    holding = Holding(holder, token, 12.0, 15.0, 60.0, claim="c" * 32)
    past = Past(holder, token, NOW - 60)
    return record(name, **{"holdings": (holding,), "history": (past,)} | changes)


def job(name: str, *runs: SlotRecord, **facts: Any) -> Record:
    told = {"schedule": "30 4 * * *", "since": 0, **facts}
    fields = {JOB: Field(json.dumps(told).encode(), 1)}
    for run in runs:
        stored = {"v": 1, **asdict(run)}
        del stored["slot"]
        fields[RUN + run.slot] = Field(json.dumps(stored).encode(), 1)
    return record(name, fields=fields)


def switch(field: str, **facts: Any) -> dict[str, Field]:
    return {field: Field(json.dumps(facts).encode(), 1)}


def standing_by(*holders: str) -> tuple[Candidate, ...]:
    return tuple(Candidate(holder, 10.0) for holder in holders)


def snapshot(*records: Record, **changes: Any) -> Snapshot:
    facts = {"store": "redis://store/0", "namespace": "default", "now": NOW, "read_at": NOW}
    return Snapshot(**{**facts, "records": records, **changes})


def reading(shown: Snapshot) -> FleetReading:
    fleet = fleet_of(shown)
    return FleetReading(shown, fleet, entries_of(shown, fleet))


def blocks(shown: Snapshot, window: str = "1h", **view: Any) -> Blocks:
    return blocks_of(reading(shown), View(window=window, **view))
