"""What is asked again, how often, and until when."""

from __future__ import annotations

import asyncio

import pytest

from incumbent import OutcomeUnknown, StoreUnavailable, clock
from incumbent.net.pool import until_served
from incumbent.stores.plan import run_blocking

MOMENT = StoreUnavailable("in a moment", retry_after=0.05)
NONE_OF_A_MOMENT = (
    StoreUnavailable("away"),
    StoreUnavailable("restarted", retry_after=12.0),
    StoreUnavailable("a wrong password", permanent=True, retry_after=0.1),
    StoreUnavailable("longer than a moment", retry_after=0.51),
    OutcomeUnknown("perhaps", retry_after=0.1),
)


class Server:
    """It answers so many times with an error, and then serves."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.times, self.asked = error, times, 0
        self.rests: list[float] = []

    async def ask(self) -> str:
        self.asked += 1
        if self.asked <= self.times:
            raise self.error
        return "served"

    async def rest(self, until: float) -> None:
        self.rests.append(until - clock.now())
        await asyncio.sleep(0)

    async def blocking_rest(self, until: float) -> None:
        self.rests.append(until - clock.now())


def test_a_refusal_for_a_moment_is_asked_again_until_it_is_served() -> None:
    server = Server(MOMENT, 3)
    assert asyncio.run(until_served(server.ask, clock.now() + 20, server.rest)) == "served"
    assert server.asked == 4
    assert all(rest <= 0.051 for rest in server.rests)


def test_the_blocking_side_never_suspends() -> None:
    server = Server(MOMENT, 3)
    assert (
        run_blocking(until_served(server.ask, clock.now() + 20, server.blocking_rest)) == "served"
    )


def test_at_its_deadline_it_raises_the_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    server, at = Server(MOMENT, 1000), 100.0
    monkeypatch.setattr(clock, "now", lambda: at)

    async def rest(until: float) -> None:
        nonlocal at
        at = until

    with pytest.raises(StoreUnavailable, match="in a moment"):
        run_blocking(until_served(server.ask, at + 0.3, rest))
    assert 100.2 < at < 100.3
    assert server.asked > 2


@pytest.mark.parametrize("error", NONE_OF_A_MOMENT, ids=str)
def test_what_lasts_or_is_not_known_is_told_at_once(error: Exception) -> None:
    server = Server(error, 1)
    with pytest.raises(type(error)):
        run_blocking(until_served(server.ask, clock.now() + 20, server.blocking_rest))
    assert (server.asked, server.rests) == (1, [])


def test_a_try_that_had_no_time_left_does_not_hide_the_refusal() -> None:
    errors: list[StoreUnavailable] = [MOMENT]
    until = clock.now() + 0.2

    async def ask() -> str:
        if errors:
            raise errors.pop()
        while clock.now() < until:
            pass
        raise StoreUnavailable("no time is left")

    with pytest.raises(StoreUnavailable, match="in a moment"):
        run_blocking(until_served(ask, until, Server(MOMENT, 0).blocking_rest))
