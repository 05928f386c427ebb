"""Observing a leadership: woken by the store or by the leader's ttl, on through any outage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from incumbent import meters
from incumbent.durations import backoff_delay
from incumbent.election import Leader, leader_of, watch_for
from incumbent.errors import StoreError
from incumbent.model import Guard, Key, PutOutcome, Record
from incumbent.protocol.port import Port


class ReadingPort(Port, Protocol):
    """A Port that can also look, for people."""

    async def read(self, key: Key, until: float) -> Record: ...


class WritingPort(ReadingPort, Protocol):
    """A Port that can also look, and write fields."""

    async def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome: ...


class Outage(Protocol):
    """What an observer has to know to outlast an outage. `failures`: requests without an answer."""

    key: Key
    failures: int


@dataclass(slots=True)
class Observation:
    """What one observer has seen so far. `ttl`, `request_timeout`: seconds.

    `failures`: requests in a row without an answer. `again`: looks in a row without news.
    """

    key: Key
    ttl: float
    request_timeout: float
    leader: Leader | None = None
    started: bool = False
    failures: int = 0
    again: int = 0

    def learn(self, leader: Leader | None) -> bool:
        """Whether that is something new."""
        self.failures = 0
        if self.started and leader == self.leader:
            self.again += 1
            return False
        self.leader, self.started, self.again = leader, True, 0
        return True


async def observe(port: ReadingPort, seen: Observation, until: float) -> bool:
    """Wait until `seen.leader` is news; False if there was none by `until`.

    The first answer is always news. Raises only a StoreError that trying again cannot help.
    """
    while True:
        try:
            record = await port.read(seen.key, port.now() + seen.request_timeout)
            if seen.learn(leader_of(record)):
                return True
            if port.now() >= until:
                return False
            await _await_hint(port, seen, record, until)
        except StoreError as error:
            if not await outlast(port, seen, error, until):
                return False


async def _await_hint(port: ReadingPort, seen: Observation, record: Record, until: float) -> None:
    left = watch_for(record, seen.again, port.jitter(), seen.ttl)
    wake = min(until, port.now() + left)
    if seen.again > 1 and record.holdings:
        # Hints may be spurious: many of them must not become a busy loop.
        pause = backoff_delay(seen.again, port.jitter(), base=0.001, cap=0.05)
        await port.sleep_until(min(wake, port.now() + pause))
    await port.wait_change(seen.key, record.seen, wake)


async def outlast(port: Port, seen: Outage, error: StoreError, until: float) -> bool:
    """Back off before another look; False if `until` is over. Raises a permanent error."""
    if error.permanent:
        raise error
    seen.failures += 1
    if meters.on:
        meters.failed(error)
    port.tell_outage(seen.key, error)
    delay = max(backoff_delay(seen.failures, port.jitter()), error.retry_after or 0.0)
    await port.sleep_until(min(until, port.now() + delay))
    return port.now() < until
