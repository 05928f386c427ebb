"""Fair timing on a shared machine: contenders take turns; only ratios of a turn are compared."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter, process_time

__all__ = ["Contender", "Figure", "Row", "against", "compare", "one_core"]

Body = Callable[[], object]


@dataclass
class Contender:
    """`work` is one acquire and release; of the first one given, all others are ratios."""

    name: str
    work: Body
    target: float | None = None
    walls: list[float] = field(default_factory=list)
    cpus: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """Medians over the turns: microseconds of the work, and ratios to the unit of the same turn."""

    name: str
    microseconds: float
    wall_ratio: float
    cpu_ratio: float
    target: float | None


@dataclass(frozen=True)
class Figure:
    """One figure, with its unit and what is wanted at most."""

    name: str
    figure: float
    unit: str
    target: float | None = None


@contextmanager
def one_core() -> Iterator[None]:
    """Pin this process, and the servers that it starts meanwhile, to one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def compare(contenders: list[Contender], turns: int, pairs: int) -> list[Row]:
    """Run every contender once a turn, in an order drawn anew, `pairs` times in a row."""
    for contender in contenders:
        _measure(contender, pairs)
        contender.walls.clear()
        contender.cpus.clear()
    for _ in range(turns):
        for contender in random.sample(contenders, len(contenders)):
            _measure(contender, pairs)
    return [against(contender, contenders[0], contender.target) for contender in contenders]


def against(contender: Contender, unit: Contender, target: float | None = None) -> Row:
    """What `compare` has measured, as ratios to another of the same run."""
    return Row(
        contender.name,
        median(contender.walls) * 1e6,
        median(a / b for a, b in zip(contender.walls, unit.walls, strict=True)),
        median(a / b for a, b in zip(contender.cpus, unit.cpus, strict=True)),
        target,
    )


def _measure(contender: Contender, pairs: int) -> None:
    cpu = process_time()
    contender.walls.append(median(_times(contender.work, pairs)))
    contender.cpus.append((process_time() - cpu) / pairs)


def _times(work: Body, pairs: int) -> list[float]:
    if asyncio.iscoroutinefunction(work):
        return asyncio.get_event_loop().run_until_complete(_async_times(work, pairs))
    times = []
    for _ in range(pairs):
        started = perf_counter()
        work()
        times.append(perf_counter() - started)
    return times


async def _async_times(work: Callable[[], Awaitable[object]], pairs: int) -> list[float]:
    times = []
    for _ in range(pairs):
        started = perf_counter()
        await work()
        times.append(perf_counter() - started)
    return times
