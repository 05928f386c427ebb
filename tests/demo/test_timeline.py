"""What the demo draws and concludes follows from the accounts alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from incumbent.demo.judge import (
    Account,
    faults_in,
    seconds_shared,
    spans_shared,
)
from incumbent.demo.scenes import _describe_overlap, spell
from incumbent.demo.story import StoryRow, draw


def account(
    number: int, term: int, first: float, last: float, *, met: tuple[int, ...] = ()
) -> Account:
    return Account(number, "ours", f"c{number}", term, first, met, first, last, last)


APART = [account(1, 5, 0.0, 1.0), account(2, 9, 1.5, 3.0)]


# -- the verdict ---------------------------------------------------------------------------------


def test_leaders_one_after_the_other_with_growing_terms_are_without_fault() -> None:
    assert faults_in(APART) == []
    assert seconds_shared(APART) == 0


def test_a_worker_that_met_a_living_one_is_a_fault() -> None:
    assert faults_in([APART[0], replace(APART[1], met=(1,))])


@pytest.mark.parametrize("term", [4, 5])
def test_a_term_that_does_not_grow_is_a_fault(term: int) -> None:
    assert faults_in([APART[0], replace(APART[1], term=term)])


def test_the_order_of_terms_is_that_of_beginnings_not_of_accounts() -> None:
    assert faults_in(APART[::-1]) == []


def test_shared_time_is_counted_once_however_many_write() -> None:
    three = [account(1, 1, 0.0, 4.0), account(2, 2, 1.0, 3.0), account(3, 3, 2.0, 5.0)]
    assert seconds_shared(three) == pytest.approx(3.0)
    assert spans_shared(three)[0][0] == 1.0


def test_writes_that_only_touch_share_no_time() -> None:
    assert spans_shared([account(1, 1, 0.0, 1.0), account(2, 2, 1.0, 2.0)]) == []


def test_a_worker_that_never_wrote_shares_no_time() -> None:
    silent = replace(account(2, 2, 0.0, 9.0), first_write=None, last_write=None)
    assert seconds_shared([account(1, 1, 0.0, 4.0), silent]) == 0


def test_the_old_one_is_measured_from_the_first_write_of_the_new_one() -> None:
    assert seconds_shared([account(1, 1, 0.0, 2.5), account(2, 2, 2.0, 9.0)]) == pytest.approx(0.5)
    assert seconds_shared(APART) == 0


# -- the drawing ---------------------------------------------------------------------------------


def drawn(row: StoryRow, *, end: float = 10.0, width: int = 10) -> str:
    return draw({"one": row}, 0.0, end, width)[1].removeprefix("one".ljust(8))


def test_a_span_fills_the_columns_of_its_time() -> None:
    assert drawn(StoryRow([(2.0, 5.0)])) == "  ###"


def test_a_column_belongs_to_whoever_fills_half_of_it() -> None:
    assert drawn(StoryRow([(0.0, 2.4)])) == "##"
    assert drawn(StoryRow([(2.4, 4.0)])) == "  ##"
    assert drawn(StoryRow([(2.6, 4.0)])) == "   #"


def test_a_span_shorter_than_a_column_is_still_seen() -> None:
    assert drawn(StoryRow([(3.1, 3.2)])) == "   #"


def test_a_mark_is_drawn_over_its_span() -> None:
    assert drawn(StoryRow([(0.0, 4.0)], [(2.1, "K")])) == "##K#"


def test_what_lies_outside_is_cut_off_and_a_late_mark_is_kept_at_the_edge() -> None:
    assert drawn(StoryRow([(-3.0, 1.0), (9.0, 99.0)], [(-1.0, "X"), (10.0, "T")])) == ("#        T")


def test_all_rows_begin_in_the_same_column_as_the_axis() -> None:
    lines = draw({"a": StoryRow([(0, 1)]), "a-long-name": StoryRow([(0, 1)])}, 0.0, 10.0, 50)
    at = len("a-long-name ")
    assert [line[at] for line in lines] == ["0", "#", "#"]
    assert lines[0][at:].split() == [str(second) for second in range(11)]


def test_the_numbers_of_a_long_time_do_not_run_into_each_other() -> None:
    axis = draw({}, 0.0, 100.0, 50)[0]
    assert axis.split()[1:] == [str(second) for second in range(0, 101, 10)]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(1.234, "1.23 s"), (0.1, "0.10 s"), (0.0456, "46 ms"), (0.00123, "1.2 ms"), (0.0, "0.0 ms")],
)
def test_a_short_time_is_said_in_milliseconds(seconds: float, said: str) -> None:
    assert spell(seconds) == said


def test_no_time_at_all_can_be_drawn() -> None:
    assert draw({"one": StoryRow([])}, 1.0, 1.0, 10)


def test_both_wrote_from_the_first_write_of_the_next_until_the_last_of_the_old() -> None:
    old, new = account(1, 5, 0.0, 10.5), account(2, 9, 10.0, 10.0)
    assert "c1 and c2 both wrote for 0.50 s" in _describe_overlap(old, new)
    assert _describe_overlap(replace(old, last_write=9.9), new) == "no overlap this time"
