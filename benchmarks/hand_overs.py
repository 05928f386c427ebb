"""Hand-over of one lock among ten waiting processes.

All instants are CLOCK_MONOTONIC of one machine. A hand-over counts from the instant before the
holder's release to the instant after the next process's acquire; a process that takes the lock
twice in a row handed nothing over.
"""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import pairwise
from multiprocessing.connection import Connection
from statistics import median

__all__ = ["WAITERS", "Maker", "hand_overs"]

WAITERS = 10
_ROUNDS = 3
_HOLD = 0.004
_APART = 0.06

Maker = Callable[[str], Callable[[], AbstractContextManager[object]]]


def hand_overs(contenders: dict[str, tuple[Maker, str]], turns: int) -> dict[str, float]:
    """Milliseconds, the median of all hand-overs of each."""
    gaps: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(_ROUNDS):
        for name, (make, url) in contenders.items():
            gaps[name] += _gaps(make, url, turns)
    return {name: 1000 * median(found) for name, found in gaps.items()}


def _gaps(make: Maker, url: str, turns: int) -> list[float]:
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for _ in range(WAITERS):
        here, there = context.Pipe()
        processes.append(context.Process(target=_wait_in_turn, args=(make, url, turns, there)))
        pipes.append(here)
    for process in processes:
        process.start()
    for pipe in pipes:
        pipe.recv()
    for pipe in pipes:
        pipe.send("go")
    spans = sorted((*span, who) for who, pipe in enumerate(pipes) for span in pipe.recv())
    for process in processes:
        process.join()
    # The first turns meet processes that still come, the last ones too few that wait.
    middle = spans[WAITERS:-WAITERS]
    return [b[0] - a[1] for a, b in pairwise(middle) if a[2] != b[2]]


def _wait_in_turn(make: Maker, url: str, turns: int, pipe: Connection) -> None:
    lock = make(url)
    with lock():
        pass  # connections are made, statements prepared
    pipe.send("ready")
    pipe.recv()
    spans = []
    for _ in range(turns):
        time.sleep(_APART * random.random())
        with lock():
            got = time.monotonic()
            time.sleep(_HOLD)
            spans.append((got, time.monotonic()))
    pipe.send(spans)
