"""The rules by which votes become a lease; each has a planted bug that its test catches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from incumbent.errors import OutcomeUnknown, StoreUnavailable
from incumbent.stores.quorum import ballots
from incumbent.stores.quorum.ballots import (
    Answer,
    BallotClock,
    Lost,
    No,
    Raise,
    Silent,
    Split,
    Strangers,
    Undecided,
    Verdict,
    Vote,
    Won,
)

GONE = Silent(StoreUnavailable("refused"), sent=False)
LATE = Silent(OutcomeUnknown("no answer"), sent=True)
Decide = Callable[[Sequence[Answer]], Verdict]


def test_a_silent_server_is_not_waited_for_where_a_larger_ballot_would_do() -> None:
    assert ballots.is_decided([Vote(7), No("low", floor=9), None])
    assert not ballots.is_decided([Vote(7), None, None])


def held(who: bytes = b"a", left: float = 9.0, floor: int = 5) -> No:
    return No("held", b"raw", left, 1, floor, who)


def low(floor: int) -> No:
    return No("low", floor=floor)


def young(left: float) -> No:
    return No("young", left=left)


# -- the rules, as functions of `decide`, so that a bug can be put in its place


def a_majority_storing_exactly_one_ballot_wins(decide: Decide) -> None:
    assert decide([Vote(7), Vote(7), GONE]) == Won(7, None)
    assert decide([Vote(7), Vote(7), Vote(7)]) == Won(7, None)


def the_same_claim_at_another_ballot_is_no_vote(decide: Decide) -> None:
    assert decide([Vote(7), Vote(6, 1.0), GONE]) == Raise(7)
    assert decide([Vote(7), Vote(6, 1.0), Vote(5, 1.0)]) == Raise(7)


def what_was_there_before_is_the_same_grant(decide: Decide) -> None:
    assert decide([Vote(6, 3.0), Vote(6, 2.0), Vote(9)]) == Won(6, 2.0)


def a_minority_wins_nothing(decide: Decide) -> None:
    assert decide([Vote(7), GONE, GONE]) == Undecided(perhaps=False)
    assert decide([Vote(7), Vote(7), GONE, GONE, GONE]) == Undecided(perhaps=False)


def answers_that_were_lost_leave_it_open(decide: Decide) -> None:
    assert decide([Vote(7), LATE, GONE]) == Undecided(perhaps=True)
    assert decide([LATE, LATE, GONE]) == Undecided(perhaps=True)
    assert decide([LATE, GONE, GONE]) == Undecided(perhaps=False)


def a_ballot_that_is_too_low_is_raised_above_all_floors(decide: Decide) -> None:
    assert decide([Vote(7), low(9), low(12)]) == Raise(12)
    assert decide([low(9), low(8), GONE]) == Raise(9)


def a_majority_for_one_other_is_lost(decide: Decide) -> None:
    assert decide([held(left=3), held(left=9), Vote(7)]) == Lost(held(left=3))
    assert decide([held(left=3), held(left=9), held(left=1)]) == Lost(held(left=3))


def two_others_are_no_majority(decide: Decide) -> None:
    verdict = decide([held(b"a"), held(b"b"), Vote(7)])
    assert isinstance(verdict, Split)


def a_minority_that_refuses_is_no_refusal(decide: Decide) -> None:
    """Not even with those that would vote: what the rest says is not known."""
    for rest in (GONE, LATE, young(3)):
        verdict = decide([held(b"a"), Vote(7), rest])
        assert isinstance(verdict, Split)
        assert not verdict.refused
    verdict = decide([held(b"a"), held(b"b"), GONE])
    assert isinstance(verdict, Split)
    assert verdict.refused


def of_a_split_vote_exactly_one_goes_first(decide: Decide) -> None:
    """Each of three that hold one node each sees the other two."""
    sights: list[list[Answer]] = [
        [Vote(7), held(b"b"), held(b"c")],
        [held(b"a"), Vote(7), held(b"c")],
        [held(b"a"), held(b"b"), Vote(7)],
    ]
    verdicts = [decide(it) for it in sights]
    assert [it.first for it in verdicts if isinstance(it, Split)] == [True, False, False]


def a_server_of_other_members_ends_it(decide: Decide) -> None:
    assert decide([Vote(7), Vote(7), No("members", b"theirs")]) == Strangers(2, b"theirs")


def young_servers_do_not_vote(decide: Decide) -> None:
    assert decide([Vote(7), young(5), young(2)]) == Undecided(perhaps=False, votes_in=2)
    assert decide([young(5), young(5.05), young(2)]) == Undecided(perhaps=False, votes_in=5.05)
    assert decide([GONE, GONE, young(2)]) == Undecided(perhaps=False, votes_in=None)


def a_pause_seen_by_one_is_looked_into(decide: Decide) -> None:
    paused = No("paused", who=b"paused")
    assert decide([Vote(7), Vote(7), paused]) == Won(7, None, but_paused=True)
    assert decide([Vote(7), paused, paused]) == Lost(paused)


RULES = (
    a_majority_storing_exactly_one_ballot_wins,
    the_same_claim_at_another_ballot_is_no_vote,
    what_was_there_before_is_the_same_grant,
    a_minority_wins_nothing,
    answers_that_were_lost_leave_it_open,
    a_ballot_that_is_too_low_is_raised_above_all_floors,
    a_majority_for_one_other_is_lost,
    two_others_are_no_majority,
    a_minority_that_refuses_is_no_refusal,
    of_a_split_vote_exactly_one_goes_first,
    a_server_of_other_members_ends_it,
    young_servers_do_not_vote,
    a_pause_seen_by_one_is_looked_into,
)


def _name(rule: Callable[..., object]) -> str:
    return rule.__name__


@pytest.mark.parametrize("rule", RULES, ids=_name)
def test_the_rule_holds(rule: Callable[[Decide], None]) -> None:
    rule(ballots.decide)


# -- planted bugs


def _same_claim_means_mine(answers: Sequence[Answer]) -> Verdict:
    votes = [it.ballot for it in answers if isinstance(it, Vote)]
    won = len(votes) >= ballots.majority_of(len(answers))
    return Won(max(votes), None) if won else ballots.decide(answers)


def _adopts_the_new_ballot(answers: Sequence[Answer]) -> Verdict:
    verdict = ballots.decide(answers)
    newest = max((it.ballot for it in answers if isinstance(it, Vote)), default=0)
    return verdict if not isinstance(verdict, Won) else Won(newest, verdict.left)


def _majority_of_those_that_answered(answers: Sequence[Answer]) -> Verdict:
    there = [it for it in answers if not isinstance(it, Silent)]
    return ballots.decide(there) if there else ballots.decide(answers)


def _half_is_enough(answers: Sequence[Answer]) -> Verdict:
    votes = Counter(it.ballot for it in answers if isinstance(it, Vote))
    ballot, count = votes.most_common(1)[0] if votes else (0, 0)
    return Won(ballot, None) if count >= len(answers) // 2 > 0 else ballots.decide(answers)


def _what_was_lost_was_not_done(answers: Sequence[Answer]) -> Verdict:
    verdict = ballots.decide(answers)
    return Undecided(perhaps=False) if isinstance(verdict, Undecided) else verdict


def _raises_above_its_own_only(answers: Sequence[Answer]) -> Verdict:
    verdict = ballots.decide(answers)
    own = max((it.ballot for it in answers if isinstance(it, Vote)), default=0)
    return Raise(own) if isinstance(verdict, Raise) else verdict


def _any_two_nos_are_a_no(answers: Sequence[Answer]) -> Verdict:
    nos = [it for it in answers if isinstance(it, No) and it.kind == "held"]
    return Lost(nos[0]) if len(nos) >= 2 else ballots.decide(answers)


def _believes_the_longest(answers: Sequence[Answer]) -> Verdict:
    verdict = ballots.decide(answers)
    if isinstance(verdict, Lost):
        return Lost(max((it for it in answers if isinstance(it, No)), key=lambda it: it.left))
    return verdict


def _everybody_goes_first(answers: Sequence[Answer]) -> Verdict:
    verdict = ballots.decide(answers)
    return Split(verdict.no, first=True) if isinstance(verdict, Split) else verdict


def _whoever_refuses_refuses(answers: Sequence[Answer]) -> Verdict:
    verdict = ballots.decide(answers)
    return Split(verdict.no, verdict.first, True) if isinstance(verdict, Split) else verdict


def _ignores_strangers(answers: Sequence[Answer]) -> Verdict:
    strange = [isinstance(it, No) and it.kind == "members" for it in answers]
    return ballots.decide([GONE if odd else it for odd, it in zip(strange, answers, strict=True)])


def _the_young_vote(answers: Sequence[Answer]) -> Verdict:
    young_ones = [isinstance(it, No) and it.kind == "young" for it in answers]
    return ballots.decide([Vote(7) if it else a for it, a in zip(young_ones, answers, strict=True)])


def _overlooks_a_pause(answers: Sequence[Answer]) -> Verdict:
    verdict = ballots.decide(answers)
    return Won(verdict.token, verdict.left) if isinstance(verdict, Won) else verdict


@pytest.mark.parametrize(
    ("bug", "rule"),
    [
        (_same_claim_means_mine, the_same_claim_at_another_ballot_is_no_vote),
        (_adopts_the_new_ballot, what_was_there_before_is_the_same_grant),
        (_majority_of_those_that_answered, a_minority_wins_nothing),
        (_half_is_enough, a_minority_wins_nothing),
        (_what_was_lost_was_not_done, answers_that_were_lost_leave_it_open),
        (_raises_above_its_own_only, a_ballot_that_is_too_low_is_raised_above_all_floors),
        (_any_two_nos_are_a_no, two_others_are_no_majority),
        (_believes_the_longest, a_majority_for_one_other_is_lost),
        (_everybody_goes_first, of_a_split_vote_exactly_one_goes_first),
        (_whoever_refuses_refuses, a_minority_that_refuses_is_no_refusal),
        (_ignores_strangers, a_server_of_other_members_ends_it),
        (_the_young_vote, young_servers_do_not_vote),
        (_overlooks_a_pause, a_pause_seen_by_one_is_looked_into),
    ],
    ids=_name,
)
def test_a_planted_bug_is_caught(bug: Decide, rule: Callable[[Decide], None]) -> None:
    with pytest.raises(AssertionError):
        rule(bug)


# -- when to stop hearing


@pytest.mark.parametrize(
    "answers",
    [
        [Vote(7), Vote(7), None],
        [held(), held(), None],
        [Vote(7), None, Vote(7), None, Vote(7)],
        [Vote(7), GONE, GONE],
    ],
)
def test_what_cannot_change_any_more_is_decided(answers: list[Answer | None]) -> None:
    assert ballots.is_decided(answers)


@pytest.mark.parametrize(
    "answers",
    [
        [Vote(7), None, None],
        [Vote(7), Vote(6, 1.0), None],
        [Vote(7), held(), None],
        [held(b"a"), held(b"b"), None],
        [GONE, GONE, None],
    ],
)
def test_what_may_still_change_is_not(answers: list[Answer | None]) -> None:
    assert not ballots.is_decided(answers)


# -- proposals


def _clock(*unix: float, at: float = 100.0) -> BallotClock:
    clock = BallotClock(len(unix))
    for node, seconds in enumerate(unix):
        if seconds:
            clock.learn(node, int(seconds * 1e6), at)
    return clock


def test_a_proposal_is_the_median_of_the_servers_clocks() -> None:
    assert _clock(1000, 2000, 9_999_999).propose(100.0) == 2_000_000_000


def test_a_proposal_goes_on_with_time() -> None:
    assert _clock(1000, 2000, 3000).propose(101.5) == 2_001_500_000


def test_of_an_even_number_of_clocks_the_later_counts() -> None:
    assert _clock(1000, 0, 2000).propose(100.0) == 2_000_000_000


def test_proposals_of_one_process_only_grow() -> None:
    clock = _clock(2000, 2000, 2000)
    first = clock.propose(100.0)
    assert [clock.propose(100.0), clock.propose(99.9)] == [first + 1, first + 2]
    for node in range(3):
        clock.learn(node, 1_999_000_000, 100.0)
    assert clock.propose(100.0) > first


def test_a_clock_far_ahead_is_not_followed_once_the_others_are_heard() -> None:
    clock = _clock(9000, 0, 0)
    assert clock.propose(100.0) == 9_000_000_000
    for node in (1, 2):
        clock.learn(node, 2_000_000_000, 100.0)
    assert clock.propose(100.0) == 2_000_000_000


def test_a_proposal_is_above_all_that_was_seen_and_leaves_other_names_alone() -> None:
    clock = _clock(2000, 2000, 2000)
    assert clock.propose(100.0, above=7_000_000_000) == 7_000_000_001
    assert clock.propose(100.0) < 7_000_000_000
    assert clock.highest == 7_000_000_001


def test_without_a_majority_of_clocks_there_is_no_median() -> None:
    assert not _clock(1000, 0, 0).knows()
    assert _clock(1000, 1000, 0).knows()
