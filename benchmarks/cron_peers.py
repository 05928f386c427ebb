"""What a claim costs beside the one peer that claims: APScheduler 4's data store, on PostgreSQL.

RedBeat has no claim: its lock is redis-py's, held by one scheduler for all jobs. APScheduler 3's
job stores have none either, and must not be shared.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from importlib import import_module
from logging import getLogger
from statistics import median
from typing import Any

from benchmarks.harness import Figure
from benchmarks.postgresql_pairs import bench_server
from incumbent.cron.runs import Claimer
from incumbent.cron.schedule import Every
from incumbent.cron.spec import JobSlot, JobSpec
from incumbent.model import Refused
from incumbent.runtime.link import new_link

__all__ = ["cron_peer_rows"]

_CLAIMS = 300
_US = 1e6


def cron_peer_rows(claims: int = _CLAIMS) -> list[Figure]:
    """Microseconds of a claim that is granted, and of one that somebody else has."""
    with bench_server() as (_, url, ours_url):
        granted, refused = _ours(ours_url, claims)
        their_granted, their_refused = asyncio.run(_theirs(url, claims))
    return [
        Figure("claim of a slot, granted", median(granted) * _US, "us"),
        Figure("claim of a slot, refused", median(refused) * _US, "us"),
        Figure("APScheduler 4, claim of a due schedule", median(their_granted) * _US, "us"),
        Figure("APScheduler 4, another has it", median(their_refused) * _US, "us"),
    ]


def _ours(url: str, claims: int) -> tuple[list[float], list[float]]:
    spec = JobSpec(name="bench", schedule=Every(1), command=("true",))
    link = new_link(url)
    one, two = (Claimer(link, "bench", {"holder": name}) for name in ("one", "two"))
    granted, refused = [], []
    for number in range(claims):
        slot = JobSlot(f"{number}", 0.0)
        began = time.perf_counter()
        got = one.claim(spec, slot)
        granted.append(time.perf_counter() - began)
        assert not isinstance(got, Refused)
        began = time.perf_counter()
        assert isinstance(two.claim(spec, slot), Refused)
        refused.append(time.perf_counter() - began)
        one.release(got)
    link.close()
    return granted, refused


async def _theirs(url: str, claims: int) -> tuple[list[float], list[float]]:
    # By name: it is a pre-release, which only the benchmarks need.
    their = import_module("apscheduler")
    stores = import_module("apscheduler.datastores.sqlalchemy")
    brokers = import_module("apscheduler.eventbrokers.local")
    triggers = import_module("apscheduler.triggers.interval")
    store = stores.SQLAlchemyDataStore(url.replace("postgresql://", "postgresql+psycopg://", 1))
    past, lease = datetime.now(UTC) - timedelta(hours=1), timedelta(seconds=15)
    trigger = triggers.IntervalTrigger(seconds=1)
    granted, refused = [], []
    async with AsyncExitStack() as stack:
        broker = brokers.LocalEventBroker()
        log = getLogger("apscheduler")
        await broker.start(stack, log)
        await store.start(stack, broker, log)
        await store.add_task(their.Task(id="task", func="os:getpid", job_executor="async"))
        schedule = their.Schedule(
            id="job",
            task_id="task",
            trigger=trigger,
            next_fire_time=past,
            job_executor="async",
        )
        await store.add_schedule(schedule, their.ConflictPolicy.replace)
        for _ in range(claims):
            seconds, found = await _timed(lambda: store.acquire_schedules("one", lease, 100))
            assert len(found) == 1
            granted.append(seconds)
            seconds, found = await _timed(lambda: store.acquire_schedules("two", lease, 100))
            assert not found
            refused.append(seconds)
            # It stays due, so that the next claim finds it.
            result = their.ScheduleResult(
                schedule_id="job",
                task_id="task",
                trigger=trigger,
                last_fire_time=past,
                next_fire_time=past,
            )
            await store.release_schedules("one", [result])
    return granted, refused


async def _timed(ask: Callable[[], Awaitable[Any]]) -> tuple[float, Any]:
    began = time.perf_counter()
    found = await ask()
    return time.perf_counter() - began, found
