"""Waiters of one process: one asks and looks for all of them, and passes that on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from incumbent import clock
from incumbent.errors import OutcomeUnknown, StoreUnavailable
from incumbent.model import PLAIN, Ask, Granted, Holding, Key, Queue, Queued, Refused, TakeOutcome
from incumbent.net.readers import SharedWakeup, Wakeup
from incumbent.stores import turns
from incumbent.stores.plan import Plan
from incumbent.stores.turns import TakesTurns, Turns
from tests.support.pace import took

KEY = Key("turns", "job")
WAITING = Ask(10.0, "host", queue=Queue(3.0))


class Store(TakesTurns[None]):
    """Refuses everybody while it is held; a change ends what the first in line listens to."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.dialect: Any = self
        self.asked: list[str] = []
        self.listening = self.listened = 0
        self.held = True
        self.reason: Any = "held"
        self.holder = "other"
        self.error: Exception | None = None
        self.changed = asyncio.Event()

    def take(self, *args: Any) -> Any:
        """Of the store: awaited; of the dialect: the plan."""
        if len(args) == 3:
            return args[1]
        return super().take(*args)

    def give(self, *args: Any, **parting: Any) -> Any:
        if args[3:] == (PLAIN,):
            return ""
        return super().give(*args, **parting)

    def wakeup(self) -> Wakeup:
        return SharedWakeup()

    async def run(self, plan: Plan[None, Any] | str, until: float) -> Any:
        if not plan:
            return None
        self.asked.append(str(plan))
        await asyncio.sleep(0.01)
        if self.error is not None:
            raise self.error
        if self.held:
            seen = "7" if self.reason == "held" else "8"
            return Refused(self.reason, (Holding(self.holder),), 10.0, seen)
        self.held = True
        return Granted(str(plan), 1, 10.0)

    async def wait_at_store(self, key: Key, seen: str, until: float) -> None:
        self.listening += 1
        self.listened += 1
        try:
            await self.changed.wait()
            self.changed.clear()
        finally:
            self.listening -= 1

    def let_go(self) -> None:
        """Nothing is open."""


async def comes_true(condition: Callable[[], bool]) -> None:
    """After a moment, in which more may come of it, or as long as a busy machine takes."""
    await asyncio.sleep(0.1)
    while not condition():
        await asyncio.sleep(0.01)


def play(body: Callable[[Store], Any]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await body(Store())

    asyncio.run(main())


async def asks(store: Store, claim: str) -> TakeOutcome:
    outcome: TakeOutcome = await store.take(KEY, claim, WAITING, clock.now() + 5)
    return outcome


async def acquires(store: Store, claim: str, got: list[str]) -> None:
    while isinstance(outcome := await asks(store, claim), Refused):
        await store.wait_change(KEY, outcome.seen, clock.now() + 8)
    got.append(claim)
    store.held = False
    store.changed.set()


def test_of_many_that_come_at_once_one_asks_and_one_listens() -> None:
    async def body(store: Store) -> None:
        got: list[str] = []
        tasks = [asyncio.create_task(acquires(store, f"c{n}", got)) for n in range(100)]
        await comes_true(lambda: (len(store.asked), store.listening) == (1, 1))
        store.held = False
        store.changed.set()
        await asyncio.gather(*tasks)
        # Each asks when its turn has come, and at most once in vain.
        assert len(store.asked) <= 201
        assert sorted(got) == sorted(f"c{n}" for n in range(100))
        assert not store.turns._lines

    play(body)


def test_those_that_come_while_another_is_granted_hear_that_it_holds() -> None:
    async def body(store: Store) -> None:
        store.held = False
        outcomes = await asyncio.gather(*(asks(store, f"c{n}") for n in range(20)))
        granted = [each for each in outcomes if isinstance(each, Granted)]
        assert len(granted) == 1
        queued = [each for each in outcomes if isinstance(each, Queued)]
        assert [each.place for each in queued] == list(range(19))
        assert {each.holders[0].holder for each in queued} == {"host"}
        assert len(store.asked) == 1

    play(body)


def test_what_was_heard_long_ago_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_FRESH", 0.05)

    async def body(store: Store) -> None:
        await asks(store, "first")
        await asyncio.sleep(0.1)
        await asks(store, "second")
        assert store.asked == ["first", "second"]

    play(body)


def test_an_error_is_no_answer_for_others() -> None:
    async def body(store: Store) -> None:
        store.error = StoreUnavailable("down")
        outcomes = await asyncio.gather(
            *(asks(store, f"c{n}") for n in range(5)), return_exceptions=True
        )
        assert all(isinstance(each, StoreUnavailable) for each in outcomes)
        assert len(store.asked) == 5

    play(body)


@pytest.mark.parametrize("how", ["give", "cancel"])
def test_the_first_passes_its_turn_on(how: str) -> None:
    async def body(store: Store) -> None:
        got: list[str] = []
        first = asyncio.create_task(acquires(store, "first", got))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(acquires(store, "second", got))
        await asyncio.sleep(0.05)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        if how == "give":
            # As whoever acquires does when it is interrupted.
            await store.give(KEY, "first", 0, clock.now() + 1)
            assert store.turns.waits(KEY)
        else:
            monkey = next(iter(store.turns.line(KEY).waiters.values()))
            monkey.lapses_at = clock.now()
            store.turns.notify_all(KEY)
        store.held = False
        store.changed.set()
        began = clock.now()
        await second
        assert took(began) < 5
        assert got == ["second"]

    play(body)


async def holds(store: Store, claim: str, seconds: float) -> None:
    got: list[str] = []
    while isinstance(outcome := await asks(store, claim), Refused):
        await store.wait_change(KEY, outcome.seen, clock.now() + 8)
    got.append(claim)
    await asyncio.sleep(seconds)
    store.held = False
    await store.give(KEY, claim, 1, clock.now() + 1)
    store.changed.set()


async def hold_in_turn(store: Store, count: int, seconds: float) -> None:
    """So many of them; the first listens when the lease becomes free."""
    tasks = [asyncio.create_task(holds(store, f"c{n}", seconds)) for n in range(count)]
    await comes_true(lambda: store.listened == 1)
    store.held = False
    store.changed.set()
    await asyncio.gather(*tasks)


def test_while_leases_are_brief_one_follows_the_other_without_a_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "TURN", 5.0)
    monkeypatch.setattr(turns, "_BRIEF", 1.0)

    async def body(store: Store) -> None:
        await hold_in_turn(store, 20, 0.0)
        # Each asked once, but for the first one.
        assert (store.listened, len(store.asked)) == (1, 21)

    play(body)


def test_a_turn_ends_although_there_are_more_waiters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "_BRIEF", 1.0)

    async def body(store: Store) -> None:
        await hold_in_turn(store, 30, 0.0)
        # A take lasts 10 ms here, and a turn 50.
        assert store.listened > 3

    play(body)


def test_after_a_lease_that_was_not_brief_the_next_one_looks() -> None:
    async def body(store: Store) -> None:
        await hold_in_turn(store, 4, 0.1)
        assert store.listened == 4

    play(body)


def test_nobody_follows_one_that_was_refused_or_got_no_answer() -> None:
    async def body(store: Store) -> None:
        for claim in ("first", "second"):
            await asks(store, claim)
        assert not store.turns._seen(KEY).take_at_once
        store.error = OutcomeUnknown("no answer")
        with pytest.raises(OutcomeUnknown):
            await asks(store, "first")
        assert not store.turns._seen(KEY).take_at_once
        store.error, store.held = None, False
        await asks(store, "first")
        assert store.turns._seen(KEY).take_at_once
        assert store.turns.end_turn(KEY)
        assert not store.turns._seen(KEY).take_at_once
        assert not store.turns.end_turn(KEY)

    play(body)


def test_a_first_that_cannot_listen_lets_the_next_one_try() -> None:
    async def body(store: Store) -> None:
        queued = [await asks(store, f"c{n}") for n in range(2)]
        listened: list[str] = []

        async def listen(claim: str, error: Exception | None) -> None:
            listened.append(claim)
            if error is not None:
                raise error

        async def wait(claim: str, error: Exception | None) -> None:
            await store.turns.wait(
                KEY, claim, clock.now() + 8, store.wakeup(), lambda: listen(claim, error)
            )

        assert all(isinstance(each, Queued) for each in queued)
        second = asyncio.create_task(wait("c1", None))
        await asyncio.sleep(0.05)
        assert listened == []
        with pytest.raises(StoreUnavailable):
            await wait("c0", StoreUnavailable("no watch"))
        await second
        assert listened == ["c0", "c1"]

    play(body)


def test_a_candidate_and_one_that_tries_once_or_shares_ask_for_themselves() -> None:
    async def body(store: Store) -> None:
        await asks(store, "waits")
        queue = Queue(3.0)
        for ask in (
            Ask(10.0, "host"),
            Ask(10.0, "host", queue=queue, candidacy=20.0),
            Ask(10.0, "host", queue=queue, permits=2),
        ):
            outcome = await store.take(KEY, "other", ask, clock.now() + 5)
            assert type(outcome) is Refused
            assert outcome.seen == "7"
        assert len(store.asked) == 4

    play(body)


def test_a_name_that_is_reserved_for_somebody_elsewhere_concerns_no_waiter_here() -> None:
    async def body(store: Store) -> None:
        waiting = [asyncio.create_task(acquires(store, f"c{n}", [])) for n in range(5)]
        await comes_true(lambda: len(store.asked) == 1)
        store.reason = "reserved"
        store.changed.set()
        await comes_true(lambda: len(store.asked) == 2)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    play(body)


@pytest.mark.parametrize("reason", ["reserved", "turn"])
def test_a_refusal_for_one_of_the_waiters_is_told_to_each_once(reason: str) -> None:
    async def body(store: Store) -> None:
        waiting = [asyncio.create_task(acquires(store, f"c{n}", [])) for n in range(5)]
        await comes_true(lambda: len(store.asked) == 1)
        store.reason, store.holder = reason, "host"
        store.changed.set()
        # The first one, and then all, for it may be for any of them.
        await comes_true(lambda: (len(store.asked), len(set(store.asked))) == (7, 5))
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    play(body)


def test_one_whose_take_got_no_answer_asks_again_for_itself() -> None:
    async def body(store: Store) -> None:
        store.error = OutcomeUnknown("no answer")
        with pytest.raises(OutcomeUnknown):
            await asks(store, "doubted")
        store.error = None
        await asks(store, "refused")
        # That refusal may name the very claim that asks now.
        await asks(store, "doubted")
        assert store.asked == ["doubted", "refused", "doubted"]
        store.turns.leave(KEY, "doubted")
        assert not store.turns.doubted

    play(body)


def test_the_first_of_us_in_the_store_s_line_is_the_first_here() -> None:
    async def body(store: Store) -> None:
        got: list[str] = []
        tasks = [asyncio.create_task(acquires(store, claim, got)) for claim in ("a", "b", "c")]
        await comes_true(lambda: store.listened == 1)
        # "b" sleeps behind "a", and the store would wake "b".
        store.turns.note_order(KEY, ["of another process", "b", "a"])
        await comes_true(lambda: store.listened == 2)
        store.held = False
        store.turns.leave(KEY, "b")
        store.changed.set()
        tasks[1].cancel()
        await asyncio.gather(tasks[0], tasks[2])
        assert got[0] == "a"

    play(body)


def test_a_claim_that_waits_here_stands_for_the_others() -> None:
    async def body(store: Store) -> None:
        for claim in ("a", "b"):
            assert isinstance(await asks(store, claim), Queued)
        assert store.turns.has_claim(KEY, "b")
        assert not store.turns.has_claim(KEY, "of another process")
        store.turns.leave(KEY, "b")
        assert not store.turns.has_claim(KEY, "b")

    play(body)


def test_a_line_that_is_left_takes_no_later_one_with_it() -> None:
    async def body(store: Store) -> None:
        left = store.turns.line(KEY)
        store.turns.tidy(KEY, left)
        outcome = await asks(store, "waits")
        assert isinstance(outcome, Queued)
        # One that asked in the first of them hears its answer only now.
        store.turns.tidy(KEY, left)
        assert store.turns.waits(KEY)
        store.turns.leave(KEY, "waits")
        assert not store.turns.waits()

    play(body)


def test_a_waiter_of_a_closed_loop_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turns, "_SILENT", 0.1)

    async def stands(store: Store, claim: str, seconds: float) -> None:
        outcome = await asks(store, claim)
        assert isinstance(outcome, Refused)
        await store.wait_change(KEY, outcome.seen, clock.now() + seconds)

    loop = asyncio.new_event_loop()
    store = Store()
    dead = loop.create_task(stands(store, "dead", 0.2))
    loop.run_until_complete(asyncio.sleep(0.05))
    loop.close()

    async def main() -> None:
        store.changed = asyncio.Event()
        alive = asyncio.create_task(stands(store, "alive", 5))
        await comes_true(lambda: store.listened == 2)
        alive.cancel()

    asyncio.run(main())
    assert not dead.done()


def test_a_waiter_of_a_closed_loop_is_woken_without_an_error() -> None:
    async def made() -> tuple[SharedWakeup, asyncio.Task[None]]:
        wakeup = SharedWakeup()
        sleeper = asyncio.ensure_future(wakeup.wait(clock.now() + 5))
        await asyncio.sleep(0)
        return wakeup, sleeper

    loop = asyncio.new_event_loop()
    wakeup, sleeper = loop.run_until_complete(made())
    loop.close()
    wakeup.wake()
    assert not sleeper.done()


def test_a_take_that_was_not_sent_leaves_no_doubt() -> None:
    async def body(store: Store) -> None:
        store.error = StoreUnavailable("down")
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await asks(store, "c")
            assert not store.turns.doubted
        store.error = OutcomeUnknown("lost")
        with pytest.raises(OutcomeUnknown):
            await asks(store, "c")
        store.error = StoreUnavailable("down")
        with pytest.raises(StoreUnavailable):
            await asks(store, "c")
        assert store.turns.doubted == {"c"}

    play(body)


def test_a_wait_that_ended_with_an_error_leaves_no_line_behind() -> None:
    async def body(store: Store) -> None:
        async def fails() -> None:
            raise StoreUnavailable("down")

        await asks(store, "c1")
        with pytest.raises(StoreUnavailable, match="down"):
            await store.turns.wait(KEY, "c1", clock.now() + 8, SharedWakeup(), fails)
        store.turns.notify_all(KEY)
        assert not store.turns.waits()

    play(body)
