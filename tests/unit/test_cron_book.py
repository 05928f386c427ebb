"""Writing in the ledger: who may, and how much is kept."""

from __future__ import annotations

from itertools import count

import pytest

from incumbent import clock
from incumbent._core.onestep import run as drive
from incumbent._drive.link import Link
from incumbent.cron.book import Book, Pen
from incumbent.cron.ledger import Run, State, pruned_until, runs_of
from incumbent.cron.schedule import slot_id
from incumbent.links import link_for
from incumbent.model import Ask, Granted, Key

KEY = Key("n", "job")
NOW = 1_000_000_000.0
DAY = 86_400.0
NUMBERS = count()


@pytest.fixture
def link() -> Link:
    return link_for(f"memory:book{next(NUMBERS)}")


def claimed(link: Link, claim: str = "c") -> Pen:
    granted = link.store.take(KEY, claim, Ask(15.0, "i1"), clock.now() + 1)
    assert isinstance(granted, Granted)
    return Pen(claim, granted.token)


def run(pen: Pen, due: float = NOW) -> Run:
    return Run(slot_id(due), State.RUNNING, due, "i1", pen.token, due)


def on_record(link: Link) -> dict[str, State]:
    fields = link.store.read(KEY, clock.now() + 1).fields
    return {slot: it.state for slot, (it, _) in runs_of(fields).items()}


def test_who_lost_the_lease_cannot_write_ok(link: Link) -> None:
    book, pen = Book(link.port, KEY), claimed(link)
    its = run(pen)
    assert drive(book.begin(its))
    link.store.give(KEY, "c", pen.token, clock.now() + 1)
    claimed(link, "another")
    assert drive(book.move(its, State.OK, pen)) is None
    assert on_record(link) == {its.slot: State.RUNNING}
    (_, version), *_ = runs_of(link.store.read(KEY, clock.now() + 1).fields).values()
    assert drive(book.lose(its, version, "gone", NOW))
    assert not drive(book.lose(its, version, "gone", NOW))
    assert on_record(link) == {its.slot: State.LOST}


def test_a_slot_that_is_on_record_is_not_begun(link: Link) -> None:
    book, pen = Book(link.port, KEY), claimed(link)
    drive(book.note(Run(slot_id(NOW), State.SKIPPED, NOW, why="paused")))
    assert not drive(book.begin(run(pen)))
    assert on_record(link) == {slot_id(NOW): State.SKIPPED}


@pytest.mark.parametrize(
    ("keep", "keep_for", "left"),
    [(3, 90 * DAY, [3, 2, 1, 0]), (100, 2.5 * DAY, [2, 1, 0]), (1, 1.0, [0])],
)
def test_the_ledger_is_bounded_by_count_and_by_age_and_says_up_to_where(
    link: Link, keep: int, keep_for: float, left: list[int]
) -> None:
    book = Book(link.port, KEY)
    for age in range(10):
        due = NOW - age * DAY
        drive(book.note(Run(slot_id(due), State.OK if age != 3 else State.MISSED, due)))
    drive(book.prune(keep, keep_for, NOW))
    left = [age for age in left if age < keep]
    assert sorted(on_record(link)) == sorted(slot_id(NOW - age * DAY) for age in left)
    fields = link.store.read(KEY, clock.now() + 1).fields
    assert pruned_until(fields) == NOW - (max(left) + 1) * DAY
    assert drive(book.prune(keep, keep_for, NOW)) == 0
