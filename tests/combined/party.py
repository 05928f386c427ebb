"""A process that contends for one name and says what it asked, heard, believed and did.

    python -m tests.combined.party URL sync|async

A line of JSON on its input orders: {"url", "name", "who", "ttls", "change_at", "slots", "folder",
"seed", "cancels", "starves"}. It contends until the next line, and answers with the lines of
tests.history.events (and {"proved"} for beliefs that are not over), then {"done"}.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from incumbent import AsyncClient, Client, LeaseLost, NotAcquired, StoreError
from incumbent.clock import now
from tests.history.events import Event, GivenUp, Grant, Left, Run, Witness, to_line
from tests.support.contending import Orders, look, obey, say

_SLOT_KEEP = 600.0


class Work:
    """One holding: looks at the lease, holds the witness's lock, and tells both."""

    def __init__(self, party: Party, lease: Any, sent: float, until: float) -> None:
        self._party, self._lease, self._sent, self._until = party, lease, sent, until
        self._heard = self._began = now()
        self._file = os.open(Path(party.order["folder"]) / "witness", os.O_RDWR | os.O_CREAT)

    def __iter__(self) -> Iterator[float]:
        party = self._party
        alone = self._alone()
        self._began = now()
        say({"event": "Working", "who": party.claim, "alone": alone, "at": self._began})
        seen = yield from look(self._lease, self._until, party.orders, self._prove)
        ended = now()
        os.close(self._file)
        token = self._lease.fencing_token
        party.tell(Witness(party.claim, party.name, token, self._began, ended))
        party.tell(self._grant(seen))

    def _prove(self, until: float) -> None:
        self._party.tell(self._grant(until), proved=True)

    def _alone(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _grant(self, until: float) -> Grant:
        party, token = self._party, self._lease.fencing_token
        return Grant(party.claim, party.name, party.claim, token, self._sent, self._heard, until)


class Party:
    """One order. `claim` names the present attempt: its holder, and the slot that it asks for."""

    def __init__(self, order: dict[str, Any], orders: Orders) -> None:
        self.order, self.orders = order, orders
        self.name: str = order["name"]
        self.dice = random.Random(order["seed"])
        self.claim = ""
        self._attempts = 0

    def settings(self) -> dict[str, Any]:
        """Of the next attempt."""
        self._attempts += 1
        self.claim = f"{self.order['who']}-{os.getpid()}-{self._attempts}"
        before, after = self.order["ttls"]
        ttl = before if now() < self.order["change_at"] else after
        settings: dict[str, Any] = {"holder": self.claim, "ttl": ttl}
        if self.order["slots"]:
            settings |= {"once_per": _SLOT_KEEP, "slot": self.claim}
        return settings

    @property
    def timeout(self) -> float:
        """Most wait: who waits is handed over to."""
        return self.dice.choice((0.0, 0.0, 0.5, 5.0, 5.0, 5.0))

    def hold(self, lease: Any, sent: float) -> Work:
        """What is done under the lease."""
        if self.order["slots"]:
            self.tell(Run(self.claim, self.name, self.claim, self.claim, now(), _SLOT_KEEP))
        return Work(
            self, lease, sent, now() + self.dice.choice((0.0, 0.05, 0.1, 0.1, 0.2, 0.2, 0.5, 4.0))
        )

    def failed(self, ttl: float) -> float:
        """An acquire ended without a lease; says for how long to rest."""
        self.tell(GivenUp(self.claim, self.name, self.claim, now() + 2 * ttl + 1.0))
        return self.dice.choice((0.02, 0.1, 1.0))

    def left(self, at: float, said: str) -> None:
        """The release that began at `at` ended."""
        self.tell(Left(self.claim, self.name, self.claim, at, said))

    def tell(self, event: Event, *, proved: bool = False) -> None:
        """One event; `proved`: it may go on."""
        say(to_line(event) | ({"proved": True} if proved else {}))


def contend(order: dict[str, Any], orders: Orders) -> None:
    """The blocking side."""
    party = Party(order, orders)
    with Client(order["url"]) as client:
        while not orders.stopped:
            settings, sent = party.settings(), now()
            lock = client.lock(party.name, **settings)
            try:
                lease = lock.acquire(timeout=party.timeout)
            except (NotAcquired, StoreError):
                time.sleep(party.failed(settings["ttl"]))
                continue
            for pause in party.hold(lease, sent):
                time.sleep(pause)
            at = now()
            try:
                party.left(at, "released" if lease.release() else "unknown")
            except LeaseLost:
                party.left(at, "lost")


async def contend_async(order: dict[str, Any], orders: Orders) -> None:
    """The same for a coroutine, which may be cancelled as well."""
    party = Party(order, orders)
    async with AsyncClient(order["url"]) as client:
        while not orders.stopped:
            settings, sent = party.settings(), now()
            lock = client.lock(party.name, **settings)
            try:
                async with asyncio.timeout(_patience(party)):
                    lease = await lock.acquire(timeout=party.timeout)
            except (NotAcquired, StoreError, TimeoutError):
                await asyncio.sleep(party.failed(settings["ttl"]))
                continue
            for pause in party.hold(lease, sent):
                await asyncio.sleep(pause)
            at = now()
            try:
                party.left(at, "released" if await lease.release() else "unknown")
            except LeaseLost:
                party.left(at, "lost")


def _patience(party: Party) -> float | None:
    return party.dice.uniform(0.0, 0.3) if party.order["cancels"] else None


def _starve(until: float) -> None:
    """Keep the interpreter busy, in pieces of half a switch interval."""
    while now() < until:
        sum(range(20_000))


def carry_out(order: dict[str, Any], orders: Orders) -> dict[str, int]:
    """Contend until the next line."""
    for _ in range(order["starves"]):
        threading.Thread(target=_starve, args=(order["starves_until"],), daemon=True).start()
    with suppress(StoreError):
        if sys.argv[2] == "sync":
            contend(order, orders)
        else:
            asyncio.run(contend_async(order, orders))
    return {}


if __name__ == "__main__":
    obey(sys.argv[2], carry_out)
