"""A process that takes a lease again and again and says what it could prove, and when.

    python -m tests.quorum.contender URL sync|async

A line of JSON on its input: {"name", "ttl", "seed"}. It contends until the next line, and answers
with lines {"token", "at", "until", "end"}, then {"done": how many errors of each kind}.
"""

from __future__ import annotations

import asyncio
import json
import logging
import queue
import random
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

from incumbent import AsyncLock, LeaseLost, Lock, NotAcquired, StoreError
from incumbent.clock import now

_LOOK_EVERY = 0.004
_SLACK = 0.002


class Orders:
    """What comes on the input, read by a thread of its own."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self._lines.put(line)
        self._lines.put("")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while line := self._lines.get():
            yield json.loads(line)
            self._lines.get()

    @property
    def stopped(self) -> bool:
        """Whether the next line is there."""
        return not self._lines.empty()


def main() -> None:
    """Contend for each order of the input."""
    # A lease that was lost may be collected later; that is not what is judged here.
    warnings.simplefilter("ignore", ResourceWarning)
    logging.disable()
    url, kind = sys.argv[1:]
    loop, orders = asyncio.new_event_loop(), Orders()
    _say({"ready": kind})
    for order in orders:
        if kind == "sync":
            errors = contend(url, order, orders)
        else:
            errors = loop.run_until_complete(contend_async(url, order, orders))
        _say({"done": dict(errors)})


def contend(url: str, order: dict[str, Any], orders: Orders) -> Counter[str]:
    """The blocking side."""
    dice, errors = random.Random(order["seed"]), Counter[str]()
    lock = Lock(order["name"], store=url, ttl=order["ttl"])
    while not orders.stopped:
        try:
            lease = lock.acquire(timeout=dice.choice((0, 0.3, 1.0)))
        except (NotAcquired, StoreError) as error:
            errors[_name_of(error)] += 1
            time.sleep(dice.uniform(0.01, 0.1))
            continue
        for pause in Look(lease, now() + _held_for(dice, order["ttl"]), orders):
            time.sleep(pause)
        try:
            lease.release()
        except (LeaseLost, StoreError) as error:
            errors[_name_of(error)] += 1
    return errors


async def contend_async(url: str, order: dict[str, Any], orders: Orders) -> Counter[str]:
    """The same for a coroutine."""
    dice, errors = random.Random(order["seed"]), Counter[str]()
    lock = AsyncLock(order["name"], store=url, ttl=order["ttl"])
    while not orders.stopped:
        try:
            lease = await lock.acquire(timeout=dice.choice((0, 0.3, 1.0)))
        except (NotAcquired, StoreError) as error:
            errors[_name_of(error)] += 1
            await asyncio.sleep(dice.uniform(0.01, 0.1))
            continue
        for pause in Look(lease, now() + _held_for(dice, order["ttl"]), orders):
            await asyncio.sleep(pause)
        try:
            await lease.release()
        except (LeaseLost, StoreError) as error:
            errors[_name_of(error)] += 1
    return errors


class Look:
    """Looks at a lease until an instant or the next order, and says what it proves meanwhile."""

    def __init__(self, lease: Any, until: float, orders: Orders) -> None:
        self._lease, self._until, self._orders = lease, until, orders
        self._proved = 0.0

    def __iter__(self) -> Iterator[float]:
        seen = now()
        while True:
            # The deadline is at least this: `remaining` is computed after `before`.
            before = now()
            left = self._lease.remaining
            if left <= 0:
                break
            seen = before
            if before + left > self._proved + _SLACK:
                self._proved = before + left
                self._tell(self._proved, end=0)
            if before >= self._until or self._orders.stopped:
                break
            yield _LOOK_EVERY
        self._tell(seen, end=1)

    def _tell(self, until: float, *, end: int) -> None:
        token = self._lease.fencing_token
        _say({"token": token, "at": now(), "until": until, "end": end})


def _held_for(dice: random.Random, ttl: float) -> float:
    return dice.choice((0.0, 0.05, 0.3, ttl, 2.5 * ttl))


def _name_of(error: Exception) -> str:
    return type(error).__name__


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
