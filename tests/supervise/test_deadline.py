"""The guard kills at the latest proof's deadline, at once for a dead supervisor, else never."""

from __future__ import annotations

from math import inf, nan

from hypothesis import given
from hypothesis import strategies as st

from incumbent.supervise.plan import GuardVerdict, WatchedTerm, begun, covers, ended, judge, proved

TTL = 10.0


def armed(kill_at: float = 5.0) -> WatchedTerm:
    return proved(begun(1, TTL), 1, kill_at, 0.0)


def verdict(watch: WatchedTerm, now: float, *, supervised: bool = True) -> GuardVerdict:
    return judge(watch, now, supervised=supervised)


def test_nothing_may_run_before_the_first_proof() -> None:
    watch = begun(1, TTL)
    assert not covers(watch, 1, 0.0)
    assert verdict(watch, 1e9) is GuardVerdict.WAIT


def test_the_tree_is_killed_at_the_deadline() -> None:
    assert verdict(armed(), 4.9) is GuardVerdict.WAIT
    assert verdict(armed(), 5.0) is GuardVerdict.KILL


def test_a_later_proof_that_was_waiting_in_the_queue_counts() -> None:
    thawed = proved(armed(), 1, 9.0, 8.0)
    assert verdict(thawed, 8.0) is GuardVerdict.WAIT


def test_proofs_that_overtake_each_other_take_nothing_back() -> None:
    assert proved(armed(5.0), 1, 4.0, 1.0).kill_at == 5.0


def test_no_proof_reaches_further_than_a_ttl() -> None:
    assert proved(armed(), 1, inf, 3.0).kill_at == 3.0 + TTL
    assert proved(begun(1, TTL), 1, 1e9, 3.0).kill_at == 3.0 + TTL


def test_what_is_no_number_and_what_belongs_to_another_term_says_nothing() -> None:
    assert proved(armed(), 1, nan, 1.0) == armed()
    assert proved(armed(), 2, 9.0, 1.0) == armed()
    assert ended(armed(), 2) == armed()


def test_after_its_end_a_term_is_killed_no_more() -> None:
    assert verdict(ended(armed(), 1), 1e9) is GuardVerdict.WAIT
    assert not covers(ended(armed(), 1), 1, 0.0)


def test_a_command_may_begin_only_under_a_deadline_that_is_ahead() -> None:
    assert covers(armed(), 1, 4.9)
    assert not covers(armed(), 1, 5.0)
    assert not covers(armed(), 2, 1.0)


def test_without_a_supervisor_the_tree_dies_at_once_and_the_guard_leaves() -> None:
    assert verdict(armed(), 0.1, supervised=False) is GuardVerdict.KILL_AND_LEAVE
    assert verdict(begun(1, TTL), 0.1, supervised=False) is GuardVerdict.LEAVE


EVENTS = st.tuples(
    st.sampled_from(["proof", "old proof", "wild proof", "end", "new"]), st.floats(0, TTL)
)


@given(st.lists(EVENTS, max_size=20))
def test_in_every_history_an_armed_guard_kills_within_a_ttl_of_the_last_proof(
    history: list[tuple[str, float]],
) -> None:
    watch, now, term, last = begun(1, TTL), 0.0, 1, -inf
    for event, later in history:
        now += later
        match event:
            case "proof":
                watch, last = proved(watch, term, now + 0.9 * TTL, now), now
            case "old proof":
                watch = proved(watch, term - 1, now + TTL, now)
            case "wild proof":
                watch, last = proved(watch, term, now + 1e6, now), now
            case "end":
                watch, last = ended(watch, term), -inf
            case _:
                term += 1
                watch, last = begun(term, TTL), -inf
        assert watch.armed == (last > -inf and watch.term == term)
        assert not watch.armed or watch.kill_at <= last + TTL
        assert covers(watch, term, now) == (
            watch.armed and verdict(watch, now) is GuardVerdict.WAIT
        )
