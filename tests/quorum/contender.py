"""A process that takes a lease again and again and says what it could prove, and when.

    python -m tests.quorum.contender URL sync|async

A line of JSON on its input: {"name", "ttl", "seed"}. It contends until the next line, and answers
with lines {"token", "at", "until", "end"}, then {"done": how many errors of each kind}.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from incumbent import AsyncLock, LeaseLost, Lock, NotAcquired, StoreError
from incumbent.clock import now
from tests.support.contending import Orders, look, obey, say


def main() -> None:
    """Contend for each order of the input."""
    url, kind = sys.argv[1:]
    loop = asyncio.new_event_loop()

    def carry_out(order: dict[str, Any], orders: Orders) -> Counter[str]:
        if kind == "sync":
            return contend(url, order, orders)
        return loop.run_until_complete(contend_async(url, order, orders))

    obey(kind, carry_out)


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
        for pause in _look(lease, now() + _held_for(dice, order["ttl"]), orders):
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
        for pause in _look(lease, now() + _held_for(dice, order["ttl"]), orders):
            await asyncio.sleep(pause)
        try:
            await lease.release()
        except (LeaseLost, StoreError) as error:
            errors[_name_of(error)] += 1
    return errors


def _look(lease: Any, until: float, orders: Orders) -> Iterator[float]:
    """Say what a lease proves until an instant or the next order."""

    def tell(until: float, end: int = 0) -> None:
        say({"token": lease.fencing_token, "at": now(), "until": until, "end": end})

    seen = yield from look(lease, until, orders, tell)
    tell(seen, end=1)


def _held_for(dice: random.Random, ttl: float) -> float:
    return dice.choice((0.0, 0.05, 0.3, ttl, 2.5 * ttl))


def _name_of(error: Exception) -> str:
    return type(error).__name__


if __name__ == "__main__":
    main()
