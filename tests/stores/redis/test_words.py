"""What a real server says to those in line, word by word: who is told to look, and by when."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import redis

from incumbent.model import UNLIMITED, Ask, Gone, Granted, Queue, Queued
from tests.stores.redis.world import Party, new_claim, party, soon
from tests.support.servers import RedisServer

pytestmark = pytest.mark.server

TTL, HEARTBEAT = 9.0, 3.0
BRIEF = 0.3


class Line:
    """A name, and waiters of one process each. `words` are heard by a listener to all of them."""

    def __init__(self, url: str, raw: redis.Redis, stack: ExitStack) -> None:
        self._url, self._stack = url, stack
        self.holder = stack.enter_context(party(url))
        listen: Any = raw.pubsub  # redis-py does not say what it returns
        self._heard = stack.enter_context(listen())
        self._heard.psubscribe("incumbent:to:*")
        assert self._heard.get_message(timeout=5)
        self._granted = self.holder.take(ask=Ask(TTL, "holder"))
        self.heartbeat = HEARTBEAT

    def waiter(self, *, ttl: float = TTL) -> Party:
        """One more, who stands at the end."""
        one = self._stack.enter_context(party(self._url))
        one.key = self.holder.key
        assert isinstance(self.asks(one, ttl), Queued)
        return one

    def asks(self, one: Party, ttl: float = TTL) -> object:
        ask = Ask(ttl, "waiter", queue=Queue(self.heartbeat, fair=True))
        return one.store.take(one.key, one.claim, ask, soon())

    def release(self) -> None:
        one = self.holder
        one.store.give(one.key, one.claim, self._granted.token, soon())

    def words(self, *those: Party) -> list[str]:
        """What was said since, of whom by the place in `those`."""
        said = []
        while message := self._heard.get_message(timeout=0.1):
            what, id_, ms = message["data"].decode().split()
            who = next(at for at, one in enumerate(those) if one.claim.startswith(id_))
            said.append(f"{what} {who} {ms}")
        return sorted(said)


@pytest.fixture
def line(redis_server: RedisServer) -> Iterator[Line]:
    with ExitStack() as stack, redis.Redis(port=redis_server.port) as raw:
        yield Line(redis_server.url, raw, stack)


def test_a_release_tells_the_first_and_two_who_look_if_that_one_stays_silent(line: Line) -> None:
    waiters = [line.waiter() for _ in range(4)]
    assert line.words(*waiters) == []
    line.release()
    assert line.words(*waiters) == ["look 1 3000", "look 3 3375", "turn 0 0"]


def test_while_somebody_watches_a_hand_over_is_one_word(line: Line) -> None:
    waiters = [line.waiter() for _ in range(4)]
    line.release()
    line.words(*waiters)
    for place in (0, 1):
        grant = line.asks(waiters[place])
        assert isinstance(grant, Granted)
        assert line.words(*waiters) == []
        waiters[place].store.give(line.holder.key, grant.claim, grant.token, soon())
        assert line.words(*waiters) == [f"turn {place + 1} 0"]


def test_who_watches_and_leaves_is_replaced(line: Line) -> None:
    waiters = [line.waiter() for _ in range(3)]
    line.release()
    line.words(*waiters)
    last = waiters[2]
    assert last.store.give(last.key, last.claim, 0, soon()) == Gone()
    (said,) = line.words(*waiters)
    what, who, ms = said.split()
    assert (what, who) == ("look", "1")
    # By the end of the turn that goes on.
    assert 0 < int(ms) <= 3000


def test_who_was_granted_watches_no_more(line: Line) -> None:
    waiters = [line.waiter(ttl=BRIEF), line.waiter()]
    line.release()
    assert line.words(*waiters) == ["look 1 3000", "turn 0 0"]
    assert isinstance(line.asks(waiters[0], BRIEF), Granted)
    waiters.append(line.waiter())
    time.sleep(BRIEF + 0.05)
    # The holder died; the one that watched comes, and the next one has to know by when to look.
    assert isinstance(line.asks(waiters[1]), Granted)
    assert line.words(*waiters) == ["look 2 9000"]


def test_waiters_of_the_process_whose_turn_it_is_watch_nobody(line: Line) -> None:
    first, other = line.waiter(), line.waiter()
    own = Party(first.engine, first.key, new_claim())
    assert isinstance(line.asks(own), Queued)
    line.release()
    assert line.words(first, other, own) == ["look 1 3000", "turn 0 0"]


def test_another_process_watches_once_it_is_the_turn_of_the_one_that_watched(
    line: Line,
) -> None:
    first, busy, other = (line.waiter() for _ in range(3))
    again = Party(busy.engine, busy.key, new_claim())
    assert isinstance(line.asks(again), Queued)
    waiters = (first, busy, other, again)
    line.release()
    assert line.words(*waiters) == ["look 1 3000", "look 3 3375", "turn 0 0"]
    grant = line.asks(first)
    assert isinstance(grant, Granted)
    first.store.give(first.key, grant.claim, grant.token, soon())
    assert line.words(*waiters) == ["look 2 3000", "turn 1 0"]


def test_a_process_that_was_silent_in_its_turn_loses_all_its_places_and_is_told(line: Line) -> None:
    line.heartbeat = BRIEF
    silent, other = line.waiter(), line.waiter()
    again = Party(silent.engine, silent.key, new_claim())
    assert isinstance(line.asks(again), Queued)
    waiters = (silent, other, again)
    line.release()
    assert line.words(*waiters) == ["look 1 300", "turn 0 0"]
    time.sleep(BRIEF + 0.05)
    assert isinstance(line.asks(other), Granted)
    # Once it lives it asks, and stands at the end.
    assert line.words(*waiters) == ["turn 0 0", "turn 2 0"]
    places = [line.asks(one) for one in (again, silent)]
    assert [it.place for it in places if isinstance(it, Queued)] == [0, 1]


def test_who_was_silent_in_its_turn_has_no_second_one_after_one_that_did_not_wait(
    line: Line,
) -> None:
    line.heartbeat = BRIEF
    line.waiter()
    line.release()
    time.sleep(BRIEF + 0.05)
    for _ in range(2):
        grant = line.holder.take(new_claim(), ask=Ask(TTL, "who tries once"))
        line.holder.store.give(line.holder.key, grant.claim, grant.token, soon())


def test_a_reader_behind_a_writer_that_leaves_is_told_at_once(line: Line) -> None:
    line.release()
    readers = Ask(TTL, "reader", permits=UNLIMITED)
    line.holder.take(new_claim(), ask=readers)
    writer = line.waiter()
    reader = Party(writer.engine, writer.key, new_claim())
    waiting = replace(readers, queue=Queue(HEARTBEAT))
    assert isinstance(reader.store.take(reader.key, reader.claim, waiting, soon()), Queued)
    assert writer.store.give(writer.key, writer.claim, 0, soon()) == Gone()
    assert line.words(writer, reader) == ["turn 1 0"]


def test_a_candidate_that_need_not_ask_stays_listed_no_shorter_than_it_asked(line: Line) -> None:
    store, key, long = line.holder.store, line.holder.key, 600.0

    def wait(claim: str, candidacy: float) -> None:
        ask = Ask(TTL, claim, queue=Queue(HEARTBEAT, fair=True), candidacy=candidacy)
        assert isinstance(store.take(key, claim, ask, soon()), Queued)

    wait("first", 1.0)
    wait("other", long)
    # The first looks a second after the grant or later: then the others may rest.
    time.sleep(1.1)
    wait("first", 1.0)
    listed = {it.holder: it.remaining for it in store.read(key, soon()).candidates}
    assert listed["other"] > long / 2


def test_who_gives_back_what_it_has_lost_stands_in_line_no_more(line: Line) -> None:
    one = line.waiter()
    line.release()
    grant = line.asks(one)
    assert isinstance(grant, Granted)
    one.store.give(one.key, grant.claim, grant.token, soon())
    line.holder.take(new_claim())
    assert isinstance(line.asks(one), Queued)
    assert one.store.give(one.key, grant.claim, grant.token, soon()) == Gone()
    other = line.waiter()
    queued = line.asks(other)
    assert isinstance(queued, Queued)
    assert queued.place == 0
