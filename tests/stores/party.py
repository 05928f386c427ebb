"""What the tests of engines share: one engine and a lease of its own, by the store's operations."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from incumbent import clock
from incumbent.model import Ask, Granted, Key, Refused, Renewal
from incumbent.stores.base import Engine, Store

ASK = Ask(10.0, "host-1")
WITHIN = 10.0
"""Seconds for an answer: a busy machine takes some of them."""


def soon(seconds: float = WITHIN) -> float:
    return clock.now() + seconds


def new_claim() -> str:
    return secrets.token_hex(16)


@dataclass
class Party:
    engine: Engine
    key: Key = field(default_factory=lambda: Key("faults", secrets.token_hex(6)))
    claim: str = field(default_factory=new_claim)

    @property
    def store(self) -> Store:
        return self.engine.store()

    def take(self, claim: str = "", within: float = WITHIN, ask: Ask = ASK) -> Granted:
        outcome = self.store.take(self.key, claim or self.claim, ask, soon(within))
        assert isinstance(outcome, Granted), outcome
        return outcome

    def refused(self, claim: str = "", ask: Ask = ASK) -> Refused:
        outcome = self.store.take(self.key, claim or new_claim(), ask, soon())
        assert isinstance(outcome, Refused), outcome
        return outcome

    async def take_async(self, claim: str = "", within: float = WITHIN, ask: Ask = ASK) -> Granted:
        store = self.engine.async_store()
        outcome = await store.take(self.key, claim or self.claim, ask, soon(within))
        assert isinstance(outcome, Granted), outcome
        return outcome

    def renewal(self, granted: Granted, ttl: float = 10.0) -> Renewal:
        return Renewal(self.key, granted.claim, granted.token, ttl, granted.epoch)
