"""Waiting on servers whose words take long to come, on a clock of the test's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from incumbent.errors import StoreUnavailable
from incumbent.model import Key
from incumbent.net import subscriptions
from incumbent.net.readers import CONNECTED, Message, ReaderSide, Subscriber
from incumbent.stores.plan import run_blocking
from incumbent.stores.quorum import waiting
from incumbent.stores.quorum.waiting import MajorityHub

KEY, CHANNEL = Key("default", "job"), "floor"


class FarAway(Subscriber[Any]):
    """Three servers, the subscriber to them, and the host of both. Its clock is the test's.

    `trip`: seconds until a reply is here; `told`: when the change is told, if it is.
    """

    interruptible = True

    def __init__(self, trip: float, told: float) -> None:
        super().__init__()
        self.now, self.trip, self.told = 1000.0, trip, 1000.0 + told
        self.coming: list[tuple[float, int, Any]] = []
        self.looks = 0

    def clock(self) -> float:
        return self.now

    def begin(self, subscriber: object, node: int, until: float) -> None:
        self.coming.append((self.now + self.trip, node, CONNECTED))

    def send(self, node: int, request: bytes, until: float) -> None:
        name = CHANNEL.encode()
        self.coming.append((self.now + self.trip, node, [b"subscribe", name, 1]))
        self.coming.append((self.told + self.trip, node, [b"message", name, b""]))

    async def next(self, until: float) -> Message | None:
        self.coming.sort(key=lambda each: each[0])
        if self.coming and self.coming[0][0] <= until:
            at, node, message = self.coming.pop(0)
            self.now = max(self.now, at)
            return node, message
        self.now = max(self.now, until)
        return None

    def _put(self, node: int, wire: object) -> None:
        pass

    def wake(self) -> None:
        pass

    def drop(self, node: int) -> None:
        pass

    def close(self) -> None:
        pass

    async def is_unchanged(self, key: Key, seen: str, until: float) -> bool:
        self.looks += 1
        return True


def hub_of(servers: FarAway, monkeypatch: pytest.MonkeyPatch) -> MajorityHub:
    for module in (subscriptions, waiting):
        monkeypatch.setattr(module, "_now", servers.clock)
    side = ReaderSide(lambda: SimpleNamespace(wake=lambda: None), lambda: servers, lambda: "me")
    dialect = SimpleNamespace(keys=lambda key: SimpleNamespace(floor=CHANNEL))
    quorum: Any = SimpleNamespace(names=["a", "b", "c"], need=2, dialect=dialect, where="abc")
    return MajorityHub(quorum, side)


@pytest.mark.parametrize("trip", [0.01, 0.2, 0.9])
def test_who_waits_for_servers_that_are_far_away_hears_of_a_change(
    trip: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = FarAway(trip, told=5.0)
    hub = hub_of(servers, monkeypatch)
    run_blocking(hub.wait(servers, KEY, "seen", servers.now + 30.0))
    assert servers.looks == 1
    assert servers.now == pytest.approx(1005.0 + trip, abs=0.05)


def test_servers_that_confirm_nothing_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    servers = FarAway(0.01, told=5.0)
    monkeypatch.setattr(servers, "send", lambda *_: None)
    hub = hub_of(servers, monkeypatch)
    with pytest.raises(StoreUnavailable, match="no answer"):
        run_blocking(hub.wait(servers, KEY, "seen", servers.now + 30.0))
    assert servers.now == pytest.approx(1002.0, abs=0.2)
