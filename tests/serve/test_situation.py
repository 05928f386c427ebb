"""A view is computed when it is asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from math import inf

import pytest

from incumbent import clock
from incumbent.locks.leases import Lease
from incumbent.locks.lock import Lock
from incumbent.runtime.keeper import Stats
from incumbent.serve.situation import Situation
from tests.support.faulty import FaultyEngine
from tests.support.pace import WOKEN


@pytest.fixture
def lease() -> Iterator[Lease]:
    with Lock("job", store=FaultyEngine(), holder="node-1").acquire() as held:
        yield held


@pytest.fixture
def situation() -> Situation:
    return Situation("job", "node-1", "pgroup", ttl=15)


class Clock:
    """The real one, moved."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self._real = clock.now

    def now(self) -> float:
        return self._real() + self.ahead


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Clock:
    mine = Clock()
    monkeypatch.setattr(clock, "now", mine.now)
    return mine


def test_it_starts_neither_leading_nor_ready(situation: Situation) -> None:
    view = situation.view()
    assert (view.role, view.leading, view.term) == ("starting", False, 0)
    assert view.healthy
    assert not view.ready
    assert view.unanswered_for == inf


def test_a_lead_is_proved_by_the_lease_at_the_instant_of_the_question(
    situation: Situation, moved: Clock
) -> None:
    lease = Lock("job", store=FaultyEngine(), holder="node-1").acquire()
    situation.note_leading(lease)
    view = situation.view()
    assert view.leading
    assert view.ready
    assert (view.leader, view.term, view.terms) == ("node-1", lease.fencing_token, 1)
    assert 0 < view.proven_for <= 15
    # Nobody tells the situation; the keeper's own clock does not matter to the question.
    lease._link.keeper.disarm(lease._claim)
    moved.ahead = 20
    later = situation.view()
    assert not later.leading
    assert later.proven_for == 0
    assert later.leader is None


def test_the_store_has_to_have_answered_within_two_ttls(situation: Situation, moved: Clock) -> None:
    situation.note_standby("node-2")
    situation.note_answered()
    situation.pulse(inf)
    moved.ahead = 29
    assert situation.view().ready
    moved.ahead = 31
    assert not situation.view().ready


def test_a_loop_that_breaks_its_promise_is_unhealthy(situation: Situation, moved: Clock) -> None:
    situation.pulse(clock.now() + 1)
    moved.ahead = 5
    assert situation.view().healthy
    moved.ahead = 7
    assert not situation.view().healthy
    situation.pulse(clock.now() + 1)
    assert situation.view().healthy


def test_losses_are_counted_and_what_was_wanted_is_not(situation: Situation) -> None:
    for cause in ("expired", "taken", "expired", "signal:SIGTERM", "", "resigned", "guard: died"):
        situation.note_ended(cause)
    assert situation.view().losses == {"expired": 2, "taken": 1, "guard": 1}


def test_one_lease_told_twice_is_one_term(situation: Situation, lease: Lease) -> None:
    situation.note_leading(lease)
    situation.note_leading(lease)
    assert situation.view().terms == 1


def test_there_is_no_way_back_from_stopping_but_the_lease_still_shows(
    situation: Situation, lease: Lease
) -> None:
    situation.note_leading(lease)
    situation.note_stopping()
    situation.note_standby("node-2")
    view = situation.view()
    assert (view.role, view.ready, view.leading) == ("stopping", False, True)


def test_listeners_hear_of_changes_only(situation: Situation) -> None:
    heard: list[str] = []
    situation.on_change(lambda: heard.append("change"))
    situation.note_standby("node-2")
    situation.note_standby("node-2")
    situation.note_unanswered()
    assert len(heard) == 1
    situation.note_answered()
    situation.note_answered()
    assert len(heard) == 2
    situation.note_unanswered()
    situation.note_restarted()
    assert len(heard) == 3
    assert situation.view().restarts == 1


def test_a_listener_may_have_another_thread_look(situation: Situation) -> None:
    seen: list[tuple[str, int]] = []

    def look() -> None:
        view = situation.view()
        seen.append((view.role, view.losses.get("expired", 0)))

    def have_somebody_look() -> None:
        looker = threading.Thread(target=look, daemon=True)
        looker.start()
        looker.join(WOKEN)

    situation.on_change(have_somebody_look)
    situation.note_ended("expired")
    situation.note_restarted()
    assert seen == [("ended", 1)]
    assert situation.view().restarts == 1


def test_the_keepers_numbers_are_read_at_the_question(situation: Situation, moved: Clock) -> None:
    lease = Lock("job", store=FaultyEngine(), holder="node-1").acquire()
    lease._link.keeper.disarm(lease._claim)
    situation.note_leading(lease)
    moved.ahead = 40
    situation.pulse(inf)
    assert not situation.view().ready
    lease._link.keeper.stats = Stats(5, 2, clock.now() - 3)
    view = situation.view()
    assert 3 <= view.unanswered_for < 4
    assert view.ready
    assert view.store_up
    lease._claim.failures = 1
    assert not situation.view().store_up


def test_a_real_renewal_is_counted(situation: Situation, lease: Lease) -> None:
    situation.note_leading(lease)
    lease.renew()
    view = situation.view()
    assert lease._link.keeper.stats.renewals == 1
    assert view.unanswered_for < 5
