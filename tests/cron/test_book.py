"""Writing in the ledger: who may, and how much is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from incumbent import clock
from incumbent.cron.ledger import (
    RUN,
    TAIL,
    TAIL_MOST,
    Ledger,
    SlotRecord,
    SlotState,
    encode,
    joined,
    orphans,
    pruned_spans,
    runs_of,
)
from incumbent.cron.schedule import slot_id
from incumbent.errors import OutcomeUnknown
from incumbent.model import Ask, Granted, Key, PutOutcome, Record
from incumbent.runtime.link import Link, link_for
from incumbent.stores.plan import run_blocking as drive

KEY = Key("n", "job")
NOW = 1_000_000_000.0
DAY = 86_400.0
NUMBERS = count()


@pytest.fixture
def link() -> Link:
    return link_for(f"memory:book{next(NUMBERS)}")


def claimed(link: Link, claim: str = "c") -> int:
    granted = link.store.take(KEY, claim, Ask(15.0, "i1"), clock.now() + 30)
    assert isinstance(granted, Granted)
    return granted.token


def run(token: int, due: float = NOW) -> SlotRecord:
    return SlotRecord(slot_id(due), SlotState.RUNNING, due, "i1", token, due)


def on_record(link: Link) -> dict[str, SlotState]:
    fields = link.store.read(KEY, clock.now() + 30).fields
    return {slot: it.state for slot, (it, _) in runs_of(fields).items()}


def test_who_lost_the_lease_cannot_write_ok(link: Link) -> None:
    ledger, token = Ledger(link.port, KEY), claimed(link)
    its = run(token)
    assert drive(ledger.begin(its))
    link.store.give(KEY, "c", token, clock.now() + 30)
    claimed(link, "another")
    assert drive(ledger.record_state(its, SlotState.OK, "c")) is None
    assert on_record(link) == {its.slot: SlotState.RUNNING}
    (_, version), *_ = runs_of(link.store.read(KEY, clock.now() + 30).fields).values()
    assert drive(ledger.lose(its, version, "gone", NOW))
    assert not drive(ledger.lose(its, version, "gone", NOW))
    assert on_record(link) == {its.slot: SlotState.LOST}


def test_a_slot_that_is_on_record_is_not_begun(link: Link) -> None:
    ledger, token = Ledger(link.port, KEY), claimed(link)
    drive(ledger.record_unrun(SlotRecord(slot_id(NOW), SlotState.SKIPPED, NOW, why="paused")))
    assert not drive(ledger.begin(run(token)))
    assert on_record(link) == {slot_id(NOW): SlotState.SKIPPED}


@pytest.mark.parametrize(
    ("keep", "keep_for", "left"),
    [(3, 90 * DAY, [3, 2, 1, 0]), (100, 2.5 * DAY, [2, 1, 0]), (1, 1.0, [0])],
)
def test_the_ledger_is_bounded_by_count_and_by_age_and_says_up_to_where(
    link: Link, keep: int, keep_for: float, left: list[int]
) -> None:
    ledger = Ledger(link.port, KEY)
    for age in range(10):
        due = NOW - age * DAY
        drive(
            ledger.record_unrun(
                SlotRecord(slot_id(due), SlotState.OK if age != 3 else SlotState.MISSED, due)
            )
        )
    drive(ledger.prune(keep, keep_for, NOW))
    left = [age for age in left if age < keep]
    assert sorted(on_record(link)) == sorted(slot_id(NOW - age * DAY) for age in left)
    fields = link.store.read(KEY, clock.now() + 30).fields
    spans = pruned_spans(fields)
    assert (spans[0][0], spans[-1][1]) == (NOW - 9 * DAY, NOW - (max(left) + 1) * DAY)
    assert drive(ledger.prune(keep, keep_for, NOW)) == 0


def pruned(link: Link, *dues: float, slot: Callable[[float], str] = slot_id) -> Ledger:
    """A ledger that had these, and has forgotten them; the newest of all is kept."""
    ledger = Ledger(link.port, KEY)
    for due in (*dues, max(dues) + 1):
        drive(ledger.record_unrun(SlotRecord(slot(due), SlotState.OK, due)))
    drive(ledger.prune(1, 90 * DAY, NOW))
    return ledger


def test_a_slot_that_was_forgotten_is_not_begun_again(link: Link) -> None:
    ledger, token = pruned(link, NOW), claimed(link)
    assert not drive(ledger.begin(run(token, NOW)))
    retry = replace(run(token, NOW), slot=f"{slot_id(NOW)}#2", attempt=2)
    assert not drive(ledger.begin(retry))
    assert drive(ledger.begin(run(token, NOW + 60)))


def test_a_slot_that_is_missed_as_one_of_many_is_not_begun(link: Link) -> None:
    ledger, token = Ledger(link.port, KEY), claimed(link)
    many = SlotRecord(slot_id(NOW), SlotState.MISSED, NOW, count=3, first=NOW - 120)
    drive(ledger.record_unrun(many))
    assert not drive(ledger.begin(run(token, NOW - 60)))
    assert drive(ledger.begin(run(token, NOW - 180)))


def test_records_of_a_clock_a_year_ahead_cancel_nothing_of_today(link: Link) -> None:
    ledger, token = pruned(link, NOW - 60, NOW + 365 * DAY), claimed(link)
    assert drive(ledger.begin(run(token, NOW)))
    assert not drive(ledger.begin(run(token, NOW + 365 * DAY)))


def test_triggers_and_slots_forget_apart(link: Link) -> None:
    ledger, token = pruned(link, NOW, NOW + 60, slot=lambda due: f"manual/{due}"), claimed(link)
    assert drive(ledger.begin(run(token, NOW)))
    assert not drive(ledger.begin(replace(run(token), slot="manual/another")))


def test_what_is_named_by_its_caller_goes_by_its_name_alone(link: Link) -> None:
    ledger, token = pruned(link, NOW), claimed(link)
    assert drive(ledger.create(replace(run(token), slot="2026-11-21")))


def test_of_two_that_prune_at_a_time_none_undoes_the_others_word(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(link.port, KEY)
    for second in range(3):
        drive(ledger.record_unrun(SlotRecord(slot_id(NOW + second), SlotState.OK, NOW + second)))
    seen = drive(ledger.read())
    drive(ledger.record_unrun(SlotRecord(slot_id(NOW + 3), SlotState.OK, NOW + 3)))
    assert drive(ledger.prune(1, DAY, NOW)) == 3

    async def stale() -> Record:
        return seen

    monkeypatch.setattr(ledger, "read", stale)
    assert drive(ledger.prune(1, DAY, NOW)) == 0
    fields = link.store.read(KEY, clock.now() + 30).fields
    assert pruned_spans(fields)[-1][1] == NOW + 2


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9)), max_size=40), st.integers(1, 5))
def test_joined_spans_cover_every_one_and_join_the_nearest(
    pairs: list[tuple[int, int]], most: int
) -> None:
    spans = [(float(first), float(first + length)) for first, length in pairs]
    found = joined(spans, most)
    assert len(found) <= most
    assert all(any(a <= first and last <= b for a, b in found) for first, last in spans)
    assert all(one[1] < other[0] for one, other in pairwise(found))
    if spans:
        assert (found[0][0], found[-1][1]) == (min(spans)[0], max(last for _, last in spans))


def test_what_was_noted_while_a_run_was_about_to_begin_counts(link: Link) -> None:
    ledger, token = Ledger(link.port, KEY), claimed(link)
    drive(ledger.record_unrun(SlotRecord(slot_id(NOW), SlotState.LOST, NOW, why="vanished")))
    assert not drive(ledger.create(run(token)))
    assert on_record(link) == {slot_id(NOW): SlotState.LOST}


def test_a_first_request_that_comes_after_the_look_is_known_for_ones_own(
    link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, late = link.store.put, list[Any]()

    def delayed(*request: Any) -> PutOutcome:
        if not late:
            late.append(request)
            raise OutcomeUnknown("the first one is still on its way")
        # It arrives just before the second one.
        put(*late[0])
        return put(*request)

    monkeypatch.setattr(link.store, "put", delayed)
    assert drive(Ledger(link.port, KEY).create(run(claimed(link))))
    assert on_record(link) == {slot_id(NOW): SlotState.RUNNING}


# -- the output of a run that goes on --------------------------------------------------------------


def shown(link: Link, run: SlotRecord) -> tuple[str, float | None]:
    found = runs_of(link.store.read(KEY, clock.now() + 30).fields)[run.slot][0]
    return found.output, found.output_seen


def begun(link: Link) -> tuple[Ledger, SlotRecord]:
    ledger, its = Ledger(link.port, KEY), run(claimed(link))
    assert drive(ledger.begin(its))
    return ledger, its


def test_the_end_of_the_output_is_seen_while_its_run_goes_on(link: Link) -> None:
    ledger, its = begun(link)
    assert drive(ledger.show(its, "x" * TAIL_MOST + "last", "c", NOW + 5))
    output, seen = shown(link, its)
    assert (len(output), output[-5:], seen) == (TAIL_MOST, "xlast", NOW + 5)
    # What comes late, or from one that lost the lease, changes nothing that is on record.
    assert drive(ledger.record_state(its, SlotState.OK, "c", output="whole"))
    assert drive(ledger.show(its, "late", "c", NOW + 9))
    assert shown(link, its) == ("whole", None)
    assert not drive(ledger.show(its, "stranger", "another", NOW + 9))
    assert drive(ledger.show(its, "", "c", NOW + 10))
    assert TAIL not in link.store.read(KEY, clock.now() + 30).fields


def test_another_run_or_attempt_is_not_given_the_output(link: Link) -> None:
    ledger, its = begun(link)
    for other in (replace(its, token=its.token + 1), replace(its, attempt=2)):
        assert drive(ledger.show(its, "mine", "c", NOW))
        link.store.put(KEY, RUN + its.slot, encode(other), None, clock.now() + 30)
        assert shown(link, its) == ("", None)


@pytest.mark.parametrize("value", [b"", b"[]", b'{"token":%d,"attempt":1,"output":5,"seen":1}'])
def test_a_tail_that_is_not_ours_hides_no_run(link: Link, value: bytes) -> None:
    _, its = begun(link)
    value = value.replace(b"%d", str(its.token).encode())
    link.store.put(KEY, TAIL, value, None, clock.now() + 30)
    assert shown(link, its) == ("", None)


def test_the_record_of_a_lost_run_keeps_what_was_seen_last(link: Link) -> None:
    ledger, its = begun(link)
    assert drive(ledger.show(its, "so far", "c", NOW + 5))
    link.store.give(KEY, "c", its.token, clock.now() + 30)
    ((found, version),) = orphans(link.store.read(KEY, clock.now() + 30))
    assert drive(ledger.lose(found, version, "gone", NOW + 9))
    claimed(link, "another")
    drive(ledger.show(run(its.token + 1), "of the next run", "another", NOW))
    assert on_record(link) == {its.slot: SlotState.LOST}
    assert shown(link, its) == ("so far", NOW + 5)


def test_a_release_that_knows_no_tails_loses_a_run_and_its_output_is_seen(link: Link) -> None:
    ledger, its = begun(link)
    assert drive(ledger.show(its, "so far", "c", NOW + 5))
    lost = replace(its, state=SlotState.LOST, ended=NOW + 9, why="gone")
    link.store.put(KEY, RUN + its.slot, encode(lost), None, clock.now() + 30)
    assert shown(link, its) == ("so far", NOW + 5)
