"""What the fault tests of the Redis store share."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from incumbent import clock
from incumbent.model import Ask, Granted, Key, Refused
from incumbent.stores.redis import engine_from_client, open_store
from incumbent.stores.redis.engine import RedisEngine
from incumbent.stores.redis.sync import RedisStore

ASK = Ask(10.0, "host-1")


def soon(seconds: float = 5.0) -> float:
    return clock.now() + seconds


def new_claim() -> str:
    return secrets.token_hex(16)


@dataclass
class Party:
    """One engine and a lease of its own; `asked` is when the last bounded call began."""

    engine: RedisEngine
    key: Key = field(default_factory=lambda: Key("faults", secrets.token_hex(6)))
    claim: str = field(default_factory=new_claim)

    @property
    def store(self) -> RedisStore:
        return self.engine.store()

    @property
    def main(self) -> str:
        return f"incumbent:{{{self.key}}}"

    @property
    def companion(self) -> str:
        return f"{self.main}:r"

    def take(self, claim: str = "", within: float = 5.0, ask: Ask = ASK) -> Granted:
        outcome = self.store.take(self.key, claim or self.claim, ask, soon(within))
        assert isinstance(outcome, Granted), outcome
        return outcome

    def refused(self, claim: str = "", ask: Ask = ASK) -> Refused:
        outcome = self.store.take(self.key, claim or new_claim(), ask, soon())
        assert isinstance(outcome, Refused), outcome
        return outcome

    async def take_async(self, claim: str = "", within: float = 5.0, ask: Ask = ASK) -> Granted:
        store = self.engine.async_store()
        outcome = await store.take(self.key, claim or self.claim, ask, soon(within))
        assert isinstance(outcome, Granted), outcome
        return outcome


@contextmanager
def party(url: str, options: str = "restart_wait=0") -> Iterator[Party]:
    """An engine at `url`, closed at the end; by default fresh servers grant at once."""
    # One with layers has the same operations; tests of theirs look no deeper.
    engine = cast("RedisEngine", open_store(f"{url}?{options}"))
    try:
        yield Party(engine)
    finally:
        engine.store().close()


def own_party(client: Any, **options: Any) -> Party:
    """The same for a client of the user's own; who asks closes it."""
    return Party(cast("RedisEngine", engine_from_client(client, **options)))
