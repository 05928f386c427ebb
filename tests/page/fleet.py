"""A big fleet: 500 leases and 200 jobs, and ten of them with which something is wrong."""

from __future__ import annotations

import json
from hashlib import blake2s
from typing import Any

from incumbent.cron.ledger import SlotRecord, SlotState
from incumbent.cron.schedule import slot_id
from incumbent.model import Field, Holding, Past, Record
from incumbent.page.snapshot import Snapshot
from incumbent.rules.endings import ENDINGS, TermEnding, with_ending
from incumbent.rules.notices import PAUSE
from tests.page.records import NOW, held, job, record, snapshot, standing_by, switch

LEASES, JOBS, SLOTS = 500, 200, 20
_EPOCH = 1_790_000_000_000
"""Tokens are long where a store makes them of its clock."""
FAULTS = {
    "failed": ("billing/nightly-close", "export.partner-feed", "importer/0261", "worker-b"),
    "flapping": ("crawler/0137",),
    "late": ("report.daily",),
    "wanted": ("gpu/0311", "warehouse.vacuum"),
    "paused": ("mover/0402", "mail/digest"),
}
TROUBLE = "node 2 of 3: 127.0.0.1:6402 gives no answer"


def big(now: float = NOW) -> Snapshot:
    """The fleet; a server of its store is down."""
    leases = [_lease(place, now) for place in range(LEASES - 5)]
    jobs = [_job(place, now) for place in range(JOBS - 5)]
    faults = (*_bad_leases(now), *_bad_jobs(now))
    names = [one.key.name for one in (*jobs, *faults) if one.key.name != "warehouse.vacuum"]
    marks = b"".join(blake2s(name.encode(), digest_size=4).digest() for name in names)
    up = {"since": now - 9000, "seen": now, "jobs": JOBS, "knows": "1"}
    own = (
        record("@cron/up", fields=switch("up/node-1:41", **up)),
        record("@cron/jobs", fields={"set/1": Field(marks, 1)}),
    )
    facts = {"now": now, "read_at": now, "troubles": (TROUBLE,)}
    return snapshot(*leases, *jobs, *faults, *own, **facts)


def _lease(place: int, now: float) -> Record:
    if place % 17 == 5:
        return record(f"idle/{place:04}")
    node, token = f"node-{place % 5}.eu-central.example:4{place % 7}", _EPOCH + place
    holding = Holding(node, token, 15.0 - place % 9, 15.0, 60.0 + place, claim=f"{place:032x}")
    past = [Past(f"node-{(place + 1) % 5}:41", token - 9, now - 2500 - place, now - 61 - place)]
    past.append(Past(node, token, now - 60 - place))
    more = standing_by("node-9:41") if place % 11 == 0 else ()
    return held(f"shard/{place:04}", holdings=(holding,), history=tuple(past), candidates=more)


def _bad_leases(now: float) -> list[Record]:
    ends, past = b"[]", []
    for number in range(6):
        at = now - 90 + 15 * number
        past.append(Past("node-3:41", 50 + number, at - 3, at))
        ends = with_ending(ends, TermEnding(50 + number, "exit", at, 3))
    flaps = {ENDINGS: Field(ends, 1)}
    ended = with_ending(None, TermEnding(7, "exit", now - 70, 1))
    once = {ENDINGS: Field(ended, 1)}
    return [
        record("crawler/0137", history=tuple(past), fields=flaps),
        record("importer/0261", history=(Past("node-2:41", 9, now - 400),)),
        record("gpu/0311", candidates=standing_by("node-1:41", "node-4:41")),
        record("mover/0402", fields=switch(PAUSE, who="ann", reason="migration", when=now - 99)),
        record("worker-b", history=(Past("node-2:41", 7, now - 200, now - 70),), fields=once),
    ]


def _run(due: float, state: SlotState, **changes: Any) -> SlotRecord:
    facts = {"instance": "node-1:41", "token": 7, "started": due, "ended": due + 40, "code": 0}
    return SlotRecord(slot_id(due), state, due, **{**facts, **changes})


def _job(place: int, now: float) -> Record:
    began = now // 300 * 300
    runs = [_run(began - 300 * (SLOTS - slot), SlotState.OK) for slot in range(1, SLOTS + 1)]
    zone = "Europe/Berlin"
    name = f"{('etl', 'sync', 'clean-up')[place % 3]}.table_{place:03}"
    return job(name, *runs, schedule=f"*/5 * * * * ({zone})", timezone=zone, command="./run.sh")


def _bad_jobs(now: float) -> list[Record]:
    began, zone = now // 300 * 300, "Europe/Berlin"
    facts = {"schedule": f"*/5 * * * * ({zone})", "timezone": zone, "command": "./run.sh"}
    good = [_run(began - 300 * back, SlotState.OK) for back in (4, 3, 2, 1)]
    failed = _run(began, SlotState.FAILED, code=3, why="exit 3", output="no such table\n")
    lost = _run(began, SlotState.LOST, ended=None, code=None, why="node-4:41 vanished")
    gone = {"gone": now - 60}
    return [
        job("billing/nightly-close", *good, failed, **facts),
        job("export.partner-feed", *good, lost, **facts),
        job("report.daily", *good[:2], **facts),
        _paused(job("mail/digest", *good, **facts), now),
        job("warehouse.vacuum", *good, **(facts | gone)),
    ]


def _paused(record: Record, now: float) -> Record:
    record.fields[PAUSE] = Field(json.dumps({"who": "bob", "when": now - 500}).encode(), 1)  # type: ignore[index]
    return record
