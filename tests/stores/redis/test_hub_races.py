"""What two threads, or a signal handler, do to the hub at one instant. No server, no threads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.net.readers import BLOCKING, BlockingSubscriber, ThreadWakeup
from incumbent.net.subscriptions import Role
from incumbent.stores.plan import run_blocking
from incumbent.stores.redis.records import read_place
from incumbent.stores.redis.subscription import LineHub, LineSubscription, LineWaiter, _Rest
from tests.stores.redis.test_hub import (
    ASK,
    CLAIM,
    OTHER,
    SINCE,
    FakeStore,
    FakeWire,
    Scene,
    packer,
    queued,
    scene,
)
from tests.support.pace import BUSY, took


def reading() -> tuple[LineHub, Role[LineSubscription], LineSubscription]:
    """A hub whose reader is this thread, with a subscription that began long ago."""
    hub = LineHub(packer(), BLOCKING)
    role = hub._take_role("me")
    assert role is not None
    subscription = role.subscriptions[0] = LineSubscription("inbox", "run-1")
    subscription.since = SINCE
    return hub, role, subscription


def test_one_that_joins_while_its_channel_is_given_up_looks() -> None:
    hub, role, subscription = reading()
    for n in range(150):
        subscription.requested[f"c{n}"] = 0.0
        subscription.confirmed.add(f"c{n}")
    late, early = (LineWaiter(ThreadWakeup(), None, [f"c{n}"]) for n in (49, 149))
    hub._waiters[early] = None

    class Subscriber(BlockingSubscriber):
        def send(self, node: int, request: bytes, until: float) -> None:
            # A system call: meanwhile another thread begins to wait.
            if late not in hub._waiters:
                hub._waiters[late] = None
                hub._ask_for(late.channels)
                assert hub._is_done(late)
                late.listens = True

    subscriber = role.subscriber = Subscriber()
    hub._subscribe(role, subscriber)
    assert late in hub._waiters
    assert (late.over, early.over) == (True, False)
    subscriber.close()


def test_a_message_is_not_lost_between_the_waiters_and_what_is_kept_for_later() -> None:
    hub, _, subscription = reading()
    late = LineWaiter(ThreadWakeup(), read_place(queued().seen), [])

    class Waiters(dict[Any, None]):
        def __iter__(self) -> Iterator[Any]:
            before = [*self.keys()]
            if late not in self:  # it joins right after the reader has copied them
                self[late] = None
                assert not hub._must_recheck(subscription, late)
            return iter(before)

    hub._waiters = Waiters()
    hub._on_inbox_message(subscription, f"turn {CLAIM[:16]} 0".encode())
    assert late.recheck_at < clock.now()


def test_a_message_that_reached_its_waiter_is_not_kept_for_later() -> None:
    hub, _, subscription = reading()
    waiter = LineWaiter(ThreadWakeup(), read_place(queued().seen), [])
    hub._waiters[waiter] = None
    hub._on_inbox_message(subscription, f"turn {CLAIM[:16]} 0".encode())
    assert waiter.recheck_at < clock.now()
    assert not hub._early


def test_a_reader_that_runs_out_of_its_own_time_bars_no_patient_waiter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("incumbent.net.subscriptions.draw_jitter", lambda: 1.0)

    class Slow(FakeStore):
        async def open_subscriber(self, until: float) -> FakeWire:
            await asyncio.sleep(max(0.0, min(0.1, until - clock.now() + 0.001)))
            if clock.now() >= until:
                raise StoreUnavailable("no time is left")
            return await super().open_subscriber(until)

    async def play(it: Scene) -> None:
        it.store = Slow()
        failures = 0
        while failures < 3:
            try:
                # On a busy machine its time may be over before it connects: then it just returns.
                await it.wait(queued(OTHER).seen, within=0.02)
            except StoreUnavailable:
                failures += 1
        patient = it.wait(queued().seen)
        await asyncio.sleep(0.3)
        assert not patient.done()
        assert len(it.store.ears) == 1
        patient.cancel()

    scene(play)


def test_a_reader_that_a_handler_interrupted_notices_that_its_role_is_over() -> None:
    hub, role, _ = reading()
    subscriber = role.subscriber = BlockingSubscriber()
    assert hub._take_role("me") is not role
    began = clock.now()
    run_blocking(subscriber.next(began + 5.0))
    assert took(began) < BUSY
    subscriber.close()


def test_what_changes_while_a_take_looks_for_its_answer_does_not_raise() -> None:
    hub, _, subscription = reading()

    class Changing(dict[str, _Rest]):
        def items(self) -> Any:
            for at, item in enumerate(super().items()):
                self[f"new{at}"] = item[1]  # as another thread, if gc runs in between
                yield item

    hub.resting = Changing(a=_Rest(subscription, clock.now() + 5))
    assert hub.known_refusal(CLAIM, ASK) is None


def test_a_waiter_that_looks_is_not_asked_to_read() -> None:
    hub, role, _ = reading()
    looking, asleep = (LineWaiter(ThreadWakeup(), None, ["c"]) for _ in range(2))
    looking.is_asking = True
    hub._waiters = {looking: None, asleep: None}
    hub._leave_role(role)
    began = clock.now()
    run_blocking(asleep.wakeup.wait(began + 5.0))
    assert took(began) < BUSY
