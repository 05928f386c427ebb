"""One listens for all: whom a word reaches, and what is not waited for. No server, no threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from incumbent import clock
from incumbent.errors import StoreUnavailable
from incumbent.model import Ask, Key, Queue, Queued, Refused
from incumbent.net.pool import Broken
from incumbent.net.readers import SUSPENDING
from incumbent.net.subscriptions import subscription_losses
from incumbent.stores.redis.records import Naming, in_line
from incumbent.stores.redis.site import Packer
from incumbent.stores.redis.subscription import LineHub
from tests.support.pace import BUSY, lasted

KEY = Key("default", "job")
CHANNEL = b"incumbent:{default/job}:c"
CLAIM, OTHER = "a" * 32, "b" * 32
ASK = Ask(10.0, "me", queue=Queue(3.0))
SINCE = 1_000_000


class FakeWire:
    """Confirms every subscription; `on_message` and `lose` are what the server does."""

    def __init__(self, epoch: str, *, confirms: bool) -> None:
        self.server = SimpleNamespace(epoch=epoch)
        self.confirms = confirms
        self.asked: list[bytes] = []
        self.refuses = b""
        self.closed = False
        self.used = 0.0
        self.on_message: Callable[[Any], None] | None = None

    def send(self, request: bytes, until: float) -> None:
        words = request.split(b"\r\n")
        self.asked.append(words[4])
        if self.refuses == words[4]:
            raise Broken("cut", sent=False)
        if words[2] == b"SUBSCRIBE" and self.confirms:
            self.tell([b"subscribe", words[4], 1])

    def tell(self, message: Any) -> None:
        if self.on_message is not None:
            self.on_message(message)

    def lose(self) -> None:
        self.closed = True
        self.tell(None)

    def close(self) -> None:
        self.closed = True


class FakeStore:
    """A runner: counts its looks, and may be unable to connect."""

    def __init__(self) -> None:
        self.ears: list[FakeWire] = []
        self.looks = 0
        self.unchanged = True
        self.away = False
        self.confirms = True
        self.refuses = b""
        self.epoch = "run-1"

    @property
    def ear(self) -> FakeWire:
        return self.ears[-1]

    async def open_subscriber(self, until: float) -> FakeWire:
        if self.away:
            raise StoreUnavailable("away")
        self.ears.append(FakeWire(self.epoch, confirms=self.confirms))
        self.ear.refuses, self.refuses = self.refuses, b""
        return self.ear

    async def server_time(self, until: float) -> int:
        return SINCE

    async def is_unchanged(self, key: Key, seen: str, until: float) -> bool:
        self.looks += 1
        return self.unchanged


def packer() -> Packer:
    return Packer(Naming(None), "redis://here")


def queued(
    claim: str = CLAIM, *, at: int = SINCE + 1, ask: Ask = ASK, epoch: str = "run-1"
) -> Queued:
    refusal = Refused("held", (), 5.0, "lease 1234")
    return in_line(refusal, claim, ask, b"%d" % at, 0, epoch)


class Scene:
    """A hub in a running loop, and those who wait with it."""

    def __init__(self) -> None:
        self.hub = LineHub(packer(), SUSPENDING)
        self.before = subscription_losses()
        self.store = FakeStore()

    @property
    def losses(self) -> int:
        return subscription_losses() - self.before

    def wait(self, seen: str, within: float = 5.0) -> asyncio.Task[None]:
        return asyncio.create_task(self.hub.wait(self.store, KEY, seen, clock.now() + within))

    def word(self, text: str) -> None:
        inbox = self.hub._packer.inbox_channel.encode()
        self.store.ear.tell([b"message", inbox, text.encode()])

    def news(self, payload: bytes = b"") -> None:
        self.store.ear.tell([b"message", CHANNEL, payload])


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def is_over(waiting: asyncio.Task[None]) -> bool:
    await settled()
    return waiting.done()


def scene(play: Callable[[Scene], Any]) -> None:
    async def main() -> None:
        one = Scene()
        await asyncio.wait_for(play(one), 5)

    asyncio.run(main())


def test_a_word_wakes_only_whom_it_names() -> None:
    async def play(it: Scene) -> None:
        mine, other = it.wait(queued().seen), it.wait(queued(OTHER).seen)
        await settled()
        it.word(f"turn {CLAIM[:16]} 0")
        assert await is_over(mine)
        assert not await is_over(other)
        it.word(f"turn {OTHER[:16]} 0")
        assert await is_over(other)
        assert len(it.store.ears) == 1
        assert it.store.looks == 0

    scene(play)


def test_a_word_that_comes_between_the_request_and_the_wait_is_kept() -> None:
    async def play(it: Scene) -> None:
        other = it.wait(queued(OTHER).seen)
        await settled()
        it.word(f"turn {CLAIM[:16]} 0")
        await settled()
        assert await is_over(it.wait(queued().seen))
        other.cancel()

    scene(play)


def test_a_word_that_nobody_had_read_yet_is_heard() -> None:
    async def play(it: Scene) -> None:
        before = it.wait(queued(OTHER).seen)
        await settled()
        it.word(f"turn {OTHER[:16]} 0")
        await before
        it.word(f"turn {CLAIM[:16]} 0")
        assert await is_over(it.wait(queued().seen))

    scene(play)


def test_who_asked_before_anybody_listened_looks_once_more() -> None:
    async def play(it: Scene) -> None:
        seen = queued(at=SINCE - 1).seen
        assert await is_over(it.wait(seen))
        # Having looked, it knows all that was said before.
        again = it.wait(seen)
        assert not await is_over(again)
        again.cancel()

    scene(play)


def test_a_word_may_name_a_later_instant() -> None:
    async def play(it: Scene) -> None:
        began = clock.now()
        waiting = it.wait(queued().seen)
        await settled()
        it.word(f"look {CLAIM[:16]} 100")
        await waiting
        assert lasted(began, 0.09, 0.1 + BUSY)

    scene(play)


@pytest.mark.parametrize("what", ["a word", "news"])
def test_what_was_heard_as_a_wait_ended_counts_until_it_has_looked(what: str) -> None:
    async def play(it: Scene) -> None:
        ask = Ask(10.0, "me", queue=Queue(3.0), candidacy=20.0)
        place = queued(ask=ask)
        waiting = it.wait(place.seen)
        await settled()
        if what == "a word":
            it.word(f"turn {CLAIM[:16]} 0")
        else:
            it.news()
        assert await is_over(waiting)
        # Its time was over, too: the next part of a long wait, without a look in between.
        assert await is_over(it.wait(place.seen))
        waiting = it.wait(place.seen)
        await settled()
        it.word(f"turn {CLAIM[:16]} 0")
        assert await is_over(waiting)
        looked = queued(at=SINCE + 2, ask=ask)
        it.hub.note_outcome(CLAIM, clock.now(), looked)
        again = it.wait(looked.seen)
        assert not await is_over(again)
        again.cancel()

    scene(play)


def test_a_later_instant_counts_also_for_the_next_part_of_a_wait() -> None:
    async def play(it: Scene) -> None:
        began = clock.now()
        waiting = it.wait(queued().seen, 0.05)
        await settled()
        it.word(f"look {CLAIM[:16]} 100")
        await waiting
        await it.wait(queued().seen)
        assert lasted(began, 0.09, 0.1 + BUSY)

    scene(play)


def test_one_in_line_does_not_hear_of_releases_and_other_news() -> None:
    async def play(it: Scene) -> None:
        waiting = it.wait(queued().seen)
        looking_on = it.wait("lease 1234")
        await settled()
        it.news(b"given")
        assert await is_over(looking_on)
        assert not await is_over(waiting)
        waiting.cancel()

    scene(play)


def test_a_candidate_in_line_hears_who_leads_but_not_of_releases() -> None:
    async def play(it: Scene) -> None:
        waiting = it.wait(queued(ask=Ask(10.0, "me", queue=Queue(3.0), candidacy=20.0)).seen)
        await settled()
        it.news(b"given")
        assert not await is_over(waiting)
        it.news()
        assert await is_over(waiting)

    scene(play)


def test_who_only_looks_on_looks_after_it_has_begun_to_listen() -> None:
    async def play(it: Scene) -> None:
        it.store.unchanged = False
        assert await is_over(it.wait("lease 1234"))
        assert it.store.looks == 1
        assert it.store.ear.asked[-1] == CHANNEL

    scene(play)


def test_when_the_reader_leaves_another_one_reads() -> None:
    async def play(it: Scene) -> None:
        first, second = it.wait(queued().seen), it.wait(queued(OTHER).seen)
        await settled()
        first.cancel()
        await settled()
        it.word(f"turn {OTHER[:16]} 0")
        assert await is_over(second)
        assert len(it.store.ears) == 1

    scene(play)


def test_a_lost_connection_has_all_of_them_look() -> None:
    async def play(it: Scene) -> None:
        waiting = [it.wait(queued().seen), it.wait(queued(OTHER).seen), it.wait("lease 1234")]
        await settled()
        it.store.ear.lose()
        for each in waiting:
            assert await is_over(each)
        assert it.losses == 1

    scene(play)


def test_a_connection_lost_while_nobody_waited_is_replaced() -> None:
    async def play(it: Scene) -> None:
        first = it.wait(queued().seen)
        await settled()
        it.word(f"turn {CLAIM[:16]} 0")
        await first
        it.store.ear.lose()
        await is_over(it.wait(queued(OTHER).seen))
        assert len(it.store.ears) == 2
        assert it.losses == 1

    scene(play)


def test_a_connection_that_breaks_as_a_channel_is_asked_for_is_replaced() -> None:
    async def play(it: Scene) -> None:
        it.store.refuses = CHANNEL
        waiting = it.wait("lease 1234")
        await settled()
        assert len(it.store.ears) == 2
        it.news()
        assert await is_over(waiting)

    scene(play)


def test_a_connection_that_breaks_later_as_a_channel_is_asked_for_is_replaced() -> None:
    async def play(it: Scene) -> None:
        first = it.wait(queued().seen)
        await settled()
        it.store.ear.refuses = CHANNEL
        second = it.wait("lease 1234")
        assert await is_over(first)
        assert len(it.store.ears) == 2
        it.news()
        assert await is_over(second)

    scene(play)


def test_where_nobody_can_listen_the_caller_is_told_and_others_do_not_try_at_once() -> None:
    async def play(it: Scene) -> None:
        it.store.away = True
        for _ in range(12):
            with pytest.raises(StoreUnavailable):
                await it.wait(queued().seen)
        assert 1 < it.losses < 12

    scene(play)


# -- another incarnation of the server ------------------------------------------------------------


def test_a_connection_to_another_server_than_the_one_of_the_takes_is_replaced() -> None:
    async def play(it: Scene) -> None:
        before = it.wait(queued(OTHER).seen)
        await settled()
        # The address leads to another one now, where nobody has subscribed yet.
        it.store.epoch = "run-2"
        after = it.wait(queued(epoch="run-2").seen)
        await settled()
        assert it.store.ears[0].closed
        assert len(it.store.ears) == 2
        # Whoever relied on the old connection has to look.
        assert await is_over(before)
        it.word(f"turn {CLAIM[:16]} 0")
        assert await is_over(after)

    scene(play)


def test_whose_place_is_at_another_server_than_a_new_connection_looks_at_once() -> None:
    async def play(it: Scene) -> None:
        # The address has changed since the take, and the new server's clock is behind.
        it.store.epoch = "run-2"
        seen = queued(at=SINCE + 1_000_000, epoch="run-1").seen
        assert await is_over(it.wait(seen))
        # Nor is it enough to have looked once: the take may have gone to the old one again.
        assert await is_over(it.wait(seen))

    scene(play)


def test_a_word_of_the_old_server_does_not_keep_anybody_from_asking_the_new_one() -> None:
    async def play(it: Scene) -> None:
        waiting = it.wait(queued(OTHER).seen)
        await settled()
        old = it.store.ear
        it.store.epoch = "run-2"
        it.hub.note_outcome(CLAIM, clock.now(), queued(epoch="run-2"))
        inbox = it.hub._packer.inbox_channel.encode()
        old.tell([b"message", inbox, HELD.encode()])
        await settled()
        new = it.wait(queued(epoch="run-2").seen)
        await settled()
        assert it.hub.known_refusal(CLAIM, ASK) is None
        for each in (waiting, new):
            each.cancel()

    scene(play)


def test_who_was_told_to_look_is_not_told_to_look_later() -> None:
    async def play(it: Scene) -> None:
        began = clock.now()
        waiting = it.wait(queued().seen)
        await settled()
        it.word(f"look {CLAIM[:16]} 100")
        it.word(f"look {CLAIM[:16]} 4000")
        await waiting
        assert lasted(began, 0.09, 0.1 + BUSY)

    scene(play)


# -- who need not look ----------------------------------------------------------------------------


async def rested(it: Scene, *said: str, within: float = 0.5) -> Any:
    """What `answer` makes of words to one that then waits until its time is over."""
    it.hub.note_outcome(CLAIM, clock.now(), queued())
    waiting = it.wait(queued().seen, within)
    await settled()
    for each in said:
        it.word(each)
    await waiting
    return it.hub.known_refusal(CLAIM, ASK)


HELD = f"held {CLAIM[:16]} 5000"


def test_while_the_first_looks_the_others_wait_on_without_asking() -> None:
    async def play(it: Scene) -> None:
        for _ in range(2):
            answer = await rested(it, HELD)
            assert isinstance(answer, Queued)
            assert answer.seen == queued().seen
            assert answer.retry_after is not None
            assert 0.0 < answer.retry_after < 5.0

    scene(play)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ((f"held {CLAIM[:16]} 1",), "that time is over"),
        ((HELD, f"turn {CLAIM[:16]} 0"), "it is first now"),
        ((HELD, f"look {CLAIM[:16]} 20"), "it is to look"),
        ((f"held {OTHER[:16]} 5000",), "another one was meant"),
    ],
)
def test_one_in_line_asks_for_itself(said: tuple[str, ...], why: str) -> None:
    async def play(it: Scene) -> None:
        assert await rested(it, *said) is None, why

    scene(play)


def test_who_was_told_to_wait_asks_when_the_subscription_was_lost() -> None:
    async def play(it: Scene) -> None:
        it.hub.note_outcome(CLAIM, clock.now(), queued())
        waiting = it.wait(queued().seen)
        await settled()
        it.word(HELD)
        await settled()
        it.store.ear.lose()
        await waiting
        assert it.hub.known_refusal(CLAIM, ASK) is None

    scene(play)


def test_a_candidate_that_was_told_to_wait_asks_when_something_has_happened() -> None:
    async def play(it: Scene) -> None:
        ask = Ask(10.0, "me", queue=Queue(3.0), candidacy=20.0)
        it.hub.note_outcome(CLAIM, clock.now(), queued(ask=ask))
        it.store.unchanged = True
        waiting = it.wait(queued(ask=ask).seen)
        await settled()
        it.word(HELD)
        it.news()
        await waiting
        assert it.hub.known_refusal(CLAIM, ask) is None

    scene(play)


def test_whatever_is_said_one_in_line_asks_once_in_twenty_ttls() -> None:
    async def play(it: Scene) -> None:
        await rested(it, HELD)
        it.hub.note_outcome(CLAIM, clock.now() - 20 * ASK.ttl - 1, queued())
        assert it.hub.known_refusal(CLAIM, ASK) is None

    scene(play)


def test_words_to_those_who_gave_up_are_forgotten_in_the_end() -> None:
    async def play(it: Scene) -> None:
        await rested(it, f"held {OTHER[:16]} 1")
        assert it.hub.known_refusal(CLAIM, ASK) is None
        assert not it.hub.resting

    scene(play)


@pytest.mark.timeout(20)
def test_a_server_that_confirms_no_subscription_is_given_up_in_time() -> None:
    async def scenario() -> None:
        scene = Scene()
        scene.store.confirms = False
        await scene.wait(queued().seen, within=0.1)

    began = clock.now()
    asyncio.run(scenario())
    assert lasted(began, 0.0, 5.0)


def test_a_part_of_a_wait_that_ends_before_anybody_listens_is_no_look() -> None:
    async def play(it: Scene) -> None:
        it.store.confirms = False
        reader = it.wait(queued(OTHER).seen)
        await settled()
        place = queued(at=SINCE - 1, ask=Ask(10.0, "me", queue=Queue(3.0), candidacy=20.0))
        await it.wait(place.seen, 0.02)
        # What is said to it now is lost.
        for channel in list(it.store.ear.asked):
            it.store.ear.tell([b"subscribe", channel, 1])
        it.store.ear.confirms = True
        await settled()
        assert await is_over(it.wait(place.seen))
        reader.cancel()

    scene(play)


def test_another_server_that_is_meant_is_listened_to_though_the_one_before_confirms() -> None:
    async def play(it: Scene) -> None:
        it.store.confirms = False
        waiting = it.wait(queued().seen)
        await settled()
        it.store.confirms = True
        it.hub.let_go()
        assert await is_over(waiting)
        first = it.store.ears[0]
        first.tell([b"subscribe", first.asked[0], 1])
        waiting = it.wait(queued().seen)
        await settled()
        assert (len(it.store.ears), first.closed) == (2, True)
        it.word(f"turn {CLAIM[:16]} 0")
        assert await is_over(waiting)

    scene(play)


def test_who_relied_on_another_incarnation_looks_before_it_connects() -> None:
    async def play(it: Scene) -> None:
        waiting = it.wait(queued(OTHER).seen)
        await settled()
        it.store.away = True
        newer = it.wait(queued(epoch="run-2").seen)
        assert await is_over(waiting)
        assert waiting.exception() is None
        newer.cancel()

    scene(play)


def test_a_connection_that_breaks_as_channels_are_given_up_is_lost_once() -> None:
    async def play(it: Scene) -> None:
        it.store.unchanged = False
        for number in range(99):
            key = Key("default", f"n{number}")
            await it.hub.wait(it.store, key, "lease 1", clock.now() + 1)
        it.store.ear.refuses = b"incumbent:{default/n0}:c"
        await it.hub.wait(it.store, KEY, "lease 1", clock.now() + 1)
        assert (len(it.store.ears), it.losses) == (2, 1)

    scene(play)
