"""etcd answers as the second model of the contract does, whatever is done in any order."""

from __future__ import annotations

import random
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from incumbent.model import (
    PLAIN,
    Ask,
    GiveOutcome,
    Guard,
    Key,
    Parting,
    PutOutcome,
    Queue,
    Record,
    Renewal,
    RenewOutcome,
    TakeOutcome,
)
from incumbent.stores.base import Store
from incumbent.stores.plan import run_blocking
from tests.rules import histories
from tests.rules.histories import PERMITS, History, Subject, play
from tests.stores.etcd.world import party
from tests.support.etcd import EtcdServer

pytestmark = pytest.mark.server

LONG = 1_000.0
"""Seconds: nothing ends while a history is played, for nobody can move the clock of etcd."""


def of_claim(claim: str, ask: Ask) -> Ask:
    """Each claim asks alike, as claims do: some are candidates."""
    return replace(ask, candidacy=LONG if claim in ("c1", "c2", "s1", "r1") else 0.0)


@dataclass
class WithoutTime:
    """A store of which everything is asked for `LONG`."""

    store: Store

    def take(self, key: Key, claim: str, ask: Ask, until: float) -> TakeOutcome:
        slot = ask.slot and ask.slot._replace(keep=LONG)
        ask = replace(of_claim(claim, ask), ttl=LONG, slot=slot)
        # Its waiters do not take turns: each asks the server, as those of many processes do.
        operations: Any = self.store.operations  # type: ignore[attr-defined]
        plan = operations.dialect.take(key, claim, ask)
        outcome: TakeOutcome = run_blocking(operations.run(plan, until))
        return outcome

    def renew(self, renewals: Sequence[Renewal], until: float) -> list[RenewOutcome]:
        return self.store.renew([replace(one, ttl=LONG) for one in renewals], until)

    def give(
        self, key: Key, claim: str, token: int | None, until: float, *, parting: Parting = PLAIN
    ) -> GiveOutcome:
        parting = parting._replace(closed_for=LONG if parting.closed_for else 0.0)
        return self.store.give(key, claim, token, until, parting=parting)

    def put(
        self, key: Key, field: str, value: bytes | None, guard: Guard, until: float
    ) -> PutOutcome:
        return self.store.put(key, field, value, guard, until)

    def read(self, key: Key, until: float) -> Record:
        return self.store.read(key, until)

    def scan(self, namespace: str, prefix: str, until: float) -> tuple[Record, ...]:
        return self.store.scan(namespace, prefix, until)


class HistoryWithoutTime(History):
    """The model's clock stands."""

    def __init__(self, rng: random.Random, subject: Subject) -> None:
        super().__init__(rng, subject)
        take: Any = self.model.take
        self.model.take = (  # type: ignore[method-assign]
            lambda key, claim, ask, *now: take(key, claim, of_claim(claim, ask), *now)
        )

    @property
    def now(self) -> float:
        return 1_000.0

    @now.setter
    def now(self, _: float) -> None:
        pass


def shown(reason: str, found: histories.Shown) -> histories.Shown:
    """A refusal does not say how much of a ttl is left; a slot keeps its first token."""
    return [(one[0], *one[1 + (reason == "used") : 2], *one[5:]) for one in found]


def test_etcd_says_what_the_model_says(
    etcd_server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histories, "History", HistoryWithoutTime)
    monkeypatch.setattr(histories, "close", lambda seconds: seconds is not None)
    for _ in range(8):
        seed = secrets.randbits(32)
        with party(etcd_server.store_url(f"/history-{seed}")) as one:
            subject = Subject(
                WithoutTime(one.store),  # type: ignore[arg-type]
                lambda now, wall: None,
                queues=[None, Queue(LONG, fair=True), Queue(LONG)],
                permits=PERMITS,
                late_kept=1e9,
                shows=shown,
            )
            play(seed, subject, steps=40)
